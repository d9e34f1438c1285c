"""A callback for Lightning that updates losses of Calibrant and logs calibration measures."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.extras import optional
from calibrant.inputs import check_count
from calibrant.integrations.loggers import (
    Logger,
    MLflowLogger,
    TensorBoardLogger,
    WandbLogger,
    check_report,
    write_validation_report,
)
from calibrant.integrations.validation import (
    DEFAULT_MEASURES,
    ValidationPixels,
    logged_measures,
    validation_measures,
    validation_predictions,
    validation_rows,
    validation_weights,
)
from calibrant.losses.loss import Loss
from calibrant.losses.parts.global_batch import global_rows, world_size

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    with optional("lightning"):
        from pytorch_lightning import Callback  # type: ignore[assignment]  # the same class under its older name

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from calibrant.data.predictions import Predictions


# What begins the message about outputs that cannot be measured.
_STEP = "validation_step"


class CalibrationCallback(Callback):
    """Update a loss at the end of each epoch, and log calibration measures of the validation set.

    ``validation_step`` must return ``{"logits": ..., "labels": ...}`` (or ``"targets"``), or the pair
    ``(logits, labels)``. A dictionary may also have ``"weights"`` of the shape of the labels: the measures
    count samples by them, the loss does not. Of several validation sets only the first is used. The sanity
    check changes nothing. ``trainer.test`` logs the same measures of what ``test_step`` returns, with
    ``test_`` instead of ``val_``; without logits and labels it warns and logs none.

    The loss is updated exactly once per training epoch, with the validation that follows its last batch, and
    before checkpoints are written. If validation runs more often, the last one of the epoch is used. If it
    runs less often (``check_val_every_n_epoch=2``), a loss that learns from validation is updated in the
    epochs with validation only; all others are updated at the end of every epoch.

    Checkpoints hold the state of the loss: with the module if the loss is a part of it, otherwise in the
    state of this callback. With several processes each passes its share to the loss, and measures are
    computed from all samples, including the few that Lightning's sampler repeats to make shares equal.
    Measures are NaN for fewer than two predictions, or if a prediction is not finite.

    If logits are score maps of shape ``(n, k, h, w)``, the measures that follow from sums are logged, and
    ``mean_iou``; no pixel is held in memory, unless the loss learns from the validation set.

    Args:
        loss: The loss that the module trains with; by default the loss that is a part of the module, if any.
        measures: What to log: names from :data:`calibrant.metrics.names.MEASURES`, ``"core"`` or ``"all"``,
            and ``"nll_after_temperature"``, by which to choose an epoch that is calibrated afterwards.
        n_bins: Number of bins of the binned measures.
        prefix: Prefix of the names of measures in the log.
        ignore_index: The label of the pixels of score maps that do not count; by default that of the loss, or
            255 without one.
        report: An HTML file: at the end of ``fit`` or ``validate``, a page about the last validation is
            written, and added to the runs of the trainer's MLflow, TensorBoard and Weights & Biases loggers.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[CalibrationCallback(measures=["accuracy", "ece"])], logger=False)
    """

    def __init__(
        self,
        loss: Loss | None = None,
        *,
        measures: str | Sequence[str] = DEFAULT_MEASURES,
        n_bins: int = 15,
        prefix: str = "val_",
        ignore_index: int | None = None,
        report: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(loss, Loss | None):
            raise InputError(f"loss: expected a Calibrant loss, got {type(loss).__name__}")
        self.measures = logged_measures(measures)
        self.n_bins = check_count(n_bins, "n_bins")
        self.prefix = prefix
        self.report = None if report is None else check_report(report)
        self._reported: Predictions | None = None
        self._given = loss
        self._loss = loss
        self._outside = loss is not None
        self._updated: int | None = None
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._weights: list[Tensor] = []
        self.ignore_index = ignore_index
        self._pixels: ValidationPixels | None = None
        self._latest: tuple[Tensor, Tensor] | None = None

    @property
    def state_key(self) -> str:
        """Name of this callback in a checkpoint."""
        return f"CalibrationCallback({self.prefix!r})"

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch of the last update, and the state of a loss outside of the module."""
        outside = self._loss if self._outside else None
        return {"updated": self._updated, "loss": None if outside is None else outside.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self._updated = state_dict["updated"]
        if self._loss is not None and self._outside and state_dict["loss"] is not None:
            self._loss.load_state_dict(state_dict["loss"])

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:  # noqa: ARG002  # Lightning's hook
        """Find the loss, and protect its buffers on each process from being overwritten."""
        self._loss = self._given or _loss_within(pl_module)
        place = next((name for name, part in pl_module.named_modules() if part is self._loss), None)
        self._outside = self._loss is not None and place is None
        self._updated, self._latest, self._batches, self._weights = None, None, [], []
        self._pixels = None
        if self._loss is not None and place is not None:
            # DistributedDataParallel would copy the buffers of the first process to all others at each step.
            known = getattr(pl_module, "_ddp_params_and_buffers_to_ignore", [])
            own = [f"{place}.{name}" for name, _ in self._loss.named_buffers()]
            torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
                pl_module, [*known, *(name for name in own if name not in known)]
            )

    def on_fit_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Move the loss to the device of the module, and refuse a run that could never update it."""
        if self._loss is None:
            return
        self._loss.expect_updates()
        if self._loss.validates and not trainer.enable_validation:
            raise InputError(
                f"loss: expected a trainer that validates, because {self._loss!r} learns from the validation "
                "set, got one without; give it validation data, and a model with a validation_step"
            )
        if self._outside:
            self._loss.to(pl_module.device)

    def on_validation_epoch_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:  # noqa: ARG002  # Lightning's hook
        """Drop the predictions of the previous validation."""
        self._batches, self._weights, self._pixels = [], [], None

    def on_validation_batch_end(
        self,
        trainer: "Trainer",
        pl_module: "LightningModule",  # noqa: ARG002  # Lightning's hook
        outputs: Any,  # noqa: ANN401  # whatever validation_step returns
        batch: Any,  # noqa: ANN401, ARG002  # whatever the loader gives
        batch_idx: int,  # noqa: ARG002  # Lightning's hook
        dataloader_idx: int = 0,
    ) -> None:
        """Collect the predictions of a batch on the CPU."""
        if dataloader_idx:
            return
        logits, labels = _logits_and_labels(outputs)
        learns = self._loss is not None and self._loss.validates
        if logits.ndim == 4 and not learns:
            if not trainer.sanity_checking:
                pixels = ValidationPixels(n_bins=self.n_bins, ignore_index=self.ignore_index)
                self._pixels = self._pixels or pixels
                self._pixels.add(logits, labels, self._loss)
        elif not trainer.sanity_checking:
            self._batches.append(validation_rows(logits, labels, self._loss))
            if isinstance(outputs, Mapping) and outputs.get("weights") is not None:
                self._weights.append(validation_weights(outputs["weights"], labels, self._loss))

    def on_validation_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Log the measures, and update the loss if the training epoch is over."""
        own = self._log(trainer, pl_module, self.prefix)
        if own is not None and trainer.state.fn == "fit":
            self._latest = own
            if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
                self._update(trainer)

    def on_test_epoch_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Drop the predictions of the previous test."""
        self.on_validation_epoch_start(trainer, pl_module)

    def on_test_batch_end(
        self,
        trainer: "Trainer",
        pl_module: "LightningModule",
        outputs: Any,  # noqa: ANN401  # whatever test_step returns
        batch: Any,  # noqa: ANN401  # whatever the loader gives
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Collect the predictions of a batch, if ``test_step`` returns them."""
        try:
            self.on_validation_batch_end(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)
        except InputError as error:
            if not str(error).startswith(_STEP):
                raise
            if batch_idx == 0:
                reason = str(error).replace(_STEP, "test_step", 1)
                warnings.warn(f"{reason}; no calibration measures are logged", stacklevel=2)

    def on_test_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Log the measures of the test set."""
        validation = self.prefix.startswith("val")
        self._log(trainer, pl_module, f"test{self.prefix[3:]}" if validation else f"test_{self.prefix}")

    def _log(
        self, trainer: "Trainer", pl_module: "LightningModule", prefix: str
    ) -> tuple[Tensor, Tensor] | None:
        """Log the measures of all processes; return the logits and labels of this one, if there are any."""
        if self._pixels is not None:
            # Sums of all processes are one number already.
            for name, value in self._pixels.results(self.measures, pl_module.device).items():
                pl_module.log(f"{prefix}{name}", value, sync_dist=trainer.world_size > 1)
            self._pixels = None
        if not self._batches:
            return None
        logits, labels = (torch.cat(parts) for parts in zip(*self._batches, strict=True))
        weights = self._all_weights()
        self._batches, self._weights = [], []
        if world_size() > 1:
            logits, labels = logits.to(pl_module.device), labels.to(pl_module.device)
            weights = None if weights is None else weights.to(pl_module.device)
        all_logits, all_labels = global_rows(logits), global_rows(labels)
        all_weights = None if weights is None else global_rows(weights)
        measured = validation_measures(
            all_logits, all_labels, measures=self.measures, n_bins=self.n_bins, weights=all_weights
        )
        if self.report is not None and trainer.is_global_zero and not trainer.testing:
            self._reported = validation_predictions(all_logits, all_labels, weights=all_weights)
        for name, value in measured.items():
            pl_module.log(f"{prefix}{name}", value, sync_dist=trainer.world_size > 1)
        return logits, labels

    def on_validation_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:  # noqa: ARG002  # Lightning's hook
        """Write the report of a validation that is no part of training."""
        if trainer.state.fn == "validate":
            self._write_report(trainer)

    def on_fit_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:  # noqa: ARG002  # Lightning's hook
        """Write the report of the last validation."""
        self._write_report(trainer)

    def _write_report(self, trainer: "Trainer") -> None:
        predictions, self._reported = self._reported, None
        if self.report is None or predictions is None:
            return
        page = write_validation_report(predictions, self.report)
        for logger in filter(None, map(_logger_of, trainer.loggers)):
            logger.log_report(page)

    def _all_weights(self) -> Tensor | None:
        if self._weights and len(self._weights) < len(self._batches):
            raise InputError(
                "validation_step: expected weights in every batch or in none, got some in "
                f"{len(self._weights)} of {len(self._batches)} batches"
            )
        return torch.cat(self._weights) if self._weights else None

    def on_train_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:  # noqa: ARG002  # Lightning's hook
        """Update the loss if no validation followed the last batch of the epoch."""
        self._update(trainer)

    def _update(self, trainer: "Trainer") -> None:
        validation, self._latest = self._latest, None
        # An epoch ends twice if training resumes from a checkpoint written in the validation at its end.
        if self._loss is None or self._updated == trainer.current_epoch:
            return
        if not self._loss.validates:
            self._loss.update()
        elif validation is not None:
            self._loss.update(*validation)
        else:
            return
        self._updated = trainer.current_epoch


def _logger_of(theirs: Any) -> Logger | None:  # noqa: ANN401  # any logger of Lightning
    """Return a logger that continues the run of a logger of Lightning; None for those that take no page."""
    kinds = {kind.__name__ for kind in type(theirs).__mro__}
    if "MLFlowLogger" in kinds:
        return MLflowLogger(run_id=theirs.run_id, client=theirs.experiment)
    if "WandbLogger" in kinds:
        return WandbLogger(run=theirs.experiment)
    return TensorBoardLogger(writer=theirs.experiment) if "TensorBoardLogger" in kinds else None


def _loss_within(module: torch.nn.Module) -> Loss | None:
    """Return the loss that is a part of a module, or None; a sum counts as one loss."""
    found = [part for part in module.modules() if isinstance(part, Loss)]
    nested = {id(part) for loss in found for part in loss.modules() if part is not loss}
    outer = [loss for loss in found if id(loss) not in nested]
    if len(outer) > 1:
        raise InputError(
            f"loss: expected one Calibrant loss in the module, got {len(outer)}; "
            "pass the one to update: CalibrationCallback(loss)"
        )
    return outer[0] if outer else None


def _logits_and_labels(outputs: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401  # whatever validation_step returns
    match outputs:
        case {"logits": Tensor() as logits, "labels": Tensor() as labels}:
            return logits, labels
        case {"logits": Tensor() as logits, "targets": Tensor() as labels}:
            return logits, labels
        case (Tensor() as logits, Tensor() as labels):
            return logits, labels
    got = (
        f"a dictionary of {', '.join(map(str, outputs)) or 'nothing'}"
        if isinstance(outputs, Mapping)
        else type(outputs).__name__
    )
    raise InputError(
        f"{_STEP}: expected the tensors logits and labels (or targets), as a dictionary or as a pair, "
        f"got {got}; return {{'logits': logits, 'labels': labels}}"
    )
