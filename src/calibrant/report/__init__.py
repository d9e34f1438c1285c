"""The report: one page about how honest a classifier's confidence is, made to be mailed to a colleague."""

from calibrant.report.gather import Sources, compare_files, describe, describe_comparison
from calibrant.report.page import Page
from calibrant.report.provenance import Origin
from calibrant.report.stored import page_from_json, page_to_json
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
