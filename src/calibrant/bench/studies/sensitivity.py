"""SMART at other bandwidths and roundings of its objective (SMART, Tables 13 and 14).

The tables call the bandwidth lambda; their highlighted 0.05 is the standard deviation sigma of the soft bins'
kernel, lambda = 1 / (2 sigma^2) = 200 in the text.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant.bench.rows import Record
from calibrant.bench.sources import load_source
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.evaluate import evaluate
from calibrant.posthoc.fitting.adam import Adam
from calibrant.posthoc.fitting.fitting_set import FittingSet
from calibrant.posthoc.fitting.indicators import margin
from calibrant.posthoc.fitting.sample_temperature import Layers, network_temperature
from calibrant.posthoc.fitting.temperature_training import best_single_temperature, first_layers
from calibrant.posthoc.smart import HIDDEN_UNITS, SMART
from calibrant.surrogates.charbonnier import charbonnier_soft_ece


def sensitivity_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield the measures of SMART trained with the key's ``sigma`` and ``delta`` on its ``source``.

    All epochs are trained, as in the paper, and the last weights are used: what the library adds, a stop
    where chance explains the rest, would hide what a bad bandwidth does.
    """
    source = load_source(key["source"], seed=seed, data=data)
    fitting = source.validation
    assert fitting.labels is not None
    layers = train_smart(
        fitting.to_logits(),
        fitting.labels,
        sigma=float(key["sigma"]),
        delta=float(key["delta"]),
        epochs=settings.get("epochs", 200),
        seed=seed,
    )
    repaired = calibrated(SMART(layers, n_classes=fitting.k), source.tests["test"])
    note = f"lambda={float(key['sigma']):.2f};delta={float(key['delta']):.3f}"
    yield Record(
        {"setting": note}, dict(evaluate(repaired, measures=["ece", "ece_equal_mass", "nll"]).metrics)
    )


def train_smart(
    logits: Tensor, labels: Tensor, *, sigma: float, delta: float, epochs: int = 200, seed: int = 0
) -> Layers:
    """Train SMART's network with Adam from the likeliest single temperature, and return its layers.

    Args:
        logits: Scores of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``.
        sigma: Standard deviation of the soft bins' kernel.
        delta: Rounding of the absolute value.
        epochs: Passes over all samples at once.
        seed: Of the first weights.
    """
    samples = FittingSet(logits, labels)
    seen = margin(logits.double())[:, None]
    mean, deviation = seen.mean(), seen.std(correction=0).clamp_min(1e-12)
    x = (seen - mean) / deviation
    start = first_layers(
        (1, HIDDEN_UNITS), temperature=best_single_temperature(samples, "nll"), seed=seed, like=x
    )
    layers = [(weight.clone().requires_grad_(), bias.clone().requires_grad_()) for weight, bias in start]
    adam = Adam([part for layer in layers for part in layer], learning_rate=5e-3)
    for _ in range(epochs):
        forecasts = samples.at(network_temperature(x, layers))
        adam.step(
            charbonnier_soft_ece(forecasts.confidence, forecasts.correct, lam=1 / (2 * sigma**2), delta=delta)
        )
    trained = [(weight.detach(), bias.detach()) for weight, bias in layers]
    weight = trained[0][0] / deviation
    return [(weight, trained[0][1] - (weight * mean).squeeze(1)), *trained[1:]]
