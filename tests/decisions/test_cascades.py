"""Cascades: the cheapest thresholds with a promised risk, for rows and units; the rule that follows."""

import itertools
import math

import numpy as np
import onnxruntime
import pytest
import torch
from scipy.special import expit, logit
from scipy.stats import beta

from calibrant import Predictions
from calibrant.decisions import CascadeRule, cascade_for_risk, load_rule
from calibrant.decisions.cascades import Cascades, _Answers, _frontier_thresholds
from calibrant.errors import FormatError, InputError
from calibrant.inference.units import Units
from calibrant.integrations.onnx import export_onnx

SKILLS = (0.7, 2.0, 4.0)


def drawn(n, seed=0, *, models=2, answers=1, digits=2):
    """Confidences of some models, and the probabilities that they are right, for questions of some ease."""
    rng = np.random.default_rng(seed)
    ease = 2 * np.repeat(rng.normal(size=n), answers)
    right = [expit(ease + skill) for skill in (SKILLS[0], SKILLS[2], SKILLS[1])[:models]]
    stated = [expit(logit(p) + rng.normal(size=len(p))).round(digits).clip(0.01, 0.99) for p in right]
    return stated, right, rng


def given(n, seed=0, **options):
    """Predictions of some models by name."""
    stated, right, rng = drawn(n, seed, **options)
    answers = options.get("answers", 1)
    units = np.repeat(np.arange(n), answers) if answers > 1 else None
    return {
        name: Predictions(confidence=c, correct=rng.random(len(p)) < p, units=units)
        for name, c, p in zip(("cheap", "dear", "middle"), stated, right, strict=False)
    }


def followed(models, thresholds, cost, person=None):
    """The cost and the mistake of each question, by asking one model after the other."""
    stages = list(models.values())
    for row in range(stages[0].n):
        spent = 0.0
        for place, each in enumerate(stages):
            last = person is None and place == len(stages) - 1
            limit = 0.0 if last else thresholds[place]
            if limit is None:
                continue
            spent += cost[place]
            if float(each.confidence[row]) >= limit:
                yield spent, not bool(each.correct[row])
                break
        else:
            yield spent + person, False


def test_a_cascade_does_what_asking_one_model_after_the_other_does():
    for cost, person, names in (([1, 20], None, ("cheap", "dear")), ([1], 50, ("cheap",))):
        every = given(600)
        models = {name: every[name] for name in names}
        found = cascade_for_risk(models, cost, 0.25, person=person)
        for point in (found.chosen, *found.frontier, *found.alone):
            costs, wrong = zip(*followed(models, point.thresholds, cost, person), strict=True)
            assert point.cost == pytest.approx(np.mean(costs))
            assert point.wrong == sum(wrong)
            assert point.accuracy == pytest.approx(1 - np.mean(wrong))


def test_one_threshold_is_tested_at_every_confidence_and_the_tests_stop_at_the_first_that_fails():
    models = given(400)
    found = Cascades.of(models, [1, 20], level=0.9)
    risk, passed = 0.2, []
    values = sorted({round(float(c), 6) for c in models["cheap"].confidence}, reverse=True)
    for limit in (None, *values):
        wrong = sum(mistake for _, mistake in followed(models, (limit,), [1, 20]))
        if beta.ppf(0.9, wrong + 1, 400 - wrong) > risk:
            break
        passed.append(limit)
    assert len(passed) > 5
    chosen = found.for_risk(risk).chosen
    below = values[values.index(passed[-1]) + 1]
    assert below < chosen.thresholds[0] <= passed[-1]


def test_the_grid_of_several_thresholds_has_the_least_risk_at_each_cost():
    rng = np.random.default_rng(0)
    scores, wrong = rng.integers(0, 4, size=(60, 2)).astype(float), rng.random((60, 3)) < [0.5, 0.3, 0.2]
    answers = _Answers(scores, wrong, np.array([1.0, 5.0, 20.0]), Units.of(None, 60))
    every = set()
    for limits in itertools.product((math.inf, 2.5, 1.5, 0.5, -math.inf), repeat=2):
        cost = errors = 0
        for row in range(60):
            place = next((j for j in (0, 1) if scores[row, j] >= limits[j]), 2)
            asked = [j for j in range(place + 1) if j == 2 or limits[j] < math.inf]
            cost, errors = cost + sum((1, 5, 20)[j] for j in asked), errors + int(wrong[row, place])
        every.add((cost, errors))
    best = {(c, e) for c, e in every if not any(o != (c, e) and o[0] <= c and o[1] <= e for o in every)}
    found = []
    for limits in _frontier_thresholds(answers):
        stage = answers.stages(limits)
        found.append((int(answers.costs(limits)[stage].sum()), int(answers.wrong_at(stage).sum())))
    assert set(found) == best
    assert found == sorted(found, reverse=True)  # from the least risk, which costs most, on


@pytest.mark.parametrize(
    ("names", "cost", "person", "risk"),
    [
        (("cheap", "dear"), [1, 20], None, 0.15),
        (("cheap",), [1], 50, 0.1),
        (("cheap", "dear"), [1, 20], 90, 0.05),
    ],
)
def test_the_promised_risk_is_broken_in_at_most_one_of_twenty_samples(names, cost, person, risk):
    runs = 120
    stated, right, _ = drawn(50_000, 99)
    scores = logit(np.stack(stated, axis=1))
    truth = [1 - p for p in right][: len(names)] + ([] if person is None else [np.zeros(len(scores))])
    broken = 0
    for run in range(runs):
        models = given(400, run)
        path = Cascades.of({name: models[name] for name in names}, cost, person=person, seed=run).path
        if (place := path.cheapest(risk)) is None:
            continue
        limits = path.thresholds[place]
        answers = np.ones((len(scores), len(truth)), dtype=bool)
        answers[:, :-1] = scores[:, : len(limits)] >= limits
        stage = answers.argmax(axis=1)
        broken += np.stack(truth, axis=1)[np.arange(len(stage)), stage].mean() > risk
    assert broken / runs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / runs)


def test_copies_of_rows_add_nothing_if_they_are_units():
    models = given(300)
    copies = {
        name: Predictions(
            confidence=each.confidence.repeat_interleave(4),
            correct=each.correct.repeat_interleave(4),
            units=np.repeat(np.arange(300), 4),
        )
        for name, each in models.items()
    }
    once, copied = (Cascades.of(each, [1, 20]).path for each in (models, copies))
    assert copied.guaranteed == pytest.approx(once.guaranteed, rel=0.02)
    as_rows = {name: each.replaced(units=None) for name, each in copies.items()}
    assert (Cascades.of(as_rows, [1, 20]).path.guaranteed < once.guaranteed).all()


def test_no_threshold_between_those_that_are_tested_has_a_larger_bound():
    models = given(150, answers=4, digits=6)
    path = Cascades.of(models, [1, 20]).path
    assert len(path.thresholds) <= 201
    for limit in np.random.default_rng(0).uniform(0.05, 0.95, 8):
        wrong = np.array([mistake for _, mistake in followed(models, (limit,), [1, 20])])
        answers = _Answers.of(list(models.values()), np.array([1.0, 20.0]))
        after = int(np.argmax(path.thresholds[:, 0] <= logit(limit)))
        assert answers.bounds(wrong, 0.95)[1] <= path.guaranteed[after] + 1e-9


@pytest.mark.long
def test_the_promised_risk_of_units_is_broken_in_at_most_one_of_twenty_samples():
    runs, risk = 200, 0.15
    stated, right, _ = drawn(50_000, 99)
    broken = 0
    for run in range(runs):
        path = Cascades.of(given(150, run, answers=4), [1, 20]).path
        if (place := path.cheapest(risk)) is not None:
            kept = logit(stated[0]) >= path.thresholds[place, 0]
            broken += np.where(kept, 1 - right[0], 1 - right[1]).mean() > risk
    assert broken / runs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / runs)


def test_the_chosen_thresholds_are_the_cheapest_with_the_guarantee_and_a_useless_model_is_not_asked():
    found = cascade_for_risk(given(800), [1, 20], 0.15)
    assert found.chosen.guaranteed <= 0.15
    cheaper = [point for point in found.frontier if point.cost < found.chosen.cost]
    assert cheaper
    assert all(point.guaranteed > 0.15 for point in cheaper)
    useless = Predictions(confidence=np.full(800, 0.9), correct=np.zeros(800))
    alone = cascade_for_risk({"useless": useless, "dear": given(800)["dear"]}, [1, 20], 0.15)
    assert (alone.chosen.thresholds, alone.chosen.cost) == ((None,), 20)
    assert alone.sentence.startswith("Ask dear and keep all its answers (100 %); mean cost 20")


def test_a_risk_that_no_model_reaches_is_refused_with_what_can_be_reached_and_a_person_reaches_it():
    models = given(400)
    found = cascade_for_risk(models, [1, 20], 0.01)
    assert found.chosen is None
    assert found.rule is None
    least = beta.ppf(0.95, found.alone[1].wrong + 1, 400 - found.alone[1].wrong)
    assert found.safest.guaranteed == pytest.approx(least)
    assert f"the least that 400 questions guarantee is {100 * least:.3g} % (dear alone" in found.sentence
    with_person = cascade_for_risk(given(1000), [1, 20], 0.03, person=100)
    assert with_person.chosen.cost < 100
    assert with_person.alone[-1].accuracy_low == 1


def test_questions_are_matched_by_id_in_any_order_and_the_others_are_counted():
    models = given(500)
    names = np.array([f"q{row}" for row in range(500)])
    order = np.random.default_rng(0).permutation(500)[:450]
    mixed = {
        "cheap": models["cheap"].replaced(ids=names),
        "dear": models["dear"].take(order).replaced(ids=names[order]),
    }
    found = cascade_for_risk(mixed, [1, 20], 0.2)
    kept = np.sort(order)
    same = cascade_for_risk({name: each.take(kept) for name, each in models.items()}, [1, 20], 0.2)
    assert found.chosen == same.chosen
    assert dict(found.left_out) == {"cheap": 50, "dear": 0}
    assert "50 of cheap" in found.sentences[-1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cost": [1]}, "cost: expected one number for each of 2 models, got 1"),
        ({"cost": [1, 2, 3]}, "got 3; a person has one of their own, person="),
        ({"cost": [1, -2]}, "cost: expected a number of at least 0, got -2"),
        ({"risk": 1.5}, "risk: expected a number between 0 and 1, got 1.5"),
        ({"risk": 0.001}, "models: expected at least 2,995 questions"),
        ({"names": ["cheap"], "cost": [1]}, "models: expected at least two, or one and a person, got 1"),
        ({"ids": True}, "ids: expected at least two samples that both models have, got 0"),
        ({"short": True}, "models: expected the same questions of each model in the same order, got 400 and"),
        ({"weights": True}, "weights"),
    ],
)
def test_bad_input_is_one_sentence(change, words):
    models = {
        name: each for name, each in given(400).items() if name in change.get("names", ["cheap", "dear"])
    }
    if "ids" in change:
        models = {
            name: each.replaced(ids=np.arange(400) + 1000 * place)
            for place, (name, each) in enumerate(models.items())
        }
    if "short" in change:
        models["dear"] = models["dear"].take(range(300))
    if "weights" in change:
        models["dear"] = models["dear"].replaced(weights=np.full(400, 2.0))
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        cascade_for_risk(models, change.get("cost", [1, 20]), change.get("risk", 0.2))


def test_classes_are_answered_with_the_class_of_the_model_that_answers():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=500)
    scores = np.eye(3)[labels]
    cheap, dear = (
        Predictions(
            logits=by * scores + rng.normal(size=(500, 3)), labels=labels, class_names=["a", "b", "c"]
        )
        for by in (1.5, 4.0)
    )
    found = cascade_for_risk({"cheap": cheap, "dear": dear}, [1, 20], 0.1)
    decided = found.rule.decide(cheap, dear).columns
    wrong = sum(name != "abc"[label] for name, label in zip(decided["predicted"], labels, strict=True))
    assert wrong == found.chosen.wrong
    assert np.mean(decided["cost"]) == pytest.approx(found.chosen.cost)


def test_a_rule_names_the_model_to_ask_next_where_an_answer_is_missing():
    rule = CascadeRule(
        [0.8, None, 0.6], models=["a", "b", "c", "person"], cost=[1, 2, 4, 100], risk=0.1, level=0.9
    )
    first = Predictions(confidence=[0.9, 0.8, 0.1, 0.1, 0.1], ids=["v", "w", "x", "y", "z"])
    second = Predictions(confidence=[1.0], ids=["x"])
    third = Predictions(confidence=[0.2, 0.7], ids=["y", "x"])
    decided = rule.decide(first, second, third).columns
    assert decided["model"] == ["a", "a", "c", "person", "c"]
    assert decided["answer"] == [True, True, True, False, False]
    assert decided["confidence"] == [0.9, 0.8, 0.7, None, None]
    assert decided["cost"] == [1, 1, 5, 105, 5]
    assert rule.decide(first).columns["model"] == ["a", "a", "c", "c", "c"]
    with pytest.raises(InputError, match="expected those of at most 3 models, which are a, b, c, got 4"):
        rule.decide(first, second, third, third)


@pytest.mark.slow
def test_a_saved_rule_and_its_graph_decide_as_the_rule_does(tmp_path):
    found = cascade_for_risk(given(900, models=3), [1, 20, 5], 0.1, person=90)
    found.rule.save(tmp_path / "rule.safetensors")
    rule = load_rule(tmp_path / "rule.safetensors")
    new = given(300, seed=7, models=3)
    decided = rule.decide(*new.values())
    assert dict(decided.columns) == dict(found.rule.decide(*new.values()).columns)
    export_onnx(rule, tmp_path / "rule.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "rule.onnx")
    confidences = np.stack([each.confidence.numpy() for each in new.values()], axis=1).astype(np.float32)
    (stage,) = session.run(["stage"], {"confidences": confidences})
    assert [rule.models[each] for each in stage] == decided.columns["model"]
    assert "person" in session.get_modelmeta().custom_metadata_map["models"]
    rule.thresholds = torch.zeros(1, dtype=torch.float64)
    rule.save(tmp_path / "damaged.safetensors")
    with pytest.raises(FormatError, match="models: expected one more than 1 thresholds"):
        load_rule(tmp_path / "damaged.safetensors")
