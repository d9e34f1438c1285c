"""Ask a cheap model first: a rule that keeps an answer if it is sure enough, or passes the question on."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.decisions.rule import Decisions, Rule, calibrated_log_probs, check_one_label
from calibrant.decisions.thresholds import TIE, log_odds_of_answers
from calibrant.errors import FormatError, InputError
from calibrant.evaluation.paired import places_of
from calibrant.files import Allowed, at_least
from calibrant.inputs import Floats
from calibrant.posthoc.fitting.stored import Numbers, declare
from calibrant.results import FrozenDict

#: The last stage of a cascade that ends with a person.
PERSON = "person"

# Log-odds of a model that was not asked yet; only a model that is not used has a higher threshold.
_NOT_ASKED = 1e6

_SHARE = Allowed("a number between 0 and 1", lambda value: 0 < value < 1)


class CascadeRule(Rule):
    """Ask one model after the other; the first whose confidence reaches its threshold answers.

    The last stage, a model or a person, answers all that is left. Confidences are compared as log-odds, as by
    :class:`~calibrant.decisions.ThresholdRule`.

    Args:
        thresholds: The lowest confidence at which each stage but the last answers; 0 answers everything that
            reaches it, None is a model that is not asked at all.
        models: Names of the stages in the order in which they are asked; ``"person"`` is a person.
        cost: What asking each stage costs.
        risk: The guaranteed share of wrong answers among all answers of the cascade.
        level: The probability with which this is guaranteed.

    Example:
        >>> rule = CascadeRule([0.8], models=["cheap", "dear"], cost=[1, 20], risk=0.05, level=0.95)
        >>> rule.decide(Predictions(confidence=[0.9, 0.7]), Predictions(confidence=[0.5, 0.5])).columns
        {'model': ['cheap', 'dear'], 'answer': [True, True], 'confidence': [0.9, 0.5], 'cost': [1.0, 21.0]}
        >>> rule.decide(Predictions(confidence=[0.9, 0.7])).columns["answer"]
        [True, False]
    """

    options = ("risk", "level", "models", "cost")
    stored = declare(
        thresholds=Numbers(("d",), Allowed("log-odds or infinity", lambda x: not bool(x.isnan().any())))
    )
    outputs: ClassVar[tuple[str, ...]] = ("stage",)

    risk: Annotated[float, _SHARE]
    level: Annotated[float, _SHARE]
    models: tuple[str, ...]
    cost: tuple[Annotated[float, at_least(0)], ...]
    thresholds: Tensor

    def __init__(
        self,
        thresholds: Sequence[float | None],
        *,
        models: Sequence[str],
        cost: Sequence[float],
        risk: float,
        level: float,
    ) -> None:
        super().__init__()
        if not len(models) == len(cost) == len(thresholds) + 1:
            raise InputError(
                f"thresholds: expected one for each of {len(models)} stages but the last, and as many costs "
                f"as stages, got {len(thresholds)} and {len(cost)} costs"
            )
        for each in thresholds:
            if each is not None and not 0 <= each < 1:
                raise InputError(f"thresholds: expected confidences from 0 to below 1 or None, got {each}")
        self.risk, self.level = risk, level
        self.models, self.cost = tuple(models), tuple(map(float, cost))
        found = [np.inf if each is None else float(scipy.special.logit(each)) for each in thresholds]
        self.register_buffer("thresholds", torch.tensor(found, dtype=torch.float64))

    @property
    def has_person(self) -> bool:
        """Whether the last stage is a person."""
        return self.models[-1] == PERSON

    def forward(self, log_probs: Tensor) -> tuple[Tensor, ...]:
        """Return the place of the stage that answers, shape ``(n,)``.

        Args:
            log_probs: The log-odds that the answer of each stage but the last is right, shape ``(n, d)``.
        """
        answers = log_probs >= self.thresholds.to(log_probs) - TIE / 8
        last = torch.ones_like(answers[:, :1])
        return (torch.cat([answers, last], dim=1).to(torch.int32).argmax(dim=1),)

    def columns(self, outputs: Mapping[str, Tensor]) -> dict[str, list[Any]]:
        """Return the name of the stage that answers, and what the cascade costs until then."""
        stage = outputs["stage"].cpu().numpy()
        spent = np.array(self.cost)
        spent[:-1][self.thresholds.cpu().numpy() == np.inf] = 0.0
        return {
            "model": [self.models[each] for each in stage.tolist()],
            "cost": np.cumsum(spent)[stage].tolist(),
        }

    @torch.no_grad()
    def decide(self, predictions: Predictions, *others: Predictions) -> Decisions:
        """Decide which model answers each question of the first; labels are not read.

        Questions are matched by id if there are ids, else by row. Later models may be left out, or lack
        questions: ``answer`` is then false, and ``model`` names the stage to ask next. It is always false for
        a person.

        Args:
            predictions: Confidences of the first model, for all questions.
            others: Those of the other models, in their order.
        """
        given = (predictions, *others)
        n_models = len(self.models) - self.has_person
        if len(given) > n_models:
            raise InputError(
                f"predictions: expected those of at most {n_models} models, which are "
                f"{', '.join(self.models[:n_models])}, got {len(given)}"
            )
        scores = np.full((predictions.n, len(self.models)), _NOT_ASKED)
        predicted: list[Any] = [None] * predictions.n
        found = [self._answers_for(predictions, each) for each in given]
        for place, (rows, log_odds, _) in enumerate(found):
            scores[rows >= 0, place] = log_odds[rows[rows >= 0]]
        (stage,) = self(torch.from_numpy(scores[:, :-1]))
        chosen = stage.numpy()
        confidence: list[float | None] = [None] * predictions.n
        for place, (rows, log_odds, classes) in enumerate(found):
            for row in np.flatnonzero((chosen == place) & (rows >= 0)).tolist():
                confidence[row] = round(float(1 / (1 + np.exp(-log_odds[rows[row]]))), 12)
                predicted[row] = None if classes is None else classes[rows[row]]
        columns = self.columns({"stage": stage})
        return Decisions(
            predictions.n,
            FrozenDict(
                {
                    "model": columns["model"],
                    "answer": [each is not None for each in confidence],
                    **({} if all(each is None for each in predicted) else {"predicted": predicted}),
                    "confidence": confidence,
                    "cost": columns["cost"],
                }
            ),
        )

    @staticmethod
    def _answers_for(
        first: Predictions, other: Predictions
    ) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Floats, list[Any] | None]:
        """Return the rows of a model with the questions of the first, its log-odds and predicted classes."""
        if first.ids is None and other.ids is None:
            if other.n != first.n:
                raise InputError(
                    f"predictions: expected the same {first.n} questions of each model, got {other.n}; name "
                    "them with ids="
                )
            rows = np.arange(first.n)
        else:
            rows = places_of(first, other)
        log_odds, predicted = answers_of(other)
        classes: list[Any] | None = None
        if other.k is not None:
            names = other.class_names
            classes = [each if names is None else names[each] for each in predicted.tolist()]
        return rows, log_odds, classes

    def check_stored(self) -> None:
        """Refuse thresholds, costs and models of different number."""
        if not len(self.models) == len(self.cost) == len(self.thresholds) + 1:
            raise FormatError(
                f"models: expected one more than {len(self.thresholds)} thresholds, each with a cost, got "
                f"{len(self.models)} with {len(self.cost)} costs"
            )


def answers_of(predictions: Predictions) -> tuple[Floats, Tensor]:
    """Return the log-odds that each answer of a model is right, and the predicted classes."""
    check_one_label(predictions)
    log_probs = calibrated_log_probs(predictions)
    scores = log_odds_of_answers(log_probs, of_pairs=predictions.k is None)
    return scores.cpu().numpy(), log_probs.argmax(dim=1)
