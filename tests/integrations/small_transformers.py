"""A small network, its texts and its trainer for tests with Transformers."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from calibrant.integrations.transformers import CalibratedTrainer  # noqa: E402  # only with the package

EPOCHS, BATCH, RATE = 3, 16, 0.5


def texts(n, seed):
    """Texts of eight words, of which half belong to the topic that is the label."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n,), generator=draw)
    own = 10 + 5 * labels[:, None] + torch.randint(0, 5, (n, 8), generator=draw)
    words = torch.where(
        torch.rand(n, 8, generator=draw) < 0.5, own, torch.randint(1, 10, (n, 8), generator=draw)
    )
    return [
        {"input_ids": row, "labels": int(label), "indices": i}
        for i, (row, label) in enumerate(zip(words, labels, strict=True))
    ]


TRAIN, VAL = texts(56, 0), texts(45, 1)


def classifier(**options):
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=32,
        dim=16,
        n_layers=1,
        n_heads=2,
        hidden_dim=16,
        max_position_embeddings=8,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        **{"num_labels": 3} | options,
    )
    return transformers.DistilBertForSequenceClassification(config)


class InOrder:
    """Batches come in the order of the samples, so that a plain loop sees the same."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[attr-defined]


class OrderedTrainer(InOrder, CalibratedTrainer):
    pass


def trainer_of(folder, loss, *, kind=OrderedTrainer, train=None, val=VAL, model=None, extra=None, **options):
    settings = {
        "num_train_epochs": EPOCHS,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_strategy": "no",
    } | options
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        optim="sgd",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **settings,
    )
    trainer = kind(
        model=classifier() if model is None else model,
        args=arguments,
        train_dataset=TRAIN if train is None else train,
        eval_dataset=val,
        calibration_loss=loss,
        **(extra or {}),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer
