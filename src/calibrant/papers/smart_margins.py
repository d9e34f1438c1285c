"""What the SMART paper says about margins: who is overconfident at equal confidence, and how much is known.

Figures 1 (b) to (d) and 15: samples of different margins are miscalibrated in different ways, even if their
confidence is the same. Section 3.2 and appendix A.1: the margin bounds the temperature that a sample needs
for a wanted confidence; the text says that the interval narrows as the margin grows.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.bins import equal_mass_bins
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.indicators import solve_temperatures
from calibrant.inputs import check_choice, check_count
from calibrant.outcomes import Outcomes, margin
from calibrant.papers.draws import numbers_of, packed_all, sample_counts
from calibrant.papers.model_predictions import load_model_predictions
from calibrant.papers.posthoc import fit_or_identity
from calibrant.papers.rows import Record
from calibrant.posthoc.smart import feasible_temperatures

# From the smallest to the largest margins; figure 1 has three panels.
_GROUPS = ("small", "middle", "large")
_N_BINS = 15


def margin_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield how overconfident the thirds of samples with small, middle and large margins are.

    ``overconfident_by`` is the mean confidence minus the accuracy of a third, ``underconfident_by`` its
    negative. The key has a ``source`` of predictions, a ``method`` that is fitted first (``uncalibrated`` for
    none), and ``thirds``: those ``of all samples``, or ``at equal confidence``, which divide each of 15 bins
    of confidence that hold equally many samples. Margins are those of the uncalibrated model.
    """
    source = load_model_predictions(key["source"], seed=seed, data=data)
    test = source.tests["test"]
    if test.labels is None:
        raise InputError("labels: expected the true class of each sample, got none")
    calibrator, _ = fit_or_identity(key["method"], source.validation, seed=seed)
    outcomes = calibrated(calibrator, test).outcomes()
    kinds = ("of all samples", "at equal confidence")
    equal = check_choice(key["thirds"], "thirds", kinds) == "at equal confidence"
    n_bins = check_count(settings.get("bins", _N_BINS), "bins") if equal else 1
    groups = margin_thirds(margin(test.to_logits()), outcomes, n_bins=n_bins)
    excess = (outcomes.confidence.double() - outcomes.correct.double()).numpy()
    counts = sample_counts(numbers_of(test))
    for place, name in enumerate(_GROUPS):
        own = groups == place
        gap = float(excess[own].mean())
        drawn = counts[:, own] @ excess[own] / counts[:, own].sum(axis=1)
        yield Record(
            {"margin": name},
            {"overconfident_by": gap, "underconfident_by": -gap},
            packed_all({"overconfident_by": drawn, "underconfident_by": -drawn}),
        )


def margin_thirds(margins: Tensor, outcomes: Outcomes, *, n_bins: int) -> npt.NDArray[np.int64]:
    """Return 0, 1 or 2 for each sample: its third by the margin within its bin of confidence.

    Args:
        margins: Margin of each sample, shape ``(n,)``.
        outcomes: Confidence of each sample.
        n_bins: Number of bins of equal count, each divided into thirds; 1 divides all samples.

    Example:
        >>> sure = Outcomes(torch.tensor([0.8, 0.8, 0.8]), torch.tensor([True, True, False]))
        >>> margin_thirds(torch.tensor([3.0, 1.0, 2.0]), sure, n_bins=1).tolist()
        [2, 0, 1]
    """
    edges = equal_mass_bins(outcomes, n_bins).edges
    place = torch.bucketize(outcomes.confidence.double(), edges[1:-1].double()).numpy()
    groups = np.empty(len(margins), dtype=np.int64)
    for bin_ in np.unique(place):
        own = np.flatnonzero(place == bin_)
        order = own[np.argsort(margins.double().numpy()[own], kind="stable")]
        for third, some in enumerate(np.array_split(order, len(_GROUPS))):
            groups[some] = third
    return groups


def interval_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, _data: Path | None
) -> Iterator[Record]:
    """Yield the width of the interval of temperatures that a margin allows, and that of random samples.

    ``width`` is that of the bounds of appendix A.1, ``observed_width`` the range of the temperatures that
    random logits with this margin need. The key has ``margin``, ``classes`` and ``confidence``, above 0.5.
    """
    m, k, wanted = float(key["margin"]), int(key["classes"]), float(key["confidence"])
    bounds = feasible_temperatures([m], confidence=wanted, n_classes=k)
    width = float(np.subtract(bounds.highest, bounds.lowest)[0])
    z = logits_of_margin(m, k, settings.get("draws", 1000), np.random.default_rng(seed))
    needed = solve_temperatures(z, confidence=wanted)
    yield Record({}, {"width": width, "observed_width": float(needed.max() - needed.min())})


def logits_of_margin(m: float, k: int, n: int, rng: np.random.Generator) -> Tensor:
    """Draw ``n`` logit vectors of ``k`` classes whose margin is ``m``: normal, apart from the largest logit.

    Example:
        >>> margin(logits_of_margin(2.0, 5, 3, np.random.default_rng(0))).round(decimals=6).tolist()
        [2.0, 2.0, 2.0]
    """
    others = 3 * rng.normal(size=(n, k - 1))
    return torch.from_numpy(np.column_stack([others.max(axis=1) + m, others]))
