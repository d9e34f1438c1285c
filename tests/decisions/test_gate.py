"""The gate: decided on intervals, never silently passed, and seldom wrong."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.data.labels import LabelPredictions
from calibrant.decisions import Requirement, check_requirements, samples_needed, write_junit
from calibrant.decisions.gate import EXIT_CODES
from calibrant.decisions.junit import junit_xml
from calibrant.errors import InputError
from calibrant.evaluation import evaluate
from tests.conftest import draw, softmax


def model(n=1000, *, seed=0, sharpen=1.0, **given):
    logits, labels = draw(n, 4, seed=seed, sharpen=sharpen)
    return Predictions(logits=logits, labels=labels, **given)


def noisy(n, *, seed, noise):
    """The predictions of a model that sees noise, for the same samples as ``model``."""
    logits, labels = draw(n, 4, seed=seed)
    rng = np.random.default_rng([seed, 7])
    return Predictions(logits=logits + noise * rng.normal(size=logits.shape), labels=labels)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ece < 0.05", ("ece", "<", 0.05)),
        ("ece<=5%", ("ece", "<=", 0.05)),
        ("  accuracy >= 90 % ", ("accuracy", ">=", 0.9)),
        ("NLL > 1e-1", ("nll", ">", 0.1)),
        ("nll < 2.5", ("nll", "<", 2.5)),
        ("skce < -0.1", ("skce", "<", -0.1)),
    ],
)
def test_a_requirement_is_read_from_text(text, expected):
    requirement = Requirement.parse(text)
    assert (requirement.measure, requirement.operator, requirement.bound) == expected
    assert Requirement.parse(str(requirement)) == requirement


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("auroc > 0.9", "got 'auroc'; did you mean 'auroc_correct' or 'auroc_ovo' or 'auroc_ovr'?"),
        ("ecee < 0.05", "expected the name of a measure, got 'ecee'; did you mean 'ece'?"),
        ("ece", "expected a measure, one of < <= > >= and a number, got 'ece'"),
        ("ece = 0.05", "got 'ece = 0.05'; write 'ece < 0.05'"),
        ("ece < five", "got 'ece < five'"),
        ("ece < nan", "got 'ece < nan'"),
        ("0.05 > ece", "got '0.05 > ece'"),
        ("", "got ''"),
        ("ece < 5", "expected a number from 0 to 1 as the bound of ece, got 5; write 0.05 or '5 %'"),
        ("ece < -0.1", "from 0 to 1 as the bound of ece, got -0.1"),
        ("nll < inf", "expected at least 0 as the bound of nll, got inf"),
        ("brier < 3", "from 0 to 2 as the bound of brier, got 3"),
        ("ece < 0", "some values meet and others miss, got 'ece < 0'"),
        ("accuracy >= 0", "some values meet and others miss"),
        ("accuracy > 1", "some values meet and others miss"),
        ("ece <= 100 %", "some values meet and others miss"),
    ],
)
def test_a_bad_requirement_is_refused_in_a_sentence(text, message):
    with pytest.raises(InputError) as refused:
        Requirement.parse(text)
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["accuracy", "nll", "ece"])
def test_the_ends_of_the_interval_decide_and_not_the_value(name):
    samples = model()
    span = check_requirements(samples, Requirement(name, "<", 0.5), n_resamples=200).verdicts[0]
    plain = evaluate(samples, measures=[name], intervals=True, n_resamples=200).intervals[name]
    assert (span.value, span.low, span.high) == (plain.value, plain.low, plain.high)
    assert span.least <= span.low < span.value < span.high <= span.most
    step = 1e-4
    expected = {
        span.least - step: "failed",
        span.least + step: "unknown",
        span.value: "unknown",
        span.most - step: "unknown",
        span.most + step: "passed",
    }
    for bound, outcome in expected.items():
        if bound > 0:
            upper = check_requirements(samples, Requirement(name, "<", bound), n_resamples=200)
            assert upper.outcome == outcome, bound
    above = check_requirements(samples, Requirement(name, ">=", span.most + step), n_resamples=200)
    assert above.outcome == "failed"


def test_the_worst_verdict_is_that_of_the_gate_and_has_an_exit_code_of_its_own():
    samples = model()
    middle = evaluate(samples, measures=["nll"]).metrics["nll"]
    passed, failed, unknown = "nll < 3", "nll < 0.1", f"nll < {middle:.3f}"
    outcomes = {
        (passed,): "passed",
        (passed, unknown): "unknown",
        (passed, unknown, failed): "failed",
    }
    for wanted, outcome in outcomes.items():
        gate = check_requirements(samples, wanted, n_resamples=100)
        assert (gate.outcome, gate.exit_code) == (outcome, EXIT_CODES[outcome])
    assert EXIT_CODES == {"passed": 0, "failed": 3, "unknown": 4}


def test_the_interval_of_more_than_two_requirements_is_wider():
    samples = model(300)
    wanted = ["accuracy > 0.5", "nll < 1", "brier < 0.5", "mean_confidence > 0.5", "aurc < 0.5"]
    for count, level in {1: 0.95, 2: 0.95, 4: 0.975, 5: 0.98}.items():
        gate = check_requirements(samples, wanted[:count], n_resamples=100)
        assert [verdict.level for verdict in gate.verdicts] == pytest.approx([level] * count)


@pytest.mark.parametrize("wanted", ["accuracy >= 0.99", "ece < 0.05", "nll < 0.05", "brier < 0.05"])
def test_twenty_right_answers_of_twenty_are_not_enough(wanted):
    few = Predictions(confidence=[0.99] * 20, correct=[True] * 20)
    verdict = check_requirements(few, wanted, n_resamples=100).verdicts[0]
    assert verdict.outcome == "unknown"
    assert verdict.needed > 20
    many = Predictions(confidence=[0.99] * 4000, correct=([True] * 99 + [False]) * 40)
    easier = wanted.replace("accuracy >= 0.99", "accuracy >= 0.98").replace("nll < 0.05", "nll < 0.1")
    assert check_requirements(many, easier, n_resamples=100).outcome == "passed"


def test_rare_hits_are_treated_like_rare_misses():
    few = Predictions(confidence=[0.01] * 20, correct=[False] * 20)
    assert check_requirements(few, "ece < 0.05", n_resamples=100).outcome == "unknown"
    probs = np.full((20, 3), 0.33)
    probs[:, 0] = 0.34
    classes = Predictions(probs=probs, labels=[1] * 20)
    assert check_requirements(classes, "accuracy < 0.05", n_resamples=100).outcome == "unknown"


def test_the_probability_of_one_of_two_classes_is_enough():
    binary = Predictions(probs=[0.9, 0.2] * 10, labels=[1, 0] * 10)
    verdict = check_requirements(binary, "accuracy > 0.95", n_resamples=100).verdicts[0]
    assert (verdict.outcome, verdict.value) == ("unknown", 1)
    heavy = Predictions(probs=[0.9, 0.2] * 10, labels=[1, 0] * 10, weights=[1.0] + [0.0] * 19)
    assert check_requirements(heavy, "accuracy > 0.5", n_resamples=100).outcome == "unknown"


def test_the_interval_of_an_error_never_reaches_below_zero():
    shy = Predictions(confidence=[0.9] * 40, correct=[True] * 40)
    verdict = check_requirements(shy, "ece < 0.9", n_resamples=100).verdicts[0]
    assert verdict.least >= 0


def test_a_masked_class_never_becomes_the_truth():
    logits = np.zeros((30, 3))
    logits[:, 1:] = -math.inf
    gate = check_requirements(Predictions(logits=logits, labels=[0] * 30), "accuracy > 0.95", n_resamples=100)
    assert gate.verdicts[0].value == 1


def test_a_measure_that_these_predictions_do_not_allow_never_passes():
    pairs = Predictions(confidence=[0.9, 0.6] * 50, correct=[True, False] * 50)
    verdict = check_requirements(pairs, "classwise_ece < 0.9", n_resamples=100).verdicts[0]
    assert (verdict.outcome, verdict.needed) == ("unknown", None)
    assert verdict.sentence == "classwise_ece < 0.9: cannot tell: needs class probabilities"
    weighted = model(100, weights=np.arange(1, 101))
    reason = check_requirements(weighted, "aurc < 0.9", n_resamples=100).verdicts[0].sentence
    assert "takes no weights" in reason
    quadratic = check_requirements(model(60), "kde_ece < 0.99", n_resamples=100).verdicts[0]
    assert quadratic.outcome == "unknown"
    assert "no interval" in quadratic.sentence
    certain = Predictions(confidence=[0.9, 0.8] * 30, correct=[True] * 60)
    undefined = check_requirements(certain, "auroc_correct > 0.1", n_resamples=100).verdicts[0]
    assert undefined.outcome == "unknown"
    assert "undefined" in undefined.sentence


def test_equal_weights_change_nothing_and_unequal_ones_count():
    wanted = ["accuracy > 0.6", "ece < 0.2"]
    plain = check_requirements(model(300), wanted, n_resamples=100)
    equal = check_requirements(model(300, weights=np.full(300, 2.0)), wanted, n_resamples=100)
    assert [each.value for each in equal.verdicts] == pytest.approx([each.value for each in plain.verdicts])
    assert [each.outcome for each in equal.verdicts] == [each.outcome for each in plain.verdicts]
    few = check_requirements(model(300, weights=[100.0] * 5 + [0.01] * 295), wanted, n_resamples=100)
    assert few.outcome == "unknown"


def test_rows_of_several_labels_are_drawn_together():
    rng = np.random.default_rng(0)
    probs = np.repeat(rng.random((60, 1)), 40, axis=1)
    labels = np.repeat(rng.random((60, 1)) < probs[:, :1], 40, axis=1)
    rows = check_requirements(LabelPredictions(probs=probs, labels=labels), "ece < 0.2", n_resamples=100)
    entries = Predictions(confidence=probs.ravel(), correct=labels.ravel())
    alone = check_requirements(entries, "ece < 0.2", n_resamples=100)
    assert rows.verdicts[0].high - rows.verdicts[0].low > alone.verdicts[0].high - alone.verdicts[0].low


def test_an_equal_baseline_passes_and_a_better_one_fails_the_model():
    samples = model(1000)
    same = check_requirements(samples, baseline=samples, n_resamples=100)
    assert [each.requirement for each in same.verdicts] == [
        "nll <= baseline + 0.02",
        "ece <= baseline + 0.01",
    ]
    assert same.outcome == "passed"
    worse = noisy(1000, seed=0, noise=3.0)
    assert check_requirements(worse, baseline=samples, n_resamples=100).outcome == "failed"
    assert check_requirements(samples, baseline=worse, n_resamples=100).outcome == "passed"


def test_measures_that_are_better_when_high_may_be_lower_by_the_margin():
    good, bad = model(1000), noisy(1000, seed=0, noise=3.0)
    gate = check_requirements(bad, "accuracy > 0.01", baseline=good, n_resamples=100)
    assert [each.outcome for each in gate.verdicts] == ["passed", "failed"]
    assert gate.verdicts[1].requirement == "accuracy >= baseline - 0.01"
    lenient = check_requirements(bad, "accuracy > 0.01", baseline=good, margin=0.9, n_resamples=100)
    assert lenient.outcome == "passed"


def test_with_a_margin_of_zero_an_equally_good_model_is_not_told_apart():
    samples, near = model(500, seed=1), noisy(500, seed=1, noise=0.05)
    verdict = check_requirements(near, baseline=samples, margin=0, n_resamples=100).verdicts[0]
    assert (verdict.requirement, verdict.outcome) == ("nll <= baseline + 0", "unknown")
    assert (
        check_requirements(near, baseline=samples, margin={"nll": 0.5}, n_resamples=100).outcome == "passed"
    )


def test_two_models_that_differ_on_no_sample_of_twenty_are_not_told_apart():
    first = Predictions(confidence=[0.99] * 20, correct=[True] * 20)
    other = Predictions(confidence=[0.98] * 20, correct=[True] * 20)
    assert check_requirements(first, "accuracy > 0.1", baseline=other, n_resamples=100).outcome == "unknown"
    many = [Predictions(confidence=[c] * 200, correct=[True] * 200) for c in (0.99, 0.98)]
    assert (
        check_requirements(many[0], "accuracy > 0.1", baseline=many[1], n_resamples=100).outcome == "passed"
    )


def test_other_samples_are_refused_unless_they_are_said_to_be_unpaired():
    first, other = model(400), model(500, seed=3)
    with pytest.raises(InputError, match="got 400 and 500 samples; compare other samples .* paired=False"):
        check_requirements(first, baseline=other)
    with pytest.raises(InputError, match="same samples in the same order"):
        check_requirements(first, baseline=model(400, seed=9))
    gate = check_requirements(first, "nll < 2", baseline=other, paired=False, n_resamples=200)
    alone = [check_requirements(each, ["nll < 2"], n_resamples=200).verdicts[0] for each in (first, other)]
    a, b = alone
    found = gate.verdicts[1]
    assert found.value == pytest.approx(a.value - b.value)
    assert found.low == pytest.approx(found.value - math.hypot(a.value - a.low, b.high - b.value))
    assert found.high == pytest.approx(found.value + math.hypot(a.high - a.value, b.value - b.low))
    assert found.most == pytest.approx(found.value + math.hypot(a.most - a.value, b.value - b.least))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "expected at least one, or a baseline, got none"),
        ({"requirements": "ece < 0.1", "n_resamples": 1}, "n_resamples: expected"),
        ({"requirements": "ece < 0.1", "level": 1.0}, "expected a number between 0 and 1"),
        ({"baseline": "itself", "margin": -0.1}, "margin: expected a number of at least 0"),
        ({"baseline": "itself", "margin": math.nan}, "margin"),
        ({"baseline": "itself", "margin": {"eces": 0.1}}, "got 'eces'; did you mean 'ece'?"),
        ({"baseline": "itself", "margin": {"mean_confidence": 0.1}}, "a measure that can get worse"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(given, message):
    samples = model(50)
    if given.get("baseline") == "itself":
        given = given | {"baseline": samples}
    with pytest.raises(InputError) as refused:
        check_requirements(samples, **given)
    assert message in str(refused.value)


def test_the_samples_needed_follow_from_the_width_of_the_interval():
    longer = (1.959964 + 0.841621) / 1.959964
    for distance in (0.01, 0.02):
        expected = 1000 * (longer * 0.03 / distance) ** 2
        assert samples_needed(1000, 0.5 - distance, 0.5, up=0.03, down=0.03) == pytest.approx(
            expected, rel=0.1
        )
        assert samples_needed(1000, 0.5 + distance, 0.5, up=0.03, down=0.03) == pytest.approx(
            expected, rel=0.1
        )
    assert samples_needed(1000, 0.5, 0.5, up=0.03, down=0.03) is None
    assert samples_needed(10, 0.5, 0.5 + 1e-9, up=0.03, down=0.03) is None


def test_what_chance_adds_is_expected_to_shrink():
    # An error of 3 % that is all chance passes a bound of 2 % with more samples; a real one never does.
    by_chance = samples_needed(1000, 0.03, 0.02, up=0.01, down=0.03, floor=0.03)
    assert 3000 < by_chance < 20_000
    real = samples_needed(1000, 0.03, 0.02, up=0.01, down=0.03, floor=0.001)
    assert real > by_chance


def test_as_many_samples_as_were_needed_usually_tell():
    told = []
    for seed in range(8):
        verdict = check_requirements(model(200, seed=seed), "accuracy > 0.65", n_resamples=100).verdicts[0]
        if verdict.outcome == "unknown" and verdict.needed < 10_000:
            more = model(verdict.needed, seed=100 + seed)
            told.append(check_requirements(more, "accuracy > 0.65", n_resamples=100).outcome)
    assert len(told) >= 4
    assert np.mean([outcome != "unknown" for outcome in told]) >= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accuracy", "nll", "ece"])
def test_a_model_that_just_meets_a_requirement_seldom_fails(name):
    population = model(200_000, seed=50)
    truth = 0.0 if name == "ece" else evaluate(population, measures=[name]).metrics[name]
    requirement = Requirement(name, ">=" if name == "accuracy" else "<=", truth)
    outcomes = [
        check_requirements(model(120, seed=seed), requirement, n_resamples=100).outcome for seed in range(60)
    ]
    assert outcomes.count("failed") <= 6
    assert outcomes.count("passed") <= 6


def test_a_gate_is_plain_json():
    gate = check_requirements(model(200), ["ece < 0.001", "nll < 3", "kde_ece < 0.9"], n_resamples=100)
    answer = json.loads(gate.to_json())
    assert (answer["outcome"], answer["exit_code"]) == (gate.outcome, gate.exit_code)
    assert [each["requirement"] for each in answer["verdicts"]] == ["ece < 0.001", "nll < 3", "kde_ece < 0.9"]
    assert answer["verdicts"][2]["low"] is None


def test_junit_shows_failures_and_counts_the_unknown_as_errors(tmp_path):
    gate = check_requirements(model(200), ["accuracy > 0.01", "nll < 0.01", "kde_ece < 0.9"], n_resamples=100)
    write_junit(gate, tmp_path / "gate.xml", "te\x1bst<&>.npz")
    suite = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["3", "1", "1", "0"]
    cases = list(suite)
    assert [case.get("name") for case in cases] == ["accuracy > 0.01", "nll < 0.01", "kde_ece < 0.9"]
    assert [[part.tag for part in case] for case in cases] == [["system-out"], ["failure"], ["error"]]
    assert cases[1][0].get("message") == gate.verdicts[1].sentence
    assert cases[0].get("classname") == "te\\x1bst<&>.npz"
    assert junit_xml(gate).startswith("<?xml")


def test_probabilities_are_decided_like_their_logits():
    samples = model(300)
    probs = Predictions(probs=softmax(samples.logits.numpy()), labels=samples.labels)
    a, b = (
        check_requirements(each, ["nll < 0.7", "ece < 0.1"], n_resamples=100) for each in (samples, probs)
    )
    assert [each.outcome for each in a.verdicts] == [each.outcome for each in b.verdicts]
    assert [each.most for each in a.verdicts] == pytest.approx([each.most for each in b.verdicts])


def test_an_interval_that_is_extended_says_so_and_keeps_its_own_ends():
    few = Predictions(confidence=[0.99] * 20, correct=[True] * 20)
    verdict = check_requirements(few, "accuracy >= 0.9", n_resamples=100).verdicts[0]
    assert (verdict.low, verdict.high, verdict.is_cautious) == (1.0, 1.0, True)
    assert verdict.least < 0.9
    assert "interval 1.0000 to 1.0000, decided on 0.8" in verdict.sentence
