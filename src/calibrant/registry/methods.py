"""The post-hoc methods by name, from simple to complex."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from calibrant import posthoc
from calibrant.data import Predictions
from calibrant.errors import InputError
from calibrant.posthoc import Calibrator


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

    def fit(self, predictions: Predictions, *, seed: int = 0) -> Calibrator:
        """Fit on labelled predictions; features go along where there are any."""
        if predictions.labels is None:
            raise InputError("labels: expected the true class of each sample to fit on, got none")
        return self.calibrator.fit(
            predictions.to_logits(),
            predictions.labels,
            features=predictions.features,
            seed=seed,
            **self.options,
        )


# From simple to complex: of methods that are equally good, the first is chosen.
METHODS: Mapping[str, Method] = {
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
