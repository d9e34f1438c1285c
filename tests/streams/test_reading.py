"""Streams: files, folders, patterns and addresses read batch by batch; what is bad is named."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import softmax

from calibrant import FormatError, InputError, Predictions, load_predictions
from calibrant.outputs import INCOMPLETE
from calibrant.streams import open_stream, rewrite_stream
from calibrant.streams.files import is_many


def table(n, k=3, *, seed=0, dtype=np.float32, **others):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(k), size=n).astype(dtype)
    columns = {
        "probs": pa.FixedSizeListArray.from_arrays(pa.array(probs.ravel()), k),
        "labels": rng.integers(0, k, n),
    }
    return pa.table(columns | others)


def write(path, n, *, rows=100, spoil=None, **options):
    """Write a file of row groups of 100 rows; ``spoil`` may change the arrays first."""
    found = table(n, **options)
    if spoil is not None:
        probs = found["probs"].combine_chunks().flatten().to_numpy().reshape(n, -1).copy()
        labels = found["labels"].to_numpy().copy()
        spoil(probs, labels)
        flat = pa.FixedSizeListArray.from_arrays(pa.array(probs.ravel()), probs.shape[1])
        found = found.set_column(0, "probs", flat).set_column(1, "labels", pa.array(labels))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(found, path, row_group_size=rows)
    return path


def nan_in_row_230(probs, _):
    probs[230, 1] = np.nan


def no_distribution_in_row_120(probs, _):
    probs[120] = 0.9


def foreign_label_in_row_299(_, labels):
    labels[299] = 7


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def damage_row_group(path, number):
    """Overwrite the pages of a row group and leave the footer as it is."""
    chunk = pq.read_metadata(path).row_group(number).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(bytes(content))


def test_batches_hold_every_row_once_and_say_where_it_comes_from(tmp_path):
    files = [write(tmp_path / "a.parquet", 250, seed=1), write(tmp_path / "b" / "c.parquet", 30, seed=2)]
    batches = list(open_stream(tmp_path).batches(rows=60))
    assert [(b.file, b.row_group, b.first_row, len(b)) for b in batches] == [
        ("a.parquet", 0, 0, 60),
        ("a.parquet", 0, 60, 40),
        ("a.parquet", 1, 100, 60),
        ("a.parquet", 1, 160, 40),
        ("a.parquet", 2, 200, 50),
        ("b/c.parquet", 0, 0, 30),
    ]
    whole = [load_predictions(file) for file in files]
    np.testing.assert_array_equal(
        np.concatenate([b.predictions.probs for b in batches]), np.concatenate([p.probs for p in whole])
    )
    np.testing.assert_array_equal(
        np.concatenate([b.predictions.labels for b in batches]), np.concatenate([p.labels for p in whole])
    )


def test_lists_of_fixed_size_are_not_copied(tmp_path, monkeypatch):
    addresses = []
    write(tmp_path / "a.parquet", 50)
    original = pq.ParquetFile.iter_batches

    def watched(self, *args, **options):
        for batch in original(self, *args, **options):
            addresses.append(batch.column(0).flatten().buffers()[1].address)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    (batch,) = open_stream(tmp_path).batches()
    assert batch.predictions.probs.data_ptr() == addresses[0]


def test_a_pattern_names_some_files(tmp_path):
    for name in ("x/part-1", "y/part-2", "y/other"):
        write(tmp_path / f"{name}.parquet", 20)
    batches = open_stream(f"{tmp_path}/*/part-*.parquet").batches()
    assert [batch.file for batch in batches] == ["x/part-1.parquet", "y/part-2.parquet"]


def test_hidden_files_such_as_half_written_ones_are_ignored(tmp_path):
    write(tmp_path / "a.parquet", 20)
    (tmp_path / ".calibrant-0.parquet").write_bytes(b"half")
    write(tmp_path / "_temporary" / "b.parquet", 20)
    assert [batch.file for batch in open_stream(tmp_path).batches()] == ["a.parquet"]


def test_an_address_is_read_through_fsspec(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name in ("day=1/a", "day=2/b"):
        content = write(tmp_path / f"{name}.parquet", 20).read_bytes()
        memory.pipe(f"/calibrant-test/{name}.parquet", content)
    try:
        for source in ("memory://calibrant-test", "memory://calibrant-test/*/*.parquet"):
            batches = list(open_stream(source, columns_by="day").batches())
            assert [(b.file, b.names) for b in batches] == [
                ("day=1/a.parquet", ("1",)),
                ("day=2/b.parquet", ("2",)),
            ]
        with pytest.raises(FormatError, match="expected files named"):
            open_stream("memory://calibrant-absent")
    finally:
        memory.rm("/calibrant-test", recursive=True)


def test_an_unknown_kind_of_address_is_one_sentence():
    pytest.importorskip("fsspec")
    with pytest.raises(FormatError, match=r"^nonsense://x: expected an address that can be read"):
        open_stream("nonsense://x")


@pytest.mark.parametrize(
    ("name", "match"),
    [("absent", "no such file or folder"), ("absent*.parquet", "got none"), ("a.npz", "only Parquet")],
)
def test_a_source_without_parquet_files_is_refused(tmp_path, name, match):
    (tmp_path / "a.npz").write_bytes(b"x")
    with pytest.raises(FormatError, match=match):
        open_stream(tmp_path / name)


def test_only_folders_patterns_and_addresses_are_streams_by_themselves(tmp_path):
    write(tmp_path / "a[1].parquet", 5)
    assert is_many(str(tmp_path))
    assert is_many("s3://bucket/x.parquet")
    assert is_many(f"{tmp_path}/*.parquet")
    assert not is_many(str(tmp_path / "a[1].parquet"))
    assert not is_many("absent.npz")


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (nan_in_row_230, r"^b\.parquet, row group 2: probs: expected finite .* nan in row 230, column 1"),
        (no_distribution_in_row_120, r"^b\.parquet, row group 1: probs: .* sum to one, got 2.7 in row 120"),
        (foreign_label_in_row_299, r"^b\.parquet, row group 2: labels: .* 0 to 2, got 7 in row 299"),
    ],
)
def test_a_bad_row_is_named_by_file_row_group_and_row_of_the_file(tmp_path, spoil, match):
    write(tmp_path / "a.parquet", 300)
    write(tmp_path / "b.parquet", 300, spoil=spoil)
    with pytest.raises(InputError, match=match):
        list(open_stream(tmp_path).batches(rows=30))


def test_a_truncated_file_is_named(tmp_path):
    write(tmp_path / "a.parquet", 300)
    truncate(write(tmp_path / "b.parquet", 300))
    with pytest.raises(FormatError, match=r"^b\.parquet: expected a Parquet file, got a file that cannot"):
        list(open_stream(tmp_path).batches())


def test_a_damaged_row_group_is_named(tmp_path):
    damage_row_group(write(tmp_path / "a.parquet", 300), 1)
    with pytest.raises(FormatError, match=r"^a\.parquet, row group 1: expected a Parquet file"):
        list(open_stream(tmp_path).batches())


def test_a_missing_column_is_named_with_the_file(tmp_path):
    path = write(tmp_path / "a.parquet", 10)
    pq.write_table(pq.read_table(path).rename_columns(["probs", "label"]), path)
    with pytest.raises(FormatError, match=r"^a\.parquet: expected labels, got probs, label; did you mean"):
        list(open_stream(tmp_path).batches())
    assert sum(len(batch) for batch in open_stream(tmp_path, need_labels=False).batches()) == 10


def test_a_missing_group_is_named_with_the_file(tmp_path):
    write(tmp_path / "a.parquet", 10)
    with pytest.raises(FormatError, match=r"^a\.parquet: expected a column 'day' to group by, got probs"):
        list(open_stream(tmp_path, columns_by="day").batches())


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"k": 4}, r"^b\.parquet: probs: expected lists of 3 float as in a\.parquet, got lists of 4 float"),
        ({"dtype": np.float64}, r"^b\.parquet: probs: expected lists of 3 float as in .* 3 double"),
    ],
)
def test_files_of_different_schemas_are_refused(tmp_path, other, match):
    write(tmp_path / "a.parquet", 10)
    write(tmp_path / "b.parquet", 10, **other)
    with pytest.raises(FormatError, match=match):
        list(open_stream(tmp_path).batches())


def test_other_columns_than_before_are_refused(tmp_path):
    path = write(tmp_path / "a.parquet", 10)
    pq.write_table(pq.read_table(path).rename_columns(["logits", "labels"]), tmp_path / "b.parquet")
    with pytest.raises(
        FormatError, match=r"^b\.parquet: expected the columns probs, labels as in a\.parquet"
    ):
        list(open_stream(tmp_path).batches())


def test_lists_of_another_length_than_before_are_refused(tmp_path):
    for name, k in (("a", 3), ("b", 4)):
        columns = {"probs": [[1 / k] * k] * 5, "labels": [0] * 5}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"^b\.parquet, row group 0: expected 3 classes as before, got 4"):
        list(open_stream(tmp_path).batches())


@pytest.mark.parametrize("large", [False, True])
def test_skipping_leaves_out_whole_row_groups_and_files_and_counts_them(tmp_path, monkeypatch, large):
    if large:
        monkeypatch.setattr("calibrant.streams.row_groups.LARGE", 0)
    write(tmp_path / "a.parquet", 300)
    write(tmp_path / "b.parquet", 300, spoil=foreign_label_in_row_299)
    truncate(write(tmp_path / "c.parquet", 300))
    damage_row_group(write(tmp_path / "d.parquet", 300), 0)
    write(tmp_path / "e.parquet", 150, k=4)
    stream = open_stream(tmp_path)
    batches = list(stream.batches(rows=30, skip_bad=True))
    kept = {(batch.file, batch.row_group) for batch in batches}
    assert kept == {
        (f"{each[0]}.parquet", int(each[1])) for each in ["a0", "a1", "a2", "b0", "b1", "d1", "d2"]
    }
    assert sum(len(batch) for batch in batches) == 700
    assert {(left.file, left.row_group, left.rows) for left in stream.left_out} == {
        ("b.parquet", 2, 100),
        ("c.parquet", None, None),
        ("d.parquet", 0, 100),
        ("e.parquet", None, 150),
    }
    assert all(left.reason.startswith(left.file) for left in stream.left_out)


def test_groups_are_named_whatever_type_they_have(tmp_path):
    days = pa.array(["mon", None, "tue", "mon"]).dictionary_encode()
    write(tmp_path / "a.parquet", 4, day=days, number=pa.array([3, 3, 3, 3]))
    (batch,) = open_stream(tmp_path, columns_by="day").batches()
    assert [batch.names[code] for code in batch.codes] == ["mon", "(none)", "tue", "mon"]
    (batch,) = open_stream(tmp_path, columns_by="number").batches()
    assert (batch.names, batch.codes) == (("3",), None)


def test_leaving_early_closes_the_stream(tmp_path):
    write(tmp_path / "a.parquet", 300)
    batches = open_stream(tmp_path).batches(rows=10)
    next(batches)
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)


def test_too_little_memory_makes_no_file_a_bad_one(tmp_path, monkeypatch):
    def allocate(*_):
        raise MemoryError("Unable to allocate 2.68 GiB")

    write(tmp_path / "a.parquet", 300)
    monkeypatch.setattr("calibrant.streams.row_groups.to_predictions", allocate)
    stream = open_stream(tmp_path)
    with pytest.raises(MemoryError):
        list(stream.batches(skip_bad=True))
    assert not stream.left_out


def halved(predictions: Predictions):
    return predictions.to_logits() / 2


def test_rewriting_keeps_names_order_and_other_columns(tmp_path):
    note = pa.array([f"row {i}" for i in range(250)])
    write(tmp_path / "in" / "x" / "a.parquet", 250, note=note, confidence=pa.array(np.ones(250)))
    seen = []
    written = rewrite_stream(
        open_stream(tmp_path / "in"), halved, tmp_path / "out", progress=lambda *told: seen.append(told)
    )
    assert (written.files, written.rows) == (1, 250)
    assert seen[-1] == ("x/a.parquet", 250, 250)
    result = pq.read_table(tmp_path / "out" / "x" / "a.parquet")
    assert result.column_names == ["probs", "labels", "note"]
    assert result["note"].to_pylist() == note.to_pylist()
    before = load_predictions(tmp_path / "in" / "x" / "a.parquet")
    after = load_predictions(tmp_path / "out" / "x" / "a.parquet")
    np.testing.assert_allclose(after.probs, softmax(halved(before), axis=1), rtol=1e-6)
    np.testing.assert_array_equal(after.labels, before.labels)
    rewrite_stream(open_stream(tmp_path / "in"), halved, tmp_path / "logits", write="logits")
    np.testing.assert_allclose(
        load_predictions(tmp_path / "logits" / "x" / "a.parquet").logits, halved(before), rtol=1e-6
    )


def test_rewriting_keeps_the_names_of_classes_spread_over_columns(tmp_path):
    columns = {"probs_cat": [0.9, 0.2], "probs_dog": [0.1, 0.8], "id": [7, 8]}
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "in" / "a.parquet")
    rewrite_stream(open_stream(tmp_path / "in", need_labels=False), halved, tmp_path / "out")
    after = load_predictions(tmp_path / "out" / "a.parquet", need_labels=False)
    assert after.class_names == ("cat", "dog")
    np.testing.assert_allclose(after.probs, softmax(np.log([[0.9, 0.1], [0.2, 0.8]]) / 2, axis=1))
    table = pq.read_table(tmp_path / "out" / "a.parquet")
    assert (table.column_names, table["id"].to_pylist()) == (list(columns), [7, 8])


def test_nothing_half_written_remains_of_a_bad_file(tmp_path):
    write(tmp_path / "in" / "a.parquet", 300)
    write(tmp_path / "in" / "b.parquet", 300, spoil=nan_in_row_230)
    write(tmp_path / "in" / "c.parquet", 300)
    with pytest.raises(InputError, match=r"^b\.parquet, row group 2: .* row 230"):
        rewrite_stream(open_stream(tmp_path / "in"), halved, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [INCOMPLETE, "a.parquet"]
    assert load_predictions(tmp_path / "out" / "a.parquet").n == 300
    for half in (tmp_path, tmp_path / "out", tmp_path / "out" / "*.parquet"):
        with pytest.raises(FormatError, match="expected a complete folder, got one whose writing has not"):
            open_stream(half)
    write(tmp_path / "in" / "b.parquet", 300)
    rewrite_stream(open_stream(tmp_path / "in"), halved, tmp_path / "out")
    assert len(open_stream(tmp_path / "out").sources) == 3


def test_a_stream_is_never_written_over_itself(tmp_path):
    content = write(tmp_path / "a.parquet", 20).read_bytes()
    for out in (tmp_path, tmp_path / "a.parquet"):
        with pytest.raises(InputError, match="expected a place apart from .*, which lies below it"):
            rewrite_stream(open_stream(tmp_path), halved, out)
    assert (tmp_path / "a.parquet").read_bytes() == content


def test_rewriting_confidences_sees_groups_and_signals_and_replaces_one_column(tmp_path):
    columns = {
        "correct": [True, False, True],
        "confidence": [0.9, 0.2, 1.0],
        "signal_wording": [0.5, None, 3],
        "groups": ["law", None, "art"],
        "id": [7, 8, 9],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    seen = []

    def squared(predictions: Predictions):
        seen.append(predictions)
        return predictions.confidence**2

    rewrite_stream(open_stream(tmp_path / "a.parquet"), squared, tmp_path / "out")
    (given,) = seen
    assert given.groups.values == ["law", "(none)", "art"]
    np.testing.assert_array_equal(given.signals["wording"], [0.5, np.nan, 3])
    after = pq.read_table(tmp_path / "out" / "a.parquet").to_pydict()
    assert after == columns | {
        "confidence": pytest.approx([0.81, 0.04, 1.0]),
        "stated_confidence": columns["confidence"],
    }
