"""What the losses share as modules: options, weighted sums, and the hook that ends an epoch."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.losses.parts.batch import IGNORED, check_tensor
from calibrant.losses.parts.samples import Reduction, SampleOptions

# About an epoch of ImageNet in batches of 256: after this many batches an epoch should have ended.
_EPOCH = 5_000


class Loss(nn.Module):
    """A training loss of logits and labels; losses are added and scaled as in a formula.

    Example:
        >>> from calibrant.losses import FocalLoss, MDCALoss
        >>> FocalLoss(gamma=3.0) + 0.5 * MDCALoss()
        FocalLoss(gamma=3.0) + 0.5 * MDCALoss()
    """

    #: Keyword arguments that ``forward`` needs in addition to logits and labels, such as ``indices``.
    needs: ClassVar[tuple[str, ...]] = ()

    #: Whether ``update`` needs the validation set; if not, a loop need not predict it.
    validates: ClassVar[bool] = False

    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:
        """End an epoch; a training loop calls this once per epoch with the validation set.

        Losses without memory do nothing. Losses that learn from validation need both arguments.
        """

    def expect_updates(self) -> None:
        """Rely on a training loop that calls ``update`` itself, however long its epochs are."""
        for part in self.modules():
            if isinstance(part, Loss):
                part._unreminded = False

    def _remind(self, logits: Tensor) -> None:
        """Count a batch of training, and warn once if an epoch's worth of them passed without an update."""
        check_tensor(logits, "logits")
        if torch.compiler.is_compiling() or not (self._unreminded and self.training and logits.requires_grad):
            return
        self._batches += 1
        if self._was_updated() or self._batches < _EPOCH:
            return
        self._unreminded = False
        given = "update(logits, labels) with the validation set" if self.validates else "update()"
        warnings.warn(
            f"{self!r} has trained on {self._batches:,} batches without an update, so it is still in its "
            f"first epoch; call loss.{given} at the end of each epoch (if epochs are longer, all is well)",
            stacklevel=2,
        )

    def _was_updated(self) -> bool:
        return bool(self.history)

    # How many batches it has trained on without an update, and whether nobody was reminded of that yet.
    _batches = 0
    _unreminded = True

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """What the loss recorded at each ``update``, oldest first; empty for a loss without memory."""
        records = getattr(self, "records", None)
        return records.entries if isinstance(records, EpochRecords) else []

    def __add__(self, other: "Loss") -> "WeightedSum":
        if not isinstance(other, Loss):
            raise InputError(
                f"loss: expected a Calibrant loss to add, got {type(other).__name__}; "
                "add the values of other losses instead"
            )
        return WeightedSum(_terms(self) + _terms(other))

    def __mul__(self, factor: float) -> "WeightedSum":
        return WeightedSum([(float(factor) * weight, term) for weight, term in _terms(self)])

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


@dataclass(eq=False, repr=False)
class FunctionLoss(Loss):
    """A loss that calls a function with options; a subclass names the function and declares the options.

    An option is declared with its type, its meaning and its default::

        gamma: Annotated[float, "How fast confident samples fade out."] = 3.0
    """

    _: KW_ONLY
    ignore_index: Annotated[int, "Label of the samples to ignore."] = IGNORED

    #: The function form of the loss.
    function: ClassVar[Callable[..., Tensor]]

    #: The options that ``repr`` shows; if empty, all except those that many losses share.
    shown: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__init__()
        self._options = tuple(each.name for each in fields(self) if each.init)

    def _value(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return self.function(inputs, labels, **{name: getattr(self, name) for name in self._options})

    def extra_repr(self) -> str:
        """Return the options that distinguish this loss from others of its class."""
        common = SampleOptions.__annotations__
        names = self.shown or [name for name in self._options if name not in common]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class BatchLoss(FunctionLoss):
    """A loss with one value for the whole batch."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return self._value(logits, labels)


@dataclass(eq=False, repr=False)
class SampleLoss(FunctionLoss):
    """A loss with one value per sample."""

    _: KW_ONLY
    weight: Annotated[Tensor | None, "One weight per class; in some losses for integer labels only."] = None
    reduction: Annotated[Reduction, "'mean', 'sum' or 'none'."] = "mean"

    def __post_init__(self) -> None:
        weight = vars(self).pop("weight")
        super().__post_init__()
        self.register_buffer("weight", weight, persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return self._value(logits, labels)

    @property
    def shared(self) -> SampleOptions:
        """The options common to all losses with one value per sample."""
        return {"weight": self.weight, "ignore_index": self.ignore_index, "reduction": self.reduction}


del SampleLoss.weight  # the default of the class would hide the buffer of the same name


class EmbeddingLoss(FunctionLoss):
    """A loss that compares the embeddings of samples instead of reading their logits."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return self._value(embeddings, labels)


class EpochRecords(nn.Module):
    """Named numbers of each epoch; part of the ``state_dict`` of the loss that holds them as ``records``.

    Example:
        >>> records = EpochRecords({"loss": 1, "gap": 2})
        >>> records.add(loss=torch.tensor(0.5), gap=torch.tensor([0.25, -0.25]))
        >>> records.entries
        [{'loss': 0.5, 'gap': [0.25, -0.25]}]
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.sizes = dict(sizes)
        self._table = torch.empty(0, sum(self.sizes.values()), dtype=torch.float64)

    def add(self, **values: Tensor) -> None:
        """Append an epoch; every name of the record must be given."""
        row = [values[name].detach().double().cpu().reshape(size) for name, size in self.sizes.items()]
        self._table = torch.cat([self._table, torch.cat(row)[None]])

    @property
    def entries(self) -> list[Mapping[str, Any]]:
        """One mapping per epoch, oldest first: numbers by name, or lists of them."""
        parts = self._table.split(list(self.sizes.values()), dim=1)
        columns = [
            part.squeeze(1).tolist() if size == 1 else part.tolist()
            for part, size in zip(parts, self.sizes.values(), strict=True)
        ]
        return [dict(zip(self.sizes, row, strict=True)) for row in zip(*columns, strict=True)]

    def get_extra_state(self) -> Tensor:
        """Return all epochs as one table, which any tensor format can hold."""
        return self._table.clone()

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the epochs from a saved table."""
        self._table = state.detach().double().cpu().clone()


class WeightedSum(Loss):
    """A weighted sum of losses; made by ``a + b`` and ``0.5 * a``."""

    def __init__(self, terms: list[tuple[float, Loss]]) -> None:
        super().__init__()
        self.weights = tuple(weight for weight, _ in terms)
        self.terms = nn.ModuleList(term for _, term in terms)
        if len({isinstance(term, EmbeddingLoss) for _, term in terms}) > 1:
            raise InputError(
                f"loss: expected terms that all read logits or all read embeddings, got {self!r}; train with "
                "encoder.joint in a configuration, or call each loss yourself, one with logits and one with "
                "unit features, and add the values"
            )

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]  # the union of the terms' needs
        """Keyword arguments that at least one term needs."""
        return tuple(dict.fromkeys(name for _, term in _terms(self) for name in term.needs))

    @property
    def validates(self) -> bool:  # type: ignore[override]  # true if any term's is
        """Whether at least one term needs the validation set."""
        return any(term.validates for _, term in _terms(self))

    def forward(self, logits: Tensor, labels: Tensor, **extra: Any) -> Tensor:  # noqa: ANN401  # passed on unchanged
        """Return the weighted sum; each term gets the extra arguments that it needs."""
        values = [
            weight * term(logits, labels, **{name: extra[name] for name in term.needs if name in extra})
            for weight, term in _terms(self)
        ]
        total: Tensor = sum(values[1:], values[0])
        return total

    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:
        """End an epoch of every term."""
        for _, term in _terms(self):
            term.update(logits, labels)

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """What the terms recorded, in the order of the terms."""
        return [entry for _, term in _terms(self) for entry in term.history]

    def __repr__(self) -> str:
        return " + ".join(
            repr(term) if weight == 1 else f"{weight:g} * {term!r}" for weight, term in _terms(self)
        )


def _terms(loss: Loss) -> list[tuple[float, Loss]]:
    if isinstance(loss, WeightedSum):
        return [(w, t) for w, t in zip(loss.weights, loss.terms, strict=True) if isinstance(t, Loss)]
    return [(1.0, loss)]
