"""Figures by name, as ``calibrant plot`` offers them: of predictions (:data:`KINDS`) and of training runs.

To add a figure, write its display in a file of its own and add one entry here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, Unpack

from calibrant.catalogue import Catalogue
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, did_you_mean
from calibrant.evaluation.calibrated import calibrated, fit_named, is_of_pairs
from calibrant.evaluation.compare import compare
from calibrant.inputs import Progress
from calibrant.plots.bin_dynamics import BinErrorsDisplay, CorrespondenceDisplay
from calibrant.plots.confidence_histogram import ConfidenceHistogramDisplay
from calibrant.plots.decided import (
    CostOfAskingDisplay,
    ExpectedRiskDisplay,
    FrequencyShiftDisplay,
    GuaranteedRiskDisplay,
    SetSizesDisplay,
)
from calibrant.plots.display import Display, Place
from calibrant.plots.margin_diagnosis import MarginDiagnosisDisplay
from calibrant.plots.margins import (
    IndicatorsDisplay,
    MarginGroupsDisplay,
    MarginReliabilityDisplay,
    TemperatureCurveDisplay,
)
from calibrant.plots.method_comparison import MethodComparisonDisplay, ValidationSizeDisplay
from calibrant.plots.ood_roc import OODRocDisplay
from calibrant.plots.reliability import ClassReliabilityDisplay, ReliabilityDisplay
from calibrant.plots.reliability_curves import CorpReliabilityDisplay, SmoothReliabilityDisplay
from calibrant.plots.risk_coverage import RiskCoverageDisplay
from calibrant.plots.training_dynamics import (
    AdaFocalGammasDisplay,
    EpochRows,
    TrainingDynamicsDisplay,
    mean_of_runs,
)
from calibrant.posthoc.names import canonical_name
from calibrant.posthoc.smart import SMART

#: Metrics and dynamics of a training run; rows of several runs by name.
RunRows: TypeAlias = tuple[EpochRows, EpochRows]
NamedRows: TypeAlias = Mapping[str, EpochRows]
Part: TypeAlias = Literal["n_bins", "methods", "validation", "foreign"]


@dataclass(frozen=True, eq=False)
class Request:
    """The inputs and options of a figure of predictions.

    Attributes:
        predictions: Predictions to show.
        validation: Predictions to fit methods on.
        foreign: Predictions of out-of-distribution samples.
        methods: Names of post-hoc methods, with options as in ``"smart(settled=0)"``.
        n_bins: Number of bins or groups.
        place: ``title`` and ``width`` of the figure.
        progress: Called with the current step, the number of steps done, and their total.
    """

    predictions: Predictions
    validation: Predictions | None = None
    foreign: Predictions | None = None
    methods: tuple[str, ...] = ()
    n_bins: int | None = None
    place: Place | None = None
    progress: Progress | None = None

    @property
    def at(self) -> Place:
        """Where to draw."""
        return self.place or {}

    def bins(self, default: int) -> int:
        """Return the requested number of bins, or the figure's default."""
        return default if self.n_bins is None else self.n_bins

    @property
    def shown(self) -> Predictions:
        """The predictions, calibrated if a method is named."""
        if len(self.methods) > 1:
            raise InputError(f"methods: expected one for this figure, got {', '.join(self.methods)}")
        return list(self.before_and_after.values())[-1]

    @property
    def before_and_after(self) -> dict[str, Predictions]:
        """The predictions as the model gave them, and those calibrated by each method, by name."""
        if self.validation is not None and not self.methods:
            raise InputError("methods: expected the name of a method to fit on validation, got none")
        named = {self.predictions.own_name: self.predictions}
        for name in self.methods:
            named[name] = calibrated(fit_named(name, self.fitting_set), self.predictions)
        return named

    @property
    def fitting_set(self) -> Predictions:
        """The predictions to fit methods on; an error if there are none."""
        return _given(self.validation, "validation", "to fit the method on", "give validation predictions")

    @property
    def labelled(self) -> Predictions:
        """Predictions with labels to compare unlabelled ones with; an error if there are none."""
        return _given(self.validation, "validation", "with labels", "give validation predictions")

    @property
    def conformal_set(self) -> Predictions:
        """The predictions to fit prediction sets on; an error if there are none."""
        return _given(self.validation, "validation", "to fit the sets on", "give validation predictions")

    @property
    def out_of_distribution(self) -> Predictions:
        """The predictions of out-of-distribution samples; an error if there are none."""
        return _given(self.foreign, "foreign", "of out-of-distribution samples", "give them")


def _given(predictions: Predictions | None, option: str, purpose: str, advice: str) -> Predictions:
    if predictions is None:
        raise InputError(f"{option}: expected predictions {purpose}, got none; {advice}")
    return predictions


@dataclass(frozen=True)
class Kind:
    """A figure of predictions: how to draw it, what it shows, which options it takes, what it needs."""

    draw: Callable[[Request], Display]
    meaning: str
    takes: frozenset[Part] = frozenset()
    needs_classes: bool = False
    needs_labels: bool = True


@dataclass(frozen=True)
class RunKind:
    """A figure of training runs: how to draw it from metrics and dynamics by name, and what it shows.

    Only figures with ``compares`` take more than one run.
    """

    draw: Callable[[NamedRows, NamedRows, Place], Display]
    meaning: str
    compares: bool = False


def _methods(request: Request) -> Display:
    methods, progress = request.methods or "auto", request.progress
    comparison = compare(request.fitting_set, test=request.predictions, methods=methods, progress=progress)
    return MethodComparisonDisplay.from_comparison(comparison, **request.at)


def _validation_size(request: Request) -> Display:
    return ValidationSizeDisplay.from_predictions(
        request.fitting_set,
        request.predictions,
        methods=request.methods or ("temperature", "smart"),
        n_bins=request.bins(15),
        progress=request.progress,
        **request.at,
    )


def _frequencies(request: Request) -> Display:
    if len(request.methods) > 1:
        raise InputError(f"methods: expected one for this figure, got {', '.join(request.methods)}")
    method = request.methods[0] if request.methods else None
    return FrequencyShiftDisplay.from_predictions(
        request.labelled, request.predictions, method=method, progress=request.progress, **request.at
    )


def _estimate(request: Request) -> Display:
    return ExpectedRiskDisplay.from_predictions(
        request.labelled,
        request.predictions,
        methods=request.methods or "auto",
        progress=request.progress,
        **request.at,
    )


def _temperature(request: Request) -> Display:
    if len(request.methods) > 1:
        raise InputError(f"methods: expected one for this figure, got {', '.join(request.methods)}")
    name = request.methods[0] if request.methods else "smart"
    fitted = fit_named(name, request.predictions.classes())
    if not isinstance(fitted, SMART):
        raise InputError(f"methods: expected smart or smart_paper for this figure, got {name}")
    return TemperatureCurveDisplay.from_predictions(
        request.predictions, calibrator=fitted, name=name, n_groups=request.bins(10), **request.at
    )


_REPAIR: frozenset[Part] = frozenset({"methods", "validation"})
_BINNED: frozenset[Part] = _REPAIR | {"n_bins"}

KINDS: Catalogue[Kind] = Catalogue(
    "KIND",
    "the name of a figure",
    {
        "reliability": Kind(
            lambda r: ReliabilityDisplay.from_predictions(r.shown, n_bins=r.bins(15), **r.at),
            "accuracy against confidence, in bins",
            _BINNED,
        ),
        "smooth": Kind(
            lambda r: SmoothReliabilityDisplay.from_predictions(r.shown, progress=r.progress, **r.at),
            "accuracy against confidence, smoothed",
            _REPAIR,
        ),
        "corp": Kind(
            lambda r: CorpReliabilityDisplay.from_predictions(r.shown, progress=r.progress, **r.at),
            "accuracy against confidence, by isotonic regression",
            _REPAIR,
        ),
        "histogram": Kind(
            lambda r: ConfidenceHistogramDisplay.from_predictions(r.shown, n_bins=r.bins(20), **r.at),
            "correct and wrong predictions by confidence",
            _BINNED,
        ),
        "classes": Kind(
            lambda r: ClassReliabilityDisplay.from_predictions(r.shown, n_bins=r.bins(10), **r.at),
            "one small reliability diagram per class",
            _BINNED,
            needs_classes=True,
        ),
        "margins": Kind(
            lambda r: MarginGroupsDisplay.from_predictions(r.before_and_after, n_groups=r.bins(8), **r.at),
            "confidence and accuracy by groups of the original logit margin",
            _BINNED,
            needs_classes=True,
        ),
        "margin-reliability": Kind(
            lambda r: MarginReliabilityDisplay.from_predictions(
                r.before_and_after, n_groups=r.bins(3), **r.at
            ),
            "accuracy against confidence in groups of the original margin, and changes of confidence",
            _BINNED,
            needs_classes=True,
        ),
        "diagnosis": Kind(
            lambda r: MarginDiagnosisDisplay.from_predictions(r.shown, n_groups=r.bins(8), **r.at),
            "where a sharper model is likelier but worse calibrated, by margin",
            _BINNED,
            needs_classes=True,
        ),
        "temperature": Kind(
            _temperature,
            "temperature of SMART (or smart_paper) along the margin, fitted on FILE",
            frozenset({"n_bins", "methods"}),
            needs_classes=True,
        ),
        "indicators": Kind(
            lambda r: IndicatorsDisplay.from_predictions(r.predictions, **r.at),
            "temperature that each sample needs, by its margin and by other numbers",
            needs_classes=True,
            needs_labels=False,
        ),
        "risk-coverage": Kind(
            lambda r: RiskCoverageDisplay.from_predictions(r.before_and_after, **r.at),
            "error rate among the most confident predictions",
            _REPAIR,
        ),
        "guarantee": Kind(
            lambda r: GuaranteedRiskDisplay.from_predictions(r.shown, **r.at),
            "error rate that is guaranteed on new data, by coverage",
            _REPAIR,
        ),
        "asking": Kind(
            lambda r: CostOfAskingDisplay.from_predictions(r.before_and_after, **r.at),
            "mean cost against the cost of asking a person, if a mistake costs 1",
            _REPAIR,
        ),
        "sets": Kind(
            lambda r: SetSizesDisplay.from_predictions(
                r.conformal_set, r.predictions, methods=r.methods, **r.at
            ),
            "sizes of prediction sets fitted on validation predictions, before and after calibration",
            _REPAIR,
            needs_classes=True,
        ),
        "validation-size": Kind(_validation_size, "calibration error against validation size", _BINNED),
        "estimate": Kind(
            _estimate,
            "error rate to expect without labels, from those of validation predictions",
            _REPAIR,
            needs_labels=False,
        ),
        "frequencies": Kind(
            _frequencies,
            "class frequencies without labels, beside those of validation predictions",
            _REPAIR,
            needs_classes=True,
            needs_labels=False,
        ),
        "methods": Kind(_methods, "post-hoc methods with intervals", _REPAIR),
        "ood": Kind(
            lambda r: OODRocDisplay.from_predictions(r.predictions, r.out_of_distribution, **r.at),
            "ROC curves of out-of-distribution detection",
            frozenset({"foreign"}),
            needs_labels=False,
        ),
    },
)

RUN_KINDS: Mapping[str, RunKind] = {
    "dynamics": RunKind(
        lambda metrics, _, place: TrainingDynamicsDisplay.from_rows(metrics, **place),
        "loss, accuracy, calibration and agreement over epochs; of several runs, on validation samples",
        compares=True,
    ),
    "gammas": RunKind(
        lambda _, dynamics, place: AdaFocalGammasDisplay.from_rows(_only(_measured(dynamics)), **place),
        "AdaFocal's gammas, bin by bin, over epochs",
    ),
    "bins": RunKind(
        lambda _, dynamics, place: BinErrorsDisplay.from_rows(_measured(dynamics), **place),
        "calibration error of single bins, and their gammas, over epochs; of one run or several",
        compares=True,
    ),
    "correspondence": RunKind(
        lambda _, dynamics, place: CorrespondenceDisplay.from_rows(_only(_measured(dynamics)), **place),
        "training samples in the bins of validation",
    ),
}


def draw(kind: str, request: Request) -> Display:
    """Draw the figure of predictions with this name; refuse options that it does not take."""
    chosen = check_kind(kind)
    given: dict[Part, bool] = {
        "n_bins": request.n_bins is not None,
        "methods": bool(request.methods),
        "validation": request.validation is not None,
        "foreign": request.foreign is not None,
    }
    for part, is_given in given.items():
        if is_given and part not in chosen.takes:
            taken = ", ".join(name for name in sorted(chosen.takes)) or "none of them"
            raise InputError(f"{part}: expected none for {kind}, which takes {taken}, got one")
    if chosen.needs_classes and is_of_pairs(request.predictions.k):
        others = ", ".join(name for name, each in KINDS.items() if not each.needs_classes)
        raise InputError(
            f"{kind}: expected logits or probs with labels, got confidences, which have no classes; draw one "
            f"of {others}"
        )
    names = tuple(dict.fromkeys(canonical_name(name) for name in request.methods))
    return chosen.draw(replace(request, methods=names))


def check_kind(kind: str) -> Kind:
    """Return the figure of predictions with this name."""
    if kind not in KINDS:
        raise Catalogue("KIND", "the name of a figure", {**KINDS, **RUN_KINDS}).refusal(kind)
    return KINDS[kind]


def draw_run(kind: str, metrics: EpochRows, dynamics: EpochRows, **place: Unpack[Place]) -> Display:
    """Draw the figure of a training run with this name; of a run in stages, the last stage.

    Args:
        kind: One of :data:`RUN_KINDS`.
        metrics: One mapping per epoch, as in ``metrics.jsonl``.
        dynamics: One mapping per epoch, as in ``dynamics.jsonl``.
        **place: ``ax``, ``width`` and ``title`` of the figure.
    """
    return draw_runs(kind, {"": [(metrics, dynamics)]}, **place)


def draw_runs(kind: str, runs: Mapping[str, Sequence[RunRows]], **place: Unpack[Place]) -> Display:
    """Draw one figure of several training runs: a line for each name, the mean of the runs of that name.

    Args:
        kind: One of :data:`RUN_KINDS`.
        runs: Metrics and dynamics of the runs by name; runs of one name differ in their seeds only.
        **place: ``ax``, ``width`` and ``title`` of the figure.
    """
    if kind not in RUN_KINDS:
        hint = did_you_mean(kind, RUN_KINDS)
        raise InputError(f"KIND: expected one of {', '.join(RUN_KINDS)}, got {kind!r}{hint}")
    count = sum(len(each) for each in runs.values())
    if count > 1 and not RUN_KINDS[kind].compares:
        raise InputError(f"{kind}: expected one run, got {count}; draw each in a figure of its own")
    metrics, dynamics = (
        {
            name if len(each) == 1 else f"{name}, mean of {len(each)}": mean_of_runs(
                [_last_stage(run[part]) for run in each]
            )
            for name, each in runs.items()
        }
        for part in (0, 1)
    )
    return RUN_KINDS[kind].draw(metrics, dynamics, place)


def _last_stage(rows: EpochRows) -> EpochRows:
    return [row for row in rows if row.get("stage") == rows[-1].get("stage")]


def _only(rows: NamedRows) -> EpochRows:
    (only,) = rows.values()
    return only


def _measured(dynamics: NamedRows) -> NamedRows:
    if not all(dynamics.values()):
        raise InputError(
            "dynamics: expected at least one epoch, got none; set output.dynamics above 0 and train again"
        )
    return dynamics
