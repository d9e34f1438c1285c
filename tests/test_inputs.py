"""The door: what comes in, in which kinds, and what is said of what cannot come in."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from calibrant.errors import InputError
from calibrant.inputs import (
    check_confidence,
    check_correct,
    check_count,
    check_features,
    check_labels,
    check_logits,
    check_probs,
    same_kind,
)

PROBS = [[0.75, 0.25], [0.5, 0.5]]

KINDS = {
    "list": PROBS,
    "tuple": tuple(map(tuple, PROBS)),
    "float16": np.array(PROBS, dtype=np.float16),
    "float32": np.array(PROBS, dtype=np.float32),
    "float64": np.array(PROBS),
    "longdouble": np.array(PROBS, dtype=np.longdouble),
    "big endian": np.array(PROBS, dtype=">f8"),
    "reversed view": np.array(PROBS)[::-1, ::-1][::-1, ::-1],
    "torch half": torch.tensor(PROBS, dtype=torch.float16),
    "torch bfloat16": torch.tensor(PROBS, dtype=torch.bfloat16),
    "torch with gradient": torch.tensor(PROBS, requires_grad=True),
    "pandas": pd.DataFrame(PROBS),
    "polars": pl.DataFrame(PROBS, orient="row"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_array_gives_the_same_tensor(kind):
    checked = check_probs(KINDS[kind])
    assert checked.tolist() == PROBS
    assert checked.dtype in (torch.float32, torch.float64)
    assert not checked.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_logits_come_in_through_the_same_kinds(kind):
    assert check_logits(KINDS[kind]).tolist() == PROBS


@pytest.mark.parametrize("column", [pd.Series([0, 1]), pl.Series([0, 1]), pd.Series([0, 1], dtype="Int64")])
def test_labels_may_be_columns_of_a_data_frame(column):
    assert check_labels(column, n=2, k=2).tolist() == [0, 1]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint64, bool, np.float16, np.float64])
def test_labels_may_be_whole_numbers_of_any_type(dtype):
    labels = check_labels(np.array([0, 1], dtype=dtype), n=2, k=2)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [0, 1]


def test_a_masked_array_without_a_masked_entry_is_an_array():
    assert check_probs(np.ma.array(PROBS, mask=False)).tolist() == PROBS


def test_a_read_only_array_is_not_copied():
    array = np.array(PROBS)
    array.flags.writeable = False
    assert check_probs(array).data_ptr() == array.ctypes.data


def test_one_column_of_probabilities_is_a_binary_problem():
    assert check_probs([0.25, 1.0]).tolist() == [[0.75, 0.25], [0.0, 1.0]]
    assert check_logits([2.0]).tolist() == [[0.0, 2.0]]


def test_results_come_back_in_the_kind_and_type_of_the_caller():
    result = torch.tensor(PROBS, dtype=torch.float64)
    assert same_kind(result, like=PROBS) == PROBS
    assert same_kind(result, like=np.zeros(1, dtype=">f8")).dtype == ">f8"
    # In half precision a small probability would be 0.
    assert same_kind(result, like=np.zeros(1, dtype=np.float16)).dtype == np.float32
    for half in (torch.float16, torch.bfloat16):
        assert same_kind(result, like=torch.zeros(1, dtype=half)).dtype == torch.float32
    assert same_kind(result, like=torch.zeros(1)).dtype == torch.float32
    assert isinstance(same_kind(result, like=pd.DataFrame(PROBS)), np.ndarray)
    assert same_kind(result, like=np.zeros(1, dtype=np.int64)).dtype == np.float64


def test_a_softmax_in_half_precision_over_many_classes_still_sums_to_one():
    logits = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0)) * 5
    for dtype in (torch.float16, torch.bfloat16):
        check_probs(torch.softmax(logits, dim=1).to(dtype))


BAD_PROBS = {
    "NaN": ([[0.5, np.nan]], r"^probs: expected finite numbers, got nan in row 0, column 1; drop or repair"),
    "infinity": ([[0.5, 0.5], [np.inf, 0]], r"^probs: expected finite numbers, got inf in row 1, column 0"),
    "empty": (np.zeros((0, 3)), r"^probs: expected at least one sample, got shape \(0, 3\)"),
    "empty list": ([], r"^probs: expected at least one sample, got shape \(0,\)"),
    "rank 3": (np.zeros((2, 2, 2)), r"^probs: expected shape \(n, k\), or \(n,\).*got shape \(2, 2, 2\)"),
    "rank 0": (0.5, r"^probs: .*got shape \(\); put a single sample into a list"),
    "ragged": ([[0.5, 0.5], [1.0]], r"^probs: expected an array, got list with rows that do not form one"),
    "one class": ([[1.0], [1.0]], r"^probs: expected at least two classes, got shape \(2, 1\); for a binary"),
    "double sums": ([[0.5, 0.5], [1.0, 1.0]], r"^probs: expected rows that sum to one, got 2 in row 1"),
    "strings": ([["a", "b"]], r"^probs: expected numbers, got strings such as 'a'"),
    "complex": (np.ones((1, 2)) * 1j, r"^probs: expected numbers, got an array of type complex128"),
    "complex torch": (torch.ones(1, 2) * 1j, r"^probs: expected real numbers, got complex64"),
    "None": ([[None, 0.5]], r"^probs: expected finite numbers, got nan in row 0, column 0"),
    "objects": ([[{}, {}]], r"^probs: expected numbers, got objects such as {}"),
    "masked": (
        np.ma.array(PROBS, mask=[[0, 0], [0, 1]]),
        r"^probs: .*got a masked entry in row 1; drop such",
    ),
    "masked rows": (
        list(np.ma.array(PROBS, mask=[[0, 0], [0, 1]])),
        r"^probs: .*got a masked entry in row 1",
    ),
    "pandas NA": (
        pd.array([0.5, pd.NA]),
        r"^probs: expected finite numbers, got nan in row 1; drop or repair",
    ),
    "Arrow null": (
        pa.array([0.5, None]),
        r"^probs: expected finite numbers, got nan in row 1; drop or repair",
    ),
}


@pytest.mark.parametrize("case", BAD_PROBS)
def test_bad_probabilities_are_refused_in_one_sentence(case):
    value, message = BAD_PROBS[case]
    with pytest.raises(InputError, match=message) as caught:
        check_probs(value)
    assert "\n" not in str(caught.value)


SPECIAL_TENSORS = {
    "on the meta device": lambda p: p.to("meta"),
    "of layout sparse_coo; pass its": lambda p: p.to_sparse(),
    "of layout sparse_csr; pass its": lambda p: p.to_sparse_csr(),
    "a quantised one; pass its .dequantize()": lambda p: torch.quantize_per_tensor(p, 0.1, 0, torch.quint8),
    "a nested one; pad its rows": lambda p: torch.nested.nested_tensor([p, p]),
}


@pytest.mark.filterwarnings("ignore")  # torch's own, about what is new or old in it
@pytest.mark.parametrize("message", SPECIAL_TENSORS)
def test_tensors_without_plain_numbers_are_refused(message):
    value = SPECIAL_TENSORS[message](torch.eye(2))
    with pytest.raises(InputError, match=r"^probs: expected a plain tensor, got ") as caught:
        check_probs(value)
    assert message in str(caught.value)


BAD_LABELS = {
    "too high": ([0, 7], r"^labels: expected classes from 0 to 2, got 7 in row 1; the predictions have 3"),
    "negative": ([0, -1], r"^labels: expected classes from 0 to 2, got -1 in row 1; drop rows that mark"),
    "too few": ([0], r"^labels: expected 2 entries, one per prediction, got 1"),
    "none": (np.zeros(0, dtype=int), r"^labels: expected 2 entries, one per prediction, got 0"),
    "a number": (1, r"^labels: expected shape \(n,\), got shape \(\); put a single sample into a list"),
    "NaN": ([np.nan, 1.0], r"^labels: expected integer classes, got nan in row 0; drop rows without a label"),
    "complex torch": (torch.tensor([1j, 0]), r"^labels: expected real numbers, got complex64"),
    "fractions": ([0.0, 0.5], r"^labels: expected integer classes, got 0.5 in row 1; if these are prob"),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels_are_refused_in_one_sentence(case):
    value, message = BAD_LABELS[case]
    with pytest.raises(InputError, match=message) as caught:
        check_labels(value, n=2, k=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            [[1.0, 2.0], [-np.inf] * 2],
            r"^logits: expected a class that is not masked .* got only -inf in row 1",
        ),
        (
            [[1.0, np.inf]],
            r"^logits: expected finite numbers, got inf in row 0, column 1; use a large finite",
        ),
        ([0.5, -np.inf], r"^logits: expected finite numbers, got -inf in row 1"),
        ([[1.0, np.nan]], r"^logits: expected finite numbers, got nan in row 0, column 1"),
        ([[1.0]], r"^logits: expected at least two classes, got shape \(1, 1\)"),
    ],
)
def test_bad_logits_are_refused(value, message):
    with pytest.raises(InputError, match=message):
        check_logits(value)


def test_confidence_is_a_column_between_zero_and_one():
    assert check_confidence([0.0, 1.0]).tolist() == [0.0, 1.0]
    with pytest.raises(
        InputError, match=r"^confidence: .*got 93 in row 0; percentages must be divided by 100"
    ):
        check_confidence([93, 85])
    with pytest.raises(InputError, match=r"^confidence: expected shape \(n,\), got shape \(1, 2\)"):
        check_confidence([[0.5, 0.5]])
    with pytest.raises(InputError, match=r"^confidence: expected at least one sample, got none"):
        check_confidence([])


def test_hits_are_true_or_false():
    assert check_correct([1, 0], n=2).tolist() == [True, False]
    assert check_correct(np.array([1.0, 0.0]), n=2).tolist() == [True, False]
    with pytest.raises(InputError, match=r"^correct: expected true/false or 1/0, got 2 in row 1"):
        check_correct([1, 2], n=2)
    with pytest.raises(InputError, match=r"^correct: expected true/false or 1/0, got nan in row 0"):
        check_correct([np.nan, 1.0], n=2)


def test_features_are_a_finite_table():
    assert check_features(np.ones((2, 3), dtype=np.float16), n=2).dtype == torch.float32
    with pytest.raises(InputError, match=r"^features: expected shape \(n, d\), got shape \(2,\)"):
        check_features([1.0, 2.0], n=2)
    with pytest.raises(InputError, match=r"^features: expected 3 entries, one per prediction, got 2"):
        check_features([[1.0], [2.0]], n=3)
    with pytest.raises(InputError, match=r"^features: expected finite numbers, got nan in row 1, column 0"):
        check_features([[1.0], [np.nan]], n=2)


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "15"])
def test_a_count_is_a_positive_whole_number(value):
    with pytest.raises(InputError, match="^n_bins: expected a whole number of at least 1, got "):
        check_count(value, "n_bins")
