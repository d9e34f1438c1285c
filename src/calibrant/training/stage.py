"""A stage of training: its steps, its epochs, and its checkpoints."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from calibrant.errors import FitError, FormatError
from calibrant.losses.loss import Loss
from calibrant.training.batches import Batch, epoch_batches, n_batches
from calibrant.training.checkpoint import (
    FOLDER,
    MANIFEST,
    Best,
    Checkpoint,
    StageName,
    fill,
    load_state,
    save_state,
    save_weights,
    write_checkpoint,
)
from calibrant.training.config.settings import StageSettings, TrainingSettings
from calibrant.training.datasets.dataset import LabelledData
from calibrant.training.epoch_measures import EpochEvaluator, EpochMeasures
from calibrant.training.network import Network
from calibrant.training.optimization import make_optimizer, seed_of, start_from, step_size_factor
from calibrant.training.processes import agree_on_buffers, share_of
from calibrant.training.session import Session
from calibrant.training.views import Views

# Reading the loss waits for the GPU, so it is read once in this many steps there.
_READ_EVERY = 25


@dataclass(frozen=True, eq=False)
class Stage:
    """What a stage trains, and how.

    Attributes:
        name: ``"encoder"`` or ``"classifier"``.
        number: Number of the stage, on which random numbers depend.
        settings: Loss, epochs, batches, optimiser.
        module: Turns a batch of inputs into what the loss reads, a tensor or several; its parameters are
            trained.
        network: The network whose weights are kept when the stage is over.
        whole: The module whose weights a checkpoint needs to resume.
        loss: The loss.
        data: The training part.
        views: What a step sees of each sample.
    """

    name: StageName
    number: int
    settings: StageSettings
    module: nn.Module
    network: Network
    whole: nn.Module
    loss: Loss
    data: LabelledData
    views: Views


def run_stage(session: Session, stage: Stage, evaluator: EpochEvaluator) -> None:
    """Train the remaining epochs of a stage and leave the network with the weights to keep."""
    trainer = Trainer(session, stage)
    saver = _Saver(session, stage, trainer)
    done = saver.resume()
    session.watcher.started(stage.name, epochs=stage.settings.epochs, steps=trainer.steps, done=done)
    for epoch in range(done + 1, stage.settings.epochs + 1):
        start = time.perf_counter()
        mean_loss = trainer.epoch(epoch)
        train_seconds = time.perf_counter() - start
        try:
            measures = evaluator(epoch, trainer.loss)
        except FitError as error:
            raise FitError(f"{error}; {session.last_good()}") from error
        row = {
            "stage": stage.name,
            "epoch": epoch,
            "lr": trainer.step_size,
            "train_loss": mean_loss,
            **measures.row,
            "train_seconds": train_seconds,
            "seconds": time.perf_counter() - start,
        }
        dynamics = None if measures.dynamics is None else {"stage": stage.name, **measures.dynamics}
        session.watcher.epoch_ended(row)
        session.write(partial(session.records.add, row, dynamics))
        saver.save(epoch, measures)
    saver.finish()


class Trainer:
    """Makes the steps of a stage."""

    def __init__(self, session: Session, stage: Stage) -> None:
        self.session, self.stage = session, stage
        fabric = self.fabric = session.fabric
        optimizer = make_optimizer(stage.settings.optimizer, stage.module.parameters())
        self.module: nn.Module
        self.optimizer: Any
        self.module, self.optimizer = fabric.setup(stage.module, optimizer)
        self.loss = stage.loss.to(fabric.device)
        self.loss.expect_updates()
        self.share = share_of(fabric)
        self.steps = n_batches(len(stage.data), stage.settings.batch_size, self.share)
        self._read_every = 1 if fabric.device.type == "cpu" else _READ_EVERY

    def epoch(self, epoch: int) -> float:
        """Train one epoch, counted from 1, and return its mean loss over all processes."""
        place = (self.session.config.seed, self.stage.number, epoch)
        # Dropout differs between processes, the order of samples does not. The rank counts from 1 here,
        # because a final 0 would not change the seed.
        start_from(*place, 1 + self.share.rank)
        generator = torch.Generator().manual_seed(seed_of(*place, 1 << 30))
        batch_size = self.stage.settings.batch_size
        batches = epoch_batches(len(self.stage.data), batch_size, seed=seed_of(*place), share=self.share)
        self.module.train()
        self.loss.train()
        losses = [self._step(epoch, step, batch, generator) for step, batch in enumerate(batches, 1)]
        agree_on_buffers(self.stage.whole)
        mean = torch.stack(losses).double().mean()
        return float(cast("Tensor", self.fabric.all_reduce(mean, reduce_op="mean")))

    @property
    def step_size(self) -> float:
        """The step size of the last step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _step(self, epoch: int, step: int, batch: Batch, generator: torch.Generator) -> Tensor:
        settings = self.stage.settings
        done = ((epoch - 1) * self.steps + step - 1) / (settings.epochs * self.steps)
        size = settings.optimizer.lr * step_size_factor(settings.schedule, done, epochs=settings.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = size
        inputs, labels = self._inputs(batch, generator)
        outputs = self.module(inputs)
        loss = self.loss(outputs, labels, **self._extra(batch))
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        if settings.clip_gradient is not None:
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=settings.clip_gradient)
        value: Tensor = loss.detach()
        if step % self._read_every == 0 or step == self.steps:
            # All processes check the same mean: none may wait for one that has stopped.
            number = float(cast("Tensor", self.fabric.all_reduce(value.clone(), reduce_op="mean")))
            if not math.isfinite(number):
                raise self._failed(epoch, step, inputs, labels, _joined(outputs), number)
            self.session.watcher.stepped(epoch, step, number)
        self.optimizer.step()
        return value

    def _inputs(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the inputs of a step, one view of all samples after the other, and their labels."""
        data = self.stage.data
        labels = data.labels[batch.rows].to(self.fabric.device)
        part = (batch.size, batch.place)
        views = self.stage.views.of(
            data, batch.rows, generator=generator, part=part, device=self.fabric.device
        )
        if len(views) == 1:
            return views[0], labels
        return torch.cat(views), labels.repeat(len(views))

    def _extra(self, batch: Batch) -> dict[str, Tensor]:
        """Return what the loss needs beside outputs and labels."""
        if "indices" not in self.loss.needs:
            return {}
        return {"indices": batch.rows.to(self.fabric.device).repeat(self.stage.views.count)}

    def _failed(
        self, epoch: int, step: int, inputs: Tensor, labels: Tensor, outputs: Tensor, loss: float
    ) -> FitError:
        finite = outputs[outputs.isfinite()]
        seen = (
            f"outputs from {float(finite.min()):.3g} to {float(finite.max()):.3g}, "
            f"{outputs.numel() - finite.numel()} of {outputs.numel()} not finite"
            if finite.numel()
            else "no finite output"
        )
        return FitError(
            f"training: expected a finite loss, got {loss} in epoch {epoch}, step {step} of {self.steps} of "
            f"the {self.stage.name}; the batch has {len(labels)} samples of {len(labels.unique())} classes, "
            f"inputs from {float(inputs.min()):.3g} to {float(inputs.max()):.3g} with mean "
            f"{float(inputs.float().mean()):.3g}, {seen}, at step size {self.step_size:.3g}; "
            f"{self.session.last_good()}; resume from it with a lower optimizer.lr or with clip_gradient, "
            "or choose another loss"
        )


class _Saver:
    """Writes the checkpoints of a stage, on the first process, and remembers the best epoch."""

    def __init__(self, session: Session, stage: Stage, trainer: Trainer) -> None:
        self.session, self.stage, self.trainer = session, stage, trainer
        self.best: Best | None = None

    def resume(self) -> int:
        """Load the weights and the state of the last checkpoint; return the number of finished epochs."""
        last = self.session.checkpoint
        if last is None or last.stage != self.stage.name or last.state is None:
            return 0
        folder = self.session.folder
        saved = load_state(folder / last.state)
        fill(self.stage.whole, folder / last.weights)
        try:
            self.trainer.optimizer.load_state_dict(saved["optimizer"])
            self.trainer.loss.load_state_dict(saved["loss"])
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise FormatError(
                f"{folder / MANIFEST}: expected the checkpoint of this model, got another ({error})"
            ) from error
        self.best = last.best
        return last.epoch

    def save(self, epoch: int, measures: EpochMeasures) -> None:
        """Write a checkpoint if one is due."""
        session, stage = self.session, self.stage
        score = _score(stage.settings, epoch, measures)
        better: dict[str, nn.Module] = {}
        if score is not None and (self.best is None or score > self.best.score):
            self.best = Best(epoch, score, f"{FOLDER}/{stage.name}-best-{epoch:04d}.safetensors")
            better = {self.best.weights: stage.network}
        due = epoch % session.config.output.checkpoint_every == 0 or better
        if epoch == stage.settings.epochs or not due:
            return
        name = f"{FOLDER}/{stage.name}-{epoch:04d}"
        checkpoint = Checkpoint(
            stage.name, epoch, False, f"{name}.safetensors", state=f"{name}.pt", best=self.best
        )
        self._write(checkpoint, {**better, checkpoint.weights: stage.whole})

    def _write(self, checkpoint: Checkpoint, weights: Mapping[str, nn.Module]) -> None:
        """Write the files of a checkpoint, then the file that names them."""
        folder = self.session.folder

        def write() -> None:
            for path, module in weights.items():
                save_weights(folder / path, module.state_dict())
            if checkpoint.state is not None:
                optimizer, loss = self.trainer.optimizer.state_dict(), self.trainer.loss.state_dict()
                save_state(folder / checkpoint.state, {"optimizer": optimizer, "loss": loss})
            write_checkpoint(folder, checkpoint)

        self.session.write(write)
        self.session.checkpoint = checkpoint

    def finish(self) -> None:
        """Keep the best weights, or the last, and mark the stage as finished."""
        session, stage, best = self.session, self.stage, self.best
        session.fabric.barrier()
        if best is not None and best.epoch < stage.settings.epochs:
            fill(stage.network, session.folder / best.weights)
        session.fabric.barrier()
        path = f"{FOLDER}/{stage.name}-kept.safetensors"
        named = None if best is None else replace(best, weights=path)
        kept = Checkpoint(stage.name, stage.settings.epochs, True, path, best=named)
        self._write(kept, {path: stage.network})


def _score(settings: StageSettings, epoch: int, measures: EpochMeasures) -> float | None:
    """Return the score of an epoch, higher is better; None if it cannot become the best one."""
    if not isinstance(settings, TrainingSettings) or settings.keep == "last" or epoch <= settings.keep_after:
        return None
    value = float(measures.row[f"val_{settings.keep}"])
    return value if settings.keep == "accuracy" else -value


def _joined(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return all numbers of a module's outputs in one row, without their gradients."""
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.cat([each.detach().flatten().float() for each in several])
