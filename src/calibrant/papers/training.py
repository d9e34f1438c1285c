"""The worker ``training``: train a network and measure it uncalibrated and after post-hoc methods.

The grid names a ``task`` and a ``method``; each is a part of a training configuration, defined in the
experiment's settings under ``tasks`` and ``recipes``. A method without a recipe is the name of a loss. A
recipe with ``candidates``, a list of losses, trains with each and continues with the best on validation.
Further keys are settings of the configuration, such as ``training.batch_size``.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.inputs import Floats, check_choice
from calibrant.papers.draws import drawn_detection, drawn_measures, packed_all
from calibrant.papers.rows import Record
from calibrant.papers.training_values import method_values, training_values

if TYPE_CHECKING:
    from calibrant.evaluation.compare import MethodResult
    from calibrant.training.config.settings import Config
    from calibrant.training.outcome import MethodOutcome
    from calibrant.training.run import Run

# Measures on draws of the test samples: after a post-hoc method, uncalibrated, on shifted sets.
_DRAWN_REPAIRED = ("accuracy", "nll", "ece", "ece_equal_mass", "classwise_ece")
_DRAWN = (*_DRAWN_REPAIRED, "brier", "auroc_ovo", "auroc_correct", "sce_true_class")
_DRAWN_SHIFTED = ("accuracy", "ece")
# Measures whose mean over the shifted sets is a quantity of its own.
_SHIFTED = ("accuracy", "ece", "classwise_ece", "adaptive_ece", "smece", "auroc_ovo")


def run_training(
    key: Mapping[str, Any],
    settings: Mapping[str, Any],
    seed: int,
    data: Path | None,
    *,
    runs: Path | None = None,
) -> Iterator[Record]:
    """Yield a record for the uncalibrated model, then one for each post-hoc method.

    Args:
        key: The point of the grid.
        settings: Settings that all points share.
        seed: Seed of the run.
        data: Folder of the data sets.
        runs: Folder that keeps the trained networks: one that is there is continued, or used as it is.
    """
    from calibrant.losses.names import make_loss
    from calibrant.training.candidates import train_best
    from calibrant.training.config.toml import config_from_table
    from calibrant.training.outcome import assess

    configs = [config_from_table(table) for table in configurations(key, settings, seed, data)]
    with TemporaryDirectory() if runs is None else nullcontext(runs / _digest(configs)) as folder:
        run = train_best(configs, folder, resume=runs is not None)
        outcome = assess(run)
    seconds = fmean(row["train_seconds"] for row in run.metrics)
    for name, found in outcome.methods.items():
        values: dict[str, float | None] = {**found.measures["test"], **_elsewhere(found)}
        values["overconfidence"] = (
            found.measures["test"]["mean_confidence"] - found.measures["test"]["accuracy"]
        )
        values["train_accuracy"] = run.metrics[-1].get("train_accuracy")
        values["seconds_per_epoch"] = seconds
        values |= method_values(outcome.comparison[name])
        values |= training_values(run) if name == "uncalibrated" else {}
        if len(configs) > 1:
            values["gamma"] = getattr(make_loss(run.config.training.loss), "gamma", None)
        for stage, refined in run.refinement.items():
            values[f"{stage}_auroc_ovo"] = refined["auroc_ovo"]
            values[f"{stage}_auroc_correct"] = refined["auroc_correct"]
        yield Record({"posthoc": name}, values, packed_all(_drawn(run, outcome.comparison[name])))


def _drawn(run: "Run", result: "MethodResult") -> dict[str, Floats]:
    """Return measures of the model with a post-hoc method on draws of the test and other samples."""
    from calibrant.evaluation.calibrated import calibrated

    parts = {
        name: part if result.name == "uncalibrated" else calibrated(result.calibrator, part)
        for name, part in run.predictions.items()
        if name != "validation"
    }
    if result.name != "uncalibrated":
        return drawn_measures(parts["test"], _DRAWN_REPAIRED)
    found = drawn_measures(parts["test"], _DRAWN)
    shifted = [
        drawn_measures(part, _DRAWN_SHIFTED) for name, part in parts.items() if name.startswith("shifted/")
    ]
    foreign = [
        drawn_detection(parts["test"], part) for name, part in parts.items() if name.startswith("foreign/")
    ]
    if shifted:
        found |= {
            f"shifted_{name}": np.mean([each[name] for each in shifted], axis=0) for name in _DRAWN_SHIFTED
        }
    return found | ({"ood_auroc": np.mean(foreign, axis=0)} if foreign else {})


def _digest(configs: Sequence["Config"]) -> str:
    """Return a name for the runs of these configurations, whatever is measured or written afterwards."""
    from calibrant.training.config.settings import OutputSettings, PosthocSettings
    from calibrant.training.config.toml import config_to_table

    tables = [
        config_to_table(replace(each, posthoc=PosthocSettings(), output=OutputSettings())) for each in configs
    ]
    return hashlib.blake2b(json.dumps(tables, sort_keys=True).encode(), digest_size=12).hexdigest()


def _elsewhere(found: "MethodOutcome") -> dict[str, float]:
    """Return means over the shifted sets and over the out-of-distribution sets.

    A shifted set is also treated as an out-of-distribution set, as SECA and AdaFocal do with CIFAR-10-C.
    """
    values: dict[str, float] = {}
    shifted = [each for part, each in found.measures.items() if part != "test"]
    if shifted:
        values |= {f"shifted_{name}": fmean(each[name] for each in shifted) for name in _SHIFTED}
    for kind, prefix in (("foreign/", ""), ("shifted/", "shifted_")):
        sets = [scores for part, scores in found.detection.items() if part.startswith(kind)]
        for score, suffix in (("msp", ""), ("negative_entropy", "_entropy")) if sets else ():
            values[f"{prefix}ood_auroc{suffix}"] = fmean(each[score].auroc for each in sets)
            values[f"{prefix}ood_fpr95{suffix}"] = fmean(each[score].fpr95 for each in sets)
    return values


def configurations(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> list[dict[str, Any]]:
    """Return the training configuration, or one for each candidate of the method's recipe."""
    method = key["method"]
    recipe = dict(settings.get("recipes", {}).get(method, {"candidates": [method]}))
    losses = recipe.pop("candidates", None)
    recipes = [recipe] if losses is None else [_with_loss(recipe, loss) for loss in losses]
    return [_configuration(key, settings, each, seed, data) for each in recipes]


def _with_loss(recipe: Mapping[str, Any], loss: str) -> dict[str, Any]:
    return {**recipe, "training": {**recipe.get("training", {}), "loss": loss}}


def _configuration(
    key: Mapping[str, Any],
    settings: Mapping[str, Any],
    recipe: Mapping[str, Any],
    seed: int,
    data: Path | None,
) -> dict[str, Any]:
    """Return shared settings, then the task, the recipe and the other keys, each on top of the last."""
    from calibrant.training.config.toml import merge_tables

    tasks = settings.get("tasks", {})
    task = check_choice(key["task"], "task", tasks)
    table: dict[str, Any] = {"seed": seed}
    for part in (settings.get("config", {}), tasks[task], recipe):
        table = merge_tables(table, part)
    for name, value in key.items():
        if name not in ("task", "method"):
            nested: Any = value
            for word in reversed(name.split(".")):
                nested = {word: nested}
            table = merge_tables(table, nested)
    return {name: _placed(part, data) for name, part in table.items()}


def _placed(value: object, data: Path | None) -> object:
    """Replace ``{data}`` by the folder of data sets, in all strings of a nested value."""
    if isinstance(value, Mapping):
        return {key: _placed(each, data) for key, each in value.items()}
    if isinstance(value, list):
        return [_placed(each, data) for each in value]
    if isinstance(value, str) and "{data}" in value:
        return value.replace("{data}", str(data))
    return value
