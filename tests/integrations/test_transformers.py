"""The Trainer of Hugging Face with Calibrant's losses, against plain loops over the same batches."""

import gc
import importlib
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from calibrant.errors import FormatError, InputError
from calibrant.evaluation import nll_after_temperature
from calibrant.losses import AdaFocalLoss, BrierLoss, CRLLoss, CrossEntropyLoss, FocalLoss, OLSLoss
from calibrant.metrics import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from calibrant.integrations.transformers import (  # noqa: E402  # only with the package
    LOSS_FILE,
    CalibrationTrainerMixin,
)
from tests.integrations.small_transformers import (  # noqa: E402
    BATCH,
    EPOCHS,
    RATE,
    TRAIN,
    VAL,
    InOrder,
    OrderedTrainer,
    classifier,
    trainer_of,
)


@pytest.fixture(autouse=True, scope="module")
def _fast_garbage_collection():
    """Exclude imported objects from the garbage collection that every ``train()`` runs; it took most time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


LABELS = torch.tensor([row["labels"] for row in VAL])


def several(rows):
    """Texts with the labels of all topics that have two words in them: none, one or more."""
    topics = 2 + torch.arange(3)[:, None]
    return [
        {"input_ids": row["input_ids"], "labels": ((row["input_ids"] // 5 == topics).sum(dim=1) > 1).float()}
        for row in rows
    ]


def logits_of(model, rows=VAL):
    model.eval()
    with torch.no_grad():
        return model(input_ids=torch.stack([row["input_ids"] for row in rows])).logits


def plain_loop(loss, *, epochs=EPOCHS, accumulate=1):
    """The same training by hand; a step takes the mean over the samples of ``accumulate`` batches."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(epochs):
        model.train()
        for start in range(0, len(TRAIN), BATCH * accumulate):
            step = TRAIN[start : start + BATCH * accumulate]
            optimizer.zero_grad()
            for first in range(0, len(step), BATCH):
                rows = step[first : first + BATCH]
                logits = model(input_ids=torch.stack([row["input_ids"] for row in rows])).logits
                labels, indices = (torch.tensor([row[key] for row in rows]) for key in ("labels", "indices"))
                value = loss(logits, labels, **({"indices": indices} if loss.needs else {}))
                (value * len(rows) / len(step)).backward()
            optimizer.step()
        loss.update(logits_of(model), LABELS)
    return model


LOSSES = {
    "adafocal": lambda: AdaFocalLoss(n_bins=5),
    "ols": lambda: OLSLoss(3),
    "crl": lambda: CrossEntropyLoss() + CRLLoss(len(TRAIN)),
    "sum": lambda: AdaFocalLoss(n_bins=5) + 0.5 * OLSLoss(3) + CRLLoss(len(TRAIN)),
}


@pytest.mark.slow
@pytest.mark.parametrize("eval_strategy", ["epoch", "no"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_ends_as_in_a_plain_loop(name, eval_strategy, tmp_path):
    expected, loss = LOSSES[name](), LOSSES[name]()
    model = plain_loop(expected)
    trainer = trainer_of(tmp_path, loss, eval_strategy=eval_strategy)
    trainer.train()
    torch.testing.assert_close(loss.state_dict(), expected.state_dict(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(trainer.model.state_dict(), model.state_dict(), atol=1e-5, rtol=1e-4)
    assert len(loss.history) == len(expected.history) >= EPOCHS


def test_the_gammas_move_and_nobody_is_reminded_of_updates(tmp_path, monkeypatch):
    monkeypatch.setattr("calibrant.losses.loss._EPOCH", 1)  # a warning would be an error
    loss = AdaFocalLoss(n_bins=5)
    trainer_of(tmp_path, loss).train()
    assert not torch.equal(loss.gammas, AdaFocalLoss(n_bins=5).gammas)


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [2, 3])
def test_accumulated_batches_weigh_as_many_samples_as_they_have(accumulate, tmp_path):
    # 56 samples are three batches of 16 and one of 8.
    expected, loss = AdaFocalLoss(n_bins=5), AdaFocalLoss(n_bins=5)
    model = plain_loop(expected, accumulate=accumulate)
    trainer = trainer_of(tmp_path, loss, gradient_accumulation_steps=accumulate)
    trainer.train()
    torch.testing.assert_close(trainer.model.state_dict(), model.state_dict(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(loss.gammas, expected.gammas, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["single_label_classification", "multi_label_classification"])
def test_cross_entropy_trains_as_the_model_with_its_own_loss(task, tmp_path):
    class PlainTrainer(InOrder, transformers.Trainer):
        def __init__(self, *, calibration_loss, **kwargs):
            del calibration_loss
            super().__init__(**kwargs)

    train, val = (several(TRAIN), several(VAL)) if task.startswith("multi") else (TRAIN, VAL)
    sets = {"train": train, "val": val}
    plain = trainer_of(tmp_path, None, kind=PlainTrainer, model=classifier(problem_type=task), **sets)
    ours = trainer_of(tmp_path, "cross_entropy", model=classifier(problem_type=task), **sets)
    losses = [trainer.train().training_loss for trainer in (plain, ours)]
    torch.testing.assert_close(ours.model.state_dict(), plain.model.state_dict(), atol=1e-5, rtol=1e-5)
    assert ours.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-5)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_evaluation_has_the_measures_of_the_predictions(tmp_path):
    trainer = trainer_of(tmp_path, "cross_entropy")
    trainer.train()
    metrics = trainer.evaluate()
    probs = logits_of(trainer.model).softmax(dim=1)
    expected = {
        "eval_accuracy": accuracy(probs, LABELS),
        "eval_nll": negative_log_likelihood(probs, LABELS),
        "eval_nll_after_temperature": nll_after_temperature(probs.log(), LABELS),
        "eval_brier": brier_score(probs, LABELS),
        "eval_ece": expected_calibration_error(probs, LABELS),
        "eval_ece_equal_mass": expected_calibration_error(probs, LABELS, binning="mass"),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    logged = [entry for entry in trainer.state.log_history if "eval_ece" in entry]
    assert len(logged) == EPOCHS + 1  # before the loggers see it, each epoch and once by hand
    assert trainer.predict(VAL).metrics["test_ece"] == pytest.approx(expected["eval_ece"], abs=1e-5)


def test_measures_can_be_chosen_and_the_users_own_are_left_alone(tmp_path):
    extra = {
        "calibration_measures": ["accuracy", "ece"],
        "calibration_bins": 4,
        "compute_metrics": lambda prediction: {"accuracy": -1.0, "n": len(prediction.label_ids)},
    }
    trainer = trainer_of(tmp_path, "brier", extra=extra)
    metrics = trainer.evaluate()
    probs = logits_of(trainer.model).softmax(dim=1)
    assert metrics["eval_accuracy"] == -1
    assert metrics["eval_n"] == len(VAL)
    assert metrics["eval_ece"] == pytest.approx(expected_calibration_error(probs, LABELS, n_bins=4), abs=1e-5)
    assert "eval_nll" not in metrics


@pytest.mark.slow
@pytest.mark.parametrize("eval_strategy", ["epoch", "steps", "no"])
def test_the_validation_set_is_predicted_once_per_epoch(eval_strategy, tmp_path):
    loss = AdaFocalLoss(n_bins=5)
    trainer = trainer_of(tmp_path, loss, eval_strategy=eval_strategy, eval_steps=4)  # an epoch's steps
    seen = []
    trainer.add_callback(counter(seen))
    trainer.train()
    assert len(seen) == EPOCHS * 3  # batches of the validation set
    assert len(loss.history) == EPOCHS


def counter(seen):
    class Counter(transformers.TrainerCallback):
        def on_prediction_step(self, *_, **__):
            seen.append(1)

    return Counter()


@pytest.mark.slow
@pytest.mark.parametrize("save", ["epoch", "steps"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(name, save, tmp_path):
    whole = LOSSES[name]()
    options = {"save_strategy": save, "save_steps": 2}
    trainer_of(tmp_path / "whole", whole, **options).train()
    # Four steps are an epoch: 4 is its end, where "steps" saves before the update, and 6 is within the next.
    for step in (4, 8) if save == "epoch" else (4, 6):
        second = LOSSES[name]()
        trainer = trainer_of(tmp_path / "again", second, **options)
        trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        torch.testing.assert_close(second.state_dict(), whole.state_dict())


@pytest.mark.slow
def test_the_last_checkpoint_is_found_and_holds_the_loss(tmp_path):
    first, second = AdaFocalLoss(n_bins=5), AdaFocalLoss(n_bins=5)
    trainer_of(tmp_path, first, save_strategy="epoch", num_train_epochs=2).train()
    saved = load_file(tmp_path / "checkpoint-8" / LOSS_FILE)
    torch.testing.assert_close(saved, dict(first.state_dict()))
    trainer_of(tmp_path, second, save_strategy="epoch").train(resume_from_checkpoint=True)
    assert second.history[:2] == first.history
    assert len(second.history) == 3


def test_save_model_saves_the_loss_beside_the_model(tmp_path):
    loss = OLSLoss(3)
    trainer = trainer_of(tmp_path, loss)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    torch.testing.assert_close(load_file(tmp_path / "final" / LOSS_FILE), dict(loss.state_dict()))
    assert (tmp_path / "final" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_checkpoint_without_the_loss_or_of_another_one_is_refused(tmp_path):
    trainer_of(tmp_path, "focal", save_strategy="epoch", num_train_epochs=1).train()
    with pytest.raises(FormatError, match=f"^checkpoint-4: expected {LOSS_FILE}"):
        trainer_of(tmp_path, AdaFocalLoss()).train(resume_from_checkpoint=True)
    trainer_of(tmp_path, "ols", save_strategy="epoch", num_train_epochs=1).train()
    with pytest.raises(FormatError, match=f"^{LOSS_FILE}: expected the state of AdaFocalLoss"):
        trainer_of(tmp_path, AdaFocalLoss()).train(resume_from_checkpoint=True)


def test_an_epoch_cut_short_is_not_counted(tmp_path):
    loss = AdaFocalLoss(n_bins=5)
    trainer_of(tmp_path, loss, max_steps=6).train()  # an epoch and a half
    assert len(loss.history) == 1


@pytest.mark.slow
def test_a_model_made_anew_comes_with_a_loss_made_anew(tmp_path):
    loss = AdaFocalLoss(n_bins=5)
    trainer = trainer_of(tmp_path, loss, model=False, kind=_WithInit)
    ends = []
    for _ in range(2):
        trainer.train()
        ends.append(loss.state_dict()["gammas"].clone())
    torch.testing.assert_close(ends[0], ends[1])
    assert len(loss.history) == EPOCHS


class _WithInit(OrderedTrainer):
    def __init__(self, *, model, **kwargs):
        del model
        super().__init__(model_init=lambda: classifier(), **kwargs)


def test_a_name_is_told_the_numbers_of_classes_and_samples(tmp_path):
    assert repr(trainer_of(tmp_path, "ols").calibration_loss) == "OLSLoss(n_classes=3, hard=0.5)"
    assert "CRLLoss(n_samples=56)" in repr(trainer_of(tmp_path, "crl").calibration_loss)


def test_correctness_ranking_reads_the_column_index_too_and_its_term_is_not_evaluated(tmp_path):
    train = [{"index" if key == "indices" else key: row[key] for key in row} for row in TRAIN]
    val = [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in VAL]
    loss = BrierLoss() + CRLLoss(len(TRAIN))
    trainer = trainer_of(tmp_path, loss, train=train, val=val)
    trainer.train()
    assert loss.terms[1].seen.tolist() == [EPOCHS] * len(TRAIN)
    brier = BrierLoss()(logits_of(trainer.model), LABELS)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(brier), rel=1e-5)


def test_correctness_ranking_without_indices_is_refused(tmp_path):
    train = [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in TRAIN]
    with pytest.raises(InputError, match="^indices: expected a column of that name or index"):
        trainer_of(tmp_path, "crl", train=train).train()


def test_tokens_are_samples_and_padding_is_none(tmp_path):
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=32, dim=16, n_layers=1, n_heads=2, hidden_dim=16, max_position_embeddings=8, num_labels=3
    )
    model = transformers.DistilBertForTokenClassification(config)
    rows = [
        {
            "input_ids": row["input_ids"],
            "labels": torch.where(torch.arange(8) < 5, row["input_ids"] % 3, -100),
        }
        for row in VAL
    ]
    loss = AdaFocalLoss(n_bins=5)
    trainer = trainer_of(tmp_path, loss, model=model, train=rows, val=rows, num_train_epochs=1)
    trainer.train()
    probs = logits_of(model)[:, :5].softmax(dim=2).flatten(0, 1)
    labels = torch.stack([row["labels"][:5] for row in rows]).flatten()
    metrics = trainer.evaluate()
    assert metrics["eval_ece"] == pytest.approx(expected_calibration_error(probs, labels), abs=1e-5)
    assert metrics["eval_accuracy"] == pytest.approx(accuracy(probs, labels))
    assert len(loss.history) == 1


def test_several_labels_are_binary_problems_of_their_own(tmp_path):
    loss, train, val = AdaFocalLoss(n_bins=5), several(TRAIN), several(VAL)
    model = classifier(problem_type="multi_label_classification")
    trainer = trainer_of(tmp_path, loss, model=model, train=train, val=val)
    trainer.train()
    assert len(loss.history) == EPOCHS
    metrics = trainer.evaluate()
    p = logits_of(trainer.model, val).sigmoid().flatten()
    y = torch.stack([row["labels"] for row in val]).flatten() > 0
    expected = {
        "eval_accuracy": ((p > 0.5) == y).double().mean().item(),
        "eval_nll": torch.nn.functional.binary_cross_entropy(p, y.float()).item(),
        "eval_nll_after_temperature": nll_after_temperature(p.logit(), y.long()),
        "eval_ece": expected_calibration_error(confidence=p, correct=y),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    with pytest.raises(InputError, match="^calibration_loss: expected a loss of single entries"):
        trainer_of(tmp_path, "crl", model=model, train=train, val=val)
    with pytest.raises(InputError, match=r"^labels: expected 1 or 0 for each label, shape \(16, 3\), got"):
        trainer_of(tmp_path, "brier", model=model).train()


def test_one_output_is_the_log_odds_of_class_1(tmp_path):
    def binary(rows):
        return [{**row, "labels": int(row["labels"] == 1)} for row in rows]

    loss = AdaFocalLoss(n_bins=5)
    trainer = trainer_of(tmp_path, loss, model=classifier(num_labels=1), train=binary(TRAIN), val=binary(VAL))
    trainer.train()
    assert len(loss.history) == EPOCHS
    z, y = logits_of(trainer.model).squeeze(1), (LABELS == 1).float()
    nll = torch.nn.functional.binary_cross_entropy_with_logits(z, y)
    assert trainer.evaluate()["eval_nll"] == pytest.approx(float(nll), abs=1e-5)


class Headless(nn.Module):
    """A network that only says what its loss is."""

    def __init__(self, outputs):
        super().__init__()
        self.linear = nn.Linear(8, 3)
        self.outputs = outputs

    def forward(self, input_ids, labels=None):
        return self.outputs(self.linear(input_ids.float()), labels)


@pytest.mark.parametrize(
    ("outputs", "got"),
    [(lambda z, _: {"loss": z.sum()}, "only loss"), (lambda z, _: (z.sum(), z), "tuple")],
)
def test_a_model_without_logits_is_refused(outputs, got, tmp_path):
    trainer = trainer_of(tmp_path, FocalLoss(), model=Headless(outputs))
    with pytest.raises(InputError, match=f"^model: expected outputs with logits, got {got}$"):
        trainer.train()


def test_the_model_is_not_shown_the_indices_even_without_labels(tmp_path):
    trainer = trainer_of(tmp_path, "crl", model=Headless(lambda z, _: {"logits": z / 10}))
    trainer.train()
    unlabelled = [{"input_ids": row["input_ids"], "indices": 999} for row in VAL]
    assert trainer.predict(unlabelled).predictions.shape == (len(VAL), 3)


def test_any_module_with_logits_can_be_trained(tmp_path):
    loss = AdaFocalLoss(n_bins=5)
    trainer_of(tmp_path, loss, model=Headless(lambda z, _: {"logits": z / 10})).train()
    assert len(loss.history) == EPOCHS


def test_what_would_train_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match="^model: expected a classifier .* got regression"):
        trainer_of(tmp_path, "brier", model=classifier(problem_type="regression"))
    config = transformers.GPT2Config(vocab_size=32, n_embd=8, n_layer=1, n_head=1, n_positions=8)
    with pytest.raises(InputError, match="^model: expected a classifier .* got language modelling"):
        trainer_of(tmp_path, "brier", model=transformers.GPT2LMHeadModel(config))
    with pytest.raises(InputError, match="^label_smoothing_factor: expected 0"):
        trainer_of(tmp_path, "brier", label_smoothing_factor=0.1)
    with pytest.raises(InputError, match="^calibration_loss: expected reduction='mean'"):
        trainer_of(tmp_path, FocalLoss(reduction="sum"))
    with pytest.raises(InputError, match="^eval_dataset: expected one set for AdaFocalLoss.*got none"):
        trainer_of(tmp_path, AdaFocalLoss(), val=None, eval_strategy="no")
    with pytest.raises(InputError, match="^eval_dataset: expected one set .*got a dictionary"):
        trainer_of(tmp_path, AdaFocalLoss(), val={"a": VAL, "b": VAL})


def test_labels_are_needed(tmp_path):
    train = [{"input_ids": row["input_ids"]} for row in TRAIN]
    with pytest.raises(InputError, match="^labels: expected a column"):
        trainer_of(tmp_path, "brier", train=train).train()


def test_several_evaluation_sets_are_measured_apart(tmp_path):
    metrics = trainer_of(tmp_path, "ols", val={"a": VAL, "b": VAL[:20]}).evaluate()
    assert {"eval_a_ece", "eval_b_ece"} <= set(metrics)
    assert metrics["eval_a_ece"] != metrics["eval_b_ece"]


def test_the_mixin_goes_before_any_trainer(tmp_path):
    class Other(transformers.Trainer):
        told = 0

        def training_step(self, *args, **kwargs):
            self.told += 1
            return super().training_step(*args, **kwargs)

    class Mixed(CalibrationTrainerMixin, Other):
        pass

    loss = OLSLoss(3)
    trainer = trainer_of(tmp_path, loss, kind=Mixed)
    trainer.train()
    assert trainer.told == EPOCHS * 4
    assert len(loss.history) == EPOCHS


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "calibrant.integrations.transformers")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ImportError, match=r"^transformers: expected the package .*, got none.*'calibrant\[train\]'$"
    ):
        importlib.import_module("calibrant.integrations.transformers")
