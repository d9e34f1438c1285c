"""Choose one of the methods that were compared, and say why."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from calibrant.errors import InputError
from calibrant.evaluation.compare import Comparison, MethodResult
from calibrant.inputs import Floats, check_choice
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.classwise import classwise_calibration_error
from calibrant.metrics.names import MEASURES
from calibrant.metrics.paired import paired_difference
from calibrant.metrics.smooth_ece import smooth_ece_terms
from calibrant.posthoc.names import POOL
from calibrant.posthoc.pool import Pool

Score: TypeAlias = Literal["nll", "brier", "ece", "classwise_ece"]

# One standard error on each side of the mean covers this share of a normal distribution.
_ONE_STANDARD_ERROR = 0.6827

_RESAMPLES = 200


@dataclass(frozen=True, eq=False)
class Choice:
    """The chosen method, and the reason in one sentence without a full stop."""

    result: MethodResult
    reason: str

    @property
    def sentence(self) -> str:
        """The method, the shares of its members if it is a pool, and the reason."""
        weights = self.result.calibrator.weights if isinstance(self.result.calibrator, Pool) else {}
        members = ", ".join(f"{100 * share:.0f} % {name}" for name, share in weights.items())
        return f"{self.result.name}{f' ({members})' if members else ''}: {self.reason}"


def choose(comparison: Comparison, *, score: Score = "nll") -> MethodResult:
    """Return the method that :func:`decide` chooses."""
    return decide(comparison, score=score).result


def decide(comparison: Comparison, *, score: Score = "nll") -> Choice:
    """Choose the pool, unless a simpler method is as good, and say why.

    A method is as good if, out of fold, it is within one standard error of the pool by the score and by the
    smooth calibration error. The simplest such method is chosen, in the order of
    :data:`calibrant.posthoc.names.METHODS`. Without a pool, methods are compared with the best one. The
    standard error is that of the difference on the same samples, so samples that are hard for all methods do
    not affect the choice.

    Args:
        comparison: The methods, fitted and measured.
        score: ``"nll"`` or ``"brier"``; or ``"ece"`` or ``"classwise_ece"``, which then decide alone: the
            choice is the simplest method within one standard error of the smallest.
    """
    check_choice(score, "score", get_args(Score))
    results = comparison.results
    if not results:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in comparison.skipped.items())
        raise InputError(
            f"comparison: expected at least one method that could be fitted, got none ({reasons})"
        )
    if len(results) == 1:
        return Choice(results[0], "the only method that was compared")
    is_proper = score in ("nll", "brier")
    best = min(results, key=lambda result: result.metrics[score])
    reference = comparison[POOL] if is_proper and comparison.pool is not None else best
    tests = (_within_by_score, _within_by_smooth_ece) if is_proper else (_within_by_resampling,)
    chosen = next(
        each for each in results if each is reference or all(t(each, reference, score) for t in tests)
    )
    return Choice(chosen, _reason(chosen, reference, score))


def _within_by_score(result: MethodResult, reference: MethodResult, score: Score) -> bool:
    assert score in ("nll", "brier")
    return _within_error((result.losses[score] - reference.losses[score]).numpy(force=True))


def _within_by_smooth_ece(result: MethodResult, reference: MethodResult, score: Score) -> bool:  # noqa: ARG001  # as the other tests
    terms, others = (
        smooth_ece_terms(each.held_out.to_probs(), each.held_out.labels) for each in (result, reference)
    )
    return _within_error(terms - others)


def _within_error(behind: Floats) -> bool:
    """Whether the mean of differences, sample by sample, is at most one standard error above 0."""
    return bool(behind.mean() <= behind.std(ddof=1) / math.sqrt(len(behind)))


def _within_by_resampling(result: MethodResult, reference: MethodResult, score: Score) -> bool:
    behind = paired_difference(
        expected_calibration_error if score == "ece" else classwise_calibration_error,
        result.held_out.to_probs(),
        reference.held_out.to_probs(),
        result.held_out.labels,
        n_resamples=_RESAMPLES,
        level=_ONE_STANDARD_ERROR,
    )
    return behind.difference <= (behind.high - behind.low) / 2


def _reason(chosen: MethodResult, reference: MethodResult, score: Score) -> str:
    measure = MEASURES[score].title
    measures = f"{measure} and smooth calibration error" if score in ("nll", "brier") else measure
    if reference.name == POOL:
        if chosen is reference:
            return f"no single method is within one standard error of it by {measures}, out of fold"
        return f"the simplest method within one standard error of the pool by {measures}, out of fold"
    if chosen is reference:
        return f"the best by {measure} out of fold, and no simpler method is within one standard error of it"
    return f"the simplest method within one standard error of {reference.name} by {measures}, out of fold"
