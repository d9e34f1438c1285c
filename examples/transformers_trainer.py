"""Calibrant in the Trainer of Hugging Face: another Trainer class, with one more argument.

Run it with ``python examples/transformers_trainer.py``; it takes a few seconds and downloads nothing. A tiny
language model with random weights learns the topic of a text, one of three, once with cross-entropy and once
with AdaFocal. Each topic has its own words, most words of a text belong to no topic, and every fifth label is
replaced by a random one.
"""

import tempfile

import torch
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PrinterCallback,
    TrainingArguments,
)

from calibrant.integrations.transformers import CalibratedTrainer

COLUMNS = ("eval_accuracy", "eval_nll", "eval_brier", "eval_ece")


def texts(n: int, *, seed: int, length: int = 12) -> list[dict[str, object]]:
    """Draw tokenised texts of three topics; words 1 to 30 are common, and ten more belong to each topic."""
    draw = torch.Generator().manual_seed(seed)
    topics = torch.randint(0, 3, (n,), generator=draw)
    common = torch.randint(1, 31, (n, length), generator=draw)
    own = torch.randint(0, 10, (n, length), generator=draw) + 31 + 10 * topics[:, None]
    words = torch.where(torch.rand(n, length, generator=draw) < 0.2, own, common)
    labels = topics.clone()
    labels[::5] = torch.randint(0, 3, labels[::5].shape, generator=draw)
    return [{"input_ids": row, "labels": int(label)} for row, label in zip(words, labels, strict=True)]


def model() -> DistilBertForSequenceClassification:
    """Return a sequence classifier with random weights."""
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=64, dim=32, n_layers=1, n_heads=2, hidden_dim=64, max_position_embeddings=16
    )
    config.num_labels = 3
    return DistilBertForSequenceClassification(config)


def main(epochs: int = 15, n_train: int = 400) -> dict[str, dict[str, float]]:
    """Train with two losses, then print and return the measures of the validation set."""
    rows = {}
    for loss in ("cross_entropy", "adafocal"):
        with tempfile.TemporaryDirectory() as folder:
            trainer = CalibratedTrainer(
                calibration_loss=loss,  # the one addition
                model=model(),
                args=TrainingArguments(
                    output_dir=folder,
                    num_train_epochs=epochs,
                    learning_rate=3e-3,
                    per_device_train_batch_size=32,
                    per_device_eval_batch_size=256,
                    eval_strategy="epoch",
                    save_strategy="no",
                    report_to=[],
                    disable_tqdm=True,
                    log_level="error",
                    use_cpu=True,
                ),
                train_dataset=texts(n_train, seed=0),
                eval_dataset=texts(600, seed=1),
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
            rows[loss] = trainer.evaluate()
    print(f"{'loss':15}" + "".join(f"{name:>15}" for name in COLUMNS))
    for loss, row in rows.items():
        print(f"{loss:15}" + "".join(f"{row[name]:15.3f}" for name in COLUMNS))
    return rows


if __name__ == "__main__":
    main()
