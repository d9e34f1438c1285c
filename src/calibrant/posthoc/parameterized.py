"""Parameterized temperature scaling (Tomani, Cremers and Buettner, ECCV 2022)."""

from typing import Self

from torch import Tensor

from calibrant.inputs import ArrayLike, check_count
from calibrant.posthoc.calibrator import check_fitting_set
from calibrant.posthoc.fitting.sample_temperature import Layers, SampleTemperature
from calibrant.posthoc.fitting.temperature_training import (
    Plan,
    check_settled,
    natural_unit,
    train_temperatures,
)
from calibrant.surrogates.objectives import Objective, check_objective

HIDDEN_UNITS = (5, 5)


class ParameterizedTemperatureScaling(SampleTemperature):
    r"""Divide logits by a temperature that a small network reads off the largest of them (PTS).

    The network sees the ten largest logits in order, has two hidden layers of five units, and ends in
    :math:`\mathrm{softplus}(\cdot) + 0.1`. The predicted class never changes.
    """

    options = ("objective", "top", "unit")
    n_layers = 3

    def __init__(
        self,
        layers: Layers,
        *,
        objective: Objective = "brier",
        top: int = 10,
        unit: float = 1.0,
        n_classes: int | None = None,
    ) -> None:
        super().__init__(layers, unit=unit, n_classes=n_classes)
        self.objective = objective
        self.top = top

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        seed: int = 0,
        objective: Objective = "brier",
        top: int = 10,
        epochs: int = 25,
        batch_size: int = 1 << 17,
        settled: float = 1.0,
    ) -> Self:
        """Train the network on the squared error of its probabilities, from the best single temperature.

        A model of which neither the likelihood nor the calibration error says that it is wrong is left as it
        is. The result is never worse than doing nothing on the fitting set by the objective; if it is by
        the likelihood, beyond chance, nothing is done. The paper takes 100,000 steps at a hundredth of our
        learning rate; from the best temperature 25 steps on all samples at once are enough, and more
        overfit (``docs/results/smart_stopping.md``).

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Not used.
            seed: For the first weights of the network.
            objective: What to minimise, one of the names of :func:`~calibrant.surrogates.objective_value`.
            top: How many of the largest logits the network sees; all if there are fewer.
            epochs: Most passes over the fitting set; 0 leaves the model as it is.
            batch_size: Most samples per step.
            settled: With a calibration objective (``charbonnier``, ``soft_ece``), stop at this many times the
                error expected by chance. With 0 all epochs are trained, whatever the model was like.
        """
        z, y = check_fitting_set(logits, labels)
        plan = Plan(
            objective=check_objective(objective),
            epochs=check_count(epochs, "epochs", at_least=0),
            batch_size=check_count(batch_size, "batch_size"),
            seed=seed,
            settled=check_settled(settled),
        )
        top = min(check_count(top, "top"), z.shape[1])
        unit = natural_unit(z, y, plan)
        z = z / unit
        layers = train_temperatures(_largest(z, top), z, y, hidden=HIDDEN_UNITS, plan=plan)
        return cls(layers, objective=objective, top=top, unit=unit, n_classes=z.shape[1])

    def inputs(self, logits: Tensor) -> Tensor:
        """Return the largest logits of each sample, the largest first."""
        return _largest(logits, self.top)


def _largest(logits: Tensor, top: int) -> Tensor:
    return logits.topk(top, dim=1).values
