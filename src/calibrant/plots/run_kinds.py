"""Figures of a training run, by name: what its metrics and dynamics of each epoch suffice for."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Unpack

from calibrant.errors import InputError
from calibrant.plots.adafocal_gammas import AdaFocalGammasDisplay
from calibrant.plots.bin_dynamics import BinErrorsDisplay, CorrespondenceDisplay, Rows
from calibrant.plots.display import Display, Place
from calibrant.plots.training_dynamics import TrainingDynamicsDisplay

# Panels, and the columns of the metrics that are lines in them.
_PANELS: Mapping[str, Mapping[str, str]] = {
    "loss": {"train": "train_loss"},
    "accuracy": {"train": "train_accuracy", "validation": "val_accuracy"},
    "mean confidence": {"train": "train_mean_confidence", "validation": "val_mean_confidence"},
    "NLL (nats)": {"train": "train_nll", "validation": "val_nll"},
    "Brier score": {"train": "train_brier", "validation": "val_brier"},
    "ECE": {"train": "train_ece", "validation": "val_ece", "validation, equal mass": "val_ece_equal_mass"},
    "entropy (nats)": {"train": "train_entropy", "validation": "val_entropy"},
    "KL to others of the class (nats)": {"train": "train_kl", "validation": "val_kl"},
    "cosine to the mean of the class": {"train": "train_cosine", "validation": "val_cosine"},
}


@dataclass(frozen=True)
class RunKind:
    """A figure of a run by name: how it is drawn from metrics and dynamics, and what it says."""

    draw: Callable[[Rows, Rows, Place], Display]
    meaning: str


def _dynamics(metrics: Rows, _: Rows, place: Place) -> Display:
    if not metrics:
        raise InputError("metrics: expected at least one epoch, got none; train the run first")
    by_epoch = {row["epoch"]: row for row in metrics}
    epochs = range(min(by_epoch), max(by_epoch) + 1)
    present = {name for row in metrics for name, value in row.items() if value is not None}
    # A line that is missing keeps its place, since the place says how a line looks.
    table = {
        panel: {
            label: [_number(by_epoch.get(epoch, {}).get(column)) for epoch in epochs]
            for label, column in columns.items()
        }
        for panel, columns in _PANELS.items()
        if present & set(columns.values())
    }
    if not table:
        known = ", ".join(column for columns in _PANELS.values() for column in columns.values())
        raise InputError(f"metrics: expected some of {known}, got {', '.join(metrics[-1])}")
    return TrainingDynamicsDisplay(table, epochs[0]).plot(**place)


def _gammas(_: Rows, dynamics: Rows, place: Place) -> Display:
    told = [row for row in _measured(dynamics) if row.get("adafocal")]
    if not told:
        raise InputError(
            "gammas: expected a run trained with AdaFocal, got one of a loss without gammas; "
            "ask for bins, which every run has"
        )
    history = [row["adafocal"] for row in told]
    return AdaFocalGammasDisplay.from_history(history, first_epoch=told[0]["epoch"], **place)


def _bins(_: Rows, dynamics: Rows, place: Place) -> Display:
    return BinErrorsDisplay.from_rows(_measured(dynamics), **place)


def _correspondence(_: Rows, dynamics: Rows, place: Place) -> Display:
    return CorrespondenceDisplay.from_rows(_measured(dynamics), **place)


RUN_KINDS: Mapping[str, RunKind] = {
    "dynamics": RunKind(_dynamics, "loss, accuracy, calibration and agreement over epochs"),
    "gammas": RunKind(_gammas, "AdaFocal's gammas, bin by bin, over epochs"),
    "bins": RunKind(_bins, "calibration error of single bins, and their gammas, over epochs"),
    "correspondence": RunKind(_correspondence, "training samples in the bins of validation"),
}


def draw_run(kind: str, metrics: Rows, dynamics: Rows, **place: Unpack[Place]) -> Display:
    """Draw the figure of this name; of a run in stages, the last one.

    Args:
        kind: One of :data:`RUN_KINDS`.
        metrics: One mapping per epoch, as in ``metrics.jsonl``.
        dynamics: One mapping per epoch, as in ``dynamics.jsonl``.
        **place: ``ax``, ``width`` and ``title`` of the figure.
    """
    if kind not in RUN_KINDS:
        raise InputError(f"KIND: expected one of {', '.join(RUN_KINDS)}, got {kind!r}")
    return RUN_KINDS[kind].draw(_last_stage(metrics), _last_stage(dynamics), place)


def _last_stage(rows: Rows) -> Rows:
    return [row for row in rows if row.get("stage") == rows[-1].get("stage")]


def _measured(dynamics: Rows) -> Rows:
    if not dynamics:
        raise InputError(
            "dynamics: expected at least one epoch, got none; let the run look at training samples"
        )
    return dynamics


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
