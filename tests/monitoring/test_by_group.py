"""Tests of groups of rows: one rate of false alarms for all of them, and the group that changed is named."""

import numpy as np
import pytest
from scipy.stats import binom

from calibrant import InputError, Predictions
from calibrant.data.labels import LabelPredictions
from calibrant.monitoring import Monitoring
from calibrant.monitoring.prometheus import metrics_text

GROUPS = ["asia", "eu", "us"]


def rows(n, rng, *, bad=(), units=None):
    """Rows of three groups, calibrated but for groups whose confidence is 0.2 too high."""
    groups = rng.choice(GROUPS, n, p=[0.1, 0.3, 0.6])
    honest = rng.uniform(0.4, 0.8, n)
    stated = honest + 0.2 * np.isin(groups, bad)
    return Predictions(confidence=stated, correct=rng.random(n) < honest, groups=groups, units=units)


@pytest.fixture(scope="module")
def reference():
    return rows(8000, np.random.default_rng(0))


def test_a_change_of_a_small_group_is_found_and_named(reference):
    stream = rows(6000, np.random.default_rng(1), bad=("asia",))
    alone, by_group = Monitoring(reference), Monitoring(reference, by="region")
    alone.update(stream)
    by_group.update(stream)
    assert alone.alarm is None
    assert by_group.alarm.group == "asia"
    assert stream.groups.values[by_group.alarm.row - 1] == "asia"
    assert [test.name for test in by_group.groups if test.alarm is not None] == ["asia"]
    assert " in region asia: more overconfident" in by_group.conclusion()
    event = by_group.event(time="", file="")
    assert (event["by"], event["group"], event["alpha"]) == ("region", "asia", 0.05)
    text = metrics_text(by_group, model="m")
    assert 'calibrant_by_alarm{model="m",by="region",value="asia"} 1' in text
    assert 'calibrant_by_alarm{model="m",by="region",value="us"} 0' in text
    assert 'calibrant_alarm{model="m"} 1' in text


@pytest.mark.parametrize("with_units", [False, True])
def test_cuts_and_saved_states_change_nothing(tmp_path, with_units):
    rng = np.random.default_rng(2)
    units = np.repeat(np.arange(2000), 2) if with_units else None
    before = rows(4000, rng, units=units)
    stream = rows(4000, rng, bad=("eu",), units=units)
    whole = Monitoring(before, window=300, by="region")
    whole.update(stream)
    parts = Monitoring(before, window=300, by="region")
    for start, stop in ((0, 1), (1, 700), (700, 701), (701, 3999), (3999, 4000)):
        parts.update(stream.take(np.arange(start, stop)))
        parts.save(tmp_path / "state")
        parts = Monitoring.load(tmp_path / "state", before)
    for one, other in zip(whole.groups, parts.groups, strict=True):
        assert one.monitor.n == other.monitor.n
        assert one.monitor.log_e_value == pytest.approx(other.monitor.log_e_value)
        assert (one.last_row, one.weakest[0]) == (other.last_row, other.weakest[0])
    assert (whole.alarm.row, whole.alarm.since) == (parts.alarm.row, parts.alarm.since)
    assert whole.alarm.group == "eu"


def test_groups_are_those_of_the_reference_and_not_too_many(reference):
    monitoring = Monitoring(reference, by="region")
    monitoring.update(
        Predictions(confidence=[0.6] * 4, correct=[True] * 4, groups=["eu", "mars", "eu", "us"])
    )
    assert monitoring.others == 1
    assert [test.monitor.n for test in monitoring.groups] == [0, 2, 1]
    with pytest.raises(
        InputError, match="groups: expected region of each row, as in the reference, got none"
    ):
        monitoring.update(Predictions(confidence=[0.6], correct=[True]))
    many = Predictions(confidence=[0.6] * 202, correct=[True] * 202, groups=np.arange(202) // 2)
    with pytest.raises(InputError, match="by: expected 1 to 100 groups .* got 101; name a column with fewer"):
        Monitoring(many, by="customer")


def test_a_reset_begins_all_tests_again(reference):
    monitoring = Monitoring(reference, by="region")
    monitoring.update(rows(6000, np.random.default_rng(1), bad=("asia",)))
    monitoring.reset()
    assert monitoring.alarm is None
    assert [test.monitor.n for test in monitoring.groups] == [0, 0, 0]


@pytest.mark.slow
def test_groups_together_raise_no_more_false_alarms_than_promised():
    alpha, runs, alarms = 0.2, 60, 0
    for seed in range(runs):
        rng = np.random.default_rng([seed, 9])
        monitoring = Monitoring(rows(600, rng), alpha=alpha, window=5000, by="region")
        monitoring.update(rows(2000, rng))
        alarms += monitoring.alarm is not None
    assert alarms <= binom.ppf(0.999, runs, alpha)


def test_several_labels_at_once_are_bets_by_sample():
    rng = np.random.default_rng(4)

    def labelled(n, shift=0.0):
        honest = rng.uniform(0.2, 0.7, (n, 3))
        return LabelPredictions(probs=honest + shift, labels=rng.random((n, 3)) < honest)

    reference = labelled(1500)
    monitoring = Monitoring(reference, window=300)
    for _ in range(2):  # the samples of each batch are counted from zero
        monitoring.update(labelled(200))
    assert (monitoring.n, monitoring.n_units, monitoring.alarm) == (1200, 400, None)
    monitoring.update(labelled(600, shift=0.2))
    assert monitoring.alarm.row > 1200
