"""Figures of weighted predictions: as of the samples that count, repeated by weight, or refused."""

import numpy as np
import pytest
import torch

from calibrant.bins import equal_mass_bins, equal_width_bins
from calibrant.data import Predictions
from calibrant.errors import InputError
from calibrant.inference.bands import accuracy_band, curve_band, effective_counts
from calibrant.plots.kinds import KINDS, Request, draw
from tests.conftest import at_length

REFUSED = {"ood", "estimate", "frequencies", "sets", "guarantee"}
_FITTED = ("methods", "validation-size", "estimate", "frequencies", "sets")
# Labels of lines that depend on chance, the ends of a band, or on the number of samples.
BY_CHANCE = ("_nolegend_", "fewer than")


def sample(n, seed):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(n, 3))
    labels = (logits / 3 + rng.gumbel(size=(n, 3))).argmax(axis=1)
    return logits, labels, rng.integers(0, 3, n)


def drawn(kind, predictions, validation):
    """Places and heights of all bars and lines of a figure, but those that depend on chance."""
    takes = KINDS[kind].takes
    request = Request(
        predictions,
        validation=validation if kind in _FITTED else None,
        foreign=predictions if "foreign" in takes else None,
        methods=("temperature",) if kind in _FITTED else (),
    )
    panels = list(draw(kind, request).figure_.axes)
    found = []
    while panels:
        axes = panels.pop(0)
        panels += axes.child_axes
        named = [line for line in axes.lines if not str(line.get_label()).startswith(BY_CHANCE)]
        found += [np.asarray(line.get_xydata(), dtype=float).ravel() for line in named]
        if axes.get_yscale() == "linear":  # counts are on a log scale
            found += [np.array(bar.get_bbox().bounds) for bar in axes.patches if hasattr(bar, "get_bbox")]
    return found


@pytest.mark.parametrize(
    "kind", at_length(list(KINDS), ("reliability", "classes", "smooth", "methods", "ood"))
)
def test_a_figure_counts_samples_by_weight_or_refuses_weights(kind):
    (logits, labels, times), (z, y, w) = sample(400, 0), sample(300, 1)
    weighted = Predictions(logits=logits, labels=labels, weights=0.7 * times)
    validation = Predictions(logits=z, labels=y, weights=w)
    if kind in REFUSED:
        with pytest.raises(InputError, match="^weights: expected none for"):
            drawn(kind, weighted, validation)
        return
    ours = drawn(kind, weighted, validation)
    if kind in ("methods", "validation-size", "temperature", "diagnosis"):
        # Fits know the effective number only, and groups of margin have equal numbers of samples.
        plain = drawn(kind, Predictions(logits=logits, labels=labels), Predictions(logits=z, labels=y))
        first, second = (np.concatenate(each) for each in (ours, plain))
        assert len(first) != len(second) or not np.allclose(first, second, equal_nan=True)
        return
    repeated = Predictions(logits=logits.repeat(times, axis=0), labels=labels.repeat(times))
    expected = drawn(kind, repeated, validation)
    if kind == "risk-coverage":  # a perfect ranking has a point for each row
        ours, expected = ours[:1], expected[:1]
    for each, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(each, other, atol=1e-6)


def test_bands_of_weighted_samples_are_as_wide_as_those_of_their_effective_number():
    rng = np.random.default_rng(0)
    confidence, weights = torch.from_numpy(rng.random(4000)), np.where(np.arange(4000) < 2000, 1.0, 0.0)
    correct = torch.from_numpy(rng.random(4000)) < confidence
    pairs = Predictions(confidence=confidence, correct=correct, weights=weights)
    half = Predictions(confidence=confidence[:2000], correct=correct[:2000])
    for fill in (equal_width_bins, equal_mass_bins):
        outcomes, fewer = pairs.outcomes(), half.outcomes()
        bins, plain = fill(outcomes, 8), fill(fewer, 8)
        sizes = effective_counts(outcomes, bins)
        torch.testing.assert_close(sizes, plain.count.double())
        ours, theirs = accuracy_band(bins, sizes=sizes), accuracy_band(plain)
        torch.testing.assert_close(ours.high - ours.low, theirs.high - theirs.low, rtol=0.15, atol=0.01)

    def mean(confidence, correct, weights=None):
        w = torch.ones(len(confidence)) if weights is None else weights
        return ((w * correct).sum() / w.sum())[None]

    ours = curve_band(mean, confidence=confidence, correct=correct, weights=weights)
    theirs = curve_band(mean, confidence=confidence[:2000], correct=correct[:2000])
    torch.testing.assert_close(ours.low, theirs.low, atol=1e-6, rtol=0)
