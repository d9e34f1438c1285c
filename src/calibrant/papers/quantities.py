"""The columns of benchmark tables: every measure, and further quantities such as times and win rates."""

from dataclasses import dataclass

from calibrant.metrics.measure import Better, column_heading
from calibrant.metrics.names import MEASURES


@dataclass(frozen=True)
class Quantity:
    """A column of numbers.

    Attributes:
        short: Its heading.
        better: Which direction is better.
        percent: Whether tables show it times 100.
    """

    short: str
    better: Better = "neither"
    percent: bool = False

    @property
    def heading(self) -> str:
        """The heading with its unit and an arrow towards better values."""
        return column_heading(self.short, self.better, percent=self.percent)

    def text(self, value: float, *, beside: float | None = None) -> str:
        """Return a value as text, with the number of digits of the value ``beside`` it."""
        if self.percent:
            return f"{100 * value:.2f}"
        size = abs(value if beside is None else beside)
        if 1e-15 < size < 0.001:
            return f"{value:.0e}"
        return f"{value:.3f}" if size < 100 else f"{value:.0f}"


def _of_measure(name: str, note: str = "") -> Quantity:
    """Return the quantity of a measure, with a note in its heading."""
    measure = MEASURES[name]
    return Quantity(measure.short + note, measure.better, measure.percent)


def _change(heading: str, name: str, better: Better = "neither", *, percent: bool = True) -> Quantity:
    """Return a quantity about a measure; its heading has the measure in the place of ``{}``."""
    return Quantity(heading.format(MEASURES[name].short), better, percent)


_QUANTITIES = {name: _of_measure(name) for name in MEASURES} | {
    "shifted_accuracy": _of_measure("accuracy", ", shifted"),
    "shifted_ece": _of_measure("ece", ", shifted"),
    "shifted_classwise_ece": _of_measure("classwise_ece", ", shifted"),
    "shifted_adaptive_ece": _of_measure("adaptive_ece", ", shifted"),
    "shifted_smece": _of_measure("smece", ", shifted"),
    "shifted_auroc_ovo": _of_measure("auroc_ovo", ", shifted"),
    "log_cost": Quantity("log of CPU time over that of cross-entropy", "lower"),
    "train_accuracy": _of_measure("accuracy", ", training"),
    "overconfidence": Quantity("confidence - accuracy", percent=True),
    "group_ece": _of_measure("ece", " within groups"),
    "ood_auroc": Quantity("OOD AUROC", "higher", percent=True),
    "ood_fpr95": Quantity("OOD FPR95", "lower", percent=True),
    "ood_auroc_entropy": Quantity("OOD AUROC by entropy", "higher", percent=True),
    "ood_fpr95_entropy": Quantity("OOD FPR95 by entropy", "lower", percent=True),
    "shifted_ood_auroc": Quantity("OOD AUROC, shifted", "higher", percent=True),
    "shifted_ood_fpr95": Quantity("OOD FPR95, shifted", "lower", percent=True),
    "shifted_ood_auroc_entropy": Quantity("OOD AUROC by entropy, shifted", "higher", percent=True),
    "shifted_ood_fpr95_entropy": Quantity("OOD FPR95 by entropy, shifted", "lower", percent=True),
    "seconds_per_epoch": Quantity("s per epoch", "lower"),
    # Values of papers/training_values.py; directions are those that the papers claim.
    "temperature": Quantity("temperature"),
    "train_entropy": Quantity("entropy, training", "higher"),
    "mean_train_entropy": Quantity("entropy, training, mean of epochs", "higher"),
    "train_kl": Quantity("KL from the class, training", "lower"),
    "mean_train_kl": Quantity("KL from the class, training, mean of epochs", "lower"),
    "train_cosine": Quantity("cosine to the class, training", "higher"),
    "mean_train_cosine": Quantity("cosine to the class, training, mean of epochs", "higher"),
    "val_bin_gap": _of_measure("ece_equal_mass", ", validation"),
    "mean_val_bin_gap": _of_measure("ece_equal_mass", ", validation, mean of epochs"),
    "train_bin_confidence": Quantity("confidence in bins, training", "lower", percent=True),
    "val_bin_confidence": Quantity("confidence in bins, validation", "lower", percent=True),
    "bin_correspondence": Quantity("r of training and validation bins", "higher"),
    "gamma_lowest_bin": Quantity("gamma, lowest bin"),
    "gamma_highest_bin": Quantity("gamma, highest bin"),
    "gamma_difference": Quantity("gamma, lowest minus highest bin", "higher"),
    "gamma_smallest": Quantity("smallest gamma", "higher"),
    "gamma_largest": Quantity("largest gamma"),
    "gamma_at_limit": Quantity("bins at the largest gamma", percent=True),
    "gamma_inverse": Quantity("bins with inverse focal loss", percent=True),
    # Values of papers/smart_margins.py.
    "overconfident_by": Quantity("confidence minus accuracy", "lower", percent=True),
    "underconfident_by": Quantity("accuracy minus confidence", "lower", percent=True),
    "width": Quantity("width of the temperatures", "lower"),
    "observed_width": Quantity("width of the temperatures, observed", "lower"),
    "fit_seconds": Quantity("fit CPU s", "lower"),
    "apply_seconds": Quantity("apply CPU s", "lower"),
    "run_seconds": Quantity("CPU s", "lower"),
    "phi_brier": _change("PHI, {}", "brier", "higher", percent=False),
    "phi_nll": _change("PHI, {}", "nll", "higher", percent=False),
    "ece_reduction": _change("{} repaired", "ece", "higher"),
    "ece_equal_mass_reduction": _change("{} repaired", "ece_equal_mass", "higher"),
    "explained": Quantity("variance explained", "higher", percent=True),
    "pearson": Quantity("Pearson r", "higher"),
    "spearman": Quantity("Spearman r", "higher"),
    "violated": Quantity("violated", "neither", percent=True),
    "fitted": Quantity("fitted", "neither", percent=True),
    "nll_falls": _change("{} falls", "nll"),
    "probe_rises": Quantity("probe rises", "neither", percent=True),
    "smce_rises": _change("{} rises", "smce"),
    "both": Quantity("both", "neither", percent=True),
    "win_rate": Quantity("win rate", "higher", percent=True),
    "elo": Quantity("Elo", "higher"),
    "encoder_auroc_ovo": _of_measure("auroc_ovo", ", encoder"),
    "encoder_auroc_correct": _of_measure("auroc_correct", ", encoder"),
    "classifier_auroc_ovo": _of_measure("auroc_ovo", ", head"),
    "classifier_auroc_correct": _of_measure("auroc_correct", ", head"),
}


def quantity(name: str) -> Quantity:
    """Return the quantity of this name; one that is not in the catalogue has its name as heading.

    Example:
        >>> quantity("ece").heading
        'ECE % ↓'
    """
    return _QUANTITIES.get(name, Quantity(name.replace("_", " ")))
