"""Numbers about a training run beside its measures: what the papers plot over epochs, and what tables add.

SECA, appendix A: entropy of predictions, their divergence from others of the same class, their similarity to
the mean of the class. AdaFocal, figures 2 and 5: confidence of training and validation samples in common
bins, and the exponents of these bins. Both papers print the temperature beside the calibrated error, and SECA
the top-5 error.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import StatisticsError, correlation, fmean
from typing import TYPE_CHECKING, Any

from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics.names import MEASURES
from calibrant.posthoc.temperature import TemperatureScaling

if TYPE_CHECKING:
    from calibrant.evaluation.compare import MethodResult
    from calibrant.training.records import EpochRow
    from calibrant.training.run import Run

_AGREEMENT = ("train_entropy", "train_kl", "train_cosine")
_TOP_5 = "top_5_error"
# A bin needs this many epochs with training and validation samples before their correlation means anything.
_FEWEST_EPOCHS = 5


def training_values(run: "Run") -> dict[str, float | None]:
    """Return what the papers say about the epochs of a run; nothing if it measured no dynamics.

    ========================= ================================================================================
    ``train_entropy``         mean entropy of predictions on training samples after the last epoch, in nats
    ``train_kl``              their divergence from the mean of the others of their class
    ``train_cosine``          their cosine similarity to the mean of their class
    ``mean_train_...``        the means of these three over all epochs
    ``val_bin_gap``           mean of abs(C - A) over validation samples in bins of equal mass, last epoch
    ``mean_val_bin_gap``      its mean over all epochs
    ``train_bin_confidence``  mean of C_train over epochs and bins that hold training and validation samples
    ``val_bin_confidence``    mean of C_val over the same
    ``bin_correspondence``    correlation of C_train and C_val over epochs within a bin, mean over bins
    ``gamma_lowest_bin``      AdaFocal's exponent of the bin of the lowest confidences after the last epoch
    ``gamma_highest_bin``     that of the highest confidences
    ``gamma_difference``      the first minus the second
    ``gamma_smallest``        the smallest exponent of all bins
    ``gamma_largest``         the largest
    ``gamma_at_limit``        share of bins whose exponent is the largest that the loss allows
    ``gamma_inverse``         share of bins with inverse focal loss
    ========================= ================================================================================

    Args:
        run: A finished run; of one in two stages, the epochs of the classifier count.
    """
    from calibrant.training.session import CLASSIFIER

    values: dict[str, float | None] = {}
    epochs = [row for row in run.dynamics if row["stage"] == CLASSIFIER]
    if not epochs:
        return values
    for name in _AGREEMENT:
        known = [row[name] for row in epochs if row[name] is not None]
        values[name] = epochs[-1][name]
        values[f"mean_{name}"] = fmean(known) if known else None
    gaps = [_mean_gap(row["bins"]) for row in epochs]
    values |= {"val_bin_gap": gaps[-1], "mean_val_bin_gap": fmean(gaps)}
    return values | _correspondence(epochs) | _exponents(run, epochs[-1])


def method_values(result: "MethodResult") -> dict[str, float | None]:
    """Return the top-5 error of a method on the test set, and the temperature of temperature scaling.

    Args:
        result: A method of ``assess(run).comparison.results``.

    The error is left out with fewer than six classes, and the temperature for other methods.
    """
    values: dict[str, float | None] = {}
    test = result.test
    if test is not None and test.labels is not None and (test.k or 0) >= (MEASURES[_TOP_5].min_classes or 0):
        values[_TOP_5] = evaluate(test, measures=[_TOP_5]).metrics[_TOP_5]
    if isinstance(result.calibrator, TemperatureScaling):
        values["temperature"] = float(result.calibrator.temperature)
    return values


def _mean_gap(bins: Mapping[str, Any]) -> float:
    """Return the mean over validation samples of the gap between confidence and accuracy in their bin."""
    pairs = [(n, abs(gap)) for n, gap in zip(bins["count"], bins["gap"], strict=True) if n]
    return float(sum(n * gap for n, gap in pairs) / sum(n for n, _ in pairs))


def _correspondence(epochs: Sequence["EpochRow"]) -> dict[str, float | None]:
    """Compare the true-class probability of training samples with the confidence of validation samples."""
    shared = [list(_shared_bins(row["bins"])) for row in epochs]
    every = [pair for row in shared for _, *pair in row]
    by_bin: dict[int, list[list[float]]] = {}
    for row in shared:
        for place, *pair in row:
            by_bin.setdefault(place, []).append(pair)
    found = [each for pairs in by_bin.values() if (each := _correlation(pairs)) is not None]
    return {
        "train_bin_confidence": fmean(train for train, _ in every) if every else None,
        "val_bin_confidence": fmean(val for _, val in every) if every else None,
        "bin_correspondence": fmean(found) if found else None,
    }


def _shared_bins(bins: Mapping[str, Any]) -> Iterator[tuple[int, float, float]]:
    """Yield the number of each bin with training and validation samples, and the mean of either."""
    pairs = zip(bins["train_true"], bins["confidence"], strict=True)
    for place, (train, val) in enumerate(pairs):
        if train is not None and val is not None:
            yield place, train, val


def _correlation(pairs: Sequence[Sequence[float]]) -> float | None:
    """Return the correlation of pairs; None if there are few of them, or if one side never changes."""
    if len(pairs) < _FEWEST_EPOCHS:
        return None
    try:
        return correlation([train for train, _ in pairs], [val for _, val in pairs])
    except StatisticsError:
        return None


def _exponents(run: "Run", row: "EpochRow") -> dict[str, float | None]:
    """Return the exponents of AdaFocal after an epoch; nothing for other losses."""
    from calibrant.losses.adafocal import AdaFocalLoss
    from calibrant.losses.names import make_loss

    if row["adafocal"] is None:
        return {}
    gammas = [float(gamma) for gamma in row["adafocal"]["gammas"]]
    loss = make_loss(run.config.training.loss)
    limit = loss.gamma_max if isinstance(loss, AdaFocalLoss) else math.inf
    return {
        "gamma_lowest_bin": gammas[0],
        "gamma_highest_bin": gammas[-1],
        "gamma_difference": gammas[0] - gammas[-1],
        "gamma_smallest": min(gammas),
        "gamma_largest": max(gammas),
        "gamma_at_limit": fmean(gamma >= limit for gamma in gammas),
        "gamma_inverse": fmean(gamma < 0 for gamma in gammas),
    }
