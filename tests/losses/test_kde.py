import pytest
import torch
from torch.distributions import Beta, Dirichlet

from calibrant.errors import InputError
from calibrant.losses.kde import KDELoss, kde_loss
from calibrant.metrics import kde_calibration_error


def _batch(n=14, k=3):
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(n, k, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, k, (n,), generator=generator)


def _by_loop(points, density, seen, *, p):
    """The estimator written out, with the densities of torch.distributions."""
    total = 0.0
    for j in range(len(points)):
        others = [i for i in range(len(points)) if i != j]
        kernel = torch.stack([density(points[i]).log_prob(points[j]).exp().squeeze() for i in others])
        expected = (kernel[:, None] * seen[others]).sum(dim=0) / kernel.sum()
        total = total + (expected - points[j]).abs().pow(p).sum()
    return total / len(points)


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("bandwidth", [0.02, 0.3])
def test_the_top_label_form_uses_the_beta_kernel(p, bandwidth):
    logits, labels = _batch()
    confidence, predicted = torch.softmax(logits, dim=1).max(dim=1)
    expected = _by_loop(
        confidence[:, None],
        lambda c: Beta(c / bandwidth + 1, (1 - c) / bandwidth + 1),
        (predicted == labels).double()[:, None],
        p=p,
    )
    torch.testing.assert_close(kde_loss(logits, labels, p=p, bandwidth=bandwidth), expected)


def test_the_canonical_form_uses_the_dirichlet_kernel():
    logits, labels = _batch()
    expected = _by_loop(
        torch.softmax(logits, dim=1),
        lambda c: Dirichlet(c / 0.1 + 1),
        torch.nn.functional.one_hot(labels, 3).double(),
        p=2.0,
    )
    torch.testing.assert_close(kde_loss(logits, labels, p=2.0, bandwidth=0.1, mode="canonical"), expected)


@pytest.mark.parametrize("mode", ["top_label", "canonical"])
def test_it_is_the_measure_of_the_same_name(mode):
    logits, labels = _batch(n=60)
    expected = kde_calibration_error(torch.softmax(logits, dim=1), labels, bandwidth=0.05, mode=mode)
    assert float(kde_loss(logits, labels, bandwidth=0.05, mode=mode)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("mode", ["top_label", "canonical"])
def test_the_gradient_passes_gradcheck(mode):
    logits, labels = _batch(n=6)
    assert torch.autograd.gradcheck(lambda z: kde_loss(z, labels, mode=mode), logits.requires_grad_())


@pytest.mark.parametrize("mode", ["top_label", "canonical"])
def test_certain_and_equal_predictions_have_finite_gradients(mode):
    logits = torch.tensor([[1e4, 0.0], [1e4, 0.0], [0.0, 0.0], [0.0, 30.0]], requires_grad=True)
    loss = kde_loss(logits, torch.tensor([0, 1, 0, 1]), mode=mode)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_a_batch_of_one_has_no_neighbours_and_is_zero():
    logits = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = kde_loss(logits, torch.tensor([1]))
    loss.backward()
    assert float(loss.detach()) == 0
    assert (logits.grad == 0).all()


@pytest.mark.parametrize(("option", "value"), [("p", 0.5), ("bandwidth", 0.0), ("mode", "marginal")])
def test_options_outside_their_range_are_refused(option, value):
    with pytest.raises(InputError, match=f"^{option}: expected"):
        KDELoss(**{option: value})(*_batch())


@pytest.mark.parametrize("mode", ["top_label", "canonical"])
def test_a_batch_whose_pairs_would_not_fit_is_refused_before_memory_is_taken(mode):
    positions = torch.zeros(1, 2, 1000, 1000)  # a segmented image: a table of 8,000 GB
    with pytest.raises(
        InputError, match=r"^logits: expected at most 20,000 samples .*, got 1,000,000; .* 8,000 GB"
    ):
        kde_loss(positions, torch.zeros(1, 1000, 1000, dtype=torch.int64), mode=mode)
