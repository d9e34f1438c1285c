"""Monitoring: windows and evidence are those of the rows, however they came and whatever happened between."""

import math
from dataclasses import asdict

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.monitoring import DriftMonitor, DriftReference, Monitoring
from tests.conftest import draw, softmax


def predictions(n, *, seed, sharpen=1.0):
    logits, labels = draw(n, 5, seed=seed, sharpen=sharpen)
    return Predictions(logits=logits, labels=labels)


def joined(*parts):
    return Predictions(
        logits=np.concatenate([part.logits for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
    )


@pytest.fixture(scope="module")
def reference():
    return predictions(4000, seed=100)


@pytest.fixture(scope="module")
def stream():
    """1,900 good rows, then 1,150 with logits twice as large."""
    return joined(predictions(1900, seed=101), predictions(1150, seed=102, sharpen=2.0))


@pytest.fixture(scope="module")
def at_once(reference, stream):
    monitoring = Monitoring(reference, window=500)
    return monitoring, monitoring.update(stream)


def test_windows_follow_each_other_and_leave_only_what_does_not_fill_one(at_once):
    monitoring, windows = at_once
    assert [(w.first, w.last, w.n) for w in windows] == [
        (1, 500, 500),
        (501, 1000, 500),
        (1001, 1500, 500),
        (1501, 2000, 500),
        (2001, 2500, 500),
        (2501, 3000, 500),
    ]
    assert monitoring.n == 3050


def test_measures_of_a_window_are_those_of_its_rows(at_once, stream):
    logits, labels = stream.logits.numpy()[500:1000], stream.labels.numpy()[500:1000]
    probs = softmax(logits)
    confidence, hit = probs.max(axis=1), probs.argmax(axis=1) == labels
    ece = 0.0
    for b in range(10):
        inside = (confidence > b / 10) & (confidence <= (b + 1) / 10)
        if inside.any():
            ece += inside.mean() * abs(hit[inside].mean() - confidence[inside].mean())
    window = at_once[1][1]
    assert window.accuracy.value == pytest.approx(hit.mean())
    assert window.mean_confidence.value == pytest.approx(confidence.mean())
    assert window.ece.value == pytest.approx(ece)
    assert window.brier.value == pytest.approx(((probs - np.eye(5)[labels]) ** 2).sum(axis=1).mean())
    assert window.nll.value == pytest.approx(-np.log(probs[np.arange(500), labels]).mean())


def test_accuracies_of_windows_add_up_to_the_hits_of_the_stream(at_once, stream):
    hits = (stream.logits.argmax(dim=1) == stream.labels)[:3000].sum().item()
    assert sum(w.n * w.accuracy.value for w in at_once[1]) == pytest.approx(hits)


def test_every_interval_contains_its_value_and_is_not_a_point(at_once):
    for window in at_once[1]:
        for measured in (window.accuracy, window.mean_confidence, window.ece, window.brier, window.nll):
            assert measured.low <= measured.value <= measured.high
            assert measured.low < measured.high


def test_the_interval_of_a_clear_calibration_error_has_room_on_both_sides(at_once):
    ece = at_once[1][-1].ece
    assert 0.01 < ece.value - ece.low < 0.1
    assert 0.01 < ece.high - ece.value < 0.1


def test_windows_with_the_same_rows_are_resampled_independently(reference):
    monitoring = Monitoring(reference, window=50)
    rows = predictions(50, seed=111)
    (first,), (second,) = monitoring.update(rows), monitoring.update(rows)
    assert first.mean_confidence.value == second.mean_confidence.value
    assert first.mean_confidence.low != second.mean_confidence.low


def test_intervals_of_means_have_the_width_of_the_normal_approximation(at_once, stream):
    hits = (stream.logits.argmax(dim=1) == stream.labels).numpy()[:500]
    interval = at_once[1][0].accuracy
    expected = 2 * 1.96 * hits.std() / math.sqrt(500)
    assert interval.high - interval.low == pytest.approx(expected, rel=0.25)


def test_evidence_is_that_of_a_drift_monitor_that_read_the_same_rows(at_once, reference, stream):
    old, new = reference.outcomes(), stream.outcomes()
    monitor = DriftMonitor(DriftReference.from_outcomes(old.confidence, old.correct))
    expected = []
    for start in range(0, 3000, 500):
        monitor.update(new.confidence[start : start + 500], new.correct[start : start + 500])
        expected.append(monitor.log_e_value)
    assert [w.log_e_value for w in at_once[1]] == expected


def test_the_alarm_comes_after_the_drift_and_says_about_when_it_began_and_how(at_once):
    monitoring, windows = at_once
    assert [w.alarm for w in windows] == [w.last >= monitoring.alarm.row for w in windows]
    assert 1900 < monitoring.alarm.row <= 2500
    assert 1501 <= monitoring.alarm.since <= 2001
    assert monitoring.alarm.changes[0].direction == "overconfident"
    assert all(change.drifts for change in monitoring.alarm.changes)


def test_a_late_drift_is_dated_to_the_window_in_which_it_began(reference):
    monitoring = Monitoring(reference, window=1000)
    monitoring.update(predictions(12_000, seed=103))
    before = monitoring.alarm
    monitoring.update(predictions(2000, seed=104, sharpen=1.5))
    assert before is None
    assert 12_000 < monitoring.alarm.row < 13_500
    assert monitoring.alarm.since == 12_001


@pytest.mark.parametrize("cuts", [[1, 2, 499, 1234, 2999], [500, 1000, 3000], list(range(130, 3050, 130))])
def test_any_cut_with_saving_in_between_gives_the_same_windows_and_evidence(
    at_once, reference, stream, cuts, tmp_path
):
    whole, expected = at_once
    Monitoring(reference, window=500).save(tmp_path / "state.json")
    windows = []
    for start, stop in zip([0, *cuts], [*cuts, 3050], strict=True):
        monitoring = Monitoring.load(tmp_path / "state.json", reference)
        windows += monitoring.update(stream.take(np.arange(start, stop)))
        monitoring.save(tmp_path / "state.json")
    last = Monitoring.load(tmp_path / "state.json", reference)
    assert [asdict(w) for w in windows] == [asdict(w) for w in expected]
    assert last.n == whole.n
    assert last.monitor.log_e_value == whole.monitor.log_e_value
    assert (last.alarm.row, last.alarm.since) == (whole.alarm.row, whole.alarm.since)


def test_an_alarm_is_kept_as_it_was_raised_while_rows_go_on(at_once, reference, tmp_path):
    at_once[0].save(tmp_path / "state.json")
    later = Monitoring.load(tmp_path / "state.json", reference)
    later.update(predictions(600, seed=105))
    assert later.alarm == at_once[0].alarm


def test_a_reset_forgets_the_alarm_and_counts_rows_on(at_once, reference, tmp_path):
    at_once[0].save(tmp_path / "state.json")
    monitoring = Monitoring.load(tmp_path / "state.json", reference)
    monitoring.reset()
    assert (monitoring.alarm, monitoring.n, monitoring.monitor.n) == (None, 3050, 0)
    windows = monitoring.update(predictions(950, seed=106, sharpen=2.0))
    assert [(w.first, w.last) for w in windows] == [(3001, 3500), (3501, 4000)]
    assert 3050 < monitoring.alarm.row <= 3500
    assert monitoring.alarm.since == 3051


def test_a_window_of_pairs_has_the_scores_of_wrong_and_right_and_a_mixed_one_has_none(reference, tmp_path):
    monitoring = Monitoring(reference, window=100)
    assert monitoring.update(predictions(150, seed=107))[0].brier is not None
    monitoring.save(tmp_path / "state.json")
    monitoring = Monitoring.load(tmp_path / "state.json", reference)
    outcomes = predictions(150, seed=108).outcomes()
    mixed, pairs = monitoring.update(Predictions(confidence=outcomes.confidence, correct=outcomes.correct))
    assert (mixed.brier, mixed.nll) == (None, None)
    assert mixed.accuracy.n_resamples == 200
    c, hit = outcomes.confidence.numpy()[50:], outcomes.correct.numpy()[50:]
    right = np.where(hit, c, 1 - c)
    assert pairs.brier.value == pytest.approx(((1 - right) ** 2).mean())
    assert pairs.nll.value == pytest.approx(-np.log(right).mean(), abs=1e-4)
    assert pairs.nll.low < pairs.nll.value < pairs.nll.high


def test_a_true_class_of_probability_zero_survives_the_state(reference, tmp_path):
    monitoring = Monitoring(reference, window=4)
    monitoring.update(Predictions(probs=[[1.0, 0.0], [0.5, 0.5]], labels=[1, 0]))
    monitoring.save(tmp_path / "state.json")
    monitoring = Monitoring.load(tmp_path / "state.json", reference)
    (window,) = monitoring.update(Predictions(probs=[[0.8, 0.2], [0.3, 0.7]], labels=[0, 1]))
    assert window.nll.value == pytest.approx(-math.log(1e-12 * 0.5 * 0.8 * 0.7) / 4)
    assert window.brier.value == pytest.approx((2 + 0.5 + 2 * 0.2**2 + 2 * 0.3**2) / 4)


def test_rows_that_are_refused_change_nothing(reference):
    monitoring = Monitoring(reference)
    with pytest.raises(InputError, match="labels: expected the true class of each sample"):
        monitoring.update(Predictions(logits=[[1.0, 0.0]]))
    assert monitoring.n == 0


def test_a_state_of_another_reference_is_refused_in_one_sentence(at_once, tmp_path):
    at_once[0].save(tmp_path / "state.json")
    with pytest.raises(InputError, match=r"^state.json: expected the reference .* begin a new state$"):
        Monitoring.load(tmp_path / "state.json", predictions(4000, seed=7))


@pytest.mark.parametrize("broken", ["os.fsync", "pathlib.Path.replace"])
def test_a_write_that_fails_leaves_the_old_state_and_no_litter(reference, tmp_path, monkeypatch, broken):
    path = tmp_path / "state.json"
    monitoring = Monitoring(reference, window=500)
    monitoring.save(path)
    before = path.read_bytes()
    monitoring.update(predictions(700, seed=109))

    def fail(*_):
        raise OSError("the machine went down")

    monkeypatch.setattr(broken, fail)
    with pytest.raises(InputError, match="went down"):
        monitoring.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]
    assert Monitoring.load(path, reference).n == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, "^alpha: "),
        ({"alpha": 0.0}, "^alpha: "),
        ({"window": 1}, "^window: "),
        ({"tolerance": -0.1}, "^tolerance: "),
        ({"n_bins": 0}, "^n_bins: "),
        ({"n_bins": 3_000_000_000}, "^n_bins: expected a whole number of at most 1,000, got 3,000,000,000"),
        ({"window": 10**20}, "^window: expected a whole number of at most 100,000,000, got 100,"),
        ({"alpha": 1e-310}, "^alpha: "),
    ],
)
def test_options_without_meaning_are_refused(reference, options, message):
    with pytest.raises(InputError, match=message):
        Monitoring(reference, **options)


def test_a_change_within_the_tolerance_raises_no_alarm(reference):
    drifted = predictions(2000, seed=110, sharpen=1.5)
    strict, tolerant = Monitoring(reference), Monitoring(reference, tolerance=0.2)
    strict.update(drifted)
    tolerant.update(drifted)
    assert strict.alarm is not None
    assert tolerant.alarm is None
