"""What is measured after each epoch: validation, a sample of the training part, and their dynamics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from lightning_fabric import Fabric
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import FitError
from calibrant.evaluation.evaluate import evaluate
from calibrant.losses.loss import Loss
from calibrant.losses.parts.global_batch import global_rows
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.dynamics import measure_epoch
from calibrant.training.encoder import class_mean_logits
from calibrant.training.network import Network
from calibrant.training.predict import all_logits, all_logits_and_features, own_logits, share_of
from calibrant.training.seeds import seed_of

VALIDATION = (
    "accuracy",
    "mean_confidence",
    "nll",
    "brier",
    "ece",
    "ece_equal_mass",
    "classwise_ece",
    "auroc_correct",
)
_TRAINING = ("accuracy", "mean_confidence", "nll", "ece")
REFINEMENT = ("accuracy", "auroc_ovo", "auroc_correct", "ece", "nll")


@dataclass(frozen=True, eq=False)
class Measured:
    """What an epoch came to.

    Attributes:
        row: Numbers by name, for the table of epochs.
        dynamics: What the papers plot, for its own file; none if it is not wanted.
    """

    row: dict[str, Any]
    dynamics: dict[str, Any] | None


Measure: TypeAlias = Callable[[int, Loss], Measured]


class ClassifierMeasure:
    """Measures a classifier on the validation part, and feeds its loss what it learns from there.

    Args:
        fabric: Where it runs.
        network: What is trained.
        splits: Its data.
        samples: How many training samples are looked at for the dynamics.
        batch_size: In which the agreement within a class is measured, as during training.
        seed: Which training samples these are.
    """

    def __init__(
        self, fabric: Fabric, network: Network, splits: Splits, *, samples: int, batch_size: int, seed: int
    ) -> None:
        self.fabric = fabric
        self.network = network
        self.validation = splits.validation
        self.batch_size = batch_size
        self.sample = sample_of(splits.train, samples, seed)

    def __call__(self, epoch: int, loss: Loss) -> Measured:
        """Measure after an epoch, and let the loss learn from validation."""
        own = own_logits(self.fabric, self.network, self.validation)
        rows = share_of(self.fabric).rows(len(self.validation))
        logits, labels = global_rows(own).cpu(), self.validation.labels
        _check_finite(logits, epoch)
        if loss.validates:
            loss.update(own, labels[rows].to(own.device))
        else:
            loss.update()
        row = _named("val", logits, labels, VALIDATION)
        if self.sample is None:
            return Measured(row, None)
        trained = all_logits(self.fabric, self.network, self.sample)
        row |= _named("train", trained, self.sample.labels, _TRAINING)
        dynamics = measure_epoch(
            epoch,
            validation=(logits, labels),
            train=(trained, self.sample.labels),
            batch_size=self.batch_size,
            loss_history=loss.history,
        ).as_json()
        row |= {name: value for name, value in dynamics.items() if isinstance(value, float)}
        return Measured(row, dynamics)


class EncoderMeasure:
    """Measures an encoder, which has no head yet, by the class means of its features.

    Args:
        fabric: Where it runs.
        network: What is trained.
        splits: Its data.
        samples: How many training samples make the class means.
        seed: Which training samples these are.
    """

    def __init__(self, fabric: Fabric, network: Network, splits: Splits, *, samples: int, seed: int) -> None:
        self.fabric = fabric
        self.network = network
        self.splits = splits
        self.sample = sample_of(splits.train, max(samples, 20 * splits.n_classes), seed)

    def __call__(self, epoch: int, loss: Loss) -> Measured:
        """Measure after an epoch."""
        logits = self.logits(self.splits.validation)
        _check_finite(logits, epoch)
        loss.update()
        return Measured(_named("val", logits, self.splits.validation.labels, VALIDATION), None)

    def logits(self, data: LabelledData) -> Tensor:
        """Classify data by the class means."""
        assert self.sample is not None
        known = all_logits_and_features(self.fabric, self.network, self.sample)[1]
        features = all_logits_and_features(self.fabric, self.network, data)[1]
        assert known is not None
        assert features is not None
        n_classes = self.splits.n_classes
        return class_mean_logits(known, self.sample.labels, features, n_classes=n_classes)


def refinement(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return both AUROC definitions of refinement, beside accuracy and calibration."""
    return dict(evaluate(Predictions(logits=logits, labels=labels), measures=REFINEMENT).metrics)


def sample_of(data: LabelledData, samples: int, seed: int) -> LabelledData | None:
    """Return this many samples chosen at random, all if there are fewer, none if none are wanted."""
    if samples == 0:
        return None
    if samples >= len(data):
        return data
    generator = torch.Generator().manual_seed(seed_of(seed, len(data)))
    return data.take(torch.randperm(len(data), generator=generator)[:samples])


def _named(part: str, logits: Tensor, labels: Tensor, measures: tuple[str, ...]) -> dict[str, float]:
    values = evaluate(Predictions(logits=logits, labels=labels), measures=measures).metrics
    return {f"{part}_{name}": value for name, value in values.items()}


def _check_finite(logits: Tensor, epoch: int) -> None:
    if not bool(logits.isfinite().all()):
        raise FitError(
            f"training: expected finite validation outputs, got NaN or infinity after epoch {epoch}; "
            "lower the step size or clip the gradient"
        )
