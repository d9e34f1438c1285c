import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrant.data import Predictions, load_predictions, save_predictions
from calibrant.data.files import FORMATS
from calibrant.errors import CalibrantError

ARRAYS = ("logits", "probs", "confidence", "correct", "labels", "features", "weights")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NAMES = TEXT | st.sampled_from(["Käse, alt", '"quoted"', "a.b", "two\nlines", "猫", "nan", " padded "])


def floats(shape, dtype, low, high):
    limits = {"min_value": low, "max_value": high, "width": np.dtype(dtype).itemsize * 8}
    return hnp.arrays(dtype, shape, elements=st.floats(**limits))


@st.composite
def predictions(draw):
    n, k, d = draw(st.integers(1, 5)), draw(st.integers(2, 6)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    form = draw(st.sampled_from(["logits", "probs", "confidence"]))
    if form == "logits":
        arguments = {"logits": draw(floats((n, k), dtype, -60000, 60000))}
    elif form == "probs":
        weights = draw(floats((n, k), dtype, 0, 1)).astype(np.float64) + 0.1
        arguments = {"probs": (weights / weights.sum(axis=1, keepdims=True)).astype(dtype)}
    else:
        arguments = {
            "confidence": draw(floats(n, dtype, 0, 1)),
            "correct": draw(hnp.arrays(np.bool_, n)),
        }
    if form != "confidence" and draw(st.booleans()):
        arguments["labels"] = draw(hnp.arrays(np.int64, n, elements=st.integers(0, k - 1)))
    if form != "confidence" and draw(st.booleans()):
        arguments["class_names"] = draw(st.lists(NAMES, min_size=k, max_size=k, unique=True))
    if form == "confidence" and draw(st.booleans()):
        numbers = st.floats(allow_infinity=False)
        named = st.dictionaries(NAMES, hnp.arrays(np.float64, n, elements=numbers), max_size=2)
        arguments["signals"] = draw(named)
    if draw(st.booleans()):
        arguments["groups"] = draw(st.lists(NAMES.filter(bool), min_size=n, max_size=n))
    if draw(st.booleans()):
        arguments["features"] = draw(floats((n, d), dtype, -1000, 1000))
    weights = draw(st.none() | floats(n, np.float64, 0.0, 9.0))
    arguments["weights"] = None if weights is None else weights + np.eye(n)[0]
    return Predictions(**arguments, metadata=draw(st.dictionaries(TEXT, TEXT, max_size=2)))


def assert_same(got, want, *, dtype=None):
    for name in ARRAYS:
        a, b = getattr(got, name), getattr(want, name)
        assert (a is None) == (b is None), name
        if b is not None:
            b = b.to(dtype) if dtype and b.is_floating_point() else b
            assert a.dtype == b.dtype, name
            assert torch.equal(a, b), name
    assert got.signals.keys() == want.signals.keys()
    for name, signal in want.signals.items():
        torch.testing.assert_close(got.signals[name], signal, rtol=0, atol=0, equal_nan=True)
    assert (got.groups is None) == (want.groups is None)
    if want.groups is not None:
        assert got.groups.values == want.groups.values


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors"])
@settings(max_examples=60)
@given(said=predictions())
def test_what_is_loaded_is_what_was_saved(suffix, folder, said):
    save_predictions(said, folder / f"preds{suffix}")
    loaded = load_predictions(folder / f"preds{suffix}", need_labels=False)
    assert_same(loaded, said)
    assert (loaded.class_names, loaded.metadata) == (said.class_names, said.metadata)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
@settings(max_examples=70)
@given(said=predictions())
def test_text_formats_keep_every_number_and_name(suffix, folder, said):
    path = folder / f"preds{suffix}"
    assume(suffix == ".jsonl" or not any(name.isdigit() for name in said.class_names or ()))
    save_predictions(said, path)
    loaded = load_predictions(path, need_labels=False)
    assert_same(loaded, said, dtype=torch.float64)
    assert loaded.class_names == said.class_names


@pytest.mark.parametrize(("names", "loaded"), [(("0", "1"), None), (("3", "other"), ("3", "other"))])
def test_csv_keeps_class_names_with_numbers_unless_they_only_count(tmp_path, names, loaded):
    said = Predictions(logits=[[1.0, 2.0]], labels=[0], class_names=names)
    save_predictions(said, tmp_path / "preds.csv")
    assert load_predictions(tmp_path / "preds.csv").class_names == loaded
    assert load_predictions(tmp_path / "preds.csv").logits.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("names", [("1", "0"), ("8", "3"), ("0", "1", "other")])
def test_csv_refuses_class_names_that_would_change_the_order_of_the_columns(tmp_path, names):
    said = Predictions(logits=np.zeros((1, len(names))), class_names=names)
    with pytest.raises(CalibrantError, match=r"class_names: expected|logits: expected columns"):
        save_predictions(said, tmp_path / "preds.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_text_formats_do_not_keep_metadata(tmp_path, suffix):
    path = tmp_path / f"preds{suffix}"
    save_predictions(Predictions(probs=[[0.5, 0.5]], labels=[0], metadata={"a": "b"}), path)
    assert load_predictions(path).metadata == {}


@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [
        (".npz", torch.float32),
        (".parquet", torch.float32),
        (".csv", torch.float64),
        (".safetensors", torch.bfloat16),
        (".jsonl", torch.float64),
    ],
)
def test_bfloat16_is_kept_or_widened_without_loss(tmp_path, suffix, dtype):
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_predictions(Predictions(logits=logits, labels=[0, 1, 2, 0]), tmp_path / f"preds{suffix}")
    loaded = load_predictions(tmp_path / f"preds{suffix}").logits
    assert loaded.dtype == dtype
    assert torch.equal(loaded, logits.to(dtype))


@pytest.mark.parametrize("suffix", FORMATS)
def test_views_of_one_array_can_be_saved(tmp_path, suffix):
    whole = torch.arange(20.0).reshape(4, 5)
    said = Predictions(logits=whole[:, :3], features=whole[:, 3:], labels=[0, 1, 2, 0])
    save_predictions(said, tmp_path / f"preds{suffix}")
    assert torch.equal(load_predictions(tmp_path / f"preds{suffix}").features.float(), whole[:, 3:])


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_existing_file_is_replaced_even_while_its_predictions_are_in_use(tmp_path, suffix):
    path = tmp_path / f"preds{suffix}"
    save_predictions(Predictions(logits=[[1.0, 0.0]], labels=[0]), path)
    first = load_predictions(path)
    save_predictions(Predictions(logits=[[2.0, 0.0]] * 9, labels=[0] * 9), path)
    assert first.logits.tolist() == [[1.0, 0.0]]
    assert load_predictions(path).n == 9


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_suffix_may_be_in_capitals_and_the_path_a_string(tmp_path, suffix):
    path = str(tmp_path / f"preds{suffix.upper()}")
    save_predictions(Predictions(probs=[0.25, 0.5], labels=[0, 1]), path)
    assert load_predictions(path).probs.tolist() == [[0.75, 0.25], [0.5, 0.5]]


@pytest.mark.slow
def test_importing_the_package_does_not_import_pyarrow():
    code = "import sys, calibrant.data; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
