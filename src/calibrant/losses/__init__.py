"""Losses that train for calibration; each is a function and a module, a drop-in for cross-entropy."""
