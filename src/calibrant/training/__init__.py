"""Training: from data to a calibrated model, in one command or in your own loop."""
