"""Parameterized temperature scaling (Tomani, Cremers and Buettner, ECCV 2022)."""

from typing import Self, Unpack

from torch import Tensor

from calibrant.inputs import ArrayLike, check_count
from calibrant.posthoc.calibrator import UnusedFeatures, check_fitting_set
from calibrant.posthoc.fitting.sample_temperature import Layers, SampleTemperature
from calibrant.posthoc.fitting.temperature_training import Plan, natural_unit, train_temperatures
from calibrant.surrogates import Objective

HIDDEN_UNITS = (5, 5)


class ParameterizedTemperatureScaling(SampleTemperature):
    r"""Divide logits by a temperature that a small network computes from the largest of them (PTS).

    The network reads the ten largest logits in order, has two hidden layers of five units, and ends in
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
        objective: Objective = "brier",
        top: int = 10,
        epochs: int = 25,
        batch_size: int | None = None,
        settled: float = 1.0,
        seed: int = 0,
        **unused: Unpack[UnusedFeatures],
    ) -> Self:
        """Train the network on the squared error of its probabilities, from the best single temperature.

        A model whose likelihood and calibration error show no fault stays unchanged. By the objective the
        result is never worse than the uncalibrated model on the fitting set; if it is worse by the
        likelihood, beyond chance, the model stays unchanged. The paper takes 100,000 steps at a hundredth of
        our learning rate; from the best temperature 25 steps on all samples at once are enough, and more
        overfit (``docs/results/smart_stopping.md``).

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            seed: Seed of the first weights of the network.
            objective: What to minimise, one of the names of :func:`~calibrant.surrogates.objective_value`.
            top: How many of the largest logits the network reads; all if there are fewer.
            epochs: Most passes over the fitting set; 0 leaves the model unchanged.
            batch_size: Most samples per step; all of them if None.
            settled: With a calibration objective (``charbonnier``, ``soft_ece``), stop at this many times the
                error expected by chance. With 0 all epochs are trained, whatever the model was like.
        """
        z, y = check_fitting_set(logits, labels, **unused)
        plan = Plan(objective, epochs, batch_size, seed, settled)
        top = min(check_count(top, "top"), z.shape[1])
        unit = natural_unit(z, y, plan)
        z = z if unit == 1 else z / unit
        layers = train_temperatures(_largest(z, top), z, y, hidden=HIDDEN_UNITS, plan=plan)
        return cls(layers, objective=objective, top=top, unit=unit, n_classes=z.shape[1])

    def inputs(self, logits: Tensor) -> Tensor:
        """Return the largest logits of each sample, the largest first."""
        return _largest(logits, self.top)


def _largest(logits: Tensor, top: int) -> Tensor:
    return logits.topk(top, dim=1).values
