"""Parameterized temperature scaling (Tomani, Cremers and Buettner, ECCV 2022)."""

from dataclasses import replace
from typing import Annotated, Literal, Self, TypeAlias, Unpack, get_args

from torch import Tensor

from calibrant.inputs import ArrayLike, check_choice, check_count
from calibrant.posthoc.calibrator import UnusedFeatures, check_weighted_set
from calibrant.posthoc.fitting.fitting_set import fitting_set
from calibrant.posthoc.fitting.masked import lowest_for_masked
from calibrant.posthoc.fitting.sample_temperature import Layers, Link, SampleTemperature
from calibrant.posthoc.fitting.stored import AT_LEAST_1, declare, layers_of
from calibrant.posthoc.fitting.temperature_training import (
    Plan,
    all_steps,
    given,
    glorot_layers,
    natural_unit,
    refuse_unused,
    train_temperatures,
)
from calibrant.surrogates import Objective

Recipe: TypeAlias = Literal["network", "paper"]

HIDDEN_UNITS = (5, 5)

_EPOCHS = 25

# The paper's own: Adam on batches of this size, this many steps, at this rate.
_PAPER_BATCH = 1000
_PAPER_STEPS = 100_000
_PAPER_RATE = 5e-5


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
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        objective: Objective = "brier",
        top: int = 10,
        recipe: Recipe = "network",
        epochs: int = _EPOCHS,
        batch_size: int | None = None,
        settled: float = 1.0,
        steps: int | None = None,
        learning_rate: float | None = None,
        weights: ArrayLike | None = None,
        seed: int = 0,
        **unused: Unpack[UnusedFeatures],
    ) -> Self:
        """Train the network on the squared error of its probabilities, from the best single temperature.

        A model whose likelihood and calibration error show no fault stays unchanged. By the objective the
        result is never worse than the uncalibrated model on the fitting set; if it is worse by the
        likelihood, beyond chance, the model stays unchanged. From the best temperature 25 steps on all
        samples at once are enough, and more overfit (``docs/results/smart_stopping.md``).

        ``recipe="paper"`` trains as the paper does: the squared error, Adam at a rate of 5e-5, batches of
        1,000, 100,000 steps, the last weights; it takes minutes. The authors' code adds what their text
        leaves open: raw logits as inputs, the first weights of Keras (Glorot's, biases of 0), and the
        absolute value of the last layer as temperature. A start at which the units of a layer are 0 for all
        samples stays there. Nothing stops it or takes it back, so it can end less likely than the
        uncalibrated model.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            weights: How much each sample counts, shape ``(n,)``; only their ratios matter.
            seed: Seed of the first weights of the network.
            objective: What to minimise, one of the names of :func:`~calibrant.surrogates.objective_value`.
            top: How many of the largest logits the network reads; all if there are fewer.
            epochs: Most passes over the fitting set; 0 leaves the model unchanged.
            batch_size: Most samples per step; all of them if None.
            settled: With a calibration objective (``charbonnier``, ``soft_ece``), stop at this many times the
                error expected by chance. With 0 all epochs are trained, whatever the model was like.
            recipe: How it is trained.
            steps: For ``"paper"``: steps of Adam, instead of epochs; 100,000 unless given.
            learning_rate: For ``"paper"``: learning rate of Adam; 5e-5 unless given.
        """
        z, y, w = check_weighted_set(logits, labels, weights, **unused)
        plan = Plan(objective, epochs, batch_size, seed, settled)
        top = min(check_count(top, "top"), z.shape[1])
        check_choice(recipe, "recipe", get_args(Recipe))
        if recipe == "paper":
            refuse_unused(recipe, epochs=(epochs, _EPOCHS), settled=(settled, 1.0))
            n_steps = check_count(given(steps, _PAPER_STEPS), "steps", at_least=0)
            plan = replace(
                plan,
                batch_size=given(batch_size, _PAPER_BATCH),
                learning_rate=given(learning_rate, _PAPER_RATE),
            )
            x = _largest(z, top).double()
            start = glorot_layers((top, *HIDDEN_UNITS, 1), seed=seed, like=x)
            samples = fitting_set(z, y, weights=w)
            layers = all_steps(x, samples, start, plan, n_steps=n_steps, link="absolute")
            return cls(layers, objective=objective, top=top, link="absolute", n_classes=z.shape[1])
        refuse_unused(recipe, steps=(steps, None), learning_rate=(learning_rate, None))
        unit = natural_unit(z, y, plan, w)
        z = z if unit == 1 else z / unit
        layers = train_temperatures(_largest(z, top), z, y, hidden=HIDDEN_UNITS, plan=plan, weights=w)
        return cls(layers, objective=objective, top=top, unit=unit, n_classes=z.shape[1])

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes, and that of inputs of the network."""
        return super().sizes | {"d": self.top}

    def inputs(self, logits: Tensor) -> Tensor:
        """Return the largest logits of each sample, the largest first."""
        return _largest(logits, self.top)


def _largest(logits: Tensor, top: int) -> Tensor:
    return lowest_for_masked(logits.topk(top, dim=1).values)
