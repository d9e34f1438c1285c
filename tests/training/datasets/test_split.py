import pytest
import torch

from calibrant.errors import InputError
from calibrant.training.datasets import stratified_split


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


def test_the_seed_decides_and_nothing_else() -> None:
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
