"""A whole run: files, kept epochs, losses of every kind, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch

from calibrant.data import load_predictions
from calibrant.errors import FormatError, InputError
from calibrant.evaluation import evaluate, nll_after_temperature
from calibrant.losses.names import make_loss
from calibrant.training import load_network, load_rows, train
from calibrant.training.datasets import load_dataset
from calibrant.training.folder import load_folder_config
from calibrant.training.models import make_model
from calibrant.training.models.small import MLP
from calibrant.training.run import Run
from tests.training.small import ENCODER, differing, final_weights, small_config

KEEP = ("training.epochs=6", "training.optimizer.lr=1.0", "training.schedule.name=constant")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """With all that can be measured besides."""
    config = small_config('data.corruptions=["contrast-3", "blur-5"]', "data.foreign_classes=[8, 9]")
    return train(config, tmp_path_factory.mktemp("run") / "full")


def test_a_run_leaves_its_files(run):
    assert sorted(str(p.relative_to(run.folder)) for p in run.folder.rglob("*") if p.is_file()) == [
        "checkpoint.json",
        "checkpoints/classifier-kept.safetensors",
        "config.toml",
        "dynamics.jsonl",
        "metrics.csv",
        "metrics.jsonl",
        "model.safetensors",
        "network.json",
        "predictions/foreign/held_out.npz",
        "predictions/shifted/blur-5.npz",
        "predictions/shifted/contrast-3.npz",
        "predictions/test.npz",
        "predictions/validation.npz",
    ]


def test_predictions_read_as_the_run_holds_them(run):
    for name, held in run.predictions.items():
        saved = load_predictions(run.folder / "predictions" / f"{name}.npz", need_labels=False)
        assert torch.equal(saved.to_logits(), held.to_logits())
        assert torch.equal(torch.as_tensor(saved.features), torch.as_tensor(held.features))
        assert saved.class_names == tuple("01234567")
        assert (saved.labels is None) == name.startswith("foreign/")


def test_predictions_carry_the_labels_of_their_part(run):
    splits = load_dataset("digits", validation=0.2, limit=200, foreign_classes=[8, 9])
    assert torch.equal(run.predictions["validation"].labels, splits.validation.labels)
    assert torch.equal(run.predictions["test"].labels, splits.test.labels)
    assert torch.equal(run.predictions["shifted/blur-5"].labels, splits.test.labels)


def test_the_saved_network_says_of_raw_images_what_the_predictions_say(run):
    splits = load_dataset(
        "digits", validation=0.2, limit=200, foreign_classes=[8, 9], corruptions=["contrast-3"]
    )
    network = load_network(run.folder)
    assert not network.training
    assert splits.test.inputs.dtype == torch.uint8
    parts = {"test": splits.test, "shifted/contrast-3": splits.shifted["contrast-3"]}
    for name, part in parts.items():
        with torch.no_grad():
            logits, features = network.logits_and_features(part.inputs)
        torch.testing.assert_close(logits, run.predictions[name].to_logits().float(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            features, torch.as_tensor(run.predictions[name].features).float(), rtol=1e-5, atol=1e-5
        )


def test_rows_have_every_epoch_and_equal_the_measures_of_the_predictions(run):
    metrics, dynamics = load_rows(run.folder)
    assert [row["epoch"] for row in metrics] == [row["epoch"] for row in dynamics] == [1, 2, 3]
    assert metrics == list(run.metrics)
    found = evaluate(run.predictions["validation"], measures=("nll", "ece", "accuracy")).metrics
    assert {name: metrics[-1][f"val_{name}"] for name in found} == pytest.approx(found)


def test_the_configuration_is_kept_with_the_run(run):
    assert load_folder_config(run.folder) == run.config


def test_equal_seeds_give_equal_runs_and_others_do_not(tmp_path):
    first, again, other = (
        train(small_config(f"seed={seed}"), tmp_path / name) for seed, name in ((1, "a"), (1, "b"), (2, "c"))
    )
    assert differing(final_weights(first.folder), final_weights(again.folder)) == []
    assert "model.head.weight" in differing(final_weights(first.folder), final_weights(other.folder))


@pytest.mark.parametrize("keep", ["nll", "nll_after_temperature", "accuracy", "brier"])
@pytest.mark.parametrize("after", [0, 3])
def test_the_weights_of_the_best_epoch_are_kept(tmp_path, keep, after):
    run = train(
        small_config(*KEEP, f"training.keep={keep}", f"training.keep_after={after}"), tmp_path / "run"
    )
    values = {row["epoch"]: row[f"val_{keep}"] for row in run.metrics if row["epoch"] > after}
    best = (max if keep == "accuracy" else min)(values.values())
    validation = run.predictions["validation"]
    if keep == "nll_after_temperature":
        kept = nll_after_temperature(validation.to_logits(), validation.labels)
    else:
        kept = evaluate(validation, measures=(keep,)).metrics[keep]
    assert kept == pytest.approx(best, rel=1e-5)
    assert json.loads((run.folder / "checkpoint.json").read_text())["best"]["epoch"] in [
        epoch for epoch, value in values.items() if value == best
    ]


def test_the_kept_epoch_is_not_always_the_last(tmp_path):
    """Without this, the test above would hold for a library that always keeps the last one."""
    values = {}
    for keep in ("nll", "last"):
        run = train(small_config(*KEEP, f"training.keep={keep}"), tmp_path / keep)
        values[keep] = evaluate(run.predictions["validation"], measures=("nll",)).metrics["nll"]
    assert values["nll"] < values["last"]


def test_the_last_epoch_is_kept_by_default(tmp_path):
    run = train(small_config(*KEEP), tmp_path / "run")
    found = evaluate(run.predictions["validation"], measures=("nll",)).metrics["nll"]
    assert found == pytest.approx(run.metrics[-1]["val_nll"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss", ["crl", "ols", "adafocal", "selective_risk", "cross_entropy + 0.5 * mdca", "seca"]
)
def test_losses_of_every_kind_learn_and_nobody_is_reminded_of_updates(tmp_path, loss, monkeypatch):
    monkeypatch.setattr("calibrant.losses.loss._EPOCH", 1)  # a warning would be an error
    epochs = ("training.epochs=8", "training.optimizer.lr=0.1", "data.limit=400")
    run = train(small_config(f"training.loss={loss}", *epochs), tmp_path / "run")
    assert run.metrics[-1]["val_accuracy"] > 2 * max(0.1, run.metrics[0]["val_accuracy"] / 2)
    assert run.metrics[-1]["val_accuracy"] > 0.4


def test_adafocal_s_exponents_of_each_epoch_follow_from_validation_alone(tmp_path):
    run = train(small_config("training.loss=adafocal(n_bins=5)", "training.epochs=3"), tmp_path / "run")
    told = [row["adafocal"] for row in load_rows(run.folder)[1]]
    for epoch, entry in enumerate(told):
        before = told[epoch - 1]["gammas"] if epoch else [1.0] * 5
        for old, gap, new in zip(before, entry["gap"], entry["gammas"], strict=True):
            moved = old * 2.718281828459045 ** (gap if old >= 0 else -gap)
            moved = min(max(moved, -2.0), 20.0)
            if abs(moved) < 0.2:
                moved = -0.2 if old >= 0 else 0.2
            assert new == pytest.approx(moved, rel=1e-5)
    # The gap of the last epoch is that of the predictions that the run ends with.
    loss = make_loss("adafocal(n_bins=5)", n_classes=10, n_samples=200)
    validation = run.predictions["validation"]
    loss.update(validation.to_logits(), validation.labels)
    assert loss.history[0]["gap"] == pytest.approx(told[-1]["gap"], abs=1e-5)
    assert loss.history[0]["edges"] == pytest.approx(told[-1]["edges"], abs=1e-5)


@pytest.fixture(scope="module")
def refcal(tmp_path_factory) -> Run:
    return train(small_config(*ENCODER, "encoder.epochs=4"), tmp_path_factory.mktemp("refcal") / "run")


def test_refcal_reports_refinement_after_both_stages(refcal):
    assert list(refcal.refinement) == ["encoder", "classifier"]
    for values in refcal.refinement.values():
        assert {"auroc_ovo", "auroc_correct"} <= values.keys()
        assert 0.5 < values["auroc_ovo"] <= 1
    expected = evaluate(refcal.predictions["test"], measures=("auroc_ovo",)).metrics["auroc_ovo"]
    assert refcal.refinement["classifier"]["auroc_ovo"] == pytest.approx(expected)


def test_refcal_measures_the_epochs_of_both_stages(refcal):
    assert [(row["stage"], row["epoch"]) for row in refcal.metrics] == [
        *(("encoder", epoch) for epoch in (1, 2, 3, 4)),
        *(("classifier", epoch) for epoch in (1, 2, 3)),
    ]
    assert refcal.metrics[3]["train_loss"] < refcal.metrics[0]["train_loss"]
    assert {row["stage"] for row in refcal.dynamics} == {"classifier"}


def test_a_loss_of_embeddings_is_refused_for_the_classifier(tmp_path):
    with pytest.raises(InputError, match=r"training\.loss: .* reads embeddings; put it into \[encoder\]"):
        train(small_config("training.loss=supervised_contrastive"), tmp_path / "run")


def test_a_loss_of_logits_is_refused_for_the_encoder(tmp_path):
    with pytest.raises(InputError, match=r"encoder\.loss: expected a loss of embeddings"):
        train(small_config("encoder.loss=focal"), tmp_path / "run")


def test_a_folder_with_a_run_is_refused(run):
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")}
    with pytest.raises(
        InputError, match=r"folder: expected a new folder.*contains a run; continue it with resume=True"
    ):
        train(run.config, run.folder)
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")} == before


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/run"):
        with pytest.raises(InputError, match="folder: expected a folder"):
            train(small_config(), tmp_path / place)


@pytest.mark.parametrize(
    ("change", "key"),
    [("training.epochs=4", "training.epochs"), ("model.options.hidden=[8]", "model.options.hidden")],
)
def test_going_on_with_another_configuration_names_the_key(run, change, key):
    with pytest.raises(InputError, match=rf"resume: .* got another {key};"):
        train(
            small_config('data.corruptions=["contrast-3", "blur-5"]', "data.foreign_classes=[8, 9]", change),
            run.folder,
            resume=True,
        )


def test_a_strategy_that_divides_weights_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"hardware\.strategy: expected auto or ddp"):
        train(small_config("hardware.strategy=fsdp"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_is_named(tmp_path):
    for read in (load_network, load_rows, load_folder_config):
        with pytest.raises(FormatError, match=str(tmp_path)):
            read(tmp_path)


def test_no_dynamics_if_none_are_wanted(tmp_path):
    run = train(small_config("output.dynamics=0", "output.features=false"), tmp_path / "run")
    assert run.dynamics == ()
    assert not (run.folder / "dynamics.jsonl").exists()
    assert run.predictions["test"].features is None


def test_gradients_are_clipped_to_the_asked_norm(tmp_path):
    start = train(small_config("training.optimizer.lr=1e-30", "training.epochs=1"), tmp_path / "start")
    plain = ("training.epochs=1", "training.batch_size=200", "training.schedule.name=constant")
    sgd = ("training.optimizer.momentum=0", "training.optimizer.weight_decay=0", "training.optimizer.lr=0.5")
    run = train(small_config(*plain, *sgd, "training.clip_gradient=0.01"), tmp_path / "run")
    before, after = final_weights(start.folder), final_weights(run.folder)
    moved = sum(float((after[name] - before[name]).double().square().sum()) for name in before)
    assert moved**0.5 == pytest.approx(0.5 * 0.01, rel=1e-3)


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("name", ["digits", "embeddings"])
def test_the_network_of_a_run_in_another_precision_says_what_its_predictions_say(tmp_path, precision, name):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    rows = rng.normal(size=(300, 5)) + labels[:, None]
    np.savez(
        tmp_path / "rows.npz",
        x_train=rows[:200],
        y_train=labels[:200],
        x_test=rows[200:],
        y_test=labels[200:],
    )
    path = {} if name == "digits" else {"path": str(tmp_path / "rows.npz")}
    changes = (f"data.name={name}", *(f"data.{key}={value}" for key, value in path.items()))
    run = train(small_config(*changes, f"hardware.precision={precision}"), tmp_path / "run")
    inputs = load_dataset(name, validation=0.2, **path).test.inputs
    network = load_network(run.folder)
    tolerance = 1e-5 if precision == "64-true" else 0.1
    with torch.no_grad():
        logits = network(inputs).float()
    torch.testing.assert_close(
        logits, run.predictions["test"].to_logits().float(), rtol=tolerance, atol=tolerance
    )


def test_a_refused_folder_is_refused_before_other_processes_are_started(run, monkeypatch):
    monkeypatch.setattr("lightning_fabric.Fabric.launch", lambda *_: pytest.fail("started"))
    two = ("hardware.devices=2", "hardware.strategy=ddp")
    with pytest.raises(InputError, match="contains a run"):
        train(small_config(*two), run.folder)


def test_code_that_a_folder_names_is_never_run(run, tmp_path, monkeypatch):
    folder = tmp_path / "stranger"
    shutil.copytree(run.folder, folder)
    saved = json.loads((folder / "network.json").read_text())
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\ndef make(**_): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("evil:make", "torch.hub:load", ["evil:make"]):
        (folder / "network.json").write_text(json.dumps(saved | {"model": {"name": name}}))
        with pytest.raises((InputError, FormatError), match="expected (the function|text)"):
            load_network(folder)
    assert not (tmp_path / "ran").exists()
    (folder / "network.json").write_text(json.dumps(saved | {"model": saved["model"] | {"name": "my:make"}}))
    name = saved["model"]["name"]
    own = load_network(folder, factory=lambda **sizes: make_model(name, **sizes))
    assert differing(own.state_dict(), load_network(run.folder).state_dict()) == []
    with pytest.raises(InputError, match="^factory: expected none"):
        load_network(run.folder, factory=MLP)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("n_classes", [1, 9, 10**9, 10**30, 2.5, "8", None]),
        ("shape", [[], [0], [10**6, 10**6, 10**6], [1, 8], "x", None]),
        ("kind", ["sound", None]),
        ("class_names", [["a"], "ab", [1] * 8]),
        ("words", ["ab", [1], {}]),
        (
            "model",
            [3, {}, {"name": "mlp", "options": {"hidden": [10**9]}}, {"name": "resnet20", "options": {}}],
        ),
        (
            "model",
            [{"name": "mlp", "options": {"hidden": hidden}} for hidden in ("x", [0.5], 3.5)],
        ),
        ("model", [{"name": "mlp", "options": {"depth": 10**9}}, {"name": "no such model"}, {"name": ""}]),
        ("other", [1]),
    ],
)
def test_a_network_that_the_weights_are_not_of_is_refused_with_its_field(run, tmp_path, field, values):
    for name in ("network.json", "model.safetensors"):
        shutil.copy(run.folder / name, tmp_path / name)
    saved = json.loads((run.folder / "network.json").read_text())
    for value in values:
        (tmp_path / "network.json").write_text(json.dumps(saved | {field: value}))
        with pytest.raises((FormatError, InputError)) as caught:
            load_network(tmp_path)
        assert "network.json: " in str(caught.value), value
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": "encoder"}, "stage: expected a stage of this run, got 'encoder'"),
        ({"epoch": 2, "best": None}, "epoch: expected 3, as the classifier has 3 epochs, got 2"),
        ({"epoch": 4}, "epoch: expected 3, as the classifier has 3 epochs, got 4"),
    ],
)
def test_a_checkpoint_that_the_configuration_has_not_is_refused(run, tmp_path, change, message):
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    path = folder / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FormatError, match=message):
        train(load_folder_config(folder), folder, resume=True)


def test_a_configuration_that_was_damaged_is_one_sentence(tmp_path):
    for text in ("a = " + "[" * 5000, "seed = " + "9" * 5000, "seed = 1e999", "training.epochs = 0", "\0"):
        (tmp_path / "config.toml").write_text(text)
        with pytest.raises(FormatError, match=r"config\.toml: expected the configuration of a run"):
            load_folder_config(tmp_path)
