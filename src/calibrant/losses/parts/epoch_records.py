"""What a loss with memory wrote down at the end of each epoch, saved and restored with its state."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class EpochRecords(nn.Module):
    """A list of named numbers per epoch; part of the ``state_dict`` of the loss that holds it.

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
        """Return all epochs as one table, which any format for tensors can hold."""
        return self._table.clone()

    def set_extra_state(self, state: Tensor) -> None:
        """Take the epochs of a saved table."""
        self._table = state.detach().double().cpu().clone()
