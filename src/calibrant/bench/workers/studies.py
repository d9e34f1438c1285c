"""Runs the study that the key names; the study reads the rest of the key."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from calibrant.bench.rows import Record
from calibrant.bench.studies.bound import bound_study
from calibrant.bench.studies.indicators import indicator_study
from calibrant.bench.studies.mismatch import mismatch_study
from calibrant.bench.studies.sensitivity import sensitivity_study
from calibrant.errors import InputError

STUDIES: Mapping[
    str, Callable[[Mapping[str, Any], Mapping[str, Any], int, Path | None], Iterator[Record]]
] = {
    "indicators": indicator_study,
    "bound": bound_study,
    "mismatch": mismatch_study,
    "sensitivity": sensitivity_study,
}


def run_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield the records of the study that ``study`` names, in the key or in the settings."""
    name = key.get("study", settings.get("study"))
    if name not in STUDIES:
        raise InputError(f"study: expected one of {', '.join(STUDIES)}, got {name!r}")
    yield from STUDIES[name](key, settings, seed, data)
