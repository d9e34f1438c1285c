"""Training on Lightning Fabric with calibration measures after every epoch; needs the extra ``train``."""

from calibrant.extras import optional as _optional

with _optional("training"):
    import lightning_fabric as _fabric

from calibrant.training.adversarial import fgsm, fgsm_distance
from calibrant.training.candidates import train_best
from calibrant.training.config.settings import Config
from calibrant.training.config.toml import load_config
from calibrant.training.folder import load_network, load_rows
from calibrant.training.run import train

__all__ = [
    "Config",
    "fgsm",
    "fgsm_distance",
    "load_config",
    "load_network",
    "load_rows",
    "train",
    "train_best",
]

del _fabric
