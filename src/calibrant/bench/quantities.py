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


_QUANTITIES = {
    name: Quantity(measure.short, measure.better, measure.percent) for name, measure in MEASURES.items()
} | {
    "shifted_accuracy": Quantity("accuracy, shifted", "higher", percent=True),
    "shifted_ece": Quantity("ECE, shifted", "lower", percent=True),
    "ood_auroc": Quantity("OOD AUROC", "higher", percent=True),
    "ood_fpr95": Quantity("OOD FPR95", "lower", percent=True),
    "seconds_per_epoch": Quantity("s per epoch", "lower"),
    "fit_seconds": Quantity("fit CPU s", "lower"),
    "apply_seconds": Quantity("apply CPU s", "lower"),
    "run_seconds": Quantity("CPU s", "lower"),
    "phi_brier": Quantity("PHI, Brier", "higher"),
    "phi_nll": Quantity("PHI, NLL", "higher"),
    "ece_reduction": Quantity("ECE repaired", "higher", percent=True),
    "ece_equal_mass_reduction": Quantity("AdaECE repaired", "higher", percent=True),
    "explained": Quantity("variance explained", "higher", percent=True),
    "violated": Quantity("violated", "neither", percent=True),
    "fitted": Quantity("fitted", "neither", percent=True),
    "nll_falls": Quantity("NLL falls", "neither", percent=True),
    "probe_rises": Quantity("probe rises", "neither", percent=True),
    "smce_rises": Quantity("smCE rises", "neither", percent=True),
    "both": Quantity("both", "neither", percent=True),
    "win_rate": Quantity("win rate", "higher", percent=True),
    "elo": Quantity("Elo", "higher"),
    "encoder_auroc_ovo": Quantity("AUROC ovo, encoder", "higher", percent=True),
    "encoder_auroc_correct": Quantity("AUROC, encoder", "higher", percent=True),
    "classifier_auroc_ovo": Quantity("AUROC ovo, head", "higher", percent=True),
    "classifier_auroc_correct": Quantity("AUROC, head", "higher", percent=True),
}


def quantity(name: str) -> Quantity:
    """Return the quantity of this name; one that is not in the catalogue has its name as heading.

    Example:
        >>> quantity("ece").heading
        'ECE % ↓'
    """
    return _QUANTITIES.get(name, Quantity(name.replace("_", " ")))
