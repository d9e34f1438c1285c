"""The post-hoc worker: fits on one part, measures on the other."""

import inspect

import numpy as np
import pytest

from calibrant import Predictions, evaluate, save_predictions
from calibrant.errors import FitError, InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.losses.names import LOSSES
from calibrant.papers.experiment import experiment_names, load_experiment
from calibrant.papers.model_predictions import load_model_predictions
from calibrant.papers.posthoc import fit_by_name, fit_or_identity, run_posthoc
from calibrant.papers.runner import WORKERS
from calibrant.posthoc import SMART, TemperatureScaling
from calibrant.posthoc.names import METHODS

SMALL = {"measures": ["ece", "nll"]}
OWN = [
    name
    for name in experiment_names()
    if load_experiment(name).worker in ("posthoc", "studies", "arena", "calarena")
]


def only(records):
    (record,) = records
    return record


def test_what_is_measured_is_the_method_fitted_on_the_validation_part():
    key = {"source": "digits", "method": "temperature"}
    records = {r.labels["set"]: r.values for r in run_posthoc(key, SMALL, 2, None)}
    source = load_model_predictions("digits", seed=2)
    fitted = TemperatureScaling.fit(source.validation.logits, source.validation.labels)
    for name, part in source.tests.items():
        expected = evaluate(calibrated(fitted, part), measures=["ece", "nll"]).metrics
        assert {k: records[name][k] for k in expected} == expected
        assert records[name]["fitted"] == 1


def test_options_of_the_grid_reach_the_method():
    key = {"source": "digits", "method": "smart", "indicator": "entropy", "epochs": 3, "settled": 0.0}
    found = only(run_posthoc(key, {**SMALL, "sets": ["test"]}, 0, None)).values["nll"]
    source = load_model_predictions("digits", seed=0)
    fitted = SMART.fit(
        source.validation.logits, source.validation.labels, indicator="entropy", epochs=3, settled=0.0
    )
    expected = evaluate(calibrated(fitted, source.tests["test"]), measures=["nll"]).metrics["nll"]
    assert found == pytest.approx(expected, rel=1e-12)


def test_options_that_a_method_shares_are_overruled_by_the_grid():
    settings = {**SMALL, "sets": ["test"], "options": {"smart": {"epochs": 0}}}
    key = {"source": "digits", "method": "smart"}
    untouched = only(run_posthoc({**key, "method": "uncalibrated"}, settings, 0, None)).values["nll"]
    assert only(run_posthoc(key, settings, 0, None)).values["nll"] == pytest.approx(untouched)
    assert only(run_posthoc({**key, "epochs": 50}, settings, 0, None)).values["nll"] < untouched


def test_fewer_samples_are_the_first_of_the_validation_part():
    key = {"source": "digits", "method": "temperature", "samples": 300}
    found = only(run_posthoc(key, {**SMALL, "sets": ["test"]}, 0, None)).values["nll"]
    source = load_model_predictions("digits", seed=0)
    fitted = TemperatureScaling.fit(source.validation.logits[:300], source.validation.labels[:300])
    expected = evaluate(calibrated(fitted, source.tests["test"]), measures=["nll"]).metrics["nll"]
    assert found == pytest.approx(expected)


def test_reductions_are_what_the_measure_lost():
    key = {"source": "digits", "method": "temperature"}
    settings = {"measures": ["ece"], "reductions": ["ece"], "sets": ["noise"]}
    values = only(run_posthoc(key, settings, 0, None)).values
    before = evaluate(load_model_predictions("digits", seed=0).tests["noise"], measures=["ece"]).metrics[
        "ece"
    ]
    assert values["ece_reduction"] == pytest.approx(before - values["ece"])


def test_a_method_that_cannot_be_fitted_leaves_the_model_as_it_is_and_says_so(tmp_path):
    logits = np.eye(3)[np.arange(30) % 3] * 5
    right = Predictions(logits=logits, labels=np.arange(30) % 3)
    with pytest.raises(FitError):
        TemperatureScaling.fit(right.logits, right.labels, prior=0)
    save_predictions(right, tmp_path / "a.npz")
    key = {"source": f"files:{tmp_path}/a.npz,{tmp_path}/a.npz", "method": "temperature", "prior": 0}
    values = only(run_posthoc(key, SMALL, 0, None)).values
    assert values["fitted"] == 0
    assert values["nll"] == pytest.approx(evaluate(right, measures=["nll"]).metrics["nll"])


def test_a_method_that_needs_features_is_not_fitted_without_them():
    plain = load_model_predictions("iris/forest", seed=0).validation
    assert fit_or_identity("proximity", plain)[1] is False


def test_a_single_temperature_takes_the_objectives_of_trained_methods():
    validation = load_model_predictions("digits", seed=0).validation
    fitted = fit_by_name("temperature", validation, objective="mse")

    def squared(temperature):
        outcome = calibrated(TemperatureScaling(temperature), validation).outcomes()
        return float(((outcome.confidence - outcome.correct.double()) ** 2).mean())

    best = float(fitted.temperature)
    assert squared(best) <= min(squared(0.9 * best), squared(1.1 * best))


def test_an_unknown_method_is_refused():
    with pytest.raises(InputError, match="^methods: expected the name of a method, got 'magic'"):
        fit_by_name("magic", load_model_predictions("digits", seed=0).validation)


def test_options_in_the_name_of_a_method_reach_it_before_those_that_it_shares():
    settings = {**SMALL, "sets": ["test"], "options": {"smart": {"epochs": 3, "settled": 2.0}}}
    key = {"source": "digits", "indicator": "entropy"}
    named = only(run_posthoc({**key, "method": "smart( settled = 0.0 )"}, settings, 0, None))
    listed = {**key, "method": "smart", "epochs": 3, "settled": 0.0}
    assert named.labels == {"set": "test", "method": "smart(settled=0.0)"}
    assert named.values["nll"] == only(run_posthoc(listed, SMALL | {"sets": ["test"]}, 0, None)).values["nll"]


def test_an_objective_in_the_name_of_a_method_is_that_of_the_option():
    validation = load_model_predictions("digits", seed=0).validation
    named = fit_by_name("temperature(objective='mse')", validation)
    assert named.temperature == fit_by_name("temperature", validation, objective="mse").temperature


def test_notes_become_the_label_that_the_papers_use():
    key = {"source": "digits", "method": "smart", "objective": "nll", "epochs": 1}
    settings = {**SMALL, "sets": ["test"], "notes": {"objective": {"nll": "objective=nll"}}}
    assert only(run_posthoc(key, settings, 0, None)).labels["setting"] == "objective=nll"


@pytest.mark.parametrize("name", OWN)
def test_an_experiment_names_methods_options_and_workers_that_exist(name):
    experiment = load_experiment(name)
    assert experiment.worker in WORKERS
    for preset in experiment.presets:
        for job in experiment.jobs(preset, seeds=1):
            for method in [
                *job.settings.get("methods", ()),
                *([job.key["method"]] if "method" in job.key else []),
            ]:
                assert method in METHODS or (name == "attacks" and method in LOSSES)
            if job.worker == "posthoc":
                known = inspect.signature(METHODS[job.key["method"]].calibrator.fit).parameters
                given = {**job.settings.get("options", {}).get(job.key["method"], {}), **job.key}
                assert given.keys() - {"source", "method", "samples"} <= known.keys()


@pytest.mark.parametrize(
    "name", sorted(set(OWN) - {"posthoc_clinc", "posthoc_networks", "margin_groups", "calarena"})
)
def test_the_quick_version_needs_no_download(name):
    experiment = load_experiment(name)
    assert experiment.needs("quick") == ()
    for job in experiment.jobs("quick", seeds=1):
        assert ":" not in str(job.key.get("source", "")) or job.key["source"].startswith("synthetic:")
        assert "clinc" not in str(job.key.get("source", ""))


def test_real_predictions_are_not_trained_twice_in_one_process():
    first, second = (load_model_predictions("digits", seed=0).tests["noise"] for _ in range(2))
    assert first is second
