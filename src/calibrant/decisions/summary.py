"""The verdicts of a gate as Markdown, for the summary of a job or a comment on a pull request."""

from calibrant.bins import Bins
from calibrant.data.predictions import Predictions
from calibrant.decisions.gate import Gate
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.full import verdict_sentence
from calibrant.evaluation.paired import paired_comparison
from calibrant.show.numbers import count, percent, points
from calibrant.show.table import Table
from calibrant.text import markdown

_MARKS = {"passed": "✅", "failed": "❌", "unknown": "❔"}
# Characters of a bar of 100 %.
_BAR = 20


def gate_summary(
    gate: Gate, predictions: Predictions, *, baseline: Predictions | None = None, name: str = "predictions"
) -> str:
    """Return the verdicts, what changed against a baseline, and the reliability of the model, as Markdown.

    Args:
        gate: The verdicts.
        predictions: What was checked.
        baseline: Predictions of the same samples that it is compared with; None for none, or other samples.
        name: What the predictions are called.

    Example:
        >>> from calibrant.decisions import check_requirements
        >>> answers = Predictions(confidence=[0.8, 0.6] * 200, correct=[True, True, True, False] * 100)
        >>> print(gate_summary(check_requirements(answers, "accuracy > 0.5"), answers).splitlines()[0])
        ## ✅ Calibration gate: passed
    """
    words = {"passed": "passed", "failed": "failed", "unknown": "cannot tell"}[gate.outcome]
    table = gate.to_table()
    found = evaluate(predictions)
    checked = f"{markdown(name)}: {table.title[:1].lower()}{table.title[1:]}."
    parts = [
        f"## {_MARKS[gate.outcome]} Calibration gate: {words}",
        f"{checked} {verdict_sentence(found.metrics)}".rstrip(),
        table.to_markdown(),
        *(f"- {markdown(note)}" for note in table.notes[:-1]),
    ]
    if baseline is not None:
        changes = paired_comparison(predictions, baseline).to_table()
        parts.append(_folded("Changes against the baseline", changes.to_markdown(), is_open=True))
    parts.append(
        _folded("Reliability: accuracy in bins of confidence", _reliability(found.bins).to_markdown())
    )
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _folded(title: str, text: str, *, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{title}</summary>\n\n{text.rstrip()}\n\n</details>"


def _reliability(bins: Bins) -> Table:
    """Return a row for each bin that is not empty; the bar is its accuracy."""
    n = len(bins.count)
    rows = [
        [
            f"{100 * place / n:.0f} to {100 * (place + 1) / n:.0f} %",
            count(size),
            percent(confidence, 1),
            percent(accuracy, 1),
            points(confidence - accuracy),
            "█" * round(_BAR * accuracy) + "░" * (_BAR - round(_BAR * accuracy)),
        ]
        for place, (size, confidence, accuracy) in enumerate(
            zip(bins.count.tolist(), bins.confidence.tolist(), bins.accuracy.tolist(), strict=True)
        )
        if size > 0
    ]
    return Table.of(["bin", "samples", "confidence", "accuracy", "gap, points", "accuracy, 0 to 100 %"], rows)
