"""Maps for each group, shrunk to the common one."""

import numpy as np
import pytest
import torch
from scipy import optimize

from calibrant.data import Predictions
from calibrant.errors import InputError
from calibrant.evaluation import calibrated, compare, make_choice
from calibrant.evaluation.calibrated import _warn_without_groups
from calibrant.posthoc import ByGroup, ConfidenceCalibrator, Identity, load_calibrator
from tests.rounding import assert_equal_up_to_rounding

NAMES = ("art", "law", "math")


def answers(sizes=(400, 300, 200), offsets=(-1.0, 0.0, 1.2), *, seed=0):
    """Log-odds, hits and groups of a model that errs by another amount in each group."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    s = rng.normal(0.5, 1.2, size=len(groups))
    right = rng.random(len(s)) < 1 / (1 + np.exp(-(0.8 * s + np.asarray(offsets)[groups])))
    return s, right, groups


def log_probs(s):
    return torch.log_softmax(torch.from_numpy(np.stack([-s / 2, s / 2], axis=1)), dim=1)


@pytest.mark.parametrize("weighted", [False, True])
def test_intercepts_and_slopes_are_the_penalised_optimum_of_each_group(weighted):
    s, right, groups = answers()
    # A group counts as many samples as it has effectively, whatever the common size of its weights.
    weights = np.random.default_rng(1).gamma(1.0, size=len(s)) * (1 + 9 * groups)
    fitted = ByGroup.of(
        Identity(),
        log_probs(s),
        torch.from_numpy(right).long(),
        NAMES,
        torch.from_numpy(groups),
        weights=torch.from_numpy(weights) if weighted else None,
        spreads=(0.5, 0.2),
    )

    def loss(theta, group):
        z = (1 + theta[1]) * s[groups == group] + theta[0]
        hit, w = right[groups == group], weights[groups == group]
        w = w * w.sum() / (w**2).sum() if weighted else np.ones(len(w))
        prior = (theta**2 / (2 * np.array([0.5, 0.2]) ** 2)).sum()
        return (w * np.logaddexp(0, np.where(hit, -z, z))).sum() + prior

    for group in range(3):
        best = optimize.minimize(loss, np.zeros(2), args=(group,), tol=1e-12).x
        np.testing.assert_allclose([fitted.intercepts[group], fitted.slopes[group]], best, atol=1e-4)


def test_groups_that_do_not_differ_share_one_map():
    s, right, groups = answers(offsets=(0.0, 0.0, 0.0), seed=3)
    z = 0.8 * s  # what a calibrated model would say
    fitted = ByGroup.of(
        Identity(), log_probs(z), torch.from_numpy(right).long(), NAMES, torch.from_numpy(groups)
    )
    assert fitted.spreads.max() <= 0.1
    assert fitted.intercepts.abs().max() < 0.1


def test_groups_that_differ_are_corrected_the_more_samples_they_have():
    many, few = (answers(sizes=sizes, offsets=(0.0, 0.0, 2.0)) for sizes in ((400, 400, 400), (400, 400, 8)))
    shifts = []
    for s, right, groups in (many, few):
        fitted = ByGroup.of(
            Identity(),
            log_probs(s),
            torch.from_numpy(right).long(),
            NAMES,
            torch.from_numpy(groups),
            spreads=(0.5, 0),
        )
        shifts.append(float(fitted.intercepts[2]))
    assert shifts[0] > 1.4 > shifts[1] > 0


def test_unknown_groups_and_no_groups_get_the_common_map(tmp_path):
    s, right, groups = answers()
    fitted = ByGroup.fit(s, right.astype(int), groups=np.asarray(NAMES)[groups], method="platt")
    common = fitted.base.predict_proba(s)
    np.testing.assert_allclose(fitted.predict_proba(s), common)
    np.testing.assert_allclose(fitted.predict_proba(s, groups=["physics"] * len(s)), common)
    assert np.abs(fitted.predict_proba(s, groups=["math"] * len(s)) - common).max() > 0.05
    fitted.save(tmp_path / "c.safetensors")
    again = load_calibrator(tmp_path / "c.safetensors")
    named = np.asarray(NAMES)[groups]
    assert_equal_up_to_rounding(again.predict_proba(s, groups=named), fitted.predict_proba(s, groups=named))


def test_several_classes_get_a_temperature_for_each_group():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(900, 4)) * 2
    groups = rng.choice(["sure", "unsure"], size=900)
    true = np.where((groups == "sure")[:, None], logits, 0.3 * logits)
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    fitted = ByGroup.fit(logits, labels, groups=groups)
    assert fitted.intercepts.tolist() == [0, 0]
    assert fitted.slopes[0] > 0.2 > -0.2 > fitted.slopes[1]
    assert fitted.preserves_accuracy
    assert (fitted.predict_proba(logits, groups=groups).argmax(1) == logits.argmax(1)).all()


def test_a_comparison_with_groups_corrects_the_pool_and_chooses_that():
    s, right, groups = answers(sizes=(500, 500, 500))
    sets = [
        Predictions(
            confidence=1 / (1 + np.exp(-s[rows])), correct=right[rows], groups=np.asarray(NAMES)[groups[rows]]
        )
        for rows in (slice(0, None, 2), slice(1, None, 2))
    ]
    comparison = compare(sets[0], test=sets[1], methods=["platt", "beta", "pool"], n_resamples=20)
    choice = make_choice(comparison)
    assert choice.result.name == "by_group"
    assert choice.result.test_metrics["nll"] < comparison["pool"].test_metrics["nll"] - 0.02
    assert choice.result.calibrator.group_names == NAMES
    one = sets[1].take(torch.arange(5))
    np.testing.assert_allclose(
        calibrated(choice.result.calibrator, one).confidence,
        choice.result.calibrator.predict_confidence(one.confidence, groups=one.groups.values),
    )
    alone = Predictions(confidence=one.confidence)
    _warn_without_groups.cache_clear()
    with pytest.warns(UserWarning, match="groups: expected them, because .* all samples get the common map"):
        calibrated(choice.result.calibrator, alone)
    # Out of fold the correction has not seen the samples that it is judged by.
    assert choice.result.metrics["nll"] > float(
        torch.nn.functional.nll_loss(
            choice.result.calibrator.predict_log_proba(
                sets[0].problem.logits, groups=np.asarray(sets[0].groups.values)
            ),
            sets[0].correct.long(),
        )
    )


def test_bad_groups_are_refused():
    s, right, _ = answers()
    with pytest.raises(InputError, match="^groups: expected the name of each sample's group, got none"):
        ByGroup.fit(s, right.astype(int))
    fitted = ConfidenceCalibrator(
        ByGroup(Identity(), NAMES, torch.zeros(3), torch.zeros(3)), torch.tensor([-5.0, 5.0])
    )
    with pytest.raises(InputError, match="^groups: expected 2 names, one per sample, got shape"):
        fitted.predict_confidence([0.5, 0.6], groups=["art"])


def crossed(*, seed=0, n=900):
    """Log-odds, hits, races and sexes of a model that errs by race, by sex, and in one combination."""
    rng = np.random.default_rng(seed)
    race, sex = rng.integers(3, size=n), rng.integers(2, size=n)
    s = rng.normal(0.5, 1.2, size=n)
    offset = np.array([-0.8, 0.0, 0.6])[race] + np.array([0.5, -0.5])[sex] + 0.7 * ((race == 2) & (sex == 1))
    right = rng.random(n) < 1 / (1 + np.exp(-(s + offset)))
    return s, right, np.array(["A", "B", "C"])[race], np.array(["f", "m"])[sex]


def test_effects_of_two_columns_and_of_both_together_are_the_penalised_optimum():
    s, right, race, sex = crossed()
    both = np.char.add(np.char.add(np.char.add("race=", race), ", sex="), sex)
    families = [np.char.add("race=", race), np.char.add("sex=", sex), both]
    names = [name for each in families for name in np.unique(each).tolist()]
    places = np.stack([[names.index(name) for name in each] for each in families], axis=1)
    spreads = (0.5, 0.2, 0.4, 0.1, 0.3, 0.05)
    fitted = ByGroup.of(
        Identity(),
        log_probs(s),
        torch.from_numpy(right).long(),
        names,
        torch.from_numpy(places),
        columns=("race", "sex"),
        spreads=spreads,
    )
    tau = np.repeat(np.array(spreads).reshape(3, 2), [3, 2, 6], axis=0).T.ravel()

    def loss(theta):
        a, b = theta[:11], theta[11:]
        z = (1 + b[places].sum(axis=1)) * s + a[places].sum(axis=1)
        return np.logaddexp(0, np.where(right, -z, z)).sum() + (theta**2 / (2 * tau**2)).sum()

    best = optimize.minimize(loss, np.zeros(22), method="BFGS", options={"gtol": 1e-6}).x
    np.testing.assert_allclose(torch.cat([fitted.intercepts, fitted.slopes]), best, atol=2e-4)


def test_one_column_by_name_gives_what_the_column_gives():
    s, right, race, _ = crossed()
    by_name = ByGroup.fit(s, right.astype(int), groups={"race": race})
    alone = ByGroup.fit(s, right.astype(int), groups=race)
    assert by_name.columns == ()
    assert by_name.names == alone.names
    assert torch.equal(by_name.intercepts, alone.intercepts)
    assert torch.equal(by_name.spreads, alone.spreads)


def test_a_combination_that_was_not_seen_gets_the_effects_of_its_columns(tmp_path):
    s, right, race, sex = crossed()
    seen = ~((race == "C") & (sex == "m"))
    fitted = ByGroup.fit(
        s[seen], right[seen].astype(int), groups={"race": race[seen], "sex": sex[seen]}, method="uncalibrated"
    )
    assert fitted.spreads.shape == (6,)
    assert "race=C, sex=m" not in fitted.names
    a, b = (
        dict(zip(fitted.names, each.tolist(), strict=True)) for each in (fitted.intercepts, fitted.slopes)
    )
    z = (1 + b["race=C"] + b["sex=m"]) * 0.3 + a["race=C"] + a["sex=m"]
    fitted.save(tmp_path / "both.safetensors")
    loaded = load_calibrator(tmp_path / "both.safetensors")
    # The order of the columns does not matter, and others are left alone.
    groups = {"sex": ["m"], "race": ["C"], "age": ["old"]}
    for each in (fitted, loaded):
        assert each.predict_proba([0.3], groups=groups)[0][1] == pytest.approx(1 / (1 + np.exp(-z)))
    unknown = loaded.predict_proba([0.3], groups={"race": ["X"], "sex": ["X"]})[0][1]
    assert unknown == pytest.approx(1 / (1 + np.exp(-0.3)))


def test_both_columns_are_needed_when_the_repair_is_applied():
    s, right, race, sex = crossed(n=300)
    stated = 1 / (1 + np.exp(-s))
    given = Predictions(confidence=stated, correct=right, groups={"race": race, "sex": sex})
    fitted = compare(given, methods=["platt"])["by_group"].calibrator
    assert fitted.group_columns == ("race", "sex")
    swapped = given.replaced(groups={"sex": sex, "race": race})
    assert_equal_up_to_rounding(calibrated(fitted, given).confidence, calibrated(fitted, swapped).confidence)
    with pytest.raises(InputError, match="groups: expected the columns race and sex, got one column"):
        calibrated(fitted, given.replaced(groups=race))
    with pytest.raises(InputError, match="got none for sex; give all of them by name"):
        fitted.predict_confidence(stated, groups={"race": race})
    one = compare(given.replaced(groups=race), methods=["platt"])["by_group"].calibrator
    with pytest.raises(
        InputError, match="expected the one column that the calibrator was fitted on, got race"
    ):
        calibrated(one, given)


def test_columns_that_do_not_differ_share_one_map():
    rng = np.random.default_rng(4)
    s, race, sex = rng.normal(size=1500), rng.integers(3, size=1500), rng.integers(2, size=1500)
    right = rng.random(1500) < 1 / (1 + np.exp(-s))
    fitted = ByGroup.fit(s, right.astype(int), groups={"race": race, "sex": sex})
    assert float(fitted.spreads.max()) <= 0.1
