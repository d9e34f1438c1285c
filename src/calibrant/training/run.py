"""A whole training run: from a configuration to a folder with a model and its predictions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning_fabric import Fabric

from calibrant.data.predictions import Predictions
from calibrant.training.config.settings import Config
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.datasets.load import load_dataset
from calibrant.training.folder import CONFIG, open_folder, save_outcome
from calibrant.training.measure import refinement
from calibrant.training.network import Network, make_network
from calibrant.training.predict import all_logits_and_features
from calibrant.training.processes import check_common_folder, make_fabric
from calibrant.training.records import Row
from calibrant.training.seeds import start_from
from calibrant.training.session import CLASSIFIER, ENCODER, Session
from calibrant.training.stages import train_classifier, train_encoder
from calibrant.training.watch import Watcher, is_first_process


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        config: What was asked for.
        folder: Where everything is.
        network: The trained network, in evaluation mode.
        metrics: One row per epoch.
        dynamics: What the papers plot, one row per epoch.
        predictions: Those of ``validation`` and ``test``, of every shifted set as ``shifted/NAME``, and of
            every foreign set, without labels, as ``foreign/NAME``.
        refinement: For each stage, both AUROCs on the test part beside accuracy, ECE and NLL.
        is_main: Whether this is the process that writes and prints.
    """

    config: Config
    folder: Path
    network: Network
    metrics: tuple[Row, ...]
    dynamics: tuple[Row, ...]
    predictions: Mapping[str, Predictions]
    refinement: Mapping[str, Mapping[str, float]]
    is_main: bool = True


def train(config: Config, folder: str | Path, *, resume: bool = False, watcher: Watcher | None = None) -> Run:
    """Train what a configuration asks for, and write the model, its measures and its predictions.

    Killed at any moment, the same call with ``resume=True`` goes on from the last checkpoint; on CPUs it ends
    with the weights that an uninterrupted run ends with.

    Args:
        config: What to do.
        folder: Where to write; a folder that holds a run already is refused unless it is to be resumed.
        resume: Go on with the run in the folder, if it has one.
        watcher: Whoever is told how far it is.
    """
    watcher = watcher or Watcher()
    fabric = make_fabric(config.hardware)
    folder = Path(folder)
    # Before other processes exist: they would wait for one that has failed.
    if is_first_process():
        open_folder(folder, config, resume=resume)
    fabric.launch()
    fabric.barrier()
    check_common_folder(fabric, folder / CONFIG)
    if not fabric.is_global_zero:
        watcher = Watcher()
    watcher.doing("reading the data")
    splits = _load(config)
    start_from(config.seed)
    network = make_network(config.model, splits)
    if config.hardware.sync_batchnorm:
        network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)
    network.to(fabric.device)
    session = Session(fabric, folder, config, watcher)
    if resume:
        session.take_up(network)
    stages: dict[str, dict[str, float]] = {}
    try:
        if config.encoder is not None:
            stages[ENCODER] = train_encoder(session, config.encoder, network, splits)
        train_classifier(session, network, splits)
    finally:
        session.records.close()
    network.eval()
    watcher.doing("predicting")
    predictions = _predict(fabric, config, network, splits)
    test = predictions["test"]
    assert test.labels is not None
    stages[CLASSIFIER] = refinement(test.to_logits(), test.labels)
    session.write(lambda: save_outcome(folder, config, network, splits, predictions))
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


def _load(config: Config) -> Splits:
    data = config.data
    return load_dataset(
        data.name,
        path=data.path,
        validation=data.validation,
        limit=data.limit,
        imbalance=data.imbalance,
        label_noise=data.label_noise,
        corruptions=data.corruptions,
        foreign=data.foreign,
        foreign_classes=data.foreign_classes,
        seed=config.seed,
        **data.options,
    )


def _predict(fabric: Fabric, config: Config, network: Network, splits: Splits) -> dict[str, Predictions]:
    parts = {"validation": splits.validation, "test": splits.test}
    parts |= {f"shifted/{name}": part for name, part in splits.shifted.items()}
    parts |= {f"foreign/{name}": part for name, part in splits.foreign.items()}
    return {name: _part(fabric, config, network, splits, name, data) for name, data in parts.items()}


def _part(
    fabric: Fabric, config: Config, network: Network, splits: Splits, name: str, data: LabelledData
) -> Predictions:
    logits, features = all_logits_and_features(fabric, network, data)
    return Predictions(
        logits=logits,
        labels=None if name.startswith("foreign/") else data.labels,
        features=features if config.output.features else None,
        class_names=splits.train.class_names,
        metadata={
            "data": config.data.name,
            "part": name,
            "model": config.model.name,
            "loss": config.training.loss,
            "encoder": "" if config.encoder is None else config.encoder.loss,
            "seed": str(config.seed),
        },
    )
