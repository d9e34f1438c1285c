import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant.data import Columns, Predictions, files, load_predictions, save_predictions
from calibrant.data.rewriting import write_columns
from calibrant.errors import FormatError, InputError
from calibrant.streams.files import find_files


@pytest.fixture
def parquet(tmp_path):
    def write(columns):
        pq.write_table(pa.table(columns), tmp_path / "preds.parquet")
        return tmp_path / "preds.parquet"

    return write


@pytest.fixture(params=["with Arrow", "in Python alone"])
def csv(tmp_path, request, monkeypatch):
    """Write a table of text, which is then read with or without pyarrow, to the same end."""
    if request.param == "in Python alone":
        monkeypatch.setattr(files, "find_spec", lambda _: None)

    def write(text):
        (tmp_path / "preds.csv").write_text(text, encoding="utf-8")
        return tmp_path / "preds.csv"

    return write


def refusal(path, **options):
    with pytest.raises((InputError, FormatError)) as caught:
        load_predictions(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path.name}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float16(), 2)]
)
def test_parquet_matrices_may_be_lists_of_any_kind(parquet, kind):
    path = parquet({"probs": pa.array([[0.25, 0.75], [0.5, 0.5]], kind), "labels": [1, 0]})
    assert load_predictions(path).probs.tolist() == [[0.25, 0.75], [0.5, 0.5]]


def test_parquet_may_have_one_column_per_class(parquet):
    path = parquet({"logits_cat": [1.0, 2.0], "logits_dog": [3.0, 4.0], "labels": [0, 1], "id": ["x", "y"]})
    loaded = load_predictions(path)
    assert loaded.logits.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert loaded.class_names == ("cat", "dog")


def test_parquet_in_many_pieces_is_read_whole(tmp_path):
    table = pa.table({"logits": pa.array([[float(i), 0.0] for i in range(10)]), "labels": [0] * 10})
    pq.write_table(table, tmp_path / "preds.parquet", row_group_size=3)
    assert load_predictions(tmp_path / "preds.parquet").logits[:, 0].tolist() == list(range(10))


def test_a_directory_that_looks_like_a_partition_adds_nothing(tmp_path):
    folder = tmp_path / "labels=1"
    folder.mkdir()
    pq.write_table(pa.table({"logits": pa.array([[1.0, 0.0]]), "labels": [0]}), folder / "preds.parquet")
    assert load_predictions(folder / "preds.parquet").labels.tolist() == [0]


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        ({"logits": [[1.0, 2.0], None], "labels": [0, 1]}, "logits: expected a value in every row"),
        ({"logits": [[1.0, 2.0], [1.0, None]], "labels": [0, 1]}, "logits: expected a value in every row"),
        ({"logits_0": [1.0, None], "logits_1": [0.0, 1.0], "labels": [0, 1]}, "logits_0: expected a value"),
        ({"logits": [[1.0, 2.0], [1.0, 2.0]], "labels": [0, None]}, "labels: expected a value in every row"),
    ],
)
def test_nulls_are_refused_with_their_row(parquet, columns, where):
    message = refusal(parquet(columns))
    assert message.startswith(f"preds.parquet: {where}")
    assert message.endswith(
        "got an empty one in row 1; fill such rows, or leave them out with missing='drop'"
    )


def test_lists_of_different_lengths_are_refused(parquet):
    assert refusal(parquet({"logits": [[1.0, 2.0], [1.0]], "labels": [0, 1]})) == (
        "preds.parquet: logits: expected lists of equal length, got 2 in row 0 and 1 in row 1; "
        "give every row all classes"
    )


def test_a_table_without_rows_is_refused(parquet, csv):
    empty = {"logits": pa.array([], pa.list_(pa.float32())), "labels": pa.array([], pa.int64())}
    assert "logits: expected at least one sample" in refusal(parquet(empty))
    assert "logits: expected at least one sample" in refusal(csv("logits_0,logits_1,labels\n"))


def test_csv_of_a_user_with_other_columns_is_read(csv):
    path = csv('id,probs_cat,probs_dog,labels,prompt\n7,0.25,0.75,1,"a, long\nprompt"\n8,1,0,0,\n')
    loaded = load_predictions(path)
    assert loaded.probs.tolist() == [[0.25, 0.75], [1.0, 0.0]]
    assert loaded.labels.tolist() == [1, 0]
    assert loaded.class_names == ("cat", "dog")


def test_csv_with_rounded_probabilities_is_read(csv):
    path = csv("probs_0,probs_1,probs_2,labels\n0.3333,0.3333,0.3333,2\n")
    assert load_predictions(path).probs.tolist() == [[0.3333, 0.3333, 0.3333]]


def test_csv_pairs_are_read(csv):
    loaded = load_predictions(csv("question,confidence,correct\nwhy?,0.9,True\nhow?,0.5,False\n"))
    assert loaded.confidence.tolist() == [0.9, 0.5]
    assert loaded.correct.tolist() == [True, False]


def test_csv_of_a_spreadsheet_with_a_byte_order_mark_is_read(csv):
    assert load_predictions(csv("\ufeffprobs,labels\n0.25,1\n")).probs.tolist() == [[0.75, 0.25]]


def test_numbered_columns_are_in_numeric_order(csv):
    names = [f"logits_{i}" for i in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)]
    values = ",".join(name.removeprefix("logits_") for name in names)
    loaded = load_predictions(csv(f"{','.join(names)},labels\n{values},0\n"))
    assert loaded.logits.tolist() == [list(range(11))]
    assert loaded.class_names is None


def test_numbers_that_do_not_count_from_zero_are_names(csv):
    loaded = load_predictions(csv("logits_8,logits_3,labels\n80,30,8\n"))
    assert loaded.logits.tolist() == [[30.0, 80.0]]
    assert loaded.labels.tolist() == [1]
    assert loaded.class_names == ("3", "8")


def test_scores_that_start_out_whole_and_turn_fractional_are_read(csv, monkeypatch):
    monkeypatch.setattr("calibrant.data.tables._BLOCK_BYTES", 64)
    rows = "1,2,0\n" * 50 + "1.5,2.5,1\n"
    assert load_predictions(csv(f"logits_0,logits_1,labels\n{rows}")).logits[-1].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "logits_0,logits_1,logits_max,labels\n1,2,2,0\n",
            "logits: expected columns with numbers or with names, got both 'logits_0' and 'logits_max'; "
            "rename one kind",
        ),
        ("probs,probs_0,labels\n1,1,0\n", "probs: expected one column or one per class, got both"),
        ("logits_0,logits_1,labels,labels\n1,2,0,1\n", "expected each column once, got 'labels' twice;"),
        (
            "logits_0,logits_1,labels\n1,2,cat\n",
            "labels: expected integer classes, got strings such as 'cat';",
        ),
        (
            "logits_0,logits_1,labels\n1,2,1\n1,nan,0\n",
            "logits_1: expected a value in every row, got an empty",
        ),
        ("logits_0,logits_1,labels\n1,2,2\n", "labels: expected classes from 0 to 1, got 2 in row 0;"),
        ("confidence,correct\n90,1\n", "confidence: expected numbers between 0 and 1, got 90 in row 0;"),
        ("confidence,correct\n0.9,yes\n", "correct: expected numbers, got strings such as 'yes'"),
        (
            "logits_0,logits_1,labels\n1,2,1\n1,2\n",
            "row 1: expected 3 columns, as in the header, got 2; it may be truncated",
        ),
        ('logits,labels\n"[1.0, two]",1\n', "logits: expected a list of numbers such as [0.9, 0.1], got"),
    ],
)
def test_csv_that_cannot_be_predictions_is_refused_with_the_reason(csv, text, message):
    assert refusal(csv(text)).startswith(f"preds.csv: {message}")


def test_csv_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "preds.csv"
    path.write_bytes("probs_Käse,probs_Brot,labels\n0.5,0.5,0\n".encode("latin-1"))
    assert "cannot be read as such" in refusal(path)


def test_half_precision_survives_per_class_columns(parquet):
    half = np.array([0.25, 0.5], dtype=np.float16)
    path = parquet({"probs_a": pa.array(half), "probs_b": pa.array(1 - half), "labels": [0, 1]})
    assert str(load_predictions(path).probs.dtype) == "torch.float16"


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_compressed_text_is_read_and_written_like_text(tmp_path, suffix):
    plain, packed = tmp_path / f"a{suffix}", tmp_path / f"a{suffix}.gz"
    predictions = Predictions(probs=[[0.75, 0.25], [0.5, 0.5]], labels=["x", "y"], class_names=["x", "y"])
    for path in (plain, packed):
        save_predictions(predictions, path)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert load_predictions(packed).probs.tolist() == load_predictions(plain).probs.tolist()
    write_columns(packed, tmp_path / f"b{suffix}.gz", {"note": ["=1", "b"]})
    write_columns(plain, tmp_path / f"b{suffix}", {"note": ["=1", "b"]})
    assert (
        gzip.decompress((tmp_path / f"b{suffix}.gz").read_bytes()) == (tmp_path / f"b{suffix}").read_bytes()
    )
    assert [file.name for file in find_files(str(tmp_path))] == sorted(
        path.name for path in tmp_path.iterdir()
    )
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(
        FormatError, match=r"^a\..*\.gz: expected a .*, got a file that cannot be read as such"
    ):
        load_predictions(packed)
    with pytest.raises(FormatError, match="the suffix decides the format"):
        load_predictions(tmp_path / "a.npz.gz")


def test_names_with_dots_lead_into_structures_of_parquet(tmp_path):
    rows = [
        {"answer": {"confidence": 0.9, "p": [0.3, 0.7]}, "truth": {"right": True, "y": 1}},
        {"answer": {"confidence": 0.4, "p": [0.6, 0.4]}, "truth": {"right": False, "y": 1}},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    pairs = Columns(confidence="answer.confidence", correct="truth.right")
    assert load_predictions(tmp_path / "a.parquet", columns=pairs).confidence.tolist() == [0.9, 0.4]
    found = load_predictions(tmp_path / "a.parquet", columns=Columns(probs="answer.p", labels="truth.y"))
    assert (found.probs.tolist(), found.labels.tolist()) == ([[0.3, 0.7], [0.6, 0.4]], [1, 1])
