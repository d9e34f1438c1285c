"""Data sets for training: read from common files, divided into parts, and made harder if asked."""

from calibrant.training.datasets.augment import augment
from calibrant.training.datasets.corruptions import CORRUPTIONS, corrupt
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.datasets.load import DATASETS, load_dataset
from calibrant.training.datasets.sampling import long_tail, stratified_split, symmetric_label_noise

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "LabelledData",
    "Splits",
    "augment",
    "corrupt",
    "load_dataset",
    "long_tail",
    "stratified_split",
    "symmetric_label_noise",
]
