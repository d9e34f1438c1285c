"""Figures that files of predictions suffice for, by name: what ``calibrant plot`` offers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated, fit_method
from calibrant.evaluation.compare import compare
from calibrant.inputs import Progress
from calibrant.plots.class_reliability import ClassReliabilityDisplay
from calibrant.plots.confidence_histogram import ConfidenceHistogramDisplay
from calibrant.plots.corp_reliability import CorpReliabilityDisplay
from calibrant.plots.display import Display, Place
from calibrant.plots.margin_groups import MarginGroupsDisplay
from calibrant.plots.method_comparison import MethodComparisonDisplay
from calibrant.plots.ood_roc import OODRocDisplay
from calibrant.plots.reliability import ReliabilityDisplay
from calibrant.plots.risk_coverage import RiskCoverageDisplay
from calibrant.plots.run_kinds import RUN_KINDS
from calibrant.plots.smooth_reliability import SmoothReliabilityDisplay
from calibrant.plots.temperature_curve import TemperatureCurveDisplay
from calibrant.plots.validation_size import ValidationSizeDisplay
from calibrant.posthoc.names import METHODS, resolve_methods

Part: TypeAlias = Literal["bins", "method", "val", "ood"]


@dataclass(frozen=True, eq=False)
class Request:
    """What a figure is made of.

    Attributes:
        predictions: What to show.
        validation: Predictions to fit methods on.
        foreign: Predictions of foreign samples.
        methods: Names of post-hoc methods.
        n_bins: Number of bins, or of groups.
        place: ``title`` and ``width`` of the figure.
        progress: Called with what is being done, how much is done, and how much there is.
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
        """Return the number of bins wanted, or that which suits the figure."""
        return default if self.n_bins is None else self.n_bins

    @property
    def shown(self) -> Predictions:
        """The predictions as they are, or repaired by the method if one is named."""
        if len(self.methods) > 1:
            raise InputError(f"--method: expected one for this figure, got {', '.join(self.methods)}")
        return list(self.before_and_after.values())[-1]

    @property
    def before_and_after(self) -> dict[str, Predictions]:
        """The predictions as they are, and repaired by each method, by name."""
        if self.validation is not None and not self.methods:
            raise InputError("--method: expected the name of a method to fit on --val, got none")
        named = {"uncalibrated": self.predictions}
        for name in self.methods:
            named[name] = calibrated(fit_method(METHODS[name], self.fitting_set), self.predictions)
        return named

    @property
    def fitting_set(self) -> Predictions:
        """What methods are fitted on."""
        if self.validation is None:
            raise InputError(
                "--val: expected predictions to fit the method on, got none; name a validation file"
            )
        return self.validation


@dataclass(frozen=True)
class Kind:
    """A figure by name: how it is drawn, what it says, and which options it takes."""

    draw: Callable[[Request], Display]
    meaning: str
    takes: frozenset[Part] = frozenset()


def _methods(request: Request) -> Display:
    wanted = request.methods or "auto"
    comparison = compare(
        request.fitting_set, test=request.predictions, methods=wanted, progress=request.progress
    )
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


def _ood(request: Request) -> Display:
    if request.foreign is None:
        raise InputError("--ood: expected predictions of foreign samples, got none; name their file")
    return OODRocDisplay.from_predictions(request.predictions, request.foreign, **request.at)


def _margins(request: Request) -> Display:
    return MarginGroupsDisplay.from_predictions(
        request.before_and_after, n_groups=request.bins(8), **request.at
    )


def _risk_coverage(request: Request) -> Display:
    return RiskCoverageDisplay.from_predictions(request.before_and_after, **request.at)


_REPAIR: frozenset[Part] = frozenset({"method", "val"})
_BINNED: frozenset[Part] = _REPAIR | {"bins"}

KINDS: Mapping[str, Kind] = {
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
        "how sure, and how often right",
        _BINNED,
    ),
    "classes": Kind(
        lambda r: ClassReliabilityDisplay.from_predictions(r.shown, n_bins=r.bins(10), **r.at),
        "one small diagram per class",
        _BINNED,
    ),
    "margins": Kind(_margins, "confidence and accuracy by groups of the logit margin", _BINNED),
    "temperature": Kind(
        lambda r: TemperatureCurveDisplay.from_predictions(r.predictions, n_groups=r.bins(10), **r.at),
        "SMART's temperature along the margin, fitted on FILE",
        frozenset({"bins"}),
    ),
    "risk-coverage": Kind(_risk_coverage, "error among the most confident", _REPAIR),
    "validation-size": Kind(_validation_size, "calibration error against validation size", _BINNED),
    "methods": Kind(_methods, "post-hoc methods with intervals", _REPAIR),
    "ood": Kind(_ood, "ROC curves of telling foreign samples apart", frozenset({"ood"})),
}


def draw(kind: str, request: Request) -> Display:
    """Draw the figure of this name; options that it does not take are refused."""
    chosen = check_kind(kind)
    given: dict[Part, bool] = {
        "bins": request.n_bins is not None,
        "method": bool(request.methods),
        "val": request.validation is not None,
        "ood": request.foreign is not None,
    }
    for part, is_given in given.items():
        if is_given and part not in chosen.takes:
            taken = ", ".join(f"--{name}" for name in sorted(chosen.takes)) or "none of them"
            raise InputError(f"--{part}: expected none for {kind}, which takes {taken}, got one")
    resolve_methods(request.methods)
    return chosen.draw(request)


def check_kind(kind: str) -> Kind:
    """Return the figure of this name."""
    if kind not in KINDS:
        known = ", ".join([*KINDS, *RUN_KINDS])
        raise InputError(f"KIND: expected one of {known}, got {kind!r}")
    return KINDS[kind]
