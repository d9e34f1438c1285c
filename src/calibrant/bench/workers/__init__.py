"""What does the jobs of experiments, by the name that their files use."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from calibrant.bench.rows import Record
from calibrant.bench.workers.arena import run_arena, run_calarena
from calibrant.bench.workers.posthoc import run_posthoc
from calibrant.bench.workers.studies import run_study
from calibrant.bench.workers.training import run_training

# Takes the point of the grid, the settings of the preset, the seed, and the folder of data sets.
Worker: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any], int, Path | None], Iterable[Record]]

WORKERS: Mapping[str, Worker] = {
    "posthoc": run_posthoc,
    "training": run_training,
    "studies": run_study,
    "arena": run_arena,
    "calarena": run_calarena,
}

__all__ = ["WORKERS", "Worker"]
