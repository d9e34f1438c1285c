"""ProCal (Xiong et al., "Proximity-Informed Calibration for Deep Neural Networks", NeurIPS 2023)."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeAlias, Unpack, get_args

import torch
from torch import Tensor

from calibrant.errors import FitError
from calibrant.inputs import ArrayLike, check_choice, check_count, check_features, check_flag
from calibrant.outcomes import mean_of
from calibrant.posthoc.calibrator import Calibrator, required_features
from calibrant.posthoc.fitting.binary import TopLabel, join_top, split_top
from calibrant.posthoc.fitting.neighbours import nearest_distances, prepared
from calibrant.posthoc.fitting.stored import ASCENDING, AT_LEAST_1, PROBABILITIES, Numbers, declare
from calibrant.posthoc.fitting.weighing import quantiles, rows_of, size_of, spread_of
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads

ProximityVariant: TypeAlias = Literal["density_ratio", "bin_mean_shift"]

# Nodes of the table over confidence and over the other number; between them it is linear.
_NODES = (257, 129)

# Cells of a grid with fewer samples than this would learn noise.
_CELL = 20


_RATIO, _SHIFT = ("variant", "density_ratio"), ("variant", "bin_mean_shift")


class ProximityCalibration(Calibrator):
    r"""Correct confidence by how close a sample is to others; the predicted class never changes.

    Models tend to be more overconfident where data are sparse. The proximity of a sample is

    .. math:: D(x) = \exp\Bigl(-\frac1K \sum_{x' \in N_K(x)} \|h(x) - h(x')\|\Bigr) \in (0, 1],

    with the :math:`K` nearest penultimate features :math:`h(x')` of the fitting set, which the calibrator
    stores; a sample itself, or an exact copy of it, is not its neighbour. Confidence and proximity together
    give the probability of being right; the other classes keep their proportions. The time for distances
    grows with the fitting set; an eager call holds 4 MB of them at once, an exported or compiled graph those
    of its whole batch.
    """

    preserves_accuracy = True
    needs_features = True
    masks = True
    options = ("variant", "n_neighbours", "normalize")

    stored = declare(
        references=Numbers(("n+1", "d")),
        table=Numbers(("a+2", "b+2"), PROBABILITIES, only=_RATIO),
        span=Numbers((2,), ASCENDING, only=_RATIO),
        row_edges=Numbers(("r",), ASCENDING, only=_SHIFT),
        column_edges=Numbers(("r+1", "c"), ASCENDING, only=_SHIFT),
        shift=Numbers(("r+1", "c+1"), only=_SHIFT),
        limit=Numbers((), PROBABILITIES, only=_SHIFT),
    )

    variant: ProximityVariant
    n_neighbours: Annotated[int, AT_LEAST_1]
    normalize: bool
    references: Tensor

    def __init__(
        self,
        maps: dict[str, Tensor],
        references: Tensor,
        *,
        variant: ProximityVariant,
        n_neighbours: int,
        normalize: bool,
        n_classes: int | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes)
        self.variant, self.n_neighbours, self.normalize = variant, n_neighbours, normalize
        self.register_buffers(references=references, **maps)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        variant: ProximityVariant = "density_ratio",
        n_neighbours: int = 10,
        normalize: bool = True,
        n_proximity_bins: int = 5,
        n_confidence_bins: int = 10,
        fallback: bool = True,
        **rows: Unpack[Rows],
    ) -> Self:
        """Learn how often predictions are right, given their confidence and proximity.

        If the labels of the fitting set are no likelier afterwards, the calibrator changes nothing; the paper
        has no such rule (``fallback=False``).

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            variant: ``"density_ratio"`` compares the densities of right and wrong predictions over
                (confidence, proximity); ``"bin_mean_shift"`` moves the confidences of each cell of a
                two-dimensional grid of equal counts to the accuracy there.
            n_neighbours: Neighbours whose mean distance is taken; at most all other samples.
            normalize: Bring features to unit length first, so that distances do not depend on their scale.
            n_proximity_bins: For ``"bin_mean_shift"``: rows of the grid. Rows and columns are reduced
                alike when a cell would hold fewer than 20 samples.
            n_confidence_bins: For ``"bin_mean_shift"``: cells in each row.
            fallback: Whether a map that makes the labels of the fitting set no likelier is dropped.

        Raises:
            FitError: All predictions are right, or all are wrong.
        """
        data = cls.data(logits, labels, **rows)
        z, y, w = data.logits, data.labels, data.weights
        h = check_features(required_features(data.features, cls.__name__), n=len(data))
        check_choice(variant, "variant", get_args(ProximityVariant))
        bins = (
            check_count(n_proximity_bins, "n_proximity_bins"),
            check_count(n_confidence_bins, "n_confidence_bins"),
        )
        correct = z.argmax(dim=1) == y
        if bool(correct.all()) or not bool(correct.any()):
            raise FitError(
                f"proximity calibration: all {len(z)} predictions are {'right' if correct[0] else 'wrong'}, "
                "so right and wrong predictions cannot be compared; fit on more held-out samples"
            )
        n_neighbours = min(check_count(n_neighbours, "n_neighbours"), len(z) - 1)
        references = prepared(h, normalize=normalize)
        proximity = _proximity(references, references, n_neighbours).double()
        top = split_top(z.double())
        confidence = top.log_odds.sigmoid()
        if variant == "density_ratio":
            maps = density_ratio(confidence, proximity, correct, w)
        else:
            maps = mean_shift(confidence, proximity, correct, *bins, weights=w)
        after = _with_confidence(top, _MOVES[variant](confidence, proximity, maps))
        gain = mean_of((after - torch.log_softmax(z.double(), dim=1)).gather(1, y[:, None]).squeeze(1), w)
        return cls(
            unchanged(maps) if check_flag(fallback, "fallback") and gain <= 0 else maps,
            references,
            variant=variant,
            n_neighbours=n_neighbours,
            normalize=normalize,
            n_classes=z.shape[1],
        )

    @property
    def n_features(self) -> int:
        """Number of features that it was fitted on."""
        return self.references.shape[1]

    def proximity(self, features: Tensor) -> Tensor:
        """Return how close samples are to the fitting set, between 0 and 1, shape ``(n,)``."""
        return _proximity(prepared(features, normalize=self.normalize), self.references, self.n_neighbours)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        h = torch.as_tensor(required_features(features, type(self).__name__))
        top = split_top(logits)
        confidence = top.log_odds.sigmoid()
        proximity = self.proximity(h).to(confidence.dtype)
        maps = {name: buffer.to(confidence.dtype) for name, buffer in self.named_buffers()}
        return _with_confidence(top, _MOVES[self.variant](confidence, proximity, maps))


def _with_confidence(top: TopLabel, confidence: Tensor) -> Tensor:
    return join_top(top, torch.logit(confidence, eps=torch.finfo(confidence.dtype).eps))


def _proximity(h: Tensor, references: Tensor, n_neighbours: int) -> Tensor:
    return torch.exp(-nearest_distances(h, references, n_neighbours).mean(dim=1))


def density_ratio(
    confidence: Tensor, other: Tensor, correct: Tensor, weights: Tensor | None = None
) -> dict[str, Tensor]:
    r"""Compare the densities of right and wrong predictions, estimated with Gaussian kernels.

    .. math:: P(\text{right} \mid c, d) =
        \frac{n_1 f_1(c, d) + s c}{n_1 f_1(c, d) + n_0 f_0(c, d) + s}

    with widths :math:`1.06\,\sigma\,n_j^{-1/6}` (the normal reference rule in two dimensions) for each axis
    and outcome, and :math:`s` the weight of one right sample at its centre, so that confidence does not
    change where there is no data. The other number is clamped to the range of the fitting set. Samples with
    weights count as much as these.
    """
    span = torch.stack([other.amin(), other.amax()])
    nodes = (
        torch.linspace(0, 1, _NODES[0], dtype=torch.float64, device=confidence.device),
        torch.lerp(
            span[0], span[1], torch.linspace(0, 1, _NODES[1], dtype=torch.float64, device=other.device)
        ),
    )
    steps = (1 / (_NODES[0] - 1), max(float(span[1] - span[0]), 1e-9) / (_NODES[1] - 1))
    densities, peaks = [], []
    for chosen in (correct, ~correct):
        counts = rows_of(weights, chosen)
        kernels, widths = [], []
        for values, at, step in zip((confidence, other), nodes, steps, strict=True):
            width = max(_width(values, chosen, weights), step)  # no finer than the table can hold
            kernels.append(torch.exp(-(((at[:, None] - values[chosen]) / width).square()) / 2))
            widths.append(width)
        peaks.append(1 / math.prod(widths))
        first = kernels[0] if counts is None else kernels[0] * counts
        densities.append(first @ kernels[1].T * peaks[-1])
    table = (densities[0] + peaks[0] * nodes[0][:, None]) / (densities[0] + densities[1] + peaks[0])
    return {"table": table, "span": span}


def read_between(confidence: Tensor, other: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
    """Read the table between its nodes."""
    table, span = maps["table"], maps["span"]
    share = (other - span[0]) / (span[1] - span[0]).clamp(min=1e-9)
    row, below = _place(confidence, table.shape[0])
    column, left = _place(share.clamp(0, 1), table.shape[1])
    flat, first = table.flatten(), row * table.shape[1] + column
    upper = torch.lerp(flat[first], flat[first + 1], left)
    lower = torch.lerp(flat[first + table.shape[1]], flat[first + table.shape[1] + 1], left)
    return torch.lerp(upper, lower, below)


def mean_shift(
    confidence: Tensor,
    other: Tensor,
    correct: Tensor,
    n_rows: int,
    n_columns: int,
    *,
    weights: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the gap between accuracy and mean confidence in each cell of a grid of equal counts."""
    n = size_of(confidence, weights)
    shrink = min(1.0, math.sqrt(n / (_CELL * n_rows * n_columns)))
    n_rows, n_columns = max(1, int(n_rows * shrink)), max(1, int(n_columns * shrink))
    row_edges = _inner_edges(other, n_rows, weights)
    row = _index(other, row_edges)
    some = [row == r if bool((row == r).any()) else row >= 0 for r in range(n_rows)]
    edges = torch.stack([_inner_edges(confidence[r], n_columns, rows_of(weights, r)) for r in some])
    cell = row * n_columns + _index(confidence, edges[row])
    size = n_rows * n_columns
    surplus = correct.double() - confidence
    count = torch.bincount(cell, weights, minlength=size)
    total = torch.bincount(cell, surplus if weights is None else weights * surplus, minlength=size)
    shift = (total / torch.where(count > 0, count, 1)).view(n_rows, n_columns)
    limit = torch.tensor(1 / (2 * n), dtype=torch.float64, device=confidence.device)
    return {"row_edges": row_edges, "column_edges": edges, "shift": shift, "limit": limit}


def shifted(confidence: Tensor, other: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
    """Move each confidence by the shift of its cell.

    A shifted confidence is at least half a sample away from 0 and 1, unless it was closer before the shift.
    """
    row = _index(other, maps["row_edges"])
    column = _index(confidence, maps["column_edges"][row])
    shift = maps["shift"].flatten()[row * maps["shift"].shape[1] + column]
    lowest = torch.minimum(confidence, maps["limit"])
    highest = torch.maximum(confidence, 1 - maps["limit"])
    return torch.minimum(torch.maximum(confidence + shift, lowest), highest)


_MOVES = {"density_ratio": read_between, "bin_mean_shift": shifted}


def unchanged(maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a map of the same kind that changes nothing."""
    if "shift" in maps:
        return {**maps, "shift": torch.zeros_like(maps["shift"])}
    table = maps["table"]
    stated = torch.linspace(0, 1, len(table), dtype=table.dtype, device=table.device)
    return {**maps, "table": stated[:, None].repeat(1, table.shape[1])}


def _width(values: Tensor, chosen: Tensor, weights: Tensor | None) -> float:
    counts = rows_of(weights, chosen)
    # Few equal samples must not give certainty: at least a quarter of the spread of all.
    sigma = max(float(spread_of(values[chosen], counts)), float(spread_of(values, weights)) / 4)
    return 1.06 * sigma * math.pow(size_of(values[chosen], counts), -1 / 6)


def _place(share: Tensor, n_nodes: int) -> tuple[Tensor, Tensor]:
    """Return the node below each share of the grid, and the distance from it in steps between nodes."""
    at = share * (n_nodes - 1)
    node = at.floor().clamp(max=n_nodes - 2)
    return node.long(), at - node


def _inner_edges(values: Tensor, n_bins: int, weights: Tensor | None) -> Tensor:
    levels = torch.arange(1, n_bins, dtype=torch.float64, device=values.device) / n_bins
    return quantiles(values, levels, weights)


def _index(values: Tensor, inner_edges: Tensor) -> Tensor:
    return (values[:, None] > inner_edges).sum(dim=1)
