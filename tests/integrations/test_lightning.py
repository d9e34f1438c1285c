"""The callback for Lightning against plain loops over the same batches."""

import copy
import importlib
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.errors import InputError
from calibrant.evaluation import nll_after_temperature
from calibrant.losses import AdaFocalLoss, CRLLoss, CrossEntropyLoss, Loss, MDCALoss, OLSLoss
from calibrant.metrics import (
    accuracy,
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
)

pl = pytest.importorskip("lightning.pytorch")

from calibrant.integrations.lightning import CalibrationCallback  # noqa: E402  # only with Lightning
from tests.integrations.small_lightning import (  # noqa: E402
    EPOCHS,
    TRAIN,
    VAL,
    Module,
    as_dictionary,
    loaders,
    network,
)

pytestmark = [
    # Lightning looks at batches in a way that this version of torch will give up.
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated"),
    # Loaders here have no workers, and so few batches that all is logged at the end of the epoch.
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    # Tests resume with other callbacks than they stopped with.
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used"),
]


def trainer_of(folder, *callbacks, **options):
    settings = {
        "max_epochs": EPOCHS,
        "enable_checkpointing": any(isinstance(c, pl.callbacks.ModelCheckpoint) for c in callbacks),
        "num_sanity_val_steps": 0,
    } | options
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **settings,
    )


def fit(folder, loss, *, callback=None, checkpoint=None, others=(), hide=False, **options):
    module = Module(loss, hide=hide)
    trainer = trainer_of(folder, callback or CalibrationCallback(loss if hide else None), *others, **options)
    trainer.fit(module, *loaders(), ckpt_path=checkpoint, weights_only=True if checkpoint else None)
    return module, trainer


def plain_loop(loss, *, epochs=EPOCHS, updates=range(100)):
    """The same training without Lightning; the loss is updated after these epochs."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(epochs):
        for inputs, labels, indices in DataLoader(TRAIN, batch_size=20):
            optimizer.zero_grad()
            loss(model(inputs), labels, **({"indices": indices} if loss.needs else {})).backward()
            optimizer.step()
        if epoch in updates:
            with torch.no_grad():
                loss.update(model(VAL.tensors[0]), VAL.tensors[1])
    return model


LOSSES = {
    "adafocal": lambda: AdaFocalLoss(n_bins=5),
    "ols": lambda: OLSLoss(3),
    "crl": lambda: CrossEntropyLoss() + CRLLoss(60),
    "sum": lambda: AdaFocalLoss(n_bins=5) + 0.5 * OLSLoss(3) + MDCALoss(),
}


def test_measures_count_samples_by_weights(tmp_path):
    given = torch.arange(45.0)

    class Weighted(Module):
        def validation_step(self, batch, _):
            inputs, labels, indices = batch
            labels = torch.where(indices == 7, -100, labels)
            return {"logits": self.model(inputs), "labels": labels, "weights": given[indices]}

    module = Weighted(CrossEntropyLoss())
    trainer = trainer_of(tmp_path, CalibrationCallback(measures=["nll", "ece", "aurc"]), max_epochs=1)
    trainer.fit(module, *loaders())
    kept = torch.arange(45) != 7
    logits, labels = module.model(VAL.tensors[0]).detach()[kept], VAL.tensors[1][kept]
    nll = negative_log_likelihood(logits=logits, labels=labels, weights=given[kept])
    assert float(trainer.callback_metrics["val_nll"]) == pytest.approx(nll, rel=1e-5)
    probs = torch.softmax(logits, dim=1)
    ece = expected_calibration_error(probs, labels, weights=given[kept])
    assert float(trainer.callback_metrics["val_ece"]) == pytest.approx(ece, rel=1e-5)
    assert trainer.callback_metrics["val_aurc"].isnan()


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_ends_as_in_a_plain_loop(name, hide, tmp_path):
    expected, loss = LOSSES[name](), LOSSES[name]()
    model = plain_loop(expected)
    module, _ = fit(tmp_path, loss, hide=hide)
    torch.testing.assert_close(loss.state_dict(), expected.state_dict())
    torch.testing.assert_close(module.model.state_dict(), model.state_dict())
    assert len(loss.history) == len(expected.history) >= EPOCHS


def test_the_gammas_move_and_nobody_is_reminded_of_updates(tmp_path, monkeypatch):
    monkeypatch.setattr("calibrant.losses.loss._EPOCH", 1)  # a warning would be an error
    loss = AdaFocalLoss(n_bins=5)
    fit(tmp_path, loss)
    assert not torch.equal(loss.gammas, AdaFocalLoss(n_bins=5).gammas)


def test_the_sanity_check_updates_nothing_and_logs_nothing(tmp_path):
    loss = AdaFocalLoss(n_bins=5)
    callback = CalibrationCallback()
    trainer = trainer_of(tmp_path, callback, num_sanity_val_steps=2)
    seen = []

    class Look(pl.Callback):
        def on_sanity_check_end(self, trainer, _):
            seen.append((len(loss.history), dict(trainer.callback_metrics)))

    trainer.callbacks.append(Look())
    trainer.fit(Module(loss), *loaders())
    assert seen == [(0, {})]
    assert len(loss.history) == EPOCHS


def test_logged_measures_are_those_of_the_predictions(tmp_path):
    module, trainer = fit(tmp_path, CrossEntropyLoss())
    with torch.no_grad():
        probs = module.model(VAL.tensors[0]).softmax(dim=1)
    labels = VAL.tensors[1]
    expected = {
        "val_accuracy": accuracy(probs, labels),
        "val_nll": negative_log_likelihood(probs, labels),
        "val_nll_after_temperature": nll_after_temperature(probs.log(), labels),
        "val_brier": brier_score(probs, labels),
        "val_ece": expected_calibration_error(probs, labels),
        "val_ece_equal_mass": expected_calibration_error(probs, labels, binning="mass"),
    }
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert logged == pytest.approx(expected, abs=1e-5)


def test_measures_are_chosen_by_name_and_validate_logs_them_without_an_update(tmp_path):
    loss = AdaFocalLoss(n_bins=5)
    module = Module(loss)
    callback = CalibrationCallback(measures=["classwise_ece", "ece"], n_bins=4, prefix="held_out/")
    trainer = trainer_of(tmp_path, callback)
    trainer.validate(module, loaders()[1], verbose=False)
    with torch.no_grad():
        probs = module.model(VAL.tensors[0]).softmax(dim=1)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert logged == pytest.approx(
        {
            "held_out/classwise_ece": classwise_calibration_error(probs, VAL.tensors[1], n_bins=4),
            "held_out/ece": expected_calibration_error(probs, VAL.tensors[1], n_bins=4),
        },
        abs=1e-5,
    )
    assert loss.history == []


@pytest.mark.parametrize(("prefix", "logged_as"), [("val_", "test_"), ("held_out/", "test_held_out/")])
def test_a_test_logs_the_measures_of_its_predictions_and_updates_nothing(prefix, logged_as, tmp_path):
    loss = AdaFocalLoss(n_bins=5)
    module = Module(loss)
    module.test_step = module.validation_step
    trainer = trainer_of(tmp_path, CalibrationCallback(measures=["ece", "nll"], prefix=prefix))
    trainer.test(module, loaders()[1], verbose=False)
    with torch.no_grad():
        probs = module.model(VAL.tensors[0]).softmax(dim=1)
    labels = VAL.tensors[1]
    expected = {
        "ece": expected_calibration_error(probs, labels),
        "nll": negative_log_likelihood(probs, labels),
    }
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert logged == pytest.approx(
        {f"{logged_as}{name}": value for name, value in expected.items()}, abs=1e-5
    )
    assert loss.history == []


def test_a_test_step_without_logits_is_noted_and_nothing_is_logged(tmp_path):
    module = Module(CrossEntropyLoss())
    module.test_step = lambda *_: None
    trainer = trainer_of(tmp_path, CalibrationCallback())
    with pytest.warns(UserWarning, match="^test_step: expected .*; no calibration measures are logged$"):
        trainer.test(module, loaders()[1], verbose=False)
    assert not trainer.callback_metrics


@pytest.mark.parametrize(
    "outputs",
    [
        lambda logits, labels: (logits, labels),
        lambda logits, labels: [logits, labels],
        lambda logits, labels: {"logits": logits, "targets": labels, "loss": logits.sum()},
    ],
)
def test_validation_step_may_return_a_pair_or_targets(outputs, tmp_path):
    expected, loss = AdaFocalLoss(n_bins=5), AdaFocalLoss(n_bins=5)
    plain_loop(expected)
    trainer_of(tmp_path, CalibrationCallback()).fit(Module(loss, outputs=outputs), *loaders())
    torch.testing.assert_close(loss.gammas, expected.gammas)


@pytest.mark.parametrize(
    ("outputs", "got"),
    [
        (lambda *_: None, "NoneType"),
        (lambda logits, _: logits.sum(), "Tensor"),
        (lambda logits, _: {"loss": logits.sum()}, "a dictionary of loss"),
    ],
)
def test_outputs_without_logits_are_refused_before_training_starts(outputs, got, tmp_path):
    module = Module(AdaFocalLoss(), outputs=outputs)
    before = copy.deepcopy(module.model.state_dict())
    trainer = trainer_of(tmp_path, CalibrationCallback(), num_sanity_val_steps=1)
    with pytest.raises(InputError, match=f"^validation_step: expected .*, got {got}; return"):
        trainer.fit(module, *loaders())
    torch.testing.assert_close(module.model.state_dict(), before)


@pytest.mark.parametrize("saved_after", ["validation", "epoch"])
@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(name, hide, saved_after, tmp_path):
    expected, first, second = LOSSES[name](), LOSSES[name](), LOSSES[name]()
    model = plain_loop(expected)
    keep = pl.callbacks.ModelCheckpoint(
        tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=saved_after == "epoch"
    )
    fit(tmp_path, first, hide=hide, others=[keep])
    module, _ = fit(tmp_path, second, hide=hide, checkpoint=tmp_path / "epoch=0.ckpt", num_sanity_val_steps=2)
    torch.testing.assert_close(second.state_dict(), expected.state_dict())
    torch.testing.assert_close(module.model.state_dict(), model.state_dict())
    assert second.history == first.history


def test_of_several_validations_in_an_epoch_the_last_one_counts(tmp_path):
    expected, loss = AdaFocalLoss(n_bins=5), AdaFocalLoss(n_bins=5)
    plain_loop(expected)
    fit(tmp_path, loss, val_check_interval=1)
    torch.testing.assert_close(loss.state_dict(), expected.state_dict())


def test_a_validation_before_the_end_of_an_epoch_serves_that_epoch(tmp_path):
    loss, seen = AdaFocalLoss(n_bins=5), []

    class Look(pl.Callback):
        def on_validation_end(self, _, pl_module):
            with torch.no_grad():
                seen.append(pl_module.model(VAL.tensors[0]))

    fit(tmp_path, loss, val_check_interval=2, others=[Look()])  # of three batches
    expected = AdaFocalLoss(n_bins=5)
    for logits in seen:
        expected.update(logits, VAL.tensors[1])
    assert len(seen) == EPOCHS
    torch.testing.assert_close(loss.state_dict(), expected.state_dict())


def test_a_loss_that_validates_waits_for_an_epoch_with_validation(tmp_path):
    expected, loss = AdaFocalLoss(n_bins=5), AdaFocalLoss(n_bins=5)
    plain_loop(expected, epochs=4, updates=(1, 3))
    fit(tmp_path, loss, max_epochs=4, check_val_every_n_epoch=2)
    torch.testing.assert_close(loss.state_dict(), expected.state_dict())
    assert len(loss.history) == 2


@pytest.mark.parametrize("options", [{"check_val_every_n_epoch": 2}, {"limit_val_batches": 0}])
def test_a_loss_that_does_not_validate_is_updated_in_every_epoch(options, tmp_path):
    expected, loss = OLSLoss(3), OLSLoss(3)
    plain_loop(expected, epochs=4)
    fit(tmp_path, loss, max_epochs=4, **options)
    torch.testing.assert_close(loss.state_dict(), expected.state_dict())
    assert len(loss.history) == 4


def test_a_callback_used_twice_updates_the_second_loss_too(tmp_path):
    callback = CalibrationCallback()
    first, second = OLSLoss(3), OLSLoss(3)
    fit(tmp_path, first, callback=callback, max_epochs=1)
    fit(tmp_path, second, callback=callback, max_epochs=1)
    assert len(second.history) == 1


def test_a_trainer_without_validation_is_refused_for_a_loss_that_needs_it(tmp_path):
    with pytest.raises(InputError, match="^loss: expected a trainer that validates"):
        fit(tmp_path, AdaFocalLoss(), limit_val_batches=0)


def test_two_losses_in_a_module_must_be_told_apart(tmp_path):
    module = Module(AdaFocalLoss(n_bins=5))
    module.other = AdaFocalLoss(n_bins=5)
    with pytest.raises(InputError, match="^loss: expected one Calibrant loss in the module, got 2"):
        trainer_of(tmp_path, CalibrationCallback()).fit(module, *loaders())
    trainer_of(tmp_path, CalibrationCallback(module.other)).fit(module, *loaders())
    assert (len(module.losses[0].history), len(module.other.history)) == (0, EPOCHS)


class Rescaled(Loss):
    """A loss that keeps a tensor made from validation logits, and multiplies with it in training."""

    validates = True
    scale = None

    def update(self, logits=None, labels=None):
        assert len(logits) == len(labels)
        self.scale = logits.abs().mean()

    def forward(self, logits, labels):
        return nn.functional.cross_entropy(logits if self.scale is None else logits * self.scale, labels)


def test_a_loss_of_ones_own_can_train_with_what_it_keeps_of_validation(tmp_path):
    loss, expected = Rescaled(), Rescaled()
    plain_loop(expected)
    fit(tmp_path, loss)
    torch.testing.assert_close(loss.scale, expected.scale)


def test_ignored_labels_count_for_nothing(tmp_path):
    labels = VAL.tensors[1].clone()
    labels[::3] = -100
    loss, kept = AdaFocalLoss(n_bins=5), labels != -100
    loader = DataLoader(TensorDataset(VAL.tensors[0], labels), batch_size=20)
    module, trainer = Module(loss), trainer_of(tmp_path, CalibrationCallback(measures="ece"))
    trainer.validate(module, loader, verbose=False)
    with torch.no_grad():
        probs = module.model(VAL.tensors[0][kept]).softmax(dim=1)
    expected = expected_calibration_error(probs, labels[kept])
    assert float(trainer.callback_metrics["val_ece"]) == pytest.approx(expected, abs=1e-5)


def test_predictions_that_are_not_finite_are_logged_as_nan(tmp_path):
    module = Module(CrossEntropyLoss(), outputs=lambda logits, labels: (logits * torch.inf, labels))
    trainer = trainer_of(tmp_path, CalibrationCallback())
    trainer.validate(module, loaders()[1], verbose=False)
    assert all(value.isnan() for value in trainer.callback_metrics.values())


def test_several_processes_keep_what_each_notes_in_a_loss_within_the_module(tmp_path):
    module = Module(OLSLoss(3))
    for _ in range(2):
        trainer_of(tmp_path, CalibrationCallback(), max_epochs=1).fit(module, *loaders())
    # What DistributedDataParallel reads when it wraps the module.
    assert sorted(module._ddp_params_and_buffers_to_ignore) == ["losses.0.soft_labels", "losses.0.sums"]


def test_an_unknown_measure_and_a_foreign_loss_are_refused():
    with pytest.raises(InputError, match="^measures: .*'ecee'"):
        CalibrationCallback(measures=["ecee"])
    with pytest.raises(InputError, match="^loss: expected a Calibrant loss, got CrossEntropyLoss"):
        CalibrationCallback(nn.CrossEntropyLoss())


def test_the_package_by_its_older_name_takes_the_callback_too(tmp_path):
    older = pytest.importorskip("pytorch_lightning")

    class OlderModule(older.LightningModule):
        training_step, validation_step = Module.training_step, Module.validation_step
        configure_optimizers = Module.configure_optimizers

        def __init__(self, loss):
            super().__init__()
            self.model, self.losses, self.outputs = network(), nn.ModuleList([loss]), as_dictionary

    expected, loss = AdaFocalLoss(n_bins=5), AdaFocalLoss(n_bins=5)
    plain_loop(expected)
    trainer = older.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[CalibrationCallback()],
    )
    trainer.fit(OlderModule(loss), *loaders())
    torch.testing.assert_close(loss.gammas, expected.gammas)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "calibrant.integrations.lightning")
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError, match=r"^lightning: expected the package lightning, got none; .*'calibrant\[train\]'$"
    ):
        importlib.import_module("calibrant.integrations.lightning")


def test_the_package_by_its_older_name_is_enough(monkeypatch):
    older = pytest.importorskip("pytorch_lightning")
    monkeypatch.delitem(sys.modules, "calibrant.integrations.lightning")
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    module = importlib.import_module("calibrant.integrations.lightning")
    assert issubclass(module.CalibrationCallback, older.Callback)
