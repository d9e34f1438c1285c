import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.seca import SECALoss, seca_loss


def _batch(n=12, k=5):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, k, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, k, (n,), generator=generator)


def _targets(logits, labels):
    """The hybrid targets of Eq. 6, sample by sample."""
    p = torch.softmax(logits, dim=1)
    rows = []
    for y in labels.tolist():
        mean = torch.stack([p[i] for i in range(len(p)) if labels[i] == y]).mean(dim=0)
        rows.append(F.one_hot(torch.tensor(y), p.shape[1]) + mean)
    return torch.stack(rows)


def test_the_value_is_cross_entropy_against_label_plus_class_mean():
    logits, labels = _batch()
    expected = -(_targets(logits, labels) * torch.log_softmax(logits, dim=1)).sum(dim=1)
    torch.testing.assert_close(seca_loss(logits, labels, reduction="none"), expected)


def test_the_gradient_is_equation_12_of_the_paper():
    logits, labels = _batch()
    logits.requires_grad_()
    seca_loss(logits, labels, reduction="sum").backward()
    expected = 2 * torch.softmax(logits, dim=1) - _targets(logits, labels)
    torch.testing.assert_close(logits.grad, expected.detach())


def test_the_second_derivative_is_twice_that_of_cross_entropy():
    logits, labels = _batch(n=3)
    hessian = torch.autograd.functional.hessian(lambda z: seca_loss(z, labels, reduction="sum"), logits)
    once = torch.autograd.functional.hessian(lambda z: F.cross_entropy(z, labels, reduction="sum"), logits)
    torch.testing.assert_close(hessian, 2 * once)


def test_with_one_sample_per_class_the_gradient_is_that_of_cross_entropy():
    logits, _ = _batch(n=5)
    labels = torch.tensor([3, 1, 4, 0, 2])
    mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    seca_loss(mine, labels).backward()
    F.cross_entropy(theirs, labels).backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_ignored_samples_do_not_enter_the_class_means():
    logits, labels = _batch()
    labels[::3] = -100
    kept = labels != -100
    values = seca_loss(logits, labels, reduction="none")
    torch.testing.assert_close(values[kept], seca_loss(logits[kept], labels[kept], reduction="none"))
    assert (values[~kept] == 0).all()


def test_every_position_of_a_dense_prediction_is_a_sample():
    logits, labels = _batch()
    dense = logits.reshape(3, 2, 2, 5).movedim(-1, 1)
    values = seca_loss(dense, labels.reshape(3, 2, 2), reduction="none")
    torch.testing.assert_close(values.flatten(), seca_loss(logits, labels, reduction="none"))


def test_class_weights_average_as_in_cross_entropy():
    logits, labels = _batch()
    weight = torch.tensor([1.0, 2.0, 0.5, 0.0, 3.0], dtype=torch.float64)
    values, share = seca_loss(logits, labels, reduction="none"), weight[labels]
    torch.testing.assert_close(SECALoss(weight=weight)(logits, labels), (share * values).sum() / share.sum())


def test_memory_holds_only_classes_that_occur():
    logits = torch.zeros(2, 200_000, requires_grad=True)  # the square of the classes would need 160 GB
    seca_loss(logits, torch.tensor([0, 199_999])).backward()
    assert torch.isfinite(logits.grad).all()


def test_sure_and_wrong_at_extreme_logits_keeps_its_digits():
    value = seca_loss(torch.tensor([[1e4, 0.0], [1e4, 3.0]]), torch.tensor([1, 0]), reduction="none")
    torch.testing.assert_close(value, torch.tensor([1e4, 0.0]))


def test_soft_labels_mix_the_losses_of_the_classes_and_their_means_by_share():
    logits, _ = _batch()
    soft = torch.softmax(_batch(n=12)[0].flip(0), dim=1)
    p = torch.softmax(logits, dim=1)
    expected = []
    for i in range(12):
        value = torch.zeros((), dtype=torch.float64)
        for c in range(5):
            mean = sum(soft[j, c] * p[j] for j in range(12)) / soft[:, c].sum()
            value += soft[i, c] * -(p[i].log()[c] + (mean * p[i].log()).sum())
        expected.append(value)
    torch.testing.assert_close(seca_loss(logits, soft, reduction="none"), torch.stack(expected))
    with pytest.raises(InputError, match="^weight: expected none with soft labels"):
        seca_loss(logits, soft, weight=torch.ones(5))


@pytest.mark.parametrize("soft", [False, True])
def test_the_last_micro_batch_of_a_step_has_the_class_means_of_the_whole_batch(soft):
    logits, labels = _batch(n=12)
    labels = F.one_hot(labels, 5).double() if soft else labels
    whole = seca_loss(logits, labels, reduction="none")
    loss = SECALoss(accumulate=3, reduction="none")
    for _ in range(2):  # two steps: nothing of the first is left in the second
        values = [
            loss(z.clone().requires_grad_(), y) for z, y in zip(logits.split(4), labels.split(4), strict=True)
        ]
        torch.testing.assert_close(values[0].detach(), seca_loss(logits[:4], labels[:4], reduction="none"))
        torch.testing.assert_close(values[2].detach(), whole[8:])
    loss(logits[:4].clone().requires_grad_(), labels[:4])
    loss.update()  # a step that ended early
    first = loss(logits[4:8].clone().requires_grad_(), labels[4:8]).detach()
    torch.testing.assert_close(first, seca_loss(logits[4:8], labels[4:8], reduction="none"))
