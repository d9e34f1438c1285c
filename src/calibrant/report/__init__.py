"""The report: one HTML page about how calibrated a classifier is."""

from calibrant.report.describe import compare_files, describe, describe_comparison
from calibrant.report.page import Page, page_from_json, page_to_json
from calibrant.report.sources import Origin, Sources
from calibrant.report.write import render, write_report

__all__ = [
    "Origin",
    "Page",
    "Sources",
    "compare_files",
    "describe",
    "describe_comparison",
    "page_from_json",
    "page_to_json",
    "render",
    "write_report",
]
