"""Drift monitor: exact expectations by enumeration, the definition as a plain loop, and simulated streams."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from calibrant.errors import InputError
from calibrant.monitoring import DriftMonitor, DriftReference
from calibrant.monitoring.alarm import strongest_changes
from calibrant.monitoring.betting import BET_SHARES
from calibrant.monitoring.reference import lower_bound, mean_region


def stream(n, *, seed, factor=1.0, spread=2.5, k=5):
    """Draw labels from the softmax of normal logits; the model states that of ``factor`` times the logits."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=spread, size=(n, k))
    labels = (logits + rng.gumbel(size=(n, k))).argmax(axis=1)
    stated = np.exp(factor * (logits - logits.max(axis=1, keepdims=True)))
    return stated.max(axis=1) / stated.sum(axis=1), logits.argmax(axis=1) == labels


def followed(reference, *parts, **options):
    monitor = DriftMonitor(reference, **options)
    for part in parts:
        monitor.update(*part)
    return monitor


def exactly_calibrated(reference):
    """Return the reference of someone who knows that every expected gap is zero."""
    return replace(reference, groups=tuple(replace(g, region=(0.0, 0.0)) for g in reference.groups))


def e_value_by_definition(reference, confidence, correct, restart_every):
    """Sum over groups, directions, sizes of bet and starts, each bettor followed by himself."""
    edges = [-1.0, *reference.edges, 1.0]
    n_levels = 1 + max(group.level for group in reference.groups)
    total = 0.0
    for group in reference.groups:
        peers = sum(other.level == group.level for other in reference.groups)
        low, high = group.region[0] - reference.tolerance, group.region[1] + reference.tolerance
        for direction, share in itertools.product(("over", "under"), BET_SHARES):
            weight = 1 / (n_levels * peers * 2 * len(BET_SHARES))
            worst = 1 - group.low - low if direction == "over" else high + group.high
            starts = itertools.count(0, restart_every) if restart_every else [0]
            left = 1.0
            for j, start in enumerate(itertools.takewhile(lambda s: s < max(len(correct), 1), starts), 1):
                capital = 1 / math.log2(j + 1) - 1 / math.log2(j + 2) if restart_every else 1.0
                left -= capital
                for c, hit in list(zip(confidence, correct, strict=True))[start:]:
                    if edges[group.first] < c <= edges[group.last + 1]:
                        x = float(hit) - c
                        capital *= 1 + share / worst * (low - x if direction == "over" else x - high)
                total += weight * capital
            total += weight * left
    return total


@pytest.fixture(scope="module")
def reference():
    return DriftReference.from_outcomes(*stream(5000, seed=0))


@pytest.fixture(scope="module")
def overconfident():
    return DriftReference.from_outcomes(*stream(5000, seed=0, factor=2.0))


# ---- the regions of the reference


def test_a_bound_is_the_claim_against_which_bets_won_one_over_alpha():
    values = np.random.default_rng(0).beta(2, 5, size=300)
    bound = lower_bound(values, low=0.0, high=1.0, alpha=0.01)
    capital, seen, squares = 1.0, 0.5, 0.25
    for i, x in enumerate(values, 1):
        capital *= 1 + min(math.sqrt(2 * math.log(100) / (300 * squares / i)), 0.75) * (x - bound)
        seen += x
        squares += (x - seen / (i + 1)) ** 2
    assert capital == pytest.approx(100, rel=1e-6)
    assert 0.25 < bound < values.mean()


def test_a_region_has_half_of_alpha_for_either_end():
    values = np.random.default_rng(3).beta(2, 5, size=200)
    low, high = mean_region(values, low=0.0, high=1.0, alpha=0.1)
    assert low == lower_bound(values, low=0.0, high=1.0, alpha=0.05)
    assert high == pytest.approx(1 - lower_bound(1 - values, low=0.0, high=1.0, alpha=0.05), abs=1e-9)


@pytest.mark.parametrize("p", [0.02, 0.5, 0.9])
def test_bounds_miss_the_mean_no_more_often_than_they_say(p):
    rng = np.random.default_rng(1)
    missed = sum(
        not low <= p <= high
        for low, high in (
            mean_region((rng.random(60) < p).astype(float), low=0.0, high=1.0, alpha=0.2) for _ in range(400)
        )
    )
    assert missed <= binom.ppf(0.999, 400, 0.2)


def test_the_region_is_not_much_wider_than_a_normal_interval_of_the_same_level():
    values = (np.random.default_rng(2).random(4000) < 0.7) - 0.7
    low, high = mean_region(values, low=-1.0, high=1.0, alpha=0.01)
    assert high - low < 1.35 * 2 * 2.576 * values.std() / math.sqrt(4000)


def test_regions_of_all_groups_hold_together():
    missed = 0
    for seed in range(200):
        groups = DriftReference.from_outcomes(*stream(400, seed=seed), n_bins=4, alpha=0.2).groups
        missed += not all(group.region[0] <= 0 <= group.region[1] for group in groups)
    assert missed <= binom.ppf(0.999, 200, 0.2)


def test_groups_are_everything_two_halves_and_bins_of_equal_mass(reference):
    ranges = [(group.level, group.first, group.last, group.n) for group in reference.groups]
    assert ranges[:3] == [(0, 0, 9, 5000), (1, 0, 4, 2500), (1, 5, 9, 2500)]
    assert ranges[3:] == [(2, b, b, 500) for b in range(10)]
    confidence, correct = stream(5000, seed=0)
    for group in reference.groups:
        own = (confidence > group.low) & (confidence <= group.high)
        assert group.gap == pytest.approx(correct[own].mean() - confidence[own].mean(), abs=1e-12)
        assert group.region[0] < group.gap < group.region[1]


def test_alpha_is_shared_by_levels_and_groups_and_samples_on_edges_are_left_out(reference):
    confidence, correct = stream(5000, seed=0)
    gaps = correct - confidence
    everything, first_bin = reference.groups[0], reference.groups[3]
    assert everything.region == mean_region(gaps, low=-1.0, high=1.0, alpha=0.025 / 3)
    below = gaps[confidence < first_bin.high]
    assert len(below) == first_bin.n - 1
    assert first_bin.region == mean_region(below, low=-first_bin.high, high=1.0, alpha=0.025 / 30)


def test_equal_confidences_share_a_bin_and_empty_bins_vanish():
    reference = DriftReference.from_outcomes([0.5] * 10 + [0.9] * 10, [True, False] * 10, n_bins=10)
    assert reference.edges == (0.5,)
    assert [group.n for group in reference.groups] == [20, 10, 10]


def test_a_reference_of_one_sample_never_raises_an_alarm():
    reference = DriftReference.from_outcomes([0.9], [True])
    assert not followed(reference, ([0.9] * 3000, [False] * 3000)).alarm


def test_a_reference_survives_json(reference):
    assert DriftReference.from_json(json.loads(json.dumps(reference.as_json()))) == reference


# ---- the e-process


@pytest.mark.parametrize("restart_every", [None, 1, 3])
def test_the_e_value_expects_exactly_one_when_every_gap_is_what_it_was(reference, restart_every):
    known = exactly_calibrated(reference)
    confidence = [0.3, 0.95, 0.97, 0.45, 0.31, 0.999]
    expected = np.zeros(len(confidence))
    for hits in itertools.product([False, True], repeat=len(confidence)):
        monitor = DriftMonitor(known, restart_every=restart_every)
        chance = math.prod(c if hit else 1 - c for c, hit in zip(confidence, hits, strict=True))
        for t, (c, hit) in enumerate(zip(confidence, hits, strict=True)):
            monitor.update([c], [hit])
            expected[t] += chance * monitor.e_value
    np.testing.assert_allclose(expected, 1, atol=1e-12)


def test_the_e_value_expects_at_most_one_anywhere_in_the_region(reference):
    wide = replace(reference, groups=tuple(replace(g, region=(-0.1, 0.05)) for g in reference.groups))
    confidence = [0.3, 0.9, 0.6, 0.9, 0.45, 0.8]
    for gap in (-0.1, -0.02, 0.05):
        expected = 0.0
        for hits in itertools.product([False, True], repeat=len(confidence)):
            chance = math.prod(
                c + gap if hit else 1 - c - gap for c, hit in zip(confidence, hits, strict=True)
            )
            expected += chance * followed(wide, (confidence, hits), restart_every=2).e_value
        assert expected < 1


@pytest.mark.parametrize("restart_every", [None, 7, 100])
@pytest.mark.parametrize("tolerance", [0.0, 0.03])
def test_the_e_value_is_that_of_the_definition(restart_every, tolerance):
    confidence, correct = stream(2000, seed=1)
    reference = DriftReference.from_outcomes(
        confidence.round(2).clip(0.4, 0.9), correct, n_bins=6, tolerance=tolerance
    )
    confidence, correct = stream(120, seed=2, factor=4.0)
    confidence = confidence.round(2)
    confidence[:2] = 0.0, 1.0
    monitor = DriftMonitor(reference, restart_every=restart_every)
    highest = 0.0
    for t in range(120):
        monitor.update(confidence[t : t + 1], correct[t : t + 1])
        if t % 13 == 0 or t in (6, 7, 99, 100, 119):
            truth = e_value_by_definition(reference, confidence[: t + 1], correct[: t + 1], restart_every)
            assert monitor.e_value == pytest.approx(truth, rel=1e-10)
            highest = max(highest, truth)
    assert highest > 2
    assert monitor.log_peak >= math.log(highest) - 1e-10


def test_a_new_monitor_has_an_e_value_of_one(reference):
    assert DriftMonitor(reference).e_value == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("restart_every", [None, 1000])
def test_it_does_not_matter_where_batches_end(reference, restart_every):
    good, drifted = stream(5300, seed=3), stream(4000, seed=4, factor=1.4)
    confidence, correct = (np.concatenate(parts) for parts in zip(good, drifted, strict=True))
    whole = followed(reference, (confidence, correct), restart_every=restart_every)
    cuts = np.sort(np.random.default_rng(0).integers(0, len(confidence), size=60))
    parts = zip(np.split(confidence, cuts), np.split(correct, cuts), strict=True)
    pieces = followed(reference, *parts, restart_every=restart_every)
    assert whole.alarm or restart_every is None
    left, right = whole.state(), pieces.state()
    assert left.pop("log_peak") == pytest.approx(right.pop("log_peak"), abs=1e-12)
    assert left == right
    assert whole.diagnosis() == pieces.diagnosis()


def test_the_alarm_is_at_the_first_sample_that_reaches_the_threshold(reference):
    confidence, correct = stream(1500, seed=5, factor=1.6)
    whole = followed(reference, (confidence, correct))
    monitor = DriftMonitor(reference)
    for t in range(len(confidence)):
        monitor.update(confidence[t : t + 1], correct[t : t + 1])
        if monitor.e_value >= monitor.threshold:
            break
    assert whole.alarm_at == monitor.alarm_at == monitor.n
    assert monitor.threshold == pytest.approx(40)


def test_peaks_and_alarms_of_groups_are_what_looking_at_every_sample_shows(reference):
    confidence, correct = stream(500, seed=6, factor=1.6)
    whole = followed(reference, (confidence, correct), restart_every=90)
    monitor = DriftMonitor(reference, restart_every=90)
    own_alarm = math.log(40) + np.log(2 * 3 * np.repeat([1, 2, 10], [2, 4, 20]))
    peak, peaks = 0.0, np.zeros(26)
    for t in range(len(confidence)):
        monitor.update(confidence[t : t + 1], correct[t : t + 1])
        peak = max(peak, monitor.log_e_value)
        peaks = np.maximum(peaks, [group.log_e_value for group in monitor.diagnosis()])
    assert whole.log_peak == pytest.approx(peak, abs=1e-10)
    assert [group.drifts for group in whole.diagnosis()] == (peaks >= own_alarm).tolist()
    assert (peaks >= own_alarm).any()
    assert ((peaks >= math.log(40)) & (peaks < own_alarm)).any()


def test_a_second_drift_is_found_while_the_evidence_of_the_first_declines(reference):
    parts = [([0.99] * 60, [False] * 60), ([0.99] * 400, [True] * 400), ([0.3] * 200, [True] * 200)]
    monitor = followed(reference, *parts, restart_every=None)
    assert monitor.log_e_value < monitor.log_peak - 5
    bins = [(group.low, group.direction) for group in monitor.diagnosis()[6:] if group.drifts]
    assert bins == [(0.0, "underconfident"), (reference.edges[-1], "overconfident")]


def test_an_alarm_is_not_taken_back(reference):
    monitor = followed(
        reference, stream(2000, seed=6, factor=2.0), stream(30_000, seed=7), restart_every=None
    )
    assert monitor.alarm
    assert monitor.alarm_at < 2000
    assert monitor.e_value < 1 < monitor.threshold <= math.exp(monitor.log_peak) * (1 + 1e-12)


def test_a_monitor_that_was_stopped_goes_on_as_if_it_had_not_been(reference):
    parts = [stream(1700, seed=8), stream(2500, seed=9, factor=1.3)]
    stopped = followed(reference, parts[0])
    resumed = DriftMonitor.from_state(json.loads(json.dumps(stopped.state(), allow_nan=False)))
    resumed.update(*parts[1])
    assert resumed.state() == followed(reference, *parts).state()


def test_extreme_evidence_does_not_overflow(reference):
    monitor = followed(reference, ([0.99] * 5000, [False] * 5000))
    assert monitor.e_value == math.inf
    assert 1000 < monitor.log_e_value < math.inf


@pytest.mark.parametrize("kind", [list, torch.as_tensor])
def test_any_kind_of_array_gives_the_same_evidence(reference, kind):
    confidence, correct = stream(200, seed=10)
    monitor = followed(reference, (kind(confidence), kind(correct)))
    assert monitor.state() == followed(reference, (confidence, correct)).state()


# ---- false alarms


def test_false_alarms_are_as_rare_as_promised_without_slack_in_the_regions(reference):
    known = exactly_calibrated(reference)
    alarms = sum(followed(known, stream(1000, seed=s), alpha=0.225).alarm for s in range(1000, 1200))
    assert 2 <= alarms <= binom.ppf(0.999, 200, 0.2)


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_promised_with_a_reference_that_is_itself_a_sample():
    alarms = 0
    for seed in range(200):
        reference = DriftReference.from_outcomes(*stream(500, seed=seed, factor=1.5), alpha=0.1)
        alarms += followed(reference, stream(2000, seed=seed + 5000, factor=1.5), alpha=0.2).alarm
    assert alarms <= binom.ppf(0.999, 200, 0.2)


def test_harder_inputs_with_honest_confidence_are_no_drift(reference):
    easy, hard = stream(5000, seed=11), stream(20_000, seed=11, spread=1.2)
    assert hard[1].mean() < easy[1].mean() - 0.15
    assert not followed(reference, hard).alarm


def test_a_change_within_the_tolerance_is_no_drift():
    outcomes = stream(5000, seed=12)
    drifted = stream(5000, seed=13, factor=1.3)
    assert followed(DriftReference.from_outcomes(*outcomes), drifted).alarm
    assert not followed(DriftReference.from_outcomes(*outcomes, tolerance=0.1), drifted).alarm


# ---- drift


@pytest.mark.parametrize(("factor", "direction"), [(1.5, "overconfident"), (0.6, "underconfident")])
def test_a_change_of_temperature_is_found_and_its_direction_named(reference, factor, direction):
    monitor = followed(reference, stream(3000, seed=14, factor=factor))
    assert monitor.alarm
    drifting = [group for group in monitor.diagnosis() if group.drifts]
    assert (drifting[0].low, drifting[0].high) == (0.0, 1.0)
    assert {group.change for group in drifting} == {f"more {direction}"}
    assert not any(group.improves for group in drifting)


@pytest.mark.parametrize("seed", range(3))
def test_the_direction_is_that_of_the_change_also_after_a_long_calm_time(seed):
    # The reference is slightly underconfident, so that the mean gap of the whole stream looks improved.
    reference = DriftReference.from_outcomes(*stream(20_000, seed=seed, factor=0.97))
    monitor = followed(reference, stream(100_000, seed=100 + seed, factor=0.97))
    drifted = stream(3000, seed=200 + seed, factor=1.6)
    calm = monitor.diagnosis()
    for start in range(0, 3000, 100):
        monitor.update(*(each[start : start + 100] for each in drifted))
        if monitor.alarm:
            break
    found = strongest_changes(monitor)
    assert monitor.alarm
    assert [change.change for change in found] == ["more overconfident"]
    assert found[0].recent_n < 5000
    assert found[0].recent_gap < found[0].region[0]
    assert calm[0].gap == pytest.approx(found[0].gap, abs=0.01)


def test_an_improvement_is_named_as_one(overconfident):
    monitor = followed(overconfident, stream(3000, seed=15, factor=1.3))
    assert monitor.alarm
    drifting = [group for group in monitor.diagnosis() if group.drifts]
    assert drifting
    assert {group.change for group in drifting} == {"less overconfident"}
    assert all(group.improves for group in drifting)


def test_a_miscalibrated_reference_is_the_measure_of_its_own_stream(overconfident):
    assert not followed(overconfident, stream(20_000, seed=16, factor=2.0)).alarm
    assert followed(overconfident, stream(5000, seed=16, factor=5.0)).alarm


def test_drift_in_one_bin_is_found_in_that_bin(reference):
    confidence, correct = stream(20_000, seed=17)
    low, high = reference.edges[6:8]
    spoiled = (confidence > low) & (confidence <= high)
    correct[spoiled] &= np.random.default_rng(0).random(spoiled.sum()) < 0.7
    monitor = followed(reference, (confidence, correct))
    bins = [group for group in monitor.diagnosis()[6:] if group.drifts]
    assert [(group.low, group.high, group.direction) for group in bins] == [(low, high, "overconfident")]
    assert bins[0].n == spoiled.sum()
    assert bins[0].gap == pytest.approx(correct[spoiled].mean() - confidence[spoiled].mean(), abs=1e-12)


def test_changes_that_cancel_out_on_the_whole_are_found_in_the_halves(reference):
    rng = np.random.default_rng(18)
    confidence, _ = stream(10_000, seed=18)
    lower = confidence <= reference.edges[4]
    correct = rng.random(10_000) < confidence + np.where(lower, 0.08, -0.08)
    drifting = [group for group in followed(reference, (confidence, correct)).diagnosis() if group.drifts]
    ranges = {(group.low, group.high, group.direction) for group in drifting}
    middle = reference.edges[4]
    assert ranges >= {(0.0, middle, "underconfident"), (middle, 1.0, "overconfident")}
    assert (0.0, 1.0) not in {(low, high) for low, high, _ in ranges}


def test_a_long_good_past_does_not_hide_a_drift(reference):
    past, drifted = stream(60_000, seed=19), stream(4000, seed=20, factor=1.5)
    with_restarts = followed(reference, past, drifted)
    assert with_restarts.alarm
    assert 60_000 < with_restarts.alarm_at < 63_000
    assert not followed(reference, past, drifted, restart_every=None).alarm


# ---- refusals


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([0.5, math.nan], [True, False], "^confidence: expected finite numbers, got nan in row 1"),
        ([0.5, 1.5], [True, False], "^confidence: expected numbers between 0 and 1, got 1.5 in row 1"),
        ([0.5, 0.6], [True], "^correct: expected 2 entries, one per prediction, got 1"),
        ([0.5, 0.6], [1, 2], "^correct: expected true/false or 1/0, got 2 in row 1"),
    ],
)
def test_what_cannot_be_read_is_refused_and_changes_nothing(reference, confidence, correct, message):
    monitor = followed(reference, stream(50, seed=21))
    before = monitor.state()
    with pytest.raises(InputError, match=message):
        monitor.update(confidence, correct)
    assert monitor.state() == before
    with pytest.raises(InputError, match=message):
        DriftReference.from_outcomes(confidence, correct)


def test_an_empty_batch_changes_nothing(reference):
    monitor = followed(reference, stream(50, seed=22))
    before = monitor.state()
    monitor.update([], [])
    assert monitor.state() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_bins": 0}, "^n_bins: expected a whole number of at least 1, got 0"),
        ({"alpha": 0.0}, "^alpha: expected a number between 0 and 1, got 0.0"),
        ({"alpha": math.nan}, "^alpha: expected a number between 0 and 1, got nan"),
        ({"tolerance": -0.1}, "^tolerance: expected a number from 0 to below 1, got -0.1"),
    ],
)
def test_options_of_a_reference_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        DriftReference.from_outcomes([0.5, 0.6], [True, False], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"alpha": 0.025},
            "^alpha: expected a number between 0.025, which the reference has spent, and 1, got 0",
        ),
        ({"alpha": 1.0}, "^alpha: "),
        ({"restart_every": 0}, "^restart_every: expected a whole number of at least 1, got 0"),
    ],
)
def test_options_of_a_monitor_are_checked(reference, options, message):
    with pytest.raises(InputError, match=message):
        DriftMonitor(reference, **options)
