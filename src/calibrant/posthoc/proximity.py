"""ProCal (Xiong et al., "Proximity-Informed Calibration for Deep Neural Networks", NeurIPS 2023)."""

from typing import Literal, Self, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import FitError, InputError
from calibrant.inputs import ArrayLike, check_count, check_features
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set, required_features
from calibrant.posthoc.fitting.confidence_map import (
    density_ratio,
    interpolate,
    mean_shift,
    shifted,
    unchanged,
)
from calibrant.posthoc.fitting.top_label import TopLabel, join_top, split_top

ProximityVariant: TypeAlias = Literal["density_ratio", "bin_mean_shift"]

_MOVES = {"density_ratio": interpolate, "bin_mean_shift": shifted}

# Squared distances below this share of the squared lengths are rounding errors in float32.
_SAME = 1e-6

# Distances held at once: 4 MB of them, which stay in the processor's cache.
_BLOCK_ENTRIES = 1 << 20


class ProximityCalibration(Calibrator):
    r"""Correct confidence by how common a sample looks; the predicted class never changes.

    Models tend to be more overconfident where data are sparse. The proximity of a sample is

    .. math:: D(x) = \exp\Bigl(-\frac1K \sum_{x' \in N_K(x)} \|h(x) - h(x')\|\Bigr) \in (0, 1],

    with the :math:`K` nearest penultimate features :math:`h(x')` of the fitting set, which the calibrator
    keeps; an exact copy of a sample, itself above all, is not its neighbour. Confidence and proximity
    together say how often the prediction is right; the other classes keep their proportions. Distances take
    time in proportion to the fitting set; an eager call holds 4 MB of them at once, an exported or compiled
    graph those of its whole batch.
    """

    preserves_accuracy = True
    needs_features = True
    options = ("variant", "n_neighbours", "normalize")

    variant: ProximityVariant
    n_neighbours: int
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
        self.register_buffer("references", references)
        for name, values in maps.items():
            self.register_buffer(name, values)

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        seed: int = 0,
        variant: ProximityVariant = "density_ratio",
        n_neighbours: int = 10,
        normalize: bool = True,
        n_proximity_bins: int = 5,
        n_confidence_bins: int = 10,
    ) -> Self:
        """Learn how often predictions of some confidence and proximity are right.

        If the labels of the fitting set are no more likely afterwards, the map that changes nothing is
        returned instead.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Penultimate activations of shape ``(n, d)``.
            seed: Not used: nothing here is random.
            variant: ``"density_ratio"`` compares the densities of right and wrong predictions over
                (confidence, proximity); ``"bin_mean_shift"`` moves the confidences of each cell of a
                two-dimensional grid of equal counts to the accuracy there.
            n_neighbours: Neighbours whose mean distance is taken; at most all other samples.
            normalize: Bring features to unit length first, so that distances do not depend on their scale.
            n_proximity_bins: For ``"bin_mean_shift"``: rows of the grid. Rows and columns are reduced
                alike when a cell would hold fewer than 20 samples.
            n_confidence_bins: For ``"bin_mean_shift"``: cells in each row.

        Raises:
            FitError: All predictions are right, or all are wrong, so there is nothing to tell apart.
        """
        z, y = check_fitting_set(logits, labels)
        h = check_features(required_features(features, cls.__name__), n=z.shape[0]).to(z.device)
        if variant not in get_args(ProximityVariant):
            raise InputError(f"variant: expected 'density_ratio' or 'bin_mean_shift', got {variant!r}")
        bins = (
            check_count(n_proximity_bins, "n_proximity_bins"),
            check_count(n_confidence_bins, "n_confidence_bins"),
        )
        correct = z.argmax(dim=1) == y
        if bool(correct.all()) or not bool(correct.any()):
            raise FitError(
                f"proximity calibration: all {len(z)} predictions are {'right' if correct[0] else 'wrong'}, "
                "so there is nothing to tell apart; fit on more held-out samples"
            )
        n_neighbours = min(check_count(n_neighbours, "n_neighbours"), len(z) - 1)
        references = _prepared(h, normalize=normalize)
        proximity = _proximity(references, references, n_neighbours).double()
        top = split_top(z.double())
        confidence = top.log_odds.sigmoid()
        if variant == "density_ratio":
            maps = density_ratio(confidence, proximity, correct)
        else:
            maps = mean_shift(confidence, proximity, correct, *bins)
        after = _with_confidence(top, _MOVES[variant](confidence, proximity, maps))
        gain = (after - torch.log_softmax(z.double(), dim=1)).gather(1, y[:, None]).mean()
        return cls(
            maps if gain > 0 else unchanged(maps),
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
        return _proximity(_prepared(features, normalize=self.normalize), self.references, self.n_neighbours)

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


def _prepared(features: Tensor, *, normalize: bool) -> Tensor:
    h = features.to(torch.float32)
    return F.normalize(h, dim=1) if normalize else h


def _proximity(h: Tensor, references: Tensor, n_neighbours: int) -> Tensor:
    # A graph has no loop over blocks of a batch whose size it does not know.
    if torch.compiler.is_compiling():
        return _block_proximity(h, references, n_neighbours)
    rows = max(1, _BLOCK_ENTRIES // len(references))
    return torch.cat([_block_proximity(block, references, n_neighbours) for block in h.split(rows)])


def _block_proximity(h: Tensor, references: Tensor, n_neighbours: int) -> Tensor:
    size = h.square().sum(dim=1, keepdim=True) + references.square().sum(dim=1)
    # Written out, because torch.cdist has no counterpart in ONNX. What differs from 0 by rounding only is a
    # copy, which goes to the farthest place there is.
    squared = size - 2 * h @ references.T
    squared = torch.where(squared <= _SAME * size, 2 * size, squared)
    nearest = squared.topk(n_neighbours, dim=1, largest=False, sorted=False).values
    return torch.exp(-nearest.clamp(min=1e-12).sqrt().mean(dim=1))
