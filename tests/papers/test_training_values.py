"""Numbers about the epochs of a run, by their definitions."""

from dataclasses import replace

import numpy as np
import pytest

from calibrant.metrics import top_k_error
from calibrant.papers.quantities import quantity
from calibrant.papers.training_values import method_values, training_values
from calibrant.training.outcome import assess
from calibrant.training.run import train
from tests.training.small import ENCODER, small_config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = small_config("training.loss=adafocal(gamma_max=1.2)", "training.epochs=6")
    config = replace(config, posthoc=replace(config.posthoc, methods=("temperature", "spline")))
    return train(config, tmp_path_factory.mktemp("run") / "adafocal")


def bins(train, val, *, gap=(0.1, -0.3), count=(30, 10)):
    """The bins of one epoch: means of training and validation samples, C - A, and validation counts."""
    return {"train_true": train, "confidence": val, "gap": list(gap), "count": list(count)}


def with_epochs(run, *rows):
    """The run with other dynamics; each row has what it does not name from the last epoch."""
    last = run.dynamics[-1]
    return replace(run, dynamics=tuple({**last, "epoch": n, **row} for n, row in enumerate(rows)))


def test_every_value_has_a_heading_of_its_own(run):
    names = {*training_values(run), "temperature", "top_5_error"}
    headings = {name: quantity(name).short for name in names}
    assert [name for name, short in headings.items() if short == name.replace("_", " ")] == ["temperature"]
    assert len(set(headings.values())) == len(headings)


def test_the_last_epoch_and_the_mean_of_all_are_those_of_the_dynamics(run):
    found = training_values(run)
    for name in ("train_entropy", "train_kl", "train_cosine"):
        assert found[name] == run.dynamics[-1][name]
        assert found[f"mean_{name}"] == pytest.approx(np.mean([row[name] for row in run.dynamics]))


def test_the_gap_of_bins_is_the_mean_over_validation_samples_and_empty_bins_count_nothing(run):
    few = with_epochs(
        run,
        {"bins": bins([0.5, 0.9], [0.5, 0.9])},
        {"bins": bins([0.5, 0.9], [0.5, None], gap=(0.2, None), count=(40, 0))},
    )
    found = training_values(few)
    assert found["val_bin_gap"] == pytest.approx(0.2)
    assert found["mean_val_bin_gap"] == pytest.approx((0.2 + (30 * 0.1 + 10 * 0.3) / 40) / 2)


def test_bins_correspond_if_training_and_validation_confidence_move_together(run):
    up = [0.30, 0.31, 0.35, 0.36, 0.40]
    together = [{"bins": bins([up[n], 0.9], [up[n] + 0.1, 0.9])} for n in range(5)]
    against = [{"bins": bins([up[n], 0.9], [0.8 - up[n], 0.9])} for n in range(5)]
    half = [{"bins": bins([up[n], up[n]], [up[n], 1 - up[n]])} for n in range(5)]
    found = [training_values(with_epochs(run, *rows)) for rows in (together, against, half)]
    # The second bin of the first two never changes, so it has no correlation.
    assert [each["bin_correspondence"] for each in found] == pytest.approx([1.0, -1.0, 0.0])
    assert found[0]["train_bin_confidence"] == pytest.approx((np.mean(up) + 0.9) / 2)
    assert found[0]["val_bin_confidence"] == pytest.approx((np.mean(up) + 1.0) / 2)


def test_bins_without_training_samples_do_not_correspond(run):
    rows = [{"bins": bins([None, 0.9], [0.4, 0.8])}] * 6
    found = training_values(with_epochs(run, *rows))
    assert found["bin_correspondence"] is None
    assert (found["train_bin_confidence"], found["val_bin_confidence"]) == pytest.approx((0.9, 0.8))
    empty = training_values(with_epochs(run, {"bins": bins([None, None], [0.4, 0.8])}))
    assert empty["train_bin_confidence"] is empty["val_bin_confidence"] is None


def test_the_exponents_are_those_of_the_last_update(run):
    gammas = [1.2, -0.5, 0.7, 1.2, 0.9]
    found = training_values(with_epochs(run, {"adafocal": {"gammas": gammas}}))
    shown = {name: value for name, value in found.items() if name.startswith("gamma_")}
    assert shown == pytest.approx(
        {
            "gamma_lowest_bin": 1.2,
            "gamma_highest_bin": 0.9,
            "gamma_difference": 0.3,
            "gamma_smallest": -0.5,
            "gamma_largest": 1.2,
            "gamma_at_limit": 0.4,
            "gamma_inverse": 0.2,
        }
    )


def test_the_exponents_of_a_real_run_are_within_the_limits_of_its_loss(run):
    found = training_values(run)
    assert found["gamma_largest"] <= 1.2 + 1e-6
    assert found["gamma_smallest"] >= -2
    assert found["gamma_difference"] == pytest.approx(found["gamma_lowest_bin"] - found["gamma_highest_bin"])


def test_other_losses_have_no_exponents_and_a_run_without_dynamics_no_values(run, tmp_path):
    plain = train(small_config("training.loss=cross_entropy", "training.epochs=1"), tmp_path / "plain")
    assert not [name for name in training_values(plain) if name.startswith("gamma_")]
    assert training_values(replace(run, dynamics=())) == {}


def test_epochs_of_an_encoder_have_no_dynamics(tmp_path):
    staged = train(small_config(*ENCODER, "training.epochs=2"), tmp_path / "staged")
    assert training_values(staged)["train_entropy"] == staged.dynamics[-1]["train_entropy"]
    assert {row["stage"] for row in staged.dynamics} == {"classifier"}


def test_temperature_and_top_5_error_are_those_of_each_fitted_method(run):
    found = {result.name: method_values(result) for result in assess(run).comparison.results}
    test = run.predictions["test"]
    plain = top_k_error(np.exp(test.to_logits().log_softmax(dim=1).numpy()), test.labels, k=5)
    assert found["uncalibrated"] == pytest.approx({"top_5_error": plain})
    assert found["temperature"]["top_5_error"] == pytest.approx(plain)
    assert found["temperature"]["temperature"] > 0
    assert "temperature" not in found["spline"]


def test_few_classes_have_no_top_5_error(tmp_path):
    config = small_config("training.epochs=1", "data.foreign_classes=[4, 5, 6, 7, 8, 9]")
    config = replace(config, posthoc=replace(config.posthoc, methods=("temperature",)))
    few = assess(train(config, tmp_path / "few"))
    assert all("top_5_error" not in method_values(result) for result in few.comparison.results)
