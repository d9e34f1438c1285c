"""Monitoring: test whether a deployed classifier is still as calibrated as it was on a reference."""

from calibrant.monitoring.alarm import Alarm
from calibrant.monitoring.drift import DriftMonitor, GroupDrift
from calibrant.monitoring.files import Step, follow, gather
from calibrant.monitoring.monitor import Monitoring
from calibrant.monitoring.reference import DriftReference, ReferenceGroup
from calibrant.monitoring.state import SeenFile
from calibrant.monitoring.windows import Window

__all__ = [
    "Alarm",
    "DriftMonitor",
    "DriftReference",
    "GroupDrift",
    "Monitoring",
    "ReferenceGroup",
    "SeenFile",
    "Step",
    "Window",
    "follow",
    "gather",
]
