"""Data sets for training: read from common files, divided into parts, and made harder if asked."""

from calibrant.training.datasets.augment import augment, two_views
from calibrant.training.datasets.corruptions import CIFAR10_C, CORRUPTIONS, corrupt
from calibrant.training.datasets.dataset import FOREIGN, LabelledData, Splits
from calibrant.training.datasets.load import DATASETS, load_dataset
from calibrant.training.datasets.sampling import long_tail, stratified_split, symmetric_label_noise

__all__ = [
    "CIFAR10_C",
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
