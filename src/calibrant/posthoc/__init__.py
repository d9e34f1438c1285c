"""Post-hoc calibration: maps from a trained model's logits to honest probabilities."""

from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.chain import Chain
from calibrant.posthoc.files import load_calibrator
from calibrant.posthoc.temperature import TemperatureScaling

__all__ = ["Calibrator", "Chain", "TemperatureScaling", "load_calibrator"]
