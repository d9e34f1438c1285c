"""A training run, from a configuration to a folder with a network and its predictions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from lightning_fabric import Fabric

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.training.adversarial import fgsm
from calibrant.training.config.settings import Config
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.datasets.load import load_dataset
from calibrant.training.epoch_measures import refinement
from calibrant.training.folder import CONFIG, open_folder, save_network
from calibrant.training.network import Network, all_logits_and_features, make_network
from calibrant.training.optimization import start_from
from calibrant.training.processes import check_common_folder, is_first_process, make_fabric, share_of
from calibrant.training.records import EpochRow
from calibrant.training.session import CLASSIFIER, ENCODER, Session, Watcher
from calibrant.training.stages import train_classifier, train_encoder


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        config: Its configuration.
        folder: Its folder.
        network: The trained network, in evaluation mode.
        metrics: One row per epoch.
        dynamics: What the papers plot, one row per epoch.
        predictions: Those of ``validation`` and ``test``, of every shifted set as ``shifted/NAME``, and of
            every out-of-distribution set, without labels, as ``foreign/NAME``.
        refinement: For each stage, both AUROCs on the test part, with accuracy, ECE and NLL.
        is_main: Whether this process writes and prints.
    """

    config: Config
    folder: Path
    network: Network
    metrics: tuple[EpochRow, ...]
    dynamics: tuple[EpochRow, ...]
    predictions: Mapping[str, Predictions]
    refinement: Mapping[str, Mapping[str, float]]
    is_main: bool = True


def train(config: Config, folder: str | Path, *, resume: bool = False, watcher: Watcher | None = None) -> Run:
    """Train a network, and write it, its measures and its predictions.

    If the run is killed at any moment, the same call with ``resume=True`` continues from the last checkpoint;
    on CPUs it ends with the weights of an uninterrupted run.

    Args:
        config: The settings.
        folder: Where to write; a folder that already contains a run is refused unless ``resume`` is set.
        resume: Continue the run in the folder, if there is one.
        watcher: Receives the progress.
    """
    watcher = watcher or Watcher()
    fabric = make_fabric(config.hardware)
    folder = Path(folder)
    # This comes before the other processes start, because they would wait for one that has failed.
    if is_first_process():
        open_folder(folder, config, resume=resume)
    fabric.launch()
    fabric.barrier()
    check_common_folder(fabric, folder / CONFIG)
    if not fabric.is_global_zero:
        watcher = Watcher()
    watcher.doing("reading the data")
    settings = dict(vars(config.data))
    splits = load_dataset(**settings.pop("options"), **settings, seed=config.seed)
    if config.output.fgsm and splits.test.kind != "image":
        raise InputError(f"output.fgsm: expected images, got {splits.test.kind} inputs; leave it out")
    if config.output.fgsm and splits.test.stored is not None:
        raise InputError("output.fgsm: expected images in memory, got streamed ones; leave it out")
    start_from(config.seed)
    network = make_network(config.model, splits)
    if config.hardware.sync_batchnorm:
        network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)
    network.to(fabric.device)
    session = Session(fabric, folder, config, watcher)
    if resume:
        session.resume(network)
    stages: dict[str, dict[str, float]] = {}
    try:
        if config.first_stage is not None:
            stages[ENCODER] = train_encoder(session, config.first_stage, network, splits)
        train_classifier(session, network, splits)
    finally:
        session.records.close()
    network.eval()
    watcher.doing("predicting")
    predictions = _predict(fabric, config, network, splits)
    test = predictions["test"]
    assert test.labels is not None
    stages[CLASSIFIER] = refinement(test.to_logits(), test.labels)
    session.write(lambda: save_network(folder, config, network, splits, predictions))
    return Run(
        config,
        folder,
        network,
        tuple(session.records.metrics),
        tuple(session.records.dynamics),
        predictions,
        stages,
        fabric.is_global_zero,
    )


def _predict(fabric: Fabric, config: Config, network: Network, splits: Splits) -> dict[str, Predictions]:
    parts = {"validation": splits.validation, "test": splits.test}
    parts |= {f"shifted/{name}": part for name, part in splits.shifted.items()}
    for shades in config.output.fgsm:
        parts[f"shifted/fgsm-{shades}"] = _attacked(fabric, network, splits.test, shades)
    parts |= {f"foreign/{name}": part for name, part in splits.foreign.items()}
    predictions = {}
    for name, data in parts.items():
        logits, features = all_logits_and_features(fabric, network, data)
        predictions[name] = Predictions(
            logits=logits,
            labels=None if name.startswith("foreign/") else data.labels,
            features=features if config.output.features else None,
            units=data.units,
            class_names=splits.train.class_names,
            metadata={
                "data": config.data.name,
                "part": name,
                "model": config.model.name,
                "loss": config.training.loss,
                "encoder": _encoder_loss(config),
                "seed": str(config.seed),
            },
        )
    return predictions


def _encoder_loss(config: Config) -> str:
    encoder = config.encoder
    if encoder is None:
        return ""
    return encoder.loss if encoder.joint is None else f"{encoder.joint:g} * {encoder.loss}"


def _attacked(fabric: Fabric, network: Network, test: LabelledData, shades: int) -> LabelledData:
    """Return the test part with the images that this process predicts moved by FGSM."""
    rows = share_of(fabric).rows(len(test))
    inputs = test.inputs.clone()
    if len(inputs[rows]):
        inputs[rows] = fgsm(network, inputs[rows], test.labels[rows], epsilon=shades / 255)
    return replace(test, inputs=inputs)
