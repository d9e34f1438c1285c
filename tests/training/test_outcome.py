"""What a run came to: every post-hoc method on every set, and what is refused."""

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score

from calibrant.errors import InputError
from calibrant.evaluation import evaluate
from calibrant.training import train
from calibrant.training.config.settings import PosthocSettings
from calibrant.training.outcome import assess, check_posthoc
from tests.training.small import small_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small network, trained once."""
    return train(small_config(), tmp_path_factory.mktemp("trained") / "run")


def _with_posthoc(run, **settings):
    return replace(run.config, posthoc=PosthocSettings(**settings))


def test_an_unknown_post_hoc_method_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"posthoc\.methods?.*temprature"):
        check_posthoc(PosthocSettings(methods=("temprature",)))


def test_a_choice_that_is_not_tried_is_refused():
    with pytest.raises(InputError, match=r"posthoc\.choose: expected auto or one of .*, got 'vector'"):
        check_posthoc(PosthocSettings(choose="vector"))


def test_methods_with_options_are_named_in_one_form():
    methods = ("smart( settled=0 )", "temperature")
    for choose in ("auto", "smart(settled=0)", "smart(settled = 0)"):
        named = check_posthoc(PosthocSettings(methods=methods, choose=choose))
        assert named == ("uncalibrated", "temperature", "smart(settled=0)")
    with pytest.raises(InputError, match=r"^posthoc\.methods: expected the options .*, got 'setled'"):
        check_posthoc(PosthocSettings(methods=("smart(setled=0)",)))


def test_a_method_with_options_can_be_chosen(tmp_path):
    config = small_config('posthoc.methods=["vector(ridge=1e9)"]', "posthoc.choose=vector( ridge=1e9 )")
    outcome = assess(train(config, tmp_path / "run"))
    assert outcome.chosen.name == "vector(ridge=1000000000.0)"
    assert list(outcome.as_json()) == ["uncalibrated", outcome.chosen.name]


@pytest.mark.parametrize(("score", "measure"), [("nll", "negative log-likelihood"), ("brier", "Brier score")])
def test_a_run_pools_its_methods_and_chooses_by_the_score(trained, score, measure):
    methods = ("temperature", "vector", "pool")
    outcome = assess(replace(trained, config=_with_posthoc(trained, methods=methods, score=score)))
    assert list(outcome.as_json()) == ["uncalibrated", *methods]
    assert set(outcome.comparison.pool.weights) <= {"uncalibrated", "temperature", "vector"}
    assert f" by {measure}" in outcome.choice.reason
    settings = _with_posthoc(trained, methods=methods, score=score, simple=True)
    assert "one standard error of" in assess(replace(trained, config=settings)).choice.reason
    assert outcome.chosen is outcome.choice.result


def test_a_method_that_the_configuration_names_is_chosen_for_that_reason(trained):
    settings = {"methods": ("temperature", "pool"), "choose": "pool"}
    outcome = assess(replace(trained, config=_with_posthoc(trained, **settings)))
    assert outcome.chosen.name == "pool"
    assert outcome.choice.sentence.endswith("): named by posthoc.choose")


def test_sets_are_detected_by_the_largest_probability_and_by_entropy(tmp_path):
    run = train(small_config('data.corruptions=["gaussian_noise-5"]'), tmp_path / "run")
    outcome = assess(run)
    test, noisy = (
        torch.softmax(run.predictions[name].logits, 1) for name in ("test", "shifted/gaussian_noise-5")
    )
    known = [1] * len(test) + [0] * len(noisy)
    p = torch.cat([test, noisy]).double()
    expected = {
        "msp": roc_auc_score(known, p.max(1).values),
        "negative_entropy": roc_auc_score(known, torch.xlogy(p, p).sum(1)),
    }
    found = outcome.methods["uncalibrated"].detection["shifted/gaussian_noise-5"]
    assert {score: found[score].auroc for score in found} == pytest.approx(expected, abs=1e-4)
    told = outcome.as_json()["uncalibrated"]["detection"]["shifted/gaussian_noise-5"]
    assert told["negative_entropy"]["auroc"] == found["negative_entropy"].auroc


def test_the_outcome_measures_every_method_on_every_set(tmp_path):
    config = small_config('data.corruptions=["contrast-3", "blur-5"]', "data.foreign_classes=[8, 9]")
    run = train(config, tmp_path / "run")
    outcome = assess(run)
    assert next(iter(outcome.methods)) == "uncalibrated"
    assert {"uncalibrated", "temperature"} <= outcome.methods.keys()
    for method in outcome.methods.values():
        assert list(method.measures) == ["test", "shifted/contrast-3", "shifted/blur-5"]
        assert list(method.detection) == ["shifted/contrast-3", "shifted/blur-5", "foreign/held_out"]
    as_trained = outcome.methods["uncalibrated"].measures
    for name in ("test", "shifted/blur-5"):
        expected = evaluate(run.predictions[name], measures=("ece", "nll")).metrics
        assert {key: as_trained[name][key] for key in expected} == pytest.approx(expected)
    # What the comparison has measured is used, not measured again.
    for name, method in outcome.methods.items():
        compared = outcome.comparison[name].test_metrics
        assert {key: method.measures["test"][key] for key in ("nll", "ece")} == {
            key: compared[key] for key in ("nll", "ece")
        }
        expected = evaluate(outcome.comparison[name].test, measures=("aurc",)).metrics
        assert method.measures["test"]["aurc"] == pytest.approx(expected["aurc"], abs=1e-6)
    # A temperature changes no ranking between classes.
    assert outcome.methods["temperature"].measures["test"]["accuracy"] == as_trained["test"]["accuracy"]
