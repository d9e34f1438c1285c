"""Maps of log-odds: what each promises in each mode, their pieces, and when they are switched off."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.errors import InputError
from calibrant.metrics import brier_score, expected_calibration_error
from calibrant.posthoc import load_calibrator
from calibrant.posthoc.bbq import BBQ
from calibrant.posthoc.beta import BetaCalibration
from calibrant.posthoc.calibrator import Identity
from calibrant.posthoc.fitting.binary import both_answers
from calibrant.posthoc.fitting.score_map import count_below, interpolate, ragged, step
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.posthoc.histogram import HistogramBinning
from calibrant.posthoc.isotonic import IsotonicCalibration
from calibrant.posthoc.platt import PlattScaling
from calibrant.posthoc.spline import SplineCalibration
from calibrant.posthoc.venn_abers import VennAbers
from tests.conftest import draw, softmax
from tests.rounding import assert_equal_up_to_rounding

WITH_MODE: list[Any] = [IsotonicCalibration, HistogramBinning, BBQ, VennAbers]
TOP_LABEL = [(Identity, {}), (SplineCalibration, {}), *((m, {"mode": "top_label"}) for m in WITH_MODE)]
ONE_VS_REST = [(PlattScaling, {}), (BetaCalibration, {}), *((m, {"mode": "one_vs_rest"}) for m in WITH_MODE)]
EVERY = TOP_LABEL + ONE_VS_REST


def called(case):
    return f"{case[0].__name__}-{case[1].get('mode', 'only')}"


@pytest.fixture(scope="module")
def fitted():
    """Each method in each mode, fitted once."""
    logits, labels = draw(600, 5, seed=4, sharpen=2.5)
    return {called(case): case[0].fit(logits, labels, **case[1]) for case in EVERY}


def awkward():
    rng = np.random.default_rng(0)
    logits, labels = draw(300, 5, seed=3, sharpen=2.0)
    yield "few", *draw(50, 10, seed=1, sharpen=2.0)
    yield "many classes", *draw(50, 1000, seed=1, sharpen=2.0)
    yield "two classes", *draw(300, 2, seed=2, sharpen=2.0)
    yield "a class is missing", logits, np.where(labels == 3, 1, labels)
    yield "one class only", logits, np.full(300, 2)
    yield "one of two classes only", *(draw(60, 2)[0], np.zeros(60, dtype=int))
    yield "duplicates", np.repeat(logits[:7], 20, axis=0), rng.integers(0, 5, 140)
    yield "huge", logits * 1e4, labels
    yield "minute", logits * 1e-4, labels
    yield "separable", np.eye(5)[labels] * 1e4, labels
    yield "constant", np.full((100, 4), 7.0), rng.integers(0, 4, 100)
    yield "always wrong", logits, logits.argmin(axis=1)
    yield "one sample", np.array([[2.0, 1.0, 0.0]]), np.array([0])


@pytest.mark.parametrize("data", list(awkward()), ids=lambda data: data[0])
@pytest.mark.parametrize("case", EVERY, ids=called)
def test_any_fitting_set_gives_distributions_that_are_no_worse(case, data):
    (method, options), (_, logits, labels) = case, data
    logits = logits.astype(np.float32)
    fitted = method.fit(logits, labels, **options)
    out = fitted(torch.from_numpy(logits))
    assert out.dtype == torch.float32
    assert torch.isfinite(out).all()
    assert out.exp().sum(dim=1).numpy() == pytest.approx(1.0, abs=1e-5)
    assert brier_score(out.exp(), labels) <= brier_score(softmax(logits), labels) * (1 + 1e-5) + 1e-5


@pytest.mark.parametrize("case", EVERY, ids=called)
def test_gradients_reach_the_logits(case, fitted):
    z = torch.tensor(np.vstack([draw(50, 5)[0], np.eye(5) * 1e4, np.zeros((1, 5))]), requires_grad=True)
    fitted[called(case)](z).square().sum().backward()
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("case", EVERY, ids=called)
def test_the_calibration_error_of_new_data_falls(case):
    method, options = case
    (z_fit, y_fit), (z, y) = draw(3000, 4, seed=1, sharpen=2.5), draw(3000, 4, seed=2, sharpen=2.5)
    before = expected_calibration_error(softmax(z), y)
    after = expected_calibration_error(method.fit(z_fit, y_fit, **options).predict_proba(z), y)
    assert before > 0.15
    assert after == pytest.approx(before) if method is Identity else after < 0.05


@pytest.mark.parametrize("case", EVERY, ids=called)
def test_a_saved_calibrator_comes_back_the_same(case, fitted, tmp_path):
    original = fitted[called(case)]
    original.save(tmp_path / "it.safetensors")
    loaded = load_calibrator(tmp_path / "it.safetensors")
    z = torch.from_numpy(draw(100, 5)[0]).float()
    assert type(loaded) is case[0]
    assert loaded.n_classes == 5
    assert_equal_up_to_rounding(loaded(z), original(z))


@pytest.mark.parametrize("case", EVERY, ids=called)
def test_fits_are_repeatable_and_do_not_depend_on_the_order_of_rows(case):
    method, options = case
    logits, labels = draw(500, 4, seed=5, sharpen=2.0)
    order = np.random.default_rng(1).permutation(500)
    first = method.fit(logits, labels, **options).predict_proba(logits)
    assert np.array_equal(method.fit(logits, labels, **options).predict_proba(logits), first)
    assert method.fit(logits[order], labels[order], **options).predict_proba(logits) == pytest.approx(
        first, abs=1e-9
    )


@pytest.mark.parametrize("case", EVERY, ids=called)
def test_one_row_is_treated_like_many(case, fitted):
    calibrator, z = fitted[called(case)], torch.from_numpy(draw(20, 5)[0])
    assert torch.allclose(torch.cat([calibrator(row[None]) for row in z]), calibrator(z), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("case", TOP_LABEL, ids=called)
@pytest.mark.parametrize("n", [10, 50, 1000])
def test_the_predicted_class_never_changes_ties_included(case, n):
    method, options = case
    for seed in range(3):
        logits, labels = draw(n, 6, seed=seed, sharpen=3.0)
        tied = np.random.default_rng(seed).integers(0, 3, (400, 6)).astype(float)
        z = np.vstack([tied, 1e4 * tied, draw(2000, 6, seed=seed + 99)[0]]).astype(np.float32)
        probs = method.fit(logits, labels, **options).predict_proba(z)
        assert np.array_equal(probs.argmax(axis=1), z.argmax(axis=1))


@pytest.mark.parametrize("method", WITH_MODE)
def test_an_unknown_mode_is_refused(method):
    with pytest.raises(InputError, match="^mode: expected 'one_vs_rest' or 'top_label', got 'binary'$"):
        method.fit([[1.0, 0.0], [0.0, 1.0]], [0, 0], mode="binary")


def test_only_methods_that_always_preserve_accuracy_claim_it():
    assert SplineCalibration.preserves_accuracy
    assert Identity.preserves_accuracy
    assert not any(method.preserves_accuracy for method in [PlattScaling, BetaCalibration, *WITH_MODE])


@pytest.mark.parametrize("case", ONE_VS_REST, ids=called)
def test_a_class_that_was_never_seen_keeps_a_chance(case):
    method, options = case
    logits, labels = draw(400, 4, seed=7, sharpen=1.5)
    seen = labels != 3
    probs = method.fit(logits[seen], labels[seen], **options).predict_proba(logits[labels == 3])
    assert probs[:, 3].mean() > 0.5 * softmax(logits[labels == 3])[:, 3].mean()


@pytest.mark.slow
@pytest.mark.parametrize("method", WITH_MODE)
def test_the_graph_of_one_map_per_class_takes_any_number_of_rows(method, fitted):
    calibrator = fitted[called((method, {"mode": "one_vs_rest"}))]
    z = torch.from_numpy(draw(300, 5)[0]).float()
    graph = torch.export.export(calibrator, (z[:4],), dynamic_shapes=({0: torch.export.Dim("n")},)).module()
    for rows in (1, 300):
        assert torch.allclose(graph(z[:rows]), calibrator(z[:rows]), atol=1e-5)


ROWS = st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=9), min_size=1, max_size=4)


@given(ROWS)
def test_counting_agrees_with_numpy(rows):
    longest = max(len(row) for row in rows)
    table = np.array([sorted(row) + [np.inf] * (longest - len(row)) for row in rows])
    x = np.tile(np.arange(-6.0, 6.5, 0.5)[:, None], (1, len(rows)))
    expected = np.stack([np.searchsorted(table[c], x[:, c]) for c in range(len(rows))], axis=1)
    assert np.array_equal(count_below(torch.from_numpy(x), torch.from_numpy(table)), expected)


def test_a_step_function_has_its_lower_value_at_the_threshold():
    x = torch.tensor([[-9.0], [1.0], [1.5], [2.0], [9.0]])
    out = step(x, torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, 20.0, 30.0]]))
    assert out[:, 0].tolist() == [10, 10, 20, 20, 30]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_interpolation_agrees_with_numpy_in_rows_of_different_length(dtype):
    x = torch.linspace(-4, 4, 101, dtype=dtype)[:, None].repeat(1, 2)
    knots = torch.tensor([[-2.0, 0.0, 0.5, 3.0], [-1.0, 1.0, np.inf, np.inf]])
    values = torch.tensor([[5.0, 1.0, 2.0, 2.5], [0.0, 4.0, 0.0, 0.0]])
    out = interpolate(x, knots, values)
    assert out.dtype == dtype
    for column, size in enumerate([4, 2]):
        expected = np.interp(x[:, column], knots[column, :size], values[column, :size])
        assert out[:, column].numpy() == pytest.approx(expected, abs=1e-5)


def test_knots_that_coincide_are_a_jump():
    knots, values = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([[1.0, 1.0, 2.0, 2.0]])
    x = torch.tensor([[-1.0], [0.0], [0.5], [1.0], [2.0]])
    assert interpolate(x, knots, values)[:, 0].tolist() == [1, 1, 1.5, 2, 2]


def test_entries_go_to_their_rows():
    table = ragged(torch.tensor([0, 0, 2]), torch.tensor([1.0, 2.0, 3.0]), 3, fill=torch.inf)
    assert table.tolist() == [[1, 2], [torch.inf, torch.inf], [3, torch.inf]]


def platt(slope):
    ones = torch.ones(3, dtype=torch.float64)
    return PlattScaling(slope * ones, 0 * ones, torch.tensor(True), n_classes=3)


@pytest.mark.parametrize("score", ["nll", "brier"])
def test_a_harmful_map_is_switched_off_and_a_helpful_one_stays(score):
    logits, labels = (torch.from_numpy(each) for each in draw(500, 3, sharpen=3.0))
    assert platt(0.5).unless_worse(FittingSet(logits, labels), score=score).active
    harmful = platt(4.0).unless_worse(FittingSet(logits, labels), score=score)
    assert not harmful.active
    assert torch.allclose(harmful(logits), torch.log_softmax(logits, dim=1), atol=1e-9)


def test_columns_of_one_answer_teach_nothing():
    answers = torch.tensor([[True, True, False], [True, False, False]])
    assert both_answers(answers).tolist() == [False, True, False]
