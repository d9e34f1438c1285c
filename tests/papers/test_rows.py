"""Finished rows on disk."""

import pytest

from calibrant.errors import FormatError, InputError
from calibrant.papers.rows import (
    Record,
    Row,
    RowFile,
    finished_rows,
    flat,
    identity,
    save_experiment,
    saved_experiment,
)
from tests.papers.small import small_experiment


def row(method, seed, **values):
    return Row("small", "quick", {"method": method}, seed, (Record({"set": "test"}, values),), 1.5, {})


def test_rows_come_back_as_they_were_written(tmp_path):
    file = RowFile(tmp_path)
    written = [row("smart", 0, ece=0.125), row("smart", 1, ece=None)]
    for each in written:
        file.add(each)
    assert finished_rows(tmp_path) == written


def test_a_number_that_is_not_finite_is_none(tmp_path):
    RowFile(tmp_path).add(row("smart", 0, nll=float("inf"), ece=float("nan")))
    assert finished_rows(tmp_path) == [row("smart", 0, nll=None, ece=None)]


def test_a_line_cut_off_by_a_kill_is_passed_over_and_written_anew(tmp_path):
    RowFile(tmp_path).add(row("smart", 0, ece=0.1))
    path = tmp_path / "rows.jsonl"
    path.write_bytes(path.read_bytes() + b'{"experiment": "sm')
    assert len(finished_rows(tmp_path)) == 1
    RowFile(tmp_path).add(row("smart", 1, ece=0.2))
    assert [each.seed for each in finished_rows(tmp_path)] == [0, 1]


def test_another_broken_line_is_not_passed_over(tmp_path):
    (tmp_path / "rows.jsonl").write_text("not a row\n")
    with pytest.raises(FormatError, match="another line 1"):
        finished_rows(tmp_path)


def test_rows_are_known_by_key_and_seed_whatever_the_order_of_keys():
    first = Row("e", "quick", {"a": 1, "b": 2}, 0, (), 1.0, {})
    second = Row("e", "quick", {"b": 2, "a": 1}, 0, (), 9.0, {"torch": "x"})
    assert identity(first) == identity(second) != identity(first, seed=1)


def test_flat_records_hold_key_labels_seed_and_values():
    assert flat([row("smart", 3, ece=0.5)]) == [
        {"seed": 3, "method": "smart", "set": "test", "values": {"ece": 0.5}, "draws": {}}
    ]


def test_a_folder_holds_one_experiment(tmp_path):
    save_experiment(small_experiment(), tmp_path)
    assert saved_experiment(tmp_path) == small_experiment()
    (tmp_path / "other.toml").write_text("")
    with pytest.raises(InputError, match="which holds other"):
        save_experiment(small_experiment(), tmp_path)


def test_a_folder_without_an_experiment_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected a folder that calibrant bench run wrote"):
        saved_experiment(tmp_path)
