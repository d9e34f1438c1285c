import pytest
import torch

from calibrant.errors import InputError
from calibrant.training.datasets import long_tail
from calibrant.training.datasets.long_tail import long_tail_counts


@pytest.mark.parametrize("imbalance", [0.01, 0.02, 0.1, 0.5, 1.0])
def test_counts_fall_by_the_same_factor_down_to_the_ratio(imbalance) -> None:
    counts = long_tail_counts(torch.full((10,), 5000), imbalance=imbalance)
    expected = [int(5000 * imbalance ** (c / 9) + 1e-6) for c in range(10)]
    assert counts.tolist() == expected
    assert counts[-1] / counts[0] == pytest.approx(imbalance, rel=0.01)


def test_the_ratio_holds_where_classes_differ_in_size() -> None:
    have = torch.tensor([900, 300, 500])
    counts = long_tail_counts(have, imbalance=0.25)
    assert (counts <= have).all()
    assert counts[2] / counts[0] == pytest.approx(0.25, abs=0.01)
    assert counts[1] == 300  # the scarce class sets the scale


def test_rows_are_seeded_distinct_and_in_order() -> None:
    labels = torch.arange(400) % 4
    rows = long_tail(labels, imbalance=0.1, seed=5)
    assert labels[rows].bincount().tolist() == [100, 46, 21, 10]
    assert (rows.diff() > 0).all()
    assert rows.tolist() == long_tail(labels, imbalance=0.1, seed=5).tolist()
    assert rows.tolist() != long_tail(labels, imbalance=0.1, seed=6).tolist()


@pytest.mark.parametrize("imbalance", [0, -1, 10, float("nan")])
def test_a_ratio_outside_0_to_1_is_refused(imbalance) -> None:
    with pytest.raises(InputError, match="imbalance: expected a ratio"):
        long_tail(torch.arange(4), imbalance=imbalance)


def test_a_class_without_samples_is_refused() -> None:
    with pytest.raises(InputError, match="got none of class 1"):
        long_tail(torch.tensor([0, 2]), imbalance=0.5)
