"""Networks by name, from logistic regression to those of the papers, each with its features."""

from calibrant.training.models.by_name import MODELS, make_model
from calibrant.training.models.classifier import Classifier

__all__ = [
    "MODELS",
    "Classifier",
    "make_model",
]
