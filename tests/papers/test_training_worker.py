"""The worker that trains."""

from pathlib import Path
from typing import Any

import pytest

from calibrant.errors import InputError
from calibrant.papers.training import configurations, run_training
from calibrant.training.stage import Trainer

SETTINGS: dict[str, Any] = {
    "config": {
        "output": {"tensorboard": False, "dynamics": 0},
        "posthoc": {"methods": ["temperature"]},
        "hardware": {"accelerator": "cpu"},
    },
    "tasks": {
        "digits": {
            "data": {"name": "digits", "limit": 200, "corruptions": ["contrast-3"], "foreign_classes": [9]},
            "model": {"name": "mlp", "options": {"hidden": [16]}},
            "training": {"epochs": 2, "batch_size": 50, "augment": False},
        }
    },
    "recipes": {"refcal": {"encoder": {"epochs": 1}, "training": {"loss": "brier"}}},
}
KEY = {"task": "digits", "method": "focal"}


def configuration(key, settings, seed, data):
    """The only configuration of a method without candidates."""
    (only,) = configurations(key, settings, seed, data)
    return only


def test_task_method_and_further_keys_come_on_top_of_one_another():
    found = configuration({**KEY, "training.optimizer.lr": 0.5}, SETTINGS, 3, None)
    assert found["seed"] == 3
    assert found["training"] == {
        "epochs": 2, "batch_size": 50, "augment": False, "loss": "focal", "optimizer": {"lr": 0.5},
    }  # fmt: skip
    assert found["data"]["limit"] == 200


def test_a_recipe_is_more_than_a_loss():
    found = configuration({**KEY, "method": "refcal"}, SETTINGS, 0, None)
    assert found["encoder"] == {"epochs": 1}
    assert found["training"]["loss"] == "brier"


def test_a_recipe_with_candidates_is_one_configuration_for_each():
    recipes = {
        "focal, chosen": {"training": {"epochs": 7}, "candidates": ["focal(gamma=1)", "focal(gamma=5)"]}
    }
    found = configurations({**KEY, "method": "focal, chosen"}, {**SETTINGS, "recipes": recipes}, 0, None)
    assert [table["training"]["loss"] for table in found] == ["focal(gamma=1)", "focal(gamma=5)"]
    assert all(table["training"]["epochs"] == 7 for table in found)


def test_the_candidate_of_lowest_validation_nll_is_measured():
    # After two epochs from the same weights, a weaker gradient has learned less.
    recipes = {"chosen": {"candidates": ["focal(gamma=20)", "focal(gamma=0.5)", "focal(gamma=8)"]}}
    settings = {**SETTINGS, "recipes": recipes}
    (chosen, _), (alone, _) = (
        run_training({**KEY, "method": method}, settings, 0, None)
        for method in ("chosen", "focal(gamma=0.5)")
    )
    assert chosen.values["gamma"] == 0.5
    assert "gamma" not in alone.values
    assert chosen.values["nll"] == alone.values["nll"]


def test_the_folder_of_data_is_put_where_it_is_named():
    tasks = {"digits": {"data": {"path": "{data}/x", "foreign": {"y": "image_folder:{data}/y"}}}}
    found = configuration(KEY, {**SETTINGS, "tasks": tasks}, 0, Path("/here"))
    assert found["data"] == {"path": "/here/x", "foreign": {"y": "image_folder:/here/y"}}


def test_a_network_that_was_kept_is_not_trained_again(tmp_path, monkeypatch):
    first = list(run_training(KEY, SETTINGS, 0, None, runs=tmp_path))
    monkeypatch.setattr(Trainer, "epoch", lambda *_: pytest.fail("trained again"))
    settings = {**SETTINGS, "config": {**SETTINGS["config"], "posthoc": {"methods": ["ensemble"]}}}
    again = list(run_training(KEY, settings, 0, None, runs=tmp_path))
    assert again[0].values["nll"] == first[0].values["nll"]
    assert [record.labels["posthoc"] for record in again] == ["uncalibrated", "ensemble"]


def test_another_seed_or_loss_is_another_network(tmp_path):
    for key, seed in ((KEY, 0), (KEY, 1), ({**KEY, "method": "brier"}, 0)):
        list(run_training(key, SETTINGS, seed, None, runs=tmp_path))
    assert len(list(tmp_path.iterdir())) == 3


def test_rows_keep_the_regime_and_draws_of_test_shifted_and_foreign_samples():
    config = {**SETTINGS["config"], "output": {"tensorboard": False, "dynamics": 100}}
    plain, repaired = run_training(KEY, {**SETTINGS, "config": config}, 0, None)
    assert plain.values["overconfidence"] == plain.values["mean_confidence"] - plain.values["accuracy"]
    assert 0 < plain.values["train_accuracy"] <= 1
    assert {"ece", "auroc_ovo", "shifted_ece", "ood_auroc"} <= set(plain.draws)
    assert {"ece", "accuracy"} <= set(repaired.draws)
    assert plain.draws["accuracy"] == repaired.draws["accuracy"]


def test_an_unknown_task_is_refused():
    with pytest.raises(InputError, match="task: expected one of digits, got 'numbers'"):
        configuration({**KEY, "task": "numbers"}, SETTINGS, 0, None)


def test_records_hold_measures_shift_detection_and_refinement_for_each_method():
    records = list(run_training({**KEY, "method": "refcal"}, SETTINGS, 0, None))
    assert [record.labels for record in records] == [{"posthoc": "uncalibrated"}, {"posthoc": "temperature"}]
    names = {"accuracy", "ece", "smece", "adaptive_ece", "encoder_auroc_ovo"}
    names |= {"shifted_ece", "shifted_accuracy", "shifted_smece", "shifted_adaptive_ece"}
    names |= {"ood_auroc", "ood_auroc_entropy", "shifted_ood_auroc", "shifted_ood_auroc_entropy"}
    assert all(names <= set(record.values) for record in records)
    assert records[0].values["accuracy"] == records[1].values["accuracy"]
    assert records[0].values["ece"] != records[1].values["ece"]


def test_the_same_seed_gives_the_same_numbers_and_another_one_others():
    def values(seed):
        found = [dict(record.values) for record in run_training(KEY, SETTINGS, seed, None)]
        return [{name: value for name, value in each.items() if "seconds" not in name} for each in found]

    assert values(1) == values(1) != values(2)
