"""Corruptions of test images in five severities: the fifteen of CIFAR-10-C, and its Gaussian blur."""

from calibrant.training.datasets.corruptions.corrupt import CIFAR10_C, CORRUPTIONS, SEVERITIES, corrupt

__all__ = ["CIFAR10_C", "CORRUPTIONS", "SEVERITIES", "corrupt"]
