"""Calibrant's losses and measures in Lightning, by one callback."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, MissingPackageError
from calibrant.evaluation.evaluate import evaluate
from calibrant.inputs import check_count
from calibrant.losses.loss import Loss
from calibrant.losses.parts.batch import IGNORED, rows
from calibrant.losses.parts.global_batch import global_rows, world_size
from calibrant.metrics.names import resolve_measures

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback  # type: ignore[assignment]  # the same class by its older name
    except ModuleNotFoundError as error:
        raise MissingPackageError("lightning", "lightning", "train") from error

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class CalibrationCallback(Callback):
    """Tells a loss when an epoch has ended, and logs how honest confidences on the validation set are.

    ``validation_step`` returns ``{"logits": ..., "labels": ...}`` (or ``"targets"``), or the pair
    ``(logits, labels)``; of several validation sets the first counts. Sanity checking changes nothing.

    The loss is updated exactly once per training epoch, by the validation that follows its last batch, and
    before checkpoints are written. If validation runs more often, the last one of the epoch counts. If it
    runs less often (``check_val_every_n_epoch=2``), a loss that learns from it waits for the next epoch that
    has one; all others are updated at the end of every epoch.

    Checkpoints hold the state of a loss in either place: as a part of the module, or in this callback's own
    state if it is not. Under several processes each passes its share to the loss, and measures are those of
    all samples, among them the few that Lightning's sampler repeats to make shares equal. A measure of
    predictions that are not finite, or of fewer than two, is NaN.

    Args:
        loss: The loss that the module trains with; by default the one that is a part of it, if any.
        measures: What to log: names from :data:`calibrant.metrics.names.MEASURES`, ``"core"`` or ``"all"``.
        n_bins: Number of bins of the binned measures.
        prefix: Stands before the name of a measure in the log.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[CalibrationCallback(measures=["accuracy", "ece"])], logger=False)
    """

    def __init__(
        self,
        loss: Loss | None = None,
        *,
        measures: str | Sequence[str] = ("accuracy", "nll", "brier", "ece", "ece_equal_mass"),
        n_bins: int = 15,
        prefix: str = "val_",
    ) -> None:
        super().__init__()
        if not isinstance(loss, Loss | None):
            raise InputError(f"loss: expected a Calibrant loss, got {type(loss).__name__}")
        self.measures = tuple(resolve_measures(measures))
        self.n_bins = check_count(n_bins, "n_bins")
        self.prefix = prefix
        self._given = loss
        self._loss = loss
        self._apart = loss is not None
        self._updated: int | None = None
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._latest: tuple[Tensor, Tensor] | None = None

    @property
    def state_key(self) -> str:
        """Name of this callback in a checkpoint."""
        return f"CalibrationCallback({self.prefix!r})"

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch of the last update, and the state of a loss that is no part of the module."""
        kept = self._loss if self._apart else None
        return {"updated": self._updated, "loss": None if kept is None else kept.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where a checkpoint was written."""
        self._updated = state_dict["updated"]
        if self._loss is not None and self._apart and state_dict["loss"] is not None:
            self._loss.load_state_dict(state_dict["loss"])

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:  # noqa: ARG002  # Lightning's hook
        """Find the loss, and keep what each process notes in it from being overwritten."""
        self._loss = self._given or _loss_within(pl_module)
        place = next((name for name, part in pl_module.named_modules() if part is self._loss), None)
        self._apart = self._loss is not None and place is None
        self._updated, self._latest, self._batches = None, None, []
        if self._loss is not None and place is not None:
            # DistributedDataParallel would copy the buffers of the first process to all others at each step.
            known = getattr(pl_module, "_ddp_params_and_buffers_to_ignore", [])
            own = [f"{place}.{name}" for name, _ in self._loss.named_buffers()]
            torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
                pl_module, [*known, *(name for name in own if name not in known)]
            )

    def on_fit_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Bring the loss to the device of the module, and refuse a run that could never update it."""
        if self._loss is None:
            return
        if self._loss.validates and not trainer.enable_validation:
            raise InputError(
                f"loss: expected a trainer that validates, because {self._loss!r} learns from the validation "
                "set, got one without; give it validation data, and a model with a validation_step"
            )
        if self._apart:
            self._loss.to(pl_module.device)

    def on_validation_epoch_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:  # noqa: ARG002  # Lightning's hook
        """Forget the validation before."""
        self._batches = []

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
        if not trainer.sanity_checking:
            z, y = rows(logits.detach(), labels, ignore_index=_ignored(self._loss))
            self._batches.append((z.cpu(), y.cpu()))

    def on_validation_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Log the measures, and update the loss if the training epoch is over."""
        if not self._batches:
            return
        logits, labels = (torch.cat(parts) for parts in zip(*self._batches, strict=True))
        self._batches = []
        if world_size() > 1:
            logits, labels = logits.to(pl_module.device), labels.to(pl_module.device)
        for name, value in self._measured(global_rows(logits), global_rows(labels)).items():
            pl_module.log(f"{self.prefix}{name}", value, sync_dist=trainer.world_size > 1)
        if trainer.state.fn == "fit":
            self._latest = (logits, labels)
            if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
                self._update(trainer)

    def on_train_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:  # noqa: ARG002  # Lightning's hook
        """Update the loss if no validation followed the last batch of the epoch."""
        self._update(trainer)

    def _update(self, trainer: "Trainer") -> None:
        validation, self._latest = self._latest, None
        # An epoch ends twice if training resumes from a checkpoint of the validation at its end.
        if self._loss is None or self._updated == trainer.current_epoch:
            return
        if not self._loss.validates:
            self._loss.update()
        elif validation is not None:
            self._loss.update(*validation)
        else:
            return
        self._updated = trainer.current_epoch

    def _measured(self, logits: Tensor, labels: Tensor) -> Mapping[str, float]:
        if len(labels) < 2 or not bool(torch.isfinite(logits).all()):
            return dict.fromkeys(self.measures, float("nan"))
        predictions = Predictions(logits=logits, labels=labels)
        return evaluate(predictions, measures=self.measures, n_bins=self.n_bins).metrics


def _loss_within(module: torch.nn.Module) -> Loss | None:
    """Return the one loss in a module, where a sum is one loss; none if there is none."""
    found = [part for part in module.modules() if isinstance(part, Loss)]
    nested = {id(part) for loss in found for part in loss.modules() if part is not loss}
    outer = [loss for loss in found if id(loss) not in nested]
    if len(outer) > 1:
        raise InputError(
            f"loss: expected one Calibrant loss in the module, got {len(outer)}; "
            "say which one validation is for: CalibrationCallback(loss)"
        )
    return outer[0] if outer else None


def _ignored(loss: Loss | None) -> int:
    """Return the label that a loss, or a term of it, ignores."""
    labels = [getattr(part, "ignore_index", None) for part in loss.modules()] if loss is not None else []
    return next((label for label in labels if label is not None), IGNORED)


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
        "validation_step: expected the tensors logits and labels (or targets), as a dictionary or as a pair, "
        f"got {got}; return {{'logits': logits, 'labels': labels}}"
    )
