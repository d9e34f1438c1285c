"""How far each logit lies below the largest one of its row: all that a temperature acts on."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# Entries handled at once: two blocks of them stay in the processor's cache, and calls are few.
_BLOCK_ENTRIES = 1 << 18


@dataclass(frozen=True, eq=False)
class Deficits:
    """Logits minus the largest of their row, computed block by block and never stored.

    Attributes:
        logits: The logits, of shape ``(n, k)``.
        top: The largest logit of each row, of shape ``(n, 1)``.
        label: Mean deficit of the labelled classes.
    """

    logits: Tensor
    top: Tensor
    label: float

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> "Deficits":
        """Take checked logits and labels."""
        top = logits.amax(dim=1, keepdim=True)
        met = logits.gather(1, labels[:, None]) - top
        return cls(logits, top, float(met.mean(dtype=torch.float64)))

    @cached_property
    def mean(self) -> float:
        """Mean deficit over all entries."""
        # Deficits, not logits, are summed: a common offset of a row would drown their differences.
        sums = [deficit.sum(dim=1).sum(dtype=torch.float64) for deficit in self._blocks()]
        return float(torch.stack(sums).sum()) / self.logits.numel()

    @property
    def has_optimum(self) -> bool:
        """Whether the likelihood is largest at some positive finite temperature."""
        return self.mean < self.label < 0

    def slope(self, log_beta: float) -> tuple[float, float]:
        """Return the slope in ``beta`` of the mean NLL of ``softmax(beta z)``, and its own in ``log(beta)``.

        The first is the deficit that the model expects minus the one that it meets; its derivative in
        ``beta`` is the variance that the model expects.
        """
        beta = math.exp(log_beta)
        total = torch.zeros(2, dtype=torch.float64, device=self.logits.device)
        for deficit, weight in self._weighted(beta):
            norm = weight.sum(dim=1).double()
            first = weight.mul_(deficit).sum(dim=1).double() / norm
            second = weight.mul_(deficit).sum(dim=1).double() / norm
            total += torch.stack([first.sum(), (second - first.square()).clamp(min=0).sum()])
        expected, variance = (total / len(self.logits)).tolist()
        return expected - self.label, beta * variance

    def confidence(self, beta: float) -> Tensor:
        """Return the largest probability of ``softmax(beta z)`` of each row, in float64."""
        sums = [weight.sum(dim=1).double() for _, weight in self._weighted(beta)]
        return torch.cat(sums).reciprocal_()

    def _weighted(self, beta: float) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield blocks of deficits and of ``exp(beta * deficit)``, overwritten by the next ones."""
        room = torch.empty_like(next(self._blocks()))
        for deficit in self._blocks():
            yield deficit, torch.mul(deficit, beta, out=room[: len(deficit)]).exp_()

    def _blocks(self) -> Iterator[Tensor]:
        """Yield blocks of deficits, each overwritten by the next one."""
        n, k = self.logits.shape
        rows = min(n, max(1, _BLOCK_ENTRIES // k))
        room = torch.empty((rows, k), dtype=self.logits.dtype, device=self.logits.device)
        for z, top in zip(self.logits.split(rows), self.top.split(rows), strict=True):
            yield torch.sub(z, top, out=room[: len(z)])
