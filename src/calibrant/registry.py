"""Names of what Calibrant offers: the command line, the contract tests and the benchmarks iterate these."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from calibrant import losses, metrics, posthoc
from calibrant.data import Predictions
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike
from calibrant.losses import Loss
from calibrant.losses.expression import parse_loss
from calibrant.posthoc import Calibrator


@dataclass(frozen=True)
class Measure:
    """A measure by name: what it reads, how a table shows it, and which direction is better.

    Attributes:
        function: Takes what it ``reads`` by keyword, and ``options``.
        title: Its name in a table.
        reads: ``"outcomes"`` (confidence and correct), ``"probs"``, or ``"logits"`` where there are any.
        better: Which direction is better.
        core: Whether it is shown when nothing else is asked for.
        options: Keyword arguments that make it this measure.
        takes_bins: Whether it has an argument ``n_bins``.
        percent: Whether a table shows it times 100.
        most_samples: It grows with the square of the samples: beyond this many it is left out, unless named.
        fewest_classes: It says nothing with fewer classes than this.
    """

    function: Callable[..., float]
    title: str
    reads: Literal["outcomes", "probs", "logits"] = "outcomes"
    better: Literal["lower", "higher", "neither"] = "lower"
    core: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    takes_bins: bool = False
    percent: bool = True
    most_samples: int | None = None
    fewest_classes: int = 2


def _brier_calibration(probs: ArrayLike, labels: ArrayLike) -> float:
    return metrics.decompose_brier(probs, labels, method="corp").calibration


def _brier_refinement(probs: ArrayLike, labels: ArrayLike) -> float:
    return metrics.decompose_brier(probs, labels, method="corp").refinement


MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure(metrics.accuracy, "accuracy", better="higher", core=True),
    "mean_confidence": Measure(metrics.mean_confidence, "mean confidence", better="neither", core=True),
    "nll": Measure(
        metrics.negative_log_likelihood, "negative log-likelihood", "logits", core=True, percent=False
    ),
    "brier": Measure(metrics.brier_score, "Brier score", "probs", core=True, percent=False),
    "ece": Measure(metrics.expected_calibration_error, "ECE, equal width", core=True, takes_bins=True),
    "ece_equal_mass": Measure(
        metrics.expected_calibration_error,
        "ECE, equal mass",
        core=True,
        takes_bins=True,
        options={"binning": "mass"},
    ),
    "classwise_ece": Measure(
        metrics.classwise_calibration_error, "classwise ECE", "probs", core=True, takes_bins=True
    ),
    "mce": Measure(
        metrics.maximum_calibration_error, "largest gap of a bin (MCE)", core=True, takes_bins=True
    ),
    "aurc": Measure(metrics.aurc, "area under risk-coverage (AURC)", core=True),
    "auroc_correct": Measure(metrics.auroc_correctness, "AUROC of correctness", better="higher", core=True),
    "top_5_error": Measure(metrics.top_k_error, "top-5 error", "probs", options={"k": 5}, fewest_classes=6),
    "smece": Measure(metrics.smooth_ece, "smooth ECE (smECE)"),
    "smce": Measure(metrics.smooth_calibration_error, "smooth calibration error (smCE)"),
    "ece_debiased": Measure(
        metrics.debiased_calibration_error,
        "debiased ECE, equal mass",
        takes_bins=True,
        options={"norm": "l1"},
    ),
    "rmsce_debiased": Measure(
        metrics.debiased_calibration_error, "debiased RMSCE, equal mass", takes_bins=True
    ),
    "ece_sweep": Measure(metrics.sweep_calibration_error, "ECE-sweep, equal mass"),
    "ece_sweep_width": Measure(
        metrics.sweep_calibration_error, "ECE-sweep, equal width", options={"binning": "width"}
    ),
    "rmsce": Measure(metrics.rms_calibration_error, "root mean square (RMSCE)", takes_bins=True),
    "ace": Measure(metrics.average_calibration_error, "average over bins (ACE)", takes_bins=True),
    "ks": Measure(metrics.ks_error, "Kolmogorov-Smirnov (KS)"),
    "mmce": Measure(metrics.mmce, "kernel error (MMCE)"),
    "kde_ece": Measure(metrics.kde_calibration_error, "kernel density ECE", most_samples=20_000),
    "overconfidence": Measure(metrics.overconfidence, "overconfident part of ECE", takes_bins=True),
    "underconfidence": Measure(metrics.underconfidence, "underconfident part of ECE", takes_bins=True),
    "classwise_ece_equal_mass": Measure(
        metrics.classwise_calibration_error,
        "classwise ECE, equal mass",
        "probs",
        takes_bins=True,
        options={"binning": "mass"},
    ),
    "adaptive_ece": Measure(
        metrics.adaptive_calibration_error, "adaptive, per class (Nixon's ACE)", "probs", takes_bins=True
    ),
    "sce_true_class": Measure(
        metrics.static_calibration_error,
        "SCE per true class (SECA)",
        "probs",
        takes_bins=True,
        options={"definition": "true_class"},
    ),
    "skce": Measure(metrics.skce, "squared kernel error (SKCE)", "probs", percent=False, most_samples=20_000),
    "skce_linear": Measure(
        metrics.skce, "SKCE, linear estimate", "probs", percent=False, options={"estimator": "linear"}
    ),
    "brier_calibration": Measure(_brier_calibration, "Brier: calibration (CORP)", "probs", percent=False),
    "brier_refinement": Measure(_brier_refinement, "Brier: refinement (CORP)", "probs", percent=False),
    "excess_aurc": Measure(metrics.excess_aurc, "excess AURC"),
    "augrc": Measure(metrics.augrc, "generalised risk (AUGRC)"),
    "auroc_ovo": Measure(metrics.auroc_ovo, "AUROC, one against one", "probs", better="higher"),
    "auroc_ovr": Measure(metrics.auroc_ovr, "AUROC, one against rest", "probs", better="higher"),
    "charbonnier": Measure(
        metrics.charbonnier_error, "Charbonnier H (no calibration error)", better="neither"
    ),
}


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


@dataclass(frozen=True)
class TrainingLoss:
    """A training loss by name.

    Attributes:
        module: Its class; the function of the same name stands beside it.
        paper: Where it comes from.
        recipe: How it is used by default, as :func:`make_loss` reads it: a term stands beside the loss that
            it is added to.
        reads: ``"logits"``, or ``"embeddings"`` for a loss of an encoder.
        sizes: What its class must be told of the data: ``n_classes`` or ``n_samples``.
    """

    module: type[Loss]
    paper: str
    recipe: str
    reads: Literal["logits", "embeddings"] = "logits"
    sizes: tuple[Literal["n_classes", "n_samples"], ...] = ()

    @property
    def is_term(self) -> bool:
        """Whether it is only useful beside another loss."""
        return "+" in self.recipe


LOSSES: Mapping[str, TrainingLoss] = {
    "cross_entropy": TrainingLoss(losses.CrossEntropyLoss, "the baseline", "cross_entropy"),
    "label_smoothing": TrainingLoss(
        losses.LabelSmoothingLoss, "Szegedy et al., CVPR 2016", "label_smoothing(smoothing=0.05)"
    ),
    "ols": TrainingLoss(losses.OLSLoss, "Zhang et al., TIP 2021", "ols", sizes=("n_classes",)),
    "focal": TrainingLoss(losses.FocalLoss, "Mukhoti et al., NeurIPS 2020", "focal(gamma=3.0)"),
    "flsd": TrainingLoss(losses.FLSDLoss, "Mukhoti et al., NeurIPS 2020", "flsd"),
    "inverse_focal": TrainingLoss(
        losses.InverseFocalLoss, "Wang et al., NeurIPS 2021", "inverse_focal(gamma=1.0)"
    ),
    "dual_focal": TrainingLoss(losses.DualFocalLoss, "Tao et al., ICML 2023", "dual_focal(gamma=5.0)"),
    "brier": TrainingLoss(losses.BrierLoss, "Brier, 1950", "brier"),
    "confidence_penalty": TrainingLoss(
        losses.ConfidencePenaltyLoss,
        "Pereyra et al., ICLR workshop 2017",
        "cross_entropy + 0.1 * confidence_penalty",
    ),
    "logit_norm": TrainingLoss(losses.LogitNormLoss, "Wei et al., ICML 2022", "logit_norm"),
    "mbls": TrainingLoss(losses.MbLSLoss, "Liu et al., CVPR 2022", "cross_entropy + 0.1 * mbls"),
    "mmce": TrainingLoss(losses.MMCELoss, "Kumar et al., ICML 2018", "cross_entropy + 2.0 * mmce"),
    "dca": TrainingLoss(losses.DCALoss, "Liang et al., BMVC 2020", "cross_entropy + 1.0 * dca"),
    "mdca": TrainingLoss(losses.MDCALoss, "Hebbalaguppe et al., CVPR 2022", "focal(gamma=1.0) + 1.0 * mdca"),
    "kde": TrainingLoss(losses.KDELoss, "Popordanoska et al., NeurIPS 2022", "cross_entropy + 0.2 * kde"),
    "soft_ece": TrainingLoss(
        losses.SoftECELoss, "Karandikar et al., NeurIPS 2021", "cross_entropy + 1.0 * soft_ece"
    ),
    "charbonnier": TrainingLoss(losses.CharbonnierLoss, "SMART, Eq. 6", "cross_entropy + 1.0 * charbonnier"),
    "crl": TrainingLoss(
        losses.CRLLoss, "Moon et al., ICML 2020", "cross_entropy + 1.0 * crl", sizes=("n_samples",)
    ),
    "calfocal": TrainingLoss(losses.CalFocalLoss, "AdaFocal, Sec. 4", "calfocal"),
    "adafocal": TrainingLoss(losses.AdaFocalLoss, "AdaFocal, NeurIPS 2022", "adafocal"),
    "seca": TrainingLoss(losses.SECALoss, "SECA", "seca"),
    "selective_risk": TrainingLoss(losses.SelectiveRiskLoss, "selective risk (AU)", "selective_risk"),
    "aurc": TrainingLoss(losses.AURCLoss, "selective risk (AU), Sec. 3", "aurc"),
    "refinement": TrainingLoss(losses.RefinementLoss, "RefCal", "refinement", reads="embeddings"),
    "supervised_contrastive": TrainingLoss(
        losses.SupervisedContrastiveLoss,
        "Khosla et al., NeurIPS 2020",
        "supervised_contrastive",
        reads="embeddings",
    ),
}


def make_loss(text: str, *, n_classes: int | None = None, n_samples: int | None = None) -> Loss:
    """Make a loss from its name or from a sum such as ``"focal(gamma=3) + 0.5 * mdca"``.

    Args:
        text: What to make. A bare name means its recipe: ``"mmce"`` is cross-entropy with that term.
        n_classes: Number of classes, for the losses that keep something of each.
        n_samples: Number of training samples, for the losses that keep something of each.

    Example:
        >>> make_loss("mdca")
        FocalLoss(gamma=1.0) + MDCALoss()
    """
    sizes = {"n_classes": n_classes, "n_samples": n_samples}
    makers = {name: _maker(name, loss, sizes) for name, loss in LOSSES.items()}
    recipe = LOSSES[text.strip()].recipe if text.strip() in LOSSES else text
    return parse_loss(recipe, makers)


def _maker(name: str, loss: TrainingLoss, sizes: Mapping[str, int | None]) -> Callable[..., Loss]:
    def make(**options: Any) -> Loss:  # noqa: ANN401  # each loss has its own
        known = {size: sizes[size] for size in loss.sizes if size not in options}
        missing = [size for size, value in known.items() if value is None]
        if missing:
            raise InputError(f"loss: {name} needs {missing[0]}; pass it beside the name")
        return loss.module(**known, **options)

    return make
