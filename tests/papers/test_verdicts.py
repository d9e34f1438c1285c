"""Verdicts: the rule by its definition, claims that have rows, and the committed page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrant.errors import InputError
from calibrant.inference.gains import Gain
from calibrant.inference.intervals import t_interval
from calibrant.papers import verdicts
from calibrant.papers.draws import packed_all
from calibrant.papers.experiment import experiment_names, parse_experiment
from calibrant.papers.rows import Record, Row, RowFile, save_experiment
from calibrant.papers.verdict_page import to_page
from calibrant.papers.verdicts import (
    Claim,
    ClaimComparison,
    Finding,
    Regime,
    all_results,
    judged_claims,
    outcome_of,
    overall,
)
from tests.papers.small import TEXT

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "docs" / "results" / "rows"


def write_rows(
    folder: Path,
    values: dict[tuple[str, str], list[float]],
    measure: str = "ece",
    scale: float | None = None,
) -> None:
    """Write rows of an experiment called small: a value for each seed, by task and method.

    With a scale they have draws, which vary by as much and are not the same for two methods.
    """
    experiment = parse_experiment("small", TEXT)
    file = RowFile(folder / "small")
    save_experiment(experiment, folder / "small")
    for (task, method), each in values.items():
        for seed, value in enumerate(each):
            key = {"task": task, "method": method}
            rng = np.random.default_rng(len(method) + ord(method[0]))
            draws = {} if scale is None else packed_all({measure: rng.normal(value, scale, size=64)})
            record = Record({}, {measure: value}, draws)
            file.add(Row("small", "quick", key, seed, (record,), 0.0, {}))


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


def found(outcome: str, relation: str = "better", regime: Regime | None = None) -> Finding:
    return Finding("e", "t", "o", "ece", 0, 0, 3, 0, 0, 0, outcome, relation, regime)


@pytest.mark.parametrize(
    ("relation", "mean", "margin", "outcome"),
    [
        ("better", 0.15, 0.0, "better"),
        ("better", -0.15, 0.0, "worse"),
        ("better", 0.01, 0.0, "cannot tell"),
        ("better", 0.03, 0.1, "equal"),
        ("better", 0.15, 0.1, "better"),
        ("no_worse", -0.02, 0.1, "equal"),
        ("no_worse", 0.5, 0.1, "equal"),
        ("no_worse", -0.2, 0.1, "worse"),
        ("no_worse", -0.1, 0.1, "cannot tell"),
        ("similar", 0.03, 0.1, "equal"),
        ("similar", 0.2, 0.1, "better"),
        ("similar", -0.2, 0.1, "worse"),
        ("similar", 0.1, 0.1, "cannot tell"),
    ],
)
def test_each_relation_has_its_outcomes(relation, mean, margin, outcome):
    name, p_value = outcome_of(Gain(mean, 0.02, 1000.0), relation=relation, margin=margin)
    assert (name if p_value <= 0.05 else "cannot tell") == outcome


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([], "not measured"),
        (["better", "better"], "holds"),
        (["better", "cannot tell"], "holds"),
        (["better", "worse"], "holds in 1 of 2"),
        (["better", "equal", "cannot tell"], "holds in 1 of 2"),
        (["worse", "equal", "cannot tell"], "is contradicted"),
        (["worse", "cannot tell"], "is contradicted"),
        (["better", "cannot tell", "cannot tell"], "is open"),
        (["cannot tell"], "is open"),
    ],
)
def test_a_claim_is_judged_by_all_its_comparisons(parts, whole):
    assert overall(map(found, parts)) == whole


def test_a_claim_of_being_no_worse_agrees_with_equal_and_one_of_being_better_does_not():
    assert overall([found("equal", "no_worse")]) == "holds"
    assert overall([found("equal", "better")]) == "is contradicted"


def test_comparisons_outside_the_regime_of_the_papers_do_not_count():
    good, bad = Regime(0.995, 0.06), Regime(0.98, 0.2)
    assert [good.counts, bad.counts, Regime(1.0, 0.04).counts, Regime(None, 0.2).counts] == [
        True, False, False, False,
    ]  # fmt: skip
    assert overall([found("better", regime=good), found("worse", regime=bad)]) == "holds"
    assert overall([found("worse", regime=bad)]) == "only illustrated"


def test_every_opponent_is_a_comparison_of_its_own_and_the_gain_is_paired_by_seed(tmp_path, monkeypatch):
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
    each = findings(tmp_path, monkeypatch, COMPARISON)
    assert [(one.task, one.other, one.outcome) for one in each] == [
        ("x", "b", "better"), ("x", "c", "better"), ("y", "b", "better"), ("y", "c", "worse"),
    ]  # fmt: skip
    assert each[0].low == pytest.approx(t_interval([0.02, 0.02, 0.021])[0])
    assert (each[3].mean, each[3].other_mean) == (pytest.approx(0.2), pytest.approx(0.569 / 3))


def test_many_comparisons_of_a_claim_are_corrected_for_their_number(tmp_path, monkeypatch):
    gains = [0.020, 0.030, 0.022]
    tasks = {f"t{number}": gains for number in range(10)}
    values = {(task, "a"): [0.1, 0.1, 0.1] for task in tasks}
    values |= {(task, "b"): [0.1 + gain for gain in own] for task, own in tasks.items()}
    write_rows(tmp_path, values)
    alone = replace(COMPARISON, only={"task": "t0"})
    [one] = findings(tmp_path, monkeypatch, alone)
    many = findings(tmp_path, monkeypatch, COMPARISON)
    assert one.outcome == "better"
    assert [each.p_value for each in many] == pytest.approx([10 * one.p_value] * 10)
    assert {each.outcome for each in many} == {"cannot tell"}


def test_draws_of_the_test_samples_widen_the_interval(tmp_path, monkeypatch):
    for folder, scale in ((tmp_path / "with", 0.05), (tmp_path / "without", None)):
        write_rows(folder, {("x", "a"): [0.1, 0.2, 0.3], ("x", "b"): [0.12, 0.22, 0.321]}, scale=scale)
    [wide] = findings(tmp_path / "with", monkeypatch, COMPARISON)
    [narrow] = findings(tmp_path / "without", monkeypatch, COMPARISON)
    assert (wide.outcome, narrow.outcome) == ("cannot tell", "better")
    assert wide.high - wide.low > 10 * (narrow.high - narrow.low)


@pytest.mark.parametrize(
    ("learned", "gap", "counts"), [(1.0, 0.2, True), (0.9, 0.2, False), (1.0, 0.0, False)]
)
def test_a_training_task_counts_by_its_runs_with_cross_entropy(tmp_path, monkeypatch, learned, gap, counts):
    experiment = parse_experiment("small", TEXT.replace('worker = "posthoc"', 'worker = "training"'))
    file = RowFile(tmp_path / "small")
    save_experiment(experiment, tmp_path / "small")
    for method, ece in (("a", 0.1), ("cross_entropy", 0.2)):
        for seed in range(3):
            values = {"ece": ece + 0.01 * seed, "accuracy": 0.7, "mean_confidence": 0.7 + gap}
            record = Record({"posthoc": "uncalibrated"}, {**values, "train_accuracy": learned})
            file.add(Row("small", "quick", {"task": "x", "method": method}, seed, (record,), 3600.0, {}))
    comparison = replace(COMPARISON, against=({"method": "cross_entropy"},))
    [finding] = findings(tmp_path, monkeypatch, comparison)
    assert finding.regime == Regime(learned, pytest.approx(gap))
    assert finding.counts is counts
    page = to_page(judged_claims(tmp_path), all_results(tmp_path))
    assert (
        f"| `bench run small` | x | {100 * learned:.2f} | {100 * gap:.1f} | {'yes' if counts else 'no'} |"
        in page
    )
    assert "took 6.0 hours of one core" in page
    assert ("Illustrations" in page) is not counts


def test_of_measures_that_should_be_high_the_larger_is_better(tmp_path, monkeypatch):
    values = {("x", "a"): [0.9, 0.8, 0.7], ("x", "b"): [0.8, 0.7, 0.601]}
    write_rows(tmp_path, values, measure="accuracy")
    comparison = ClaimComparison(
        ("small",), ("accuracy",), one={"method": "a"}, against=({"method": "b"},), by=("task",)
    )
    [finding] = findings(tmp_path, monkeypatch, comparison)
    assert finding.outcome == "better"


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
    assert finding.outcome == "better"


def test_a_value_must_be_that_of_every_seed(tmp_path, monkeypatch):
    write_rows(tmp_path, {("x", "a"): [0.0, 0.0], ("y", "a"): [0.0, 0.1]})
    comparison = ClaimComparison(("small",), ("ece",), by=("task",), relation="equal", value=0.0)
    assert [each.agrees for each in findings(tmp_path, monkeypatch, comparison)] == [True, False]


def test_our_variant_may_be_compared_with_others(tmp_path, monkeypatch):
    write_rows(tmp_path, {("x", "a"): [1.0, 2.0], ("x", "b"): [3.0, 4.0], ("x", "c"): [0.0, 1.0]})
    comparison = replace(
        COMPARISON, against=({"method": "b"},), ours={"method": "a"}, ours_against=({"method": "c"},)
    )
    monkeypatch.setattr(verdicts, "claims", lambda: {"seca": (Claim("text", "where", (comparison,)),)})
    [judged] = judged_claims(tmp_path)
    assert (judged.verdict, judged.own_verdict) == ("holds", "is contradicted")


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
    assert page == to_page(judged_claims(ROWS), all_results(ROWS))
