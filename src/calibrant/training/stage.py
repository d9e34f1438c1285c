"""What is trained in a stage, and the steps of its epochs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from calibrant.errors import FitError
from calibrant.losses.loss import Loss
from calibrant.training.batches import Batch, Share, epoch_batches, n_batches
from calibrant.training.config.settings import StageSettings
from calibrant.training.datasets.augment import augment
from calibrant.training.datasets.dataset import LabelledData
from calibrant.training.network import Network
from calibrant.training.optimizers import make_optimizer
from calibrant.training.predict import agree_on_buffers, share_of
from calibrant.training.schedules import step_size_factor
from calibrant.training.seeds import seed_of, start_from

# Reading the loss makes the processor wait for a GPU, so there it is done only now and then.
_READ_EVERY = 25


@dataclass(frozen=True, eq=False)
class Stage:
    """What is trained, on what, and how.

    Attributes:
        name: ``"encoder"`` or ``"classifier"``.
        number: Its place among the stages, which random numbers depend on.
        settings: Loss, epochs, batches, optimiser.
        module: Makes of a batch of inputs what the loss reads; its parameters are trained.
        network: What is kept when the stage is over; the module is a part of it, or it of the module.
        whole: What a checkpoint must hold to go on.
        loss: What is made small.
        data: The training part.
        views: Versions of each sample in a batch.
        flip: Whether images are mirrored, if the settings do not say.
    """

    name: str
    number: int
    settings: StageSettings
    module: nn.Module
    network: Network
    whole: nn.Module
    loss: Loss
    data: LabelledData
    views: int = 1
    flip: bool = True


class Trainer:
    """Makes the steps of a stage.

    Args:
        fabric: Where it runs.
        stage: What is trained.
        seed: That of the run.
        stepped: Called with the epoch, the step and the loss.
        last_good: Returns the name of the last checkpoint, for the error if training fails.
    """

    def __init__(
        self,
        fabric: Fabric,
        stage: Stage,
        *,
        seed: int,
        stepped: Callable[[int, int, float], None],
        last_good: Callable[[], str],
    ) -> None:
        self.fabric = fabric
        self.stage = stage
        self.seed = seed
        self.stepped = stepped
        self.last_good = last_good
        module, optimizer = fabric.setup(
            stage.module, make_optimizer(stage.settings.optimizer, stage.module.parameters())
        )
        self.module: nn.Module = module
        self.optimizer: Any = optimizer
        self.loss = stage.loss.to(fabric.device)
        self.share: Share = share_of(fabric)
        self.steps = n_batches(len(stage.data), stage.settings.batch_size, self.share)
        self._read_every = 1 if fabric.device.type == "cpu" else _READ_EVERY

    def epoch(self, epoch: int) -> float:
        """Train one epoch, counted from 1, and return its mean loss over all processes."""
        place = (self.stage.number, epoch)
        # Dropout differs between processes, the order of samples does not; a last 0 would not change a seed.
        start_from(self.seed, *place, 1 + self.share.rank)
        generator = torch.Generator().manual_seed(seed_of(self.seed, *place, 1 << 30))
        batches = epoch_batches(
            len(self.stage.data),
            self.stage.settings.batch_size,
            seed=seed_of(self.seed, *place),
            share=self.share,
        )
        self.module.train()
        self.loss.train()
        losses: list[Tensor] = []
        for step, batch in zip(count(1), batches, strict=False):
            losses.append(self._step(epoch, step, batch, generator))
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
        extra = {"indices": batch.rows.to(labels.device)} if "indices" in self.loss.needs else {}
        loss = self.loss(outputs, labels, **extra)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        if settings.clip_gradient is not None:
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=settings.clip_gradient)
        value: Tensor = loss.detach()
        if step % self._read_every == 0 or step == self.steps:
            # That of all processes: none may wait for one that has stopped.
            number = float(cast("Tensor", self.fabric.all_reduce(value.clone(), reduce_op="mean")))
            if not math.isfinite(number):
                raise self._failed(epoch, step, inputs, labels, outputs.detach(), number)
            self.stepped(epoch, step, number)
        self.optimizer.step()
        return value

    def _inputs(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the inputs of a step, all views one after the other, and the labels of each."""
        data, settings = self.stage.data, self.stage.settings
        inputs = data.inputs[batch.rows].to(self.fabric.device)
        labels = data.labels[batch.rows].to(self.fabric.device)
        views = [inputs] * self.stage.views
        if settings.augment and data.kind == "image":
            padding = inputs.shape[2] // 8 if settings.padding is None else settings.padding
            flip = self.stage.flip if settings.flip is None else settings.flip
            part = (batch.size, batch.place)
            views = [
                augment(view, padding=padding, flip=flip, generator=generator, part=part) for view in views
            ]
        if len(views) == 1:
            return views[0], labels
        return torch.cat(views), labels.repeat(len(views))

    def _failed(
        self, epoch: int, step: int, inputs: Tensor, labels: Tensor, outputs: Tensor, loss: float
    ) -> FitError:
        good = outputs[outputs.isfinite()]
        said = (
            f"outputs from {float(good.min()):.3g} to {float(good.max()):.3g}, "
            f"{outputs.numel() - good.numel()} of {outputs.numel()} not finite"
            if good.numel()
            else "no finite output"
        )
        return FitError(
            f"training: expected a finite loss, got {loss} in epoch {epoch}, step {step} of {self.steps} of "
            f"the {self.stage.name}; the batch has {len(labels)} samples of {len(labels.unique())} classes, "
            f"inputs from {float(inputs.min()):.3g} to {float(inputs.max()):.3g} with mean "
            f"{float(inputs.float().mean()):.3g}, {said}, at step size {self.step_size:.3g}; "
            f"{self.last_good()}; go on from it with a lower optimizer.lr or with clip_gradient, or choose "
            "another loss"
        )
