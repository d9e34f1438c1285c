import pytest
import torch

from calibrant.errors import InputError
from calibrant.training.datasets import symmetric_label_noise


def test_exactly_the_share_is_wrong_and_the_other_classes_are_equally_likely() -> None:
    labels = torch.full((30_000,), 2)
    noisy = symmetric_label_noise(labels, rate=0.4, n_classes=4)
    counts = noisy.bincount(minlength=4)
    assert counts[2] == 18_000
    assert (counts[[0, 1, 3]] - 4000).abs().max() < 200
    assert (labels == 2).all()


def test_the_seed_decides() -> None:
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
