"""What a model must reach before it ships: a measure, a direction and a bound."""

import math
import re
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias, get_args

from calibrant.errors import InputError, did_you_mean
from calibrant.inputs import check_choice
from calibrant.metrics.names import MEASURES

Operator: TypeAlias = Literal["<", "<=", ">", ">="]

_FORM = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*(\S+?)\s*(%?)\s*")
# Values that a measure can have, if not those from 0 to 1.
_RANGES = {
    "nll": (0.0, math.inf),
    "brier": (0.0, 2.0),
    "brier_calibration": (0.0, 2.0),
    "brier_refinement": (0.0, 2.0),
    "skce": (-math.inf, math.inf),
    "charbonnier": (0.0, math.inf),
}


@dataclass(frozen=True)
class Requirement:
    """A bound on a measure.

    Attributes:
        measure: Name from :data:`calibrant.metrics.names.MEASURES`.
        operator: ``"<"``, ``"<="``, ``">"`` or ``">="``.
        bound: A fraction for the measures that tables show in percent.

    Example:
        >>> Requirement("ece", "<", 0.05)
        Requirement(measure='ece', operator='<', bound=0.05)
    """

    measure: str
    operator: Operator
    bound: float

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            hint = did_you_mean(str(self.measure), MEASURES) or "; calibrant measures lists them"
            raise InputError(f"requirement: expected the name of a measure, got {self.measure!r}{hint}")
        check_choice(self.operator, "operator", get_args(Operator))
        low, high = _RANGES.get(self.measure, (0.0, 1.0))
        if not low <= self.bound <= high or not math.isfinite(self.bound):
            percent = f"; write {self.bound / 100:g} or '{self.bound:g} %'" if 1 < self.bound <= 100 else ""
            span = f"a number from {low:g} to {high:g}" if math.isfinite(high) else f"at least {low:g}"
            span = "a finite number" if math.isinf(low) else span
            raise InputError(
                f"requirement: expected {span} as the bound of {self.measure}, got {self.bound:g}"
                f"{percent if high <= 1 else ''}"
            )
        if self._is_certain(low, high):
            raise InputError(
                f"requirement: expected a bound that some values meet and others miss, got '{self}', where "
                f"{self.measure} is always from {low:g} to {high:g}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a requirement such as ``"ece < 0.05"`` or ``"accuracy >= 90 %"``.

        Example:
            >>> str(Requirement.parse("accuracy>=90 %"))
            'accuracy >= 0.9'
        """
        form = _FORM.fullmatch(text)
        try:
            bound = math.nan if form is None else float(form[3])
        except ValueError:
            bound = math.nan
        if form is None or math.isnan(bound):
            raise InputError(
                f"requirement: expected a measure, one of < <= > >= and a number, got {text!r}; write "
                "'ece < 0.05'"
            )
        # A division of 5 by 100 gives 0.05 exactly as it is typed; a product with 0.01 does not.
        return cls(form[1].lower(), _operator(form[2]), bound / 100 if form[4] else bound)

    def __str__(self) -> str:
        return f"{self.measure} {self.operator} {self.bound:g}"

    @property
    def is_upper(self) -> bool:
        """Whether the bound is an upper one."""
        return self.operator in ("<", "<=")

    def holds(self, value: float) -> bool:
        """Return whether a value satisfies the requirement; never if it is undefined."""
        return {
            "<": value < self.bound,
            "<=": value <= self.bound,
            ">": value > self.bound,
            ">=": value >= self.bound,
        }[self.operator]

    def _is_certain(self, low: float, high: float) -> bool:
        """Return whether every possible value satisfies the requirement, or none does."""
        never = {"<": low, ">": high}.get(self.operator)
        always = {"<=": high, ">=": low}.get(self.operator)
        return self.bound in (never, always)


def _operator(text: str) -> Operator:
    known: tuple[Operator, ...] = get_args(Operator)
    return check_choice(text, "operator", known)
