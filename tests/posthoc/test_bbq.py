"""Bayesian binning into quantiles: the mean of many histograms."""

import numpy as np
import pytest
from scipy.special import betaln, logsumexp

from calibrant.posthoc.bbq import BBQ
from tests.conftest import draw


def by_definition(p, hits):
    """The method of the paper as a plain loop: evidence and prediction of each number of bins."""
    n = len(p)
    order = np.argsort(p)
    p, hits = p[order], hits[order]
    evidence, predictions = [], []
    for n_bins in range(max(1, int(n ** (1 / 3) / 10)), min(n // 5, int(10 * n ** (1 / 3))) + 1):
        stops = [-(-(b + 1) * n // n_bins) for b in range(n_bins)]
        total, rates, start, low = 0.0, np.empty(n), 0, 0.0
        for stop in stops:
            odds = np.log(p) - np.log1p(-p)
            high = 1.0 if stop == n else 1 / (1 + np.exp(-(odds[stop - 1] + odds[stop]) / 2))
            middle = (low + high) / 2
            alpha, beta = middle * 2 / n_bins, (1 - middle) * 2 / n_bins
            met, missed = hits[start:stop].sum(), (1 - hits[start:stop]).sum()
            total += betaln(alpha + met, beta + missed) - betaln(alpha, beta)
            rates[start:stop] = (alpha + met) / (alpha + beta + met + missed)
            start, low = stop, high
        evidence.append(total)
        predictions.append(rates)
    weights = np.exp(np.array(evidence) - logsumexp(evidence))
    result = np.empty(n)
    result[order] = weights @ np.array(predictions)
    return result


@pytest.mark.parametrize("n", [23, 300])
def test_it_is_the_definition_written_as_a_loop(n):
    rng = np.random.default_rng(n)
    logits = rng.normal(size=n) * 2
    p = 1 / (1 + np.exp(-logits))
    hits = (rng.random(n) < 1 / (1 + np.exp(-logits / 3))).astype(int)
    fitted = BBQ.fit(logits, hits, mode="one_vs_rest")
    # Numbers of bins with a ten-thousandth of the best one's weight are left out.
    assert fitted.predict_proba(logits)[:, 1] == pytest.approx(by_definition(p, hits), abs=2e-3)


def test_one_vs_rest_is_one_map_per_class_divided_by_the_sum():
    logits, labels = draw(400, 3, sharpen=3.0)
    fitted = BBQ.fit(logits, labels, mode="one_vs_rest")
    p = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    odds = np.log(p) - np.log1p(-p)
    alone = [
        BBQ.fit(odds[:, c], (labels == c).astype(int), mode="one_vs_rest").predict_proba(odds[:, c])[:, 1]
        for c in range(3)
    ]
    expected = np.stack(alone, axis=1) / np.sum(alone, axis=0)[:, None]
    assert fitted.predict_proba(logits) == pytest.approx(expected, abs=1e-9)


def test_more_evidence_for_one_step_means_few_bins():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=2000)
    labels = (rng.random(2000) < np.where(logits > 0, 0.9, 0.2)).astype(int)
    probs = BBQ.fit(logits, labels, mode="one_vs_rest").predict_proba(logits)[:, 1]
    assert np.abs(probs - np.where(logits > 0, 0.9, 0.2)).mean() < 0.03
