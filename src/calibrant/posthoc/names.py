"""The post-hoc methods by name, from simple to complex."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calibrant import posthoc
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator


@dataclass(frozen=True)
class Method:
    """A post-hoc method by name: a calibrator, and the options that make it this variant."""

    calibrator: type[Calibrator]
    paper: str
    options: Mapping[str, Any] = field(default_factory=dict)
    top_label: bool = False

    @property
    def preserves_accuracy(self) -> bool:
        """Whether the predicted class can never change: maps of the top label's confidence keep it."""
        return self.top_label or self.calibrator.preserves_accuracy

    def fit(
        self, logits: ArrayLike, labels: ArrayLike, *, features: ArrayLike | None = None, seed: int = 0
    ) -> Calibrator:
        """Fit the calibrator with the options of this variant."""
        return self.calibrator.fit(logits, labels, features=features, seed=seed, **self.options)


# From simple to complex: of methods that are equally good, the first is chosen.
METHODS: dict[str, Method] = {
    "uncalibrated": Method(posthoc.Identity, "the model as it is"),
    "temperature": Method(posthoc.TemperatureScaling, "Guo et al., ICML 2017"),
    "temperature_ece": Method(
        posthoc.TemperatureScaling, "grid on ECE, as in AdaFocal", {"objective": "ece"}
    ),
    "ensemble": Method(posthoc.EnsembleTemperatureScaling, "Zhang et al., ICML 2020"),
    "spline": Method(posthoc.SplineCalibration, "Gupta et al., ICLR 2021"),
    "isotonic_top": Method(
        posthoc.IsotonicCalibration, "Zadrozny & Elkan, KDD 2002", {"mode": "top_label"}, top_label=True
    ),
    "histogram_top": Method(
        posthoc.HistogramBinning, "Zadrozny & Elkan, ICML 2001", {"mode": "top_label"}, top_label=True
    ),
    "bbq": Method(posthoc.BBQ, "Naeini et al., AAAI 2015", top_label=True),
    "venn_abers": Method(posthoc.VennAbers, "Vovk & Petej, UAI 2014", top_label=True),
    "smart": Method(posthoc.SMART, "SMART: margin-aware per-sample temperature"),
    "parameterized": Method(posthoc.ParameterizedTemperatureScaling, "Tomani et al., ECCV 2022"),
    "structured_vector": Method(posthoc.StructuredVectorScaling, "arXiv 2511.03685"),
    "vector": Method(posthoc.VectorScaling, "Guo et al., ICML 2017"),
    "class_temperature": Method(posthoc.ClassTemperatureScaling, "Frenkel & Goldberger, EUSIPCO 2021"),
    "group": Method(posthoc.GroupCalibration, "Yang et al., 2023"),
    "platt": Method(posthoc.PlattScaling, "Platt, 1999"),
    "beta": Method(posthoc.BetaCalibration, "Kull et al., AISTATS 2017"),
    "isotonic": Method(posthoc.IsotonicCalibration, "Zadrozny & Elkan, KDD 2002", {"mode": "one_vs_rest"}),
    "histogram": Method(posthoc.HistogramBinning, "Zadrozny & Elkan, ICML 2001", {"mode": "one_vs_rest"}),
    "structured_matrix": Method(posthoc.StructuredMatrixScaling, "arXiv 2511.03685"),
    "structured_smart": Method(posthoc.StructuredSMART, "structured matrix scaling, then SMART"),
    "matrix": Method(posthoc.MatrixScaling, "Guo et al., ICML 2017"),
    "dirichlet": Method(posthoc.DirichletCalibration, "Kull et al., NeurIPS 2019"),
    "proximity": Method(posthoc.ProximityCalibration, "Xiong et al., NeurIPS 2023"),
    "proximity_bins": Method(
        posthoc.ProximityCalibration, "Xiong et al., NeurIPS 2023", {"variant": "bin_mean_shift"}
    ),
    "feature_clipping": Method(posthoc.FeatureClipping, "Tao et al., AAAI 2025"),
    "metacal": Method(posthoc.MetaCal, "Ma & Blaschko, ICML 2021"),
    "metacal_accuracy": Method(posthoc.MetaCal, "Ma & Blaschko, ICML 2021", {"variant": "accuracy"}),
}

CALIBRATORS: Mapping[str, type[Calibrator]] = {
    name: method.calibrator for name, method in METHODS.items() if not method.options
}

# The methods that are compared by default: quick and strong ones.
_AUTO = (
    "uncalibrated",
    "temperature",
    "ensemble",
    "spline",
    "smart",
    "structured_matrix",
    "structured_smart",
)


def resolve_methods(methods: str | Sequence[str]) -> list[str]:
    """Return the names meant by ``"auto"``, ``"all"``, a name or several, from simple to complex."""
    if methods == "all":
        return list(METHODS)
    auto = tuple(name for name in _AUTO if name in METHODS)
    wanted = auto if methods == "auto" else (methods,) if isinstance(methods, str) else tuple(methods)
    for name in wanted:
        if name not in METHODS:
            raise InputError(f"methods: expected auto, all, or names from {', '.join(METHODS)}, got {name!r}")
    return [name for name in METHODS if name in wanted]
