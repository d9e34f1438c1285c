"""The version of Calibrant, importable without anything else."""

#: The version of Calibrant, as in ``calibrant --version``.
__version__ = "0.1.0"
