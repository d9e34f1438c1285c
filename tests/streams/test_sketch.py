"""The rank sketch against the one-shot functions: what it says for sure is true, and it says a lot."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calibrant.errors import InputError
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.cumulative import averaged_two_bin_error
from calibrant.metrics.discrimination import auroc_correctness
from calibrant.metrics.selective import augrc, aurc, excess_aurc
from calibrant.streams.sketch import RankSketch, cell_index

MEASURES = {
    "auroc_correctness": auroc_correctness,
    "aurc": aurc,
    "excess_aurc": excess_aurc,
    "augrc": augrc,
    "two_bin_error": averaged_two_bin_error,
}

near_an_end = st.builds(
    lambda digits, lead, top: 1 - lead * 2.0**-digits if top else lead * 2.0**-digits,
    st.integers(1, 53),
    st.sampled_from([1.0, 0.99, 0.75, 0.5]),
    st.booleans(),
)
confidences = st.one_of(
    st.sampled_from([0.0, 0.5, 0.9, 1.0]), near_an_end, st.floats(0.5, 0.75), st.floats(0, 1)
)
pairs = st.lists(st.tuples(confidences, st.booleans()), min_size=1, max_size=40)


def exact(confidence, correct, n_bins):
    """Every rank-based measure by its one-shot function."""
    values = {name: f(confidence=confidence, correct=correct) for name, f in MEASURES.items()}
    values["equal_mass_error"] = expected_calibration_error(
        confidence=confidence, correct=correct, n_bins=n_bins, binning="mass"
    )
    return values


def sketch_of(confidence, correct, **options):
    sketch = RankSketch(**options)
    sketch.update(confidence=confidence, correct=correct)
    return sketch


def assert_bounds_hold(sketch, confidence, correct, n_bins):
    estimates = sketch.compute(n_bins=n_bins)
    for name, value in exact(confidence, correct, n_bins).items():
        bounded = getattr(estimates, name)
        if math.isnan(value):
            assert math.isnan(bounded.value), name
            continue
        assert bounded.low <= bounded.value <= bounded.high, name
        assert bounded.low - 1e-12 <= value <= bounded.high + 1e-12, name


@pytest.mark.slow
@settings(max_examples=300)
@given(pairs, st.sampled_from([1, 2, 64]), st.integers(1, 8), st.sampled_from([np.float32, np.float64]))
def test_the_bounds_always_hold(drawn, resolution, n_bins, dtype):
    confidence, correct = (np.array(column) for column in zip(*drawn, strict=True))
    confidence = confidence.astype(dtype)
    assert_bounds_hold(sketch_of(confidence, correct, resolution=resolution), confidence, correct, n_bins)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from([0.51, 0.52, 0.53, 0.9]), st.booleans()), min_size=2, max_size=40),
    st.integers(2, 8),
)
# A cut within ties moves to their end, and the gap goes there and back.
@example([(0.6, True), *[(0.7, True)] * 3, (0.9, False), (0.95, False)], 2)
@example([(0.6, False), *[(0.7, False)] * 3, (0.9, True), (0.95, True)], 2)
def test_the_bounds_hold_when_ties_and_others_share_a_cell(drawn, n_bins):
    confidence, correct = zip(*drawn, strict=True)
    assert_bounds_hold(sketch_of(confidence, correct, resolution=1), confidence, correct, n_bins)


def test_the_bounds_of_the_ranking_are_reached():
    # 0.6 and 0.7 share the only cell between 1/2 and 3/4.
    for correct, end in (([False, True], "best"), ([True, False], "worst")):
        estimates = sketch_of([0.6, 0.7], correct, resolution=1).compute()
        values = exact([0.6, 0.7], correct, 15)
        higher = end == "best"
        area = estimates.auroc_correctness
        assert values["auroc_correctness"] == (area.high if higher else area.low)
        for name in ("aurc", "excess_aurc", "augrc"):
            bounded = getattr(estimates, name)
            assert values[name] == pytest.approx(bounded.low if higher else bounded.high, abs=1e-12), name


def test_ties_are_known_to_be_ties():
    rng = np.random.default_rng(0)
    confidence = rng.choice([0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0], size=200_000)
    correct = rng.random(200_000) < confidence
    estimates = sketch_of(confidence, correct).compute()
    for name, value in exact(confidence, correct, 15).items():
        bounded = getattr(estimates, name)
        assert bounded.low == bounded.high == bounded.value == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("equal_mass_error", 2e-4),
        ("auroc_correctness", 5e-5),
        ("aurc", 2e-5),
        ("augrc", 1e-5),
        ("two_bin_error", 1e-4),
    ],
)
@pytest.mark.parametrize("kind", ["even", "calibrated", "overconfident"])
def test_the_bounds_of_many_continuous_confidences_are_tight(kind, name, within):
    rng = np.random.default_rng(0)
    margin = rng.normal(3, 2, size=100_000)
    honest = 1 / (1 + np.exp(-margin))
    if kind == "even":
        honest = confidence = rng.uniform(0.5, 1, size=100_000)
    else:
        confidence = honest if kind == "calibrated" else 1 / (1 + np.exp(-3 * margin))
    correct = rng.random(100_000) < honest
    bounded = getattr(sketch_of(confidence, correct).compute(), name)
    value = exact(confidence, correct, 15)[name]
    assert bounded.low - 1e-12 <= value <= bounded.high + 1e-12
    assert (bounded.high - bounded.low) / 2 < within
    assert bounded.value == pytest.approx(value, abs=within / 5)


@settings(max_examples=50)
@given(pairs, st.data())
def test_order_and_partition_do_not_matter(drawn, data):
    whole, merged = RankSketch(resolution=64), RankSketch(resolution=64)
    confidence, correct = (np.array(column) for column in zip(*drawn, strict=True))
    whole.update(confidence=confidence, correct=correct)
    order = np.array(data.draw(st.permutations(range(len(drawn)))))
    for rows in np.split(order, sorted(data.draw(st.lists(st.integers(0, len(drawn)), max_size=4)))):
        worker = RankSketch(resolution=64)
        worker.update(confidence=confidence[rows], correct=correct[rows])
        merged.merge(worker)
    for name, total in whole.state().items():
        if name == "confidence_sum":
            torch.testing.assert_close(merged.state()[name].sum(0), total.sum(0), rtol=1e-12, atol=1e-12)
        else:
            assert torch.equal(torch.as_tensor(merged.state()[name]), torch.as_tensor(total))


def test_probabilities_logits_and_pairs_fill_the_same_cells(overconfident):
    logits, labels = overconfident
    probs = torch.softmax(torch.tensor(logits), dim=1)
    hits = probs.argmax(dim=1) == torch.tensor(labels)
    three = RankSketch(), RankSketch(), RankSketch()
    three[0].update(probs, labels)
    three[1].update(logits=logits, labels=labels)
    three[2].update(confidence=probs.amax(dim=1), correct=hits)
    first, second, third = (sketch.compute().aurc for sketch in three)
    assert first == third
    assert second.value == pytest.approx(first.value, abs=1e-12)
    assert first.low <= aurc(probs, labels) <= first.high


def test_cells_are_in_order_and_tell_very_sure_predictions_apart():
    tiny = 2.0 ** -np.arange(1, 1075)
    near = 2.0 ** -np.arange(1, 54)
    values = np.unique(np.concatenate([[0, 0.5, 1], tiny, 1 - near, np.linspace(0, 1, 100_001)]))
    cells = cell_index(values, 8192)
    assert cells[0] == 0
    assert cells[-1] == len(RankSketch().state()["hits"]) - 1
    assert (np.diff(cells) >= 0).all()
    assert len(np.unique(cell_index(1 - near, 8192))) == len(near)
    assert cell_index(np.array([-0.0]), 8192).tolist() == [0]


@pytest.mark.parametrize("right", [True, False])
def test_without_right_or_wrong_predictions_there_is_nothing_to_tell_apart(right):
    estimates = sketch_of([0.6, 0.60001, 0.9], [right] * 3, resolution=1).compute()
    assert math.isnan(estimates.auroc_correctness.value)
    assert estimates.aurc.low == estimates.aurc.high == pytest.approx(1 - right)
    assert estimates.excess_aurc.value == 0
    assert estimates.augrc.low == estimates.augrc.high == (1 - right) / 2
    assert math.isnan(auroc_correctness(confidence=[0.6], correct=[right]))


def test_a_billion_samples_cost_what_a_thousand_do():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, size=1000)
    sketch = sketch_of(confidence, rng.random(1000) < confidence)
    once = sketch.compute()
    for _ in range(20):
        sketch.merge(sketch)
    often = sketch.compute()
    assert often.n == 1000 << 20
    assert often.auroc_correctness.value == pytest.approx(once.auroc_correctness.value, abs=1e-12)
    assert often.equal_mass_error.value == pytest.approx(once.equal_mass_error.value, abs=1e-2)
    assert often.aurc.value == pytest.approx(once.aurc.value, abs=1e-2)
    assert sum(t.nbytes for t in sketch.state().values() if torch.is_tensor(t)) < 2.6e6


def test_aurc_is_exact_where_few_cells_hold_many_samples():
    rng = np.random.default_rng(1)
    confidence = rng.choice(np.linspace(0.5, 1, 300), size=300_000)
    correct = rng.random(300_000) < confidence
    value = sketch_of(confidence, correct).compute().aurc.value
    assert value == pytest.approx(aurc(confidence=confidence, correct=correct), abs=1e-12)


def test_it_travels_as_a_pickle_or_as_a_plain_dictionary():
    sketch = sketch_of([0.9, 0.8, 0.7], [True, False, True])
    for copy in (pickle.loads(pickle.dumps(sketch)), RankSketch.from_state(sketch.state())):
        assert copy.compute() == sketch.compute()


def test_wrong_use_is_refused_in_one_sentence():
    for resolution in (0, 3, 1 << 21, 1.5):
        with pytest.raises(InputError, match="^resolution: expected"):
            RankSketch(resolution=resolution)
    with pytest.raises(InputError, match="^merge: expected .*8192.*, got .*64"):
        RankSketch().merge(RankSketch(resolution=64))
    with pytest.raises(InputError, match="^compute: expected at least one sample"):
        RankSketch().compute()
    with pytest.raises(InputError, match="^n_bins: expected"):
        sketch_of([0.5], [True]).compute(n_bins=0)
    with pytest.raises(InputError, match="^arguments: expected logits with labels"):
        RankSketch().update(logits=[[0.0, 1.0]], correct=[True])
    sketch = RankSketch()
    sketch.update(confidence=[], correct=[])
    assert sketch.n == 0
