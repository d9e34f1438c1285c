"""Fits post-hoc methods by name for experiments, with options, and goes on where one cannot be fitted."""

from typing import Any

from calibrant.data.predictions import Predictions
from calibrant.errors import FitError, InputError
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.fitting_set import FittingSet
from calibrant.posthoc.fitting.temperature_training import best_single_temperature
from calibrant.posthoc.identity import Identity
from calibrant.posthoc.names import METHODS
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.surrogates.objectives import check_objective


def fit_or_leave(
    name: str,
    predictions: Predictions,
    *,
    seed: int = 0,
    **options: Any,  # noqa: ANN401  # of any method
) -> tuple[Calibrator, bool]:
    """Fit a method by its name, or leave the model as it is; the second value says whether it was fitted."""
    try:
        return fit_method(name, predictions, seed=seed, **options), True
    except FitError:
        return Identity(n_classes=predictions.k), False


def fit_method(name: str, predictions: Predictions, *, seed: int = 0, **options: Any) -> Calibrator:  # noqa: ANN401  # of any method
    """Fit a method of the registry, with options beyond those that define it.

    Temperature scaling takes the objectives that trained methods take, so that a table of objectives can have
    a line for it.

    Args:
        name: One of :data:`calibrant.posthoc.names.METHODS`.
        predictions: What to fit on.
        seed: Of the method.
        options: Keyword arguments of the method's ``fit``.
    """
    if name not in METHODS:
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {name!r}")
    method = METHODS[name]
    if method.calibrator.needs_features and predictions.features is None:
        raise FitError(f"{name}: expected features of the samples, got none")
    z, y = predictions.to_logits(), predictions.labels
    if y is None:
        raise InputError("labels: expected the true class of each sample to fit on, got none")
    objective = options.get("objective", "nll")
    if name == "temperature" and objective not in ("nll", "ece"):
        return TemperatureScaling(best_single_temperature(FittingSet(z, y), check_objective(objective)))
    return method.calibrator.fit(
        z, y, features=predictions.features, seed=seed, **{**method.options, **options}
    )
