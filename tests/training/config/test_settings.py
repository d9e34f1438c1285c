import dataclasses
import math
import re

import pytest

from calibrant.errors import InputError
from calibrant.training.config import config_from_table
from calibrant.training.config.settings import (
    Config,
    EncoderSettings,
    HardwareSettings,
    OptimizerSettings,
    OutputSettings,
    PosthocSettings,
    ScheduleSettings,
    TrainingSettings,
)

REFUSED = [
    (Config, {"seed": -1}, "seed: expected a whole number from 0, got -1"),
    (OptimizerSettings, {"lr": 0.0}, "lr: expected a positive number, got 0.0"),
    (OptimizerSettings, {"lr": math.inf}, "lr: expected a positive number, got inf"),
    (OptimizerSettings, {"lr": math.nan}, "lr: expected a positive number, got nan"),
    (OptimizerSettings, {"momentum": 1.0}, "momentum: expected a number from 0 to below 1, got 1.0"),
    (OptimizerSettings, {"momentum": -0.1}, "momentum: expected a number from 0 to below 1, got -0.1"),
    (OptimizerSettings, {"nesterov": True, "momentum": 0.0}, "nesterov: expected a momentum with it, got 0"),
    (OptimizerSettings, {"betas": (0.9, 1.0)}, "betas: expected two below 1, got (0.9, 1.0)"),
    (OptimizerSettings, {"weight_decay": -1.0}, "weight_decay: expected a number from 0, got -1.0"),
    (OptimizerSettings, {"weight_decay": math.inf}, "weight_decay: expected a number from 0, got inf"),
    (ScheduleSettings, {"warmup": 1.0}, "warmup: expected a share from 0 to below 1, got 1.0"),
    (ScheduleSettings, {"warmup": -0.1}, "warmup: expected a share from 0 to below 1, got -0.1"),
    (ScheduleSettings, {"factor": 0.0}, "factor: expected a positive number, got 0.0"),
    (ScheduleSettings, {"final": 1.5}, "final: expected a share from 0 to 1, got 1.5"),
    (
        ScheduleSettings,
        {"name": "multistep"},
        "milestones: expected at least one epoch for multistep, got ()",
    ),
    (ScheduleSettings, {"milestones": (3.0,)}, "milestones: expected none for cosine, got (3.0,)"),
    (
        ScheduleSettings,
        {"name": "multistep", "milestones": (3.0, 3.0)},
        "milestones: expected rising epochs above 0, got (3.0, 3.0)",
    ),
    (
        ScheduleSettings,
        {"name": "multistep", "milestones": (0.0, 3.0)},
        "milestones: expected rising epochs above 0, got (0.0, 3.0)",
    ),
    *(
        (stage, values, message)
        for stage in (TrainingSettings, EncoderSettings)
        for values, message in (
            ({"epochs": 0}, "epochs: expected at least 1, got 0"),
            ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
            ({"clip_gradient": 0.0}, "clip_gradient: expected a positive number, got 0.0"),
            ({"clip_gradient": math.inf}, "clip_gradient: expected a positive number, got inf"),
            ({"padding": -1}, "padding: expected pixels from 0, got -1"),
        )
    ),
    (TrainingSettings, {"keep_after": -1}, "keep_after: expected a number from 0 to 29, got -1"),
    (TrainingSettings, {"epochs": 5, "keep_after": 5}, "keep_after: expected a number from 0 to 4, got 5"),
    (EncoderSettings, {"projection": 0}, "projection: expected at least 1, got 0"),
    (EncoderSettings, {"hidden": -1}, "hidden: expected a width from 0, got -1"),
    (EncoderSettings, {"views": 0}, "views: expected at least 1, got 0"),
    (PosthocSettings, {"folds": 1}, "folds: expected at least 2, got 1"),
    (HardwareSettings, {"num_nodes": 0}, "num_nodes: expected at least 1, got 0"),
    (HardwareSettings, {"threads": 0}, "threads: expected at least 1, got 0"),
    (OutputSettings, {"dynamics": -1}, "dynamics: expected a number of samples from 0, got -1"),
    (OutputSettings, {"fgsm": (8, 0)}, "fgsm: expected whole numbers of shades from 1 to 255, got [8, 0]"),
    (OutputSettings, {"fgsm": (256,)}, "fgsm: expected whole numbers of shades from 1 to 255, got [256]"),
    (OutputSettings, {"checkpoint_every": 0}, "checkpoint_every: expected at least 1, got 0"),
]


@pytest.mark.parametrize(("kind", "values", "message"), REFUSED)
def test_a_value_that_makes_no_sense_is_refused(kind, values, message) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        kind(**values)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (OptimizerSettings, {"momentum": 0.0, "weight_decay": 0.0, "betas": (0.0, 0.0)}),
        (OptimizerSettings, {"nesterov": True}),
        (ScheduleSettings, {"final": 1.0, "warmup": 0.0}),
        (ScheduleSettings, {"final": 0.0, "warmup": 0.99}),
        (ScheduleSettings, {"name": "multistep", "milestones": (0.5, 1.0)}),
        (TrainingSettings, {"epochs": 1, "batch_size": 1, "keep_after": 0, "padding": 0}),
        (TrainingSettings, {"epochs": 5, "keep_after": 4}),
        (EncoderSettings, {"projection": 1, "hidden": 0, "views": 1}),
        (PosthocSettings, {"folds": 2, "methods": ()}),
        (HardwareSettings, {"devices": -1, "threads": 1}),
        (OutputSettings, {"dynamics": 0, "checkpoint_every": 1}),
        (Config, {"seed": 0}),
    ],
)
def test_the_outermost_values_that_make_sense_are_taken(kind, values) -> None:
    settings = kind(**values)
    assert {name: getattr(settings, name) for name in values} == values


def test_what_is_refused_in_a_table_is_named_with_its_place() -> None:
    for table, place in (
        ({"training": {"epochs": 0}}, "training.epochs: expected"),
        ({"encoder": {"optimizer": {"lr": 0}}}, "encoder.optimizer.lr: expected"),
        ({"seed": -1}, "seed: expected"),
    ):
        with pytest.raises(InputError, match=f"^{re.escape(place)}"):
            config_from_table(table)


def test_settings_cannot_be_changed_after_they_were_checked() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().training.epochs = 0  # type: ignore[misc]
