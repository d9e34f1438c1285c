"""Calibration in segments that nobody named: boosted trees on features, with the log-odds as the offset."""

from typing import Annotated, NamedTuple, Self, Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.files import Allowed
from calibrant.inputs import ArrayLike, check_count, check_features
from calibrant.outcomes import mean_of
from calibrant.posthoc.calibrator import Calibrator, required_features
from calibrant.posthoc.fitting.binary import class_log_odds, join_top, normalised, split_top
from calibrant.posthoc.fitting.boosted_trees import LEAVES, NODES, Round, grow_round
from calibrant.posthoc.fitting.stored import AT_LEAST_1, PLACES, POSITIVE, Numbers, declare
from calibrant.posthoc.fitting.weighing import error_of_mean
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.posthoc.names import method_named

_LIMITS = Allowed("numbers, or infinity", lambda x: not bool(x.isnan().any()))

# Rounds after the best one so far that may be no better, before cross-fitting ends.
_PATIENCE = 2
# The gain out of fold must be this many standard errors above 0; otherwise no segment is corrected.
_SURE = 1.5


class SegmentCalibration(Calibrator):
    r"""Find segments of the features in which confidence is wrong, and correct them; segments may overlap.

    .. math:: F_0 = s, \qquad F_{t+1} = \alpha_t\,\bigl(F_t + h_t(x, F_t)\bigr)

    for log-odds :math:`s` of a common calibrator. Each :math:`h_t` is a sum of small boosted trees that are
    grown on what :math:`F_t` leaves, so that a leaf is a segment of the features :math:`x` and of the
    confidence; :math:`\alpha_t` is refitted. The number of rounds is the one that is best out of fold, by
    unit where samples have units. If it is not better than no correction beyond chance, there are no rounds:
    where segments do not differ, the common calibrator stays as it is.

    With two classes, :math:`F` are the log-odds of class 1: that an answer is right. With more they are those
    of the predicted class, which then never changes. Features may be missing (NaN).

    Attributes:
        base: The common calibrator.
        n_features: The number of features.
    """

    needs_features = True
    masks = True
    options = ("n_features",)
    part_names = ("base",)

    stored = declare(
        inputs=Numbers(("r", "t", NODES), PLACES, "place"),
        limits=Numbers(("r", "t", NODES), _LIMITS),
        leaves=Numbers(("r", "t", LEAVES)),
        scales=Numbers(("r",), POSITIVE),
    )

    base: Calibrator
    n_features: Annotated[int, AT_LEAST_1]
    inputs: Tensor
    limits: Tensor
    leaves: Tensor
    scales: Tensor

    def __init__(self, base: Calibrator, rounds: list[Round], *, n_features: int) -> None:
        super().__init__(n_classes=base.n_classes)
        self.base = base
        self.n_features = n_features
        nothing = Round(
            torch.zeros(1, NODES, dtype=torch.int64),
            torch.full((1, NODES), torch.inf, dtype=torch.float64),
            torch.zeros(1, LEAVES, dtype=torch.float64),
            torch.tensor(1.0, dtype=torch.float64),
        )
        inputs, limits, leaves, scales = map(torch.stack, zip(*(rounds or [nothing]), strict=True))
        self.register_buffers(inputs=inputs, limits=limits, leaves=leaves, scales=scales)

    @property
    def missing_features(self) -> bool:
        """Whether NaN is allowed for a missing feature: yes."""
        return True

    @property
    def rounds(self) -> list[Round]:
        """The rounds of trees; one that adds nothing if nothing is corrected."""
        return [Round(*each) for each in zip(self.inputs, self.limits, self.leaves, self.scales, strict=True)]

    @property
    def n_rounds(self) -> int:
        """The number of rounds; 0 if nothing is corrected."""
        return len(self.scales) if bool(self.leaves.any()) else 0

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        method: str | None = None,
        max_rounds: int = 10,
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit a common method, and rounds of trees to what it leaves, as many as help out of fold.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            method: The method for all samples: by default Platt scaling for two classes, and temperature
                scaling for more.
            max_rounds: The most rounds that are tried.

        References:
            Tax et al., "MCGrad: Multicalibration at Web Scale", arXiv 2509.19884.
        """
        data = cls.data(logits, labels, **rows)
        given = required_features(data.features, cls.__name__)
        h = check_features(given, n=len(data), missing=True).to(data.logits.device)
        common = method_named(method or ("platt" if data.n_classes == 2 else "temperature"))
        most = check_count(max_rounds, "max_rounds", at_least=0)
        parts = []
        for fold in torch.unique(data.folds).tolist() if most else ():
            inside = (data.folds == fold).nonzero().squeeze(1)
            rest = data.without(fold)
            fitted = common.fit(rest)
            outside = (data.folds != fold).nonzero().squeeze(1)
            parts.append(_Part(_questioned(fitted, data, h, outside), _questioned(fitted, data, h, inside)))
        n_rounds = _best_rounds(parts, data, most) if len(parts) > 1 else 0
        base = common.fit(data)
        everything = _questioned(base, data, h, torch.arange(len(data), device=h.device))
        rounds: list[Round] = []
        for _ in range(n_rounds):
            rounds.append(everything.grown())
            everything = everything.after(rounds[-1])
        return cls(base, rounds, n_features=h.shape[1])

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        h = torch.as_tensor(required_features(features, type(self).__name__))
        if h.shape[1] != self.n_features:
            raise InputError(
                f"features: expected the {self.n_features} that SegmentCalibration was fitted on, got "
                f"{h.shape[1]}"
            )
        z: Tensor = self.base(logits, features)
        top = None if z.shape[1] == 2 else split_top(z)
        s = class_log_odds(z)[:, 0] if top is None else top.log_odds
        for each in self.rounds:
            s = each(s, h)
        return normalised(s[:, None]) if top is None else join_top(top, s)


class _Question(NamedTuple):
    """Whether each of some samples is of class 1, or predicted rightly, with log-odds so far."""

    log_odds: Tensor
    answers: Tensor
    features: Tensor
    weights: Tensor | None
    rows: Tensor

    def grown(self) -> Round:
        return grow_round(self.features, self.log_odds, self.answers, self.weights)

    def after(self, one: Round) -> "_Question":
        return self._replace(log_odds=one(self.log_odds, self.features))

    @property
    def losses(self) -> Tensor:
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        return loss(self.log_odds, self.answers, reduction="none")


class _Part(NamedTuple):
    """The samples outside a fold, on which rounds are grown, and those inside, on which they are judged."""

    outside: _Question
    inside: _Question


@torch.no_grad()
def _questioned(fitted: Calibrator, data: FittingSet, features: Tensor, rows: Tensor) -> _Question:
    z = fitted.predict_log_proba(data.logits[rows], features[rows]).double()
    w = None if data.weights is None else data.weights[rows]
    if data.n_classes == 2:
        return _Question(
            class_log_odds(z)[:, 0], data.labels[rows].double(), features[rows].double(), w, rows
        )
    right = z.argmax(dim=1) == data.labels[rows]
    return _Question(split_top(z).log_odds, right.double(), features[rows].double(), w, rows)


def _best_rounds(parts: list[_Part], data: FittingSet, most: int) -> int:
    """Return the number of rounds with the smallest loss out of fold; 0 if its gain may be chance."""

    def losses(each: list[_Part]) -> Tensor:
        every = data.logits.new_empty(len(data), dtype=torch.float64)
        for part in each:
            every[part.inside.rows] = part.inside.losses
        return every

    before = losses(parts)
    best, gains = 0, torch.zeros_like(before)
    for number in range(1, most + 1):
        rounds = [part.outside.grown() for part in parts]
        parts = [
            _Part(part.outside.after(one), part.inside.after(one))
            for part, one in zip(parts, rounds, strict=True)
        ]
        found = before - losses(parts)
        if float(mean_of(found, data.weights)) > float(mean_of(gains, data.weights)):
            best, gains = number, found
        elif number - best >= _PATIENCE:
            break
    surely = _SURE * float(error_of_mean(gains, data.weights, data.units)) if best else 0.0
    return best if float(mean_of(gains, data.weights)) > surely else 0
