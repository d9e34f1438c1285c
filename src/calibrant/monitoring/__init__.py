"""Monitoring: test whether a deployed classifier is still as calibrated as it was on a reference."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
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

_import_when_used(__name__)
