"""What the numbers of a saved calibrator must be; each method declares its own, and loading checks them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.errors import FormatError
from calibrant.files import Allowed, at_least

# The size of a dimension: a number, a name, or a name plus a number, as in "b+1".
Size: TypeAlias = int | str
Shape: TypeAlias = tuple[Size, ...]

FINITE = Allowed("finite numbers", lambda x: bool(torch.isfinite(x).all()))
POSITIVE = Allowed("positive numbers", lambda x: bool(((x > 0) & (x < torch.inf)).all()))
NOT_NEGATIVE_OR_INFINITE = Allowed("numbers of at least 0, or infinity", lambda x: bool((x >= 0).all()))
NOT_NEGATIVE = Allowed("numbers of at least 0", lambda x: bool(((x >= 0) & (x < torch.inf)).all()))
PROBABILITIES = Allowed("numbers from 0 to 1", lambda x: bool(((x >= 0) & (x <= 1)).all()))
LOG_PROBABILITIES = Allowed(
    "logarithms of probabilities", lambda x: bool(((x <= 0) & (x > -torch.inf)).all())
)
SHARES = Allowed(
    "numbers of at least 0 with the sum 1",
    lambda x: bool((x >= 0).all()) and abs(float(x.double().sum()) - 1) < 1e-5,
)
#: Rows of numbers that never fall; shorter rows are filled up with infinity.
ASCENDING = Allowed(
    "numbers in ascending order",
    lambda x: bool(((x > -torch.inf) & ~x.isnan()).all()) and bool((x[..., 1:] >= x[..., :-1]).all()),
)
RISING = Allowed(
    "finite numbers that rise",
    lambda x: bool(torch.isfinite(x).all()) and bool((x[..., 1:] > x[..., :-1]).all()),
)
PLACES = Allowed("places, or -1 for none", lambda x: bool((x >= -1).all()))
ANY = Allowed("any", lambda _: True)

#: Rules of options.
AT_LEAST_1 = at_least(1)
POSITIVE_NUMBER = Allowed("a positive number", lambda value: value > 0)

_REAL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_KINDS: Mapping[str, tuple[tuple[torch.dtype, ...], str]] = {
    "real": (_REAL, "real numbers"),
    "flag": ((torch.bool,), "true or false"),
    "place": ((torch.int64,), "whole numbers"),
}


@dataclass(frozen=True)
class Numbers:
    """What one buffer of a calibrator must be.

    Attributes:
        shape: The size of each dimension. A name stands for the same size in all buffers of a calibrator:
            ``"k"`` is the number of classes, ``"m"`` the number of binary questions, and others are
            whatever the first buffer with them has. ``"b+1"`` is one more than ``"b"``.
        rule: What the values must be.
        kind: Real numbers, flags, or places in a list.
        also: Another shape that is allowed.
        only: An option and the value with which the calibrator has this buffer.
        optional: Whether some calibrators of the method do not have it.
    """

    shape: Shape
    rule: Allowed = FINITE
    kind: Literal["real", "flag", "place"] = "real"
    also: Shape | None = None
    only: tuple[str, str] | None = None
    optional: bool = False

    def check(self, name: str, values: Tensor, sizes: dict[str, int]) -> None:
        """Refuse values that cannot be those of the buffer.

        Args:
            name: The buffer, for error messages.
            values: Its values.
            sizes: Sizes of dimensions that are known by name, to which new ones are added.
        """
        types, words = _KINDS[self.kind]
        if values.dtype not in types:
            raise FormatError(f"{name}: expected {words}, got {str(values.dtype).removeprefix('torch.')}")
        shape = tuple(values.shape)
        if not (
            _fits(shape, self.shape, sizes) or (self.also is not None and _fits(shape, self.also, sizes))
        ):
            expected = ", ".join(_shown(size, sizes) for size in self.shape)
            raise FormatError(f"{name}: expected shape ({expected}), got shape {shape}")
        if not self.rule.allows(values):
            shown = values.flatten().tolist()
            got = f"{shown[0]}" if len(shown) == 1 else "others"
            raise FormatError(f"{name}: expected {self.rule.expected}, got {got}")

    def belongs_to(self, calibrator: object) -> bool:
        """Whether a calibrator with these options has the buffer, or may have it."""
        return self.only is None or getattr(calibrator, self.only[0]) == self.only[1]


def check_declared(
    declared: Mapping[str, Numbers], found: Mapping[str, Tensor], sizes: dict[str, int], prefix: str
) -> None:
    """Refuse buffers that are missing, that do not belong to a method, or that are not what it declares.

    Args:
        declared: What the method declares.
        found: The buffers by name.
        sizes: Sizes of dimensions that are known by name.
        prefix: What stands before the name of a buffer in error messages.
    """
    for name in found.keys() - declared.keys():
        raise FormatError(f"{prefix}{name}: expected no such tensor, got one")
    for name, numbers in declared.items():
        if name in found:
            if any(size in ("k", "m") and size not in sizes for size in numbers.shape):
                raise FormatError(f"{prefix}n_classes: expected a number of classes, got none")
            numbers.check(prefix + name, found[name], sizes)
        elif not numbers.optional:
            raise FormatError(f"{prefix}{name}: expected a tensor, got none")


def check_undeclared(found: Mapping[str, Tensor], prefix: str) -> None:
    """Refuse buffers of a method that declares nothing if they are no numbers."""
    for name, values in found.items():
        if values.dtype not in (torch.bool, torch.int64, *_REAL) or bool(values.isnan().any()):
            raise FormatError(f"{prefix}{name}: expected numbers, got others")


def declare(**numbers: Numbers) -> Mapping[str, Numbers]:
    """Return what the buffers of a method must be, by name, beside those that its base declares."""
    return MappingProxyType(numbers)


def one_number(rule: Allowed = FINITE) -> Numbers:
    """Return the declaration of a single number."""
    return Numbers((), rule)


def layers_of(n_layers: int, *, inputs: Size = "d", outputs: Size = 1) -> dict[str, Numbers]:
    """Return the declarations of the weights and biases of a network, ``weight_0``, ``bias_0`` and so on."""
    widths: list[Size] = [inputs, *(f"hidden_{number}" for number in range(n_layers - 1)), outputs]
    declared = {}
    for number in range(n_layers):
        declared[f"weight_{number}"] = Numbers((widths[number + 1], widths[number]))
        declared[f"bias_{number}"] = Numbers((widths[number + 1],))
    return declared


def _fits(shape: tuple[int, ...], declared: Shape, sizes: dict[str, int]) -> bool:
    """Whether a shape is the declared one; if so, sizes that were not known before are noted."""
    if len(shape) != len(declared):
        return False
    found = dict(sizes)
    for size, expected in zip(shape, declared, strict=True):
        if isinstance(expected, int):
            fits = size == expected
        else:
            name, more = _parsed(expected)
            fits = size > more - 1 and found.setdefault(name, size - more) == size - more
        if not fits:
            return False
    sizes.update(found)
    return True


def _shown(size: Size, sizes: Mapping[str, int]) -> str:
    """Return a size as a number if it is known, else as a letter."""
    if isinstance(size, int):
        return str(size)
    name, more = _parsed(size)
    return str(sizes[name] + more) if name in sizes else "any"


def _parsed(size: str) -> tuple[str, int]:
    match = re.fullmatch(r"(\w+)(?:\+(\d+))?", size)
    assert match is not None
    return match[1], int(match[2] or 0)
