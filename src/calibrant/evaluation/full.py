"""An evaluation with all its parts: classes, margins, groups, another model, out-of-distribution samples."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from calibrant.data.predictions import Predictions
from calibrant.evaluation.detection import detect_ood
from calibrant.evaluation.evaluate import Evaluation, evaluate
from calibrant.evaluation.groups import GroupTable, by_group, group_to_dict
from calibrant.evaluation.paired import PairedComparison, paired_comparison
from calibrant.evaluation.slices import ClassRow, by_class, by_margin
from calibrant.evaluation.tables import LABEL, classes_table, detection_table, margins_table, measures_table
from calibrant.evaluation.tables import remarks_on as remarks
from calibrant.files import without_nan
from calibrant.inputs import Progress
from calibrant.metrics.margin import MarginSlice
from calibrant.metrics.ood import OODScores
from calibrant.outcomes import weighted_like
from calibrant.results import Result
from calibrant.show.numbers import percent, rows_of_units
from calibrant.show.table import Table

# What tables of groups and of labels show by default.
_OF_GROUPS = ("ece", "smece")
_OF_LABELS = (*_OF_GROUPS, "auroc_correct")


@dataclass(frozen=True, eq=False)
class FullEvaluation(Result):
    """The measures of predictions, and the parts that were asked for.

    Attributes:
        evaluation: The measures.
        classes: The calibration of each class.
        margins: Groups of samples by logit margin.
        groups: Groups by a column, or by label.
        by: What made the groups.
        comparison: Differences to another model.
        detection: How well scores detect out-of-distribution samples.
        n_labels: Number of labels, if there are several at once.
    """

    evaluation: Evaluation
    classes: tuple[ClassRow, ...] | None = None
    margins: tuple[MarginSlice, ...] | None = None
    groups: GroupTable | None = None
    by: str = "group"
    comparison: PairedComparison | None = None
    detection: Mapping[str, OODScores] | None = None
    n_labels: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: those of the evaluation, and of the parts that are there."""
        answer: dict[str, Any] = self.evaluation.to_dict()
        answer |= {} if self.n_labels is None else {"labels": self.n_labels}
        if self.classes is not None:
            answer["classes"] = [asdict(row) for row in self.classes]
        if self.margins is not None:
            answer["margins"] = [{**vars(part), "metrics": dict(part.metrics)} for part in self.margins]
        answer |= {} if self.groups is None else _groups_to_dict(self.groups, self.by)
        if self.comparison is not None:
            found = self.comparison.differences
            answer["comparison"] = {name: asdict(difference) for name, difference in found.items()}
        if self.detection is not None:
            answer["ood"] = {name: asdict(scores) for name, scores in self.detection.items()}
        values: dict[str, Any] = without_nan(answer)
        return values

    @property
    def heading(self) -> str:
        """The number of predictions and classes, or of rows and labels."""
        result = self.evaluation
        if self.n_labels is None:
            counted = heading_of(result.n, result.k, result.n_units)
        else:
            rows = rows_of_units(result.n // self.n_labels, result.n_units, "rows")
            counted = f"{rows}, {self.n_labels:,} labels"
        return counted + (f", {weighted_like(result.n_effective)}" if result.is_weighted else "")

    @property
    def sentence(self) -> str:
        """Whether confidence equals accuracy on average; empty if the measures do not tell."""
        return verdict_sentence(self.evaluation.metrics, of_labels=self.n_labels is not None)

    def to_table(self) -> Table:
        """Return the measures."""
        table, result = self.evaluation.to_table(), self.evaluation
        if self.n_labels is None:
            return table
        of_labels = measures_table(
            {"value": result.metrics},
            result.intervals,
            result.by_chance,
            of_labels=True,
            notes=remarks(result.skipped, result.remarks),
        )
        return replace(of_labels, title=self.heading)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables of the parts that are there."""
        found = (
            None if self.classes is None else classes_table(self.classes),
            None if self.margins is None else margins_table(self.margins),
            None if self.groups is None else self.groups.to_table(self.by),
            None if self.comparison is None else self.comparison.to_table(),
            None if self.detection is None else detection_table(self.detection),
        )
        return tuple(table for table in found if table is not None)


def evaluate_fully(
    predictions: Predictions,
    *,
    measures: str | Sequence[str] = "core",
    n_bins: int = 15,
    intervals: bool = False,
    per_class: bool = False,
    n_margins: int = 0,
    by: str | None = None,
    other: Predictions | None = None,
    foreign: Predictions | None = None,
    progress: Progress | None = None,
) -> FullEvaluation:
    """Evaluate predictions beside chance, with all parts that are asked for.

    Args:
        predictions: Labelled predictions.
        measures: ``"core"``, ``"all"``, or names.
        n_bins: Number of bins of the binned measures.
        intervals: Whether to bootstrap an interval of each measure.
        per_class: Whether to measure each class.
        n_margins: Number of groups by logit margin; 0 for none.
        by: What made the groups of the predictions, which are then tested; None for no groups.
        other: Another model's predictions of the same samples, to compare with.
        foreign: Predictions of out-of-distribution samples.
        progress: Called with the current step, the number of steps done, and their total.
    """
    several = predictions.n_rows < predictions.n
    result = evaluate(
        predictions, measures=measures, n_bins=n_bins, intervals=intervals, chance=True, progress=progress
    )
    return FullEvaluation(
        result,
        classes=by_class(predictions, n_bins=n_bins) if per_class else None,
        margins=by_margin(predictions, n_groups=n_margins) if n_margins else None,
        comparison=None
        if other is None
        else paired_comparison(predictions, other, measures=measures, n_bins=n_bins, progress=progress),
        detection=None if foreign is None else detect_ood(predictions, foreign),
        groups=by_group(
            predictions,
            measures=measures if measures != "core" else _OF_LABELS if several else _OF_GROUPS,
            n_bins=n_bins,
            intervals=intervals,
            progress=progress,
        )
        if by is not None or several
        else None,
        by=LABEL if several else by or "group",
        n_labels=predictions.n // predictions.n_rows if several else None,
    )


def heading_of(n: int, k: int | None, n_units: int | None = None) -> str:
    """Return the number of predictions, of units and of classes in words."""
    return rows_of_units(n, n_units, "predictions") + ("" if k is None else f", {k} classes")


def verdict_sentence(metrics: Mapping[str, float], *, of_labels: bool = False) -> str:
    """Say whether confidence equals accuracy on average; nothing if the measures do not tell."""
    if not {"accuracy", "mean_confidence", "ece"} <= set(metrics):
        return ""
    accuracy, confidence = metrics["accuracy"], metrics["mean_confidence"]
    if of_labels and abs(confidence - accuracy) >= 0.01:
        return (
            f"Probabilities are too {'high' if confidence > accuracy else 'low'} on average: mean "
            f"{percent(confidence, 1)}, and {percent(accuracy, 1)} of the entries have their label."
        )
    means = f"mean confidence {percent(confidence, 1)}, accuracy {percent(accuracy, 1)}"
    if abs(confidence - accuracy) < 0.01:
        return f"Calibrated on average: {means}; expected calibration error {percent(metrics['ece'], 1)}."
    return f"{'Overconfident' if confidence > accuracy else 'Underconfident'}: {means}."


def _groups_to_dict(table: GroupTable, by: str) -> dict[str, Any]:
    groups = {}
    for row in table.rows:
        intervals = {name: [each.low, each.high] for name, each in row.intervals.items()}
        groups[row.name] = group_to_dict(row) | {"metrics": dict(row.metrics)}
        groups[row.name] |= {"intervals": intervals} if intervals else {}
    test = {
        "by": by,
        "correction": table.correction,
        "level": table.level,
        "overall": dict(table.overall),
        "within": dict(table.within),
    }
    return {"groups": groups, "group_test": test}
