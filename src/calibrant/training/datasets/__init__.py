"""Data to train on: read from the files people have, divided, corrupted, and made harder as asked."""

from calibrant.training.datasets.augment import augment, two_views
from calibrant.training.datasets.corruptions import CORRUPTIONS, corrupt
from calibrant.training.datasets.dataset import FOREIGN, LabelledData, Splits
from calibrant.training.datasets.label_noise import symmetric_label_noise
from calibrant.training.datasets.load import DATASETS, load_dataset
from calibrant.training.datasets.long_tail import long_tail
from calibrant.training.datasets.split import stratified_split

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "FOREIGN",
    "LabelledData",
    "Splits",
    "augment",
    "corrupt",
    "load_dataset",
    "long_tail",
    "stratified_split",
    "symmetric_label_noise",
    "two_views",
]
