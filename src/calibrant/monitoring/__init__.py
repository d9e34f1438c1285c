"""Monitoring: test whether a deployed classifier is still as calibrated as it was on a reference."""

from calibrant.monitoring.drift import DriftMonitor
from calibrant.monitoring.files import follow, gather
from calibrant.monitoring.monitor import Monitoring
from calibrant.monitoring.reference import DriftReference

__all__ = [
    "DriftMonitor",
    "DriftReference",
    "Monitoring",
    "follow",
    "gather",
]
