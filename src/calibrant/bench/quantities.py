"""What the columns of benchmark tables are called, which way is better, and whether they are shares."""

from dataclasses import dataclass

from calibrant.metrics.measure import Better
from calibrant.metrics.names import MEASURES


@dataclass(frozen=True)
class Quantity:
    """A measured number by name.

    Attributes:
        title: Heading of its column.
        better: Which way is better.
        percent: Whether it is a share, shown in percent.
    """

    title: str
    better: Better
    percent: bool

    @property
    def heading(self) -> str:
        """The heading with its unit and an arrow to the better side."""
        arrow = {"lower": " ↓", "higher": " ↑", "neither": ""}[self.better]
        return f"{self.title}{' %' if self.percent else ''}{arrow}"

    def text(self, value: float, *, beside: float | None = None) -> str:
        """Return a value as it is shown, with as many digits as the one it stands beside."""
        if self.percent:
            return f"{100 * value:.2f}"
        size = abs(value if beside is None else beside)
        if 1e-15 < size < 0.001:
            return f"{value:.0e}"
        return f"{value:.3f}" if size < 100 else f"{value:.0f}"


_OTHERS = {
    "shifted_accuracy": Quantity("accuracy, shifted", "higher", True),
    "shifted_ece": Quantity("ECE, shifted", "lower", True),
    "ood_auroc": Quantity("OOD AUROC", "higher", True),
    "ood_fpr95": Quantity("OOD FPR95", "lower", True),
    "seconds_per_epoch": Quantity("s per epoch", "lower", False),
    "fit_seconds": Quantity("fit CPU s", "lower", False),
    "apply_seconds": Quantity("apply CPU s", "lower", False),
    "run_seconds": Quantity("CPU s", "lower", False),
    "phi_brier": Quantity("PHI, Brier", "higher", False),
    "phi_nll": Quantity("PHI, NLL", "higher", False),
    "ece_reduction": Quantity("ECE repaired", "higher", True),
    "ece_equal_mass_reduction": Quantity("AdaECE repaired", "higher", True),
    "explained": Quantity("variance explained", "higher", True),
    "violated": Quantity("violated", "neither", True),
    "fitted": Quantity("fitted", "neither", True),
    "nll_falls": Quantity("NLL falls", "neither", True),
    "probe_rises": Quantity("probe rises", "neither", True),
    "smce_rises": Quantity("smCE rises", "neither", True),
    "both": Quantity("both", "neither", True),
    "win_rate": Quantity("win rate", "higher", True),
    "elo": Quantity("Elo", "higher", False),
    "encoder_auroc_ovo": Quantity("AUROC ovo, encoder", "higher", True),
    "encoder_auroc_correct": Quantity("AUROC, encoder", "higher", True),
    "classifier_auroc_ovo": Quantity("AUROC ovo, head", "higher", True),
    "classifier_auroc_correct": Quantity("AUROC, head", "higher", True),
}


def quantity(name: str) -> Quantity:
    """Return what is known of a measured number; one that is not known is shown as it is.

    Example:
        >>> quantity("ece").heading
        'ECE % ↓'
    """
    if name in _OTHERS:
        return _OTHERS[name]
    if name in MEASURES:
        measure = MEASURES[name]
        return Quantity(measure.short, measure.better, measure.percent)
    return Quantity(name.replace("_", " "), "neither", False)
