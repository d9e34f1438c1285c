"""Choose one of the methods that were compared, and say why."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import is_of_pairs
from calibrant.evaluation.compare import Comparison, MethodResult, ProperScore
from calibrant.evaluation.evaluate import inputs_of
from calibrant.evaluation.tables import methods_table
from calibrant.inference.intervals import mean_with_error
from calibrant.inference.paired import Measured, differences_from
from calibrant.inputs import Floats, check_choice
from calibrant.metrics.names import MEASURES
from calibrant.metrics.smooth_ece import smooth_ece_terms
from calibrant.posthoc.names import BY_GROUP, COMBINATION, POOL, safe_method
from calibrant.posthoc.pool import pool_of
from calibrant.results import Result
from calibrant.show.table import Table

Criterion: TypeAlias = Literal["nll", "brier", "ece", "classwise_ece"]

_RESAMPLES = 200

# What the pool gives way to by default, in words.
_IN_WORDS = {"temperature": "temperature scaling", "platt": "Platt scaling", COMBINATION: COMBINATION}


@dataclass(frozen=True, eq=False)
class Choice(Result):
    """The chosen method, and the reason in one sentence without a full stop."""

    result: MethodResult
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the method, its numbers, and the reason."""
        return {"chosen": self.result.name, "choice": self.reason, "result": self.result.to_dict()}

    @property
    def sentence(self) -> str:
        """The method, the shares of its members and the curve after them if it is a pool, and the reason."""
        pool = pool_of(self.result.calibrator)
        if pool is None:
            return f"{self.result.name}: {self.reason}"
        members = [f"{100 * share:.0f} % {name}" for name, share in pool.weights.items()]
        parts = ", ".join([*members, "then temperatures"] if pool.has_curve else members)
        return f"{self.result.name} ({parts}): {self.reason}"

    def to_table(self) -> Table:
        """Return the measures of the method, with the sentence."""
        where = "out of fold" if self.result.test_metrics is None else "on test"
        return methods_table(
            [self.result], where=where, shares={}, title="Choice", notes=(f"{self.sentence}.",)
        )


def choose(comparison: Comparison, *, score: Criterion = "nll", simple: bool = False) -> MethodResult:
    """Return the method that :func:`make_choice` chooses."""
    return make_choice(comparison, score=score, simple=simple).result


def make_choice(comparison: Comparison, *, score: Criterion = "nll", simple: bool = False) -> Choice:
    """Choose the pool, unless temperature scaling is better, and say why.

    By default the pool gives way only to temperature scaling, if out of fold the pool is more than one
    standard error behind by the score; with a smaller or uncertain advantage, the pool itself consists of
    temperature scaling in part (:class:`~calibrant.posthoc.Pool`). With ``simple``, or without a pool, every
    method that is within one standard error of the pool, or of the best method, by the score and by the
    smooth calibration error counts as good, and the simplest one is chosen. That costs a little: of many
    methods that seem as good, some are not (``docs/results/arena.md``). The order from simple to complex is
    that of :data:`calibrant.posthoc.names.METHODS`.

    Standard errors are those of differences on the same samples, so samples that are hard for all methods do
    not affect the choice. If samples have weights, so have their differences.

    Args:
        comparison: The methods, fitted and measured.
        score: ``"nll"`` or ``"brier"``; or ``"ece"`` or ``"classwise_ece"``, which then decide alone: the
            choice is the simplest method within one standard error of the smallest.
        simple: Whether to prefer the simplest method within one standard error.
    """
    check_choice(score, "score", get_args(Criterion))
    if not comparison.results:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in comparison.skipped.items())
        raise InputError(
            f"comparison: expected at least one method that could be fitted, got none ({reasons})"
        )
    if len(comparison.results) == 1:
        return Choice(comparison.results[0], "the only method that was compared")
    if score not in comparison.results[0].metrics:
        raise InputError(f"score: expected nll, brier or ece for confidences, got {score!r}")
    if score == "ece" or score == "classwise_ece":
        return _least_error(comparison, score)
    if simple or comparison.pool is None:
        choice = _simplest(comparison, score)
    else:
        choice = _pool_or_fallback(comparison, score)
    return _unless_groups_differ(comparison, choice, score)


def _unless_groups_differ(comparison: Comparison, choice: Choice, score: ProperScore) -> Choice:
    """Choose the correction for each group instead, if it is better out of fold."""
    if not any(result.name == BY_GROUP for result in comparison.results):
        return choice
    by_group = comparison[BY_GROUP]
    if by_group.metrics[score] >= choice.result.metrics[score]:
        return choice
    title, without = MEASURES[score].title, choice.result.name
    return Choice(by_group, f"out of fold it is better by {title} than {without} without groups")


def _pool_or_fallback(comparison: Comparison, score: ProperScore) -> Choice:
    pool, title = comparison[POOL], MEASURES[score].title
    names = [result.name for result in comparison.results]
    fallback = safe_method(names, of_pairs=is_of_pairs(pool.held_out.k))
    in_words = _IN_WORDS[fallback]
    one = next((result for result in comparison.results if result.name == fallback), None)
    if one is None:
        return Choice(pool, "the mixture of all methods that were compared")
    mixture = comparison.pool
    if mixture is not None and mixture.names == [fallback] and not mixture.has_curve:
        return Choice(one, "out of fold it is likelier than the pool of all methods")
    behind, error = _behind(pool, one, score)
    if behind > error:
        return Choice(
            one, f"out of fold the pool of all methods is more than one standard error behind it by {title}"
        )
    if behind > 0:
        return Choice(pool, f"out of fold it is within one standard error of {in_words} by {title}")
    return Choice(pool, f"out of fold it is better than {in_words} by {title}")


def _simplest(comparison: Comparison, score: ProperScore) -> Choice:
    """Choose the simplest method within one standard error of the pool, or of the best method without one."""
    best = min(comparison.results, key=lambda result: result.metrics[score])
    reference = best if comparison.pool is None else comparison[POOL]
    for result in comparison.results:
        if result is reference or (
            _is_within_error(*_behind(result, reference, score))
            and _is_within_error(*_calibration_behind(result, reference))
        ):
            break
    measures = f"{MEASURES[score].title} and smooth calibration error"
    of_what = "the pool" if reference.name == POOL else reference.name
    if result is reference:
        return Choice(
            result, f"no simpler method is within one standard error of it by {measures}, out of fold"
        )
    return Choice(
        result, f"the simplest method within one standard error of {of_what} by {measures}, out of fold"
    )


def _least_error(comparison: Comparison, score: Literal["ece", "classwise_ece"]) -> Choice:
    """Choose the simplest method within one standard error of the smallest calibration error."""
    best = min(comparison.results, key=lambda result: result.metrics[score])
    chosen = next(each for each in comparison.results if each is best or _is_close(each, best, score))
    title = MEASURES[score].title
    return Choice(
        chosen, f"the simplest method within one standard error of the smallest {title}, out of fold"
    )


def _is_close(result: MethodResult, best: MethodResult, score: Literal["ece", "classwise_ece"]) -> bool:
    measure, models = MEASURES[score], {}
    for name, each in (("it", result), ("best", best)):
        inputs = inputs_of(each.held_out, each.held_out.outcomes(), each.held_out.weights)
        models[name] = Measured.of(measure.function, inputs[measure.reads], {})
    units = result.held_out.units
    behind = differences_from(models, "best", units=units, n_resamples=_RESAMPLES)["it"]
    return behind.difference <= behind.standard_error


def _is_within_error(mean: float, error: float) -> bool:
    """Return whether a method is at most one standard error behind."""
    return mean <= error


def _behind(result: MethodResult, reference: MethodResult, score: ProperScore) -> tuple[float, float]:
    """Return how far a method is behind another by a proper score, and the standard error of that."""
    terms = (result.losses[score] - reference.losses[score]).numpy(force=True)
    return _mean_with_error(terms, result.held_out)


def _calibration_behind(result: MethodResult, reference: MethodResult) -> tuple[float, float]:
    """Return the difference of smooth calibration errors, and its standard error."""
    w = result.held_out.weights
    outcomes = (each.held_out.outcomes() for each in (result, reference))
    terms, others = (
        smooth_ece_terms(confidence=o.confidence, correct=o.correct, weights=w) for o in outcomes
    )
    return _mean_with_error(terms - others, result.held_out)


def _mean_with_error(terms: Floats, predictions: Predictions) -> tuple[float, float]:
    return mean_with_error(terms, weights=predictions.weights, units=predictions.units)
