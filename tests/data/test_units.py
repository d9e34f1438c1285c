"""Units and ids of rows: read from any column of any format, and kept by every change."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch

from calibrant import Predictions, load_predictions, save_predictions
from calibrant.data import LabelPredictions
from calibrant.data.columns import Columns
from calibrant.data.files import FORMATS, load_answers
from calibrant.data.numbering import joined, numbered
from calibrant.data.predictions import join_predictions
from calibrant.errors import CalibrantError, InputError

QUESTIONS = ["q1", "q1", "7", "q2", "7"]


@pytest.fixture
def answers():
    return Predictions(
        confidence=[0.9, 0.8, 0.7, 0.6, 0.5],
        correct=[1, 1, 0, 1, 0],
        units=QUESTIONS,
        ids=["a", "b", "c", "d", "e"],
    )


def same(first, second):
    """Return whether two arrays of numbers group rows alike."""
    return np.array_equal(*(np.equal.outer(np.asarray(x), np.asarray(x)) for x in (first, second)))


def test_rows_of_equal_name_have_equal_numbers(answers):
    assert same(answers.units, QUESTIONS)
    assert answers.n_units == 3
    assert answers.n_independent == 3
    assert answers.replaced(units=None).n_independent == 5


def test_whole_numbers_stay_and_are_the_same_in_every_type():
    for values in ([7, -3, 7], np.array([7, -3, 7], np.int16), ["7", "-3", "7"], [7.0, -3.0, 7.0]):
        assert numbered(values, "units", n=3).tolist() == [7, -3, 7]
    assert numbered(["007"], "units", n=1).item() != 7  # another name


def test_numbers_of_names_do_not_depend_on_other_rows():
    assert numbered(["x", "y"], "units", n=2)[1] == numbered(["y"], "units", n=1)[0]


def test_several_columns_name_a_unit_together():
    races = joined([[2022, 2022, 2018], ["WY", "AK", "WY"]])
    assert len(set(races)) == 3
    assert joined([[2022, None], [None, None]]).tolist() == ["2022, ", None]


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (["a", None], "units: expected a name in every row, got none in row 1"),
        ([1.0, np.nan], "units: expected a name in every row, got none in row 1"),
        ([1], "units: expected 2 entries, one per prediction, got 1"),
        ([[1], [2]], "units: expected a name or a whole number for each row, got shape"),
    ],
)
def test_bad_units_are_refused(units, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        Predictions(confidence=[0.5, 0.6], correct=[1, 0], units=units)


def test_every_change_keeps_them(answers):
    part = answers.take([3, 0])
    assert part.units.tolist() == answers.units[[3, 0]].tolist()
    assert part.ids.tolist() == answers.ids[[3, 0]].tolist()
    for other in (
        copy.deepcopy(answers),
        pickle.loads(pickle.dumps(answers)),
        answers.problem,
        answers.with_scores(answers.problem.to_logits()),
        answers.replaced(weights=[1, 2, 3, 4, 5]).counted(),
    ):
        assert other.units.tolist() == answers.units.tolist()
        assert other.ids.tolist() == answers.ids.tolist()
    both = join_predictions({"a": answers, "b": answers})
    assert both.n_units == 3


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_keeps_units_and_reads_ids_by_name(suffix, answers, tmp_path):
    path = tmp_path / f"answers{suffix}"
    save_predictions(answers, path)
    found = load_predictions(path, columns=Columns(ids="ids"))
    assert found.units.tolist() == answers.units.tolist()
    assert found.ids.tolist() == answers.ids.tolist()
    assert load_predictions(path).ids is None


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".npz"])
def test_any_column_can_name_units(suffix, tmp_path):
    path = tmp_path / f"answers{suffix}"
    rows = {"stated": [0.9, 0.8, 0.7], "right": [1, 0, 1], "year": [1, 1, 2], "state": ["x", "y", "x"]}
    if suffix == ".npz":
        np.savez(path, **rows)
    elif suffix == ".jsonl":
        records = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
        path.write_text("\n".join(map(json.dumps, records)))
    else:
        pandas = pytest.importorskip("pandas")
        table = pandas.DataFrame(rows)
        if suffix == ".parquet":
            table.to_parquet(path)
        else:
            table.to_csv(path, index=False, sep="," if suffix == ".csv" else "\t")
    read = {"confidence": "stated", "correct": "right"}
    assert load_predictions(path, columns=Columns(**read, units="year")).units.tolist() == [1, 1, 2]
    both = load_predictions(path, columns=Columns(**read, units=["year", "state"], ids="state"))
    assert both.n_units == 3
    assert same(both.ids, ["x", "y", "x"])
    with pytest.raises(CalibrantError, match="expected a column 'stat'"):
        load_predictions(path, columns=Columns(**read, units="stat"))


def test_answers_that_are_left_out_take_their_units_along(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("confidence,correct,question\n0.9,1,a\n,0,b\n0.7,1,b\n0.6,0,a\n")
    found = load_predictions(path, columns=Columns(units="question", missing="drop"))
    assert same(found.units, ["a", "b", "a"])


def test_rows_of_several_labels_may_belong_to_units():
    probs, labels = [[0.9, 0.2], [0.4, 0.6], [0.5, 0.5]], [[1, 0], [0, 1], [1, 1]]
    alone = LabelPredictions(probs=probs, labels=labels)
    assert alone.units.tolist() == [0, 0, 1, 1, 2, 2]
    assert (alone.n_units, alone.n_independent) == (None, 3)
    together = LabelPredictions(probs=probs, labels=labels, units=["x", "y", "x"])
    assert same(together.units, ["x", "x", "y", "y", "x", "x"])
    assert same(together.take_rows([1, 2]).units, ["y", "y", "x", "x"])
    assert together.with_probs(torch.full((3, 2), 0.5)).n_units == 2
    with pytest.raises(InputError, match="ids: expected none beside several labels"):
        together.replaced(ids=[1, 2, 3])


def repeats(tmp_path, header, rows):
    path = tmp_path / "answers.csv"
    path.write_text("\n".join([header, *rows]))
    return load_answers(path).repeats


@pytest.mark.parametrize("name", ["question_id", "prompt_id", "image_id", "user", "id", "Patient"])
def test_a_column_that_looks_like_an_id_and_repeats_is_noticed(name, tmp_path):
    rows = [f"0.{i:03d},{i % 2},{name}{i % 50}" for i in range(150)]
    found = repeats(tmp_path, f"confidence,correct,{name}", rows)
    assert (found.column, found.n, found.n_different) == (name, 150, 50)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("row_id", lambda i: i),  # each row has its own
        ("model_id", lambda i: i % 50),  # no unit
        ("subject", lambda i: i % 50),  # a group
        ("user", lambda i: i % 3),  # too few
    ],
)
def test_other_columns_are_not(header, value, tmp_path):
    rows = [f"0.{i:03d},{i % 2},{value(i)}" for i in range(150)]
    assert repeats(tmp_path, f"confidence,correct,{header}", rows) is None


def test_copies_of_rows_are_noticed_but_rounded_confidences_are_not(tmp_path):
    exact = [f"{0.1003 + i % 60 / 97:.7f},1" for i in range(150)]
    found = repeats(tmp_path, "confidence,correct", exact)
    assert found.column is None
    assert (found.n, found.n_different) == (150, 60)
    rounded = [f"{0.05 * (i % 20):.2f},{i % 2}" for i in range(150)]
    assert repeats(tmp_path, "confidence,correct", rounded) is None


def test_nothing_is_said_of_a_file_whose_units_are_known(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text(
        "\n".join(["confidence,correct,user", *(f"0.{i:03d},{i % 2},u{i % 50}" for i in range(150))])
    )
    assert load_answers(path, columns=Columns(units="user")).repeats is None
