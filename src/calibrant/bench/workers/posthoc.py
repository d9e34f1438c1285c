"""Fits a post-hoc method on one part of a model's predictions and measures it on another.

The grid names a ``source`` of predictions and a ``method``; ``samples`` is how many are fitted on; further
keys are options of the method. The seed decides which samples those are. Settings:

- ``measures``: names of :data:`calibrant.metrics.names.MEASURES`.
- ``sets``: which of the source's test sets are measured; all by default.
- ``options``: for a method by its name, options that all its points share.
- ``notes``: for each value of an option, how the papers' tables note it; becomes the label ``setting``.
- ``reductions``: measures of which the drop against the model as it is is reported, too.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from calibrant.bench.fitting import fit_or_leave
from calibrant.bench.rows import Record
from calibrant.bench.sources import load_source
from calibrant.data.predictions import Predictions
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.evaluate import evaluate

MEASURES = ("accuracy", "nll", "brier", "ece", "ece_equal_mass", "classwise_ece", "smece", "aurc")

_NOT_OPTIONS = ("source", "method", "samples")


def run_posthoc(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield a record for each test set: its measures, and the processor time of fitting and applying.

    A method that cannot be fitted leaves the model as it is, is measured so, and has ``fitted`` 0.
    """
    source = load_source(key["source"], seed=seed, data=data)
    validation = source.validation
    if "samples" in key:
        validation = validation.take(list(range(min(key["samples"], validation.n))))
    options = {name: value for name, value in key.items() if name not in _NOT_OPTIONS}
    every = {**settings.get("options", {}).get(key["method"], {}), **options}
    start = time.process_time()
    calibrator, fitted = fit_or_leave(key["method"], validation, seed=seed, **every)
    fit_seconds = time.process_time() - start
    labels = _noted(options, settings.get("notes", {}))
    for name in settings.get("sets", source.tests):
        if name not in source.tests:
            continue
        start = time.process_time()
        repaired = calibrated(calibrator, source.tests[name])
        seconds = time.process_time() - start
        values: dict[str, float | None] = {**measured(repaired, settings), "fitted": float(fitted)}
        values |= {"fit_seconds": fit_seconds, "apply_seconds": seconds, "run_seconds": fit_seconds + seconds}
        if "reductions" in settings:
            before = measured(source.tests[name], {"measures": settings["reductions"]})
            after = measured(repaired, {"measures": settings["reductions"]})
            values |= {f"{each}_reduction": before[each] - after[each] for each in before}
        yield Record({"set": name, **labels}, values)


def measured(predictions: Predictions, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the measures that the settings name."""
    return dict(evaluate(predictions, measures=settings.get("measures", MEASURES)).metrics)


def _noted(options: Mapping[str, Any], notes: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    said = [notes[name][str(value)] for name, value in options.items() if name in notes]
    return {"setting": ";".join(said)} if said else {}
