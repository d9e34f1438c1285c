"""The samples and labels of each part: splits, long tails, label noise."""

import pytest
import torch

from calibrant.errors import InputError
from calibrant.training.datasets import long_tail, stratified_split, symmetric_label_noise
from calibrant.training.datasets.sampling import long_tail_counts


def test_every_class_gives_the_same_share() -> None:
    labels = torch.arange(1000) % 10
    kept, held = stratified_split(labels, share=0.1)
    assert labels[held].bincount().tolist() == [10] * 10
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(1000))


@pytest.mark.parametrize("share", [0.05, 0.1, 0.33, 0.5, 0.9])
def test_unequal_classes_are_within_one_sample_of_their_share(share) -> None:
    counts = torch.tensor([3, 17, 40, 101, 250])
    labels = torch.repeat_interleave(torch.arange(5), counts)
    kept, held = stratified_split(labels, share=share, seed=3)
    given = labels[held].bincount(minlength=5)
    assert ((given - counts * share).abs() < 1 + 1e-9).all()
    assert (labels[kept].bincount(minlength=5) >= 1).all()
    assert abs(len(held) - share * len(labels)) <= 1


def test_the_seed_decides_the_split_and_nothing_else() -> None:
    labels = torch.arange(200) % 4
    first, again, other = (stratified_split(labels, share=0.2, seed=s)[1].tolist() for s in (1, 1, 2))
    assert first == again != other


def test_a_class_of_one_stays_in_training() -> None:
    kept, _ = stratified_split(torch.tensor([0] * 20 + [1]), share=0.5)
    assert 20 in kept.tolist()


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_a_share_is_between_0_and_1(share) -> None:
    with pytest.raises(InputError, match="share: expected a number between 0 and 1"):
        stratified_split(torch.arange(10), share=share)


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="at least one of 3 samples"):
        stratified_split(torch.arange(3), share=0.5)


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


def test_exactly_the_share_is_wrong_and_the_other_classes_are_equally_likely() -> None:
    labels = torch.full((30_000,), 2)
    noisy = symmetric_label_noise(labels, rate=0.4, n_classes=4)
    counts = noisy.bincount(minlength=4)
    assert counts[2] == 18_000
    assert (counts[[0, 1, 3]] - 4000).abs().max() < 200
    assert (labels == 2).all()


def test_the_seed_decides_which_labels_are_wrong() -> None:
    labels = torch.arange(100) % 5
    first, again, other = (
        symmetric_label_noise(labels, rate=0.3, n_classes=5, seed=seed).tolist() for seed in (0, 0, 1)
    )
    assert first == again != other
    assert symmetric_label_noise(labels, rate=0.0, n_classes=5).tolist() == labels.tolist()


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_outside_0_to_1_is_refused(rate) -> None:
    with pytest.raises(InputError, match="label_noise: expected a share"):
        symmetric_label_noise(torch.zeros(3).long(), rate=rate, n_classes=2)


def test_one_class_cannot_be_confused() -> None:
    with pytest.raises(InputError, match="at least two classes"):
        symmetric_label_noise(torch.zeros(3).long(), rate=0.5, n_classes=1)


def test_units_are_held_out_whole_and_rows_as_units_are_rows() -> None:
    labels = torch.arange(120) % 3
    patients = torch.arange(120) // 4 * 7 % 31
    kept, held = stratified_split(labels, share=0.25, units=patients)
    assert not set(patients[kept].tolist()) & set(patients[held].tolist())
    assert len(kept) + len(held) == 120
    assert 20 <= len(held) <= 40
    alone = stratified_split(labels, share=0.25, seed=3)
    as_units = stratified_split(labels, share=0.25, seed=3, units=torch.arange(120).flip(0))
    assert all(torch.equal(a, b) for a, b in zip(alone, as_units, strict=True))
