"""Files written again with calibrated predictions: rows keep their columns, archives their arrays."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.special import log_softmax, softmax

from calibrant import InputError, load_predictions
from calibrant.data.columns import Columns
from calibrant.data.files import load_answers
from calibrant.data.json_lines import JsonLines
from calibrant.data.rewriting import write_calibrated
from calibrant.data.tables import Csv
from calibrant.evaluation.calibrated import calibrated
from calibrant.posthoc import TemperatureScaling

CLASSES = ("<=50K", ">50K", "=unknown")
PROBS = np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25], [0.1, 0.3, 0.6]])
SOFTER = softmax(np.log(PROBS) / 2, axis=1)
LABELS = [">50K", ">50K", "=unknown"]
ROWS = [
    {"customer": f"00{row}", **{f"probs_{name}": p for name, p in zip(CLASSES, PROBS[row], strict=True)}}
    | {"labels": LABELS[row], "note": "a, b", "correct": row > 0}
    for row in range(3)
]


def apply(source, out, write=None, **columns):
    """Halve the sharpness of a file, as the command does."""
    how = Columns(**columns)
    answers = load_answers(source, need_labels=False, columns=how)
    result = calibrated(TemperatureScaling(2.0), answers.predictions)
    write_calibrated(source, out, answers.predictions, result, columns=how, kept=answers.kept, write=write)


def write_rows(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        mark = "\t" if path.suffix == ".tsv" else ";"
        cells = [list(rows[0]), *(row.values() for row in rows)]
        path.write_text("".join(mark.join(map(str, row)) + "\n" for row in cells))
    return path


def read_rows(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return JsonLines(path).records if path.suffix == ".jsonl" else Csv(path).records()


@pytest.mark.parametrize("out", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_rows_keep_ids_labels_and_other_columns_and_probabilities_stay_so(tmp_path, suffix, out):
    source, target = write_rows(tmp_path / f"a{suffix}", ROWS), tmp_path / f"b{out}"
    apply(source, target)
    rows = read_rows(target)
    assert [list(row) for row in rows] == [[name for name in ROWS[0] if name != "correct"]] * 3
    for name in ("customer", "note"):
        assert [row[name] for row in rows] == [row[name] for row in ROWS]
    assert [row["labels"].lstrip("'") for row in rows] == LABELS
    again = load_predictions(target)
    assert (again.class_names, again.labels.tolist()) == (CLASSES, [1, 1, 2])
    np.testing.assert_allclose(again.probs, SOFTER, rtol=1e-12)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_logits_become_log_probabilities_under_the_names_that_they_came_in(tmp_path, suffix):
    named = [f"score{place}" for place in range(3)]
    rows = [dict(zip(named, np.log(p) + 3, strict=True)) | {"id": 7, "y": 2} for p in PROBS]
    apply(write_rows(tmp_path / f"a{suffix}", rows), tmp_path / f"b{suffix}", logits=named, labels="y")
    assert [list(row) for row in read_rows(tmp_path / f"b{suffix}")] == [list(rows[0])] * 3
    again = load_predictions(tmp_path / f"b{suffix}", columns=Columns(logits=named, labels="y"))
    np.testing.assert_allclose(again.logits, log_softmax(np.log(PROBS) / 2, axis=1), rtol=1e-6)
    assert again.labels.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("suffix", "cell"),
    [
        (".parquet", lambda p: p.tolist()),
        (".jsonl", lambda p: p.tolist()),
        (".jsonl", lambda p: dict(zip(CLASSES, p.tolist(), strict=True))),
        (".csv", lambda p: str(p.tolist())),
    ],
    ids=["lists", "lists of JSON", "objects", "text"],
)
def test_scores_in_one_column_stay_in_it(tmp_path, suffix, cell):
    rows = [{"id": row, "p": cell(p), "more": "x"} for row, p in enumerate(PROBS)]
    apply(write_rows(tmp_path / f"a{suffix}", rows), tmp_path / f"b{suffix}", probs="p")
    again = read_rows(tmp_path / f"b{suffix}")
    assert [list(row) for row in again] == [["id", "p", "more"]] * 3
    assert type(again[0]["p"]) is type(rows[0]["p"])
    loaded = load_predictions(tmp_path / f"b{suffix}", columns=Columns(probs="p"), need_labels=False)
    np.testing.assert_allclose(loaded.probs, SOFTER, rtol=1e-12)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".npz"])
def test_one_number_for_two_classes_stays_one(tmp_path, suffix):
    p, source, target = np.array([0.9, 0.2]), tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    if suffix == ".npz":
        np.savez(source, probs=p.astype(np.float32), labels=[1, 0], ids=["x", "y"])
    else:
        write_rows(source, [{"probs": each, "labels": y} for each, y in zip(p.tolist(), (1, 0), strict=True)])
    apply(source, target)
    again = load_predictions(target)
    np.testing.assert_allclose(again.probs[:, 1], 1 / (1 + np.sqrt((1 - p) / p)), rtol=1e-6)
    assert again.labels.tolist() == [1, 0]
    if suffix == ".npz":
        with np.load(target) as archive:
            assert (archive["probs"].shape, archive["probs"].dtype) == ((2,), np.float32)
            assert archive["ids"].tolist() == ["x", "y"]


def test_percent_stay_percent(tmp_path):
    rows = [{f"probs_{place}": f"{100 * p:g} %" for place, p in enumerate(each)} for each in PROBS]
    apply(write_rows(tmp_path / "a.csv", rows), tmp_path / "b.csv", percent=True)
    again = load_predictions(tmp_path / "b.csv", columns=Columns(percent=True), need_labels=False)
    np.testing.assert_allclose(again.probs, SOFTER, rtol=1e-6)
    assert float(read_rows(tmp_path / "b.csv")[0]["probs_0"]) == pytest.approx(100 * SOFTER[0, 0])


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_another_form_is_written_if_a_person_names_it(tmp_path, suffix):
    source = write_rows(tmp_path / f"a{suffix}", ROWS)
    apply(source, tmp_path / f"logits{suffix}", "logits")
    again = load_predictions(tmp_path / f"logits{suffix}")
    assert again.class_names == CLASSES
    np.testing.assert_allclose(again.logits, np.log(SOFTER), rtol=1e-12)
    apply(source, tmp_path / f"top{suffix}", "confidence")
    rows = read_rows(tmp_path / f"top{suffix}")
    assert list(rows[0]) == ["customer", "predicted", "confidence", "correct", "labels", "note"]
    assert [row["predicted"].lstrip("'") for row in rows] == ["<=50K", ">50K", "=unknown"]
    again = load_predictions(tmp_path / f"top{suffix}")
    np.testing.assert_allclose(again.confidence, SOFTER.max(axis=1), rtol=1e-12)
    assert again.correct.tolist() == [False, True, True]


def test_archives_keep_their_other_arrays(tmp_path):
    arrays = {
        "probs": PROBS.astype(np.float32),
        "labels": np.array([1, 1, 2]),
        "customer": np.array(["x"] * 3),
    }
    np.savez(tmp_path / "a.npz", **arrays, class_names=CLASSES, pickled=np.array([{}], dtype=object))
    apply(tmp_path / "a.npz", tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as archive:
        assert archive.files == [*arrays, "class_names", "pickled"]
        assert archive["customer"].tolist() == ["x"] * 3
    again = load_predictions(tmp_path / "b.npz")
    assert (again.class_names, again.probs.dtype) == (CLASSES, torch.float32)
    np.testing.assert_allclose(again.probs, SOFTER, rtol=1e-6)

    tensors = {"logits": torch.tensor(PROBS).log(), "row": torch.arange(3), "labels": torch.tensor([1, 1, 2])}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"made_by": "somebody"})
    apply(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    np.testing.assert_allclose(
        load_predictions(tmp_path / "b.safetensors").logits, np.log(SOFTER), rtol=1e-12
    )
    with safe_open(tmp_path / "b.safetensors", framework="pt") as file:
        assert file.metadata()["made_by"] == "somebody"
        assert file.get_tensor("row").tolist() == [0, 1, 2]


def test_a_form_that_cannot_be_written_is_refused(tmp_path):
    source = write_rows(tmp_path / "a.csv", [{"confidence": 0.5, "correct": 1}])
    answers = load_answers(source)
    for write, words in (("probs", "which is all that a black box gives"), ("odds", "write: expected")):
        with pytest.raises(InputError, match=words):
            write_calibrated(
                source, tmp_path / "b.csv", answers.predictions, answers.predictions, write=write
            )


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".npz"])
def test_a_stated_confidence_stays_beside_the_repaired_one(tmp_path, suffix):
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    if suffix == ".npz":
        np.savez(source, confidence=[0.9, 0.6], correct=[1, 0], customer=["x", "y"])
    else:
        write_rows(
            source, [{"id": 1, "confidence": 0.9, "correct": 1}, {"id": 2, "confidence": 0.6, "correct": 0}]
        )
    before = load_answers(source)
    for number, place in enumerate((source, target)):  # repaired twice, what was stated first stays
        result = before.predictions.replaced(confidence=[0.7 - number / 10, 0.5])
        out = target if place == source else tmp_path / f"c{suffix}"
        write_calibrated(place, out, before.predictions, result, kept=before.kept)
        again = load_answers(out, columns=Columns(confidence="stated_confidence")).predictions
        np.testing.assert_allclose(again.confidence, [0.9, 0.6])
        np.testing.assert_allclose(load_predictions(out).confidence, [0.7 - number / 10, 0.5])


def test_the_confidence_of_the_predicted_class_needs_no_labels(tmp_path):
    rows = [{name: cell for name, cell in row.items() if name not in ("labels", "correct")} for row in ROWS]
    apply(write_rows(tmp_path / "a.jsonl", rows), tmp_path / "b.jsonl", "confidence")
    again = read_rows(tmp_path / "b.jsonl")
    assert [list(row) for row in again] == [["customer", "predicted", "confidence", "note"]] * 3
    assert [row["predicted"] for row in again] == [CLASSES[place] for place in PROBS.argmax(axis=1)]
    np.testing.assert_allclose([row["confidence"] for row in again], SOFTER.max(axis=1), rtol=1e-12)
