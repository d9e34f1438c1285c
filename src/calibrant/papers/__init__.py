"""The benchmark: the papers' tables, reproducible by anyone."""
