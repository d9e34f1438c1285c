"""The report: one HTML page about how calibrated a classifier is."""

from calibrant.report.describe import compare_files, describe, describe_comparison
from calibrant.report.write import render, write_report

__all__ = [
    "compare_files",
    "describe",
    "describe_comparison",
    "render",
    "write_report",
]
