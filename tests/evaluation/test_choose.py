"""Which of the compared methods is chosen, and the pool that is compared with its members."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.evaluation import choose, compare, effect_of, make_choice
from calibrant.evaluation.choose import Choice
from calibrant.inference.paired import paired_difference
from calibrant.metrics import expected_calibration_error, smooth_ece
from calibrant.metrics.classwise import classwise_calibration_error
from calibrant.metrics.smooth_ece import smooth_ece_terms
from calibrant.posthoc import Pool, TemperatureScaling
from calibrant.posthoc.fitting.folds import random_folds
from calibrant.posthoc.names import METHODS
from calibrant.posthoc.pool import likeliest_mixture
from tests.conftest import at_length, draw

METHODS_COMPARED = ["uncalibrated", "temperature", "smart", "vector", "pool"]


def twice_spoiled(n, *, seed=0):
    """Logits that are too large where the margin is, for SMART, and shifted by class, for vector scaling."""
    logits, labels = draw(n, 4, seed=seed)
    top = np.sort(logits, axis=1)
    logits = logits * (0.5 + top[:, -1:] - top[:, -2:-1])
    return Predictions(logits=logits + np.array([1.0, 0.0, -0.5, 0.0]), labels=labels)


def overconfident(n, *, seed=0):
    logits, labels = draw(n, 5, seed=seed, sharpen=3.0)
    return Predictions(logits=logits, labels=labels)


@pytest.fixture(scope="module")
def compared():
    """Comparisons in which the pool is best, and in which a simple method is as good."""
    return {
        "pool is best": compare(twice_spoiled(2500), methods=METHODS_COMPARED, n_resamples=20),
        "few samples": compare(twice_spoiled(300), methods=METHODS_COMPARED, n_resamples=20),
        "one temperature": compare(overconfident(800), methods=METHODS_COMPARED, n_resamples=20),
        "without a pool": compare(twice_spoiled(2500), methods=METHODS_COMPARED[:-1], n_resamples=20),
        "one method": compare(overconfident(300), methods=["vector"], n_resamples=20),
    }


COMPARISONS = ["pool is best", "few samples", "one temperature", "without a pool", "one method"]
SCORES = ["nll", "brier", "ece", "classwise_ece"]


def standard_error(differences):
    return float(np.std(differences, ddof=1)) / math.sqrt(len(differences))


def losses(result, score):
    """The definition of the score of each out-of-fold prediction."""
    probs, labels = result.held_out.to_probs().double().numpy(), result.held_out.labels.numpy()
    if score == "nll":
        return -np.log(probs[np.arange(len(labels)), labels])
    return ((probs - np.eye(probs.shape[1])[labels]) ** 2).sum(axis=1)


def is_as_good(result, reference, score):
    probs, others = (each.held_out.to_probs() for each in (result, reference))
    labels = result.held_out.labels
    if score in ("ece", "classwise_ece"):
        measure = expected_calibration_error if score == "ece" else classwise_calibration_error
        found = paired_difference(measure, probs, others, labels, n_resamples=200)
        return found.difference <= found.standard_error
    behind = losses(result, score) - losses(reference, score)
    return behind.mean() <= standard_error(behind) and calibration_is_as_good(result, reference)


def calibration_is_as_good(result, reference):
    labels = result.held_out.labels
    probs, others = (each.held_out.to_probs() for each in (result, reference))
    terms = smooth_ece_terms(probs, labels) - smooth_ece_terms(others, labels)
    return smooth_ece(probs, labels) - smooth_ece(others, labels) <= standard_error(terms) + 1e-9


def plainly_chosen(comparison, score, *, simple):
    """The rule in words: what the pool gives way to, or the first method as good as the pool or the best."""
    by_name = {result.name: result for result in comparison.results}
    smallest = min(comparison.results, key=lambda result: result.metrics[score])
    is_proper = score in ("nll", "brier")
    if is_proper and "pool" in by_name and not simple:
        behind = losses(by_name["pool"], score) - losses(by_name["temperature"], score)
        alone = comparison.pool.names == ["temperature"]
        return "temperature" if alone or behind.mean() > standard_error(behind) else "pool"
    reference = by_name.get("pool", smallest) if is_proper else smallest
    for result in comparison.results:
        if result is reference or is_as_good(result, reference, score):
            return result.name
    raise AssertionError


@pytest.mark.parametrize("case", COMPARISONS)
@pytest.mark.parametrize("score", at_length(SCORES, ("nll", "ece")))
@pytest.mark.parametrize("simple", [False, True])
def test_the_choice_is_that_of_the_plain_rule(compared, case, score, simple):
    expected = plainly_chosen(compared[case], score, simple=simple)
    assert choose(compared[case], score=score, simple=simple).name == expected
    assert make_choice(compared[case], score=score, simple=simple).result.name == expected


MEASURES = {"nll": "negative log-likelihood", "brier": "Brier score"}


@pytest.mark.parametrize("score", MEASURES)
def test_the_pool_is_chosen_if_no_simpler_method_is_as_good(compared, score):
    choice = make_choice(compared["pool is best"], score=score)
    assert choice.result.name == "pool"
    assert choice.reason == f"out of fold it is better than temperature scaling by {MEASURES[score]}"
    choice = make_choice(compared["pool is best"], score=score, simple=True)
    assert choice.result.name == "pool"
    assert choice.reason == (
        f"no simpler method is within one standard error of it by {MEASURES[score]} and smooth calibration "
        "error, out of fold"
    )


def with_results(comparison, *results):
    return replace(comparison, results=results)


@pytest.mark.parametrize(
    ("behind", "expected", "reason"),
    [
        (-0.5, "pool", "out of fold it is better than temperature scaling by {}"),
        (0.5, "pool", "out of fold it is within one standard error of temperature scaling by {}"),
        (
            1.5,
            "temperature",
            "out of fold the pool of all methods is more than one standard error behind it by {}",
        ),
    ],
)
@pytest.mark.parametrize("score", MEASURES)
def test_by_default_the_pool_gives_way_to_temperature_scaling_that_is_better(
    compared, behind, expected, reason, score
):
    """The pool is a given number of standard errors behind temperature scaling."""
    comparison = compared["pool is best"]
    pool, temperature = comparison["pool"], comparison["temperature"]
    noise = torch.linspace(-1, 1, len(pool.losses[score]), dtype=torch.float64)
    moved = noise + behind * standard_error(noise.numpy()) - noise.mean()
    shown = replace(pool, losses={**pool.losses, score: temperature.losses[score] + moved})
    choice = make_choice(with_results(comparison, temperature, shown), score=score)
    assert choice.result.name == expected
    assert choice.reason == reason.format(MEASURES[score])


def test_a_pool_of_temperature_scaling_alone_is_temperature_scaling(compared):
    comparison = compared["one temperature"]
    temperature = comparison["temperature"]
    alone = Pool({"temperature": temperature.calibrator}, [1.0])
    shown = replace(comparison["pool"], calibrator=alone)
    choice = make_choice(with_results(comparison, temperature, shown))
    assert choice.sentence == "temperature: out of fold it is likelier than the pool of all methods"


def test_by_default_the_pool_does_not_give_way_to_other_methods(compared):
    comparison = compared["one temperature"]
    pool = comparison["pool"]
    vector = replace(comparison["vector"], losses=pool.losses, held_out=pool.held_out, metrics=pool.metrics)
    both = with_results(comparison, vector, pool)
    assert make_choice(both).result is pool
    assert make_choice(both).reason == "the mixture of all methods that were compared"
    assert make_choice(both, simple=True).result is vector


def test_the_simplest_method_as_good_as_the_pool_is_chosen_on_request(compared):
    comparison = compared["one temperature"]
    numbers = {name: getattr(comparison["temperature"], name) for name in ("losses", "held_out", "metrics")}
    others = [each for each in comparison.results if each.name != "pool"]
    choice = make_choice(
        with_results(comparison, *others, replace(comparison["pool"], **numbers)), simple=True
    )
    assert choice.result.name == "temperature"
    assert choice.reason == (
        "the simplest method within one standard error of the pool by negative log-likelihood and smooth "
        "calibration error, out of fold"
    )
    assert choice.sentence == f"temperature: {choice.reason}"


def test_without_a_pool_methods_are_compared_with_the_best(compared):
    comparison = compared["without a pool"]
    assert comparison.pool is None
    best = min(comparison.results, key=lambda result: result.metrics["nll"])
    choice = make_choice(comparison)
    assert choice.result is best
    assert choice.reason == (
        "no simpler method is within one standard error of it by negative log-likelihood and smooth "
        "calibration error, out of fold"
    )
    comparison = compared["one temperature"]
    temperature, vector = comparison["temperature"], comparison["vector"]
    better = replace(vector, metrics={**vector.metrics, "nll": temperature.metrics["nll"] - 1e-9})
    choice = make_choice(with_results(comparison, temperature, better))
    assert choice.result is temperature
    assert choice.reason.startswith("the simplest method within one standard error of vector by negative log")


def test_one_method_is_chosen_whatever_it_is(compared):
    choice = make_choice(compared["one method"])
    assert (choice.result.name, choice.reason) == ("vector", "the only method that was compared")


@pytest.mark.parametrize(
    ("score", "title"), [("ece", "ECE, equal width"), ("classwise_ece", "classwise ECE")]
)
def test_a_calibration_error_decides_alone(compared, score, title):
    comparison = compared["pool is best"]
    expected = f"the simplest method within one standard error of the smallest {title}, out of fold"
    assert make_choice(comparison, score=score).reason == expected
    # Of predictions that are the same, those of the simplest method, whatever the likelihoods are.
    same = [replace(comparison[name], held_out=comparison["smart"].held_out) for name in METHODS_COMPARED]
    assert choose(with_results(comparison, *same), score=score).name == "uncalibrated"


def test_a_method_that_is_as_likely_but_worse_calibrated_is_not_as_good(compared):
    comparison = compared["one temperature"]
    pool = comparison["pool"]
    good = replace(
        comparison["temperature"], losses=pool.losses, metrics=pool.metrics, held_out=pool.held_out
    )
    spoiled = replace(good, held_out=comparison["uncalibrated"].held_out)
    assert choose(with_results(comparison, good, pool), simple=True) is good
    assert choose(with_results(comparison, spoiled, pool), simple=True) is pool


def one_temperature():
    return {"temperature": TemperatureScaling(2.0)}, [1.0]


def test_the_sentence_names_the_members_of_a_pool_and_the_curve_that_follows(compared):
    choice = make_choice(compared["pool is best"])
    shares = compared["pool is best"].pool.weights
    members = ", ".join(f"{100 * share:.0f} % {name}" for name, share in shares.items())
    assert compared["pool is best"].pool.has_curve
    assert choice.sentence == f"pool ({members}, then temperatures): {choice.reason}"
    plain = replace(choice, result=replace(choice.result, calibrator=Pool(*one_temperature())))
    assert plain.sentence == f"pool (100 % temperature): {choice.reason}"


def test_an_unknown_score_is_refused(compared):
    with pytest.raises(InputError, match="^score: expected one of nll, brier, ece, classwise_ece, got 'auc'"):
        make_choice(compared["one method"], score="auc")


def log_probs(result):
    return torch.log_softmax(result.held_out.to_logits(), dim=1)


def test_the_pool_predicts_each_fold_with_shares_of_the_others(monkeypatch):
    monkeypatch.setattr("calibrant.posthoc.pool._follow_with_curve", lambda *_, **__: None)
    comparison = compare(twice_spoiled(2500), methods=METHODS_COMPARED, n_resamples=20)
    predicted, labels = comparison["pool"].held_out.logits, comparison["pool"].held_out.labels
    members = [log_probs(comparison[name]) for name in METHODS_COMPARED[:-1]]
    folds = random_folds(len(labels), 5, seed=0)
    in_sample = likeliest_mixture(members, labels)(members, torch.arange(len(labels)))
    assert not torch.allclose(predicted, in_sample, atol=1e-6)
    for fold in range(5):
        inside, rest = ((folds == fold).nonzero().squeeze(1), (folds != fold).nonzero().squeeze(1))
        wrong = labels.clone()
        wrong[inside] = (labels[inside] + 1) % 4
        mixture = likeliest_mixture(members, wrong, rest)
        torch.testing.assert_close(predicted[inside], mixture(members, inside), rtol=1e-6, atol=1e-6)


def test_labels_of_a_fold_do_not_change_how_it_is_mixed(monkeypatch):
    def known(cls, data, labels=None, *, prior=1.0):  # noqa: ARG001  # a fit that learns nothing
        return cls(prior, n_classes=data.n_classes)

    monkeypatch.setattr(TemperatureScaling, "fit", classmethod(known))
    monkeypatch.setattr("calibrant.posthoc.pool._follow_with_curve", lambda *_, **__: None)
    before = overconfident(400)
    fold = random_folds(400, 5, seed=0) == 2
    labels = torch.where(fold, (before.labels + 1) % 5, before.labels)
    after = Predictions(logits=before.logits, labels=labels)
    methods = ["temperature(prior=1.0)", "temperature(prior=8.0)", "pool"]
    one, other = (
        compare(each, methods=methods, n_folds=5, n_resamples=20)["pool"].held_out.logits
        for each in (before, after)
    )
    assert torch.equal(one[fold], other[fold])
    assert not torch.allclose(one[~fold], other[~fold])


def test_a_pool_alone_mixes_the_automatic_methods(monkeypatch):
    monkeypatch.setattr("calibrant.posthoc.names._AUTO", ("uncalibrated", "temperature", "pool"))
    alone = compare(overconfident(200), methods=["pool"], n_folds=2, n_resamples=20)
    assert [result.name for result in alone.results] == ["uncalibrated", "temperature", "pool"]


def test_one_member_is_not_pooled_and_the_reason_is_told():
    comparison = compare(overconfident(200), methods=["temperature", "pool"], n_folds=2, n_resamples=20)
    assert [result.name for result in comparison.results] == ["temperature"]
    assert dict(comparison.skipped) == {"pool": "fewer than two methods could be fitted"}
    assert comparison.pool is None


def test_a_member_that_cannot_be_fitted_is_not_pooled():
    methods = ["uncalibrated", "temperature", "proximity", "pool"]
    comparison = compare(overconfident(200), methods=methods, n_folds=2, n_resamples=20)
    assert "features: expected" in comparison.skipped["proximity"]
    assert set(comparison.pool.names) <= {"uncalibrated", "temperature"}


@pytest.mark.parametrize("k", [2, 4])
def test_pools_of_methods_that_keep_the_predicted_class_keep_it(k):
    logits, labels = draw(400, k, sharpen=3.0)
    logits[:40] = np.round(logits[:40])
    spoiled = Predictions(logits=logits, labels=labels)
    comparison = compare(spoiled, methods="pool", keep_accuracy=True, n_folds=3, n_resamples=20)
    assert comparison.pool.preserves_accuracy
    assert all(METHODS[name].preserves_accuracy for name in comparison.pool.names)
    new = draw(3000, k, seed=1, sharpen=3.0)[0]
    for held_out in (False, True):
        z = torch.tensor(logits if held_out else new)
        after = comparison["pool"].held_out.logits if held_out else comparison.pool.predict_log_proba(z)
        assert torch.equal(after.argmax(dim=1), z.argmax(dim=1))


def test_the_time_of_a_pool_is_that_of_all_fits(compared):
    comparison = compared["pool is best"]
    assert comparison["pool"].fit_seconds > max(r.fit_seconds for r in comparison.results if r.name != "pool")


def test_a_pool_is_measured_on_the_test_set_by_the_fit_on_all_of_validation():
    new = twice_spoiled(500, seed=1)
    methods = ["temperature", "vector", "pool"]
    comparison = compare(twice_spoiled(400), test=new, methods=methods, n_folds=3, n_resamples=20)
    probs = comparison.pool.predict_proba(new.logits)
    expected = expected_calibration_error(probs, new.labels)
    assert comparison["pool"].test_metrics["ece"] == pytest.approx(expected, abs=1e-6)


def test_the_terms_of_smooth_ece_have_it_as_mean_and_give_its_standard_error():
    logits, labels = draw(2000, 5, seed=2, sharpen=2.0)
    probs = torch.softmax(torch.tensor(logits), dim=1).numpy()
    terms = smooth_ece_terms(probs, labels)
    assert terms.mean() == pytest.approx(smooth_ece(probs, labels), abs=1e-3)
    rng = np.random.default_rng(0)
    resampled = []
    for _ in range(100):
        rows = rng.integers(2000, size=2000)
        resampled.append(smooth_ece(probs[rows], labels[rows]))
    assert standard_error(terms) == pytest.approx(np.std(resampled), rel=0.25)


def test_the_effect_is_counted_sample_by_sample_and_names_the_best_method_that_keeps_predictions(compared):
    validation, comparison = twice_spoiled(300), compared["few samples"]
    vector = comparison["vector"]
    effect = effect_of(comparison, Choice(vector, "asked for"), validation)
    before, after = validation.to_logits(), vector.held_out.to_logits()
    pairs = list(zip(before, after, validation.labels, strict=True))
    changed = sum(int(b.argmax() != a.argmax()) for b, a, _ in pairs) / len(pairs)
    hits = [sum(int(row[i].argmax() == row[2]) for row in pairs) / len(pairs) for i in (0, 1)]
    assert changed > 0.01
    assert effect.changed == pytest.approx(changed)
    assert [effect.before["accuracy"], effect.after["accuracy"]] == pytest.approx(hits)
    keeper = min(
        (comparison[name] for name in ("temperature", "smart")), key=lambda each: each.metrics["nll"]
    )
    assert (effect.keeper, effect.keeper_ece) == (keeper.name, keeper.metrics["ece"])
    eces = [100 * comparison[name].metrics["ece"] for name in ("uncalibrated", "vector")]
    assert effect.sentences == (
        f"Out of fold: ECE {eces[0]:.2f} -> {eces[1]:.2f} %, accuracy {100 * hits[0]:.2f} -> "
        f"{100 * hits[1]:.2f} %.",
        f"vector changes {100 * changed:.1f} % of the predictions; {keeper.name} keeps them, ECE "
        f"{100 * keeper.metrics['ece']:.2f} %.",
    )
    kept = effect_of(comparison, Choice(comparison["smart"], "asked for"), validation)
    assert (kept.changed, kept.keeper) == (0.0, None)


def test_the_effect_on_confidences_is_their_error_and_their_order():
    generator = np.random.default_rng(0)
    stated = generator.uniform(0.5, 1, 400).round(1)
    answers = Predictions(confidence=stated, correct=generator.uniform(size=400) < stated - 0.2)
    comparison = compare(answers, methods=["uncalibrated", "platt"])
    effect = effect_of(comparison, Choice(comparison["platt"], "asked for"), answers)
    assert (effect.changed, effect.keeper) == (None, None)
    assert effect.sentences[0].startswith("Out of fold: ECE 2")
    assert ", AUROC of correctness " in effect.sentences[0]


def test_the_effect_of_a_choice_repeats_what_was_measured(compared, monkeypatch):
    comparison = compared["pool is best"]
    choice = make_choice(comparison)
    monkeypatch.setattr("calibrant.evaluation.effect.evaluate", None)  # nothing is measured again
    effect = effect_of(comparison, choice, comparison["uncalibrated"].measured)
    assert effect.before["ece"] == comparison["uncalibrated"].measured_metrics["ece"]
    assert effect.after["ece"] == choice.result.measured_metrics["ece"]


def test_what_happens_to_a_rare_class_is_told_beside_the_accuracy():
    rng = np.random.default_rng(0)
    labels = (rng.random(2000) < 0.05).astype(int)
    # As after training on balanced classes: the rare one is predicted far too often.
    logits = np.stack([np.zeros(2000), 1.5 * (2 * labels - 1) + rng.normal(size=2000)], axis=1)
    given = Predictions(logits=logits, labels=labels, class_names=["fine", "fraud"])
    comparison = compare(given, methods=["platt"], n_resamples=20)
    effect = effect_of(comparison, Choice(comparison["platt"], "asked for"), given)
    after = comparison["platt"].measured.to_probs().argmax(dim=1).numpy()
    assert dict(effect.rare) == {
        "class": "fraud",
        "share": pytest.approx(labels.mean()),
        "before": pytest.approx((logits.argmax(axis=1)[labels == 1] == 1).mean()),
        "after": pytest.approx((after[labels == 1] == 1).mean()),
    }
    assert effect.rare["after"] < effect.rare["before"] - 0.1
    assert effect.after["accuracy"] > effect.before["accuracy"]
    assert effect.sentences[-1].startswith("Of class fraud, which is rare (")
    assert "decide --costs" in effect.sentences[-1]
    weighted = Predictions(logits=logits, labels=labels, weights=np.where(labels == 1, 10.0, 1.0))
    assert effect_of(comparison, Choice(comparison["platt"], "asked for"), weighted).rare is None
