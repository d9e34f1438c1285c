"""The worker ``posthoc``: fit a post-hoc method on one part of a model's predictions, measure it on another.

The grid names a ``source`` of predictions and a ``method``, with options as in ``"smart(settled=0)"``;
``samples`` is the number of samples to fit on; further keys are options of the method. The seed decides which
samples are used. Settings:

- ``measures``: names of :data:`calibrant.metrics.names.MEASURES`.
- ``sets``: the test sets to measure; all by default.
- ``options``: options of a method that all its points share, by the name of the method; options in
  a name, as in ``smart(settled=0)``, take precedence.
- ``notes``: for each value of an option, its notation in the papers' tables; becomes the label ``setting``.
- ``reductions``: measures whose reduction compared with the uncalibrated model is also reported.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from calibrant.data.predictions import Predictions
from calibrant.errors import FitError, InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.evaluate import evaluate
from calibrant.expressions import parse_term
from calibrant.outcomes import refuse_weights
from calibrant.papers.draws import drawn_measures, packed_all
from calibrant.papers.model_predictions import load_model_predictions
from calibrant.papers.rows import Record
from calibrant.posthoc.calibrator import Calibrator, Identity
from calibrant.posthoc.fitting.temperature_training import best_single_temperature
from calibrant.posthoc.fitting.tempered import TemperedSamples
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.posthoc.names import canonical_name, method_named
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.surrogates import check_objective

_MEASURES = ("accuracy", "nll", "brier", "ece", "ece_equal_mass", "classwise_ece", "smece", "aurc")

# Measures that rows keep on draws of the test samples.
_DRAWN = ("accuracy", "nll", "ece", "ece_equal_mass")

_NOT_OPTIONS = ("source", "method", "samples")


def run_posthoc(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield a record for each test set: its measures, and the CPU time of fitting and applying.

    If a method cannot be fitted, the uncalibrated model is measured and ``fitted`` is 0.
    """
    source = load_model_predictions(key["source"], seed=seed, data=data)
    validation = source.validation
    if "samples" in key:
        validation = validation.take(list(range(min(key["samples"], validation.n))))
    options = {name: value for name, value in key.items() if name not in _NOT_OPTIONS}
    method = canonical_name(key["method"])
    every = {**_shared_options(method, settings), **options}
    start = time.process_time()
    calibrator, fitted = fit_or_identity(method, validation, seed=seed, **every)
    fit_seconds = time.process_time() - start
    notes = settings.get("notes", {})
    noted = [notes[name][str(value)] for name, value in options.items() if name in notes]
    labels = {"setting": ";".join(noted)} if noted else {}
    if method != key["method"]:
        labels["method"] = method
    for name in settings.get("sets", source.tests):
        if name not in source.tests:
            continue
        start = time.process_time()
        repaired = calibrated(calibrator, source.tests[name])
        seconds = time.process_time() - start
        values: dict[str, float | None] = {**_measured(repaired, settings), "fitted": float(fitted)}
        values |= {"fit_seconds": fit_seconds, "apply_seconds": seconds, "run_seconds": fit_seconds + seconds}
        if "reductions" in settings:
            before = _measured(source.tests[name], {"measures": settings["reductions"]})
            after = _measured(repaired, {"measures": settings["reductions"]})
            values |= {f"{each}_reduction": before[each] - after[each] for each in before}
        drawn = drawn_measures(repaired, [each for each in _DRAWN if each in values])
        yield Record({"set": name, **labels}, values, packed_all(drawn))


def fit_or_identity(
    name: str,
    predictions: Predictions,
    *,
    seed: int = 0,
    **options: Any,  # noqa: ANN401  # of any method
) -> tuple[Calibrator, bool]:
    """Fit a method by its name and return True, or return the identity and False if the fit fails."""
    try:
        return fit_by_name(name, predictions, seed=seed, **options), True
    except FitError:
        return Identity(n_classes=predictions.k), False


def fit_by_name(name: str, predictions: Predictions, *, seed: int = 0, **options: Any) -> Calibrator:  # noqa: ANN401  # of any method
    """Fit a method of the catalogue, with further options.

    Temperature scaling also takes the objectives of the trained methods, so that tables of objectives can
    include it.

    Args:
        name: One of :data:`calibrant.posthoc.names.METHODS`, with options if it has any.
        predictions: Predictions to fit on.
        seed: Seed of the method.
        options: Keyword arguments of the method's ``fit``.
    """
    method = method_named(name)
    if method.calibrator.needs_features and predictions.features is None:
        raise FitError(f"{name}: expected features of the samples, got none")
    z, y = predictions.to_logits(), predictions.labels
    if y is None:
        raise InputError("labels: expected the true class of each sample to fit on, got none")
    refuse_weights(predictions.weights, "benchmarks")
    every = {**method.options, **options}
    objective = every.get("objective", "nll")
    if method.calibrator is TemperatureScaling and objective not in ("nll", "ece", "ece_equal_mass"):
        return TemperatureScaling(
            best_single_temperature(TemperedSamples(FittingSet(z, y)), check_objective(objective))
        )
    return method.calibrator.fit(z, y, features=predictions.features, seed=seed, **every)


def _shared_options(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that all variants of a method share by the settings, without those in its name."""
    term = parse_term(method)
    if term is None:  # a method that was added with another kind of name
        return dict(settings.get("options", {}).get(method, {}))
    shared = settings.get("options", {}).get(term.name, {})
    return {name: value for name, value in shared.items() if name not in term.options}


def _measured(predictions: Predictions, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the measures that the settings name."""
    return dict(evaluate(predictions, measures=settings.get("measures", _MEASURES)).metrics)
