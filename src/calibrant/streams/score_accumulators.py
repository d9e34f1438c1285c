"""Accumulators of scores: means over the samples of a stream, equal to those of all samples at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibrant.inputs import ArrayLike, check_count
from calibrant.metrics.accuracy import top_k_error
from calibrant.metrics.proper import brier_score, negative_log_likelihood
from calibrant.streams.batches import read_probs
from calibrant.streams.totals import Accumulator, Reduction, add_pairs, as_pair


@dataclass(frozen=True)
class ProperScores:
    """Mean proper scores of ``n`` samples."""

    n: int
    negative_log_likelihood: float
    brier_score: float


class ProperScoreAccumulator(Accumulator):
    """Negative log-likelihood and Brier score over a stream.

    Example:
        >>> accumulator = ProperScoreAccumulator()
        >>> accumulator.update([[0.9, 0.1]], [0])
        >>> accumulator.update([[0.6, 0.4]], [1])
        >>> scores = accumulator.compute()
        >>> round(scores.negative_log_likelihood, 4), round(scores.brier_score, 4)
        (0.5108, 0.37)
    """

    settings = ()
    reductions: ClassVar[Mapping[str, Reduction]] = {
        "n": np.add,
        "nll_sum": add_pairs,
        "brier_sum": add_pairs,
    }

    def __init__(self) -> None:
        super().__init__({"nll_sum": as_pair(0.0), "brier_sum": as_pair(0.0)})

    def update(
        self,
        probs: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        *,
        logits: ArrayLike | None = None,
    ) -> None:
        """Read a batch of probabilities or logits with labels; only of logits is every NLL finite."""
        batch = read_probs(probs, labels, logits)
        if batch is None:
            return
        p, y = batch
        nll = negative_log_likelihood(p if logits is None else None, y, logits=logits)
        n, brier = len(p), brier_score(p, y)
        self._include({"n": np.array(n), "nll_sum": as_pair(n * nll), "brier_sum": as_pair(n * brier)})

    def compute(self) -> ProperScores:
        """Return the mean scores of all samples so far."""
        seen = self._seen()
        return ProperScores(self.n, float(seen["nll_sum"]) / self.n, float(seen["brier_sum"]) / self.n)


class TopKErrorAccumulator(Accumulator):
    """Share of the samples of a stream whose true class is not among the ``k`` most probable ones.

    Example:
        >>> accumulator = TopKErrorAccumulator(k=2)
        >>> accumulator.update([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]], [1, 2])
        >>> accumulator.compute()
        0.5
    """

    settings = ("k",)
    reductions: ClassVar[Mapping[str, Reduction]] = {"n": np.add, "errors": np.add}

    def __init__(self, *, k: int = 5) -> None:
        self.k = check_count(k, "k")
        super().__init__({"errors": np.array(0)})

    def update(
        self,
        probs: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        *,
        logits: ArrayLike | None = None,
    ) -> None:
        """Read a batch of probabilities or logits with labels."""
        batch = read_probs(probs, labels, logits)
        if batch is None:
            return
        n = len(batch[0])
        errors = round(top_k_error(*batch, k=self.k) * n)
        self._include({"n": np.array(n), "errors": np.array(errors)})

    def compute(self) -> float:
        """Return the top-k error of all samples so far."""
        return int(self._seen()["errors"]) / self.n
