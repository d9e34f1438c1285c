import pickle

import pytest
import torch

from calibrant.errors import InputError
from calibrant.training.datasets import LabelledData, Splits


def points(n: int = 4, *, label: int | None = None, d: int = 2) -> LabelledData:
    labels = torch.arange(n) % 2 if label is None else torch.full((n,), label)
    return LabelledData(torch.arange(n * d).reshape(n, d).float(), labels, None, "embedding")


def test_take_keeps_inputs_and_labels_together() -> None:
    taken = points().take([3, 0])
    assert taken.inputs.tolist() == [[6.0, 7.0], [0.0, 1.0]]
    assert taken.labels.tolist() == [1, 0]
    assert len(points().take(points().labels == 1)) == 2
    with pytest.raises(InputError, match="index: expected row numbers below 4 or a mask of that length"):
        points().take([4])


@pytest.mark.parametrize(
    ("inputs", "labels", "kind", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2).long(), "image", "inputs: expected images as uint8"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2).long(), "embedding", "inputs: expected floats"),
        (torch.zeros(2, 3), torch.zeros(2).long(), "text", "inputs: expected token ids"),
        (torch.zeros(2, 3), torch.zeros(2).long(), "sound", "kind: expected"),
        (torch.zeros(0, 3), torch.zeros(0).long(), "embedding", "at least one sample"),
        (torch.zeros(2, 3), torch.zeros(3).long(), "embedding", r"labels: expected int64 of shape \(2,\)"),
        (torch.zeros(2, 3), torch.zeros(2), "embedding", "labels: expected int64"),
        (torch.zeros(2, 3), torch.tensor([0, -2]), "embedding", "got -2"),
    ],
)
def test_what_is_not_labelled_data_is_refused(inputs, labels, kind, message) -> None:
    with pytest.raises(InputError, match=message):
        LabelledData(inputs, labels, None, kind)


def test_names_must_be_unique_and_cover_every_label() -> None:
    with pytest.raises(InputError, match="from 0 to 0, which have names, got 1"):
        LabelledData(torch.zeros(2, 3), torch.tensor([0, 1]), ("a",), "embedding")
    with pytest.raises(InputError, match="'a' twice"):
        LabelledData(torch.zeros(2, 3), torch.tensor([0, 1]), ("a", "a"), "embedding")


def test_splits_count_classes_and_survive_pickling() -> None:
    splits = Splits(points(), points(), points(), foreign={"noise": points().as_foreign()})
    again = pickle.loads(pickle.dumps(splits))
    assert splits.n_classes == again.n_classes == 2
    assert again.foreign["noise"].labels.tolist() == [-1] * 4
    with pytest.raises(TypeError):
        splits.shifted["more"] = points()


def test_parts_must_have_the_same_shape_and_labels_of_their_side() -> None:
    with pytest.raises(InputError, match=r"test: expected embedding inputs of shape \(2,\)"):
        Splits(points(), points(), points(d=3))
    with pytest.raises(InputError, match="validation: expected a class for every sample"):
        Splits(points(), points(label=-1), points())
    with pytest.raises(InputError, match="far: expected the label -1"):
        Splits(points(), points(), points(), foreign={"far": points()})
