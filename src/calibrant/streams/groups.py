"""The measures of each group of a stream, as one value that workers fill and that can be merged."""

import dataclasses
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.streams.batch import StreamBatch
from calibrant.streams.measures import StreamEvaluation, StreamMeasures

# About so many numbers are gathered before rows of several groups are told apart.
_ENTRIES = 1 << 21
# Smaller batches wait for each other: the accumulators take about as long for a few rows as for this many.
_ENOUGH = 1 << 16
# So many samples of all groups wait to be sorted.
_WAITING = 1 << 20
# Cells of a sketch between 1/2 and 3/4: one sketch may take 2.6 MB, but of a thousand each takes 0.6 MB.
_FINE, _COARSE = 8192, 1024


class GroupedMeasures:
    """The measures of each group of a stream; batches that are small or mixed are gathered first.

    Args:
        n_bins: Number of bins of the binned measures.
        by: What groups the rows, as errors call it; none if all belong together.
        most: More groups than this are refused.
    """

    def __init__(self, *, n_bins: int = 15, by: str | None = None, most: int = 1000) -> None:
        self.n_bins, self.by, self.most = n_bins, by, most
        self.measures: dict[str, StreamMeasures] = {}
        self.waiting: list[StreamBatch] = []

    @property
    def n(self) -> int:
        """Number of samples so far."""
        return sum(map(len, self.waiting)) + sum(each.n for each in self.measures.values())

    def add(self, batch: StreamBatch) -> None:
        """Take a batch."""
        self.waiting.append(batch)
        rows = sum(len(each) for each in self.waiting)
        mixed = len({name for each in self.waiting for name in each.names}) > 1
        entries = rows * (batch.predictions.k or 1)
        if entries >= _ENTRIES or (rows >= _ENOUGH and not mixed):
            self.flush()

    def merge(self, other: "GroupedMeasures") -> None:
        """Add what another worker has seen; the other one stays as it is, but for what it gathers."""
        self.flush()
        other.flush()
        for name, measures in other.measures.items():
            self._of(name).merge(measures)

    def compute(self) -> StreamEvaluation:
        """Return the measures of all rows, with those of the groups in the order of their names."""
        self.flush()
        if self.by is None:
            return self.measures[""].compute()
        whole = self._new()
        for measures in self.measures.values():
            whole.merge(measures)
        groups = {name: self.measures[name].compute() for name in sorted(self.measures)}
        return dataclasses.replace(whole.compute(), groups=MappingProxyType(groups))

    def flush(self) -> None:
        """Give the batches that wait to the accumulators."""
        if not self.waiting:
            return
        form, said, truth = _joined(self.waiting)
        present = {name for batch in self.waiting for name in batch.names or ("",)}
        if len(present) == 1:
            self.waiting = []
            self._of(present.pop()).add(form, said, truth)
            return
        names, codes = self._codes()
        self.waiting = []
        # Numbers of 16 bits are sorted by counting, several times as fast.
        codes = codes.astype(np.min_scalar_type(len(names)))
        order = torch.from_numpy(np.argsort(codes, kind="stable"))
        said, truth = said.index_select(0, order), truth.index_select(0, order)
        ends = np.cumsum(np.bincount(codes, minlength=len(names))).tolist()
        for name, start, end in zip(names, [0, *ends[:-1]], ends, strict=True):
            self._of(name).add(form, said[start:end], truth[start:end])

    def _codes(self) -> tuple[list[str], npt.NDArray[np.integer]]:
        """Number the groups of all batches that wait."""
        numbers: dict[str, int] = {}
        codes = []
        for batch in self.waiting:
            own = np.array([numbers.setdefault(name, len(numbers)) for name in batch.names or ("",)])
            codes.append(own[np.zeros(len(batch), dtype=np.int64) if batch.codes is None else batch.codes])
        return list(numbers), np.concatenate(codes)

    def _of(self, name: str) -> StreamMeasures:
        if name not in self.measures:
            if len(self.measures) == self.most:
                raise InputError(
                    f"{self.by}: expected at most {self.most} groups, got more, such as {name!r}; "
                    "group by a column with fewer values"
                )
            self.measures[name] = self._new()
        measures = self.measures[name]
        measures.most_waiting = min(measures.most_waiting, _WAITING // len(self.measures))
        return measures

    def _new(self) -> StreamMeasures:
        return StreamMeasures(n_bins=self.n_bins, resolution=_FINE if self.by is None else _COARSE)


def _joined(batches: list[StreamBatch]) -> tuple[str, Tensor, Tensor]:
    """Return what was said in which form and what was true, of several batches."""
    first = batches[0].predictions
    form = next(name for name in ("logits", "probs", "confidence") if getattr(first, name) is not None)
    truth = "correct" if form == "confidence" else "labels"
    said, true = ([getattr(batch.predictions, name) for batch in batches] for name in (form, truth))
    if len(batches) == 1:
        return form, said[0], true[0]
    return form, torch.cat(said), torch.cat(true)
