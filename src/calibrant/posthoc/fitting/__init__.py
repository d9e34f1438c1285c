"""What the post-hoc methods share: searches, folds, and maps of scores."""
