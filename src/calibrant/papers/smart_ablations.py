"""Two ablations of the SMART paper: its indicator (Figure 2) and its smoothing parameters (Tables 13 and 14).

Figure 2, left three panels: how well an indicator, one number per sample, predicts the temperature that the
sample needs. For each logit vector there is one temperature at which its confidence has the wanted value. An
indicator is good if samples with the same indicator need about the same temperature.

Tables 13 and 14 vary the bandwidth and the rounding of the objective. They call the bandwidth lambda; their
highlighted 0.05 is the standard deviation sigma of the soft bins' kernel, lambda = 1 / (2 sigma^2) = 200 in
the text.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.indicators import solve_temperatures
from calibrant.outcomes import margin
from calibrant.papers.model_predictions import load_model_predictions
from calibrant.papers.rows import Record
from calibrant.posthoc.smart import INDICATORS, SMARTPaper, feasible_temperatures

_GROUPS = 20


def indicator_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield for each indicator the share of the variance of the temperatures that it explains.

    ``explained`` is the share of the variance of log T between 20 groups of equal size by the indicator;
    ``spread`` is the median over these groups of the ratio of the 95th to the 5th percentile of T; ``inside``
    is the share of samples within the bounds that the margin implies.

    The key has ``logits``, one of ``gaussian``, ``scaled``, ``shifted`` or a source of predictions,
    ``classes`` for random logits, and ``confidence``.
    """
    z = _logits(key["logits"], key.get("classes", 10), settings.get("draws", 1000), seed, data)
    wanted = float(key.get("confidence", 0.8))
    temperature = solve_temperatures(z, confidence=wanted)
    bounds = feasible_temperatures(margin(z), confidence=wanted, n_classes=z.shape[1])
    low, high = torch.as_tensor(bounds.lowest), torch.as_tensor(bounds.highest)
    slack = 1e-9 * temperature
    inside = (temperature >= low - slack) & (temperature <= high + slack)
    for name, values in INDICATORS.items():
        seen = values(z)
        if seen.shape[1] == 1:
            explained, spread = _explained(seen[:, 0], temperature)
            shown: dict[str, float | None] = {"explained": explained, "spread": spread}
            if name == "margin":
                shown["inside"] = float(inside.double().mean())
            yield Record({"indicator": name}, shown)


def _explained(seen: Tensor, temperature: Tensor) -> tuple[float, float]:
    order = torch.argsort(seen)
    groups = np.array_split(temperature[order].numpy(), _GROUPS)
    logs = [np.log(group) for group in groups]
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in logs)
    total = float(((np.concatenate(logs) - np.concatenate(logs).mean()) ** 2).sum())
    ratios = [np.percentile(group, 95) / np.percentile(group, 5) for group in groups]
    return 1 - within / total, float(np.median(ratios))


def _logits(kind: str, classes: int, draws: int, seed: int, data: Path | None) -> Tensor:
    rng = np.random.default_rng(seed)
    z = 3 * rng.normal(size=(draws, classes))
    changes: Mapping[str, Callable[[], Any]] = {
        "gaussian": lambda: z,
        "scaled": lambda: z * np.exp(rng.normal(size=(draws, 1))),
        "shifted": lambda: z + 10 * rng.normal(size=(draws, 1)),
    }
    if kind in changes:
        return torch.from_numpy(changes[kind]())
    try:
        real = load_model_predictions(kind, seed=seed, data=data).tests["test"].to_logits().double()
    except InputError as error:
        raise InputError(f"logits: expected {', '.join(changes)} or a source ({error})") from None
    unique = margin(real) > 0
    return real[unique][:draws]


def sensitivity_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield the measures of SMART as printed, with the key's ``sigma`` and ``delta``, on its ``source``.

    The default has no such numbers to vary, and its early stopping would hide a bad bandwidth.
    """
    source = load_model_predictions(key["source"], seed=seed, data=data)
    fitting = source.validation
    assert fitting.labels is not None
    sigma, delta = float(key["sigma"]), float(key["delta"])
    epochs = settings.get("epochs", 200)
    printed = SMARTPaper.fit(
        fitting.to_logits(), fitting.labels, sigma=sigma, delta=delta, epochs=epochs, seed=seed
    )
    repaired = calibrated(printed, source.tests["test"])
    labels = {"method": "smart_paper", "setting": f"lambda={sigma:.2f};delta={delta:.3f}"}
    yield Record(labels, dict(evaluate(repaired, measures=["ece", "ece_equal_mass", "nll"]).metrics))
