"""The epochs of a stage: train, measure, write down, checkpoint; from the start or from where it was."""

import time
from dataclasses import replace
from functools import partial
from typing import Any

from calibrant.errors import FitError, FormatError
from calibrant.training.checkpoint import (
    FOLDER,
    MANIFEST,
    Best,
    Checkpoint,
    fill,
    load_state,
    save_state,
    save_weights,
    write_checkpoint,
)
from calibrant.training.config.settings import StageSettings, TrainingSettings
from calibrant.training.measure import Measure, Measured
from calibrant.training.session import Session
from calibrant.training.stage import Stage, Trainer


def run_stage(session: Session, stage: Stage, measure: Measure) -> None:
    """Train the epochs of a stage that are still to do, and leave the network with the weights to keep.

    Args:
        session: The run.
        stage: What to train.
        measure: Called after each epoch.
    """
    trainer = Trainer(
        session.fabric,
        stage,
        seed=session.config.seed,
        stepped=session.watcher.stepped,
        last_good=session.last_good,
    )
    saver = _Saver(session, stage, trainer)
    done = saver.resume()
    session.watcher.started(stage.name, epochs=stage.settings.epochs, steps=trainer.steps, done=done)
    for epoch in range(done + 1, stage.settings.epochs + 1):
        start = time.perf_counter()
        mean_loss = trainer.epoch(epoch)
        train_seconds = time.perf_counter() - start
        try:
            measured = measure(epoch, trainer.loss)
        except FitError as error:
            raise FitError(f"{error}; {session.last_good()}") from error
        row = {
            "stage": stage.name,
            "epoch": epoch,
            "lr": trainer.step_size,
            "train_loss": mean_loss,
            **measured.row,
            "train_seconds": train_seconds,
            "seconds": time.perf_counter() - start,
        }
        dynamics = None if measured.dynamics is None else {"stage": stage.name, **measured.dynamics}
        session.watcher.measured(row)
        session.write(partial(session.records.add, row, dynamics))
        saver.save(epoch, measured)
    saver.finish()


class _Saver:
    """Writes the checkpoints of a stage, on the first process, and remembers the best epoch."""

    def __init__(self, session: Session, stage: Stage, trainer: Trainer) -> None:
        self.session = session
        self.stage = stage
        self.trainer = trainer
        self.best: Best | None = None

    def resume(self) -> int:
        """Take up the weights and the state of the last checkpoint; return the epochs that are done."""
        last = self.session.checkpoint
        if last is None or last.stage != self.stage.name or last.state is None:
            return 0
        folder = self.session.folder
        saved = load_state(folder / last.state)
        fill(self.stage.whole, folder / last.weights)
        try:
            self.trainer.optimizer.load_state_dict(saved["optimizer"])
            self.trainer.loss.load_state_dict(saved["loss"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise FormatError(
                f"{folder / MANIFEST}: expected the checkpoint of this model, got another ({error})"
            ) from error
        self.best = last.best
        return last.epoch

    def save(self, epoch: int, measured: Measured) -> None:
        """Write a checkpoint if one is due."""
        session, stage = self.session, self.stage
        score = _score(stage.settings, epoch, measured)
        better = score is not None and (self.best is None or score > self.best.score)
        if better and score is not None:
            self.best = Best(epoch, score, f"{FOLDER}/{stage.name}-best-{epoch:04d}.safetensors")
        due = epoch % session.config.output.checkpoint_every == 0 or better
        if epoch == stage.settings.epochs or not due:
            return
        name = f"{FOLDER}/{stage.name}-{epoch:04d}"
        checkpoint = Checkpoint(
            stage.name, epoch, False, f"{name}.safetensors", state=f"{name}.pt", best=self.best
        )
        session.write(partial(self._write, checkpoint, better=better))
        session.checkpoint = checkpoint

    def _write(self, checkpoint: Checkpoint, *, better: bool) -> None:
        """Write the files of a checkpoint, then the one that names them."""
        folder, stage = self.session.folder, self.stage
        if better and checkpoint.best is not None:
            save_weights(folder / checkpoint.best.weights, stage.network.state_dict())
        save_weights(folder / checkpoint.weights, stage.whole.state_dict())
        if checkpoint.state is not None:
            optimizer, loss = self.trainer.optimizer.state_dict(), self.trainer.loss.state_dict()
            save_state(folder / checkpoint.state, {"optimizer": optimizer, "loss": loss})
        write_checkpoint(folder, checkpoint)

    def finish(self) -> None:
        """Keep the best weights, or the last, and say that the stage is over."""
        session, stage, best = self.session, self.stage, self.best
        session.fabric.barrier()
        if best is not None and best.epoch < stage.settings.epochs:
            fill(stage.network, session.folder / best.weights)
        session.fabric.barrier()
        path = f"{FOLDER}/{stage.name}-kept.safetensors"
        named = None if best is None else replace(best, weights=path)
        kept = Checkpoint(stage.name, stage.settings.epochs, True, path, best=named)

        def write() -> None:
            save_weights(session.folder / path, stage.network.state_dict())
            write_checkpoint(session.folder, kept)

        session.write(write)
        session.checkpoint = kept


def _score(settings: StageSettings, epoch: int, measured: Measured) -> float | None:
    """Return how good an epoch is, higher being better; none if the last one is kept or it is too early."""
    if not isinstance(settings, TrainingSettings) or settings.keep == "last" or epoch <= settings.keep_after:
        return None
    value: Any = measured.row[f"val_{settings.keep}"]
    return float(value) if settings.keep == "accuracy" else -float(value)
