"""The report in a sentence: is the model calibrated, how much does a method improve it, which is better."""

from collections.abc import Mapping, Sequence

from calibrant.metrics.names import MEASURES
from calibrant.report.page import Difference, ModelPair, PageVerdict
from calibrant.show.numbers import number, p_equals, percent

#: A smaller difference between mean confidence and accuracy counts as none.
_SMALL = 0.01
#: Shares of the calibration error that a method removes, and the words for them.
_REPAIRS = (
    (0.9, "removes nearly all of the calibration error"),
    (0.6, "removes most of the calibration error"),
    (0.3, "removes part of the calibration error"),
    (0.05, "removes a little of the calibration error"),
    (-float("inf"), "hardly changes the calibration error"),
)


def verdict(
    before: Mapping[str, float],
    after: Mapping[str, float] | None = None,
    *,
    method: str = "",
    is_identity: bool = False,
    own: str = "uncalibrated",
) -> PageVerdict:
    """Describe what the measures of a model mean, before calibration and after.

    Args:
        before: ``accuracy``, ``mean_confidence`` and ``ece`` of the uncalibrated model.
        after: The same with the chosen method.
        method: What the method is called.
        is_identity: Whether the uncalibrated model itself was chosen.
        own: What the model's own confidence is called: ``"uncalibrated"`` or ``"as stated"``.

    Example:
        >>> found = verdict(
        ...     {"accuracy": 0.85, "mean_confidence": 0.93, "ece": 0.08},
        ...     {"accuracy": 0.85, "mean_confidence": 0.85, "ece": 0.02},
        ...     method="SMART",
        ... )
        >>> print(found.headline)
        Overconfident: confidence 93.0 %, accuracy 85.0 %; SMART removes most of the calibration error.
    """
    tone, judgement = _judge(before)
    headline = f"{judgement}: {_means(before)}"
    detail = f"The expected calibration error (ECE) is {percent(before['ece'], 1)}."
    if is_identity:
        best = "the uncalibrated model" if own == "uncalibrated" else f"the confidence {own}"
        headline += f"; no method tested is better than {best}"
    elif after is not None:
        headline += f"; {method} {_repair(before['ece'], after['ece'])}"
        detail = (
            f"With {method}: {_means(after)}. The expected calibration error (ECE) changes from "
            f"{percent(before['ece'], 1)} to {percent(after['ece'], 1)}."
        )
    shown = None if is_identity else after
    return PageVerdict(
        headline=f"{headline}.",
        detail=detail,
        tone=tone,
        confidence=before["mean_confidence"],
        accuracy=before["accuracy"],
        confidence_after=None if shown is None else shown["mean_confidence"],
        accuracy_after=None if shown is None else shown["accuracy"],
    )


def verdict_on_models(metrics: Mapping[str, Mapping[str, float]], pairs: Sequence[ModelPair]) -> PageVerdict:
    """Say which model is better calibrated, and whether chance explains the difference.

    The model with the lowest ECE is compared with the first one; if it is the first, with the next best.
    Where there are too many samples to test the ECE, the Brier score decides.

    Args:
        metrics: Measures of each model, the first one first.
        pairs: The first model against each other one.
    """
    first = next(iter(metrics))
    deciding = "ece" if any(line.name == "ece" for line in pairs[0].differences) else "brier"
    best, second, *_ = sorted(metrics, key=lambda name: metrics[name][deciding])
    rival = second if best == first else first
    pair = next(each for each in pairs if each.other == (rival if best == first else best))
    lines = {line.name: line for line in pair.differences}
    what = "better calibrated" if deciding == "ece" else "better"
    values = [_value(lines[deciding], name, first) for name in (best, rival)]
    against = f"{MEASURES[deciding].short} {' against '.join(values)}"
    if lines[deciding].is_clear:
        of = f", and the best of {len(metrics)} models" if len(metrics) > 2 else ""
        headline = f"{best} is {what} than {rival}{of}: {against}, more than chance explains."
    else:
        headline = (
            f"Neither {best} nor {rival} is clearly {what}: {against}, a difference that chance can explain."
        )
    tone, _ = _judge(metrics[best])
    return PageVerdict(
        headline=headline,
        detail=" ".join(
            _also(lines[name], first, pair.other) for name in ("nll", "accuracy") if name in lines
        ),
        tone=tone,
        confidence=metrics[first]["mean_confidence"],
        accuracy=metrics[first]["accuracy"],
    )


def _value(line: Difference, model: str, first: str) -> str:
    value = line.first if model == first else line.other
    return str(percent(value, 1) if line.percent else number(value))


def _also(line: Difference, first: str, other: str) -> str:
    """Describe the difference of a further measure in a sentence."""
    title = line.title[0].upper() + line.title[1:]
    p = f"p {p_equals(line.p_value)}"
    values = f"{title}: {first} {_value(line, first, first)}, {other} {_value(line, other, first)}"
    if not line.is_clear:
        return f"{values}, which chance can explain ({p})."
    winner = first if (line.difference < 0) == (line.better == "lower") else other
    return f"{values}: {winner} is better, more than chance explains ({p})."


def _judge(metrics: Mapping[str, float]) -> tuple[str, str]:
    excess = metrics["mean_confidence"] - metrics["accuracy"]
    if abs(excess) >= _SMALL:
        return ("over", "Overconfident") if excess > 0 else ("under", "Underconfident")
    if metrics["ece"] >= 2 * _SMALL:
        return "mixed", "Calibrated on average, but not at each confidence"
    return "right", "Well calibrated"


def _means(metrics: Mapping[str, float]) -> str:
    return f"confidence {percent(metrics['mean_confidence'], 1)}, accuracy {percent(metrics['accuracy'], 1)}"


def _repair(before: float, after: float) -> str:
    removed = 1 - after / before if before > 0 else 0.0
    return next(words for least, words in _REPAIRS if removed >= least)
