import pytest
import torch

from calibrant.errors import InputError
from calibrant.losses.mmce import MMCELoss, kernel_energy, mmce_loss
from calibrant.metrics import mmce


def _batch(n=40, k=4, scale=2.0):
    generator = torch.Generator().manual_seed(3)
    logits = scale * torch.randn(n, k, dtype=torch.float64, generator=generator)
    labels = torch.where(
        torch.rand(n, generator=generator) < 0.6,
        logits.argmax(dim=1),
        torch.randint(0, k, (n,), generator=generator),
    )
    return logits, labels


def _by_double_loop(logits, labels, *, width=0.2, weighted=False):
    r, predicted = torch.softmax(logits, dim=1).max(dim=1)
    right = [int(hit) for hit in predicted == labels]
    total = torch.zeros((), dtype=logits.dtype)
    for i in range(len(r)):
        for j in range(len(r)):
            n_i = right.count(right[i]) if weighted else len(r)
            n_j = right.count(right[j]) if weighted else len(r)
            kernel = torch.exp(-(r[i] - r[j]).abs() / width)
            total = total + (right[i] - r[i]) * (right[j] - r[j]) * kernel / (n_i * n_j)
    return total.sqrt()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("width", [0.2, 0.4, 0.002])
def test_value_and_gradient_are_those_of_the_double_sum(weighted, width):
    logits, labels = _batch()
    mine, loop = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    value = mmce_loss(mine, labels, width=width, weighted=weighted)
    expected = _by_double_loop(loop, labels, width=width, weighted=weighted)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(mine.grad, loop.grad)


def test_the_plain_form_is_the_measure_of_the_same_name():
    logits, labels = _batch(n=300)
    found = float(mmce_loss(logits, labels))
    assert found == pytest.approx(mmce(torch.softmax(logits, dim=1), labels), rel=1e-9)


def test_equal_confidences_have_the_gradient_of_the_double_sum_too():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [3.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    mine, loop = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    mmce_loss(mine, labels).backward()
    _by_double_loop(loop, labels).backward()
    torch.testing.assert_close(mine.grad, loop.grad)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("right", [True, False])
def test_a_batch_that_is_all_right_or_all_wrong_has_a_finite_gradient(weighted, right):
    logits = _batch()[0].requires_grad_()
    labels = logits.argmax(dim=1) if right else logits.argmin(dim=1)
    loss = mmce_loss(logits, labels, weighted=weighted)
    loss.backward()
    assert float(loss.detach()) > 0
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_perfect_batch_is_zero_without_a_gradient(weighted):
    logits = torch.tensor([[1e4, 0.0], [0.0, 1e4]], requires_grad=True)
    loss = mmce_loss(logits, torch.tensor([0, 1]), weighted=weighted)
    loss.backward()
    assert float(loss.detach()) == 0
    assert (logits.grad == 0).all()


def test_the_sum_needs_no_table_of_pairs():
    points = torch.rand(200_000, dtype=torch.float64, requires_grad=True)  # 320 GB as a table
    kernel_energy(points, points - 0.5, width=0.2).backward()
    assert torch.isfinite(points.grad).all()


def test_the_gradient_passes_gradcheck():
    logits, labels = _batch(n=6)
    assert torch.autograd.gradcheck(lambda z: mmce_loss(z, labels), logits.requires_grad_())


def test_a_width_too_narrow_for_the_sums_is_refused():
    with pytest.raises(InputError, match="^width: expected a number of at least 0.002, got 0.0001"):
        MMCELoss(width=1e-4)(*_batch())
