"""Scores, outcomes and grades in files."""

import numpy as np
import pytest

from calibrant.data import Columns, Predictions, load_predictions, save_predictions
from calibrant.errors import InputError


@pytest.fixture
def table(tmp_path):
    def write(header, *rows):
        path = tmp_path / "rows.csv"
        path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        return path

    return write


def test_any_column_can_be_a_score_and_outcomes_may_be_ties(table):
    path = table("rerank,won,team", "-3.5,0,a", "812,0.5,b", "40,1,a")
    found = load_predictions(path, columns=Columns(score="rerank", outcome="won", groups="team"))
    assert found.score.tolist() == [-3.5, 812.0, 40.0]
    assert found.outcome.tolist() == [0.0, 0.5, 1.0]
    assert found.groups.values == ["a", "b", "a"]


def test_a_falling_score_is_turned_round_and_says_so(table):
    path = table("distance,same", "1,yes", "9,no")
    found = load_predictions(path, columns=Columns(score="distance", outcome="same", falling=True))
    assert found.score.tolist() == [-1.0, -9.0]
    assert found.correct.tolist() == [True, False]
    assert found.metadata["falling"] == "true"


def test_grades_have_a_scale(table):
    path = table("grade,right", "0,no", "10,yes", "5,true")
    found = load_predictions(path, columns=Columns(confidence="grade", outcome="right", scale=(0, 10)))
    assert found.confidence.tolist() == [0.0, 1.0, 0.5]


def test_words_of_outcomes_are_looked_up(table):
    path = table("p,verdict", "0.9,fully", "0.2,partly", "0.4,no")
    columns = Columns(confidence="p", outcome="verdict", words={"fully": 1, "partly": 0.5})
    assert load_predictions(path, columns=columns).outcome.tolist() == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (
            range(11),
            r"grades from 0 to 10, say so with scale=\(0, 10\); if it only ranks, name it with score=",
        ),
        (range(1, 11), r"grades from 1 to 10, say so with scale=\(1, 10\)"),
        (range(0, 101, 5), r"in percent, say so with percent=True; if it only ranks"),
        ((-4.2, 3.3, 900.0), r"if it only ranks, name it with score= instead"),
    ],
)
def test_what_numbers_beyond_one_may_mean_is_proposed_and_never_assumed(table, values, advice):
    path = table("x,correct", *(f"{value},{place % 2}" for place, value in enumerate(values)))
    with pytest.raises(InputError, match=advice):
        load_predictions(path, columns=Columns(confidence="x"))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"score": "x", "confidence": "x"}, "expected either confidence or score, got both"),
        ({"outcome": "y", "correct": "z"}, "expected either correct or outcome, got both"),
        ({"confidence": "x", "falling": True}, "falling: expected a score beside it"),
        ({"confidence": "x", "scale": (10, 0)}, "scale: expected the lowest and the highest grade"),
        ({"confidence": "x", "scale": (0, 10), "percent": True}, "scale: expected none beside percent"),
        ({"score": "x", "scale": (0, 10)}, "scale: expected none beside score"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(columns, sentence):
    with pytest.raises(InputError, match=sentence):
        Columns(**columns)


def test_an_outcome_beyond_one_is_refused_with_its_row(table):
    with pytest.raises(InputError, match=r"won: expected outcomes between 0 and 1, got 1.2 in row 1"):
        load_predictions(table("s,won", "3,0.5", "4,1.2"), columns=Columns(score="s", outcome="won"))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv", ".jsonl"])
@pytest.mark.parametrize(
    "given",
    [
        Predictions(score=[30.0, -2.0, 30.0], outcome=[1, 0, 0.5], groups=["a", "b", "a"]),
        Predictions(confidence=[0.3, 0.2, 0.5], outcome=[1, 0, 0.25], weights=[1.0, 2.0, 3.0]),
        Predictions(probs=[[0.5, 0.5], [0.9, 0.1]], labels=[[0.25, 0.75], [1, 0]]),
    ],
    ids=["score", "graded", "soft labels"],
)
def test_what_was_saved_is_loaded(given, suffix, tmp_path):
    save_predictions(given, tmp_path / f"x{suffix}")
    loaded = load_predictions(tmp_path / f"x{suffix}")
    assert repr(loaded) == repr(given)
    assert loaded.outcome.tolist() == given.outcome.tolist()


def test_a_score_beside_a_confidence_is_a_column_of_the_file_only(table):
    found = load_predictions(table("confidence,correct,score,outcome", "0.9,1,77,0", "0.4,0,3,1"))
    assert found.score is None
    assert np.asarray(found.correct).tolist() == [True, False]
