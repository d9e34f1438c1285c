"""All measures that a stream can give, as one bundle of accumulators that can be merged and sent."""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from calibrant.bins import Bins
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics.names import MEASURES
from calibrant.outcomes import Outcomes
from calibrant.streams.accumulators import ClasswiseAccumulator, OutcomeAccumulator
from calibrant.streams.row_group import LeftOut
from calibrant.streams.score_accumulators import ProperScoreAccumulator, TopKErrorAccumulator
from calibrant.streams.sketch import RankSketch
from calibrant.streams.sketch_bounds import Bounded
from calibrant.streams.sums import TOP, ClassSums, sum_logits, sum_probs
from calibrant.streams.totals import Accumulator, as_pair

_BINNED: Mapping[str, Callable[[Bins], Any]] = {
    "accuracy": lambda bins: int(bins.correct_sum.sum()) / bins.n,
    "mean_confidence": lambda bins: float(bins.confidence_sum.sum()) / bins.n,
    "ece": Bins.expected_gap,
    "mce": Bins.largest_gap,
    "rmsce": Bins.root_mean_square_gap,
    "ace": Bins.average_gap,
    "overconfidence": Bins.overconfident_part,
    "underconfidence": Bins.underconfident_part,
}
_RANKED = {
    "ece_equal_mass": "equal_mass_error",
    "aurc": "aurc",
    "auroc_correct": "auroc_correctness",
    "excess_aurc": "excess_aurc",
    "augrc": "augrc",
}
#: Measures that a stream gives, by their names in the registry.
STREAMED = frozenset({*_BINNED, *_RANKED, "nll", "brier", "classwise_ece", "top_5_error"})


@dataclass(frozen=True, eq=False)
class StreamEvaluation:
    """How honest the confidence in a stream is, in fractions of one.

    Attributes:
        n: Number of samples.
        k: Number of classes; none when only confidences were known.
        metrics: The measures by name. One that these data leave undefined is NaN.
        bounds: Of measures that depend on the order of all confidences, where the exact value is sure to be.
            All other measures are exact.
        bins: Confidence and accuracy in bins of equal width, for the reliability diagram.
        groups: The same for each group, where the stream was grouped.
        left_out: Files and row groups that were bad and left out.
    """

    n: int
    k: int | None
    metrics: Mapping[str, float]
    bounds: Mapping[str, Bounded]
    bins: Bins
    groups: Mapping[str, "StreamEvaluation"] = field(default_factory=lambda: MappingProxyType({}))
    left_out: tuple[LeftOut, ...] = ()


class StreamMeasures:
    """Accumulators of everything that can be measured in one pass and constant memory.

    Args:
        n_bins: Number of bins of the binned measures.
        resolution: Resolution of the :class:`~calibrant.streams.sketch.RankSketch`.

    Attributes:
        most_waiting: So many samples are sorted at once; before that they wait, in five to nine bytes each.

    Example:
        >>> left, right = StreamMeasures(n_bins=10), StreamMeasures(n_bins=10)
        >>> left.update(Predictions(probs=[[0.9, 0.1]], labels=[0]))
        >>> right.update(Predictions(probs=[[0.6, 0.4]], labels=[1]))
        >>> left.merge(right)
        >>> round(left.compute().metrics["ece"], 6), left.compute().bounds["auroc_correct"].low
        (0.35, 1.0)
    """

    def __init__(self, *, n_bins: int = 15, resolution: int = 8192) -> None:
        self.outcomes = OutcomeAccumulator(n_bins=n_bins)
        self.ranks = RankSketch(resolution=resolution)
        self.scores = ProperScoreAccumulator()
        self.classes = ClasswiseAccumulator(n_bins=n_bins)
        self.top = TopKErrorAccumulator(k=TOP)
        self.most_waiting = 1 << 19
        self._waiting: list[Outcomes] = []

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return self.__dict__

    @property
    def n(self) -> int:
        """Number of samples so far."""
        return self.outcomes.n + sum(map(len, self._waiting))

    @property
    def k(self) -> int | None:
        """Number of classes; none of pairs, and as long as there are no samples."""
        return self.classes.n_classes

    def update(self, predictions: Predictions) -> None:
        """Read a batch of predictions with labels, or of confidences with hits."""
        if predictions.confidence is not None and predictions.correct is not None:
            self.add("confidence", predictions.confidence, predictions.correct)
            return
        form = "probs" if predictions.logits is None else "logits"
        said = predictions.logits if predictions.probs is None else predictions.probs
        if predictions.labels is None or said is None:
            raise InputError("labels: expected the true class of each sample, got none")
        self.add(form, said, predictions.labels)

    def add(self, form: str, said: Tensor, truth: Tensor) -> None:
        """Read a batch that has been checked before; ``form`` says what it holds, as in ``Predictions``."""
        k = None if form == "confidence" else said.shape[1]
        self._check_classes(k)
        said, truth = said.cpu(), truth.cpu()
        said = said if said.dtype == torch.float64 else said.float()
        if form == "confidence":
            # What waits must not keep alive the larger batch that it is a part of.
            outcomes = Outcomes(said.clone(), truth.clone())
        else:
            read = sum_probs if form == "probs" else sum_logits
            outcomes, sums = read(said, truth, self.outcomes.n_bins)
            self._include(sums)
        self._waiting.append(outcomes)
        # A sketch is added to as a whole, so that many samples at once cost less.
        if sum(map(len, self._waiting)) >= self.most_waiting:
            self._settle()

    def merge(self, other: Self) -> None:
        """Add what another bundle with the same settings has seen; the other one stays as it is."""
        if other.n == 0:
            return
        self._check_classes(other.k)
        for name, accumulator in self._parts().items():
            accumulator.merge(other._parts()[name])

    def compute(self) -> StreamEvaluation:
        """Return the measures of all samples so far."""
        self._settle()
        bins = self.outcomes.compute()
        ranks = self.ranks.compute(n_bins=self.outcomes.n_bins)
        bounds: dict[str, Bounded] = {name: getattr(ranks, part) for name, part in _RANKED.items()}
        values = {name: float(measure(bins)) for name, measure in _BINNED.items()}
        values |= {name: bounded.value for name, bounded in bounds.items()}
        if self.k is not None:
            scores = self.scores.compute()
            values["nll"], values["brier"] = scores.negative_log_likelihood, scores.brier_score
            values["classwise_ece"] = float(self.classes.compute().expected_gap().mean())
        if self.top.n:
            values["top_5_error"] = self.top.compute()
        ordered = {name: values[name] for name in MEASURES if name in values}
        return StreamEvaluation(self.n, self.k, MappingProxyType(ordered), MappingProxyType(bounds), bins)

    def state(self) -> str:
        """Return everything as JSON text, small where few cells are filled, for another process or a file."""
        return json.dumps({name: _to_json(part.state()) for name, part in self._parts().items()})

    @classmethod
    def from_state(cls, state: str) -> Self:
        """Return the bundle whose ``state`` this was."""
        try:
            told = {name: _from_json(part) for name, part in json.loads(state).items()}
            new = cls(n_bins=told["outcomes"]["n_bins"], resolution=told["ranks"]["resolution"])
            for name, part in new._parts().items():
                setattr(new, name, part.from_state(told[name]))
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise InputError(
                f"state: expected that of StreamMeasures, got something else ({error})"
            ) from None
        return new

    def _parts(self) -> dict[str, Accumulator]:
        self._settle()
        return {
            "outcomes": self.outcomes,
            "ranks": self.ranks,
            "scores": self.scores,
            "classes": self.classes,
            "top": self.top,
        }

    def _settle(self) -> None:
        """Give the outcomes that wait to their accumulators; both want them sorted."""
        if self._waiting:
            confidence = torch.cat([each.confidence for each in self._waiting])
            correct = torch.cat([each.correct for each in self._waiting])
            self._waiting = []
            ordered = Outcomes(confidence, correct).sorted()
            self.outcomes.add_sorted(ordered)
            self.ranks.add_sorted(ordered)

    def _check_classes(self, k: int | None) -> None:
        if self.n and self.k != k:
            before, now = ("pairs" if each is None else f"{each} classes" for each in (self.k, k))
            raise InputError(f"predictions: expected {before} as before, got {now}; measure them apart")

    def _include(self, sums: ClassSums) -> None:
        n = np.array(sums.n)
        self.scores.merge(
            ProperScoreAccumulator.from_state(
                {"n": n, "nll_sum": as_pair(sums.nll), "brier_sum": as_pair(sums.brier)}
            )
        )
        bins = {
            "count": sums.count,
            "confidence_sum": as_pair(sums.confidence),
            "correct_sum": sums.correct,
        }
        settings = {"n_classes": len(sums.count), "n_bins": self.classes.n_bins}
        self.classes.merge(ClasswiseAccumulator.from_state({**settings, "n": n, **bins}))
        if sums.top_errors is not None:
            errors = {"k": TOP, "n": n, "errors": np.array(sums.top_errors)}
            self.top.merge(TopKErrorAccumulator.from_state(errors))


def _to_json(state: Mapping[str, int | Tensor]) -> dict[str, Any]:
    """Write tensors as text, exactly: JSON has no infinity, and digits would take several times the room."""
    return {name: value if isinstance(value, int) else _encode(value) for name, value in state.items()}


def _encode(tensor: Tensor) -> dict[str, Any]:
    array = tensor.numpy()
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<")))
    text = base64.b64encode(array.tobytes()).decode("ascii")
    return {"type": array.dtype.str, "shape": list(tensor.shape), "data": text}


def _from_json(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, int) else _decode(value) for name, value in state.items()}


def _decode(told: Mapping[str, Any]) -> Tensor:
    flat = np.frombuffer(base64.b64decode(told["data"]), dtype=told["type"])
    return torch.from_numpy(flat.astype(flat.dtype.newbyteorder("=")).reshape(told["shape"]).copy())
