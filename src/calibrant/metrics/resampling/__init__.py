"""Resampling: draw the samples again, row by row, or only their bins or terms."""
