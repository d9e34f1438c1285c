"""Parameterized temperature scaling (Tomani, Cremers and Buettner, ECCV 2022)."""

from typing import Annotated, Self, Unpack

from torch import Tensor

from calibrant.inputs import ArrayLike, check_count
from calibrant.posthoc.fitting.masked import lowest_for_masked
from calibrant.posthoc.fitting.sample_temperature import Layers, Link, SampleTemperature
from calibrant.posthoc.fitting.stored import AT_LEAST_1, declare, layers_of
from calibrant.posthoc.fitting.temperature_training import (
    MOST_SAMPLES,
    Plan,
    all_steps,
    glorot_layers,
    natural_unit,
    train_temperatures,
)
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.surrogates import Objective

PTS_HIDDEN_UNITS = (5, 5)


class ParameterizedTemperatureScaling(SampleTemperature):
    r"""Divide logits by a temperature that a small network computes from the largest of them (PTS).

    The network reads the ten largest logits in order, has two hidden layers of five units, and ends in
    :math:`\mathrm{softplus}(\cdot) + 0.1`, or in :math:`|\cdot|` as in the paper. The predicted class never
    changes. If fewer than ten classes are not masked, the network reads the lowest of their logits in place
    of those that are missing.
    """

    masks = True

    options = ("objective", "top", "unit", "link")
    n_layers = 3
    stored = declare(**layers_of(n_layers))

    objective: Objective
    top: Annotated[int, AT_LEAST_1]

    def __init__(
        self,
        layers: Layers,
        *,
        objective: Objective = "brier",
        top: int = 10,
        unit: float = 1.0,
        link: Link = "softplus",
        n_classes: int | None = None,
    ) -> None:
        super().__init__(layers, unit=unit, n_classes=n_classes)
        self.link = link
        self.objective = objective
        self.top = top

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        objective: Objective = "brier",
        top: int = 10,
        epochs: int = 25,
        batch_size: int | None = None,
        settled: float = 1.0,
        **rows: Unpack[Rows],
    ) -> Self:
        """Train the network on the squared error of its probabilities, from the best single temperature.

        A model whose likelihood and calibration error show no fault stays unchanged. By the objective the
        result is never worse than the uncalibrated model on the fitting set; if it is worse by the
        likelihood, beyond chance, the model stays unchanged. From the best temperature 25 steps on all
        samples at once are enough, and more overfit (``docs/results/smart_stopping.md``). :class:`PTSPaper`
        trains as the paper does.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            objective: What to minimise, one of the names of :func:`~calibrant.surrogates.objective_value`.
            top: How many of the largest logits the network reads; all if there are fewer.
            epochs: Most passes over the fitting set; 0 leaves the model unchanged.
            batch_size: Most samples per step; all of them if None.
            settled: With a calibration objective (``charbonnier``, ``soft_ece``), stop at this many times the
                error expected by chance. With 0 all epochs are trained, whatever the model was like.
        """
        data = cls.data(logits, labels, **rows)
        plan = Plan(objective, epochs, batch_size=batch_size, settled=settled)
        top = min(check_count(top, "top"), data.n_classes)
        unit = natural_unit(data, plan)
        scaled = data if unit == 1 else data.with_logits(data.logits / unit)
        some = scaled.thinned(MOST_SAMPLES)
        layers = train_temperatures(
            largest_logits(some.logits, top), some, hidden=PTS_HIDDEN_UNITS, plan=plan
        )
        return cls(layers, objective=objective, top=top, unit=unit, n_classes=data.n_classes)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes, and that of inputs of the network."""
        return super().sizes | {"d": self.top}

    def inputs(self, logits: Tensor) -> Tensor:
        """Return the largest logits of each sample, the largest first."""
        return largest_logits(logits, self.top)


class PTSPaper(ParameterizedTemperatureScaling):
    r"""Parameterized temperature scaling as its paper prints it; the temperature is :math:`|\cdot|`.

    Nothing stops the training or takes it back, so it can end less likely than the uncalibrated model.
    """

    @classmethod
    @sparing_threads
    def fit(  # type: ignore[override]  # its own options
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        objective: Objective = "brier",
        top: int = 10,
        steps: int = 100_000,
        batch_size: int = 1000,
        learning_rate: float = 5e-5,
        **rows: Unpack[Rows],
    ) -> Self:
        """Train on mini-batches for all steps, and use the last weights; it takes minutes.

        The squared error, Adam at a rate of 5e-5, batches of 1,000 and 100,000 steps are the paper's. The
        authors' code adds what their text leaves open: raw logits as inputs, the first weights of Keras
        (Glorot's, biases of 0), and the absolute value of the last layer as temperature. A start at which the
        units of a layer are 0 for all samples stays there.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            objective: What to minimise, one of the names of :func:`~calibrant.surrogates.objective_value`.
            top: How many of the largest logits the network reads; all if there are fewer.
            steps: Steps of Adam.
            batch_size: Most samples per step.
            learning_rate: Learning rate of Adam.
        """
        data = cls.data(logits, labels, **rows)
        plan = Plan(objective, 0, batch_size=batch_size, learning_rate=learning_rate)
        top = min(check_count(top, "top"), data.n_classes)
        x = largest_logits(data.logits, top).double()
        start = glorot_layers((top, *PTS_HIDDEN_UNITS, 1), seed=data.seed, like=x)
        n_steps = check_count(steps, "steps", at_least=0)
        layers = all_steps(x, data, start, plan, n_steps=n_steps, link="absolute")
        return cls(layers, objective=objective, top=top, link="absolute", n_classes=data.n_classes)


def largest_logits(logits: Tensor, top: int) -> Tensor:
    """Return the largest logits of each sample, the largest first; masked classes count as the lowest."""
    return lowest_for_masked(logits.topk(top, dim=1).values)
