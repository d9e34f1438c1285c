"""States of monitors that were changed: refused with the name of the field, or the same behaviour."""

import copy
import json
import math
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrant import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.monitoring import DriftMonitor, DriftReference, Monitoring
from calibrant.monitoring.state import state_text
from tests.conftest import draw


def predictions(n, *, seed, sharpen=1.0):
    logits, labels = draw(n, 5, seed=seed, sharpen=sharpen)
    return Predictions(logits=logits, labels=labels)


@pytest.fixture(scope="module")
def reference():
    return predictions(2000, seed=1)


@pytest.fixture(scope="module")
def rest():
    return predictions(700, seed=3)


@pytest.fixture(scope="module")
def saved(reference, tmp_path_factory):
    """The state of a stream in alarm, with an incomplete window and two files."""
    folder = tmp_path_factory.mktemp("state")
    monitoring = Monitoring(reference, window=400)
    monitoring.update(predictions(500, seed=2))
    monitoring.reset()
    monitoring.update(predictions(1000, seed=2, sharpen=2.5))
    assert monitoring.alarm is not None
    monitoring.save(folder / "state.json")
    state = json.loads((folder / "state.json").read_text())
    del state["digest"]
    seen = {"stream": "0" * 16, "rows": 700, "total": 700, "check": 1, "mark": "9 9"}
    return state | {"files": {"/a": seen, "/b": seen | {"rows": 50}}}


def changed(state, place, value):
    """Return a copy with another value at a place such as ``monitor reference n``."""
    *path, last = [int(key) if key.isdecimal() else key for key in place.split()]
    inner = new = copy.deepcopy(state)
    for key in path:
        inner = inner[key]
    inner[last] = value
    return new


def refusal(text, reference, folder):
    path = folder / "state.json"
    path.write_text(text)
    with pytest.raises((FormatError, InputError)) as caught:
        Monitoring.load(path, reference)
    return str(caught.value)


@pytest.mark.parametrize(
    ("place", "values"),
    {
        "reference": [None, 5, "abc"],
        "window": [0, 1, -3, 7, 299, 10**30, 2.5, True, "300", None],
        "n_bins": [0, -1, 9, 3.5, 1001, "10", None, [10]],
        "tested_from": [-1, 1.5, 501, "0", None],
        "weakest": [
            "ab",
            [],
            [500],
            [500, 1.0],
            [499, -0.1],
            [1501, -0.1],
            [500, "x"],
            [500, math.inf],
            None,
        ],
        "alarm": [None, {}, [], 5],
        "alarm row": [1, 10**9, "5", None],
        "alarm since": [0, 500, 10**9, 1.5],
        "alarm changes": [[], {}, None],
        "alarm changes 0 low": [0.123, 5, None],
        "alarm changes 0 n": [-1, 0.5],
        "alarm changes 0 direction": ["up", 1],
        "pending": [{}, [], None],
        "pending confidence": [[], [5.0] * 300, "abc", {}],
        "pending confidence 0": [5, -0.1, "nan", None, [0.5], True],
        "pending correct 0": [0.5, 2, "nan"],
        "pending nll 0": [-1, "abc", "-inf", "nan"],
        "pending brier 0": [3, None, "inf"],
        "files": [[], None, {"a": 1}, {"a": {"rows": 3}}],
        "files /a rows": [-1, 701, 10**30, "7", math.inf],
        "files /a total": [699, 0.5],
        "files /a check": [-1, 2**32],
        "files /a stream": ["", "x" * 16],
        "latest": [5, [], {}],
        "latest n": [399, 0.5],
        "latest last": [1199, 1500, "x"],
        "latest ece": [None, 0.1],
        "latest ece value": [math.nan, "0.1", None],
        "monitor": [{}, [], None],
        "monitor format": [2, None],
        "monitor alpha": [0, 1, 0.025, 2, "x", math.nan],
        "monitor restart_every": [0, -1, 1.5],
        "monitor n": [-1, 999, 10**30, "x", math.inf],
        "monitor alarm_at": ["x", 0, -1, 1001, math.inf, None, 1.5],
        "monitor log_peak": ["x", -1, 0, math.inf, None, [1.0]],
        "monitor drifts": [[], [[True]], None, "x"],
        "monitor log_capital": [[], [[0.0]], "x"],
        "monitor log_capital 0 0 0": [1e300, math.nan, "x", [0.0]],
        "monitor count": [[], [1.5] * 10, [-1] * 10, [100] * 11, 3],
        "monitor gap_sum": [[], [1e9] * 10, [math.inf] * 10],
        "monitor onset": [[], {}, 3],
        "monitor onset count": [[], [[10**6, 0]] * 13],
        "monitor onset excess": [[[-1, 0]] * 13, [[2**60, 0]] * 13],
        "monitor onset gap_sum": [[[2**62, 0]] * 13, [[0.5, 0]] * 13],
        "monitor reference": [{}, None],
        "monitor reference n": [0, 1999, "x"],
        "monitor reference alpha": [0, -1, 1, 0.05],
        "monitor reference tolerance": [-1, 1, math.nan],
        "monitor reference edges": [[], [0.5] * 9, [1.0] * 9, [2.0] * 9],
        "monitor reference groups": [[], None],
        "monitor reference groups 0 n": [1, -1],
        "monitor reference groups 0 region": [[0.5], [-9.0, 0.0], [0.0, math.inf]],
        "monitor reference groups 1 low": [0.5, -1],
    }.items(),
)
def test_a_value_that_no_state_has_is_refused_with_its_field(saved, reference, tmp_path, place, values):
    field = [key for key in place.split() if not key.isdecimal()][-1]
    for value in values:
        # An earlier version, without the digest that would notice every change.
        sentence = refusal(json.dumps(changed(saved, place, value) | {"version": 2}), reference, tmp_path)
        named, _, problem = sentence.removeprefix("state.json: ").partition(": expected ")
        assert problem, sentence
        assert "\n" not in sentence
        # Values that contradict each other may be refused under the name of the other one.
        assert re.search(rf"\b{field}\b", sentence) or named in OTHERS.get(place, ()), sentence


OTHERS = {
    "window": ["pending.confidence"],
    "tested_from": ["pending.confidence", "alarm.row"],
    "alarm changes 0 low": ["alarm.changes"],
    "monitor n": ["monitor.count"],
    "monitor reference n": ["monitor.reference.groups.n"],
    "monitor reference edges": ["monitor.reference.groups"],
    "monitor reference alpha": ["monitor.alpha"],
    "monitor reference groups 1 low": ["monitor.reference.groups"],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "got no JSON"),
        (lambda _: "[" * 100_000, "got no JSON"),
        (lambda _: '{"format":' * 90 + "1" + "}" * 90, "got other JSON"),
        (lambda _: "[1, 2]", "got other JSON"),
        (lambda _: '{"format": "something else"}', "got other JSON"),
        (
            lambda text: text.replace('"version": 5', '"version": 6'),
            "expected a state of version 1 to 5, got 6",
        ),
        (lambda text: text.replace('"version": 5', '"version": 2'), "^state.json: digest: expected a table"),
        (
            lambda text: text.replace('"files"', '"filed"'),
            "^state.json: filed: expected .* did you mean 'files'",
        ),
        (lambda text: text.replace('"mark": "9 9"', '"mark": "9 8"'), "expected the state as it was written"),
        (lambda text: text.replace('"digest"', '"format"'), "got other JSON"),
    ],
)
def test_a_file_that_is_no_state_or_was_edited_is_refused(saved, reference, tmp_path, change, message):
    assert re.search(message, refusal(change(state_text(saved)), reference, tmp_path))


def test_an_emptied_list_of_files_is_noticed(saved, reference, tmp_path):
    text = state_text(saved)
    files = text[text.index('"files": ') :][: text[text.index('"files": ') :].index("}}") + 2]
    assert "as it was written" in refusal(text.replace(files, '"files": {}'), reference, tmp_path)


def places(value, before=()):
    """Yield the place of every value in a state, whole lists and tables included."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        yield (*before, str(key))
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*before, str(key)))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([10**400, "nan", [], {}, [[]], 2**53, -(2**63), 1e308]),
    st.lists(st.integers(-2, 2), max_size=3),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(0, 10**6), value=VALUES, version=st.sampled_from([2, 4]))
def test_one_changed_value_is_refused_in_a_sentence_or_changes_nothing_but_numbers(
    saved, reference, rest, tmp_path, number, value, version
):
    known = [place for place in places(saved) if place != ("version",)]
    place = known[number % len(known)]
    new = changed(saved, " ".join(place), value) | {"version": version}
    path = tmp_path / "state.json"
    path.write_text(json.dumps(new | {"digest": "0" * 64}) if version == 4 else json.dumps(new))
    refused = None
    try:
        monitoring = Monitoring.load(path, reference)
    except (FormatError, InputError) as error:
        refused = str(error)
    if refused is not None:
        assert refused.startswith("state.json: ")
        assert "\n" not in refused
        return
    # A possible value in a state of an earlier version, which has no digest, is believed and works.
    assert version == 2
    monitoring.update(rest)
    monitoring.save(path)
    assert Monitoring.load(path, reference).conclusion() == monitoring.conclusion()


@pytest.mark.parametrize("seed", range(4))
def test_every_state_that_a_monitor_writes_is_read(reference, tmp_path, seed):
    rng = np.random.default_rng(seed)
    n_bins, window = int(rng.integers(1, 40)), int(rng.integers(2, 900))
    monitoring = Monitoring(reference, window=window, n_bins=n_bins, tolerance=float(rng.integers(2)) / 50)
    for _ in range(6):
        monitoring.update(
            predictions(int(rng.integers(1, 1500)), seed=seed, sharpen=float(rng.uniform(0.3, 3)))
        )
        if rng.random() < 0.2:
            monitoring.reset()
        monitoring.save(tmp_path / "state.json")
        again = Monitoring.load(tmp_path / "state.json", reference)
        assert again.monitor.state() == monitoring.monitor.state()
        assert again.alarm == monitoring.alarm
        monitoring = again


@pytest.mark.parametrize(
    ("confidence", "correct"),
    [
        ([0.0] * 50, [False] * 50),
        ([1.0] * 50, [False] * 50),
        ([0.9] * 50, [False] * 50),
        ([0.0, 1.0] * 9, [True] * 18),
    ],
)
def test_extreme_references_are_read_again(confidence, correct):
    monitor = DriftMonitor(DriftReference.from_outcomes(confidence, correct))
    monitor.update([0.0, 0.1, 0.9, 1.0] * 300, [True, False] * 600)
    assert DriftMonitor.from_state(json.loads(json.dumps(monitor.state()))).state() == monitor.state()


def test_a_state_in_memory_names_what_is_wrong(reference):
    outcomes = reference.outcomes()
    state = DriftMonitor(DriftReference.from_outcomes(outcomes.confidence, outcomes.correct)).state()
    for change, message in (
        ({"format": 2}, "^state.format: expected 1, got 2"),
        ({"n": -1}, "^state.n: expected a number of at least 0, got -1"),
        ({"reference": {}}, "^state.reference: expected that of a drift monitor in format 1, got None"),
        ({"log_capital": [[[0.0], [0.0]]]}, r"^state.log_capital: expected shape \(13, 2, 4\)"),
    ):
        with pytest.raises(InputError, match=message):
            DriftMonitor.from_state(state | change)
    del state["count"]
    with pytest.raises(InputError, match="^state: expected 'count', got none"):
        DriftMonitor.from_state(state)
    del state["reference"]["edges"]
    with pytest.raises(InputError, match="^reference: expected 'edges', got none"):
        DriftReference.from_json(state["reference"])
