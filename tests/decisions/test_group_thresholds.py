"""A threshold for each group: what is guaranteed in all of them at once, and what is never answered."""

import numpy as np
import pytest
from scipy.stats import binom

from calibrant import Predictions
from calibrant.decisions import GroupThresholdRule, find_group_thresholds, load_rule, threshold_for_risk
from calibrant.errors import InputError

SLOPES = {"a": 1.0, "b": 0.6, "c": 0.4}


def answers(n, seed):
    """Confidences that are too high by another amount in each group."""
    rng = np.random.default_rng(seed)
    groups = rng.choice(list(SLOPES), size=n)
    stated = rng.uniform(0.5, 1, size=n)
    truth = 0.5 + (stated - 0.5) * np.array([SLOPES[group] for group in groups])
    return stated, rng.random(n) < truth, groups


def test_the_risk_of_every_group_is_kept_at_once():
    runs, level, broken = 120, 0.8, 0
    for seed in range(runs):
        stated, right, groups = answers(600, seed)
        found = find_group_thresholds(
            Predictions(confidence=stated, correct=right, groups=groups), risk=0.25, level=level
        )
        # Above a threshold t the stated confidence is uniform, so the risk is that of its mean.
        risks = [
            0.5 - ((1 + max(each.threshold, 0.5)) / 2 - 0.5) * SLOPES[name]
            for name, each in found.groups.items()
            if each.threshold is not None
        ]
        broken += any(risk > 0.25 for risk in risks)
    assert broken <= binom.ppf(0.999, runs, 1 - level)


def test_each_group_has_the_threshold_of_its_own_samples_at_the_shared_level():
    stated, right, groups = answers(1500, 1)
    found = find_group_thresholds(
        Predictions(confidence=stated, correct=right, groups=groups), risk=0.3, level=0.9
    )
    assert found.level_each == pytest.approx(1 - 0.1 / 3)
    for name, each in found.groups.items():
        own = Predictions(confidence=stated[groups == name], correct=right[groups == name])
        assert each.threshold == threshold_for_risk(own, 0.3, level=found.level_each).threshold
    assert found.coverage == pytest.approx(sum(each.answered for each in found.groups.values()) / 1500)


def test_a_saved_rule_answers_by_the_columns_of_the_fit_and_never_in_other_groups(tmp_path):
    stated, right, groups = answers(3000, 2)
    sex = np.random.default_rng(0).choice(["f", "m"], size=3000)
    given = Predictions(confidence=stated, correct=right, groups={"race": groups, "sex": sex})
    found = find_group_thresholds(given, risk=0.3)
    found.rule.save(tmp_path / "rule.safetensors")
    rule = load_rule(tmp_path / "rule.safetensors")
    swapped = given.replaced(groups={"sex": sex, "race": groups})
    expected = [
        (limit := found.groups[f"race={race}, sex={s}"].threshold) is not None and c >= limit
        for c, race, s in zip(stated, groups, sex, strict=True)
    ]
    assert rule.decide(swapped).columns["answer"] == expected
    assert 0 < sum(expected) < 3000
    new = Predictions(confidence=[1.0, 1.0], groups={"race": ["a", "z"], "sex": ["f", "f"]})
    with pytest.warns(
        UserWarning, match="groups: no samples of race=z, sex=f when the thresholds were found"
    ):
        assert rule.decide(new).columns["answer"] == [True, False]
    with pytest.raises(InputError, match="groups: expected the columns race and sex of groups"):
        rule.decide(given.replaced(groups=None))
    with pytest.raises(InputError, match="groups: expected the columns race and sex, got one column"):
        rule.decide(given.replaced(groups=sex))
    with pytest.raises(InputError, match="export: expected a rule that follows from the scores"):
        rule.check_exportable()


def test_a_group_with_too_few_samples_is_never_answered_and_none_at_all_has_no_rule():
    given = Predictions(confidence=[0.9] * 203, correct=[True] * 203, groups=["many"] * 200 + ["few"] * 3)
    found = find_group_thresholds(given, risk=0.05)
    assert found.groups["few"].rule is None
    assert found.groups["many"].threshold == 0
    assert "few is never answered" in found.sentences[1]
    assert list(found.rule.thresholds.isinf()) == [True, True]  # plus for few, minus for many
    few = find_group_thresholds(given.take(range(200, 203)), risk=0.05)
    assert few.rule is None
    assert few.sentences[0].startswith("No group has a threshold")
    with pytest.raises(InputError, match="predictions: expected groups, got none"):
        find_group_thresholds(given.replaced(groups=None), risk=0.05)


def test_a_coverage_is_answered_in_each_group_with_a_bound_of_its_risk():
    stated, right, groups = answers(900, 3)
    found = find_group_thresholds(Predictions(confidence=stated, correct=right, groups=groups), coverage=0.5)
    assert all(each.coverage == pytest.approx(0.5, abs=0.01) for each in found.groups.values())
    assert found.risk == max(each.risk for each in found.groups.values())
    assert isinstance(found.rule, GroupThresholdRule)
