"""Metrics for Prometheus, read by the official client's parser, and the dashboard that queries them."""

import json
import math
import re
import time
from itertools import combinations
from pathlib import Path

import numpy as np
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from calibrant import Predictions
from calibrant.monitoring import Monitoring
from calibrant.monitoring.prometheus import METRICS, metrics_text, write_metrics
from calibrant.text import visible
from tests import hostile
from tests.conftest import draw

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = DOCS / "grafana" / "calibrant.json"


def predictions(n, *, seed, sharpen=1.0):
    logits, labels = draw(n, 5, seed=seed, sharpen=sharpen)
    return Predictions(logits=logits, labels=labels)


@pytest.fixture(scope="module")
def reference():
    return predictions(2000, seed=1)


@pytest.fixture(scope="module")
def drifted(reference):
    """A monitoring in alarm, with an incomplete window."""
    monitoring = Monitoring(reference, window=400)
    monitoring.update(predictions(1000, seed=2, sharpen=2.5))
    return monitoring


def series(text):
    """Return the type of each metric, and the value of each series by its name and labels."""
    families = list(text_string_to_metric_families(text))
    kinds = {family.name: family.type for family in families}
    samples = [each for family in families for each in family.samples]
    values = {(each.name, frozenset(each.labels.items())): each.value for each in samples}
    assert len(values) == len(samples), "two series have the same name and labels"
    assert all(each.timestamp is None for each in samples), "the textfile collector refuses timestamps"
    return kinds, values


def value(values, name, **labels):
    return values[f"calibrant_{name}", frozenset({"model": "m", **labels}.items())]


def test_the_official_parser_reads_every_metric_with_its_type_and_meaning(reference):
    halves = [
        each.replaced(groups=np.arange(each.n) % 2)
        for each in (reference, predictions(1000, seed=2, sharpen=2.5))
    ]
    monitoring = Monitoring(halves[0], window=400, by="half")
    monitoring.update(halves[1])
    text = metrics_text(monitoring, model="m")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    # The parser names counters without their suffix.
    assert [metric.name.removesuffix("_total") for metric in METRICS] == list(families)
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert re.fullmatch("calibrant_[a-z_]+", metric.name)
        assert family.samples
    assert text.endswith("\n")
    assert "\r" not in text


def test_values_are_those_of_the_monitoring(reference):
    rows = predictions(1000, seed=2, sharpen=2.5)
    monitoring = Monitoring(reference, window=400)
    *_, last = monitoring.update(rows)
    before = time.time()
    kinds, values = series(metrics_text(monitoring, model="m"))
    assert (kinds["calibrant_rows"], kinds["calibrant_alarm"]) == ("counter", "gauge")
    probs = rows.to_probs().numpy()[400:800]
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == np.asarray(rows.labels)[400:800]
    assert value(values, "rows_total") == 1000
    assert value(values, "waiting_rows") == 200
    assert (value(values, "window_rows"), value(values, "window_last_row")) == (400, 800)
    assert value(values, "accuracy") == pytest.approx(correct.mean())
    assert value(values, "confidence") == pytest.approx(confidence.mean())
    assert value(values, "gap") == pytest.approx(correct.mean() - confidence.mean())
    for name, of in {
        "accuracy": last.accuracy,
        "ece": last.ece,
        "brier": last.brier,
        "nll": last.nll,
    }.items():
        found = [value(values, f"{name}{end}") for end in ("", "_low", "_high")]
        assert found == [of.value, of.low, of.high]
    assert value(values, "log_e_value") == monitoring.monitor.log_e_value
    assert value(values, "log_e_value_threshold") == pytest.approx(math.log(40))
    assert value(values, "alarm") == 1
    assert value(values, "alarm_row") == monitoring.alarm.row
    assert value(values, "alarm_since_row") == monitoring.alarm.since
    assert before <= value(values, "last_update_timestamp_seconds") <= time.time()


def test_every_group_and_direction_has_a_series_and_bins_add_up(drifted):
    _, values = series(metrics_text(drifted, model="m"))
    of_groups = {name: [] for name in ("group_rows_total", "group_gap", "group_log_e_value", "group_drifts")}
    for (name, labels), found in values.items():
        if (short := name.removeprefix("calibrant_")) in of_groups:
            of_groups[short].append((dict(labels), found))
    assert {name: len(found) for name, found in of_groups.items()} == {
        "group_rows_total": 13,
        "group_gap": 13,
        "group_log_e_value": 26,
        "group_drifts": 26,
    }
    rows = {labels["group"]: n for labels, n in of_groups["group_rows_total"]}
    assert list(rows) == ["all", "lower half", "upper half", *(f"bin {b:02}" for b in range(1, 11))]
    bins = [n for name, n in rows.items() if name.startswith("bin")]
    assert rows["all"] == rows["lower half"] + rows["upper half"] == sum(bins) == 1000
    expected = {(each.low, each.high, each.direction): each for each in drifted.monitor.diagnosis()}
    for labels, found in of_groups["group_log_e_value"]:
        place = float(labels["low"]), float(labels["high"]), labels["direction"]
        assert found == expected[place].log_e_value
    raised = {labels["direction"] for labels, found in of_groups["group_drifts"] if found}
    assert raised == {"overconfident"}


@pytest.mark.parametrize("n_bins", [1, 2, 3, 4, 12])
def test_names_of_groups_differ_for_every_number_of_bins(reference, n_bins):
    monitoring = Monitoring(reference, n_bins=n_bins)
    _, values = series(metrics_text(monitoring, model="m"))
    rows = [dict(labels)["group"] for name, labels in values if name == "calibrant_group_rows_total"]
    assert len(set(rows)) == len(rows) == len(monitoring.monitor.reference.groups)
    assert sum(name.startswith("bin") for name in rows) == (n_bins if n_bins > 1 else 0)


def test_what_is_unknown_before_the_first_window_is_nan(reference):
    _, values = series(metrics_text(Monitoring(reference), model="m"))
    unknown = {name.removeprefix("calibrant_") for (name, _), found in values.items() if math.isnan(found)}
    measures = ("accuracy", "confidence", "ece", "brier", "nll")
    assert unknown == {
        *(f"{name}{end}" for name in measures for end in ("", "_low", "_high")),
        *("gap", "window_last_row", "alarm_row", "alarm_since_row", "group_gap"),
    }
    assert value(values, "alarm") == value(values, "rows_total") == 0


def test_a_window_of_scores_and_confidences_has_no_brier_score(reference):
    monitoring = Monitoring(reference, window=20)
    monitoring.update(predictions(10, seed=3))
    monitoring.update(Predictions(confidence=[0.5] * 10, correct=[True, False] * 5))
    _, values = series(metrics_text(monitoring, model="m"))
    assert math.isnan(value(values, "brier"))
    assert math.isfinite(value(values, "accuracy"))


def test_names_that_attack_stay_one_label(drifted):
    for name in hostile.NAMES.values():
        text = metrics_text(drifted, model=name)
        assert text.encode()  # no halves of characters
        assert hostile.raw_characters(text) == []
        _, values = series(text)
        models = {dict(labels)["model"] for _, labels in values}
        assert models == {visible(name)}


def test_the_file_is_replaced_whole_and_no_temporary_name_ends_as_the_collector_wants(
    drifted, tmp_path, monkeypatch
):
    target = tmp_path / "fraud model.prom"
    target.write_text("calibrant_of_a_previous_run 1\n")
    seen = []
    replace = Path.replace

    def watch(self, to):
        # What the collector would read at this moment: the old file, and nothing else.
        seen.extend(file.read_text() for file in tmp_path.iterdir() if file.name.endswith(".prom"))
        return replace(self, to)

    monkeypatch.setattr(Path, "replace", watch)
    write_metrics(drifted, target)
    assert seen == ["calibrant_of_a_previous_run 1\n"]
    assert [file.name for file in tmp_path.iterdir()] == [target.name]
    _, values = series(target.read_text())
    assert {dict(labels)["model"] for _, labels in values} == {"fraud model"}
    assert "calibrant_of_a_previous_run" not in {name for name, _ in values}


def test_the_last_window_survives_saving(reference, drifted, tmp_path):
    drifted.save(tmp_path / "state.json")
    loaded = Monitoring.load(tmp_path / "state.json", reference)
    assert loaded.latest == drifted.latest
    (_, before), (_, after) = (series(metrics_text(each, model="m")) for each in (drifted, loaded))
    for values in (before, after):
        del values["calibrant_last_update_timestamp_seconds", frozenset({("model", "m")})]
    assert before == after


@pytest.fixture(scope="module")
def dashboard():
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def expressions(dashboard):
    """Yield every PromQL expression of a dashboard."""
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["expr"] for each in dashboard["annotations"]["list"])


def queries(dashboard):
    """Yield every expression of a dashboard, and the queries of its variables, which are Grafana's own."""
    yield from expressions(dashboard)
    yield from (each["definition"] for each in dashboard["templating"]["list"] if each["type"] == "query")


def test_the_dashboard_queries_only_metrics_and_labels_that_are_written(dashboard, drifted):
    _, values = series(metrics_text(drifted, model="m"))
    labels = {}
    for name, pairs in values:
        labels.setdefault(name, set()).update(dict(pairs))
    asked = set()
    for query in queries(dashboard):
        names = re.findall(r"calibrant_\w+", query)
        assert names, query
        asked.update(names)
        for name, chosen in re.findall(r"(calibrant_\w+)\{(.*?)\}", query):
            assert set(re.findall(r"(\w+)=~?\"", chosen)) <= labels[name]
    assert asked <= {metric.name for metric in METRICS}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            name = re.search(r"calibrant_\w+", target["expr"])[0]
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels[name]


def test_prometheus_accepts_every_expression_of_the_dashboard(dashboard):
    for text in expressions(dashboard):
        promql_parser.parse(text.replace("$__interval", "1m"))  # checks types, too


def test_an_alarm_is_marked_where_it_begins_however_short_the_interval_is(dashboard):
    (marks,) = dashboard["annotations"]["list"]
    # A range of one interval may have one sample only, in which nothing changes.
    assert "[" not in marks["expr"]
    assert "offset $__interval" in marks["expr"]


def test_the_rules_for_alerts_are_valid_and_ask_for_metrics_that_are_written():
    page = (DOCS / "monitoring.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    rules = [rule for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == ["CalibrationChanged", "CalibrationMonitorStopped"]
    written = {metric.name for metric in METRICS}
    for rule in rules:
        promql_parser.parse(rule["expr"])
        assert set(re.findall(r"calibrant_\w+", rule["expr"])) <= written


def test_the_dashboard_has_what_grafana_needs(dashboard):
    assert dashboard["schemaVersion"] >= 36
    assert dashboard["title"]
    assert len(dashboard["uid"]) <= 40
    assert dashboard.get("id") is None  # Grafana gives it one
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([dashboard["panels"], *queries(dashboard)])))
    assert used - {"__interval", "__rate_interval"} == set(variables)
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["type"] in {"stat", "timeseries", "bargauge", "table"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


def test_panels_of_the_dashboard_fill_the_grid_without_overlap(dashboard):
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        apart = any(
            one[start] + one[size] <= other[start] or other[start] + other[size] <= one[start]
            for start, size in (("x", "w"), ("y", "h"))
        )
        assert apart, (one, other)
    height = max(place["y"] + place["h"] for place in places)
    assert sum(place["w"] * place["h"] for place in places) == 24 * height
