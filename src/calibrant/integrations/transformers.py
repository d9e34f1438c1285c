"""A Trainer of Hugging Face that trains with losses of Calibrant and logs calibration measures."""

import math
import os
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from calibrant.errors import FormatError, InputError
from calibrant.extras import optional
from calibrant.files import atomic_path
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
    logged_measures,
    validation_measures,
    validation_predictions,
    validation_rows,
)
from calibrant.losses.cross_entropy import CrossEntropyLoss
from calibrant.losses.loss import Loss, WeightedSum
from calibrant.losses.names import make_loss
from calibrant.losses.parts.batch import IGNORED
from calibrant.losses.parts.global_batch import global_sum, world_size

with optional("transformers"):
    from transformers import Trainer, TrainerCallback
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.trainer_utils import get_last_checkpoint

if TYPE_CHECKING:
    from calibrant.data.predictions import Predictions

#: Name of the file with the state of the loss in the folder of a checkpoint.
LOSS_FILE = "calibration_loss.safetensors"

_INDEX_COLUMNS = ("indices", "index")

# Arguments and results of the Trainer, passed on unchanged.
_Own: TypeAlias = Any
# The mixin calls methods of the Trainer that it will be mixed with.
_Mixed: Any = object


class CalibrationTrainerMixin(_Mixed):  # type: ignore[misc]  # see above
    """Train a classifier with a loss of Calibrant in a Trainer, and measure its calibration.

    Put it before a Trainer: ``class MyTrainer(CalibrationTrainerMixin, Trainer)``. All other arguments are
    those of the Trainer. The model returns logits, of texts ``(n, k)`` or of tokens ``(n, length, k)``; the
    loss is computed from them and ``labels``. Over accumulated batches the loss is the mean weighted by the
    number of labels. A model with ``num_labels=1`` gives the log-odds of class 1.

    With ``problem_type="multi_label_classification"``, logits and ``labels`` (1 or 0) have shape ``(n, l)``,
    and each entry is a binary problem of its own: the loss is the mean over all entries, and measures are
    those of the probability of a label.

    At the end of each epoch the loss is updated, exactly once and before a checkpoint is written. A loss that
    learns from the validation set gets the predictions of ``eval_dataset``: those of an evaluation at the end
    of the epoch, otherwise new ones. An epoch cut short by ``max_steps`` is not counted. ``evaluate`` and
    ``predict`` add the measures, such as ``eval_ece``, before they are logged; measures are NaN for fewer
    than two predictions, or if a prediction is not finite. The state of the loss is saved with the model and
    in every checkpoint, and ``resume_from_checkpoint`` restores it.

    Correctness ranking needs a column ``indices`` (or ``index``) in the training set, with the number of each
    sample. It is not defined in evaluation, so its term is left out of ``eval_loss``.

    Args:
        calibration_loss: A loss, or a name or formula for :func:`calibrant.losses.names.make_loss`, which
            then gets the number of classes and of training samples.
        calibration_measures: Names from :data:`calibrant.metrics.names.MEASURES`, ``"core"`` or ``"all"``,
            and ``"nll_after_temperature"``, by which to choose an epoch that is calibrated afterwards.
        calibration_bins: Number of bins of the binned measures.
        calibration_report: An HTML file: at the end of training, a page about the last evaluation of
            ``eval_dataset`` is written, and added to the runs of MLflow, TensorBoard and Weights & Biases
            that ``report_to`` names.
    """

    def __init__(
        self,
        *args: _Own,
        calibration_loss: Loss | str = "cross_entropy",
        calibration_measures: str | Sequence[str] = DEFAULT_MEASURES,
        calibration_bins: int = 15,
        calibration_report: str | os.PathLike[str] | None = None,
        **kwargs: _Own,
    ) -> None:
        self.calibration_measures = logged_measures(calibration_measures)
        self.calibration_bins = check_count(calibration_bins, "calibration_bins")
        self.calibration_report = None if calibration_report is None else check_report(calibration_report)
        super().__init__(*args, compute_loss_func=self._loss_of_batch, **kwargs)
        self.calibration_loss = self._made(calibration_loss).to(self.args.device)
        self.calibration_loss.expect_updates()
        self._check()
        self._evaluation_loss = _without_indices(self.calibration_loss)
        self._fresh = {name: value.clone() for name, value in self.calibration_loss.state_dict().items()}
        self._indices: Tensor | None = None
        self._batches: list[tuple[Tensor, Tensor]] | None = None
        self._predicted: Sequence[Tensor] | None = None
        self._validation: tuple[int, Sequence[Tensor]] | None = None
        self._updates, self._update_due = 0, False
        self._reported: Predictions | None = None
        self.add_callback(_EpochEnds(self))
        if self.calibration_report is not None:
            # Before the callbacks of trackers, which end their runs.
            self.callback_handler.callbacks.insert(0, _TrainingEnds(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: _Own, **kwargs: _Own) -> _Own:
        """Train; a resumed run continues with the saved state of the loss."""
        folder = resume_from_checkpoint or None
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)  # type: ignore[no-untyped-call]  # theirs
        self._updates, self._update_due, self._validation = 0, False, None
        if folder:
            self._load_loss(Path(str(folder)))
        elif self.model_init is not None:  # the model is made again, so the loss starts again too
            self.calibration_loss.load_state_dict(self._fresh)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: _Own, **kwargs: _Own) -> _Own:
        """Return the loss of a batch; the model does not get the indices."""
        inputs, self._indices = self._split(inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: _Own, **kwargs: _Own) -> _Own:
        """Predict a batch, with or without labels; the model does not get the indices."""
        return super().prediction_step(model, self._split(inputs)[0], *args, **kwargs)

    def evaluation_loop(self, *args: _Own, metric_key_prefix: str = "eval", **kwargs: _Own) -> _Own:
        """Predict a data set and add the calibration measures to its metrics."""
        self._batches, self._predicted = [], None
        try:
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
            batches = self._batches
        finally:
            self._batches = None
        if batches:
            logits, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
            self._predicted = (logits, labels)
            chosen, n_bins = self.calibration_measures, self.calibration_bins
            measured = validation_measures(
                logits, labels, measures=chosen, n_bins=n_bins, of_labels=self._of_labels
            )
            for name, value in measured.items():
                output.metrics.setdefault(f"{metric_key_prefix}_{name}", value)
            if self.calibration_report is not None and metric_key_prefix == "eval":
                self._reported = validation_predictions(logits, labels, of_labels=self._of_labels)
        return output

    def evaluate(self, eval_dataset: _Own = None, *args: _Own, **kwargs: _Own) -> dict[str, float]:
        """Evaluate with calibration measures; at the end of an epoch, update the loss."""
        metrics: dict[str, float] = super().evaluate(eval_dataset, *args, **kwargs)
        if eval_dataset is None and self.is_in_train and self._predicted is not None:
            self._validation = (self.state.global_step, self._predicted)
        self._predicted = None
        self._update_if_due()
        return metrics

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model and the state of the loss."""
        self._update_if_due()
        folder = Path(output_dir or str(self.args.output_dir))
        state = {name: value.contiguous().cpu() for name, value in self.calibration_loss.state_dict().items()}
        if self.args.should_save and state:
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_path(folder / LOSS_FILE) as temporary:
                save_file(state, temporary, metadata={"updates": str(self._updates)})
        super().save_model(output_dir, _internal_call)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if self.calibration_loss.needs and not set(_INDEX_COLUMNS) <= set(self._signature_columns):
            self._signature_columns += _INDEX_COLUMNS

    def _made(self, loss: Loss | str) -> Loss:
        if isinstance(loss, Loss):
            return loss
        n_samples = len(self.train_dataset) if isinstance(self.train_dataset, Sized) else None
        n_labels = getattr(getattr(self.model, "config", None), "num_labels", None)
        n_classes = 2 if self._of_labels or n_labels == 1 else n_labels
        return make_loss(loss, n_classes=n_classes, n_samples=n_samples)

    @property
    def _task(self) -> str:
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        if type(base).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            return "language modelling"
        named = getattr(getattr(base, "config", None), "problem_type", None)
        return str(named or "single_label_classification")

    @property
    def _of_labels(self) -> bool:
        """Whether each text has any number of labels, so that every entry is a binary problem."""
        return self._task == "multi_label_classification"

    def _check(self) -> None:
        """Refuse a model or settings that do not fit the loss."""
        loss, smoothing = self.calibration_loss, self.args.label_smoothing_factor
        if self._task not in ("single_label_classification", "multi_label_classification"):
            raise InputError(f"model: expected a classifier of texts or tokens, got {self._task}")
        if self._of_labels and loss.needs:
            raise InputError(
                f"calibration_loss: expected a loss of single entries for several labels, got {loss!r}, "
                "which has a history of whole texts"
            )
        if smoothing:
            raise InputError(f"label_smoothing_factor: expected 0 with a calibration_loss, got {smoothing}")
        if any(getattr(part, "reduction", "mean") != "mean" for part in loss.modules()):
            raise InputError(f"calibration_loss: expected reduction='mean', got another one in {loss!r}")
        uses = [f"for {loss!r} to learn from"] * loss.validates
        uses += ["for the calibration_report"] * (self.calibration_report is not None)
        if uses and (self.eval_dataset is None or isinstance(self.eval_dataset, dict)):
            got = "none" if self.eval_dataset is None else "a dictionary"
            raise InputError(f"eval_dataset: expected one set {uses[0]}, got {got}")

    def _split(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
        """Return the inputs of the model, and the indices of the samples if the loss needs them."""
        hidden = _INDEX_COLUMNS if self.calibration_loss.needs else ()
        indices = next((inputs[name] for name in hidden if name in inputs), None)
        return {name: value for name, value in inputs.items() if name not in hidden}, indices

    def _loss_of_batch(
        self, outputs: _Own, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        logits = _logits_of(outputs)
        if labels is None:
            raise InputError("labels: expected a column of the data set named labels or label, got none")
        if self._batches is not None:
            self._batches.append(self._gathered(logits.detach(), labels))
        value = self._value(*self._by_sample(logits, labels))
        if num_items_in_batch is None:
            return value
        count = (labels != IGNORED).sum()  # as the Trainer counts
        if self.args.average_tokens_across_devices:
            # A loss of the global batch has the same weight everywhere.
            count = global_sum(count) / world_size()
        # With DataParallel the Trainer adds up one loss per device.
        return value.mul(count / torch.as_tensor(num_items_in_batch).max() / max(1, self.args.n_gpu))

    def _value(self, logits: Tensor, labels: Tensor) -> Tensor:
        loss = self.calibration_loss if self.model.training else self._evaluation_loss
        if loss.needs and self._indices is None:
            raise InputError(f"indices: expected a column of that name or index for {loss!r}, got none")
        value: Tensor = loss(logits, labels, **({"indices": self._indices} if loss.needs else {}))
        return value

    def _gathered(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples of all processes on the CPU, without those repeated to fill a batch."""
        if self.args.world_size > 1:
            logits, labels = (
                self.gather_function(self.accelerator.pad_across_processes(part, dim=1, pad_index=IGNORED))
                for part in (logits, labels)
            )
        return validation_rows(*self._by_sample(logits, labels), self.calibration_loss)

    def _by_sample(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens as samples, or the entries of a label matrix; otherwise the inputs unchanged."""
        if self._of_labels:
            if logits.shape != labels.shape:
                raise InputError(
                    f"labels: expected 1 or 0 for each label, shape {tuple(logits.shape)}, got shape "
                    f"{tuple(labels.shape)}"
                )
            return logits.flatten(), labels.flatten()
        if logits.ndim == 3 and logits.shape[:2] == labels.shape:
            return logits.flatten(0, 1), labels.flatten()
        return logits, labels

    def _update_if_due(self) -> None:
        if not self._update_due:
            return
        self._update_due = False
        validation: Sequence[Tensor] = ()
        if self.calibration_loss.validates:
            # Every process has all samples; the loss expects a share from each.
            share = slice(self.args.process_index, None, self.args.world_size)
            if self._validation is None or self._validation[0] != self.state.global_step:
                self.predict(self.eval_dataset, metric_key_prefix="eval")
                self._validation = (self.state.global_step, self._predicted or ())
            validation = [part[share].to(self.args.device) for part in self._validation[1]]
        self.calibration_loss.update(*validation)
        self._updates, self._validation, self._predicted = self._updates + 1, None, None

    def _write_report(self) -> None:
        """Write the report of the last evaluation, and add it to the runs of trackers."""
        if self._reported is None:
            self.predict(self.eval_dataset, metric_key_prefix="eval")
        predictions, self._reported, self._predicted = self._reported, None, None
        if predictions is None or self.calibration_report is None or not self.is_world_process_zero():
            return
        page = write_validation_report(predictions, self.calibration_report)
        for logger in filter(None, map(_logger_of, self.callback_handler.callbacks)):
            logger.log_report(page)

    def _load_loss(self, folder: Path) -> None:
        loss, path = self.calibration_loss, folder / LOSS_FILE
        if not loss.state_dict():
            return
        if not path.is_file():
            raise FormatError(f"{folder.name}: expected {LOSS_FILE}, the memory of {loss!r}, got none")
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
            self._updates = int((file.metadata() or {}).get("updates", 0))
        try:
            loss.load_state_dict(state)
        except RuntimeError as error:
            raise FormatError(
                f"{path.name}: expected the state of {loss!r}, got that of another loss"
            ) from error


class CalibratedTrainer(CalibrationTrainerMixin, Trainer):
    """The Trainer of ``transformers`` with a loss of Calibrant. See :class:`CalibrationTrainerMixin`."""


class _EpochEnds(TrainerCallback):
    def __init__(self, trainer: CalibrationTrainerMixin) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: _Own, state: _Own, control: _Own, **kwargs: _Own) -> None:  # noqa: ARG002  # a hook
        # A checkpoint by steps that falls on the end of an epoch is written before the update.
        self.trainer._update_due = self.trainer._updates < math.floor(state.epoch or 0)
        self.trainer._update_if_due()

    def on_epoch_end(self, args: _Own, state: _Own, control: _Own, **kwargs: _Own) -> None:  # noqa: ARG002  # a hook
        cut_short = control.should_training_stop and not math.isclose(state.epoch, round(state.epoch))
        self.trainer._update_due = not cut_short
        if not control.should_evaluate:
            self.trainer._update_if_due()

    def on_epoch_begin(self, args: _Own, state: _Own, control: _Own, **kwargs: _Own) -> None:  # noqa: ARG002  # a hook
        self.trainer._update_if_due()

    on_train_end = on_epoch_begin


class _TrainingEnds(TrainerCallback):
    def __init__(self, trainer: CalibrationTrainerMixin) -> None:
        self.trainer = trainer

    def on_train_end(self, args: _Own, state: _Own, control: _Own, **kwargs: _Own) -> None:  # noqa: ARG002  # a hook
        self.trainer._write_report()


def _logger_of(callback: TrainerCallback) -> Logger | None:
    """Return a logger that continues the run of a tracker's callback; None for other callbacks."""
    kinds = {kind.__name__ for kind in type(callback).__mro__}
    if "MLflowCallback" in kinds:
        return MLflowLogger()
    if "WandbCallback" in kinds:
        return WandbLogger()
    writer = getattr(callback, "tb_writer", None) if "TensorBoardCallback" in kinds else None
    return None if writer is None else TensorBoardLogger(writer=writer)


def _logits_of(outputs: _Own) -> Tensor:
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    got = f"only {', '.join(outputs)}" if isinstance(outputs, Mapping) else type(outputs).__name__
    raise InputError(f"model: expected outputs with logits, got {got}")


def _without_indices(loss: Loss) -> Loss:
    """Return the part of a loss that is defined for samples outside of the training set."""
    terms = zip(loss.weights, loss.terms, strict=True) if isinstance(loss, WeightedSum) else [(1.0, loss)]
    kept = [(weight, term) for weight, term in terms if isinstance(term, Loss) and not term.needs]
    return WeightedSum(kept) if kept else CrossEntropyLoss()
