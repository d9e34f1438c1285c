"""Answers of a black box in files with any columns."""

import csv
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from calibrant.data import Columns, Predictions, load_answers, load_predictions, write_answers
from calibrant.data.columns import read_words
from calibrant.errors import CalibrantError, InputError

ROWS = [
    {"stated": 0.9, "is_right": True, "about": {"subject": "law"}, "id": 1},
    {"stated": 0.4, "is_right": False, "about": {"subject": "art"}, "id": 2},
]
NAMED = Columns(confidence="stated", correct="is_right")


@pytest.fixture
def jsonl(tmp_path):
    def write(rows, name="answers.jsonl"):
        text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def refusal(path, columns=NAMED, **options):
    with pytest.raises(CalibrantError) as caught:
        load_predictions(path, columns=columns, **options)
    message = str(caught.value)
    assert message.startswith(f"{path.name}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path.name}: ")


def stated(*values):
    return [{"stated": value, "is_right": row % 2} for row, value in enumerate(values)]


def test_columns_may_have_any_name_also_within_objects(jsonl):
    loaded = load_predictions(
        jsonl(ROWS), columns=Columns(confidence="stated", correct="is_right", groups="about.subject")
    )
    assert loaded.confidence.tolist() == [0.9, 0.4]
    assert loaded.correct.tolist() == [True, False]
    assert loaded.groups.values == ["law", "art"]


def test_every_format_takes_any_columns(tmp_path):
    np.savez(tmp_path / "a.npz", stated=[0.9, 0.4], is_right=[1, 0], subject=["law", "art"])
    numbers = {
        "stated": torch.tensor([0.9, 0.4], dtype=torch.float64),
        "is_right": torch.tensor([True, False]),
    }
    save_file({**numbers, "subject": torch.tensor([7, 3])}, tmp_path / "a.safetensors")
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("id,stated,is_right,subject\n1,0.9,yes,law\n2,0.4,no,art\n")
    for name, by, groups in [
        ("a.npz", "subject", ["law", "art"]),
        ("a.safetensors", "subject", ["7", "3"]),
        ("a.parquet", "about.subject", ["law", "art"]),
        ("a.csv", "subject", ["law", "art"]),
    ]:
        columns = Columns(confidence="stated", correct="is_right", groups=by)
        loaded = load_predictions(tmp_path / name, columns=columns)
        assert (loaded.confidence.tolist(), loaded.correct.tolist()) == ([0.9, 0.4], [True, False]), name
        assert loaded.groups.values == groups, name


VALUES = st.none() | st.floats(0, 1) | st.sampled_from(["0.25", " 1 ", "", "NaN", "Sure", "no  idea"])
ANSWERS = st.lists(
    st.tuples(VALUES, VALUES, st.booleans(), st.sampled_from(["law", "Käse, alt", '"x"'])), min_size=1
)


@settings(max_examples=60)
@given(answers=ANSWERS, missing=st.sampled_from(["refuse", "drop", "group"]))
def test_equal_answers_are_read_alike_from_every_format(tmp_path_factory, answers, missing):
    folder = tmp_path_factory.mktemp("answers")
    names = ("said", "other", "ok", "topic")
    rows = [dict(zip(names, answer, strict=True)) for answer in answers]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    text = [
        {**row, **{key: None if row[key] is None else str(row[key]) for key in names[:2]}} for row in rows
    ]
    schema = pa.schema({"said": pa.string(), "other": pa.string(), "ok": pa.bool_(), "topic": pa.string()})
    pq.write_table(pa.Table.from_pylist(text, schema), folder / "a.parquet")
    columns = Columns(
        confidence=("said", "other"),
        correct="ok",
        groups="topic",
        words={"sure": 0.95, "no idea": 0.1},
        missing=missing,
    )
    read = [_outcome(folder / name, columns) for name in ("a.jsonl", "a.csv", "a.parquet")]
    assert read[0] == read[1] == read[2]


def _outcome(path, columns):
    try:
        loaded = load_predictions(path, columns=columns)
    except CalibrantError as error:
        return type(error)
    signals = {name: [str(x) for x in signal.tolist()] for name, signal in loaded.signals.items()}
    pairs = (loaded.confidence.tolist(), loaded.correct.tolist(), loaded.groups.values)
    return pairs, signals, dict(loaded.metadata)


def test_several_names_become_signals_and_the_first_is_the_confidence(jsonl):
    rows = [{"a": 0.9, "b": -3.5, "ok": 1}, {"a": 0.2, "ok": 0}]
    loaded = load_predictions(jsonl(rows), columns=Columns(confidence=["a", "b"], correct="ok"))
    assert loaded.confidence.tolist() == [0.9, 0.2]
    assert list(loaded.signals) == ["a", "b"]
    assert loaded.signals["a"].tolist() == [0.9, 0.2]
    assert loaded.signals["b"][0] == -3.5
    assert loaded.signals["b"][1].isnan()


@pytest.mark.parametrize("value", [95, 95.0, "95", "95%", " 95 % "])
def test_percent_is_read_only_if_it_is_said(jsonl, value):
    path = jsonl(stated(value, 50))
    percent = Columns(confidence="stated", correct="is_right", percent=True)
    assert load_predictions(path, columns=percent).confidence.tolist() == [0.95, 0.5]
    assert "say so with percent=True" in refusal(path)


def test_percent_is_refused_where_all_are_probabilities(jsonl):
    columns = Columns(confidence="stated", correct="is_right", percent=True)
    assert refusal(jsonl(stated(0.95, 0.5)), columns) == (
        "stated: expected percent, got at most 0.95 everywhere; leave out percent=True if these "
        "are probabilities"
    )


def test_words_stand_for_numbers(jsonl, tmp_path):
    (tmp_path / "words.json").write_text('{"very likely": 0.9, "No": 0.1}')
    words = read_words(tmp_path / "words.json")
    columns = Columns(confidence="stated", correct="is_right", words=words)
    loaded = load_predictions(jsonl(stated("Very  Likely", "no", "0.5")), columns=columns)
    assert loaded.confidence.tolist() == [0.9, 0.1, 0.5]
    assert refusal(jsonl(stated(0.5, "perhaps")), columns) == (
        "stated: expected a number or one of the words very likely, no, got 'perhaps' in line 2; add this one"
    )
    assert "got 'perhaps' in line 1; if words stand for confidences" in refusal(jsonl(stated("perhaps")))


@pytest.mark.parametrize("words", ["[]", "{}", '{"likely": 90}', '{"likely": true}', '{"likely": "0.9"}'])
def test_a_file_of_words_must_have_a_number_between_0_and_1_for_each(tmp_path, words):
    (tmp_path / "words.json").write_text(words)
    with pytest.raises(InputError, match="words.json: expected"):
        read_words(tmp_path / "words.json")


MISSING = stated(0.9, None, "", math.nan, 0.3)


def test_missing_confidences_are_refused_with_their_number(jsonl):
    assert refusal(jsonl(MISSING)) == (
        "stated: expected a confidence in every row, got none in line 2 and 2 more; leave such answers out "
        "with missing='drop' or keep them as a group of their own with missing='group'"
    )


def test_missing_and_impossible_confidences_are_dropped_and_counted(jsonl):
    columns = Columns(confidence="stated", correct="is_right", missing="drop")
    answers = load_answers(jsonl([*MISSING, *stated(362880, -3, 0.5, 0.2)]), columns=columns)
    assert answers.predictions.confidence.tolist() == [0.9, 0.3, 0.5, 0.2]
    assert answers.predictions.metadata == {
        "dropped": "5",
        "dropped_because": "3 without stated, 2 impossible in stated",
    }
    assert answers.kept.tolist() == [True, False, False, False, True, False, False, True, True]
    assert "expected some confidences between 0 and 1, got none in 2 rows" in refusal(
        jsonl(stated(None, 362880)), columns
    )


def test_percent_is_not_dropped_as_impossible(jsonl):
    columns = Columns(confidence="stated", correct="is_right", missing="drop")
    assert "say so with percent=True" in refusal(jsonl(stated(95, 80, 0.5)), columns)


@pytest.mark.parametrize(
    ("by", "groups"),
    [(None, ["given", "no stated", "given"]), ("about", ["law", "no stated", "art"])],
)
def test_missing_confidences_may_be_a_group(jsonl, by, groups):
    topics = ["law", None, "art"]
    rows = [{**row, "about": topic} for row, topic in zip(stated(0.9, None, 0.2), topics, strict=True)]
    loaded = load_predictions(
        jsonl(rows), columns=Columns(confidence="stated", correct="is_right", missing="group", groups=by)
    )
    assert loaded.confidence.tolist() == [0.9, 0.5, 0.2]
    assert loaded.groups.values == groups


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (stated(0.5, 362880), "stated: expected numbers between 0 and 1, got 362880 in line 2; leave such"),
        (stated(-3), "stated: expected numbers between 0 and 1, got -3 in line 1; if it only ranks, name it"),
        (stated(0.5, [0.5]), "stated: expected a number, got '[0.5]' in line 2"),
        (stated(True), "stated: expected a number, got 'True' in line 1"),
        (
            [{"stated": 0.5, "is_right": "P"}],
            "is_right: expected true/false, 1/0 or yes/no, got 'P' in line 1",
        ),
        ([{"stated": 0.5, "is_right": 0.5}], "is_right: expected true/false, 1/0 or yes/no, got '0.5'"),
        ([*ROWS, {"stated": 0.5}], "is_right: expected a value in every row, got none in line 3; leave such"),
        (
            [{"state": 0.5, "is_right": 1}],
            "expected a column 'stated', got state, is_right; did you mean 'state'",
        ),
        (
            [{"stated": 0.5}],
            "expected a column 'is_right' that says which answers are right, got none; name it",
        ),
        (["{}", "", "{stated"], "line 3: expected a JSON object, got '{stated' (Expecting property name"),
        (["[1]"], "line 1: expected a JSON object, got list; write one object per line"),
        (["", " "], "expected an object in each line, got empty lines only; write it again"),
    ],
)
def test_what_cannot_be_read_gets_a_sentence(jsonl, rows, sentence):
    assert refusal(jsonl(rows)).startswith(sentence)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([[1, 2], [1]], "logits: expected lists of equal length, got 2 in line 1 and 1 in line 2"),
        ([[1, 2], None], "logits: expected a value in every line, got none in line 2"),
        (
            [{"a": 1, "b": 2}, {"b": 1, "a": 2}],
            "expected the classes a, b as in line 1, got others in line 2",
        ),
    ],
)
def test_lines_under_our_own_names_must_agree(jsonl, rows, sentence):
    assert refusal(jsonl([{"logits": row, "labels": 0} for row in rows]), None).startswith(sentence)


def test_a_group_is_needed_in_every_row(jsonl):
    columns = Columns(confidence="stated", correct="is_right", groups="about.subject")
    assert refusal(jsonl([*ROWS, {"stated": 0.5, "is_right": 1}]), columns) == (
        "about.subject: expected a group in every row, got none in line 3; fill it with a name such as "
        "'other'"
    )


def test_groups_may_be_named_beside_class_scores(jsonl):
    rows = [{"logits": [1, 2], "labels": 0, "site": "x"}, {"logits": [0, 2], "labels": 1, "site": "y"}]
    loaded = load_predictions(jsonl(rows), columns=Columns(groups="site"))
    assert (loaded.k, loaded.groups.values) == (2, ["x", "y"])


def test_answers_need_not_be_known_to_be_right(jsonl):
    rows = [{"stated": 0.5}, {"stated": 0.7, "is_right": True}]
    assert load_predictions(jsonl(rows), columns=NAMED, need_labels=False).correct is None


@pytest.mark.parametrize(
    "options",
    [
        {"confidence": ("a", "a")},
        {"missing": "skip"},
        {"layout": "helm"},
        {"confidence": "a", "options": "b"},
    ],
)
def test_columns_that_contradict_themselves_are_refused(options):
    with pytest.raises(InputError, match="expected"):
        Columns(**options)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("out", [".jsonl", ".csv", ".parquet"])
def test_answers_are_written_with_all_their_columns(tmp_path, jsonl, suffix, out):
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{out}"
    rows = [{"id": f"q{row}", **each} for row, each in enumerate(stated(0.9, None, 0.4))]
    rows[0]["confidence"] = rows[1]["confidence"] = rows[2]["confidence"] = 7.0
    if suffix == ".jsonl":
        jsonl(rows, source.name)
    elif suffix == ".csv":
        source.write_text("id,stated,is_right,confidence\nq0,0.9,0,7.0\nq1,,1,7.0\nq2,0.4,0,7.0\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), source)
    answers = load_answers(source, columns=Columns(confidence="stated", correct="is_right", missing="drop"))
    write_answers(source, target, answers.predictions.confidence / 2, kept=answers.kept)
    again = Columns(confidence="confidence", correct="is_right", groups="id", missing="drop")
    loaded = load_predictions(target, columns=again)
    assert loaded.confidence.tolist() == [0.45, 0.2]
    assert loaded.groups.values == ["q0", "q2"]
    assert loaded.metadata["dropped_because"] == "1 without confidence"
    old = Columns(confidence="stated", correct="is_right", missing="drop")
    assert load_predictions(target, columns=old).confidence.tolist() == [0.9, 0.4]


def test_answers_that_cannot_be_written_are_refused(tmp_path, jsonl):
    path = jsonl(ROWS)
    with pytest.raises(InputError, match="expected one for each of 2 rows, got 1"):
        write_answers(path, tmp_path / "b.jsonl", [0.5])
    with pytest.raises(CalibrantError, match="b.npz: expected a file named .jsonl, .csv, .tsv, .parquet"):
        write_answers(path, tmp_path / "b.npz", [0.5, 0.5])
    with pytest.raises(CalibrantError, match="answers.jsonl: expected answers with values of one kind"):
        write_answers(jsonl([{"a": 1}, {"a": "x"}]), tmp_path / "b.parquet", [0.5, 0.5])


# Options of multiple-choice questions.

OPTIONS = Columns(options="scores")


def test_options_of_different_number_become_confidences_with_margins(jsonl):
    rows = [
        {"scores": [-0.2, -1.7, -3.0], "answer": "A"},
        {"scores": [-5.0, -4.0], "answer": 0},
        {"scores": {"yes": -1.0, "no": -2.5, "maybe": None}, "answer": "no"},
    ]
    loaded = load_predictions(jsonl(rows), columns=OPTIONS)
    for row, scores in enumerate([[-0.2, -1.7, -3.0], [-4.0, -5.0], [-1.0, -2.5]]):
        masses = [math.exp(score) for score in scores]
        assert loaded.confidence[row] == pytest.approx(max(masses) / sum(masses))
        assert loaded.signals["margin"][row] == pytest.approx(scores[0] - scores[1])
    assert loaded.correct.tolist() == [True, False, False]


def test_masses_need_not_sum_to_one(jsonl):
    rows = [{"scores": [0.2, 0.6], "answer": 1}, {"scores": [0.1, 0.1, 0.3], "answer": "0"}]
    loaded = load_predictions(jsonl(rows), columns=Columns(options="scores", masses=True))
    assert loaded.confidence.tolist() == pytest.approx([0.75, 0.6])
    assert loaded.correct.tolist() == [True, False]
    assert "say so with masses=True" in refusal(jsonl(rows), OPTIONS)
    negative = jsonl([{"scores": [-0.2, 0.6], "answer": 1}])
    assert "expected masses of at least 0, got -0.2 in line 1; leave out masses=True" in refusal(
        negative, Columns(options="scores", masses=True)
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_as_many_options_in_every_row_become_classes(tmp_path, jsonl, suffix):
    path = tmp_path / f"a{suffix}"
    rows = [{"scores": [-0.2, -1.7], "answer": 0}, {"scores": [-3.0, -0.1], "answer": 0}]
    if suffix == ".jsonl":
        jsonl(rows, path.name)
    elif suffix == ".csv":
        path.write_text('scores,answer\n"[-0.2, -1.7]",A\n"[-3.0, -0.1]",a\n')
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    loaded = load_predictions(path, columns=OPTIONS)
    assert loaded.logits.tolist() == [[-0.2, -1.7], [-3.0, -0.1]]
    assert loaded.labels.tolist() == [0, 0]


def test_named_options_become_class_names(jsonl):
    rows = [{"scores": {"B": -1.0, "A": -2.0}, "answer": "B"}, {"scores": {"A": -1, "B": -3}, "answer": "A"}]
    loaded = load_predictions(jsonl(rows), columns=OPTIONS)
    assert (loaded.class_names, loaded.labels.tolist()) == (("A", "B"), [1, 0])
    assert loaded.logits.tolist() == [[-2.0, -1.0], [-1.0, -3.0]]


def test_options_without_scores_can_be_dropped(jsonl):
    rows = [{"scores": [-0.2, -1.7], "answer": 0}, {"scores": None, "answer": 1}, {"scores": [], "answer": 1}]
    loaded = load_predictions(jsonl(rows), columns=Columns(options="scores", missing="drop"))
    assert (loaded.labels.tolist(), loaded.metadata["dropped"]) == ([0], "2")


def test_options_are_pairs_if_only_hits_are_known(jsonl):
    rows = [{"scores": [-0.2, -1.7], "correct": 1}, {"scores": [-3.0, -0.1], "correct": 0}]
    loaded = load_predictions(jsonl(rows), columns=OPTIONS)
    assert (loaded.k, loaded.correct.tolist()) == (None, [True, False])


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            {"scores": "x", "answer": 0},
            "scores: expected scores of the options, as a list or by name, got 'x'",
        ),
        ({"scores": [1, "y"], "answer": 0}, "scores: expected scores of the options"),
        ({"scores": [-1], "answer": 0}, "scores: expected at least two options, got one in line 1; drop"),
        ({"scores": [-1, -2], "answer": 2}, "answer: expected the right option (0 to 1 or A to B), got '2'"),
        ({"scores": {"a": -1, "b": -2}, "answer": "c"}, "answer: expected the right option (a, b), got 'c'"),
        ({"scores": [-1, -2]}, "expected a column 'answer' that says which answers are right, got none"),
    ],
)
def test_options_that_cannot_be_read_get_a_sentence(jsonl, row, sentence):
    assert refusal(jsonl([row]), OPTIONS).startswith(sentence)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize(
    ("value", "sentence"), [("95 %", "percent=True"), ("likely", "words="), (None, "missing='drop'")]
)
def test_the_options_for_answers_are_named_under_our_own_names_too(tmp_path, jsonl, suffix, value, sentence):
    path = tmp_path / f"a{suffix}"
    rows = [{"confidence": value, "correct": 1}, {"confidence": "0.5", "correct": 0}]
    if suffix == ".jsonl":
        jsonl(rows, path.name)
    elif suffix == ".csv":
        path.write_text(f"confidence,correct\n{value or ''},1\n0.5,0\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    assert sentence in refusal(path, None)


def test_columns_of_different_lengths_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", stated=[0.5, 0.6], is_right=[1])
    assert refusal(tmp_path / "a.npz") == "is_right: expected 2 values, as many as in stated, got 1"


def test_predictions_of_pairs_stay_as_they_are_without_columns(jsonl):
    loaded = load_predictions(jsonl([{"confidence": 0.5, "correct": 1, "signal_tokens": None}]))
    assert isinstance(loaded, Predictions)
    assert loaded.signals["tokens"].isnan().all()
