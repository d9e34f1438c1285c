"""Correctness ranking: confidence in the order of learning."""

import pytest
import torch

from calibrant.errors import InputError
from calibrant.losses.crl import CRLLoss, crl_loss
from calibrant.losses.cross_entropy import CrossEntropyLoss
from tests.losses.batches import batch, gradient


def _definition(logits, correctness):
    """Each sample with its successor, the last with the first."""
    kappa = torch.softmax(logits, dim=1).amax(dim=1).tolist()
    c = correctness.tolist()
    total = 0.0
    for i in range(len(c)):
        j = (i + 1) % len(c)
        sign = (c[i] > c[j]) - (c[i] < c[j])
        total += max(0.0, -sign * (kappa[i] - kappa[j]) + abs(c[i] - c[j]))
    return total / len(c)


def _correctness(n):
    return torch.randint(0, 5, (n,), generator=torch.Generator().manual_seed(2)).double() / 4


def _with_history(n):
    loss = CRLLoss(n)
    for epoch in range(4):
        logits, labels = batch(n, seed=epoch)
        loss(logits.requires_grad_(), labels, indices=torch.arange(n))
        loss.update()
    return loss


def test_the_value_is_the_ranking_loss_of_neighbours():
    logits, labels = batch()
    found = crl_loss(logits, labels, correctness=_correctness(12))
    assert float(found) == pytest.approx(_definition(logits, _correctness(12)))


def test_the_gradient_moves_confidences_apart():
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    found = gradient(
        lambda z, y: crl_loss(z, y, correctness=torch.tensor([1.0, 0.0])), logits, torch.tensor([0, 1])
    )
    assert found[0, 0] < 0 < found[1, 0]


def test_ignored_samples_have_no_neighbours():
    logits, labels = batch()
    labels[4] = -100
    kept = labels >= 0
    found = crl_loss(logits, labels, correctness=_correctness(12))
    assert float(found) == pytest.approx(_definition(logits[kept], _correctness(12)[kept]))


def test_equal_histories_ask_for_nothing():
    logits, labels = batch()
    assert crl_loss(logits, labels, correctness=torch.full((12,), 0.5)) == 0
    assert CRLLoss(12)(logits, labels, indices=torch.arange(12)) == 0


def test_the_history_is_the_share_of_correct_epochs():
    loss = _with_history(12)
    expected = torch.stack(
        [(batch(12, seed=epoch)[0].argmax(dim=1) == batch(12, seed=epoch)[1]).float() for epoch in range(4)]
    ).mean(dim=0)
    torch.testing.assert_close(loss.correctness, expected)
    last = loss.history[-1]
    assert last["mean"] == pytest.approx(float(expected.mean()))
    assert last["never"] == pytest.approx(float((expected == 0).double().mean()))
    assert last["always"] == pytest.approx(float((expected == 1).double().mean()))


def test_samples_are_found_by_their_index_in_any_order():
    loss = _with_history(12)
    logits, labels = batch(4, seed=7)
    indices = torch.tensor([11, 2, 5, 0])
    found = loss(logits, labels, indices=indices)
    assert float(found) == pytest.approx(_definition(logits, loss.correctness[indices]))


def test_the_history_changes_at_the_end_of_an_epoch_only():
    loss = _with_history(12)
    logits, labels = batch()
    before = loss.correctness.clone()
    first = loss(logits.requires_grad_(), labels, indices=torch.arange(12))
    assert loss(logits, labels, indices=torch.arange(12)) == first
    assert torch.equal(loss.correctness, before)


def test_validation_batches_are_not_noted():
    loss = CRLLoss(12)
    logits, labels = batch()
    loss(logits, labels, indices=torch.arange(12))
    loss.eval()
    loss(logits.requires_grad_(), labels, indices=torch.arange(12))
    assert loss.new_seen.sum() == 0


def test_training_resumes_from_a_checkpoint():
    loss = _with_history(12)
    restored = CRLLoss(12)
    restored.load_state_dict(loss.state_dict())
    assert torch.equal(restored.correctness, loss.correctness)
    assert restored.history == loss.history


def test_a_sum_of_losses_hands_the_indices_on():
    logits, labels = batch()
    total = CrossEntropyLoss() + 0.5 * _with_history(12)
    assert total.needs == ("indices",)
    term = _with_history(12)(logits, labels, indices=torch.arange(12))
    found = total(logits, labels, indices=torch.arange(12))
    torch.testing.assert_close(found, CrossEntropyLoss()(logits, labels) + 0.5 * term)


def test_indices_beyond_the_training_set_are_refused():
    with pytest.raises(InputError, match="^indices: expected numbers from 0 to 9, got 0 to 11; give CRLLoss"):
        CRLLoss(10)(*batch(), indices=torch.arange(12))


def test_dense_predictions_are_refused():
    with pytest.raises(InputError, match="^labels: expected one class per sample"):
        CRLLoss(2)(torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.int64), indices=torch.arange(2))
