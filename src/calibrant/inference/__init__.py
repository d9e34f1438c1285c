"""What chance does: intervals, paired differences and tests of calibration, on units that are drawn again."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant.inference.bands import accuracy_band, curve_band
    from calibrant.inference.calibration_test import calibration_test
    from calibrant.inference.chance import by_chance
    from calibrant.inference.corrections import corrected
    from calibrant.inference.intervals import wilson_interval, with_interval
    from calibrant.inference.paired import paired_difference

__all__ = [
    "accuracy_band",
    "by_chance",
    "calibration_test",
    "corrected",
    "curve_band",
    "paired_difference",
    "wilson_interval",
    "with_interval",
]

_import_when_used(__name__)
