"""Lets every method meet every other one on the same task, and says what each gained and whom it beat.

The worker ``arena`` has one task a job, a ``source``; ``calarena`` has a ``file`` and does one ``part`` of
the tasks in it. Both read ``methods`` from the settings, all that need no features by default. The mean
``win_rate`` over jobs is CalArena's win rate; ELO ratings are made of the rows by
:mod:`calibrant.bench.rankings`.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant.bench.calarena import read_tasks
from calibrant.bench.fitting import fit_or_leave
from calibrant.bench.rankings import task_win_rates
from calibrant.bench.rows import Record
from calibrant.bench.sources import load_source
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics.proper import post_hoc_improvement
from calibrant.posthoc.names import METHODS

SCORE = "brier"
_MEASURES = ("accuracy", "nll", "brier", "ece")


def run_arena(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield a record for each method on the task that the key names."""
    source = load_source(key["source"], seed=seed, data=data)
    yield from meet(source.validation, source.tests["test"], _methods(settings), seed)


def run_calarena(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield a record for each method on each task of a part of a file."""
    if data is None:
        raise InputError(f"--data: expected the folder that holds {key['file']}, got none")
    for task in read_tasks(data / key["file"], part=key.get("part", 0), parts=settings.get("parts", 1)):
        for record in meet(task.calibration, task.test, _methods(settings), seed):
            labels = {"dataset": task.dataset, "model": task.model, **record.labels}
            yield Record(labels, record.values)


def meet(fitting: Predictions, test: Predictions, methods: Sequence[str], seed: int) -> list[Record]:
    """Fit every method on the same samples and measure it on the same others.

    ``phi_brier`` and ``phi_nll`` are what the score of the model as it is loses, as CalArena has it; a method
    that cannot be fitted leaves the model as it is and has ``fitted`` 0.
    """
    found: dict[str, dict[str, float | None]] = {}
    before = test.to_probs()
    assert test.labels is not None
    for name in methods:
        start = time.process_time()
        calibrator, fitted = fit_or_leave(name, fitting, seed=seed)
        after = calibrated(calibrator, test)
        seconds = time.process_time() - start
        values: dict[str, float | None] = dict(evaluate(after, measures=_MEASURES).metrics)
        for score in ("brier", "nll"):
            gain = post_hoc_improvement(before, after.to_probs(), test.labels, score=score, relative=False)
            values[f"phi_{score}"] = gain if math.isfinite(gain) else None
        found[name] = {**values, "fitted": float(fitted), "run_seconds": seconds}
    scores = {name: float(values[SCORE] or 0.0) for name, values in found.items()}
    rates = task_win_rates(scores)
    return [Record({"method": name}, {**values, "win_rate": rates[name]}) for name, values in found.items()]


def _methods(settings: Mapping[str, Any]) -> list[str]:
    every = [name for name, method in METHODS.items() if not method.calibrator.needs_features]
    return list(settings.get("methods", every))
