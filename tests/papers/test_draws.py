"""Draws of test samples: a Poisson bootstrap that models, seeds and splits share."""

import numpy as np
import pytest
import torch

from calibrant import Predictions, evaluate
from calibrant.errors import FormatError
from calibrant.metrics import auroc_correctness
from calibrant.papers.draws import (
    DRAWS,
    drawn_detection,
    drawn_measures,
    numbers_of,
    packed,
    packed_all,
    sample_counts,
    unpacked,
)
from calibrant.papers.model_predictions import split


def some_predictions(n: int = 400, k: int = 4, seed: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=generator)
    labels = torch.multinomial(torch.softmax(logits / 2, dim=1), 1, generator=generator)[:, 0]
    return Predictions(logits=logits, labels=labels)


@pytest.mark.parametrize(
    "name", ["accuracy", "nll", "ece", "ece_equal_mass", "classwise_ece", "auroc_ovo", "auroc_correct"]
)
def test_a_draw_is_the_measure_of_the_samples_it_contains(name):
    predictions = some_predictions()
    counts = sample_counts(np.arange(predictions.n))
    rows = np.repeat(np.arange(predictions.n), counts[3])
    expected = evaluate(predictions.take(rows), measures=[name]).metrics[name]
    assert drawn_measures(predictions, [name])[name][3] == pytest.approx(expected, rel=1e-9)


def test_a_sample_is_drawn_equally_often_in_every_split():
    whole = some_predictions()
    first, second = (split(whole, seed)[1] for seed in (0, 1))
    counts = [sample_counts(each.ids.numpy()) for each in (first, second)]
    known = [
        dict(zip(each.ids.tolist(), c.T.tolist(), strict=True))
        for each, c in zip((first, second), counts, strict=True)
    ]
    shared = known[0].keys() & known[1].keys()
    assert len(shared) > 50
    assert all(known[0][each] == known[1][each] for each in shared)


def test_the_counts_of_a_sample_do_not_depend_on_how_many_others_there_are():
    assert (sample_counts(np.arange(500))[:, :10] == sample_counts(np.arange(10))).all()


def test_ids_that_are_names_are_known_by_their_rank_in_any_order():
    whole = some_predictions(20)
    named = whole.replaced(ids=[f"image {number}" for number in range(20)])
    order = list(reversed(range(20)))
    counts, other = (sample_counts(numbers_of(each)) for each in (named, named.take(order)))
    assert (other == counts[:, order]).all()
    assert drawn_measures(named, ["ece"])["ece"].shape == (DRAWS,)


def test_detection_is_measured_on_draws_of_both_sets():
    inside, outside = some_predictions(), some_predictions(100, seed=1)
    scores = torch.cat([each.to_probs().amax(dim=1) for each in (inside, outside)])
    counts = sample_counts(np.arange(500))[5]
    rows = np.repeat(np.arange(500), counts)
    expected = auroc_correctness(confidence=scores[rows], correct=rows < 400)
    assert drawn_detection(inside, outside)[5] == pytest.approx(expected, rel=1e-9)


def test_a_draw_of_no_sample_is_undefined_and_so_are_the_draws_of_two_samples():
    two = Predictions(probs=[[0.9, 0.1], [0.8, 0.2]], labels=[1, 1])
    draws = drawn_measures(two, ["accuracy"])["accuracy"]
    assert np.isnan(draws).any()
    assert np.nanmax(draws) == 0.0
    assert packed(draws) is None


def test_packed_draws_keep_the_standard_deviation_to_a_hundredth():
    draws = np.random.default_rng(0).normal(0.3, 0.01, size=DRAWS)
    kept = unpacked(packed(draws))
    assert kept.std() == pytest.approx(draws.std(), rel=0.01)
    assert np.abs(kept - (draws - draws.mean())).max() < 0.0005


def test_undefined_draws_are_left_out_and_equal_ones_are_zero():
    kept = packed_all({"a": np.array([1.0, np.nan]), "b": np.array([2.0, 2.0])})
    assert list(kept) == ["b"]
    assert unpacked(kept["b"]).tolist() == [0.0, 0.0]


def test_draws_that_are_no_bytes_are_refused():
    with pytest.raises(FormatError, match="draws: expected bytes in base 64, got '!!'"):
        unpacked((1.0, "!!"))
