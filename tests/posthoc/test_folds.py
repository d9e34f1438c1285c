"""Folds: every sample in one of them, evenly, and predicted by a fit that has not seen it."""

import numpy as np
import pytest
import torch

from calibrant.posthoc.fitting.folds import cross_fit, deal, each_fold, shuffled, stratified_folds


def test_samples_are_dealt_in_turn():
    order = shuffled(23, seed=1)
    folds = deal(order, 5)
    assert folds[order].tolist() == [i % 5 for i in range(23)]


def test_every_class_is_spread_over_all_folds():
    labels = torch.tensor([0] * 13 + [1] * 7 + [2] * 25)
    folds = stratified_folds(labels, 5, seed=0)
    for c in range(3):
        counts = np.bincount(folds[labels == c], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert torch.equal(folds, stratified_folds(labels, 5, seed=0))
    assert not torch.equal(folds, stratified_folds(labels, 5, seed=1))


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
