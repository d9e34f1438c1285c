"""The configuration of a training run: TOML in, frozen values out, and back."""

from calibrant.training.config.toml import config_from_table, config_to_toml, differences

__all__ = [
    "config_from_table",
    "config_to_toml",
    "differences",
]
