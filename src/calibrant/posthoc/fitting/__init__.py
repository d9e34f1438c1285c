"""What the post-hoc methods share: solvers, searches, folds and maps."""
