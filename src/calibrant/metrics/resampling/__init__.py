"""Resampling: draw rows again, or only the contents of their bins or the terms of a mean."""
