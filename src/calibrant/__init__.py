"""Honest confidence for classifiers: measure calibration, repair it after training, train for it."""

__version__ = "0.1.0.dev0"
