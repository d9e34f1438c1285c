"""The settings of a training run: frozen values that check themselves when they are made."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from calibrant.errors import InputError


@dataclass(frozen=True)
class DataSettings:
    """The data set; the keys are those of :func:`~calibrant.training.datasets.load_dataset`.

    Attributes:
        name: ``digits``, ``cifar10``, ``cifar100``, ``svhn``, ``stl10``, ``image_folder``, ``arrays``,
            ``embeddings``, ``text``, or ``"module:function"``.
        path: Its file or folder; ``digits`` needs none.
        validation: Share of the training part that becomes the validation part, if the set has none.
        limit: Number of training samples to keep, the same share of each class.
        imbalance: Ratio of the rarest class to the most common, for a long tail.
        label_noise: Share of the training labels that are replaced by wrong ones.
        corruptions: Shifted test sets, such as ``"contrast"`` or ``"contrast-3"``.
        foreign: Out-of-distribution sets by name, each as ``"cifar100:folder"``.
        foreign_classes: Classes that are held out of training and become an out-of-distribution set.
        options: Further options of the loader of this set.
    """

    name: str = "digits"
    path: str | None = None
    validation: float = 0.2
    limit: int | None = None
    imbalance: float | None = None
    label_noise: float = 0.0
    corruptions: tuple[str, ...] = ()
    foreign: Mapping[str, str] = field(default_factory=dict)
    foreign_classes: tuple[str | int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSettings:
    """The network.

    Attributes:
        name: One of :data:`~calibrant.training.models.MODELS`, or ``"module:factory"``.
        options: Further keywords of the model.
    """

    name: str = "mlp"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimiser.

    Attributes:
        name: ``sgd``, ``adam`` or ``adamw``.
        lr: The highest step size.
        momentum: Of ``sgd``.
        nesterov: Of ``sgd``.
        betas: Of ``adam`` and ``adamw``.
        weight_decay: Strength of the weight decay.
        decay: Decay ``"all"`` weights, or only ``"matrices"``, not biases and scales of normalisation.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 5e-4
    decay: Literal["all", "matrices"] = "all"

    def __post_init__(self) -> None:
        _check(0 < self.lr < math.inf, "lr", "a positive number", self.lr)
        _check(0 <= self.momentum < 1, "momentum", "a number from 0 to below 1", self.momentum)
        _check(not self.nesterov or self.momentum > 0, "nesterov", "a momentum with it", 0)
        _check(all(0 <= beta < 1 for beta in self.betas), "betas", "two below 1", self.betas)
        _check(0 <= self.weight_decay < math.inf, "weight_decay", "a number from 0", self.weight_decay)


@dataclass(frozen=True)
class ScheduleSettings:
    """How the step size changes during training.

    Attributes:
        name: ``constant``, ``multistep``, ``cosine`` or ``linear``; the last two fall to ``final``.
        warmup: Share of the training during which the step size rises from 0.
        milestones: Epochs after which ``multistep`` multiplies the step size by ``factor``.
        factor: Of ``multistep``.
        final: Share of the step size that is left at the end of ``cosine`` and ``linear``.
    """

    name: Literal["constant", "multistep", "cosine", "linear"] = "cosine"
    warmup: float = 0.0
    milestones: tuple[float, ...] = ()
    factor: float = 0.1
    final: float = 0.0

    def __post_init__(self) -> None:
        _check(0 <= self.warmup < 1, "warmup", "a share from 0 to below 1", self.warmup)
        _check(0 < self.factor < math.inf, "factor", "a positive number", self.factor)
        _check(0 <= self.final <= 1, "final", "a share from 0 to 1", self.final)
        rising = all(low < high for low, high in zip((0, *self.milestones), self.milestones, strict=False))
        _check(rising, "milestones", "rising epochs above 0", self.milestones)
        if self.name == "multistep":
            _check(bool(self.milestones), "milestones", "at least one epoch for multistep", self.milestones)
        else:
            _check(not self.milestones, "milestones", f"none for {self.name}", self.milestones)


@dataclass(frozen=True)
class StageSettings:
    """The settings of every stage of training.

    Attributes:
        loss: A name or a sum, as :func:`~calibrant.losses.names.make_loss` reads it, with
            ``"module:Class(option=1)"`` for a loss of your own.
        epochs: Passes over the training part.
        batch_size: Samples of a step, over all processes.
        clip_gradient: Largest norm of the gradient, or none.
        augment: Whether images are shifted and mirrored.
        padding: Largest shift in pixels; an eighth of the height if not given.
        flip: Whether images are mirrored; if not given, all but those of digits are.
        optimizer: The optimiser.
        schedule: How the step size changes.
    """

    loss: str = "cross_entropy"
    epochs: int = 30
    batch_size: int = 128
    clip_gradient: float | None = None
    augment: bool = True
    padding: int | None = None
    flip: bool | None = None
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)

    def __post_init__(self) -> None:
        _check(self.epochs >= 1, "epochs", "at least 1", self.epochs)
        _check(self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)
        clip = self.clip_gradient
        _check(clip is None or 0 < clip < math.inf, "clip_gradient", "a positive number", clip)
        _check(self.padding is None or self.padding >= 0, "padding", "pixels from 0", self.padding)


@dataclass(frozen=True)
class TrainingSettings(StageSettings):
    """The stage that trains a classifier: the only one, or the second after that of an encoder.

    Attributes:
        keep: Which epoch's weights are kept: the ``"last"``, or the best by validation ``"nll"``,
            ``"nll_after_temperature"`` (the NLL that a fitted temperature leaves), ``"brier"`` or
            ``"accuracy"``.
        keep_after: Epochs before the search for the best one begins.
    """

    keep: Literal["last", "nll", "nll_after_temperature", "brier", "accuracy"] = "last"
    keep_after: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = 0 <= self.keep_after < self.epochs
        _check(fits, "keep_after", f"a number from 0 to {self.epochs - 1}", self.keep_after)


@dataclass(frozen=True)
class EncoderSettings(StageSettings):
    """RefCal's contrastive loss: an encoder learns which samples are alike, through a temporary projection.

    It is a stage of its own before the classifier's, or, with ``joint``, a term of the classifier's loss.

    Attributes:
        joint: Weight of the loss beside the classifier's, to train both at once; if not given, the encoder is
            trained first and then frozen. Epochs, batches, optimiser and schedule are then those of
            ``[training]``, and images are augmented if both tables ask for it.
        projection: Number of coordinates that the loss compares.
        hidden: Width of the projection's hidden layer; that of the features if not given, 0 for none.
        views: Augmented versions of each sample in a batch; if not given, two for images and one for others.
            Without augmentation, ``joint`` has one for images too.
        views_by: How images are augmented: ``"shift"`` (if not given), ``"crop"`` for resized crops, or
            ``"colour"`` for resized crops in changed colours; all of them with mirror images.
    """

    loss: str = "supervised_contrastive(temperature=0.1)"
    joint: float | None = None
    projection: int = 128
    hidden: int | None = None
    views: int | None = None
    views_by: Literal["shift", "crop", "colour"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.joint is not None:
            _check(0 < self.joint < math.inf, "joint", "a positive number", self.joint)
            self._check_joint()
        _check(self.projection >= 1, "projection", "at least 1", self.projection)
        _check(self.hidden is None or self.hidden >= 0, "hidden", "a width from 0", self.hidden)
        _check(self.views is None or self.views >= 1, "views", "at least 1", self.views)

    def _check_joint(self) -> None:
        """Refuse the settings of a stage of its own."""
        usual = StageSettings()
        for name in ("epochs", "batch_size", "clip_gradient", "optimizer", "schedule"):
            value = getattr(self, name)
            if value != getattr(usual, name):
                got = value if isinstance(value, int | float) else "one"
                raise InputError(
                    f"{name}: expected none beside joint, which has no stage of its own, got {got}; "
                    f"set training.{name} instead"
                )


@dataclass(frozen=True)
class PosthocSettings:
    """The post-hoc methods to fit on the validation part after training.

    Attributes:
        methods: Names of post-hoc methods, with options as in ``"smart(settled=0)"``; the uncalibrated model
            is always compared too.
        choose: The method to save: a name, or ``"auto"`` to choose as ``calibrant calibrate`` does.
        score: What decides an automatic choice, as in ``calibrant calibrate --criterion``.
        simple: Whether it prefers the simplest method, as in ``calibrant calibrate --simple``.
        folds: Folds of the cross-validation.
    """

    methods: tuple[str, ...] = ("temperature", "smart")
    choose: str = "auto"
    score: Literal["nll", "brier", "ece", "classwise_ece"] = "nll"
    simple: bool = False
    folds: int = 5

    def __post_init__(self) -> None:
        _check(self.folds >= 2, "folds", "at least 2", self.folds)


# A machine has no more; a mistyped number would start as many processes.
_MOST_DEVICES = 64


@dataclass(frozen=True)
class HardwareSettings:
    """The hardware; these settings are passed to Lightning Fabric.

    Attributes:
        accelerator: ``auto``, ``cpu``, ``cuda``, ``mps``.
        devices: Number of processes on this machine, or ``"auto"``.
        num_nodes: Number of machines.
        strategy: ``auto``, ``ddp``, ...
        precision: ``32-true``, ``bf16-mixed``, ``16-mixed``, ...
        sync_batchnorm: Whether batch normalisation sees the batch of all processes (GPUs only).
        threads: Threads of each process on CPUs; torch's choice if not given.
    """

    accelerator: str = "auto"
    devices: int | str = "auto"
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    sync_batchnorm: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        most = max(_MOST_DEVICES, os.cpu_count() or 1)
        fits = not isinstance(self.devices, int) or -1 <= self.devices <= most  # -1 stands for all of them
        _check(fits, "devices", f"at most {most}, a process for each", self.devices)
        _check(self.num_nodes >= 1, "num_nodes", "at least 1", self.num_nodes)
        _check(self.threads is None or self.threads >= 1, "threads", "at least 1", self.threads)


@dataclass(frozen=True)
class OutputSettings:
    """The files that are written beside the model.

    Attributes:
        dynamics: Training samples that are measured after each epoch; 0 writes no dynamics.
        features: Whether penultimate features are saved with the predictions.
        fgsm: Shifted test sets whose images the fast gradient sign method has moved by this many of 255
            shades.
        tensorboard: Whether TensorBoard's files are written, if it is installed.
        checkpoint_every: Epochs between checkpoints.
    """

    dynamics: int = 2000
    features: bool = True
    fgsm: tuple[int, ...] = ()
    tensorboard: bool = True
    checkpoint_every: int = 1

    def __post_init__(self) -> None:
        _check(self.dynamics >= 0, "dynamics", "a number of samples from 0", self.dynamics)
        fits = all(1 <= shades <= 255 for shades in self.fgsm)
        _check(fits, "fgsm", "whole numbers of shades from 1 to 255", list(self.fgsm))
        _check(self.checkpoint_every >= 1, "checkpoint_every", "at least 1", self.checkpoint_every)


@dataclass(frozen=True)
class Config:
    """All settings of a run.

    Attributes:
        seed: Equal seeds give equal runs, on CPUs to the bit.
        encoder: RefCal's encoder, if any: a first stage, or a term of the classifier's loss.
    """

    seed: int = 0
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    encoder: EncoderSettings | None = None
    training: TrainingSettings = field(default_factory=TrainingSettings)
    posthoc: PosthocSettings = field(default_factory=PosthocSettings)
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    output: OutputSettings = field(default_factory=OutputSettings)

    def __post_init__(self) -> None:
        _check(self.seed >= 0, "seed", "a whole number from 0", self.seed)

    @property
    def first_stage(self) -> EncoderSettings | None:
        """The settings of the encoder, if it is trained in a stage of its own."""
        return None if self.encoder is None or self.encoder.joint is not None else self.encoder


def _check(holds: bool, name: str, expected: str, got: object) -> None:
    if not holds:
        raise InputError(f"{name}: expected {expected}, got {got!r}")
