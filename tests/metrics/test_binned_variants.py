"""Variants of the binned error against loops that state their definitions, and their authors' code."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import metrics
from calibrant.bins import top_label_bins
from calibrant.errors import InputError
from calibrant.metrics.counted import Sums


def loop_bins(pairs, n_bins):
    """(count, gap, accuracy) of each right-closed bin of equal width that is not empty."""
    rows = []
    for b in range(n_bins):
        inside = [(c, a) for c, a in pairs if (b / n_bins < c <= (b + 1) / n_bins) or (b == 0 and c == 0)]
        if inside:
            accuracy = sum(a for _, a in inside) / len(inside)
            rows.append((len(inside), accuracy - math.fsum(c for c, _ in inside) / len(inside), accuracy))
    return rows


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(5)
    confidence = np.round(0.3 + 0.7 * rng.random(400), 3)
    return list(zip(confidence.tolist(), (rng.random(400) < confidence**1.5).tolist(), strict=True))


def columns(pairs):
    confidence, correct = zip(*pairs, strict=True)
    return {"confidence": np.array(confidence), "correct": np.array(correct)}


@pytest.mark.parametrize("n_bins", [1, 4, 15])
def test_rms_and_average_errors_are_those_of_the_loop(pairs, n_bins):
    rows = loop_bins(pairs, n_bins)
    rms = math.sqrt(sum(n * gap**2 for n, gap, _ in rows) / len(pairs))
    average = sum(abs(gap) for _, gap, _ in rows) / len(rows)
    assert metrics.rms_calibration_error(**columns(pairs), n_bins=n_bins) == pytest.approx(rms, abs=1e-12)
    assert metrics.average_calibration_error(**columns(pairs), n_bins=n_bins) == pytest.approx(
        average, abs=1e-12
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore:.*invalid escape sequence:SyntaxWarning")  # netcal's, from Python 3.12 on
def test_the_average_error_is_what_netcal_calls_ace(pairs):
    from netcal.metrics import ACE

    data = columns(pairs)
    theirs = ACE(15).measure(data["confidence"], data["correct"].astype(int))
    # netcal reads a binary problem: rows below one half would be turned around, so compare above it.
    kept = data["confidence"] > 0.5
    theirs = ACE(15).measure(data["confidence"][kept], data["correct"][kept].astype(int))
    ours = metrics.average_calibration_error(
        confidence=data["confidence"][kept], correct=data["correct"][kept]
    )
    assert ours == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("n_bins", [2, 10])
def test_the_debiased_square_error_is_that_of_its_authors(pairs, n_bins):
    calibration = pytest.importorskip("calibration.utils")
    data = columns(pairs)
    bins = top_label_bins(**data, n_bins=n_bins, binning="mass")
    edges = [-1.0, *bins.edges[1:].tolist()]
    binned = [[(c, float(a)) for c, a in pairs if low < c <= high] for low, high in itertools.pairwise(edges)]
    square = calibration.unbiased_square_ce(binned)
    ours = metrics.debiased_calibration_error(**data, n_bins=n_bins)
    assert ours == pytest.approx(math.sqrt(max(square, 0)), abs=1e-12)
    np.random.seed(0)  # noqa: NPY002 - their code draws from the global generator
    simulated = calibration.normal_debiased_ce(binned, power=1, resamples=20_000)
    assert metrics.debiased_calibration_error(**data, n_bins=n_bins, norm="l1") == pytest.approx(
        simulated, abs=1e-3
    )


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_debiasing_takes_away_most_of_what_chance_adds(norm):
    rng = np.random.default_rng(0)
    plain, debiased = [], []
    for _ in range(50):
        confidence = rng.random(300)
        correct = rng.random(300) < confidence
        function = metrics.expected_calibration_error if norm == "l1" else metrics.rms_calibration_error
        plain.append(function(confidence=confidence, correct=correct, binning="mass"))
        debiased.append(metrics.debiased_calibration_error(confidence=confidence, correct=correct, norm=norm))
    assert np.mean(debiased) < 0.7 * np.mean(plain)


def test_a_single_sample_in_a_bin_is_no_evidence_of_its_noise():
    lone = {"confidence": [0.3, 0.9, 0.9], "correct": [True, True, False]}
    bins = top_label_bins(**lone, n_bins=2, binning="width")
    assert bins.count.tolist() == [1, 2]
    expected = math.sqrt(2 / 3 * max(0.0, (0.9 - 0.5) ** 2 - 0.25 / 1))
    assert metrics.debiased_calibration_error(**lone, n_bins=2, binning="width") == expected


def loop_sweep(pairs, binning):
    """Add bins one by one until accuracy falls somewhere."""
    ordered = sorted(pairs)
    best = None
    for n_bins in range(1, len(pairs) + 1):
        if binning == "width":
            rows = loop_bins(pairs, n_bins)
        else:
            rows, start = [], 0
            for b in range(1, n_bins + 1):
                upper = ordered[-(-b * len(pairs) // n_bins) - 1][0]
                stop = sum(c <= upper for c, _ in ordered)
                if stop > start:
                    inside = ordered[start:stop]
                    accuracy = sum(a for _, a in inside) / len(inside)
                    rows.append(
                        (len(inside), accuracy - math.fsum(c for c, _ in inside) / len(inside), accuracy)
                    )
                start = stop
        if any(after[2] < before[2] for before, after in itertools.pairwise(rows)):
            break
        best = sum(n * abs(gap) for n, gap, _ in rows) / len(pairs)
    return best


@pytest.mark.parametrize("binning", ["mass", "width"])
@pytest.mark.parametrize("n", [1, 2, 7, 60, 150])
def test_the_sweep_is_that_of_the_loop(pairs, binning, n):
    ours = metrics.sweep_calibration_error(**columns(pairs[:n]), binning=binning)
    assert ours == pytest.approx(loop_sweep(pairs[:n], binning), abs=1e-12)


def tied(n, *, seed, rare=False):
    """Few distinct confidences whose accuracy rises, so that a sweep goes on; one of them may be rare."""
    rng = np.random.default_rng(seed)
    values = np.array([0.5, 0.61, 0.7, 0.8, 0.85, 0.9, 0.95])
    confidence = rng.choice(values, size=n)
    if rare:
        confidence[confidence == 0.7] = 0.8
        confidence[0] = 0.7
    return confidence, rng.random(n) < np.interp(confidence, values, np.linspace(0.02, 0.98, 7))


@pytest.mark.parametrize("rare", [False, True])
@pytest.mark.parametrize("binning", ["mass", "width"])
def test_the_sweep_of_tied_confidences_is_that_of_the_loop(binning, rare):
    for seed in range(4):
        confidence, correct = tied(120, seed=seed, rare=rare)
        times = np.random.default_rng(seed).integers(3, size=120)
        given = {"confidence": confidence, "correct": correct, "binning": binning, "max_bins": 120}
        pairs = [(float(c), int(a)) for c, a in zip(confidence, correct, strict=True)]
        repeated = [pair for pair, count in zip(pairs, times, strict=True) for _ in range(count)]
        assert metrics.sweep_calibration_error(**given) == pytest.approx(
            loop_sweep(pairs, binning), abs=1e-12
        )
        given["max_bins"] = 2000
        weighed = metrics.sweep_calibration_error(**given, weights=0.3 * times)
        assert weighed == pytest.approx(loop_sweep(repeated, binning), abs=1e-12)


@pytest.mark.parametrize(("rare", "most_steps"), [(False, 60), (True, 2000)])
def test_the_sweep_of_seven_confidences_fills_at_most_seven_bins_a_step(rare, most_steps, monkeypatch):
    confidence, correct = tied(3000, seed=0, rare=rare)
    shapes, fill = [], Sums.occupied

    def counted(self, *arguments):
        bins = fill(self, *arguments)
        shapes.append(bins.count.shape[1])
        return bins

    monkeypatch.setattr(Sums, "occupied", counted)
    for binning in ("mass", "width"):
        metrics.sweep_calibration_error(confidence=confidence, correct=correct, binning=binning)
    assert max(shapes) <= 7
    assert len(shapes) <= 2 * most_steps


def test_the_sweep_has_an_end_when_accuracy_never_falls():
    confidence = np.linspace(0.5, 1, 5000)
    swept = metrics.sweep_calibration_error(confidence=confidence, correct=np.ones(5000, dtype=bool))
    assert swept == pytest.approx(0.25, abs=1e-12)
    l2 = metrics.sweep_calibration_error(confidence=confidence, correct=np.ones(5000, dtype=bool), norm="l2")
    assert l2 == pytest.approx(math.sqrt(np.mean((1 - confidence) ** 2)), abs=1e-6)


def test_the_ks_error_is_the_largest_drift(pairs):
    drift = [abs(math.fsum(a - c for c, a in pairs if c <= t)) for t, _ in pairs]
    assert metrics.ks_error(**columns(pairs)) == pytest.approx(max(drift) / len(pairs), abs=1e-12)


def test_the_ks_error_of_one_sided_miscalibration_is_its_expected_gap():
    confidence = np.linspace(0.6, 0.99, 200)
    wrong = np.zeros(200, dtype=bool)
    ks, ece = (
        f(confidence=confidence, correct=wrong)
        for f in (metrics.ks_error, metrics.expected_calibration_error)
    )
    assert ks == pytest.approx(ece, abs=1e-12)


def loop_true_class(probs, labels, n_bins):
    """Eq. 17 of the SECA paper."""
    per_class = []
    for c in sorted(set(labels.tolist())):
        rows = [(float(p.max()), int(p.argmax()) == c) for p, y in zip(probs, labels, strict=True) if y == c]
        per_class.append(sum(n * abs(gap) for n, gap, _ in loop_bins(rows, n_bins)) / len(rows))
    return sum(per_class) / len(per_class)


def test_the_definitions_of_sce_have_names(sample):
    probs, labels = sample
    nixon = metrics.static_calibration_error(probs, labels)
    assert nixon == metrics.classwise_calibration_error(probs, labels)
    seca = metrics.static_calibration_error(probs, labels, definition="true_class")
    assert seca == pytest.approx(loop_true_class(probs, labels, 15), abs=1e-12)
    with pytest.raises(InputError, match="^definition: expected 'nixon' or 'true_class', got 'seca'"):
        metrics.static_calibration_error(probs, labels, definition="seca")


@pytest.mark.parametrize("seed", range(5))
def test_proposition_4_1_of_the_au_paper_no_binning_shows_more_than_the_whole_error(seed):
    # Twelve confidences whose accuracy is known exactly: 100 samples each, and any bins over them.
    rng = np.random.default_rng(seed)
    levels, hits = np.sort(rng.uniform(0.1, 1.0, 12)), rng.integers(0, 101, 12)
    confidence = np.repeat(levels, 100)
    correct = np.concatenate([np.arange(100) < each for each in hits])
    whole = np.abs(levels - hits / 100).mean()
    shown = [
        metrics.expected_calibration_error(confidence=confidence, correct=correct, n_bins=n, binning=binning)
        for n in range(1, 40)
        for binning in ("width", "mass")
    ]
    assert max(shown) <= whole + 1e-12
    assert min(shown) < 0.9 * whole


@pytest.mark.parametrize("seed", range(5))
def test_on_balanced_classes_the_sce_of_equation_17_is_at_least_the_ece(seed):
    # So the tables of SECA, with SCE 2.83 beside ECE 10.0, cannot show Eq. 17.
    rng = np.random.default_rng(seed)
    probs, labels = rng.dirichlet(np.full(6, 0.4), size=300), np.tile(np.arange(6), 50)
    sce = metrics.static_calibration_error(probs, labels, definition="true_class")
    assert sce >= metrics.expected_calibration_error(probs, labels)


def test_classwise_bins_of_equal_mass_are_those_of_each_class(sample):
    probs, labels = sample
    bins = metrics.class_bins(probs, labels, n_bins=6, binning="mass")
    gaps = []
    for c in range(4):
        one = top_label_bins(confidence=probs[:, c], correct=labels == c, n_bins=6, binning="mass")
        assert one.count.tolist() == bins.count[c].tolist()
        gaps.append(float(one.expected_gap()))
    ours = metrics.classwise_calibration_error(probs, labels, n_bins=6, binning="mass")
    assert ours == pytest.approx(np.mean(gaps), abs=1e-12)


def test_classwise_bins_of_equal_width_are_those_of_each_class(sample):
    probs, labels = sample
    bins = metrics.class_bins(probs, labels, n_bins=6)
    for c in range(4):
        one = top_label_bins(confidence=probs[:, c], correct=labels == c, n_bins=6)
        assert one.count.tolist() == bins.count[c].tolist()
        assert one.correct_sum.tolist() == bins.correct_sum[c].tolist()
        assert one.confidence_sum.tolist() == pytest.approx(bins.confidence_sum[c].tolist(), abs=1e-11)


def test_the_adaptive_error_counts_each_bin_once(sample):
    probs, labels = sample
    gaps = []
    for c in range(4):
        one = top_label_bins(confidence=probs[:, c], correct=labels == c, n_bins=6, binning="mass")
        gaps.append(np.mean(np.abs(one.gap[one.count > 0].numpy())))
    assert metrics.adaptive_calibration_error(probs, labels, n_bins=6) == pytest.approx(
        np.mean(gaps), abs=1e-12
    )


VARIANTS = {
    "rms": metrics.rms_calibration_error,
    "average": metrics.average_calibration_error,
    "debiased": metrics.debiased_calibration_error,
    "sweep": metrics.sweep_calibration_error,
    "ks": metrics.ks_error,
}


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=30)
@given(
    pairs=st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=25),
    seed=st.integers(0, 99),
)
def test_variants_are_fractions_and_do_not_depend_on_the_order(name, pairs, seed):
    order = np.random.default_rng(seed).permutation(len(pairs))
    first, second = (VARIANTS[name](**columns(rows)) for rows in (pairs, [pairs[i] for i in order]))
    assert first == pytest.approx(second, abs=1e-12)
    assert 0 <= first <= 1


@pytest.mark.parametrize(
    ("function", "option", "message"),
    [
        (metrics.debiased_calibration_error, {"norm": "l3"}, "^norm: expected 'l1' or 'l2', got 'l3'"),
        (metrics.sweep_calibration_error, {"norm": "l3"}, "^norm: expected 'l1' or 'l2', got 'l3'"),
        (
            metrics.sweep_calibration_error,
            {"binning": "depth"},
            "^binning: expected 'width' or 'mass', got 'depth'",
        ),
        (
            metrics.sweep_calibration_error,
            {"max_bins": 0},
            "^max_bins: expected a whole number of at least 1, got 0",
        ),
    ],
)
def test_unknown_options_are_refused(function, option, message):
    with pytest.raises(InputError, match=message):
        function(confidence=[0.5], correct=[True], **option)


def test_unknown_binnings_of_classes_are_refused(sample):
    with pytest.raises(InputError, match="^binning: expected 'width' or 'mass', got 'depth'"):
        metrics.classwise_calibration_error(*sample, binning="depth")


def test_classes_are_counted_alike_in_blocks(sample, monkeypatch):
    one = metrics.class_bins(*sample)
    monkeypatch.setattr("calibrant.metrics.classwise._BLOCK_ENTRIES", 64)
    several = metrics.class_bins(*sample)
    assert several.count.tolist() == one.count.tolist()
    assert several.confidence_sum.numpy() == pytest.approx(one.confidence_sum.numpy(), abs=1e-12)
