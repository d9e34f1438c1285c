"""Which candidates are significantly worse than the best: one bootstrap for all of them and all measures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from calibrant.data.labels import entries_per_row
from calibrant.data.predictions import Predictions
from calibrant.inference.draws import TermResampler, bin_options
from calibrant.inference.intervals import two_sided_p_value
from calibrant.inference.rows import generator
from calibrant.inference.units import Units
from calibrant.inputs import Floats
from calibrant.metrics.counted import Counts, Ordered, Sums
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES
from calibrant.outcomes import Outcomes

N_BINS = 15
_LEVEL = 0.95
_RESAMPLES = {"terms": 400, "bins": 200}
# Up to this many samples, counts of drawn samples are shared by all differences of means.
_COUNTED = 1 << 15
# Counts in memory; they and what is computed from them fit into the processor's cache.
_BLOCK = 1 << 16
# Probabilities in memory.
_ENTRIES = 1 << 20

#: A measure and two candidates: the one that is tested, and the best.
Test: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Samples:
    """What the tests need of a candidate's predictions: a few numbers for each sample, however many classes.

    Attributes:
        outcomes: Confidences and hits.
        terms: For measures that are means over samples: the term of each sample, times its weight if it has
            one, by measure.
        per_row: Number of samples in succession that are drawn together, such as the labels of one picture.
    """

    outcomes: Outcomes
    terms: Mapping[str, Floats]
    per_row: int = 1

    @classmethod
    def of(cls, predictions: Predictions, outcomes: Outcomes, measures: Iterable[str]) -> "Samples":
        """Return the outcomes, and the terms of those of the measures that have some.

        Args:
            predictions: Labelled predictions.
            outcomes: Their outcomes.
            measures: Measures that the predictions allow.
        """
        pairs = {"confidence": outcomes.confidence, "correct": outcomes.correct}
        wanted = {name: MEASURES[name] for name in measures if MEASURES[name].terms is not None}
        # Of a black box nothing but the pairs is known.
        classes = {} if predictions.k is None else wanted
        of_rows = {name: measure for name, measure in classes.items() if measure.reads != "outcomes"}
        of_pairs = {name: measure for name, measure in wanted.items() if name not in of_rows}
        parts: dict[str, list[Floats]] = {name: [] for name in of_rows}
        for part in _parts(predictions) if of_rows else ():
            for name, measure in of_rows.items():
                parts[name].append(_terms(measure, _arguments(measure, part)))
        terms = {name: _terms(measure, pairs) for name, measure in of_pairs.items()}
        terms |= {name: np.concatenate(each) for name, each in parts.items()}
        if outcomes.weights is not None:
            w = outcomes.weights.cpu().numpy()
            terms = {name: w * np.where(w > 0, each, 0.0) for name, each in terms.items()}
        return cls(outcomes, terms, entries_per_row(predictions))


def can_test(measure: Measure) -> bool:
    """Return whether there is a test for a measure: those of means over samples and of bins."""
    return measure.terms is not None or measure.of_bins is not None


def significantly_worse(tests: Sequence[Test], samples: Mapping[str, Samples], *, seed: int = 0) -> set[Test]:
    """Return the tests in which the difference to the best is more than chance, by a paired bootstrap.

    All candidates are measured on the same resamples, and each of them only once.

    Args:
        tests: Measures and candidates.
        samples: What is known of each candidate, for the same samples.
        seed: Seed of the resamples.
    """
    of_terms = [test for test in tests if MEASURES[test[0]].terms is not None]
    of_bins = [test for test in tests if MEASURES[test[0]].terms is None]
    p_values = (*_of_terms(of_terms, samples, seed), *_of_bins(of_bins, samples, seed))
    found = zip((*of_terms, *of_bins), p_values, strict=True)
    return {test for test, p_value in found if p_value < 1 - _LEVEL}


def _of_terms(tests: Sequence[Test], samples: Mapping[str, Samples], seed: int) -> Iterator[float]:
    """Yield the p-value of the difference of means for each test."""
    differences = (samples[other].terms[name] - samples[best].terms[name] for name, other, best in tests)
    per_row = next(iter(samples.values())).per_row
    terms = (each.reshape(-1, per_row).mean(axis=1) for each in differences)
    n_resamples = _RESAMPLES["terms"]
    if not tests or len(samples[tests[0][1]].outcomes) > _COUNTED:
        for resampler in map(TermResampler, terms):
            means = resampler.replicates(n_resamples, generator(seed))
            yield two_sided_p_value(resampler.value, means, biased=False)
        return
    table = np.stack(list(terms), axis=1)
    # Unlike a matrix product, einsum starts no threads.
    drawn = [np.einsum("rn,nt->rt", counts, table) for counts in _draws(len(table), n_resamples, seed)]
    for total, totals in zip(table.sum(axis=0), np.concatenate(drawn).T, strict=True):
        yield two_sided_p_value(float(total), totals, biased=False)


def _of_bins(tests: Sequence[Test], samples: Mapping[str, Samples], seed: int) -> Iterator[float]:
    """Yield the p-value of the difference of measures of bins for each test."""
    if not tests:
        return
    wanted = sorted({(who, name) for name, *pair in tests for who in pair})
    ordered = {who: Ordered.from_outcomes(samples[who].outcomes) for who, _ in wanted}
    drawn: dict[tuple[str, str], list[Floats]] = {each: [] for each in wanted}
    n = len(samples[wanted[0][0]].outcomes)
    rows = np.repeat(np.arange(n // samples[wanted[0][0]].per_row), samples[wanted[0][0]].per_row)
    itself = np.ones((1, rows[-1] + 1), dtype=np.int64)
    for drawn_rows in chain([itself], _draws(int(rows[-1]) + 1, _RESAMPLES["bins"], seed)):
        counts = drawn_rows[:, rows]
        sums = {who: each.sums(_weighed(counts, each.weights)) for who, each in ordered.items()}
        for who, name in wanted:
            drawn[who, name].append(_of_sums(name, sums[who]))
    values = {each: np.concatenate(parts) for each, parts in drawn.items()}
    for name, other, best in tests:
        difference, *resampled = values[other, name] - values[best, name]
        yield two_sided_p_value(float(difference), np.array(resampled))


def _weighed(counts: Counts, weights: Tensor | None) -> Counts:
    """Return how much drawn samples count."""
    return counts if weights is None else counts * weights.cpu().numpy()


def _of_sums(name: str, sums: Sums) -> Floats:
    """Return a measure of bins for each resample."""
    measure = MEASURES[name]
    options = bin_options(measure, measure.arguments(N_BINS))
    assert measure.of_bins is not None
    assert options is not None
    values: Floats = measure.of_bins(sums.bins(**options)).numpy()
    return values


def _draws(n: int, n_resamples: int, seed: int) -> Iterator[Counts]:
    """Yield how often each of ``n`` samples occurs in each resample, some resamples at a time."""
    rng, at_once = generator(seed), max(1, _BLOCK // n)
    for start in range(0, n_resamples, at_once):
        yield Units.of(None, n).draw_counts(min(at_once, n_resamples - start), rng)


def _parts(predictions: Predictions) -> Iterator[Predictions]:
    """Yield consecutive samples with a bounded number of probabilities."""
    at_once = max(1, _ENTRIES // (predictions.k or 1))
    for start in range(0, predictions.n, at_once):
        yield predictions.take(np.arange(start, min(start + at_once, predictions.n)))


def _arguments(measure: Measure, predictions: Predictions) -> dict[str, Any]:
    if measure.reads == "logits" and predictions.logits is not None:
        return {"logits": predictions.logits, "labels": predictions.labels}
    return {"probs": predictions.to_probs(), "labels": predictions.labels}


def _terms(measure: Measure, arguments: Mapping[str, Any]) -> Floats:
    assert measure.terms is not None
    terms: Floats = measure.terms(**arguments, **measure.arguments(N_BINS)).double().cpu().numpy()
    return terms
