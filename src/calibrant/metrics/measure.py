"""The description of a measure, from which everything that computes or shows measures is derived."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import Tensor

from calibrant.bins import Bins

Better: TypeAlias = Literal["lower", "higher", "neither"]
Reads: TypeAlias = Literal["outcomes", "probs", "logits"]
RankEstimate: TypeAlias = Literal["equal_mass_error", "aurc", "excess_aurc", "augrc", "auroc_correctness"]


@dataclass(frozen=True)
class Measure:
    """A measure: its function, its headings, what it reads, and how it can be computed from sums.

    The last four fields are optional. Each says how the measure follows from something smaller than the
    samples: the bootstrap then resamples that instead of rows, and streams and torchmetrics accumulate it.

    Attributes:
        function: Takes what it ``reads`` by keyword, and ``options``; returns a number.
        title: Its name in a list, one measure a row.
        short: Its heading where measures are columns.
        reads: ``"outcomes"`` (confidence and correct), ``"probs"``, or ``"logits"`` where there are any.
        better: Which direction is better.
        core: Whether it is shown by default.
        options: Keyword arguments that make the function this measure.
        takes_bins: Whether the function has an argument ``n_bins``.
        percent: Whether tables show it times 100.
        max_samples: For measures whose cost is quadratic in the samples: with more samples than this it is
            computed only if it is named.
        min_classes: The fewest classes for which it is defined.
        terms: Takes the arguments of ``function`` and returns one number per sample, of which the measure is
            the mean.
        of_bins: The measure as a function of the bins of the top label's confidence. It reads the last
            dimension and keeps all others.
        of_class_bins: The measure as a function of bins with a leading dimension of classes.
        of_ranks: The estimate of a rank sketch that is this measure.
    """

    function: Callable[..., float]
    title: str
    short: str
    reads: Reads = "outcomes"
    better: Better = "lower"
    core: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    takes_bins: bool = False
    percent: bool = True
    max_samples: int | None = None
    min_classes: int = 2
    terms: Callable[..., Tensor] | None = None
    of_bins: Callable[[Bins], Tensor] | None = None
    of_class_bins: Callable[[Bins], Tensor] | None = None
    of_ranks: RankEstimate | None = None

    @property
    def heading(self) -> str:
        """The short heading with its unit and an arrow towards better values."""
        arrow = {"lower": " ↓", "higher": " ↑", "neither": ""}[self.better]
        return f"{self.short}{' %' if self.percent else ''}{arrow}"

    def best(self, values: list[float]) -> float:
        """Return the best of the values that are defined; NaN if none is or neither direction is better."""
        defined = [value for value in values if value == value]
        if not defined or self.better == "neither":
            return float("nan")
        return min(defined) if self.better == "lower" else max(defined)

    def arguments(self, n_bins: int) -> dict[str, Any]:
        """Return the options of the function, with the number of bins if it takes one."""
        return dict(self.options) | ({"n_bins": n_bins} if self.takes_bins else {})
