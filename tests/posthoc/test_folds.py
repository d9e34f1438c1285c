"""Folds: every sample in one of them, evenly, and predicted by a fit that has not seen it."""

import numpy as np
import pytest
import torch

from calibrant.posthoc.fitting.folds import cross_fit, deal, each_fold, random_folds, shuffled


def test_samples_are_dealt_in_turn():
    order = shuffled(23, seed=1)
    folds = deal(order, 5)
    assert folds[order].tolist() == [i % 5 for i in range(23)]


def test_folds_are_even_and_depend_on_the_seed_alone():
    folds = random_folds(23, 5, seed=0)
    assert sorted(np.bincount(folds, minlength=5).tolist()) == [4, 4, 5, 5, 5]
    assert torch.equal(folds, random_folds(23, 5, seed=0))
    assert not torch.equal(folds, random_folds(23, 5, seed=1))


def test_learning_the_frequencies_of_equally_frequent_classes_does_not_seem_to_help():
    """With folds stratified by class it would: held-out samples would share the chance of the others."""
    losses = []
    for seed in range(40):
        labels = np.random.default_rng(seed).integers(20, size=200)
        for rest, held_out in each_fold(random_folds(200, 5, seed=seed)):
            frequency = (np.bincount(labels[rest], minlength=20) + 1) / (len(rest) + 20)
            losses += (-np.log(frequency[labels[held_out]])).tolist()
    assert np.mean(losses) > np.log(20) + 0.02


def test_each_fold_divides_the_rows():
    folds = deal(shuffled(11, seed=0), 3)
    parts = list(each_fold(folds))
    assert len(parts) == 3
    for rest, held_out in parts:
        assert sorted([*rest.tolist(), *held_out.tolist()]) == list(range(11))
    assert sorted(row for _, held_out in parts for row in held_out.tolist()) == list(range(11))


def test_a_sample_is_predicted_by_a_fit_that_has_not_seen_it():
    y = torch.arange(12.0)
    folds = deal(shuffled(12, seed=2), 4)
    predicted = cross_fit(folds, lambda rest, held_out: y[rest].mean().expand(len(held_out)))
    for row in range(12):
        assert float(predicted[row]) == pytest.approx(float(y[folds != folds[row]].mean()))
