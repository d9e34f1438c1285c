"""The report in a sentence: whether confidence can be believed, and how much a repair helps."""

from collections.abc import Mapping

from calibrant.report.page import Verdict

#: Below this, the mean confidence counts as right.
_RIGHT = 0.01
#: Shares of the calibration error that a method removes, and how that is said.
_REPAIRS = (
    (0.9, "repairs nearly all of it"),
    (0.6, "repairs most of it"),
    (0.3, "repairs part of it"),
    (0.05, "repairs a little of it"),
)


def verdict(
    before: Mapping[str, float],
    after: Mapping[str, float] | None = None,
    *,
    method: str = "",
    is_identity: bool = False,
) -> Verdict:
    """Say what the measures of a model mean, before a repair and after.

    Args:
        before: ``accuracy``, ``mean_confidence`` and ``ece`` of the model as it is.
        after: The same with the chosen method.
        method: What the method is called.
        is_identity: Whether leaving the model as it is was chosen.

    Example:
        >>> told = verdict(
        ...     {"accuracy": 0.85, "mean_confidence": 0.93, "ece": 0.08},
        ...     {"accuracy": 0.85, "mean_confidence": 0.85, "ece": 0.02},
        ...     method="SMART",
        ... )
        >>> told.headline
        'Overconfident: says 93.0 %, is right 85.0 %; SMART repairs most of it.'
    """
    tone, what = _judge(before)
    headline = f"{what}: says {_percent(before['mean_confidence'])}, is right {_percent(before['accuracy'])}"
    if after is None:
        return Verdict(
            headline=f"{headline}.",
            detail=f"Within bins of confidence it is off by {_percent(before['ece'])} on average (ECE).",
            tone=tone,
            confidence=before["mean_confidence"],
            accuracy=before["accuracy"],
        )
    return Verdict(
        headline=f"{headline}; {_repair(before, after, method, is_identity)}.",
        detail=_detail(before, after, is_identity),
        tone=tone,
        confidence=before["mean_confidence"],
        accuracy=before["accuracy"],
        confidence_after=None if is_identity else after["mean_confidence"],
        accuracy_after=None if is_identity else after["accuracy"],
    )


def _judge(metrics: Mapping[str, float]) -> tuple[str, str]:
    excess = metrics["mean_confidence"] - metrics["accuracy"]
    if abs(excess) >= _RIGHT:
        return ("over", "Overconfident") if excess > 0 else ("under", "Underconfident")
    if metrics["ece"] >= 2 * _RIGHT:
        return "mixed", "Right on average, but not in detail"
    return "right", "About right"


def _repair(before: Mapping[str, float], after: Mapping[str, float], method: str, is_identity: bool) -> str:
    if is_identity:
        return "no method that was tried does better than leaving it as it is"
    removed = 1 - after["ece"] / before["ece"] if before["ece"] > 0 else 0.0
    said = next((words for least, words in _REPAIRS if removed >= least), None)
    return f"{method} {said or 'hardly changes that'}"


def _detail(before: Mapping[str, float], after: Mapping[str, float], is_identity: bool) -> str:
    if is_identity:
        return f"Within bins of confidence it is off by {_percent(before['ece'])} on average (ECE)."
    return (
        f"After it, the model says {_percent(after['mean_confidence'])} and is right "
        f"{_percent(after['accuracy'])}; within bins of confidence it is off by {_percent(after['ece'])} "
        f"on average instead of {_percent(before['ece'])} (ECE)."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
