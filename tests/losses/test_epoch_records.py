"""Records of epochs: readable, and saved with the loss."""

import torch
from safetensors.torch import load, save

from calibrant.losses.parts.epoch_records import EpochRecords


def _filled():
    records = EpochRecords({"size": 1, "edges": 2})
    records.add(size=torch.tensor(3), edges=torch.tensor([0.25, 0.5]))
    records.add(size=torch.tensor(4), edges=torch.tensor([0.75, 1.0]))
    return records


def test_entries_are_plain_numbers_oldest_first():
    assert _filled().entries == [{"size": 3.0, "edges": [0.25, 0.5]}, {"size": 4.0, "edges": [0.75, 1.0]}]


def test_nothing_recorded_is_an_empty_list():
    assert EpochRecords({"size": 1}).entries == []


def test_the_state_goes_through_a_file_of_tensors():
    restored = EpochRecords({"size": 1, "edges": 2})
    restored.load_state_dict(load(save(_filled().state_dict())))
    assert restored.entries == _filled().entries


def test_a_saved_state_does_not_grow_with_later_epochs():
    records = _filled()
    state = records.state_dict()
    records.add(size=torch.tensor(5), edges=torch.zeros(2))
    other = EpochRecords({"size": 1, "edges": 2})
    other.load_state_dict(state)
    assert len(other.entries) == 2
