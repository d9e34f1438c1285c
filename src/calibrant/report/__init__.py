"""The report: one HTML page about how calibrated a classifier is."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant.report.describe import compare_files, describe, describe_comparison
    from calibrant.report.write import render, write_report

__all__ = [
    "compare_files",
    "describe",
    "describe_comparison",
    "render",
    "write_report",
]

_import_when_used(__name__)
