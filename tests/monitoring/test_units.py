"""Monitoring by unit: rows that depend on each other make one bet and are drawn together."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from calibrant import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.inference import with_interval
from calibrant.metrics import accuracy, expected_calibration_error
from calibrant.monitoring import DriftMonitor, DriftReference, Monitoring
from calibrant.monitoring.betting import BET_SHARES
from calibrant.monitoring.reference import mean_region
from calibrant.monitoring.windows import with_intervals
from tests.monitoring.dependent import answers, joined


def monitor_of(reference, **options):
    """A test against regions that are known exactly: every bet of a calibrated stream is fair."""
    known = tuple(replace(group, region=(0.0, 0.0)) for group in reference.groups)
    return DriftMonitor(replace(reference, groups=known), **options)


@pytest.fixture(scope="module")
def reference():
    return answers(600, seed=1)


@pytest.fixture(scope="module")
def stream():
    """300 good questions, then 500 with higher confidences."""
    return joined(answers(300, seed=2), answers(500, seed=3, root=10))


def test_units_of_one_row_give_the_numbers_of_rows_without_units():
    first, then = answers(2000, seed=4, size=1), answers(2200, seed=5, size=1, root=1.5)
    alone, by_unit = Monitoring(first.replaced(units=None), window=500), Monitoring(first, window=500)
    expected, found = alone.update(then.replaced(units=None)), by_unit.update(then)
    assert alone.alarm is not None
    assert by_unit.alarm == alone.alarm
    assert [replace(window, n_units=None) for window in found] == expected
    assert [window.n_units for window in found] == [500] * 4
    assert by_unit.monitor.reference.groups == alone.monitor.reference.groups
    assert by_unit.monitor.log_e_value == alone.monitor.log_e_value
    assert by_unit.monitor.diagnosis() == alone.monitor.diagnosis()
    assert (by_unit.n_units, alone.n_units) == (2200, None)


def test_neither_cuts_nor_states_change_windows_and_evidence(reference, stream, tmp_path):
    at_once = Monitoring(reference, window=400)
    expected = at_once.update(stream)
    assert at_once.alarm is not None
    in_parts, found, start = Monitoring(reference, window=400), [], 0
    for n in np.random.default_rng(0).integers(1, 200, 100):
        found += in_parts.update(stream.take(range(start, min(start + n, stream.n))))
        start = min(start + n, stream.n)
        in_parts.save(tmp_path / "state.json")
        in_parts = Monitoring.load(tmp_path / "state.json", reference)
        if start == stream.n:
            break
    assert found == expected
    assert in_parts.monitor.state() == at_once.monitor.state()
    assert (in_parts.alarm.row, in_parts.alarm.since) == (at_once.alarm.row, at_once.alarm.since)
    assert in_parts.n_units == at_once.n_units == 800


def test_a_bet_is_on_the_mean_of_a_unit_when_it_is_complete():
    reference = DriftReference.from_outcomes([0.8] * 500, [True] * 4 * 100 + [False] * 100, n_bins=1)
    monitor = monitor_of(reference, restart_every=None)
    confidence = np.array([0.5, 0.5, 0.9, 0.6, 0.7, 0.4, 0.8])
    correct = np.array([1, 0, 0, 1, 1, 0, 0])
    monitor.update(confidence, correct == 1, [7, 7, 7, 8, 9, 9, 5])
    # The first unit is bet on by its first row, because no unit had a second one before; the last one waits.
    bets = [1 - 0.5, 1 - 0.6, ((1 - 0.7) + (0 - 0.4)) / 2]
    capitals = [math.prod(1 + share * sign * bet for bet in bets) for sign in (-1, 1) for share in BET_SHARES]
    assert monitor.e_value == pytest.approx(np.mean(capitals), rel=1e-12)
    assert (monitor.n, monitor.n_units, monitor.n_tested) == (7, 4, 6)


def test_the_alarm_names_the_last_row_of_a_unit(reference, stream):
    monitor = DriftMonitor(
        DriftReference.from_outcomes(reference.confidence, reference.correct, units=reference.units)
    )
    monitor.update(stream.confidence, stream.correct, stream.units)
    ends = np.flatnonzero(np.diff(stream.units.numpy())) + 1
    assert monitor.alarm_at in ends
    before = DriftMonitor(monitor.reference)
    before.update(
        *(values[: monitor.alarm_at] for values in (stream.confidence, stream.correct, stream.units))
    )
    assert not before.alarm  # the unit is not known to be complete


def test_regions_of_the_reference_are_those_of_the_means_of_units(reference):
    found = DriftReference.from_outcomes(reference.confidence, reference.correct, units=reference.units)
    gaps = reference.correct.numpy() - reference.confidence.numpy()
    means = [gaps[reference.units.numpy() == unit].mean() for unit in reference.units.unique(sorted=True)]
    expected = mean_region(np.array(means), low=-1.0, high=1.0, alpha=0.025 / 3)
    assert found.groups[0].region == pytest.approx(expected, abs=1e-12)
    assert (found.n, found.n_units) == (reference.n, 600)
    assert DriftReference.from_json(json.loads(json.dumps(found.as_json()))) == found


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_promised_where_bets_on_rows_break_it():
    """A fair bet on rows that are alike is no bet on independent rows: 20 % become most of the runs."""
    alpha, runs = 0.2, 200
    reference = DriftReference.from_outcomes(
        *(getattr(answers(500, seed=6, size=1), name) for name in ("confidence", "correct")), alpha=1e-9
    )
    alarms = {"units": 0, "rows": 0, "sampled": 0}
    for seed in range(runs):
        rows = answers(400, seed=1000 + seed, size=10)
        by_unit, by_row = monitor_of(reference, alpha=alpha), monitor_of(reference, alpha=alpha)
        by_unit.update(rows.confidence, rows.correct, rows.units)
        by_row.update(rows.confidence, rows.correct)
        alarms["units"] += by_unit.alarm
        alarms["rows"] += by_row.alarm
        if seed < runs // 4:
            monitoring = Monitoring(answers(150, seed=2000 + seed, size=10), alpha=alpha, window=5000)
            monitoring.update(rows)
            alarms["sampled"] += monitoring.alarm is not None
    assert alarms["units"] <= alpha * runs + 2 * math.sqrt(runs * alpha * (1 - alpha))
    assert alarms["sampled"] <= binom.ppf(0.999, runs // 4, alpha)
    assert alarms["rows"] > 0.6 * runs


def test_drift_is_found_by_unit(reference):
    monitoring = Monitoring(reference)
    monitoring.update(answers(600, seed=7, root=3))
    assert monitoring.alarm.changes[0].direction == "overconfident"
    assert " units" not in monitoring.conclusion()
    calm = Monitoring(reference)
    calm.update(answers(600, seed=8))
    assert "rows of 600 units can tell" in calm.conclusion()


@pytest.mark.parametrize("n", [300, 6000])
def test_intervals_of_a_window_are_those_of_drawing_its_units_again(n):
    rows = answers(n, seed=9, size=6)
    confidence, correct, units = rows.confidence.numpy(), rows.correct.numpy(), rows.units.numpy()
    (hits,), ece = with_intervals(
        correct[None].astype(float), correct.astype(float), confidence, units, n_bins=10, seed=3
    )
    same = {"confidence": confidence, "correct": correct, "units": units, "n_resamples": 200, "seed": 3}
    for found, metric, options in ((hits, accuracy, {}), (ece, expected_calibration_error, {"n_bins": 10})):
        expected = with_interval(metric, **same, **options)
        assert found.value == pytest.approx(expected.value)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
        assert found.standard_error == pytest.approx(expected.standard_error)


def test_a_window_of_one_unit_has_no_interval_to_show(reference):
    monitoring = Monitoring(reference, window=50)
    (window,) = monitoring.update(
        Predictions(confidence=[0.8] * 50, correct=[True] * 30 + [False] * 20, units=[1] * 50)
    )
    assert window.n_units == 1
    assert (window.accuracy.value, window.accuracy.low, window.accuracy.high) == (0.6, 0.0, 1.0)
    assert (window.ece.low, window.ece.high) == (0.0, 1.0)
    assert window.nll is None


def test_a_unit_that_returns_is_refused_and_changes_nothing(reference):
    monitoring = Monitoring(reference, window=500)
    monitoring.update(Predictions(confidence=[0.9] * 4, correct=[True] * 4, units=[1, 1, 2, 3]))
    before = monitoring.monitor.state()
    with pytest.raises(InputError, match=r"^units: expected the rows of a unit to follow .* in row 5; sort"):
        monitoring.update(Predictions(confidence=[0.9] * 6, correct=[True] * 6, units=[3, 3, 4, 4, 5, 2]))
    assert monitoring.monitor.state() == before
    monitoring.update(Predictions(confidence=[0.9] * 1000, correct=[True] * 1000, units=np.arange(10, 1010)))
    monitoring.update(Predictions(confidence=[0.9], correct=[True], units=[2]))
    assert monitoring.n_units == 1004


def test_reference_and_stream_both_have_units_or_none(reference, stream, tmp_path):
    with pytest.raises(
        InputError, match="^units: expected units, as in the reference, got none; name the same"
    ):
        Monitoring(reference).update(stream.replaced(units=None))
    with pytest.raises(InputError, match="^units: expected no units, as in the reference, got some"):
        Monitoring(reference.replaced(units=None)).update(stream)
    Monitoring(reference).save(tmp_path / "state.json")
    with pytest.raises(InputError, match="expected the reference that this state was begun with"):
        Monitoring.load(tmp_path / "state.json", reference.replaced(units=None))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recent": [1, 1]}, "units.recent: expected"),
        ({"bets": 10**6}, "units.bets: expected"),
        ({"bets": 0}, "units.bets: expected"),
        ({"waits": False}, "units.count: expected"),
        ({"count": [0] * 9}, "units.count: expected 10 bins"),
        ({"count": [10**6] * 10}, "units.count: expected"),
        ({"gap_sum": [5.0] * 10}, "units.gap_sum: expected"),
        ({"recent": [2**63]}, "units.recent"),
        (None, "monitor.units: expected"),
    ],
)
def test_units_that_no_state_has_are_refused_with_their_field(reference, stream, tmp_path, change, message):
    path = tmp_path / "state.json"
    monitoring = Monitoring(reference, window=400)
    monitoring.update(stream)
    assert monitoring.monitor.n_tested < monitoring.n
    monitoring.save(path)
    state = json.loads(path.read_text())
    del state["digest"]
    units = state["monitor"]["units"]
    state["monitor"]["units"] = None if change is None else units | change
    path.write_text(json.dumps(state | {"version": 2}))
    with pytest.raises((FormatError, InputError), match=message):
        Monitoring.load(path, reference)


def test_a_reset_keeps_the_count_of_units(reference, stream, tmp_path):
    monitoring = Monitoring(reference)
    monitoring.update(stream)
    monitoring.reset()
    monitoring.update(answers(50, seed=11))
    monitoring.save(tmp_path / "state.json")
    assert Monitoring.load(tmp_path / "state.json", reference).n_units == monitoring.n_units == 850
