"""Random numbers that depend on the place in a run alone."""

import random

import numpy as np
import pytest
import torch

from calibrant.training import train
from calibrant.training.batches import Share
from calibrant.training.seeds import seed_of, start_from
from tests.training.small import small_config


def drawn():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()  # noqa: NPY002  # what is seeded


def test_a_place_has_its_numbers_whatever_happened_before():
    start_from(5, 1, 2)
    first = drawn()
    torch.rand(7)
    start_from(5, 1, 2)
    assert drawn() == first


@pytest.mark.parametrize("other", [(6, 1, 2), (5, 0, 2), (5, 1, 3), (5, 2, 1)])
def test_another_run_stage_or_epoch_has_others(other):
    assert seed_of(*other) != seed_of(5, 1, 2)


def test_order_dropout_and_augmentation_of_an_epoch_come_from_different_seeds(tmp_path, monkeypatch):
    asked = []

    def noting(seed, *place):
        asked.append(seed_of(seed, *place))
        return asked[-1]

    monkeypatch.setattr("calibrant.training.stage.seed_of", noting)
    monkeypatch.setattr("calibrant.training.stage.start_from", lambda *place: noting(*place))
    train(small_config("training.epochs=2"), tmp_path / "run")
    assert len(asked) == 6  # three in each of two epochs
    assert len(set(asked)) == 6


def test_processes_drop_out_different_units(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("calibrant.training.stage.start_from", lambda *place: asked.append(seed_of(*place)))
    for rank in (0, 1):
        monkeypatch.setattr("calibrant.training.stage.share_of", lambda _, rank=rank: Share(rank, 2))
        train(small_config("training.epochs=1"), tmp_path / str(rank))
    assert asked[0] != asked[1]
