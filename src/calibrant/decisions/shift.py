"""Repair under shift: a calibrator bent to new data by its accuracy there, estimated without labels."""

import math
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import numpy as np
import scipy
import torch

from calibrant.data.predictions import Predictions
from calibrant.decisions.given_sets import LEAST_ROWS, given_sets
from calibrant.decisions.unlabelled_accuracy import (
    Outputs,
    transported_accuracy,
    with_votes,
)
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.given import PredictionsLike
from calibrant.inference.units import Units
from calibrant.inputs import Floats, Integers, check_seed
from calibrant.outcomes import LEAST_PROB
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.chain import Chain
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import NOTHING, percent
from calibrant.show.table import Column, Table

#: What is known of the change: none is seen, it was followed, or it is too large to be sure of anything.
Verdict: TypeAlias = Literal["unchanged", "adapted", "cannot tell"]

#: Of more samples a random part is enough; of very many classes a smaller one.
MOST_ROWS = 10_000
_MOST_ENTRIES = 1 << 22

# Estimates closer to 0 or 1 than this are no more certain.
_LEAST_SHARE = 0.02
# What estimates are wrong by beside chance, in log-odds.
_SYSTEMATIC = 0.1
# The ECE that remains: a part that is always there, and one of what the estimates disagree on.
_REMAINS, _OF_DISAGREEMENT = 0.015, 0.6
# From here on one cannot tell.
_TOO_FAR = 0.08
_MOST_TEMPERATURE = 50.0


@dataclass(frozen=True, eq=False)
class AdaptedCalibrator(Result):
    """A calibrator that was bent to new data, and what its accuracy there is believed to be.

    Attributes:
        n_labelled: Number of labelled samples.
        n_unlabelled: Number of unlabelled samples.
        confidence_before: Mean calibrated confidence on the labelled samples.
        confidence: Mean calibrated confidence on the unlabelled samples, before the calibrator is bent.
        estimates: Accuracy on the unlabelled samples, by each estimate.
        accuracy: Accuracy there by all of them, as far as it is no chance: the mean confidence after the
            calibrator is bent.
        temperature: By what calibrated log-probabilities are divided; 1 changes nothing.
        remaining: The ECE to expect after that; None without features, because one estimate alone does not
            show how far off it is.
        verdict: ``"unchanged"`` if nothing is seen that the calibrator does not follow by itself,
            ``"adapted"``, or ``"cannot tell"`` if the data have moved too far for the estimates.
        calibrator: The bent calibrator, to be applied, saved and exported; not in :meth:`to_dict`.
        n_labelled_units: Number of units that the labelled samples belong to; None if every sample stands by
            itself.
        n_unlabelled_units: The same of the unlabelled samples.
    """

    n_labelled: int
    n_unlabelled: int
    confidence_before: float
    confidence: float
    estimates: FrozenDict[str, float]
    accuracy: float
    temperature: float
    remaining: float | None
    verdict: Verdict
    calibrator: Calibrator
    n_labelled_units: int | None = None
    n_unlabelled_units: int | None = None

    not_in_json = ("calibrator",)

    @classmethod
    def fit(
        cls, calibrator: Calibrator, source: PredictionsLike, unlabelled: PredictionsLike, *, seed: int = 0
    ) -> Self:
        r"""Estimate the accuracy on unlabelled predictions, and bend a calibrator until it promises that.

        Each sample costs what its probabilities lack of the class that it is assigned, if classes are
        assigned as frequently as before at the least total cost. A threshold on this cost splits the labelled
        samples into as many as are right and wrong; the share of the others below it estimates their
        accuracy. If both sets have features, a second estimate does the same with votes of the nearest
        labelled samples, and the mean of the log-odds counts. The change that the calibrator follows by
        itself is subtracted; what is left is drawn back as far as it may be chance, as James and Stein do.
        One temperature then makes the mean confidence equal to the estimated accuracy. The order of classes
        stays.

        It supposes that the kinds of samples are those of the labelled set, only harder, and that classes are
        about as frequent. It cannot see samples that belong to no class, unless their features lie far away.

        Args:
            calibrator: A fitted calibrator of classes.
            source: Labelled predictions of the same model, held out from its training, such as those that the
                calibrator was fitted on; or the path of a file of them. Features make the estimate better.
            unlabelled: Predictions of the new data; labels are ignored.
            seed: Chooses the samples that are used if there are very many.

        Example:
            >>> from calibrant.data.bundled import load_bundled
            >>> from calibrant.posthoc import TemperatureScaling
            >>> val = load_bundled("cifar10_val")
            >>> fitted = TemperatureScaling.fit(val.logits, val.labels)
            >>> found = AdaptedCalibrator.fit(fitted, val, load_bundled("cifar10_test_noise"))
            >>> found.verdict, 0.5 < found.accuracy < 0.6
            ('adapted', True)

        References:
            Garg et al., "Leveraging Unlabeled Data to Predict Out-of-Distribution Performance", ICLR 2022.
            Lu et al., "Characterizing Out-of-Distribution Error via Optimal Transport", NeurIPS 2023.
        """
        rng = np.random.default_rng(check_seed(seed))
        before, after = given_sets(
            source,
            unlabelled,
            purpose="repair under shift",
            classes="whose confidence is repaired",
            name="source",
        )
        _check_features(before, after)
        one, two = (_part(each, rng) for each in (before, after))
        confidences = [_confidences(calibrator, each) for each in (one, two)]
        labels = one.truth_for("the accuracy on it is compared").numpy(force=True)
        outputs, others = _outputs(one, two)
        right = outputs.predicted == labels
        accuracy = float(right.mean())
        estimates = _estimates(outputs, labels, others, accuracy)
        own = [float(np.exp(each).max(axis=1).mean()) for each in confidences]
        error = _error(accuracy, *(Units.of(each.units, each.n) for each in (one, two)))
        promised = _held_to(own[0], accuracy, confidences[0], labels)
        # The calibrator may be more often right than the model; by as many points on harder data.
        believed = {name: min(max(each + promised - accuracy, 0.0), 1.0) for name, each in estimates.items()}
        mean = float(np.mean([_log_odds(each) for each in believed.values()]))
        own_change = _log_odds(promised) - _log_odds(own[0])
        change = _drawn_back(mean - _log_odds(own[1]) - own_change, math.hypot(error, _SYSTEMATIC))
        moved = change + own_change
        target = _share(_log_odds(own[1]) + moved) if moved else own[1]
        temperature = temperature_for(confidences[1], target) if moved else 1.0
        remaining = _remaining(believed)
        return cls(
            n_labelled=before.n,
            n_unlabelled=after.n,
            confidence_before=own[0],
            confidence=own[1],
            estimates=FrozenDict(believed),
            accuracy=target,
            temperature=temperature,
            remaining=remaining,
            verdict=_verdict(moved, remaining),
            calibrator=_bent(calibrator, temperature),
            n_labelled_units=None if before.units is None else before.n_units,
            n_unlabelled_units=None if after.units is None else after.n_units,
        )

    @property
    def sentence(self) -> str:
        """What was done, and how far it can be trusted."""
        if self.verdict == "unchanged":
            return "Nothing is seen that the calibrator does not follow by itself; it stays as it is."
        bent = (
            f"The calibrator promises {percent(self.confidence, 1)} on the new data, where about "
            f"{percent(self.accuracy, 1)} are right; it is bent by a temperature of {self.temperature:.2f}."
        )
        if self.remaining is None:
            return f"{bent} How much error remains is not known; features in both files would tell."
        if self.verdict == "adapted":
            return f"{bent} An ECE of about {percent(self.remaining, 1)} remains."
        return (
            f"{bent} Warning: cannot tell how far off it still is (an ECE of {percent(self.remaining, 1)} or "
            "more), because the data have moved too far; label some of these samples."
        )

    def to_table(self) -> Table:
        """Return the accuracy by each estimate, beside what the calibrator promises."""
        names = {"model": "accuracy by the model", "neighbours": "accuracy by neighbours in features"}
        rows = [
            ["mean calibrated confidence", percent(self.confidence, 1), percent(self.confidence_before, 1)],
            *([names[name], percent(each, 1), NOTHING] for name, each in self.estimates.items()),
            ["mean confidence after the repair", percent(self.accuracy, 1), NOTHING],
            ["ECE that remains, about", percent(self.remaining, 1, undefined="not known"), NOTHING],
        ]
        new = "" if self.n_unlabelled_units is None else f" of {self.n_unlabelled_units:,} units"
        known = "" if self.n_labelled_units is None else f" of {self.n_labelled_units:,} units"
        columns: list[str | Column] = [
            Column("", align="left"),
            "estimate",
            f"on {self.n_labelled:,} labelled{known}",
        ]
        title = f"Shift of {self.n_unlabelled:,} predictions{new} without labels"
        return Table.of(columns, rows, title=title, notes=(self.sentence,))


def _check_features(one: Predictions, two: Predictions) -> None:
    widths = [None if each.features is None else each.features.shape[1] for each in (one, two)]
    if None not in widths and widths[0] != widths[1]:
        raise InputError(f"unlabelled: expected {widths[0]} features, as source has, got {widths[1]}")


def _part(predictions: Predictions, rng: np.random.Generator) -> Predictions:
    """Return all samples, or a random part if there are very many."""
    most = max(LEAST_ROWS, min(MOST_ROWS, _MOST_ENTRIES // (predictions.k or 1)))
    if predictions.n <= most:
        return predictions
    return predictions.take(np.sort(rng.choice(predictions.n, size=most, replace=False)))


def _confidences(calibrator: Calibrator, predictions: Predictions) -> Floats:
    """Return calibrated log-probabilities."""
    log_probs = torch.log_softmax(calibrated(calibrator, predictions).to_logits().double(), dim=1)
    return np.asarray(log_probs.clamp(min=math.log(LEAST_PROB)).numpy(force=True))


def _outputs(one: Predictions, two: Predictions) -> tuple[Outputs, Outputs]:
    """Return what the model itself gives for both sets, after one temperature of the labelled one."""
    logits = one.to_logits()
    scale = TemperatureScaling.fit(logits, one.labels)
    has_features = one.features is not None and two.features is not None
    found = []
    for each in (one, two):
        probs = scale.predict_log_proba(each.to_logits().double()).exp()
        h = each.features if has_features else None
        features = None if h is None else h.double().numpy(force=True)
        units = Units.of(each.units, each.n).code
        predicted = each.to_logits().argmax(dim=1).numpy(force=True)
        found.append(Outputs(probs.numpy(force=True), features, predicted, units))
    return found[0], found[1]


def _estimates(labelled: Outputs, labels: Integers, unlabelled: Outputs, accuracy: float) -> dict[str, float]:
    """Return the model's own accuracy on the unlabelled samples, by each estimate; the best is last."""
    found = {"model": transported_accuracy(labelled, labels, unlabelled, accuracy)}
    if labelled.features is not None:
        one, two = (with_votes(labelled, labels, each) for each in (labelled, unlabelled))
        found["neighbours"] = transported_accuracy(one, labels, two, accuracy)
    return found


def _log_odds(share: float) -> float:
    share = min(max(share, _LEAST_SHARE), 1 - _LEAST_SHARE / 4)
    return math.log(share / (1 - share))


def _share(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))


def _error(accuracy: float, own: Units, new: Units) -> float:
    """Return the standard error of a difference of two accuracies, in log-odds."""
    share = min(max(accuracy, 1 / own.n), 1 - 1 / own.n)
    return math.sqrt((1 / own.effective + 1 / new.effective) / (share * (1 - share)))


def _held_to(confidence: float, accuracy: float, log_probs: Floats, labels: Integers) -> float:
    """Return the mean confidence on the labelled samples, within what their labels allow.

    A calibrator that was fitted on these samples is more often right on them than elsewhere, and its
    confidence is nearer to the truth than their accuracy. One that is not calibrated there is held to it.
    """
    after = float((log_probs.argmax(axis=1) == labels).mean())
    error = 2 * math.sqrt(max(accuracy * (1 - accuracy), 0.01) / len(labels))
    return min(max(confidence, min(accuracy, after) - error), max(accuracy, after) + error)


def _drawn_back(change: float, error: float) -> float:
    """Return a change that is drawn back to none as far as it may be chance, as James and Stein do."""
    return change * max(0.0, 1 - (error / change) ** 2) if change else 0.0


def temperature_for(log_probs: Floats, target: float) -> float:
    """Return the temperature at which the mean confidence is what it should be.

    Args:
        log_probs: Log-probabilities of shape ``(n, k)``.
        target: The mean confidence; where none gives it, the temperature ends at 50 or its inverse.
    """

    def missing(log_temperature: float) -> float:
        scaled = log_probs / math.exp(log_temperature)
        top = scaled.max(axis=1, keepdims=True)
        return float((1 / np.exp(scaled - top).sum(axis=1)).mean()) - target

    ends = -math.log(_MOST_TEMPERATURE), math.log(_MOST_TEMPERATURE)
    if missing(ends[0]) <= 0:
        return math.exp(ends[0])
    if missing(ends[1]) >= 0:
        return math.exp(ends[1])
    return math.exp(scipy.optimize.brentq(missing, *ends, xtol=1e-6))


def _remaining(believed: dict[str, float]) -> float | None:
    """Return the ECE to expect after the repair, from what two estimates differ by."""
    if len(believed) < 2:
        return None
    apart = max(believed.values()) - min(believed.values())
    return _REMAINS + _OF_DISAGREEMENT * apart


def _verdict(moved: float, remaining: float | None) -> Verdict:
    if remaining is not None and remaining > _TOO_FAR:
        return "cannot tell"
    return "adapted" if moved else "unchanged"


def _bent(calibrator: Calibrator, temperature: float) -> Calibrator:
    """Return the calibrator, then one temperature."""
    found = Chain(calibrator, TemperatureScaling(temperature))
    found.class_names, found.class_frequencies = calibrator.class_names, calibrator.class_frequencies
    return found
