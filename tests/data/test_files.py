import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from calibrant.data import Predictions, load_predictions, save_predictions
from calibrant.data.files import FORMATS
from calibrant.errors import FormatError, InputError

LOGITS = np.array([[1.0, 2.0], [3.0, 4.0]])


def refusal(path, error=FormatError, **options):
    with pytest.raises(error) as caught:
        load_predictions(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path.name}: ")
    assert "\n" not in message
    return message


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "preds.npz", **arrays)
        return tmp_path / "preds.npz"

    return write


@pytest.mark.parametrize("name", ["preds.npy", "preds", "preds.pkl"])
def test_an_unknown_suffix_lists_the_known_ones(tmp_path, name):
    path = tmp_path / name
    message = refusal(path)
    assert "expected a file named .npz, .parquet, .csv, .tsv, .safetensors, .jsonl, got" in message
    with pytest.raises(FormatError, match=r"\.npz, \.parquet, \.csv, \.tsv, \.safetensors"):
        save_predictions(Predictions(logits=LOGITS), path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_missing_file_is_said_to_be_missing(tmp_path, suffix):
    path = tmp_path / f"preds{suffix}"
    assert refusal(path) == f"preds{suffix}: no such file in {tmp_path}; check the path"


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_directory_is_refused(tmp_path, suffix):
    path = tmp_path / f"preds{suffix}"
    path.mkdir()
    assert refusal(path).endswith("expected a file, got a directory; name a file inside it")


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_empty_file_is_refused(tmp_path, suffix):
    path = tmp_path / f"preds{suffix}"
    path.touch()
    assert refusal(path).endswith("expected predictions, got an empty file; write it again")


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors"])
@pytest.mark.parametrize(
    "content", [b"hello, this is a letter\n" * 9, b"\x80\x04\x95garbage", b"PK\x03\x04", b"{}"]
)
def test_something_else_by_that_name_is_refused(tmp_path, suffix, content):
    path = tmp_path / f"preds{suffix}"
    path.write_bytes(content)
    assert f"expected a {suffix} file, got a file that cannot be read as such (" in refusal(path)


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors"])
def test_a_file_cut_anywhere_is_refused(tmp_path, suffix):
    path = tmp_path / f"preds{suffix}"
    save_predictions(Predictions(logits=LOGITS, labels=[0, 1]), path)
    content = path.read_bytes()
    for size in range(1, len(content), 7):
        path.write_bytes(content[:size])
        assert "it may be truncated" in refusal(path)


def test_a_csv_cut_in_a_row_is_refused(tmp_path):
    path = tmp_path / "preds.csv"
    save_predictions(Predictions(logits=LOGITS, labels=[0, 1]), path)
    path.write_bytes(path.read_bytes()[:-3])
    assert "it may be truncated" in refusal(path)


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors"])
def test_a_damaged_file_is_read_or_refused_but_never_crashes(tmp_path, suffix):
    path = tmp_path / f"preds{suffix}"
    save_predictions(Predictions(logits=LOGITS, labels=[0, 1]), path)
    content = path.read_bytes()
    for place in range(0, len(content), 5):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        with contextlib.suppress(FormatError, InputError):
            load_predictions(path)


def test_an_archive_without_some_of_its_bytes_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "p.npz"
    np.savez(path, logits=np.eye(3)[[0, 1, 2] * 9], labels=[0, 1, 2] * 9)
    whole = path.read_bytes()
    for place in range(0, len(whole) - 12, 12):
        path.write_bytes(whole[:place] + whole[place + 12 :])
        assert refusal(path).startswith("p.npz: ")


def test_names_of_columns_with_line_breaks_are_shown_in_one_line(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text('"a\nb",c\n1,2\n')
    assert "got a\\nb, c;" in refusal(path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_missing_labels_are_named_unless_they_are_not_needed(tmp_path, suffix):
    path = tmp_path / f"preds{suffix}"
    save_predictions(Predictions(logits=LOGITS), path)
    assert "expected labels, got logits" in refusal(path)
    assert load_predictions(path, need_labels=False).labels is None


def test_a_wrong_key_lists_what_is_there_and_guesses_what_was_meant(npz):
    assert refusal(npz(logit=LOGITS, label=[0, 1])) == (
        "preds.npz: expected logits, probs, or confidence with correct, got logit, label; "
        "did you mean 'logits' by 'logit'? Say logits='logit', or rename it"
    )
    assert refusal(npz(logits=LOGITS, Label=[0, 1])) == (
        "preds.npz: expected labels, got logits, Label; did you mean 'labels' by 'Label'? "
        "Say labels='Label', or rename it"
    )


def test_a_wrong_column_is_guessed_with_its_class(tmp_path):
    (tmp_path / "preds.csv").write_text("prob_cat,prob_dog,labels\n0.5,0.5,0\n")
    assert refusal(tmp_path / "preds.csv").endswith(
        "did you mean 'probs_cat' by 'prob_cat'? Say probs='prob', or rename it"
    )


def test_nothing_is_guessed_when_nothing_is_close(npz):
    assert refusal(npz(x=LOGITS, y=[0, 1])).endswith(
        "got x, y; say what holds the logits or probs or confidence with logits='NAME' or probs='NAME' or "
        "confidence='NAME', or rename it"
    )


def test_a_long_list_of_keys_is_cut(npz):
    message = refusal(npz(**{f"x{i}": [0] for i in range(40)}))
    assert "x11 and 28 more;" in message


def test_logits_next_to_probabilities_are_refused(npz):
    assert refusal(npz(logits=LOGITS, probs=LOGITS / 7, labels=[0, 1])) == (
        "preds.npz: expected either logits or probs, got both; keep the one you mean"
    )


def test_pairs_next_to_logits_are_ignored(npz):
    loaded = load_predictions(npz(logits=LOGITS, labels=[0, 1], confidence=[2.0], correct=[7]))
    assert (loaded.confidence, loaded.correct) == (None, None)


def test_labels_next_to_pairs_are_ignored(npz):
    loaded = load_predictions(npz(confidence=[0.5], correct=[1], labels=[7], class_names=["a"]))
    assert (loaded.n, loaded.labels, loaded.class_names) == (1, None, None)


def test_half_a_pair_is_refused(npz):
    assert "expected confidence with correct, got confidence, labels" in refusal(
        npz(confidence=[0.5], labels=[1])
    )
    assert "expected confidence with correct, got correct" in refusal(npz(correct=[1]))


def test_a_confidence_may_stand_alone_where_labels_are_not_needed(npz):
    loaded = load_predictions(npz(confidence=[0.5, 0.7]), need_labels=False)
    assert (loaded.confidence.tolist(), loaded.correct) == ([0.5, 0.7], None)


def test_other_keys_are_ignored(npz):
    path = npz(logits=LOGITS, labels=[0, 1], ids=np.array([{"a": 1}, None], dtype=object))
    assert load_predictions(path).n == 2


def test_values_that_cannot_be_predictions_are_refused_under_the_name_of_the_file(npz):
    message = refusal(npz(logits=LOGITS, labels=[0, 5]), InputError)
    assert message == (
        "preds.npz: labels: expected classes from 0 to 1, got 5 in row 1; the predictions have 2 classes "
        "(a single column is that of class 1)"
    )


class Bomb:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("key", ["logits", "labels", "class_names", "metadata"])
def test_pickled_content_is_refused_and_not_executed(tmp_path, npz, key):
    mark = tmp_path / "executed"
    path = npz(**({"logits": LOGITS, "labels": [0, 1]} | {key: np.array([Bomb(mark)], dtype=object)}))
    message = refusal(path)
    assert message.startswith(f"preds.npz: {key}: expected plain numbers or text, got pickled Python objects")
    assert f"save np.asarray({key}, dtype=" in message
    assert not mark.exists()


def test_a_pickle_under_another_name_is_refused_and_not_executed(tmp_path):
    mark = tmp_path / "executed"
    np.array([Bomb(mark)], dtype=object).dump(tmp_path / "preds.npz")
    assert "not a zip archive" in refusal(tmp_path / "preds.npz")
    assert not mark.exists()


def test_metadata_that_is_not_json_is_refused(npz):
    message = refusal(npz(logits=LOGITS, labels=[0, 1], metadata="resnet"), InputError)
    assert message.startswith("preds.npz: metadata: expected JSON text, got 'resnet'")


def test_safetensors_of_others_may_hold_small_integers_and_other_tensors(tmp_path):
    save_file(
        {
            "confidence": torch.tensor([0.5, 0.75]),
            "correct": torch.tensor([1, 0], dtype=torch.uint8),
            "other": torch.zeros(3),
        },
        tmp_path / "preds.safetensors",
        metadata={"format": "pt", "metadata": json.dumps({"model": "llm"})},
    )
    loaded = load_predictions(tmp_path / "preds.safetensors")
    assert loaded.correct.tolist() == [True, False]
    assert loaded.metadata == {"model": "llm"}
