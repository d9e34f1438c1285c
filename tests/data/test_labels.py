"""Several labels at once: the long form, files, and what is refused."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from calibrant import LabelPredictions, load_predictions, save_predictions
from calibrant.data import Columns
from calibrant.errors import FormatError, InputError

PROBS = np.array([[0.9, 0.2, 0.6], [0.7, 0.0, 0.5], [0.1, 1.0, 0.4]])
LABELS = np.array([[1, 0, 1], [1, 0, 0], [0, 1, 0]])
NAMES = ["dog", "cat", "a, b"]


def predictions(**options):
    return LabelPredictions(**{"probs": PROBS, "labels": LABELS, "label_names": NAMES} | options)


def test_entries_are_binary_problems_row_after_row():
    long = predictions(weights=[1, 2, 3])
    assert long.groups is not None
    entries = [(row, column) for row in range(3) for column in range(3)]
    assert long.n == 9
    assert long.confidence.tolist() == [PROBS[entry] for entry in entries]
    assert long.correct.tolist() == [bool(LABELS[entry]) for entry in entries]
    assert long.groups.values == [NAMES[column] for _, column in entries]
    assert long.weights.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    torch.testing.assert_close(long.problem.to_probs()[:, 1], long.confidence)
    assert long.problem.labels.tolist() == LABELS.ravel().tolist()
    np.testing.assert_array_equal(long.take_rows([2, 0]).label_matrix, LABELS[[2, 0]])
    assert not isinstance(long.take([0, 1]), LabelPredictions)


def test_logits_are_log_odds_that_may_be_large_and_of_half_precision():
    logits = torch.tensor([[30.0, -40.0], [0.0, 2.0]], dtype=torch.float16)
    given = LabelPredictions(logits=logits, labels=[[1, 0], [1, 1]])
    torch.testing.assert_close(given.matrix, torch.sigmoid(logits.double()))
    classes = given.problem.to_logits()
    torch.testing.assert_close(classes[:, 1] - classes[:, 0], logits.double().flatten())
    assert torch.isfinite(predictions().log_odds).all()
    assert given.label_names == ("0", "1")


def test_a_copy_is_the_same():
    for again in (pickle.loads(pickle.dumps(predictions())), copy.deepcopy(predictions())):
        assert repr(again) == "LabelPredictions(n_rows=3, probs float64, labels, label_names dog, cat, a, b)"
        assert torch.equal(again.matrix, predictions().matrix)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".tsv", ".parquet", ".safetensors", ".jsonl"])
def test_a_file_gives_back_what_was_saved(tmp_path, suffix):
    path = tmp_path / f"labels{suffix}"
    for given in (predictions(weights=[1, 2, 3]), LabelPredictions(logits=PROBS, labels=LABELS)):
        save_predictions(given, path)
        found = load_predictions(path)
        assert isinstance(found, LabelPredictions)
        assert (found.form, found.label_names) == (given.form, given.label_names)
        assert torch.equal(found.scores, given.scores)
        assert torch.equal(found.label_matrix, given.label_matrix)
        assert (found.weights is None) == (given.weights is None)
    save_predictions(predictions(labels=None), path)
    unlabelled = load_predictions(path, need_labels=False, columns=Columns(several_labels=True))
    assert isinstance(unlabelled, LabelPredictions)
    assert unlabelled.label_matrix is None


def test_columns_of_labels_are_those_of_the_scores_in_any_order(tmp_path):
    path = tmp_path / "labels.csv"
    table = pd.DataFrame(
        {"labels_cat": [0, 1, 1], "probs_dog": [0.9, 0.5, 0.3], "probs_cat": [0.1, 0.6, 0.7]}
    )
    table.assign(labels_dog=[1, 1, 0]).to_csv(path, index=False)
    found = load_predictions(path)
    assert isinstance(found, LabelPredictions)
    assert found.label_names == ("dog", "cat")
    assert found.label_matrix.tolist() == [[True, False], [True, True], [False, True]]
    table.to_csv(path, index=False)
    with pytest.raises(FormatError, match="got none for 'dog'; add 'labels_dog'"):
        load_predictions(path)


def test_one_class_in_one_hot_form_is_not_taken_for_labels(tmp_path):
    path = tmp_path / "one_hot.npz"
    np.savez(path, probs=[[0.9, 0.1], [0.3, 0.7]], labels=[[1, 0], [0, 1]])
    with pytest.raises(InputError, match="one-hot; pass labels.argmax"):
        load_predictions(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probs": None}, "^predictions: expected either probs or logits, got none"),
        ({"logits": PROBS}, "^predictions: expected either probs or logits, got both"),
        ({"probs": PROBS[0]}, r"^probs: expected shape \(n, l\)"),
        ({"probs": 100 * PROBS}, "^probs: expected numbers between 0 and 1, got 100 in row 2"),
        (
            {"labels": LABELS[:, 0]},
            r"^labels: expected 1 or 0 for each label, shape \(3, 3\), got shape \(3,\)",
        ),
        ({"labels": 2 * LABELS}, "^labels: expected true/false or 1/0, got 2"),
        ({"label_names": ["a", "b"]}, "^label_names: expected 3 names, one per label, got 2"),
        ({"label_names": ["a", "b", "a"]}, "^label_names: expected unique names, got 'a' twice"),
        ({"weights": [1, 2]}, "^weights: expected 3 entries"),
    ],
)
def test_what_is_not_a_label_matrix_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        predictions(**options)
