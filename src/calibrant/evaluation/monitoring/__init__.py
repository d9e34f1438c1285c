"""Monitoring: a stream of labelled predictions in windows, each measured, all of them one sequential test."""

from calibrant.evaluation.monitoring.alarm import Alarm
from calibrant.evaluation.monitoring.files import gather
from calibrant.evaluation.monitoring.following import Step, follow
from calibrant.evaluation.monitoring.seen import SeenFile
from calibrant.evaluation.monitoring.watch import Monitoring
from calibrant.evaluation.monitoring.window import Window

__all__ = ["Alarm", "Monitoring", "SeenFile", "Step", "Window", "follow", "gather"]
