"""The configuration of a training run: TOML in, frozen values out, and back."""

from calibrant.training.config.settings import (
    Config,
    DataSettings,
    EncoderSettings,
    HardwareSettings,
    ModelSettings,
    OptimizerSettings,
    OutputSettings,
    PosthocSettings,
    ScheduleSettings,
    StageSettings,
    TrainingSettings,
)
from calibrant.training.config.toml import (
    config_from_table,
    config_to_table,
    config_to_toml,
    differences,
    load_config,
    load_first_run,
)

__all__ = [
    "Config",
    "DataSettings",
    "EncoderSettings",
    "HardwareSettings",
    "ModelSettings",
    "OptimizerSettings",
    "OutputSettings",
    "PosthocSettings",
    "ScheduleSettings",
    "StageSettings",
    "TrainingSettings",
    "config_from_table",
    "config_to_table",
    "config_to_toml",
    "differences",
    "load_config",
    "load_first_run",
]
