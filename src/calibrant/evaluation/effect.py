"""What the chosen method changes: calibration error, accuracy and predictions, before and after."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from calibrant.data.labels import LabelPredictions
from calibrant.data.predictions import Predictions
from calibrant.evaluation.calibrated import is_of_pairs
from calibrant.evaluation.choose import Choice
from calibrant.evaluation.compare import Comparison, MethodResult
from calibrant.evaluation.evaluate import evaluate
from calibrant.metrics.accuracy import accuracy
from calibrant.outcomes import mean_of
from calibrant.posthoc.names import BY_GROUP, POOL, method_named
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import percent, points
from calibrant.threads import one_thread_each

_UNCALIBRATED = "uncalibrated"
# A class with a smaller share is rare: the accuracy says little about it.
_RARE = 0.2


@dataclass(frozen=True, eq=False)
class Effect(Result):
    """What a method changes on the samples on which it was measured.

    Attributes:
        name: The method.
        where: ``"test"``, or ``"out of fold"`` without a test set.
        before: Measures of the model itself: accuracy, ECE, and for confidences of a black box the AUROC.
        after: The same measures of the calibrated model.
        changed: Share of the samples whose predicted class is another one, by weight if they have weights;
            None for confidences.
        keeper: If predictions change: the best compared method that keeps them all, if there is one.
        keeper_ece: Its ECE.
        mean_over_labels: The mean ECE of single labels, before and after; None unless there are several.
        rare: The rare one of two classes, if predictions change: its name, its share, and the share of its
            samples that are predicted, before and after.
    """

    name: str
    where: str
    before: Mapping[str, float]
    after: Mapping[str, float]
    changed: float | None
    keeper: str | None = None
    keeper_ece: float | None = None
    mean_over_labels: tuple[float, float] | None = None
    rare: Mapping[str, str | float] | None = None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The change of the calibration error and the accuracy, and what the method gives up, for people."""
        where = "On the test set" if self.where == "test" else "Out of fold"
        after = self.after["ece"]
        # A score that only ranks has no calibration error before.
        ece = f"ECE {_to(self.before['ece'], after) if 'ece' in self.before else percent(after)}"
        if self.changed is None:
            auroc = f"AUROC of correctness {_to(self.before['auroc_correct'], self.after['auroc_correct'])}"
            if self.mean_over_labels is None:
                return (f"{where}: {ece}, {auroc}.",)
            return (f"{where}: {ece}, mean ECE of a label {_to(*self.mean_over_labels)}.",)
        hits = self.before["accuracy"], self.after["accuracy"]
        if self.name == _UNCALIBRATED:
            ece = f"ECE {percent(self.after['ece'])}"
            return (f"{where}: {ece}, accuracy {percent(hits[1])}: nothing changes.",)
        if not self.changed:
            return (f"{where}: {ece}, accuracy {percent(hits[1])}: no prediction changes.",)
        gives_up = f"{self.name} changes {_share(self.changed)} of the predictions"
        if self.keeper is not None and self.keeper_ece is not None:
            gives_up += f"; {self.keeper} keeps them, ECE {percent(self.keeper_ece)}"
        return (f"{where}: {ece}, accuracy {_to(*hits)}.", f"{gives_up}.", *self._of_rare)

    @property
    def _of_rare(self) -> tuple[str, ...]:
        """What happens to the samples of a rare class, which the accuracy does not show."""
        if self.rare is None:
            return ()
        name, *numbers = self.rare.values()
        share, before, after = (float(each) for each in numbers)
        if after >= before:
            return ()
        return (
            f"Of class {name}, which is rare ({_share(share)}), {percent(before, 1)} were predicted before "
            f"and {percent(after, 1)} after: honest probabilities of a rare class seldom exceed one half; "
            "decide --costs finds the threshold that your costs ask for.",
        )


def effect_of(comparison: Comparison, choice: Choice, before: Predictions) -> Effect:
    """Compare the model before and after the chosen method, and find a method that keeps its predictions.

    Args:
        comparison: The methods that were compared.
        choice: The one to describe.
        before: The model's own predictions of the test set if there was one, else of the validation set.
    """
    with one_thread_each():
        return _effect_of(comparison, choice, before)


def _effect_of(comparison: Comparison, choice: Choice, before: Predictions) -> Effect:
    result, after = choice.result, choice.result.measured
    of_pairs = is_of_pairs(before.k)
    named = ("accuracy", "ece", "auroc_correct") if of_pairs else ("accuracy", "ece")
    own = next((each for each in comparison.results if each.name == _UNCALIBRATED), None)
    of_model = evaluate(before, measures=named).metrics if own is None else own.measured_metrics
    changed = None if of_pairs else 0.0 if _keeps(result) else _changed(before, after)
    keeper = _best_keeper(comparison) if changed else None
    return Effect(
        result.name,
        "out of fold" if comparison.n_test is None else "test",
        FrozenDict({name: of_model[name] for name in named if name in of_model}),
        FrozenDict({name: result.measured_metrics[name] for name in named}),
        changed,
        None if keeper is None else keeper.name,
        None if keeper is None else keeper.measured_metrics["ece"],
        _means_over_labels(before, after),
        _rare_class(before, after) if changed else None,
    )


def _means_over_labels(before: Predictions, after: Predictions) -> tuple[float, float] | None:
    """Return the mean ECE of single labels before and after; None unless there are several at once."""
    if not (isinstance(before, LabelPredictions) and isinstance(after, LabelPredictions)):
        return None
    return _mean_over_labels(before), _mean_over_labels(after)


def _mean_over_labels(predictions: LabelPredictions) -> float:
    entries = torch.arange(predictions.n).view(-1, predictions.n_labels)
    columns = (predictions.take(entries[:, place]) for place in range(predictions.n_labels))
    errors = [evaluate(column, measures="ece").metrics["ece"] for column in columns]
    return sum(errors) / len(errors)


def _changed(before: Predictions, after: Predictions) -> float:
    """Return the share of samples, by weight, whose predicted class is another one."""
    probs = after.to_probs()
    return 1 - accuracy(probs, before.to_probs().argmax(dim=1).to(probs.device), weights=before.weights)


def _rare_class(before: Predictions, after: Predictions) -> FrozenDict[str, str | float] | None:
    """Return what happens to the rare one of two classes; None if neither is rare."""
    if before.k != 2 or before.labels is None:
        return None
    weights = torch.ones(before.n, device=before.labels.device) if before.weights is None else before.weights
    shares = torch.bincount(before.labels, weights, minlength=2).double() / weights.sum()
    rare = int(shares.argmin())
    if not 0 < shares[rare] < _RARE:
        return None
    members = before.labels == rare
    found = [
        float(mean_of((each.to_probs()[members].argmax(dim=1) == rare).double(), weights[members]))
        for each in (before, after)
    ]
    name = str(rare) if before.class_names is None else before.class_names[rare]
    return FrozenDict({"class": name, "share": float(shares[rare]), "before": found[0], "after": found[1]})


def _best_keeper(comparison: Comparison) -> MethodResult | None:
    """Return the likeliest method, out of fold, that can never change a prediction."""
    keepers = (each for each in comparison.results if each.name != _UNCALIBRATED and _keeps(each))
    return min(keepers, key=lambda each: each.metrics["nll"], default=None)


def _keeps(result: MethodResult) -> bool:
    if result.name in (POOL, BY_GROUP):
        return result.calibrator.preserves_accuracy
    return method_named(result.name).preserves_accuracy


def _to(before: float, after: float) -> str:
    return f"{points(before)} -> {percent(after)}"


def _share(share: float) -> str:
    return str(percent(share, 1)) if share >= 0.0005 else "less than 0.1 %"
