"""Figures of decisions.

The error rate that is guaranteed against the share that is answered; sizes of prediction sets; what decisions
cost by the cost of asking; the verdicts of a gate; and, without labels, the risk to expect and class
frequencies.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from calibrant.data.predictions import Predictions
from calibrant.decisions.cascades import Cascade
from calibrant.decisions.costs import CostOfAsking, Costs, cost_of_asking
from calibrant.decisions.expected import ExpectedQuality, estimate_quality
from calibrant.decisions.frequencies import FrequencyShift, estimate_frequencies
from calibrant.decisions.gate import Gate, GateOutcome, Verdict
from calibrant.decisions.sets import SetComparison, SetResult, calibrate_part, compare_sets
from calibrant.decisions.thresholds import (
    RISKS,
    GuaranteedRisks,
    Threshold,
    Thresholds,
    guaranteed_risks,
)
from calibrant.evaluation.calibrated import fit_named
from calibrant.inputs import Progress
from calibrant.metrics.selective import RiskCoverage, risk_coverage_curve
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display, Place
from calibrant.plots.risk_coverage import risk_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_THRESHOLDS_POINTS = 1000


@dataclass(eq=False)
class GuaranteedRiskDisplay(Display):
    """Error rate among the answers, observed and guaranteed, and thresholds for a few risks.

    Args:
        observed: The risk-coverage curve of the samples.
        guaranteed: The risk that is guaranteed at each coverage.
        thresholds: Thresholds to mark; those without a guarantee are left out.
    """

    observed: RiskCoverage
    guaranteed: GuaranteedRisks
    thresholds: Sequence[Threshold] = ()

    @classmethod
    def from_predictions(
        cls,
        predictions: Predictions,
        *,
        risks: Sequence[float] = RISKS,
        level: float = 0.95,
        **place: Unpack[Place],
    ) -> Self:
        """Find thresholds for risks, and draw them on the curves.

        Args:
            predictions: Logits or probabilities with labels, or confidences with hits, on which neither the
                model nor a calibrator was fitted; without weights.
            risks: Shares of wrong answers to find thresholds for.
            level: Probability of the guarantee.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        outcomes = predictions.outcomes()
        guaranteed = guaranteed_risks(outcomes, level=level)
        curve = risk_coverage_curve(
            confidence=outcomes.confidence, correct=outcomes.correct, max_points=_THRESHOLDS_POINTS
        )
        found = Thresholds.of(predictions, level=level).table(risks)
        return cls(curve, guaranteed, found).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the curves and the thresholds."""
        level = f"{100 * self.guaranteed.level:g} %"
        coverage, risk = self.observed.coverage.numpy(), self.observed.risk.numpy()
        ax.plot(coverage, risk, label="observed", **style.curve(0))
        if self.guaranteed.risk:
            x = (0.0, *self.guaranteed.coverage)
            y = (self.guaranteed.risk[0], *self.guaranteed.risk)
            ax.step(x, y, where="pre", label=f"guaranteed with {level} probability", **style.curve(1))
        marked = [each for each in self.thresholds if each.rule is not None]
        if marked:
            risks = ", ".join(f"{100 * each.risk:g}" for each in marked)
            ax.plot(
                [each.coverage for each in marked],
                [each.risk for each in marked],
                linestyle="",
                marker="o",
                color=style.BLACK,
                label=f"thresholds for {risks} %",
            )
        risk_axes(ax)


# Sets with this many classes and more share a bar.
_MOST = 8
# The panels: LAC has the smallest sets, and randomised APS shows best what calibration does.
_PANELS = (("lac", False), ("aps", True))
_SETS_LOOKS: tuple[dict[str, Any], ...] = (
    style.SOLID,
    style.OVER,
    style.UNDER,
    {"facecolor": style.PALE_GREY, "edgecolor": style.GREY, "hatch": "......", "linewidth": 0.6},
)


@dataclass(eq=False)
class SetSizesDisplay(Display):
    """Share of prediction sets by their size, for LAC above and randomised APS below.

    Args:
        comparison: The sets, by :func:`calibrant.decisions.compare_sets`; up to four kinds of scores are
            drawn.
    """

    comparison: SetComparison

    ratio = 0.95

    @classmethod
    def from_predictions(
        cls,
        validation: Predictions,
        predictions: Predictions,
        *,
        alpha: float = 0.1,
        methods: Sequence[str] = (),
        **place: Unpack[Place],
    ) -> Self:
        """Fit prediction sets and draw their sizes.

        Args:
            validation: Labelled predictions to fit the sets on. With methods, a random half of them fits the
                methods and the other half the sets, those of raw scores too.
            predictions: Labelled predictions to measure on.
            alpha: Share of sets that may miss the true class.
            methods: Post-hoc methods to compare with raw scores.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        calibrators, rest = {}, validation
        for name in methods:
            calibrators[name], rest = calibrate_part(validation, method=name)
        found = compare_sets(rest, predictions, alpha=alpha, methods=("lac", "aps"), calibrators=calibrators)
        return cls(found).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw a panel for each method, with bars for each kind of scores."""
        panels = layout.panels(ax, len(_PANELS), 1, gap=(0, 16))
        results = self.comparison.results
        shown = [[each for each in results if (each.method, each.randomised) == kind] for kind in _PANELS]
        found = {int(row.name) for each in (*shown[0], *shown[1]) for row in each.measures.sizes}
        sizes = range(min(1, *found), min(_MOST, max(found)) + 1)
        for panel, drawn in zip(panels, shown, strict=True):
            _draw_panel(panel, drawn[: len(_SETS_LOOKS)], sizes)
        panels[-1].set_xlabel("classes in a set")
        layout.legend_below(ax, **style.shared_legend(panels))


def _draw_panel(panel: "Axes", results: Sequence[SetResult], sizes: range) -> None:
    bar, last = 0.8 / len(results), sizes[-1]
    lines = []
    for number, each in enumerate(results):
        name, found = words.legend_name(each.scores), each.measures
        counts = {int(row.name): row.n for row in found.sizes}
        counts[last] = sum(n for size, n in counts.items() if size >= last)
        shares = [counts.get(size, 0) / found.n for size in sizes]
        places = [size - 0.4 + bar * (number + 0.5) for size in sizes]
        panel.bar(places, shares, bar, label=name, **_SETS_LOOKS[number])
        lines.append(f"{name}: {found.mean_size:.2f} classes, covers {100 * found.coverage:.1f} %")
    room = 0.6 * 72 * layout.inches(panel)
    text = "\n".join(words.cut_to_width(each, room, 6.5) for each in lines)
    panel.text(0.99, 0.99, text, ha="right", va="top", transform=panel.transAxes, fontsize=6.5)
    panel.set_xticks(list(sizes), [*map(str, sizes[:-1]), f"{last}+" if last == _MOST else str(last)])
    style.percent_axis(panel, "y")
    panel.set_ylabel(f"{results[0].name}\nsets (%)")
    panel.grid(axis="y")


@dataclass(eq=False)
class CostOfAskingDisplay(Display):
    """Mean cost of the cheapest expected action against the cost of asking a person.

    Args:
        curves: What acting costs, by name of the model.
    """

    curves: Mapping[str, CostOfAsking]

    @classmethod
    def from_predictions(
        cls,
        predictions: Predictions | Mapping[str, Predictions],
        *,
        costs: Costs | None = None,
        **place: Unpack[Place],
    ) -> Self:
        """Act on predictions at many costs of asking, and draw what that costs.

        Args:
            predictions: Logits or probabilities with labels, or confidences with hits; or several of them by
                name. What is calibrated must have been fitted on other samples.
            costs: Costs of the other actions; by default a mistake costs 1, and a hit nothing.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        given = {"confidence": predictions} if isinstance(predictions, Predictions) else predictions
        largest = max(cost_of_asking(each, costs).ask[-1] for each in given.values())
        ask = [largest * step / 100 for step in range(101)]
        return cls({name: cost_of_asking(each, costs, ask=ask) for name, each in given.items()}).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the curves and the cost of asking always."""
        for number, (name, curve) in enumerate(self.curves.items()):
            ax.plot(curve.ask, curve.observed, label=words.legend_name(name), **style.curve(number))
        first = next(iter(self.curves.values()))
        top = max(max(curve.observed) for curve in self.curves.values())
        ax.plot(first.ask, first.ask, label="always ask", **style.REFERENCE)
        ax.set_xlim(0, first.ask[-1])
        ax.set_ylim(0, 1.15 * top)
        ax.grid()
        ax.set_xlabel("cost of asking a person")
        ax.set_ylabel("mean cost of a sample")
        layout.legend_below(ax)


@dataclass(eq=False)
class CascadeDisplay(Display):
    """Accuracy against the cost of a question: the frontier of a cascade, its models alone, and the choice.

    Args:
        cascade: The cascade, by :func:`calibrant.decisions.cascade_for_risk`.
    """

    cascade: Cascade

    def draw(self, ax: "Axes") -> None:
        """Draw the frontier with its intervals, and the points."""
        found = self.cascade
        costs = [each.cost for each in found.frontier]
        ax.fill_between(
            costs,
            [each.accuracy_low for each in found.frontier],
            [each.accuracy_high for each in found.frontier],
            color=style.PALE_BLUE,
            linewidth=0,
            label=f"{100 * found.level:g} % interval",
        )
        ax.plot(costs, [each.accuracy for each in found.frontier], label="cascade", **style.curve(0))
        for place, (name, each) in enumerate(zip(found.models, found.alone, strict=True)):
            ax.plot(
                [each.cost],
                [each.accuracy],
                linestyle="",
                marker="sD^vP*X"[place % 7],
                color=style.VERMILION,
                markerfacecolor="white",
                label=f"{words.legend_name(name)} alone",
                zorder=3,
            )
        if found.chosen is not None:
            ax.plot(
                [found.chosen.cost],
                [found.chosen.accuracy],
                linestyle="",
                marker="o",
                color=style.BLACK,
                label=f"at most {100 * found.risk:g} % wrong",
                zorder=4,
            )
        ax.axhline(1 - found.risk, **style.REFERENCE)
        ax.set_xlim(left=0)
        style.percent_axis(ax, "y")
        ax.grid()
        ax.set_xlabel("mean cost of a question")
        ax.set_ylabel("right answers (%)")
        layout.legend_below(ax)


_GATE_LOOKS: dict[GateOutcome, dict[str, Any]] = {
    "passed": {"fmt": "o", "color": style.BLUE, "label": "passed"},
    "unknown": {"fmt": "D", "color": style.GREY, "markerfacecolor": "white", "label": "cannot tell"},
    "failed": {"fmt": "s", "color": style.VERMILION, "label": "failed"},
}
# Share of the width that names may take.
_GATE_NAMES = 0.4


@dataclass(eq=False)
class GateDisplay(Display):
    """Intervals that decide all requirements, each in units of its own distance to the bound.

    Right of the line a requirement is met, left of it it is missed. An interval on both sides cannot tell.

    Args:
        gate: The verdicts. Requirements without an interval are left out.
    """

    gate: Gate

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the rows."""
        return (0.3 + 0.22 * len(self._shown)) / layout.inches(ax)

    @property
    def _shown(self) -> list[Verdict]:
        return [each for each in self.gate.verdicts if math.isfinite(each.least) and math.isfinite(each.most)]

    def draw(self, ax: "Axes") -> None:
        """Draw a row for each requirement."""
        drawn: set[GateOutcome] = set()
        for place, each in enumerate(self._shown):
            look = dict(_GATE_LOOKS[each.outcome])
            if each.outcome in drawn:
                look["label"] = None
            drawn.add(each.outcome)
            low, value, high = _distances(each)
            ax.errorbar(value, place, xerr=[[value - low], [high - value]], elinewidth=1.2, capsize=2, **look)
        ax.axvline(0, color=style.BLACK, linewidth=0.7)
        points = _GATE_NAMES * 72 * layout.inches(ax)
        ax.set_yticks(
            range(len(self._shown)),
            [words.cut_to_width(each.requirement, points, 6.5) for each in self._shown],
        )
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(self._shown) - 0.4, -0.6)
        ax.set_xlim(-1.15, 1.15)
        ax.set_xticks([-0.6, 0, 0.6], ["missed", "bound", "met"])
        ax.tick_params(axis="x", length=0)
        if drawn:
            layout.legend_below(ax)


def _distances(verdict: Verdict) -> tuple[float, float, float]:
    """Return the ends of an interval and the value in the direction in which the requirement is met."""
    sign = -1.0 if "<" in verdict.requirement else 1.0
    ends = sorted(sign * (end - verdict.bound) for end in (verdict.least, verdict.most))
    unit = max(abs(end) for end in ends) or 1.0
    return ends[0] / unit, sign * (verdict.value - verdict.bound) / unit, ends[1] / unit


_EXPECTED_POINTS = 1000


@dataclass(eq=False)
class ExpectedRiskDisplay(Display):
    """Error rate to expect among the most confident predictions, with its band, and the true one if known.

    Args:
        expected: What is expected, by :func:`calibrant.decisions.estimate_quality`.
        truth: The curve of the same predictions with their labels, if they have any.
    """

    expected: ExpectedQuality
    truth: RiskCoverage | None = None

    @classmethod
    def from_predictions(
        cls,
        labelled: Predictions,
        unlabelled: Predictions,
        *,
        methods: str | Sequence[str] = "auto",
        progress: Progress | None = None,
        **place: Unpack[Place],
    ) -> Self:
        """Estimate the curve of unlabelled predictions and draw it.

        Args:
            labelled: Predictions with labels.
            unlabelled: Predictions whose risk is wanted; labels are used for the true curve only.
            methods: Post-hoc methods to choose from, by cross-validation on the labelled ones.
            progress: Called with the current step, the number done, and the total.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        found = estimate_quality(labelled, unlabelled, methods=methods, progress=progress)
        new = found.predictions
        truth = None
        if new.labels is not None or new.correct is not None:
            outcomes = new.outcomes()
            truth = risk_coverage_curve(
                confidence=outcomes.confidence, correct=outcomes.correct, max_points=_EXPECTED_POINTS
            )
        return cls(found, truth).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the curves and the band."""
        risk = self.expected.risk
        warning = "" if self.expected.trusted else ", not to be trusted"
        ax.fill_between(
            risk.coverage,
            risk.low,
            risk.high,
            color=style.PALE_BLUE,
            linewidth=0,
            label=f"{100 * self.expected.level:.0f} % interval",
        )
        ax.plot(risk.coverage, risk.risk, label=f"expected without labels{warning}", **style.curve(0))
        if self.truth is not None:
            coverage, errors = self.truth.coverage.numpy(), self.truth.risk.numpy()
            ax.plot(coverage, errors, label="with labels", **style.curve(1))
        risk_axes(ax)


# Points from one class to the next; names take at most this share of the width.
_ROW = 13.0
_FREQUENCIES_NAMES = 0.3
_MOST_CLASSES = 30


@dataclass(eq=False)
class FrequencyShiftDisplay(Display):
    """Old and new frequency of each class: EM as a dot with its interval, BBSE, and the old one.

    With more than thirty classes, those that changed most are shown.

    Args:
        shift: The frequencies, by :func:`calibrant.decisions.estimate_frequencies`.
    """

    shift: FrequencyShift

    @classmethod
    def from_predictions(
        cls,
        labelled: Predictions,
        unlabelled: Predictions,
        *,
        method: str | None = None,
        progress: Progress | None = None,
        **place: Unpack[Place],
    ) -> Self:
        """Estimate the frequencies of unlabelled predictions and draw them.

        Args:
            labelled: Predictions with labels and the old frequencies.
            unlabelled: Predictions with the new ones; labels are ignored.
            method: A post-hoc method to fit on the labelled ones first, or none.
            progress: Called with the current step, the number of resamples done, and their total.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        calibrator = None if method is None else fit_named(method, labelled)
        found = estimate_frequencies(labelled, unlabelled, calibrator=calibrator, progress=progress)
        return cls(found).plot(**place)

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        rows = min(len(self.shift.classes), _MOST_CLASSES)
        return max(60, _ROW * rows) / (72 * (1 - _FREQUENCIES_NAMES) * layout.inches(ax))

    def draw(self, ax: "Axes") -> None:
        """Draw a row for each class."""
        found = self.shift
        order = np.argsort(-np.abs(found.frequencies - found.old), kind="stable")[:_MOST_CLASSES]
        chosen = np.sort(order)
        places = np.arange(len(chosen))
        middle = found.frequencies[chosen]
        beyond = np.stack([middle - found.low[chosen], found.high[chosen] - middle])
        ax.plot(
            found.old[chosen],
            places,
            "|",
            color=style.BLACK,
            markersize=9,
            label="labelled",
            linestyle="none",
        )
        ax.errorbar(
            middle,
            places,
            xerr=beyond,
            fmt="o",
            color=style.BLUE,
            elinewidth=1,
            capsize=2,
            label=f"EM, {100 * found.level:.0f} % interval",
        )
        ax.plot(
            found.second_opinion[chosen],
            places,
            "s",
            color=style.VERMILION,
            markerfacecolor="white",
            label="BBSE",
            linestyle="none",
        )
        points = _FREQUENCIES_NAMES * 72 * layout.inches(ax)
        ax.set_ylim(len(chosen) - 0.4, -0.6)
        ax.set_yticks(places, [words.cut_to_width(found.classes[each], points, 6.5) for each in chosen])
        ax.tick_params(axis="y", length=0)
        ax.set_xlim(left=0)
        ax.grid()
        style.percent_axis(ax, "x")
        ax.set_xlabel("share of the samples (%)")
        layout.legend_below(ax)
