"""Maps for several labels at once: shared, separate, and shrunk to the shared one."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from calibrant.errors import InputError
from calibrant.posthoc import ByGroup, LabelCalibrator, PlattScaling, load_calibrator
from calibrant.posthoc.names import method_for_pairs
from tests.rounding import assert_equal_up_to_rounding

NAMES = ["news", "arts", "sport", "a rare one"]


def drawn(n=400, *, labels=4, mean=-1.0, seed=0):
    """Log-odds, labels and true probabilities of a model that errs a little differently for each label."""
    rng = np.random.default_rng(seed)
    base, slope = rng.normal(mean, 1, labels), np.exp(rng.normal(-0.3, 0.1, labels))
    s = base + rng.normal(0, 1.5, (n, labels))
    truth = 1 / (1 + np.exp(-(slope * s + rng.normal(0, 0.3, labels))))
    return s, rng.random((n, labels)) < truth, truth


@pytest.mark.parametrize("method", ["platt", "isotonic", "beta"])
def test_separate_maps_are_those_of_binary_problems(method):
    s, y, _ = drawn()
    found = LabelCalibrator.fit_labels(s, y, label_names=NAMES, method=method, maps="separate")
    for column in range(4):
        one = method_for_pairs(method).fit(s[:, column], y[:, column].astype(int), seed=0)
        np.testing.assert_allclose(found.predict_proba(s)[:, column], one.predict_proba(s[:, column])[:, 1])


def test_separate_platt_maps_are_those_of_scikit_learn():
    s, y, _ = drawn(4000)
    found = LabelCalibrator.fit_labels(s, y, maps="separate").predict_proba(s)
    for column in range(4):
        theirs = LogisticRegression(C=np.inf).fit(s[:, [column]], y[:, column])
        np.testing.assert_allclose(found[:, column], theirs.predict_proba(s[:, [column]])[:, 1], atol=1e-3)


def test_a_shared_map_is_that_of_all_entries_and_shrunk_ones_are_its_corrections():
    s, y, _ = drawn()
    shared = LabelCalibrator.fit_labels(s, y, label_names=NAMES, maps="shared")
    one = PlattScaling.fit(s.ravel(), y.ravel().astype(int))
    expected = one.predict_proba(s.ravel())[:, 1].reshape(s.shape)
    np.testing.assert_allclose(shared.predict_proba(s), expected)
    shrunk = LabelCalibrator.fit_labels(s, y, label_names=NAMES)
    groups = np.tile(NAMES, len(s))
    by_group = ByGroup.fit(s.ravel(), y.ravel().astype(int), groups=groups, method="platt")
    expected = by_group.predict_proba(s.ravel(), groups=groups)[:, 1].reshape(s.shape)
    np.testing.assert_allclose(shrunk.predict_proba(s), expected)
    long = LabelCalibrator.fit(s.ravel(), y.ravel().astype(int), groups=groups)
    assert long.names == sorted(NAMES)
    in_order = [NAMES.index(name) for name in long.names]
    np.testing.assert_allclose(long.predict_proba(s[:, in_order]), expected[:, in_order])


def test_rare_labels_borrow_strength_from_the_others():
    """Measured by the mean divergence from the true probabilities of new samples, over a few draws."""
    worse: dict[str, list[float]] = {"shared": [], "separate": [], "shrunk": []}
    for seed in range(4):
        s, y, truth = drawn(2300, labels=16, mean=-3.5, seed=seed)
        y[0] |= ~y[:300].any(axis=0)  # a map of its own needs one row with the label
        for maps, found in worse.items():
            q = LabelCalibrator.fit_labels(s[:300], y[:300], maps=maps).predict_proba(s[300:])
            p = truth[300:]
            found.append(float((p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean()))
    shared, separate, shrunk = (np.mean(found) for found in worse.values())
    assert shrunk < 0.75 * separate
    assert shrunk < 0.75 * shared


@pytest.mark.parametrize("maps", ["shrunk", "shared", "separate"])
def test_it_is_saved_loaded_and_exported(maps, tmp_path):
    s, y, _ = drawn()
    fitted = LabelCalibrator.fit_labels(s, y, label_names=NAMES, maps=maps)
    fitted.save(tmp_path / "labels.safetensors")
    loaded = load_calibrator(tmp_path / "labels.safetensors")
    assert isinstance(loaded, LabelCalibrator)
    assert loaded.names == NAMES
    assert_equal_up_to_rounding(loaded.predict_proba(s), fitted.predict_proba(s))
    assert isinstance(fitted.predict_proba(torch.from_numpy(s)), torch.Tensor)
    if maps == "shrunk" and pytest.importorskip("onnxruntime"):
        from calibrant.integrations.onnx import export_onnx

        export_onnx(fitted, tmp_path / "labels.onnx")  # compares its outputs with PyTorch's


def test_what_cannot_be_fitted_or_applied_says_why():
    s, y, _ = drawn()
    fitted = LabelCalibrator.fit_labels(s, y)
    with pytest.raises(InputError, match="^logits: expected the 4 labels that were fitted, got 3"):
        fitted.predict_proba(s[:, :3])
    with pytest.raises(InputError, match="^maps: expected one of shrunk, shared, separate, got 'each'"):
        LabelCalibrator.fit_labels(s, y, maps="each")
    with pytest.raises(InputError, match="^label_names: expected 4 different names"):
        LabelCalibrator.fit_labels(s, y, label_names=["a", "a", "b", "c"])
    with pytest.raises(InputError, match="^groups: expected the label of each entry, got none"):
        LabelCalibrator.fit(s.ravel(), y.ravel())
    with pytest.raises(InputError, match="which need class scores"):
        LabelCalibrator.fit_labels(s, y, method="matrix")


def test_a_label_that_no_row_has_gets_a_map_too():
    s, y, _ = drawn()
    y[:, 2] = False
    for maps in ("shrunk", "shared", "separate"):
        p = LabelCalibrator.fit_labels(s, y, maps=maps).predict_proba(s)
        assert np.isfinite(p).all()
        assert maps != "shrunk" or p[:, 2].mean() < 0.1


def test_columns_of_a_data_frame_are_found_by_the_names_of_their_labels():
    pandas = pytest.importorskip("pandas")
    s, y, _ = drawn(100)
    found = LabelCalibrator.fit_labels(s, y, label_names=NAMES, maps="separate", method="platt")
    frame = pandas.DataFrame(s, columns=NAMES)
    expected = pandas.DataFrame(found.predict_proba(s), columns=NAMES)
    turned = NAMES[::-1]
    np.testing.assert_allclose(found.predict_proba(frame[turned]), expected[turned], rtol=1e-12)
    with pytest.raises(InputError, match="logits: expected the classes news, arts"):
        found.predict_proba(frame.rename(columns={"news": "views"}))
