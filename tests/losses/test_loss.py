"""Sums of losses: they read, add, scale, learn and remember as they do on paper."""

import pytest
import torch
from safetensors.torch import load, save

from calibrant.errors import InputError
from calibrant.losses import (
    AdaFocalLoss,
    CRLLoss,
    CrossEntropyLoss,
    DCALoss,
    FocalLoss,
    MDCALoss,
    OLSLoss,
    RefinementLoss,
    SupervisedContrastiveLoss,
)
from calibrant.losses.loss import EpochRecords, WeightedSum
from calibrant.losses.names import make_loss
from tests.losses.batches import batch, gradient


def test_a_weighted_sum_is_the_sum_of_its_weighted_terms_and_so_is_its_gradient():
    logits, labels = batch()
    first, second = FocalLoss(gamma=2.0), MDCALoss()
    total = 3 * first + second * 0.5
    torch.testing.assert_close(
        total(logits, labels), 3 * first(logits, labels) + 0.5 * second(logits, labels)
    )
    torch.testing.assert_close(
        gradient(total, logits, labels),
        3 * gradient(first, logits, labels) + 0.5 * gradient(second, logits, labels),
    )


@pytest.mark.parametrize("factor", [0.0, 0.5, 10.0])
def test_the_weight_of_a_term_is_honoured(factor):
    # A peer's DCA takes a weight and ignores it.
    logits, labels = batch()
    added = (CrossEntropyLoss() + factor * DCALoss())(logits, labels) - CrossEntropyLoss()(logits, labels)
    torch.testing.assert_close(added, factor * DCALoss()(logits, labels))


def test_a_sum_of_sums_is_flat_and_scaling_it_scales_every_term():
    total = 2 * (CrossEntropyLoss() + 0.5 * (MDCALoss() + 3 * DCALoss()))
    assert total.weights == (2.0, 1.0, 3.0)
    assert repr(total) == "2 * CrossEntropyLoss() + MDCALoss() + 3 * DCALoss()"


def test_it_reads_as_it_was_written():
    assert repr(FocalLoss(gamma=3.0) + 0.5 * MDCALoss()) == "FocalLoss(gamma=3.0) + 0.5 * MDCALoss()"


def test_one_loss_may_stand_in_several_sums():
    shared = CrossEntropyLoss()
    first, second = shared + MDCALoss(), 2.0 * shared
    assert first.terms[0] is second.terms[0] is shared
    assert first.weights == (1.0, 1.0)


@pytest.mark.parametrize("foreign", [torch.nn.CrossEntropyLoss(), 1.0, None])
def test_what_is_no_loss_of_ours_cannot_be_added(foreign):
    with pytest.raises(InputError, match=r"^loss: expected a Calibrant loss to add, got "):
        FocalLoss() + foreign


@pytest.mark.parametrize(
    "made",
    [
        lambda: CrossEntropyLoss() + 0.5 * SupervisedContrastiveLoss(),
        lambda: SupervisedContrastiveLoss() + CrossEntropyLoss(),
        lambda: FocalLoss() + MDCALoss() + RefinementLoss(),
        lambda: make_loss("cross_entropy + 0.5 * supervised_contrastive"),
    ],
)
def test_a_loss_of_logits_and_one_of_embeddings_are_not_added_but_told_what_to_do(made):
    expected = (
        r"^loss: expected terms that all read logits or all read embeddings, got .*Loss\(.*; train with "
        r"encoder\.joint in a configuration, or call each loss yourself, one with logits and one with unit "
        r"features, and add the values$"
    )
    with pytest.raises(InputError, match=expected):
        made()


def test_losses_of_embeddings_are_added_to_each_other():
    z, labels = torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    contrast, refinement = SupervisedContrastiveLoss(), RefinementLoss()
    expected = 0.5 * contrast(z, labels) + refinement(z, labels)
    torch.testing.assert_close((0.5 * contrast + refinement)(z, labels), expected)


def test_python_sums_need_a_start_because_0_is_no_loss():
    with pytest.raises(TypeError):
        sum([FocalLoss(), MDCALoss()])  # type: ignore[list-item]
    assert repr(sum([MDCALoss()], start=FocalLoss())) == "FocalLoss(gamma=3.0) + MDCALoss()"


def test_needs_are_those_of_all_terms_and_each_term_is_handed_its_own():
    total = CrossEntropyLoss() + CRLLoss(n_samples=12)
    assert CrossEntropyLoss().needs == ()
    assert total.needs == ("indices",)
    logits, labels = batch()
    total(logits.requires_grad_(), labels, indices=torch.arange(12)).backward()
    assert torch.isfinite(logits.grad).all()


def test_a_missing_argument_is_named():
    logits, labels = batch()
    with pytest.raises(TypeError, match="indices"):
        (CrossEntropyLoss() + CRLLoss(n_samples=12))(logits, labels)


def test_an_update_reaches_every_term_and_the_history_holds_what_they_recorded():
    adaptive, smoothing = AdaFocalLoss(n_bins=3), OLSLoss(n_classes=5)
    total = adaptive + 0.5 * smoothing + MDCALoss()
    logits, labels = batch()
    for _ in range(2):
        total(logits.clone().requires_grad_(), labels)
        total.update(*batch(100, seed=1))
    assert [set(entry) for entry in total.history] == [{"edges", "gap", "gammas"}] * 2 + [
        {"own", "renewed"}
    ] * 2
    assert total.history == adaptive.history + smoothing.history


def test_a_loss_without_memory_may_be_updated_and_has_no_history():
    total = CrossEntropyLoss() + MDCALoss()
    total.update()
    total.update(*batch())
    assert total.history == []


def test_modes_and_types_reach_the_terms():
    total = (CrossEntropyLoss(weight=torch.ones(5)) + OLSLoss(5)).eval().double()
    assert not any(term.training for term in total.terms)
    assert total.terms[0].weight.dtype == total.terms[1].sums.dtype == torch.float64


def test_class_weights_are_options_and_not_state():
    assert CrossEntropyLoss(weight=torch.ones(5)).state_dict() == {}


def test_a_misspelt_option_is_refused_by_name():
    with pytest.raises(TypeError, match=r"FocalLoss\.__init__\(\) got an unexpected keyword argument 'gama'"):
        FocalLoss(gama=2.0)  # type: ignore[call-arg]


def test_a_sum_is_a_module_that_holds_its_terms():
    total = CrossEntropyLoss() + OLSLoss(3)
    assert isinstance(total, WeightedSum)
    assert any("soft_labels" in key for key in total.state_dict())


def _records():
    records = EpochRecords({"size": 1, "edges": 2})
    records.add(size=torch.tensor(3), edges=torch.tensor([0.25, 0.5]))
    records.add(size=torch.tensor(4), edges=torch.tensor([0.75, 1.0]))
    return records


def test_entries_are_plain_numbers_oldest_first():
    assert _records().entries == [{"size": 3.0, "edges": [0.25, 0.5]}, {"size": 4.0, "edges": [0.75, 1.0]}]


def test_nothing_recorded_is_an_empty_list():
    assert EpochRecords({"size": 1}).entries == []


def test_the_state_goes_through_a_file_of_tensors():
    restored = EpochRecords({"size": 1, "edges": 2})
    restored.load_state_dict(load(save(_records().state_dict())))
    assert restored.entries == _records().entries


def test_a_saved_state_does_not_grow_with_later_epochs():
    records = _records()
    state = records.state_dict()
    records.add(size=torch.tensor(5), edges=torch.zeros(2))
    other = EpochRecords({"size": 1, "edges": 2})
    other.load_state_dict(state)
    assert len(other.entries) == 2
