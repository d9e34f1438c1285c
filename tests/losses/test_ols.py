"""Online label smoothing: soft labels from the epoch before."""

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.label_smoothing import label_smoothing_loss
from calibrant.losses.ols import OLSLoss, ols_loss
from tests.losses.batches import batch, gradient


def _soft_labels(batches, k, before):
    """Mean predictions of correctly classified samples of each class, sample by sample."""
    rows = [[] for _ in range(k)]
    for logits, labels in batches:
        for z, y in zip(logits, labels.tolist(), strict=True):
            if int(z.argmax()) == y:
                rows[y].append(torch.softmax(z, dim=0))
    return torch.stack([torch.stack(r).mean(dim=0) if r else before[y] for y, r in enumerate(rows)])


def _train(loss, batches):
    for logits, labels in batches:
        loss(logits.clone().requires_grad_(), labels).backward()
    loss.update()


def test_the_value_is_a_mixture_of_hard_and_soft_cross_entropy():
    logits, labels = batch()
    soft = torch.softmax(batch(n=5, seed=1)[0], dim=1)
    log_p = torch.log_softmax(logits, dim=1)
    expected = [
        -0.3 * log_p[i, y] - 0.7 * sum(soft[y, c] * log_p[i, c] for c in range(5))
        for i, y in enumerate(labels.tolist())
    ]
    found = ols_loss(logits, labels, soft_labels=soft, hard=0.3, reduction="none")
    torch.testing.assert_close(found, torch.stack(expected))


def test_the_gradient_is_prediction_minus_target():
    logits, labels = batch()
    soft = torch.softmax(batch(n=5, seed=1)[0], dim=1)
    expected = torch.softmax(logits, dim=1) - 0.5 * F.one_hot(labels, 5) - 0.5 * soft[labels]
    found = gradient(lambda z, y: ols_loss(z, y, soft_labels=soft, reduction="none"), logits, labels)
    torch.testing.assert_close(found, expected)


def test_the_first_epoch_is_label_smoothing():
    logits, labels = batch()
    found = OLSLoss(5, hard=0.9)(logits, labels)
    torch.testing.assert_close(found, label_smoothing_loss(logits, labels, smoothing=0.1), rtol=1e-5, atol=0)


def test_a_hard_share_of_1_is_cross_entropy():
    logits, labels = batch()
    torch.testing.assert_close(OLSLoss(5, hard=1.0)(logits, labels), F.cross_entropy(logits, labels))


def test_soft_labels_are_the_mean_correct_predictions_of_the_epoch():
    loss = OLSLoss(5).double()
    before = loss.soft_labels.clone()
    for epoch in range(2):
        batches = [batch(20, seed=10 * epoch + i) for i in range(3)]
        _train(loss, batches)
        before = _soft_labels(batches, 5, before)
        torch.testing.assert_close(loss.soft_labels, before)


def test_a_class_that_was_never_right_keeps_its_soft_label():
    loss = OLSLoss(3)
    _train(loss, [(torch.tensor([[3.0, 0.0, 0.0], [3.0, 0.0, 0.0]]), torch.tensor([0, 1]))])
    torch.testing.assert_close(loss.soft_labels[1:], torch.full((2, 3), 1 / 3))
    assert loss.soft_labels[0, 0] > 0.9
    assert loss.history == [{"own": pytest.approx(0.52, abs=0.01), "renewed": pytest.approx(1 / 3)}]


def test_soft_labels_do_not_change_within_an_epoch():
    loss = OLSLoss(5)
    loss(batch()[0].requires_grad_(), batch()[1])
    assert torch.equal(loss.soft_labels, torch.full((5, 5), 0.2))
    assert loss.sums.sum() > 0


def test_validation_batches_are_not_learned_from():
    loss = OLSLoss(5)
    logits, labels = batch()
    with torch.no_grad():
        loss(logits, labels)
    loss.eval()
    loss(logits.requires_grad_(), labels)
    assert loss.sums.sum() == 0


def test_dense_and_ignored_labels_are_learned_as_rows():
    logits, labels = batch(24)
    labels[3] = -100
    flat, dense = OLSLoss(5), OLSLoss(5)
    _train(flat, [(logits, labels)])
    _train(dense, [(logits.view(4, 6, 5).movedim(-1, 1), labels.view(4, 6))])
    torch.testing.assert_close(dense.soft_labels, flat.soft_labels)


def test_training_resumes_within_an_epoch():
    loss = OLSLoss(5)
    _train(loss, [batch()])
    loss(batch(seed=1)[0].requires_grad_(), batch(seed=1)[1])
    restored = OLSLoss(5)
    restored.load_state_dict(loss.state_dict())
    for each in (loss, restored):
        each.update()
    assert torch.equal(restored.soft_labels, loss.soft_labels)
    assert restored.history == loss.history


def test_another_number_of_classes_is_refused():
    with pytest.raises(InputError, match=r"^soft_labels: expected shape \(5, 5\) .* got \(4, 4\)"):
        OLSLoss(4)(*batch())
