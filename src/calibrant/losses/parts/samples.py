"""Losses with one value per sample: their common options, and how the values become one number."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypedDict, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import at_least_float32
from calibrant.losses.parts.batch import (
    FAR_BELOW,
    IGNORED,
    Rows,
    check_batch,
    is_readable,
    masks_ignored,
    out_of_range,
    rows,
    two_classes,
)
from calibrant.losses.parts.global_batch import global_sum, world_size
from calibrant.losses.parts.known_gradient import Definition, Shortcut, with_known_gradient

Reduction: TypeAlias = Literal["mean", "sum", "none"]
_Function = TypeVar("_Function", bound=Callable[..., Tensor])


class SampleOptions(TypedDict, total=False):
    """Options of a loss with one value per sample, with the meaning they have in torch's cross-entropy."""

    weight: Tensor | None
    ignore_index: int
    reduction: Reduction


@dataclass(frozen=True, eq=False)
class Samples:
    """A batch of logits and labels, with the options that say how its values are weighted and reduced.

    One logit per sample becomes two classes, so losses read ``logits`` and ``labels`` from here.
    """

    logits: Tensor
    labels: Tensor
    weight: Tensor | None = None
    ignore_index: int = IGNORED
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        logits, labels = two_classes(self.logits, self.labels, ignore_index=self.ignore_index)
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "labels", labels)
        if self.weight is not None and self.weight.shape != self.logits.shape[1:2]:
            raise InputError(
                f"weight: expected one number per class, shape {tuple(self.logits.shape[1:2])}, "
                f"got shape {tuple(self.weight.shape)}"
            )

    @property
    def scores(self) -> Tensor:
        """The logits in at least single precision."""
        return at_least_float32(self.logits)

    @property
    def soft(self) -> bool:
        """Whether the labels are distributions over the classes rather than class numbers."""
        logits, labels = self.logits, self.labels
        floating = labels.is_floating_point() and logits.is_floating_point()
        return floating and labels.shape == logits.shape and logits.ndim > 1

    def refuse_weight(self) -> None:
        """Refuse class weights for a loss that has no use for them with soft labels."""
        if self.weight is not None:
            raise InputError("weight: expected none with soft labels, got one; weight the samples instead")

    def nll(self) -> Tensor:
        """Return ``-log p_y`` of each sample, in the shape of the labels; ignored samples have 0.

        This is torch's fused cross-entropy: a loss that depends only on the probability of the true class is
        a function of these ``n`` numbers and costs little more than cross-entropy.
        """
        check_batch(self.logits, self.labels)
        try:
            return F.cross_entropy(self.scores, self.labels, reduction="none", ignore_index=self.ignore_index)
        except IndexError:
            raise out_of_range(self.labels, self.logits.shape[1], self.ignore_index) from None

    def true_class(self) -> tuple[Tensor, Tensor | None]:
        """Return the index of each true class, with dimension 1 of size one, and which samples are used.

        Ignored samples point to class 0. On the CPU, where reading the labels does not stall the device,
        labels out of range are refused, and the second value is None if no sample is ignored. Elsewhere torch
        stops at the first use of a wrong label, as it does in cross-entropy.
        """
        check_batch(self.logits, self.labels)
        labels, k = self.labels, self.logits.shape[1]
        readable = is_readable(labels)
        if readable:
            low, high = (int(bound) for bound in torch.aminmax(labels))
            if low >= 0 and high < k and not low <= self.ignore_index <= high:
                return labels.unsqueeze(1), None
        kept = labels != self.ignore_index
        index = torch.where(kept, labels, 0)
        if readable and not bool(((index >= 0) & (index < k)).all()):
            raise out_of_range(labels, k, self.ignore_index)
        return index.unsqueeze(1), kept

    def rows(self) -> Rows:
        """Return the samples that are not ignored; while torch compiles, all of them and a mask."""
        return rows(self.logits, self.labels, ignore_index=self.ignore_index)

    def reduce(self, values: Tensor, *, all_count: bool = False) -> Tensor:
        """Reduce values as torch's cross-entropy does; the mean of no values is 0 instead of NaN.

        Args:
            values: Loss of each sample, in the shape of the labels; 0 where the label is ignored.
            all_count: Whether the batch is known to have samples, none of them ignored.
        """
        if all_count and self.weight is None and self.reduction == "mean":
            return values.mean()
        kept = self.labels != self.ignore_index
        if self.weight is None:
            return self._reduced(values, kept.sum().clamp_min(1))
        share = self.weight.to(values.dtype)[torch.where(kept, self.labels, 0)] * kept
        total = share.sum()
        return self._reduced(values * share, torch.where(total > 0, total, 1))

    def reduce_soft(self, values: Tensor) -> Tensor:
        """Reduce values of samples with soft labels, which cannot be ignored."""
        return self._reduced(values, max(values.numel(), 1))

    def _reduced(self, values: Tensor, total: Tensor | int) -> Tensor:
        if self.reduction == "mean":
            return values.sum() / total
        if self.reduction == "sum":
            return values.sum()
        if self.reduction == "none":
            return values
        raise InputError(f"reduction: expected 'mean', 'sum' or 'none', got {self.reduction!r}")

    def reduce_known(
        self,
        kept: Tensor | None,
        *,
        definition: Definition,
        shortcut: Shortcut,
        scores: Tensor | None = None,
    ) -> Tensor:
        """Reduce values with a gradient in closed form, by default of the logits of this batch."""
        z = self.scores if scores is None else scores
        values = with_known_gradient(z, kept, definition=definition, shortcut=shortcut)
        return self.reduce(values, all_count=kept is None)

    def reduce_of_nll(self, value: Callable[[Tensor], Tensor]) -> Tensor:
        """Reduce a function of the cross-entropy ``-log p`` of the true class, or of all with soft labels."""
        if not self.soft:
            return self.reduce(value(self.nll()))
        self.refuse_weight()
        nll = (-F.log_softmax(self.scores, dim=1)).clamp_max(FAR_BELOW)
        return self.reduce_soft((self.labels * value(nll)).sum(dim=1))

    def reduce_rows(self, values: Tensor) -> Tensor:
        """Reduce one value per row of :meth:`rows`; ``"mean"`` is the mean over the global batch.

        A loss whose values depend on the global batch needs this: with a local mean, shards of unequal size
        would count unequally.
        """
        processes = world_size()
        labels = self.labels
        simple = self.reduction == "mean" and self.weight is None and processes == 1
        if simple and not masks_ignored() and 0 < labels.numel() == values.numel():
            return values.mean()  # no sample is ignored: the common case, in one step
        kept = labels != self.ignore_index
        if values.numel() == labels.numel():
            values = torch.where(kept, values.view(labels.shape), 0)
        else:
            values = values.new_zeros(labels.shape).masked_scatter(kept, values)
        if self.reduction != "mean" or processes == 1:
            return self.reduce(values)
        summed = replace(self, reduction="sum")
        with torch.no_grad():
            share = global_sum(summed.reduce(kept.to(values.dtype)))
        return summed.reduce(values) * processes / torch.where(share > 0, share, 1)


def takes_sample_options(function: _Function) -> _Function:
    """Show the options of :class:`SampleOptions` in the signature of a function.

    Example:
        >>> @takes_sample_options
        ... def x_loss(logits, labels, *, gamma=1.0, **shared): ...
        >>> list(inspect.signature(x_loss).parameters)
        ['logits', 'labels', 'gamma', 'weight', 'ignore_index', 'reduction']
    """
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    options = inspect.signature(Samples).parameters
    shared = [
        options[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in SampleOptions.__annotations__
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*own, *shared])
    return function
