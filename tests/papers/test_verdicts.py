"""Verdicts: the rule by its definition, claims that have rows, and the committed page."""

from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from calibrant.errors import InputError
from calibrant.inference.intervals import t_interval
from calibrant.papers import verdicts
from calibrant.papers.experiment import experiment_names, parse_experiment
from calibrant.papers.rows import Record, Row, RowFile, save_experiment
from calibrant.papers.verdict_page import to_page
from calibrant.papers.verdicts import (
    Claim,
    ClaimComparison,
    Finding,
    judge,
    judged_claims,
    overall,
)
from tests.papers.small import TEXT

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "docs" / "results" / "rows"


def write_rows(folder: Path, values: dict[tuple[str, str], list[float]], measure: str = "ece") -> None:
    """Write rows of an experiment called small: a value for each seed, by task and method."""
    experiment = parse_experiment("small", TEXT)
    file = RowFile(folder / "small")
    save_experiment(experiment, folder / "small")
    for (task, method), each in values.items():
        for seed, value in enumerate(each):
            key = {"task": task, "method": method}
            file.add(Row("small", "quick", key, seed, (Record({}, {measure: value}),), 0.0, {}))


def findings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, comparison: ClaimComparison
) -> tuple[Finding, ...]:
    claim = Claim("text", "where", (comparison,))
    monkeypatch.setattr(verdicts, "claims", lambda: {"seca": (claim,)})
    [judged] = judged_claims(folder)
    return judged.printed


COMPARISON = ClaimComparison(
    ("small",), ("ece",), one={"method": "a"}, against=({"method": "b"}, {"method": "c"}), by=("task",)
)


def test_the_interval_is_that_of_a_paired_t_test():
    gains = [0.3, 0.1, 0.7, 0.4]
    expected = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    assert t_interval(gains) == pytest.approx(tuple(expected))


def test_one_seed_decides_nothing():
    assert judge("better", *t_interval([5.0])) == "cannot tell"


@pytest.mark.parametrize(
    ("relation", "interval", "margin", "verdict"),
    [
        ("better", (0.1, 0.2), 0.0, "holds"),
        ("better", (-0.2, -0.1), 0.0, "does not hold"),
        ("better", (-0.1, 0.2), 0.0, "cannot tell"),
        ("no_worse", (-0.1, 0.2), 0.15, "holds"),
        ("no_worse", (-0.3, -0.2), 0.15, "does not hold"),
        ("no_worse", (-0.2, 0.2), 0.15, "cannot tell"),
        ("similar", (-0.1, 0.1), 0.15, "holds"),
        ("similar", (0.2, 0.3), 0.15, "does not hold"),
        ("similar", (-0.3, -0.2), 0.15, "does not hold"),
        ("similar", (0.1, 0.2), 0.15, "cannot tell"),
        ("equal", (0.0, 0.0), 0.0, "holds"),
        ("equal", (0.0, 1e-6), 0.0, "does not hold"),
    ],
)
def test_each_relation_is_judged_by_the_ends_of_the_interval(relation, interval, margin, verdict):
    assert judge(relation, *interval, margin=margin) == verdict


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([], "not measured"),
        (["holds", "holds"], "holds"),
        (["holds", "does not hold"], "partly"),
        (["holds", "cannot tell"], "partly"),
        (["does not hold", "cannot tell"], "does not hold"),
        (["cannot tell", "cannot tell"], "cannot tell"),
    ],
)
def test_a_claim_is_judged_by_all_its_comparisons(parts, whole):
    assert overall(Finding("e", "t", "ece", 0, "", 0, 0, 0, part) for part in parts) == whole


def test_the_gain_is_paired_by_seed_and_the_strongest_opponent_decides(tmp_path, monkeypatch):
    # Seeds differ by far more than methods, which differ by the same in every seed.
    write_rows(
        tmp_path,
        {
            ("x", "a"): [0.10, 0.20, 0.30],
            ("x", "b"): [0.12, 0.22, 0.321],
            ("x", "c"): [0.15, 0.25, 0.351],
            ("y", "a"): [0.10, 0.20, 0.30],
            ("y", "b"): [0.12, 0.22, 0.321],
            ("y", "c"): [0.09, 0.19, 0.289],
        },
    )
    x, y = findings(tmp_path, monkeypatch, COMPARISON)
    assert (x.task, x.other, x.verdict) == ("x", "b", "holds")
    assert x.low == pytest.approx(t_interval([0.02, 0.02, 0.021])[0])
    assert (y.task, y.other, y.verdict) == ("y", "c", "does not hold")
    assert (y.mean, y.other_mean) == (pytest.approx(0.2), pytest.approx(0.569 / 3))


def test_of_measures_that_should_be_high_the_larger_is_better(tmp_path, monkeypatch):
    values = {("x", "a"): [0.9, 0.8, 0.7], ("x", "b"): [0.8, 0.7, 0.601]}
    write_rows(tmp_path, values, measure="accuracy")
    comparison = ClaimComparison(
        ("small",), ("accuracy",), one={"method": "a"}, against=({"method": "b"},), by=("task",)
    )
    [finding] = findings(tmp_path, monkeypatch, comparison)
    assert finding.verdict == "holds"


def test_differences_are_compared_with_differences(tmp_path, monkeypatch):
    write_rows(
        tmp_path,
        {
            ("large", "a"): [0.10, 0.20],
            ("large", "b"): [0.15, 0.25],
            ("small", "a"): [0.10, 0.20],
            ("small", "b"): [0.12, 0.22],
        },
    )
    comparison = ClaimComparison(
        ("small",),
        ("ece",),
        one={"task": "large", "method": "a"},
        one_less={"task": "large", "method": "b"},
        against=({"task": "small"},),
        against_less={"task": "small", "method": "b"},
    )
    [finding] = findings(tmp_path, monkeypatch, comparison)
    assert (finding.mean, finding.other_mean) == (pytest.approx(-0.05), pytest.approx(-0.02))
    assert finding.verdict == "holds"


def test_a_value_must_be_that_of_every_seed(tmp_path, monkeypatch):
    write_rows(tmp_path, {("x", "a"): [0.0, 0.0], ("y", "a"): [0.0, 0.1]})
    comparison = ClaimComparison(("small",), ("ece",), by=("task",), relation="equal", value=0.0)
    assert [each.verdict for each in findings(tmp_path, monkeypatch, comparison)] == [
        "holds", "does not hold",
    ]  # fmt: skip


def test_our_variant_may_be_compared_with_others(tmp_path, monkeypatch):
    write_rows(tmp_path, {("x", "a"): [1.0, 2.0], ("x", "b"): [3.0, 4.0], ("x", "c"): [0.0, 1.0]})
    comparison = replace(
        COMPARISON, against=({"method": "b"},), ours={"method": "a"}, ours_against=({"method": "c"},)
    )
    monkeypatch.setattr(verdicts, "claims", lambda: {"seca": (Claim("text", "where", (comparison,)),)})
    [judged] = judged_claims(tmp_path)
    assert (judged.verdict, judged.own_verdict) == ("holds", "does not hold")


def test_what_was_not_run_is_not_judged(tmp_path, monkeypatch):
    write_rows(tmp_path, {("x", "b"): [0.1, 0.2]})
    assert findings(tmp_path, monkeypatch, COMPARISON) == ()


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match="^DIR: expected a folder with folders that calibrant bench run"):
        judged_claims(tmp_path)


def test_every_claim_names_experiments_and_is_measured_or_tested():
    for judged in judged_claims(ROWS):
        name = f"{judged.paper} {judged.number}"
        for comparison in judged.claim.comparisons:
            assert set(comparison.experiments) <= set(experiment_names()), name
        assert judged.printed or judged.claim.tested, name
        assert bool(judged.ours) == any(each.ours for each in judged.claim.comparisons), name
        for test in judged.claim.tested:
            file, _, function = test.partition("::")
            assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_the_page_is_what_the_command_prints():
    page = (ROOT / "docs" / "results" / "reproduces.md").read_text(encoding="utf-8")
    assert page == to_page(judged_claims(ROWS))
