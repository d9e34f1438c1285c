"""The measures of each epoch, on the validation part and on a sample of the training part."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import FitError
from calibrant.evaluation.after_temperature import nll_after_temperature
from calibrant.evaluation.evaluate import evaluate
from calibrant.losses.loss import Loss
from calibrant.losses.parts.global_batch import global_rows
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.dynamics import measure_epoch
from calibrant.training.encoder import class_mean_logits
from calibrant.training.network import Network, all_logits_and_features, own_logits
from calibrant.training.optimization import seed_of
from calibrant.training.processes import share_of
from calibrant.training.session import Session

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
_REFINEMENT = ("accuracy", "auroc_ovo", "auroc_correct", "ece", "nll")


@dataclass(frozen=True, eq=False)
class EpochMeasures:
    """The measures of one epoch.

    Attributes:
        row: Numbers by name, for the table of epochs.
        dynamics: What the papers plot, for its own file; None if the configuration asks for none.
    """

    row: dict[str, Any]
    dynamics: dict[str, Any] | None


class EpochEvaluator(ABC):
    """Measures a network after each epoch; the measured training samples are always the same."""

    def __init__(self, session: Session, network: Network, splits: Splits, *, samples: int) -> None:
        self.fabric = session.fabric
        self.network = network
        self.splits = splits
        self.sample = _sample(splits.train, samples, session.config.seed)

    @abstractmethod
    def __call__(self, epoch: int, loss: Loss) -> EpochMeasures:
        """Measure an epoch and update the loss."""


class ClassifierEvaluator(EpochEvaluator):
    """Measures a classifier and updates its loss on the validation part."""

    def __init__(self, session: Session, network: Network, splits: Splits) -> None:
        super().__init__(session, network, splits, samples=session.config.output.dynamics)
        self.batch_size = session.config.training.batch_size

    def __call__(self, epoch: int, loss: Loss) -> EpochMeasures:
        """Measure an epoch and update the loss."""
        validation = self.splits.validation
        own = own_logits(self.fabric, self.network, validation)
        rows = share_of(self.fabric).rows(len(validation))
        logits, labels = global_rows(own).cpu(), validation.labels
        _check_finite(logits, epoch)
        if loss.validates:
            loss.update(own, labels[rows].to(own.device))
        else:
            loss.update()
        row = _named("val", logits, labels, VALIDATION)
        row["val_nll_after_temperature"] = nll_after_temperature(logits, labels)
        if self.sample is None:
            return EpochMeasures(row, None)
        trained = global_rows(own_logits(self.fabric, self.network, self.sample)).cpu()
        row |= _named("train", trained, self.sample.labels, _TRAINING)
        dynamics = measure_epoch(
            epoch,
            validation=(logits, labels),
            train=(trained, self.sample.labels),
            batch_size=self.batch_size,
            loss_history=loss.history,
        ).as_json()
        row |= {name: value for name, value in dynamics.items() if isinstance(value, float)}
        return EpochMeasures(row, dynamics)


class EncoderEvaluator(EpochEvaluator):
    """Measures an encoder, which has no head yet, by the class means of its features."""

    def __init__(self, session: Session, network: Network, splits: Splits) -> None:
        samples = max(session.config.output.dynamics, 20 * splits.n_classes)
        super().__init__(session, network, splits, samples=samples)

    def __call__(self, epoch: int, loss: Loss) -> EpochMeasures:
        """Measure an epoch and update the loss."""
        logits = self.logits(self.splits.validation)
        _check_finite(logits, epoch)
        loss.update()
        return EpochMeasures(_named("val", logits, self.splits.validation.labels, VALIDATION), None)

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
    """Return refinement by both definitions of AUROC, with accuracy and calibration."""
    return _measures(logits, labels, _REFINEMENT)


def _measures(logits: Tensor, labels: Tensor, names: tuple[str, ...]) -> dict[str, float]:
    return dict(evaluate(Predictions(logits=logits, labels=labels), measures=names).metrics)


def _named(part: str, logits: Tensor, labels: Tensor, names: tuple[str, ...]) -> dict[str, float]:
    return {f"{part}_{name}": value for name, value in _measures(logits, labels, names).items()}


def _sample(data: LabelledData, samples: int, seed: int) -> LabelledData | None:
    """Return this many random samples, all if there are fewer; None for 0."""
    if samples == 0:
        return None
    if samples >= len(data):
        return data
    generator = torch.Generator().manual_seed(seed_of(seed, len(data)))
    return data.take(torch.randperm(len(data), generator=generator)[:samples])


def _check_finite(logits: Tensor, epoch: int) -> None:
    if not bool(logits.isfinite().all()):
        raise FitError(
            f"training: expected finite validation outputs, got NaN or infinity after epoch {epoch}; "
            "lower the step size or clip the gradient"
        )
