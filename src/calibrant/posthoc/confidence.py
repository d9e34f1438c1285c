"""Repair of a stated confidence: for a black box that gives only (confidence, correct)."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeGuard, Unpack, cast

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import (
    ArrayLike,
    at_least_float32,
    check_confidence,
    check_correct,
    check_score,
    same_kind,
    to_tensor,
)
from calibrant.outcomes import LEAST_DOUBT, log_odds, log_odds_of
from calibrant.posthoc.calibrator import Calibrator, GroupsLike, groups_of_one
from calibrant.posthoc.fitting.stored import RISING, Numbers, declare
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.posthoc.names import method_for_pairs


class ConfidenceCalibrator(Calibrator):
    r"""Replace a stated confidence by how often such answers are right.

    Whether an answer is right is a question with two classes, wrong and right, and the log-odds of the
    confidence are its logits. So every method for two classes repairs confidences too: this calibrator holds
    the fitted one, ``base``, and cuts log-odds off where the fitting set ends.

    Confidences of 0 and 1 are legal, but their log-odds are infinite. They are placed half a step beyond the
    nearest other confidence of the fitting set: if 0.99 is the largest, 1 counts as 0.995, and so does
    everything between. The same confidence always gets the same answer.

    Attributes:
        base: The calibrator of the two classes.
        ends: The smallest and the largest log-odds.
    """

    options: ClassVar[tuple[str, ...]] = ("needs_features",)
    features_are = "the signals of the fit, in a file columns after the first of confidence='NAME,NAME'"

    stored = declare(ends=Numbers((2,), RISING))
    part_names = ("base",)

    base: Calibrator
    ends: Tensor

    def __init__(self, base: Calibrator, ends: Tensor) -> None:
        super().__init__(n_classes=2)
        self.base = base
        self.needs_features = base.needs_features
        self.register_buffers(ends=ends)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        method: str = "pool",
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit a method to the log-odds of confidences; :meth:`fit_pairs` takes the confidences themselves.

        Args:
            logits: Log-odds of being right, of shape ``(n,)`` or, with those of being wrong, ``(n, 2)``.
            labels: 1 where the answer was right, else 0.
            method: A method for confidences (``calibrant methods --pairs``), with options if wanted;
                ``"pool"`` mixes those that are compared by default.
        """
        data = cls.data(logits, labels, **rows)
        if data.n_classes != 2:
            raise InputError(f"logits: expected two classes, wrong and right, got {data.n_classes}")
        ends = ends_of(data.logits)
        base = method_for_pairs(method).fit(data.with_logits(within(data.logits, ends)))
        return cls(base, ends)

    @classmethod
    def fit_pairs(
        cls,
        confidence: ArrayLike,
        correct: ArrayLike,
        *,
        method: str = "pool",
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit a method to stated confidences and whether each answer was right.

        Args:
            confidence: Stated probabilities of being right, between 0 and 1, of shape ``(n,)``.
            correct: Whether each answer was right, of shape ``(n,)``.
            method: As for :meth:`fit`.
            **rows: As for :meth:`fit`.

        Example:
            >>> confidence, correct = [0.9, 1.0] * 50, [True, False, True, True] * 25
            >>> honest = ConfidenceCalibrator.fit_pairs(confidence, correct, method="isotonic")
            >>> [round(each, 2) for each in honest.predict_confidence([0.9, 0.95, 1.0])]
            [0.75, 0.75, 0.75]
            >>> round(honest(0.9), 2)
            0.75
        """
        c = check_confidence(confidence)
        right = check_correct(correct, n=len(c)).to(c.device)
        return cls.fit(log_odds(c), right.long(), method=method, **rows)

    @property
    def n_parameters(self) -> int:
        """How many numbers the base has learned."""
        return self.base.n_parameters

    @property
    def group_names(self) -> tuple[str, ...] | None:
        """The groups that have a map of their own; None if there is one map for all."""
        return self.base.group_names

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns that make these groups, if there are several."""
        return self.base.group_columns

    def forward(self, logits: Tensor, features: Tensor | None = None, groups: Tensor | None = None) -> Tensor:
        """Return log-probabilities of being wrong and right, shape ``(n, 2)``."""
        cut: Tensor = within(logits, self.ends)
        mapped: Tensor = self.base(cut, features) if groups is None else self.base(cut, features, groups)
        return mapped

    def predict_confidence(
        self, confidence: ArrayLike, features: ArrayLike | None = None, groups: GroupsLike | None = None
    ) -> ArrayLike:
        """Return repaired confidences of shape ``(n,)`` in the caller's kind of array, or one number for one.

        ``calibrator(0.9)`` does the same for one number.

        Args:
            confidence: Stated probabilities of being right, of shape ``(n,)``, or one of them.
            features: Signals beside the confidence, if the calibrator was fitted with them.
            groups: The group of each answer, if there is a map for each group; unknown ones get the common
                map.
        """
        if _is_number(confidence):
            if features is None and groups is None and 0 <= confidence <= 1 and not self.needs_features:
                return self._of_one(float(confidence))
            if isinstance(groups, (str, Mapping)):
                groups = groups_of_one(cast("str | Mapping[str, str]", groups))
            return cast("list[float]", self.predict_confidence([confidence], features, groups))[0]
        log_probs = self.predict_log_proba(self._logits_of(confidence), features, groups)
        return same_kind(log_probs[:, 1].exp(), like=confidence)

    def predict_one(
        self,
        row: ArrayLike | float,
        features: ArrayLike | None = None,
        group: str | Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401  # as of other calibrators
        """Return the repaired confidence of one answer, as ``calibrator(0.9)`` does."""
        if not _is_number(row):
            raise InputError(
                f"row: expected one number, got {type(row).__name__}; predict_confidence takes several"
            )
        h = None if features is None else to_tensor(features, "features")[None]
        return self.predict_confidence(row, h, groups_of_one(group))

    def _of_one(self, confidence: float) -> float:
        """Repair one number between 0 and 1 as all others, without what looks for errors in arrays."""
        with torch.inference_mode():
            scores = torch.tensor([[0.0, log_odds_of(confidence)]], dtype=torch.float64)
            return math.exp(float(self(scores)[0, 1]))

    @staticmethod
    def _logits_of(confidence: ArrayLike) -> Tensor:
        return log_odds(check_confidence(confidence))

    def __call__(self, *inputs: Any, **others: Any) -> Any:  # noqa: ANN401  # as of every module
        """Return the repaired confidence of one number; tensors of log-odds are passed to :meth:`forward`."""
        if inputs and _is_number(inputs[0]):
            return self.predict_confidence(*inputs, **others)
        return super().__call__(*inputs, **others)


class ScoreCalibrator(ConfidenceCalibrator):
    r"""Turn a score that only ranks into how often such samples come true.

    The score may have any scale. Its place :math:`(s - m) / w`, for the median :math:`m` and a width
    :math:`w` for which the quartiles have the log-odds of 25 and 75 %, is what the base maps.

    Attributes:
        base: The calibrator of the two classes.
        ends: The smallest and the largest place.
        place: The median and the width.
        falling: Whether high scores mean that the outcome is less likely.
    """

    options = ("needs_features", "falling")
    stored = declare(ends=Numbers((2,), RISING), place=Numbers((2,)))

    place: Tensor

    def __init__(self, base: Calibrator, ends: Tensor, place: Tensor, *, falling: bool = False) -> None:
        super().__init__(base, ends)
        self.falling = falling
        self.register_buffers(place=place)

    @classmethod
    def fit_scores(
        cls, score: ArrayLike, outcome: ArrayLike, *, method: str = "pool", **rows: Unpack[Rows]
    ) -> Self:
        """Fit a method to scores and whether each sample came true.

        Args:
            score: Finite numbers of shape ``(n,)``.
            outcome: Whether each came true, of shape ``(n,)``.
            method: As for :meth:`fit`.
            **rows: As for :meth:`fit`.

        Example:
            >>> score, outcome = [-3.0, 0.0, 5.0, 20.0] * 25, [0, 0, 1, 1, 0, 1, 0, 1] * 12 + [0, 1, 1, 1]
            >>> honest = ScoreCalibrator.fit_scores(score, outcome, method="isotonic")
            >>> [round(each, 2) for each in honest.predict_confidence([-3.0, 20.0])]
            [0.02, 0.98]
        """
        s = check_score(score).double()
        right = check_correct(outcome, n=len(s), name="outcome").to(s.device)
        place = place_of(s)
        base = ConfidenceCalibrator.fit(placed(s, place), right.long(), method=method, **rows)
        return cls(base.base, base.ends, place)

    def forward(self, logits: Tensor, features: Tensor | None = None, groups: Tensor | None = None) -> Tensor:
        """Return log-probabilities of wrong and right; the difference of the logits is the score."""
        z = at_least_float32(logits)
        t = placed(z[:, 1] - z[:, 0], self.place)
        return super().forward(torch.stack([-t / 2, t / 2], dim=1), features, groups)

    def _of_one(self, confidence: float) -> float:
        return cast("list[float]", self.predict_confidence([confidence]))[0]

    @staticmethod
    def _logits_of(confidence: ArrayLike) -> Tensor:
        return check_score(confidence).double()


def place_of(score: Tensor) -> Tensor:
    """Return the median of scores and the width that gives their quartiles the log-odds of 25 and 75 %."""
    s = score.double().sort().values
    low, middle, high = (s[int(share * (len(s) - 1))] for share in (0.25, 0.5, 0.75))
    width = (high - low) / (2 * math.log(3))
    if not width > 0:
        width = s.std(correction=0)
    if not width > 0:
        raise InputError(
            f"score: expected at least two different scores, got {float(s[0]):.6g} in all {len(s):,} rows"
        )
    return torch.stack([middle, width])


def placed(score: Tensor, place: Tensor) -> Tensor:
    """Return the place of scores, as log-odds."""
    middle, width = place.to(score).unbind()
    return (score - middle) / width


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float, np.floating, np.integer))


def ends_of(logits: Tensor) -> Tensor:
    """Return the log-odds at which a fitting set of shape ``(n, 2)`` ends, half a step beyond its last ones.

    A confidence of exactly 0 or 1 is no step.
    """
    c = torch.sigmoid((logits[:, 1] - logits[:, 0]).double())
    inner = c[(c > 2 * LEAST_DOUBT) & (c < 1 - 2 * LEAST_DOUBT)]
    if not len(inner):
        inner = c.new_tensor([0.5])
    low, high = torch.aminmax(inner)
    return log_odds(torch.stack([low / 2, (1 + high) / 2]))


def within(logits: Tensor, ends: Tensor) -> Tensor:
    """Return logits of wrong and right, shape ``(n, 2)``, whose log-odds do not go beyond both ends."""
    z = at_least_float32(logits)
    half = torch.clamp(z.diff(dim=1), *ends.to(z).unbind()) / 2
    return torch.cat([-half, half], dim=1)
