"""What the losses share as modules: sums with weights, and hooks that a training loop calls for all."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypedDict, Unpack

from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.losses.parts.batch import IGNORED, Reduction


class Loss(nn.Module):
    """A training loss of logits and labels; losses add up and scale as they do on paper.

    Example:
        >>> from calibrant.losses import FocalLoss, MDCALoss
        >>> FocalLoss(gamma=3.0) + 0.5 * MDCALoss()
        FocalLoss(gamma=3.0) + 0.5 * MDCALoss()
    """

    #: Keyword arguments that ``forward`` needs beside logits and labels, such as ``indices``.
    needs: ClassVar[tuple[str, ...]] = ()

    #: Whether ``update`` needs the validation set; a loop need not predict it otherwise.
    validates: ClassVar[bool] = False

    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Take note that an epoch has ended; a loop calls it once per epoch with the validation set.

        Losses without memory do nothing. Those that learn from validation need both arguments.
        """

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """What the loss recorded at each ``update``, oldest first; empty for a loss without memory."""
        return []

    def __add__(self, other: "Loss") -> "WeightedSum":
        return WeightedSum._joined(self, other)

    def __mul__(self, factor: float) -> "WeightedSum":
        return WeightedSum._scaled(self, float(factor))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


class SampleOptions(TypedDict, total=False):
    """Options of a loss that has one value per sample, as torch's cross-entropy has them.

    Attributes:
        weight: One weight per class.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
    """

    weight: Tensor | None
    ignore_index: int
    reduction: Reduction


class SampleLoss(Loss):
    """A loss with one value per sample; ``self.shared`` is what its function takes beside its own options."""

    weight: Tensor | None

    def __init__(self, **shared: Unpack[SampleOptions]) -> None:
        super().__init__()
        # A misspelt option of a subclass ends up here; it must not be lost.
        for name in shared.keys() - SampleOptions.__annotations__.keys():
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {name!r}")
        self.register_buffer("weight", shared.get("weight"), persistent=False)
        self.ignore_index = shared.get("ignore_index", IGNORED)
        self.reduction: Reduction = shared.get("reduction", "mean")

    @property
    def shared(self) -> SampleOptions:
        """The options common to all losses of this kind."""
        return {"weight": self.weight, "ignore_index": self.ignore_index, "reduction": self.reduction}


class WeightedSum(Loss):
    """Several losses at once, each with its weight; made by ``a + b`` and ``0.5 * a``."""

    def __init__(self, terms: list[tuple[float, Loss]]) -> None:
        super().__init__()
        self.weights = tuple(weight for weight, _ in terms)
        self.terms = nn.ModuleList(term for _, term in terms)

    @classmethod
    def _joined(cls, first: Loss, second: Loss) -> Self:
        if not isinstance(second, Loss):
            raise InputError(
                f"loss: expected a Calibrant loss to add, got {type(second).__name__}; "
                "add the values of foreign losses instead"
            )
        return cls(_terms(first) + _terms(second))

    @classmethod
    def _scaled(cls, loss: Loss, factor: float) -> Self:
        return cls([(factor * weight, term) for weight, term in _terms(loss)])

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]  # the union of the terms' needs
        """Keyword arguments that some term needs."""
        return tuple(dict.fromkeys(name for _, term in _terms(self) for name in term.needs))

    @property
    def validates(self) -> bool:  # type: ignore[override]  # true if any term's is
        """Whether some term needs the validation set."""
        return any(term.validates for _, term in _terms(self))

    def forward(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:  # noqa: ANN401  # handed on as it is
        """Return the weighted sum; each term is handed the extra arguments that it needs."""
        values = [
            weight * term(logits, labels, **{name: extra[name] for name in term.needs if name in extra})
            for weight, term in _terms(self)
        ]
        total: Tensor = sum(values[1:], values[0])
        return total

    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Tell every term that an epoch has ended."""
        for _, term in _terms(self):
            term.update(logits, labels)

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """What the terms recorded, one after the other."""
        return [entry for _, term in _terms(self) for entry in term.history]

    def __repr__(self) -> str:
        return " + ".join(
            repr(term) if weight == 1 else f"{weight:g} * {term!r}" for weight, term in _terms(self)
        )


def _terms(loss: Loss) -> list[tuple[float, Loss]]:
    if isinstance(loss, WeightedSum):
        return [(w, t) for w, t in zip(loss.weights, loss.terms, strict=True) if isinstance(t, Loss)]
    return [(1.0, loss)]
