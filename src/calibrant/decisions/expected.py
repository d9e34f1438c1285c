"""How good is a model where there are no labels: what calibrated confidence leads one to expect."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from calibrant.data.predictions import ClassPredictions, Predictions
from calibrant.decisions.frequencies import check_test_level
from calibrant.decisions.given_sets import given_sets
from calibrant.decisions.shift import AdaptedCalibrator
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.choose import make_choice
from calibrant.evaluation.compare import compare
from calibrant.evaluation.given import PredictionsLike
from calibrant.inference.rows import check_level
from calibrant.inference.units import Units
from calibrant.inputs import Floats, Progress, check_seed
from calibrant.posthoc.calibrator import Calibrator
from calibrant.results import Result
from calibrant.show.numbers import Cell, number, p_equals, percent, span
from calibrant.show.table import Table

_COVERAGES = np.arange(1, 101) / 100

# With fewer misses than this, their variance is that of two more misses and hits (Agresti and Coull, 1998).
_FEW_MISSES = 5

_PERMUTATIONS = 999
_CELLS = 256
# Divisions of units count rows each time: of many rows there are fewer.
_FEWEST_DIVISIONS, _MOST_DIVIDED = 199, 1 << 28
_ROWS_AT_ONCE = 1 << 14


# Coverages whose error rate the table shows.
_SHOWN_COVERAGES = (0.5, 0.8, 0.9)


@dataclass(frozen=True)
class Estimate:
    """An estimate with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class ExpectedRisk:
    """The error rate to expect among the most confident predictions, with a band at each coverage.

    Attributes:
        coverage: Share of the unlabelled samples that are accepted, in ascending order.
        threshold: The lowest calibrated confidence that is accepted.
        risk: The error rate to expect among them.
        low: Lower ends of its intervals; NaN where no labelled sample is as confident.
        high: Upper ends.
    """

    coverage: Floats
    threshold: Floats
    risk: Floats
    low: Floats
    high: Floats

    def at(self, coverage: float) -> Estimate:
        """Return the risk at the smallest coverage that is at least this."""
        place = min(int(np.searchsorted(self.coverage, coverage - 1e-12)), len(self.coverage) - 1)
        return Estimate(float(self.risk[place]), float(self.low[place]), float(self.high[place]))


@dataclass(frozen=True, eq=False)
class ConfidenceChange:
    """Whether the confidences, or the predicted classes, are distributed as on the labelled samples.

    Attributes:
        distance: Largest distance of the distribution functions of the model's own confidence.
        confidence_p_value: Of the test whether the confidences have changed.
        class_distance: Total variation of the shares of predicted classes; None for pairs, without classes.
        class_p_value: Of the test whether these shares have changed; None for pairs.
        grown: The predicted class whose share grew most; None for pairs.
        p_value: That of both tests together, corrected for their number.
    """

    distance: float
    confidence_p_value: float
    class_distance: float | None
    class_p_value: float | None
    grown: str | None
    p_value: float


@dataclass(frozen=True, eq=False)
class ExpectedQuality(Result):
    """What to expect of calibrated predictions of unlabelled samples.

    Attributes:
        n_labelled: Number of labelled samples.
        n_unlabelled: Number of unlabelled samples.
        method: The calibrator's method.
        accuracy: Accuracy to expect on the unlabelled samples.
        brier: Brier score to expect there.
        risk: Risk-coverage curve to expect there.
        labelled_accuracy: Accuracy on the labelled samples.
        labelled_brier: Brier score there.
        level: Level of all intervals; those of the curve hold at each coverage by itself.
        change: The tests whether confidences have changed.
        alpha: Level of these tests.
        trusted: Whether no change was detected. If there was one, the estimates may be far off.
        predictions: The calibrated predictions of the unlabelled samples; not in :meth:`to_dict`.
        shifted: What to expect if a change was detected and samples are of the same kinds, only harder; None
            without a change, and for pairs, without classes.
        n_labelled_units: Number of units that the labelled samples belong to; None if every sample is drawn
            by itself.
        n_unlabelled_units: The same of the unlabelled samples.
    """

    n_labelled: int
    n_unlabelled: int
    method: str
    accuracy: Estimate
    brier: Estimate
    risk: ExpectedRisk
    labelled_accuracy: float
    labelled_brier: float
    level: float
    change: ConfidenceChange
    alpha: float
    trusted: bool
    predictions: Predictions
    shifted: AdaptedCalibrator | None = None
    n_labelled_units: int | None = None
    n_unlabelled_units: int | None = None

    not_in_json = ("predictions",)

    @property
    def sentence(self) -> str:
        """Whether the estimates can be trusted, and why not, in words without a full stop."""
        change = self.change
        if self.trusted:
            return (
                f"Confidences are distributed as on the labelled samples (distance {change.distance:.3f}, p "
                f"{p_equals(change.p_value)}); nothing speaks against the estimate"
            )
        reasons = []
        if change.confidence_p_value <= self.alpha / (1 if change.class_p_value is None else 2):
            reasons.append(f"confidences have changed (distance {change.distance:.3f})")
        if change.class_p_value is not None and change.class_p_value <= self.alpha / 2:
            reasons.append(
                f"predicted classes have changed ({percent(change.class_distance, 1)} of them; more "
                f"{change.grown})"
            )
        why = " and ".join(reasons)
        harder = ""
        if self.shifted is not None:
            right = percent(self.shifted.accuracy, 1)
            harder = f"; if samples are of the same kinds, only harder, about {right} are right"
        return f"Warning: {why}, so the estimate cannot be trusted{harder}; label some of these samples"

    def to_table(self) -> Table:
        """Return the estimates with their intervals, beside what labelled samples show."""

        def row(name: str, found: Estimate, write: Callable[[float], Cell], known: object) -> list[object]:
            return [name, write(found.value), span(found.low, found.high, write), known]

        rows = [
            row("accuracy", self.accuracy, percent, percent(self.labelled_accuracy)),
            *(
                []
                if self.shifted is None
                else [["accuracy, if harder", percent(self.shifted.accuracy), "", ""]]
            ),
            row("Brier score", self.brier, number, number(self.labelled_brier)),
        ]
        for coverage in _SHOWN_COVERAGES:
            name = f"error rate of the surest {100 * coverage:.0f} %"
            rows.append(row(name, self.risk.at(coverage), percent, ""))
        known = "" if self.n_labelled_units is None else f" of {self.n_labelled_units:,} units"
        new = "" if self.n_unlabelled_units is None else f" of {self.n_unlabelled_units:,} units"
        headings = [
            "estimate",
            f"{100 * self.level:.0f} % interval",
            f"on {self.n_labelled:,} labelled{known}",
        ]
        title = f"{self.n_unlabelled:,} predictions{new} without labels"
        return Table.of(["after calibration", *headings], rows, title=title, notes=(f"{self.sentence}.",))


def estimate_quality(
    labelled: PredictionsLike,
    unlabelled: PredictionsLike,
    *,
    calibrator: Calibrator | None = None,
    methods: str | Sequence[str] = "auto",
    fast: bool = False,
    level: float = 0.95,
    alpha: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
) -> ExpectedQuality:
    r"""Estimate accuracy, Brier score and the risk-coverage curve of a model on samples without labels.

    A calibrated confidence :math:`c` is the probability of being right, so the mean of the confidences is the
    accuracy to expect. What calibration leaves is measured on the labelled samples and corrected:

    .. math:: \widehat{\mathrm{acc}} = \frac1m \sum_{j} c_j
              + \frac1n \sum_i \big(\mathbb 1[\text{right}_i] - c_i\big)

    with calibrated confidences of :math:`m` unlabelled and of :math:`n` labelled samples, the latter by fits
    that have not seen them. The same holds for the Brier score, :math:`1 - \sum_y p_y^2` by expectation. The
    interval is for the accuracy on these :math:`m` samples: its variance is that of the second term, plus
    :math:`\frac1{m^2} \sum_j c_j (1 - c_j)`, or what the labelled samples give for this if that is more. If
    samples belong to units, the first variance is that of sums over units, the second has the covariance of
    samples of a unit that the labelled units show, and the tests divide units. A unit that is in both sets
    counts as two.

    All of it supposes that a confidence means the same as before. So two tests compare the model's own
    confidences and its predicted classes on both sets, by random divisions of all samples. A change says that
    the estimate cannot be trusted. No change is no proof: a model may be wrong more often at the same
    confidences.

    Args:
        labelled: Predictions with labels, or confidences with ``correct``, held out from training; or the
            path of a file of them.
        unlabelled: Predictions of the same model on other samples; labels are ignored.
        calibrator: What calibrates both sets; it should not have been fitted on the labelled ones. By default
            one is chosen on these by cross-validation, as :func:`calibrant.evaluation.compare` does.
        methods: The methods to compare, if there is no calibrator.
        fast: Whether ``"auto"`` means the quick methods only.
        level: Level of the intervals.
        alpha: Level of the tests together: how often they warn if nothing has changed.
        seed: Equal seeds give equal results.
        progress: Called with the current step, the number done, and the total.

    Example:
        >>> from calibrant.data.bundled import load_bundled
        >>> found = estimate_quality(
        ...     load_bundled("cifar10_val"), load_bundled("cifar10_test"), methods=["temperature"]
        ... )
        >>> found.accuracy.low < 0.822 < found.accuracy.high, found.trusted
        (True, True)

    References:
        Guillory et al., "Predicting with Confidence on Unseen Distributions", ICCV 2021 (difference of
        confidences).
        Garg et al., "Leveraging Unlabeled Data to Predict Out-of-Distribution Performance", ICLR 2022.
    """
    share, limit = check_level(level), check_test_level(alpha)
    rng = np.random.default_rng(check_seed(seed))
    before, after = given_sets(labelled, unlabelled, purpose="an estimate without labels")
    units = Units.of(before.units, before.n), Units.of(after.units, after.n)
    known, new, method, fitted = _calibrated(before, after, calibrator, methods, fast, seed, progress)
    ours, theirs = _terms(known), _terms(new)
    assert ours.right is not None
    assert ours.brier is not None
    change = _change(before, after, units, rng)
    z = _normal_quantile(share)
    trusted = change.p_value > limit
    follows = not trusted and isinstance(before, ClassPredictions)
    return ExpectedQuality(
        n_labelled=before.n,
        n_unlabelled=after.n,
        method=method,
        accuracy=_difference(theirs.confidence, theirs.hit_variance, ours.right - ours.confidence, units, z),
        brier=_difference(
            theirs.expected_brier, theirs.brier_variance, ours.brier - ours.expected_brier, units, z, top=2.0
        ),
        risk=_risk(ours, theirs, units, z),
        labelled_accuracy=float(ours.right.mean()),
        labelled_brier=float(ours.brier.mean()),
        level=share,
        change=change,
        alpha=limit,
        trusted=trusted,
        predictions=new,
        shifted=AdaptedCalibrator.fit(fitted, before, after, seed=seed) if follows else None,
        n_labelled_units=None if units[0].are_rows else units[0].n,
        n_unlabelled_units=None if units[1].are_rows else units[1].n,
    )


def _normal_quantile(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def _calibrated(
    labelled: Predictions,
    unlabelled: Predictions,
    calibrator: Calibrator | None,
    methods: str | Sequence[str],
    fast: bool,
    seed: int,
    progress: Progress | None,
) -> tuple[Predictions, Predictions, str, Calibrator]:
    """Return both sets calibrated, the labelled one out of fold, the method's name and the calibrator."""
    if calibrator is not None:
        known, new = (calibrated(calibrator, each) for each in (labelled, unlabelled))
        return known, new, type(calibrator).__name__, calibrator
    found = make_choice(compare(labelled, methods=methods, fast=fast, seed=seed, progress=progress)).result
    if found.name == "uncalibrated":
        return labelled, unlabelled, found.name, found.calibrator
    return found.held_out, calibrated(found.calibrator, unlabelled), found.name, found.calibrator


class _Terms(NamedTuple):
    """What each sample adds to the measures.

    Attributes:
        confidence: Calibrated probability of being right.
        hit_variance: Variance of being right.
        expected_brier: Expected Brier score.
        brier_variance: Variance of the Brier score.
        right: 1 for a right prediction, 0 for a wrong one; None without labels.
        brier: The Brier score; None without labels.
    """

    confidence: Floats
    hit_variance: Floats
    expected_brier: Floats
    brier_variance: Floats
    right: Floats | None
    brier: Floats | None


def _terms(predictions: Predictions) -> _Terms:
    if predictions.confidence is not None:
        return _terms_of_pairs(predictions)
    scores = predictions.logits if predictions.logits is not None else predictions.to_logits()
    labels = predictions.labels
    parts = []
    for start in range(0, predictions.n, _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        p = torch.softmax(scores[rows].double(), dim=1)
        squares, cubes = p.square().sum(dim=1), p.pow(3).sum(dim=1)
        columns = [p.amax(dim=1), squares, cubes]
        if labels is not None:
            y = labels[rows]
            columns += [(p.argmax(dim=1) == y).double(), p.gather(1, y[:, None]).squeeze(1)]
        parts.append(torch.stack(columns).numpy(force=True))
    confidence, squares, cubes, *known = np.concatenate(parts, axis=1)
    right, of_label = known or (None, None)
    return _Terms(
        confidence,
        confidence * (1 - confidence),
        1 - squares,
        4 * (cubes - squares**2).clip(0),
        right,
        None if of_label is None else 1 + squares - 2 * of_label,
    )


def _terms_of_pairs(predictions: Predictions) -> _Terms:
    assert predictions.confidence is not None
    c = predictions.confidence.double().numpy(force=True)
    right = None if predictions.correct is None else predictions.correct.double().numpy(force=True)
    variance = c * (1 - c)
    brier = None if right is None else (c - right) ** 2
    return _Terms(c, variance, variance, variance * (1 - 2 * c) ** 2, right, brier)


def _difference(
    values: Floats,
    variances: Floats,
    residuals: Floats,
    units: tuple[Units, Units],
    z: float,
    *,
    top: float = 1.0,
) -> Estimate:
    """Return the mean of unlabelled values, corrected by the mean of labelled residuals."""
    value = float(values.mean() + residuals.mean())
    # Confidences that are not calibrated state too small a variance; the labelled residuals show it.
    of_residuals = float(residuals.var(ddof=1))
    variance = of_residuals / len(residuals) + max(float(variances.mean()), of_residuals) / len(variances)
    variance += _of_dependence(residuals - residuals.mean(), of_residuals, *units)
    half = z * math.sqrt(max(variance, 0.0))
    return Estimate(*(float(np.clip(each, 0.0, top)) for each in (value, value - half, value + half)))


def _of_dependence(residuals: Floats, variance: float, own: Units, new: Units) -> float:
    """Return what the dependence within units adds to the variance of two means of independent samples.

    Args:
        residuals: Residuals of labelled samples, of mean zero.
        variance: Their variance, which is taken for the covariance within units if no labelled unit shows it.
        own: Units of the labelled samples.
        new: Units of the unlabelled samples, whose residuals are unknown.
    """
    pairs, new_pairs = (float((each.sizes * (each.sizes - 1)).sum()) for each in (own, new))
    covariance, added = variance, 0.0
    if pairs:
        of_units, of_rows = (
            float(np.square(each).sum()) * len(each) / (len(each) - 1)
            for each in (own.sums(residuals), residuals)
        )
        covariance = max(0.0, (of_units - of_rows) / pairs)
        added = (of_units - of_rows) / len(residuals) ** 2
    return added + covariance * new_pairs / len(new.code) ** 2


def _risk(ours: _Terms, theirs: _Terms, units: tuple[Units, Units], z: float) -> ExpectedRisk:
    """Return the curve: sums over the most confident samples of both sets, from each threshold on."""
    assert ours.right is not None
    ranks = np.argsort(-theirs.confidence, kind="stable")
    confidence = theirs.confidence[ranks]
    places = np.ceil(_COVERAGES * len(confidence)).astype(np.int64).clip(1) - 1
    threshold = np.unique(confidence[places])[::-1]
    accepted = np.searchsorted(-confidence, -threshold, side="right")
    order = np.argsort(-ours.confidence, kind="stable")
    known = np.searchsorted(-ours.confidence[order], -threshold, side="right")
    known[accepted == len(confidence)] = len(order)  # then all are accepted, of both sets

    def sums(values: Floats, counts: npt.NDArray[np.int64]) -> Floats:
        return np.append(0.0, np.cumsum(values))[counts]

    residual = (ours.confidence - ours.right)[order]
    variance = confidence * (1 - confidence)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = sums(residual, known) / known
        of_residuals = sums(residual**2, known) / known - gap**2
        misses = sums(1 - ours.right[order], known)
        share = (misses + 2) / (known + 4)
        of_residuals = np.where(misses < _FEW_MISSES, share * (1 - share) * known / (known + 4), of_residuals)
        of_rows = np.maximum(sums(variance, accepted) / accepted, of_residuals)
        total = of_residuals / known + of_rows / accepted
        if not all(each.are_rows for each in units):
            codes = units[0].code[order], units[1].code[ranks]
            ends = zip(known.tolist(), accepted.tolist(), misses < _FEW_MISSES, strict=True)
            total = total + [
                _of_accepted(residual[:one], of, codes[0][:one], codes[1][:two], few=bool(few))
                for (one, two, few), of in zip(ends, of_residuals.tolist(), strict=True)
            ]
        half = z * np.sqrt(np.maximum(total, 0.0))
    expected = 1 - sums(confidence, accepted) / accepted
    risk = expected + np.where(known > 0, gap, 0.0)
    low, high = (risk + sign * np.where(known > 0, half, np.nan) for sign in (-1, 1))
    return ExpectedRisk(
        accepted / len(confidence), threshold, *(each.clip(0, 1) for each in (risk, low, high))
    )


def _of_accepted(
    residuals: Floats,
    variance: float,
    own: npt.NDArray[np.intp],
    new: npt.NDArray[np.intp],
    *,
    few: bool,
) -> float:
    """Return what :func:`_of_dependence` does for the accepted samples, from the unit of each.

    With few misses, their variance stands for the covariance within units, which they hardly show.
    """
    if not len(residuals) or not len(new):
        return 0.0
    first, second = (_units_of_part(code) for code in (own, new))
    if not few:
        return _of_dependence(residuals - residuals.mean(), variance, first, second)
    pairs = (float((each.sizes * (each.sizes - 1)).sum()) / len(each.code) ** 2 for each in (first, second))
    return variance * sum(pairs)


def _units_of_part(code: npt.NDArray[np.intp]) -> Units:
    found, place = np.unique(code, return_inverse=True)
    return Units(place, len(found))


def _change(
    labelled: Predictions, unlabelled: Predictions, units: tuple[Units, Units], rng: np.random.Generator
) -> ConfidenceChange:
    """Compare the model's own confidences, and its predicted classes, on both sets."""
    (one, guesses), (two, others) = (_own(each) for each in (labelled, unlabelled))
    edges = np.unique(np.quantile(np.concatenate([one, two]), np.linspace(0, 1, _CELLS + 1)[1:-1]))
    cells, other_cells = (np.searchsorted(edges, each) for each in (one, two))
    distance, p_value = _division_test(
        cells, other_cells, len(edges) + 1, units, statistic=_largest_step, rng=rng
    )
    if guesses is None or others is None or not labelled.k:
        return ConfidenceChange(distance, p_value, None, None, None, p_value)
    _, class_p_value = _division_test(guesses, others, labelled.k, units, statistic=_chi_square, rng=rng)
    counts = [np.bincount(each, minlength=labelled.k) for each in (guesses, others)]
    shares = [each / each.sum() for each in counts]
    place = int((shares[1] - shares[0]).argmax())
    name = str(place) if labelled.class_names is None else labelled.class_names[place]
    total = float(np.abs(shares[1] - shares[0]).sum() / 2)
    corrected = min(1.0, 2 * min(p_value, class_p_value))
    return ConfidenceChange(distance, p_value, total, class_p_value, name, corrected)


def _own(predictions: Predictions) -> tuple[Floats, npt.NDArray[np.int64] | None]:
    """Return the model's own confidences, and its predicted classes if there are classes."""
    if predictions.confidence is not None:
        return predictions.confidence.double().numpy(force=True), None
    scores = predictions.to_logits()
    confidence = np.empty(predictions.n)
    for start in range(0, predictions.n, _ROWS_AT_ONCE):
        z = scores[start : start + _ROWS_AT_ONCE].double()
        # The doubt keeps its digits where the confidence would be rounded to 1.
        doubt = (z - z.amax(dim=1, keepdim=True)).exp().sum(dim=1) - 1
        confidence[start : start + _ROWS_AT_ONCE] = -doubt.numpy(force=True)
    return confidence, scores.argmax(dim=1).numpy(force=True)


def _largest_step(counts: npt.NDArray[np.int64], both: npt.NDArray[np.int64]) -> Floats:
    """Return the largest distance of the distribution functions of two parts of the same samples."""
    others = both - counts
    shares = counts / counts.sum(axis=-1, keepdims=True) - others / others.sum(axis=-1, keepdims=True)
    return np.asarray(np.abs(np.cumsum(shares, axis=-1)).max(axis=-1))


def _chi_square(counts: npt.NDArray[np.int64], both: npt.NDArray[np.int64]) -> Floats:
    """Return Pearson's statistic of two parts of the same samples, up to a factor."""
    used = both > 0
    share = counts.sum(axis=-1, keepdims=True) / both.sum()
    expected = share * both
    return np.asarray((np.square(counts - expected)[..., used] / both[used]).sum(axis=-1))


def _division_test(
    one: npt.NDArray[np.int64],
    two: npt.NDArray[np.int64],
    n_cells: int,
    units: tuple[Units, Units],
    *,
    statistic: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], Floats],
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return a statistic of counts in cells, and its p-value among random divisions of all samples or units.

    Args:
        one: The cell of each labelled sample.
        two: The cell of each unlabelled sample.
        n_cells: Number of cells.
        units: Units of the labelled and of the unlabelled samples.
        statistic: A function of the counts of some samples and of those of all.
        rng: Draws the divisions.
    """
    counts, both = (np.bincount(each, minlength=n_cells) for each in (one, np.append(one, two)))
    found = float(statistic(counts, both))
    if all(each.are_rows for each in units):
        drawn = rng.multivariate_hypergeometric(both, len(one), size=_PERMUTATIONS, method="marginals")
    else:
        cells, (own, new) = np.append(one, two), units
        code, is_first = np.append(own.code, own.n + new.code), np.arange(own.n + new.n) < own.n
        number = max(_FEWEST_DIVISIONS, min(_PERMUTATIONS, _MOST_DIVIDED // len(cells)))
        drawn = np.empty((number, n_cells), dtype=np.int64)
        for place in range(number):
            rng.shuffle(is_first)
            drawn[place] = np.bincount(cells[is_first[code]], minlength=n_cells)
    at_least = int((statistic(drawn, both) >= found * (1 - 1e-12)).sum())
    return found, (1 + at_least) / (1 + len(drawn))
