"""The description of a measure, from which bootstrap, streams, tables and reports are derived."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import Tensor

from calibrant.bins import Bins
from calibrant.docstrings import Option, call, description, options_of, section, summary
from calibrant.metrics.accuracy import hits
from calibrant.metrics.counted import Weighted

Better: TypeAlias = Literal["lower", "higher", "neither"]
Reads: TypeAlias = Literal["outcomes", "probs", "logits"]
RankEstimate: TypeAlias = Literal[
    "equal_mass_error", "two_bin_error", "aurc", "excess_aurc", "augrc", "auroc_correctness"
]

# Arguments of measures that hold predictions and labels; the others are options.
_INPUTS = ("probs", "labels", "logits", "confidence", "correct", "weights", "units")


def column_heading(short: str, better: Better, *, percent: bool) -> str:
    """Return a short heading with its unit and an arrow towards better values."""
    arrow = {"lower": " ↓", "higher": " ↑", "neither": ""}[better]
    return f"{short}{' %' if percent else ''}{arrow}"


@dataclass(frozen=True)
class Measure:
    """A measure: its function, its headings, its inputs, and how it can be computed from summaries.

    The last five fields are optional. Each computes the measure from a summary of the samples: the bootstrap
    then resamples the summary instead of rows, and streams and torchmetrics accumulate it.

    Attributes:
        function: Takes its inputs (see ``reads``) by keyword, and ``options``; returns a number.
        title: Its name in a list with one measure per row.
        short: Its heading in a table with one measure per column.
        reads: Its inputs: ``"outcomes"`` (confidence and correct), ``"probs"``, or ``"logits"`` if available.
        reads_pairs: Whether the function also takes confidence and correct, for predictions without classes.
        better: Which direction is better.
        core: Whether it is shown by default.
        compared: Whether it is a column of the table that compares post-hoc methods.
        options: Keyword arguments of the function for this measure.
        takes_bins: Whether the function has an argument ``n_bins``.
        percent: Whether tables show it times 100.
        max_samples: For measures with quadratic cost: with more samples than this, the measure is computed
            only if it is named.
        min_classes: The smallest number of classes for which it is defined.
        max_classes: The largest one; None for any.
        takes_weights: Whether samples may have weights; not if it depends on the number of samples, and not
            only on shares of them.
        noise_floor: Whether a calibrated model has the value 0 with infinitely many samples, and more by
            chance with few, so that the interval must allow for it.
        smooth: Whether its resamples may move confidences to the means of 1,024 cells, which changes ends of
            intervals by less than a hundredth of the standard error.
        cross_fits: Whether it fits something to the samples in folds, so that it needs their ``units``, and
            its terms cannot be summed batch by batch.
        terms: Takes the arguments of ``function`` and returns one number per sample; the measure is their
            mean.
        of_bins: The measure as a function of the bins of the top-label confidence. It reduces the last
            dimension and preserves all others.
        of_class_bins: The measure as a function of bins with a leading dimension of classes.
        of_ranks: The estimate of a rank sketch that equals this measure.
        weighted: Takes the arguments of ``function`` and returns the measure as a function of how often each
            sample is counted, for a bootstrap without copies of rows; None if the options do not allow it.
    """

    function: Callable[..., float]
    title: str
    short: str
    reads: Reads = "outcomes"
    reads_pairs: bool = False
    better: Better = "lower"
    core: bool = False
    compared: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    takes_bins: bool = False
    percent: bool = True
    max_samples: int | None = None
    min_classes: int = 2
    max_classes: int | None = None
    takes_weights: bool = True
    noise_floor: bool = False
    smooth: bool = False
    cross_fits: bool = False
    terms: Callable[..., Tensor] | None = None
    of_bins: Callable[[Bins], Tensor] | None = None
    of_class_bins: Callable[[Bins], Tensor] | None = None
    of_ranks: RankEstimate | None = None
    weighted: Callable[..., Weighted | None] | None = None

    @property
    def of_pairs(self) -> bool:
        """Whether it can be computed from confidence and correct alone."""
        return self.reads == "outcomes" or self.reads_pairs

    @property
    def of_order(self) -> bool:
        """Whether only the order of the confidences matters, so that any score will do."""
        return self.terms is hits or self.of_ranks not in (None, "equal_mass_error", "two_bin_error")

    def lacks(self, k: int | None) -> str:
        """Return what predictions of ``k`` classes (None: confidences) lack for it; empty if nothing."""
        if not k:
            return "" if self.of_pairs else "needs class probabilities"
        if self.max_classes is not None and k > self.max_classes:
            return f"needs {self.max_classes} classes"
        return "" if k >= self.min_classes else f"needs at least {self.min_classes} classes"

    @property
    def equal_mass(self) -> bool:
        """Whether it reads bins of equal count of the confidence, some of which ties may leave empty."""
        if self.reads != "outcomes" or not self.takes_bins:
            return False
        parameter = inspect.signature(self.function).parameters.get("binning")
        default = "width" if parameter is None else parameter.default
        return bool(self.options.get("binning", default) == "mass")

    @property
    def heading(self) -> str:
        """The short heading with its unit and an arrow towards better values."""
        return column_heading(self.short, self.better, percent=self.percent)

    @property
    def meaning(self) -> str:
        """What it measures: the first line of the function's docstring."""
        return summary(self.function).removeprefix("Return ")

    @property
    def explanation(self) -> str:
        """Formula and description from the docstring of the function, as plain text."""
        return description(self.function)

    @property
    def references(self) -> str:
        """Papers that define it, from the docstring of the function; empty if there are none."""
        return section(self.function, "References")

    @property
    def option_details(self) -> tuple[Option, ...]:
        """The options of the function with the defaults of this measure and their meaning."""
        return options_of(self.function, given=self.options, leave_out=_INPUTS)

    @property
    def python(self) -> str:
        """How the function is called in Python."""
        inputs = ("logits=logits", "labels=labels") if self.reads == "logits" else ("probs", "labels")
        return call(self.function.__name__, inputs, self.options)

    def best(self, values: list[float]) -> float:
        """Return the best defined value; NaN if none is defined or neither direction is better."""
        defined = [value for value in values if value == value]
        if not defined or self.better == "neither":
            return float("nan")
        return min(defined) if self.better == "lower" else max(defined)

    def arguments(self, n_bins: int) -> dict[str, Any]:
        """Return the options of the function, with the number of bins if it takes one."""
        return dict(self.options) | ({"n_bins": n_bins} if self.takes_bins else {})
