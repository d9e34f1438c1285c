"""Estimates of a model's accuracy on unlabelled samples, beside labelled samples of the same model."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy

from calibrant.inputs import Floats, Integers
from calibrant.outcomes import LEAST_PROB
from calibrant.solvers import likeliest_shares

# How many of the nearest labelled samples vote, and how much the votes count beside the model itself.
_NEIGHBOURS = 20
_VOTES = 0.8

# Costs of transport are between 0 and 1. Smoothed by this much they have a slope everywhere.
_SMOOTHING = 0.01
_MOST_STEPS = 300

# Samples whose similarities are computed at a time.
_ROWS_AT_ONCE = 1000


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model gives for some samples.

    Attributes:
        probs: Probabilities of the classes, shape ``(n, k)``.
        features: Penultimate features, shape ``(n, d)``; None if there are none.
        predicted: The predicted class of each sample, shape ``(n,)``.
        units: The unit of each sample, shape ``(n,)``.
    """

    probs: Floats
    features: Floats | None
    predicted: Integers
    units: Integers

    @cached_property
    def directions(self) -> Floats:
        """The features, each row of length one."""
        assert self.features is not None
        lengths = np.linalg.norm(self.features, axis=1, keepdims=True)
        return np.asarray(self.features / np.maximum(lengths, 1e-12))


def thresholded_accuracy(labelled: Floats, unlabelled: Floats, accuracy: float) -> float:
    """Return the share of unlabelled scores above the threshold that separates right and wrong in number.

    As many labelled scores are above it as labelled predictions are right.

    Args:
        labelled: A score of each labelled sample; high scores are more often right.
        unlabelled: The same of the unlabelled samples.
        accuracy: The accuracy on the labelled samples.

    References:
        Garg et al., "Leveraging Unlabeled Data to Predict Out-of-Distribution Performance", ICLR 2022.

    Example:
        >>> thresholded_accuracy(np.arange(10.0), np.arange(4.0, 12.0), 0.5)
        0.875
    """
    threshold = np.quantile(labelled, 1 - accuracy, method="lower")
    return float((unlabelled > threshold).mean())


def transport_costs(probs: Floats, frequencies: Floats) -> Floats:
    r"""Return what each sample costs if classes are assigned at the least total cost.

    A class costs a sample the probability that it lacks, :math:`1 - p`. The classes that are assigned have
    the given frequencies, so that a model that predicts some classes too often pays for it. The dual of this
    problem has one number for each class; it is smoothed by an entropy and solved by L-BFGS.

    Args:
        probs: Probabilities of shape ``(n, k)``.
        frequencies: How frequent each class is, shape ``(k,)``.

    References:
        Lu et al., "Characterizing Out-of-Distribution Error via Optimal Transport", NeurIPS 2023.

    Example:
        >>> transport_costs(np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([0.5, 0.5])).round(3)
        array([0.1, 0.6])
    """
    scaled = (probs - 1) / _SMOOTHING

    def shares(prices: Floats) -> tuple[Floats, Floats]:
        raised = scaled + prices
        top = raised.max(axis=1, keepdims=True)
        raised = np.exp(raised - top)
        total = raised.sum(axis=1, keepdims=True)
        return raised / total, top[:, 0] + np.log(total[:, 0])

    def dual(prices: Floats) -> tuple[float, Floats]:
        assigned, potential = shares(prices)
        return float(potential.mean() - frequencies @ prices), assigned.mean(axis=0) - frequencies

    found = scipy.optimize.minimize(
        dual, np.zeros(probs.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": _MOST_STEPS}
    )
    assigned, _ = shares(found.x)
    return np.asarray((assigned * (1 - probs)).sum(axis=1))


def with_votes(labelled: Outputs, labels: Integers, outputs: Outputs) -> Outputs:
    """Return outputs whose probabilities are mostly the votes of the nearest labelled samples.

    Near are features with a high cosine; each neighbour votes for its class. Labelled samples do not hear
    their own unit. The model's own probabilities break ties.

    Args:
        labelled: What the model gives for the labelled samples.
        labels: Their classes.
        outputs: The samples that are voted on; the labelled ones themselves or others.
    """
    columns = labelled.directions.astype(np.float32).T
    rows = outputs.directions.astype(np.float32)
    number = min(_NEIGHBOURS, len(labels) - 1)
    votes = np.zeros_like(outputs.probs)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        similarity = rows[part] @ columns
        if outputs is labelled:
            similarity[outputs.units[part, None] == labelled.units] = -2
        near = np.argpartition(-similarity, number - 1, axis=1)[:, :number]
        place = np.arange(start, start + len(near))[:, None]
        np.add.at(votes, (place, labels[near]), 1 / number)
    return replace(outputs, probs=_VOTES * votes + (1 - _VOTES) * outputs.probs)


def transported_accuracy(labelled: Outputs, labels: Integers, unlabelled: Outputs, accuracy: float) -> float:
    """Return the accuracy by thresholded costs of transport (COTT).

    Classes are as frequent as before, unless the predicted classes have changed by more than errors could
    explain: then part of the change is taken for one of the frequencies.

    Args:
        labelled: What the model gives for the labelled samples.
        labels: Their classes.
        unlabelled: What it gives for the unlabelled samples.
        accuracy: The accuracy on the labelled samples.
    """
    k = labelled.probs.shape[1]
    before = np.bincount(labels, minlength=k) / len(labels)
    costs = transport_costs(labelled.probs, before)

    def estimate(frequencies: Floats) -> float:
        moved = transport_costs(unlabelled.probs, frequencies)
        return thresholded_accuracy(-costs, -moved, accuracy)

    new = likeliest_shares(unlabelled.probs / np.maximum(before, LEAST_PROB))
    same, other = estimate(before), estimate(new)
    share = _share_of_errors(labelled.predicted, unlabelled.predicted, k, accuracy - other)
    return share * same + (1 - share) * other


# A change of the predicted classes is due to errors if the accuracy fell by this share of it, and to new
# frequencies if it fell by less than the other.
_BY_ERRORS, _BY_FREQUENCIES = 0.7, 0.3
_NO_CHANGE = 0.02


def _share_of_errors(before: Integers, after: Integers, k: int, lost: float) -> float:
    """Return how far errors, and not new class frequencies, explain a change of the predicted classes.

    A model that errs in a share of samples changes its predicted classes by no more than that share.

    Args:
        before: Predicted classes of the labelled samples.
        after: Those of the unlabelled ones.
        k: Number of classes.
        lost: By how much the accuracy fell, as far as the confidences tell.
    """
    one, two = (np.bincount(each, minlength=k) / len(each) for each in (before, after))
    pooled = (one * len(before) + two * len(after)) / (len(before) + len(after))
    spread = np.sqrt(pooled * (1 - pooled) * (1 / len(before) + 1 / len(after)))
    by_chance = float(spread.sum()) * np.sqrt(2 / np.pi) / 2
    changed = float(np.sqrt(max(0.0, float(np.abs(one - two).sum() / 2) ** 2 - by_chance**2)))
    if changed < _NO_CHANGE:
        return 1.0
    return float(np.clip((lost / changed - _BY_FREQUENCIES) / (_BY_ERRORS - _BY_FREQUENCIES), 0, 1))
