import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch
from tests.rounding import assert_equal_up_to_rounding

from calibrant.data import Predictions, load_predictions, save_predictions
from calibrant.data.columns import Columns
from calibrant.data.predictions import Groups, join_predictions
from calibrant.errors import InputError

LOGITS = [[2.0, 0.0, -1.0], [0.0, 1.0, 0.5]]


def refusal(**arguments):
    with pytest.raises(InputError) as caught:
        Predictions(**arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["logits", "probs", "confidence"])
def test_the_floating_type_of_the_caller_is_kept(form, dtype):
    values = torch.tensor([0.25, 0.75], dtype=dtype)
    said = Predictions(**{form: values}, **({"correct": [1, 0]} if form == "confidence" else {}))
    assert getattr(said, form).dtype == dtype


def test_whole_numbers_become_float64():
    assert Predictions(logits=[[1, 2], [3, 4]]).logits.dtype == torch.float64


def test_labels_become_int64_and_hits_bool():
    assert Predictions(logits=LOGITS, labels=np.array([0, 1], dtype=np.uint8)).labels.dtype == torch.int64
    assert Predictions(confidence=[0.5, 0.6], correct=[1, 0]).correct.dtype == torch.bool


def test_tensors_are_detached():
    assert not Predictions(logits=torch.tensor(LOGITS, requires_grad=True)).logits.requires_grad


def test_binary_forms_are_kept_as_two_columns():
    assert Predictions(logits=[2.0, -1.0]).logits.tolist() == [[0.0, 2.0], [0.0, -1.0]]
    assert Predictions(probs=[0.25, 1.0]).probs.tolist() == [[0.75, 0.25], [0.0, 1.0]]


def test_binary_half_precision_probabilities_can_be_checked_again():
    said = Predictions(probs=torch.linspace(0, 1, 101, dtype=torch.float16))
    assert Predictions(probs=said.probs).n == 101


def test_counts():
    said = Predictions(logits=LOGITS)
    assert (said.n, len(said), said.k) == (2, 2, 3)


def test_pairs_have_no_number_of_classes():
    assert Predictions(confidence=[0.5, 0.6], correct=[True, False]).k is None


def test_labels_may_be_missing():
    assert Predictions(probs=[[0.5, 0.5]]).labels is None


def test_no_form_is_refused():
    assert refusal(labels=[0]) == (
        "predictions: expected exactly one of logits, probs, confidence with correct, or score with outcome, "
        "got none of them; pass one form"
    )


def test_two_forms_are_refused():
    assert "got logits with probs; pass one form" in refusal(logits=LOGITS, probs=LOGITS)
    assert "got logits with confidence with correct" in refusal(logits=LOGITS, confidence=[1.0], correct=[1])


def test_hits_alone_are_refused():
    assert "got correct; pass one form" in refusal(correct=[1])


def test_confidence_alone_can_be_repaired_but_not_measured():
    unmarked = Predictions(confidence=[0.5])
    assert unmarked.correct is None
    assert unmarked.problem.labels is None
    with pytest.raises(InputError, match="correct: expected a hit or miss for each confidence, got none;"):
        unmarked.outcomes()


def test_pairs_become_two_classes_and_class_scores_stay():
    pairs = Predictions(confidence=[0.9, 0.0, 1.0], correct=[True, True, False], groups=["b", "a", "b"])
    classes = pairs.problem
    assert classes.labels.tolist() == [1, 1, 0]
    assert torch.allclose(classes.to_probs()[:, 1], torch.tensor([0.9, 1e-6, 1 - 1e-6]).double())
    assert classes.groups is pairs.groups
    assert classes.problem is classes


def test_groups_are_text_in_alphabetical_order_and_follow_the_rows():
    predictions = Predictions(probs=[[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]], groups=[7, 10, 7])
    assert predictions.groups.names == ("10", "7")
    assert predictions.groups.values == ["7", "10", "7"]
    assert predictions.take([0, 2]).groups.names == ("7",)
    assert pickle.loads(pickle.dumps(predictions)).groups.values == ["7", "10", "7"]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["a"], "groups: expected 2 entries, one per prediction, got 1"),
        (["a", None], "groups: expected a name in every row, got none in row 1"),
        ([0.5, 1.5], "groups: expected a name or a whole number for each sample"),
        ([["a"], ["b"]], "groups: expected a name or a whole number for each sample"),
    ],
)
def test_groups_that_are_none_are_refused(groups, message):
    with pytest.raises(InputError, match=message):
        Predictions(confidence=[0.5, 0.6], groups=groups)


def test_signals_stand_beside_a_confidence_and_may_be_missing():
    pairs = Predictions(confidence=[0.9, 0.6], correct=[1, 0], signals={"length": [3, float("nan")]})
    assert pairs.signals["length"].dtype == torch.float64
    assert pairs.take([1]).signals["length"].isnan().all()
    assert "signals length" in repr(pairs)


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ({"length": [1, 2, 3]}, r"signals 'length': expected shape \(2,\), one number for each confidence"),
        ({"length": [1, float("inf")]}, "signals 'length': expected finite numbers, or NaN where missing"),
    ],
)
def test_signals_of_another_shape_or_without_end_are_refused(signals, message):
    with pytest.raises(InputError, match=message):
        Predictions(confidence=[0.5, 0.6], signals=signals)


def test_signals_beside_class_scores_are_refused():
    assert refusal(logits=[[0.0, 1.0]], signals={"length": [1]}).startswith("signals: expected none beside")


@pytest.mark.parametrize("correct", [None, [1]])
def test_confidence_with_labels_is_refused(correct):
    assert refusal(confidence=[0.5], labels=[0], correct=correct).startswith("labels: expected none next to")


def test_class_names_of_pairs_are_refused():
    assert refusal(confidence=[0.5], correct=[1], class_names=["a"]).startswith("class_names: expected none")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b"], "class_names: expected 3 names, got 2; pass one name per class"),
        (["a", "b", "a"], "class_names: expected unique names, got 'a' twice; rename one of them"),
        (["a", 1, "c"], "class_names: expected strings, got int 1; convert each with str"),
        ("abc", "class_names: expected 3 names, got the one string 'abc'; pass a list of strings"),
    ],
)
def test_class_names_that_cannot_name_the_classes_are_refused(names, message):
    assert refusal(logits=LOGITS, class_names=names) == message


def test_numpy_class_names_become_plain_strings():
    names = Predictions(logits=LOGITS, class_names=np.array(["a", "b", "c"])).class_names
    assert names == ("a", "b", "c")
    assert {type(name) for name in names} == {str}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"epoch": 3},
            "metadata: expected text keys and values, got 'epoch': 3; convert with str or json.dumps",
        ),
        (["a"], "metadata: expected a mapping of text to text, got list; pass a dict"),
    ],
)
def test_metadata_that_is_not_text_is_refused(metadata, message):
    assert refusal(logits=LOGITS, metadata=metadata) == message


def test_metadata_cannot_be_changed_from_inside_or_outside():
    mine = {"model": "resnet"}
    said = Predictions(logits=LOGITS, metadata=mine)
    mine["model"] = "other"
    assert said.metadata == {"model": "resnet"}
    with pytest.raises(TypeError):
        said.metadata["model"] = "other"


def test_fields_cannot_be_set():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Predictions(logits=LOGITS).labels = None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [0, 3]}, "labels: expected classes from 0 to 2, got 3 in row 1;"),
        ({"labels": [0]}, "labels: expected 2 entries, one per prediction, got 1"),
        ({"features": [[1.0]]}, "features: expected 2 entries, one per prediction, got 1"),
        (
            {"features": [[1.0], [float("nan")]]},
            "features: expected finite numbers, got nan in row 1, column 0;",
        ),
    ],
)
def test_arrays_that_do_not_fit_the_predictions_are_refused(arguments, message):
    assert refusal(logits=LOGITS, **arguments).startswith(message)


def test_probabilities_come_from_logits_by_softmax():
    expected = torch.softmax(torch.tensor(LOGITS, dtype=torch.float64), dim=1)
    assert_equal_up_to_rounding(Predictions(logits=LOGITS).to_probs(), expected)


def test_probabilities_from_half_precision_logits_are_float32():
    assert Predictions(logits=torch.tensor(LOGITS).half()).to_probs().dtype == torch.float32


def test_given_probabilities_are_returned_as_they_are():
    probs = torch.tensor([[0.25, 0.75]])
    assert torch.equal(Predictions(probs=probs).to_probs(), probs)


def test_pairs_have_no_class_probabilities():
    with pytest.raises(
        InputError, match=r"^predictions: expected logits or probs, got confidence with correct;"
    ):
        Predictions(confidence=[0.5], correct=[1]).to_probs()


@pytest.mark.parametrize("form", ["logits", "probs"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_outcomes_are_the_top_class_and_whether_it_is_the_label(form, dtype):
    probs = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]], dtype=torch.float64)
    said = Predictions(**{form: (probs if form == "probs" else probs.log()).to(dtype)}, labels=[0, 1])
    outcomes = said.outcomes()
    assert outcomes.confidence.tolist() == pytest.approx([0.5, 0.75], abs=1e-3)
    assert outcomes.confidence.dtype in (torch.float32, torch.float64)
    assert outcomes.correct.tolist() == [True, False]


def test_outcomes_of_pairs_are_the_pairs():
    outcomes = Predictions(confidence=[0.5, 0.25], correct=[1, 0]).outcomes()
    assert outcomes.confidence.tolist() == [0.5, 0.25]
    assert outcomes.correct.tolist() == [True, False]


def test_outcomes_need_labels():
    with pytest.raises(InputError, match=r"^labels: expected the true class of each sample, got none;"):
        Predictions(logits=LOGITS).outcomes()


def full():
    return Predictions(
        logits=np.arange(12.0).reshape(4, 3),
        labels=[0, 1, 2, 0],
        features=np.arange(8.0).reshape(4, 2),
        class_names=["a", "b", "c"],
        metadata={"split": "test"},
    )


@pytest.mark.parametrize("rows", [[2, 0], np.array([2, 0]), torch.tensor([2, 0])])
def test_rows_are_taken_in_the_order_asked_for(rows):
    part = full().take(rows)
    assert part.logits.tolist() == [[6.0, 7.0, 8.0], [0.0, 1.0, 2.0]]
    assert part.labels.tolist() == [2, 0]
    assert part.features.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert (part.class_names, part.metadata) == (("a", "b", "c"), {"split": "test"})


def test_rows_are_taken_by_a_mask():
    assert full().take([False, True, False, True]).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([4], "rows: expected numbers from 0 to 3, got 4; there are 4 samples"),
        ([-1, 2], "rows: expected numbers from 0 to 3, got -1; there are 4 samples"),
        ([True], "rows: expected a mask of 4 entries, got 1; give one per sample"),
        ([0.5], "rows: expected whole numbers or a mask, got fractions; convert with rows.astype(int)"),
        ([], "rows: expected a list of row numbers or a mask, got shape (0,); name at least one row"),
    ],
)
def test_rows_that_are_not_there_are_refused(rows, message):
    with pytest.raises(InputError) as caught:
        full().take(rows)
    assert str(caught.value) == message


def test_a_mask_that_takes_nothing_is_refused():
    with pytest.raises(InputError, match="at least one sample"):
        full().take([False] * 4)


def test_repr_is_short():
    assert (
        repr(full()) == "Predictions(n=4, k=3, logits float64, labels, features d=2, class_names, metadata)"
    )
    pairs = Predictions(confidence=[0.5], correct=[1])
    assert repr(pairs) == "Predictions(n=1, confidence float64, correct)"


def test_a_copy_for_another_process_is_equal():
    twin = copy.deepcopy(full())
    assert torch.equal(twin.logits, full().logits)
    assert twin.metadata == {"split": "test"}


def test_the_softmax_of_the_logits_of_probabilities_are_the_probabilities():
    probs = [[0.7, 0.3, 0.0], [0.2, 0.2, 0.6]]
    predictions = Predictions(probs=probs)
    assert torch.isfinite(predictions.to_logits()).all()
    assert torch.allclose(
        torch.softmax(predictions.to_logits(), dim=1), torch.tensor(probs, dtype=torch.float64)
    )
    logits = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Predictions(logits=logits).to_logits(), logits)


@pytest.mark.parametrize("suffix", ["npz", "parquet", "csv", "safetensors", "jsonl"])
def test_groups_of_several_columns_are_saved_and_read_again(tmp_path, suffix):
    columns = {"race": ["=A", "B", "=A", "B"], "sex": ["f", "f", "m", "f"]}
    given = Predictions(confidence=[0.9, 0.8, 0.7, 0.6], correct=[1, 0, 1, 1], groups=columns)
    path = tmp_path / f"answers.{suffix}"
    save_predictions(given, path)
    own, named = (
        load_predictions(path).groups,
        load_predictions(path, columns=Columns(groups=["groups_sex", "groups_race"])).groups,
    )
    assert own.columns == ("race", "sex")
    assert own.by_column == columns
    assert own.names == ("race==A, sex=f", "race==A, sex=m", "race=B, sex=f")
    assert named.columns == ("groups_sex", "groups_race")
    assert named.by_column["groups_race"] == columns["race"]
    joined = join_predictions({"one": given, "two": given.take([0, 1])})
    assert joined.groups.by_column["race"] == [*columns["race"], "=A", "B"]


def test_some_of_several_columns_make_groups_of_their_own():
    groups = Groups.of({"race": ["A", "B", "A"], "sex": ["f", "f", "m"], "age": [1, 2, 2]}, n=3)
    assert groups.by(["age"]).values == ["age=1", "age=2", "age=2"]
    assert groups.by(["sex", "race"]).values == ["sex=f, race=A", "sex=f, race=B", "sex=m, race=A"]
    assert [each.columns for each in groups.families][:4] == [("race",), ("sex",), ("age",), ("race", "sex")]
    assert groups.take(torch.tensor([0, 2])).by(["race"]).names == ("race=A",)
    one = Groups.of({"race": ["A", "B"]}, n=2)
    assert one.columns == ()
    assert one.families == (one,)
    assert one.names == ("A", "B")


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        ({"race": ["A"], "sex": ["f", "m"]}, "groups: expected 2 entries, one per prediction, got 1"),
        ({"race": ["A", None], "sex": ["f", "m"]}, "groups: expected a name in every row, got none in row 1"),
        ({}, "groups: expected at most 4 columns, got 0"),
        ({name: ["A", "B"] for name in "abcde"}, "groups: expected at most 4 columns, got 5; join some"),
    ],
)
def test_bad_columns_of_groups_are_refused(groups, match):
    with pytest.raises(InputError, match=match):
        Groups.of(groups, n=2)
