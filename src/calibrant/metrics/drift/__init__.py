"""Calibration drift: is a deployed classifier still as calibrated as it was, at any time one looks?"""

from calibrant.metrics.drift.monitor import DriftMonitor, GroupDrift
from calibrant.metrics.drift.reference import DriftReference, ReferenceGroup

__all__ = ["DriftMonitor", "DriftReference", "GroupDrift", "ReferenceGroup"]
