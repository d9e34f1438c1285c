"""Classes that became more or less frequent: new frequencies from unlabelled predictions."""

import csv
import io
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.decisions.given_sets import given_sets
from calibrant.errors import FitError, FormatError, InputError
from calibrant.evaluation.calibrated import calibrated, of_classes
from calibrant.evaluation.given import PredictionsLike
from calibrant.files import read_text, reading
from calibrant.inference.rows import check_level
from calibrant.inference.units import Units
from calibrant.inputs import Floats, Integers, Progress, check_count, check_seed
from calibrant.outcomes import LEAST_PROB
from calibrant.posthoc.calibrator import Calibrator, Identity
from calibrant.posthoc.confidence import ConfidenceCalibrator
from calibrant.posthoc.frequencies import (
    FrequenciesLike,
    FrequencyCorrection,
    log_ratios,
    treats_classes_alike,
)
from calibrant.posthoc.labels import LabelCalibrator
from calibrant.results import Result
from calibrant.show.numbers import p_equals, percent, points, span
from calibrant.show.table import Column, Table

# Fewer labelled rows of a class say too little.
_LEAST_OF_CLASS = 5

# Of more entries than this, and more rows than this for each class, a random part of the rows is enough.
_MOST_ENTRIES, _MOST_OF_CLASS = 1 << 22, 20

# Added to the log-likelihood for each squared bias, in nats, as in vector scaling.
_RIDGE, _LEAST_RIDGE = 5.0, 0.5
_LEAST_SCALE = 1e-3

# The search for frequencies ends when a step moves no more than this share of all samples.
_SETTLED, _SETTLED_RESAMPLE = 1e-8, 1e-5
_MOST_STEPS = 5000

# The confusion must be this many times its own sampling error.
_TIMES_ERROR = 2.0
_DRAWS, _MANY_CLASSES = 20, 200

_PERMUTATIONS = 999
# No division of the rows reaches a statistic that is so improbable in the limit.
_BEYOND_DOUBT = 1e-12
# Beyond this many numbers, the permutations of the test take too long, and its limit is exact enough.
_MOST_PERMUTED = 4_000_000


# Classes that fit on a screen.
_MOST_CLASSES = 20


@dataclass(frozen=True, eq=False)
class FrequencyShift(Result):
    """Class frequencies of unlabelled predictions, beside those of labelled ones.

    Attributes:
        classes: Names of the classes, or their numbers as text.
        n_labelled: Number of labelled samples.
        n_unlabelled: Number of unlabelled samples.
        old: Share of each class among the labelled samples, shape ``(k,)``.
        frequencies: The likeliest share of each class among the unlabelled ones (EM).
        low: Lower ends of the bootstrap intervals of these.
        high: Upper ends.
        level: Level of each interval.
        second_opinion: The frequencies by BBSE, which reads predicted classes only.
        applied: What ``calibrator`` is corrected to: ``frequencies``, drawn back to ``old`` as far as the
            difference may be chance.
        distance: Total variation between ``old`` and ``frequencies``: the share of samples that changed
            their class.
        p_value: Of the test whether frequencies have changed at all.
        fit_p_value: Of the test whether other frequencies explain the unlabelled confidences; if it is
            small, samples of the same class look different now, and the frequencies mean little.
        calibrator: The calibrator, corrected for the frequencies; not in :meth:`to_dict`.
        n_labelled_units: Number of units that the labelled samples belong to; None if every sample is drawn
            by itself.
        n_unlabelled_units: The same of the unlabelled samples.
    """

    classes: tuple[str, ...]
    n_labelled: int
    n_unlabelled: int
    old: Floats
    frequencies: Floats
    low: Floats
    high: Floats
    level: float
    second_opinion: Floats
    applied: Floats
    distance: float
    p_value: float
    fit_p_value: float
    calibrator: FrequencyCorrection
    n_labelled_units: int | None = None
    n_unlabelled_units: int | None = None

    not_in_json = ("calibrator",)

    def has_shift(self, alpha: float = 0.05) -> bool:
        """Return whether the frequencies have changed, by a test of this level."""
        return self.p_value <= check_test_level(alpha)

    def is_explained(self, alpha: float = 0.05) -> bool:
        """Return whether nothing but the frequencies needs to have changed, by a test of this level."""
        return self.fit_p_value > check_test_level(alpha)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Whether the frequencies have changed, and whether the change explains the predictions."""
        shift = (
            f"The class frequencies have changed: {percent(self.distance, 1)} of the samples belong to other "
            f"classes than before (p {p_equals(self.p_value)})."
            if self.has_shift()
            else f"There is no evidence that class frequencies have changed (p {p_equals(self.p_value)}); "
            "the correction is drawn back towards the old ones."
        )
        warning = (
            f"Warning: other frequencies do not explain the new confidences (p {p_equals(self.fit_p_value)})."
            " Samples of the same class look different now, so the frequencies and the correction cannot be "
            "trusted."
        )
        return (shift,) if self.is_explained() else (shift, warning)

    def to_table(self) -> Table:
        """Return the frequencies of each class; those of many classes begin with the largest change."""
        order = np.arange(len(self.classes))
        if len(order) > _MOST_CLASSES:
            order = np.argsort(-np.abs(self.frequencies - self.old), kind="stable")
        columns = [Column("class", align="left"), Column("old", "%"), Column("new (EM)", "%")]
        columns += [Column(f"{100 * self.level:.0f} %\ninterval")]
        columns += [Column("second opinion\n(BBSE) %"), Column("applied", "%")]
        rows = [
            [
                self.classes[place],
                *(points(each[place], 1) for each in (self.old, self.frequencies)),
                span(self.low[place], self.high[place], lambda end: points(end, 1)),
                *(points(each[place], 1) for each in (self.second_opinion, self.applied)),
            ]
            for place in order.tolist()
        ]
        units = "" if self.n_unlabelled_units is None else f" of {self.n_unlabelled_units:,} units"
        title = f"Class frequencies of {self.n_unlabelled:,} predictions{units} without labels"
        return Table.of(columns, rows, title=title, notes=self.sentences, most=_MOST_CLASSES)


def estimate_frequencies(
    labelled: PredictionsLike,
    unlabelled: PredictionsLike,
    *,
    calibrator: Calibrator | None = None,
    level: float = 0.95,
    n_resamples: int = 200,
    seed: int = 0,
    progress: Progress | None = None,
) -> FrequencyShift:
    r"""Estimate how frequent classes are among unlabelled predictions of the same model.

    The assumption: samples of a class look as they did before, and only the frequencies of classes
    :math:`\pi` have changed. Then the unlabelled rows are likeliest where EM converges to,

    .. math:: \max_\pi \sum_i \log \sum_y \frac{\pi(y)}{\pi_\mathrm{old}(y)}\, p(y \mid x_i)

    if the probabilities :math:`p` are calibrated for each class. To make them so, a scale and a bias of each
    class (BCTS) are fitted to the labelled rows after the calibrator. Intervals are percentiles of a
    bootstrap of both sets. BBSE, which solves the confusion of predicted and true classes, is the second
    opinion.

    The test whether frequencies have changed compares the mean probabilities of both sets (Hotelling's
    statistic) with those of random divisions of all rows. By the same statistic :math:`T`, with the error of
    the unlabelled rows alone, the estimate is drawn back to the old frequencies as James and Stein do, with
    the share :math:`(k - 3)/T`: with few rows for many classes, this is nearer to the truth. If rows belong
    to units, these are drawn and divided as a whole, and :math:`T` is that of sums over units. A unit that is
    in both sets counts as two.

    Args:
        labelled: Predictions with labels, with the old frequencies, or the path of a file of them. They may
            be those that the calibrator was fitted on.
        unlabelled: Predictions whose frequencies are wanted; labels are ignored.
        calibrator: What is applied to both before; by default nothing.
        level: Level of the interval of each frequency.
        n_resamples: Number of bootstrap resamples.
        seed: Equal seeds give equal results.
        progress: Called with the current step, the number of resamples done, and their total.

    Raises:
        FitError: Classes are confused so much that their frequencies cannot be told apart.

    Example:
        >>> from calibrant.data.bundled import load_bundled
        >>> test = load_bundled("cifar10_test")
        >>> animals = test.take((test.labels >= 2) & (test.labels <= 7))
        >>> found = estimate_frequencies(load_bundled("cifar10_val"), animals, n_resamples=20)
        >>> float(found.frequencies[2:8].sum()) > 0.97, found.has_shift()
        (True, True)

    References:
        Saerens, Latinne and Decaestecker, Neural Computation 2002 (EM).
        Alexandari, Kundaje and Shrikumar, "Maximum Likelihood with Bias-Corrected Calibration is Hard-To-Beat
        at Label Shift Adaptation", ICML 2020 (BCTS).
        Lipton, Wang and Smola, "Detecting and Correcting for Label Shift with Black Box Predictors", ICML
        2018 (BBSE).
    """
    share = check_level(level)
    check_count(n_resamples, "n_resamples", at_least=2)
    rng = np.random.default_rng(check_seed(seed))
    before, after = given_sets(
        labelled, unlabelled, purpose="class frequencies", classes="whose frequencies can change"
    )
    base = Identity(n_classes=before.k) if calibrator is None else calibrator
    log_before, y, own = _log_probs(base, before, rng)
    log_after, _, new = _log_probs(base, after, rng)
    k = log_before.shape[1]
    names = before.class_names or tuple(str(each) for each in range(k))
    _check_classes(y, k, names)
    bias = _Bias.fit(log_before, y)
    p, q = bias(log_before), bias(log_after)
    _check_confusion(p, y, own, names, rng)
    old = p.mean(axis=0)
    found = _likeliest(q / old, np.full(len(q), 1 / len(q)), old)
    drawn = _resampled(bias, log_before, y, log_after, (own, new), found, n_resamples, rng, progress)
    low, high = np.quantile(drawn, [(1 - share) / 2, (1 + share) / 2], axis=0)
    statistic, rank, p_value = _mean_test(p, q, (own, new), rng)
    labels = np.bincount(y, minlength=k) / len(y)
    kept = _share_of_chance(statistic, rank, own.n, new.n)
    applied = kept * old + (1 - kept) * found
    corrected = FrequencyCorrection(
        base, torch.from_numpy(bias.intercept + log_ratios(applied, old)), float(bias.scale)
    )
    corrected.class_names = base.class_names or before.class_names
    corrected.class_frequencies = tuple((applied / applied.sum()).tolist())
    return FrequencyShift(
        classes=tuple(names),
        n_labelled=before.n,
        n_unlabelled=after.n,
        old=labels,
        frequencies=found,
        low=np.minimum(low, found),
        high=np.maximum(high, found),
        level=share,
        second_opinion=_by_confusion(p, y, q),
        applied=applied,
        distance=float(np.abs(found - old).sum() / 2),
        p_value=p_value,
        fit_p_value=_fit_test(p.max(axis=1), (found / old)[y], q.max(axis=1), (own, new), n_resamples, rng),
        calibrator=corrected,
        n_labelled_units=None if before.units is None or own.are_rows else before.n_units,
        n_unlabelled_units=None if after.units is None or new.are_rows else after.n_units,
    )


def check_corrections(given: Collection[str], calibrator: Calibrator | None) -> None:
    """Refuse arguments of a correction that exclude or need each other, or that the calibrator cannot take.

    Args:
        given: Names of the given arguments, among those of :func:`correct_frequencies` and ``adapt``.
        calibrator: What is corrected; None for a rule, which has its own calibrator.
    """
    if calibrator is None or isinstance(calibrator, (ConfidenceCalibrator, LabelCalibrator)):
        what = "a rule, which has its own calibrator"
        if calibrator is not None:
            what = f"a {type(calibrator).__name__}, which has no classes"
        raise InputError(
            f"{next(iter(given))}: expected a calibrator of classes to correct, got {what}; leave it out"
        )
    known = [name for name in given if name in ("prior", "undo_resampling")]
    if "adapt" in given and (known or "old_prior" in given):
        other = (known or ["old_prior"])[0]
        raise InputError(
            f"adapt: expected alone with labelled=, got {other}= too; what is known is not estimated"
        )
    if "adapt" not in given and not known:
        raise InputError(
            f"{next(iter(given))}: expected beside prior=, undo_resampling= or adapt=, got none of them"
        )
    if {"labelled", "old_prior"} <= {*given}:
        raise InputError(
            "old_prior: expected either this or labelled=, got both; each gives the old frequencies"
        )


def correct_frequencies(
    calibrator: Calibrator,
    *,
    prior: FrequenciesLike | None = None,
    undo_resampling: FrequenciesLike | None = None,
    old_prior: FrequenciesLike | None = None,
    labelled: Predictions | None = None,
) -> FrequencyCorrection:
    """Correct a calibrator for class frequencies that are known and differ from those of its fitting set.

    Args:
        calibrator: A calibrator of classes.
        prior: Class frequencies of the new data; by default those of the fitting set.
        undo_resampling: Class frequencies of a resampled training set, to undo the resampling; only if the
            calibrator treats all classes alike.
        old_prior: Class frequencies of the fitting set, if the calibrator does not know them.
        labelled: Predictions with the classes and frequencies of the fitting set, instead of ``old_prior``.
    """
    if labelled is not None:
        _note_frequencies(calibrator, labelled)
    known = calibrator.class_frequencies if old_prior is None else old_prior
    if known is None and (undo_resampling is None or prior is None):
        raise InputError(
            "old_prior: expected the class frequencies of the set that the calibrator was fitted on, which "
            "an earlier version did not save, got none; give them, or that set as labelled="
        )
    if undo_resampling is None:
        if prior is None:
            raise InputError("prior: expected the class frequencies of the new data, got none; give them")
        return FrequencyCorrection.of(
            calibrator, prior, old=old_prior, new_name="prior", old_name="old_prior"
        )
    new = known if prior is None else prior
    assert new is not None
    corrected = FrequencyCorrection.of(
        calibrator, new, old=undo_resampling, new_name="prior", old_name="undo_resampling"
    )
    if not treats_classes_alike(calibrator, len(corrected.intercept)):
        raise InputError(
            "undo_resampling: expected a calibrator that treats all classes alike, such as temperature, "
            f"got {type(calibrator).__name__}, which has learned the class frequencies of its fitting set "
            "and so has undone the resampling; leave it out, and give prior if they are others elsewhere"
        )
    return corrected


def _note_frequencies(calibrator: Calibrator, labelled: Predictions) -> None:
    """Let a calibrator know the class frequencies of labelled predictions."""
    names = calibrator.class_names or labelled.class_names
    labelled = labelled.classes("the classes of the calibrator, with labels", name="labelled")
    if calibrator.n_classes not in (None, labelled.k):
        raise InputError(f"labelled: expected the classes of the calibrator, got {labelled.class_count}")
    of_classes(calibrator, labelled.in_order(names, name="labelled").problem)
    calibrator.class_names = names


def given_frequencies(given: str) -> str | dict[str, float]:
    """Return the frequencies of an option: ``balanced``, or those of a CSV file."""
    return given if given == "balanced" else read_frequencies(given)


def read_frequencies(path: str | Path) -> dict[str, float]:
    """Read class frequencies: a CSV file of two columns, the class and its frequency, with or without a head.

    Classes without names are called by their number from 0. The names are checked where the frequencies are
    used.
    """
    path = Path(path)
    found: dict[str, float] = {}
    with reading(path.name, "a CSV file of classes and frequencies"):
        rows = [row for row in csv.reader(io.StringIO(_text(path))) if any(cell.strip() for cell in row)]
        for number, row in enumerate(rows):
            if len(row) != 2:
                raise FormatError(
                    f"expected two columns, the class and its frequency, got {len(row)} in row {number + 1}"
                )
            name, value = (cell.strip() for cell in row)
            try:
                frequency = float(value)
            except ValueError:
                if number == 0:
                    continue
                raise FormatError(f"expected a number for class {name!r}, got {value!r}") from None
            if name in found:
                raise FormatError(f"expected each class once, got {name!r} twice")
            found[name] = frequency
        if not found:
            raise FormatError("expected a row for each class, got none")
    return found


def _text(path: Path) -> str:
    if not path.exists():
        raise FormatError(f"no such file in {path.parent}; check the path, or say 'balanced'")
    return read_text(path).removeprefix("\ufeff")


def check_test_level(alpha: float) -> float:
    """Return the level of a test if it is a number between 0 and 1."""
    if not 0 < alpha < 1:
        raise InputError(f"alpha: expected a number between 0 and 1, got {alpha}; 5 % is 0.05")
    return float(alpha)


def _check_classes(y: Integers, k: int, names: Sequence[str]) -> None:
    counts = np.bincount(y, minlength=k)
    few = int(counts.argmin())
    if counts[few] < _LEAST_OF_CLASS:
        raise InputError(
            f"labelled: expected at least {_LEAST_OF_CLASS} samples of every class, got {counts[few]} of "
            f"{names[few]!r}; how it is confused with others is unknown"
        )


def _log_probs(
    calibrator: Calibrator, predictions: Predictions, rng: np.random.Generator
) -> tuple[Floats, Integers, Units]:
    """Return log-probabilities, labels and units of all rows, or of a random part if there are very many."""
    k = predictions.k or 1
    most = max(_MOST_OF_CLASS * k, _MOST_ENTRIES // k)
    if predictions.n > most:
        rows = np.sort(rng.choice(predictions.n, size=most, replace=False))
        predictions = predictions.take(rows)
    logits = calibrated(calibrator, predictions).to_logits().double()
    log_p = torch.log_softmax(logits, dim=1).clamp(min=math.log(LEAST_PROB))
    y: Tensor = torch.zeros(0, dtype=torch.int64) if predictions.labels is None else predictions.labels
    return log_p.numpy(force=True), y.numpy(force=True), Units.of(predictions.units, predictions.n)


@dataclass(frozen=True, eq=False)
class _Bias:
    """Temperature and class biases (BCTS): probabilities are the softmax of ``scale * log p + intercept``.

    Attributes:
        scale: The inverse temperature; that of each class in resamples.
        intercept: The bias of each class.
    """

    scale: float | Floats
    intercept: Floats

    def __call__(self, log_probs: Floats) -> Floats:
        return _softmax(self.scale * log_probs + self.intercept)

    def moved(self, step: Floats) -> "_Bias":
        """Return the same with other scales and biases, all in one row of ``2 k`` numbers."""
        k = len(self.intercept)
        return _Bias(np.maximum(self.scale + step[:k], _LEAST_SCALE), self.intercept + step[k:])

    def steps(self, log_probs: Floats, labels: Integers) -> Floats:
        """Return by how much each labelled row moves the scale and the bias of each class, ``(n, 2 k)``.

        Calibrators have numbers of each class, so their error is that of vector scaling. With a pull towards
        no correction, resamples would differ less than labelled sets do, so there is hardly any.
        """
        p = self(log_probs)
        n, k = p.shape
        over = p.copy()
        over[np.arange(n), labels] -= 1
        scaled = p * log_probs
        curvature = np.empty((2 * k, 2 * k))
        curvature[:k, :k] = np.diag((scaled * log_probs).sum(axis=0)) - scaled.T @ scaled
        curvature[k:, k:] = np.diag(p.sum(axis=0)) - p.T @ p
        curvature[:k, k:] = np.diag(scaled.sum(axis=0)) - scaled.T @ p
        curvature[k:, :k] = curvature[:k, k:].T
        curvature += 2 * _LEAST_RIDGE * np.eye(2 * k)
        return -np.linalg.solve(curvature, np.concatenate([over * log_probs, over], axis=1).T).T

    @classmethod
    def fit(cls, log_probs: Floats, labels: Integers) -> "_Bias":
        """Minimise the log loss by Newton steps, with a pull towards no correction."""
        n, k = log_probs.shape
        theta = np.append(1.0, np.zeros(k))
        origin, rows = theta.copy(), np.arange(n)

        def loss(at: Floats) -> float:
            z = at[0] * log_probs + at[1:]
            top = z.max(axis=1)
            total = (top + np.log(np.exp(z - top[:, None]).sum(axis=1)) - z[rows, labels]).sum()
            return float(total + _RIDGE * np.square(at - origin).sum())

        now = loss(theta)
        for _ in range(50):
            slopes, curvature = _derivatives(theta, log_probs, labels)
            gradient = slopes.sum(axis=0) + 2 * _RIDGE * (theta - origin)
            step = -np.linalg.solve(curvature, gradient)
            length = 1.0
            while (following := loss(theta + length * step)) > now and length > 1e-6:
                length /= 2
            theta, before, now = theta + length * step, now, min(following, now)
            if before - now < 1e-9 * n:
                break
        return cls(float(max(theta[0], _LEAST_SCALE)), theta[1:] - theta[1:].mean())


def _derivatives(theta: Floats, log_probs: Floats, labels: Integers) -> tuple[Floats, Floats]:
    """Return the slope of the loss of each row, ``(n, k + 1)``, and the curvature of their penalised sum."""
    n, k = log_probs.shape
    p = _softmax(theta[0] * log_probs + theta[1:])
    mean = (p * log_probs).sum(axis=1)
    slopes = np.empty((n, k + 1))
    slopes[:, 0] = mean - log_probs[np.arange(n), labels]
    slopes[:, 1:] = p
    slopes[np.arange(n), 1 + labels] -= 1
    centred = p * (log_probs - mean[:, None])
    curvature = np.empty((k + 1, k + 1))
    curvature[0, 0] = (centred * log_probs).sum()
    curvature[0, 1:] = curvature[1:, 0] = centred.sum(axis=0)
    curvature[1:, 1:] = np.diag(p.sum(axis=0)) - p.T @ p
    return slopes, curvature + 2 * _RIDGE * np.eye(k + 1)


def _softmax(logits: Floats) -> Floats:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray((e / e.sum(axis=1, keepdims=True)).clip(LEAST_PROB))


def _likeliest(
    ratios: Floats, weights: Floats, start: Floats, *, settled: float = _SETTLED, most: int = _MOST_STEPS
) -> Floats:
    """Return the frequencies that EM converges to, from ratios of probabilities to old frequencies.

    Args:
        ratios: Probabilities divided by the old frequencies, shape ``(n, k)``.
        weights: How much each row counts, with the sum 1.
        start: Frequencies to begin with, all above 0.
        settled: Total variation of a step after which the search ends.
        most: The largest number of steps.
    """
    now = start / start.sum()
    for _ in range(most):
        following = now * ((weights / (ratios @ now)) @ ratios)
        moved = float(np.abs(following - now).sum()) / 2
        now = following / following.sum()
        if moved <= settled:
            break
    return np.asarray(now)


def _resampled(
    bias: _Bias,
    log_before: Floats,
    labels: Integers,
    log_after: Floats,
    units: tuple[Units, Units],
    found: Floats,
    n_resamples: int,
    rng: np.random.Generator,
    progress: Progress | None,
) -> Floats:
    """Return the frequencies of resamples of both sets, shape ``(n_resamples, k)``.

    The biases of a resample are one Newton step from those of the whole set, and so is the start of EM.
    """
    m = len(log_after)
    moves = bias.steps(log_before, labels)
    scaled = bias(log_after) / bias(log_before).mean(axis=0)
    scaled /= (scaled @ found)[:, None]
    information = scaled.T @ scaled / m
    steps = np.linalg.inv(information + 1e-9 * np.trace(information) * np.eye(len(found)))
    drawn = np.empty((n_resamples, len(found)))
    for number in range(n_resamples):
        if progress is not None:
            progress("resampling", number, n_resamples)
        rows, others = (_drawn_again(each, rng) for each in units)
        moved = bias.moved((rows - 1) @ moves)
        old = (rows / rows.sum()) @ moved(log_before)
        weights = others / others.sum()
        used = weights > 0
        ratios, weights = moved(log_after[used]) / old, weights[used]
        gain = (weights / (ratios @ found)) @ ratios
        start = np.maximum(found + steps @ (gain - 1), 0.1 * found + 1e-9)
        drawn[number] = _likeliest(ratios, weights, start, settled=_SETTLED_RESAMPLE)
    return drawn


class _MeanTest(NamedTuple):
    """Hotelling's statistic of two sets of rows, the number of dimensions that vary, and the p-value."""

    statistic: float
    rank: int
    p_value: float


def _drawn_again(units: Units, rng: np.random.Generator) -> Floats:
    """Return how often each row is in a resample of units."""
    return units.of_rows(rng.multinomial(units.n, np.full(units.n, 1 / units.n))).astype(np.float64)


def _mean_test(p: Floats, q: Floats, units: tuple[Units, Units], rng: np.random.Generator) -> _MeanTest:
    """Test whether two sets of rows have the same means, by random divisions of all rows in two sets.

    Rows of a unit count as one: their sum.
    """
    from scipy.stats import chi2

    rows = np.concatenate([p, q])
    rows = rows - rows.mean(axis=0)
    (n, m), (own, new) = (each.n for each in units), units
    if not (own.are_rows and new.are_rows):
        sums = np.zeros((n + m, rows.shape[1]))
        np.add.at(sums, np.append(own.code, n + new.code), rows)
        rows = sums
    values, vectors = np.linalg.eigh(rows.T @ rows / (n + m - 1))
    used = values > 1e-10 * values[-1]
    white = rows @ (vectors[:, used] / np.sqrt(values[used]))
    # All rows sum to 0, so the sum of the smaller set says it all.
    small = slice(0, n) if n <= m else slice(n, n + m)
    size, factor = min(n, m), (n + m) / (n * m)

    def statistic(total: Floats) -> float:
        return float(np.square(total).sum() * factor)

    value, rank = statistic(white[small].sum(axis=0)), int(used.sum())
    limit = float(chi2.sf(value, rank))
    if white.size > _MOST_PERMUTED:
        return _MeanTest(value, rank, limit)
    if limit < _BEYOND_DOUBT:
        return _MeanTest(value, rank, 1 / (1 + _PERMUTATIONS))
    drawn = (rng.choice(n + m, size=size, replace=False) for _ in range(_PERMUTATIONS))
    at_least = sum(statistic(white[part].sum(axis=0)) >= value * (1 - 1e-12) for part in drawn)
    return _MeanTest(value, rank, (1 + at_least) / (1 + _PERMUTATIONS))


def _share_of_chance(statistic: float, rank: int, n: int, m: int) -> float:
    """Return the share by which James and Stein draw the means of ``m`` rows back to those of ``n`` others.

    Hotelling's statistic has the covariance of all rows and the error of both means. Here the covariance is
    that within both sets, and the error that of the ``m`` rows alone.
    """
    if statistic <= 0:
        return 1.0
    within = statistic / max(1 - statistic / (n + m - 1), 1e-9)
    return min(1.0, max(rank - 2, 0) / (within * (1 + m / n)))


def _fit_test(
    before: Floats,
    weights: Floats,
    after: Floats,
    units: tuple[Units, Units],
    n_resamples: int,
    rng: np.random.Generator,
) -> float:
    """Return the p-value that confidences, weighted by the new frequencies, are those of unlabelled rows.

    The statistic is the largest distance of both distribution functions, and its distribution is that in
    resamples of both sets around their own distribution functions.
    """
    grid = np.unique(np.quantile(np.concatenate([before, after]), np.linspace(0, 1, 257)[1:-1]))
    cell, other = (np.searchsorted(grid, each, side="left") for each in (before, after))

    def difference(rows: Floats, others: Floats) -> Floats:
        one = np.bincount(cell, weights=rows * weights, minlength=len(grid) + 1)
        two = np.bincount(other, weights=others, minlength=len(grid) + 1)
        return np.asarray(np.cumsum(one / one.sum() - two / two.sum()))

    found = difference(np.ones(len(before)), np.ones(len(after)))
    at_least = 0
    for _ in range(n_resamples):
        rows, others = (_drawn_again(each, rng) for each in units)
        at_least += bool(np.abs(difference(rows, others) - found).max() >= np.abs(found).max())
    return (1 + at_least) / (1 + n_resamples)


def _check_confusion(
    p: Floats, y: Integers, units: Units, names: Sequence[str], rng: np.random.Generator
) -> None:
    """Refuse classes whose mean probabilities cannot be told from a mixture of those of others.

    The smallest singular value of the confusion must stand out from its sampling error, which is measured on
    resamples of the samples of each class, or of units.
    """
    counts = np.bincount(y, minlength=p.shape[1])
    starts = np.append(0, np.cumsum(counts)[:-1])
    order = np.argsort(y, kind="stable")
    by_class = p[order]

    def confusion(weights: Floats) -> Floats:
        total = np.add.reduceat(weights, starts)[:, None]
        return np.asarray((np.add.reduceat(by_class * weights[:, None], starts) / np.maximum(total, 1)).T)

    def draw() -> Floats:
        if units.are_rows:
            parts = [rng.multinomial(n, np.full(n, 1 / n)).astype(np.float64) for n in counts]
            return np.concatenate(parts)
        return _drawn_again(units, rng)[order]

    table = confusion(np.ones(len(y)))
    _, values, directions = np.linalg.svd(table)
    draws = range(_DRAWS if len(counts) <= _MANY_CLASSES else 3)
    errors = [float(np.linalg.norm(confusion(draw()) - table, ord=2)) for _ in draws]
    if values[-1] > _TIMES_ERROR * float(np.median(errors)):
        return
    weak = directions[-1] * np.sign(directions[-1][np.abs(directions[-1]).argmax()])
    first, second = int(weak.argmax()), int(weak.argmin())
    raise FitError(
        f"labelled: expected classes that the model can tell apart, got {names[first]!r} and "
        f"{names[second]!r}, which it confuses so much that {len(y):,} samples do not show which of them "
        f"became more frequent (smallest singular value of the confusion {values[-1]:.2g}, its error "
        f"{float(np.median(errors)):.2g}); merge such classes, or give more labelled samples"
    )


def _by_confusion(p: Floats, y: Integers, q: Floats) -> Floats:
    """Return the frequencies by BBSE, from predicted classes: those that best explain how many there are."""
    from scipy.optimize import nnls

    k = p.shape[1]
    table = np.zeros((k, k))
    np.add.at(table, (p.argmax(axis=1), y), 1.0)
    table /= table.sum(axis=0)
    found = nnls(table, np.bincount(q.argmax(axis=1), minlength=k) / len(q))[0]
    return np.asarray(found / found.sum())
