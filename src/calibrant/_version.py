"""The version of Calibrant, importable without anything else."""

__version__ = "0.1.0.dev0"
