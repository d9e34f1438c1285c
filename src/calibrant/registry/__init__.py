"""Names of what Calibrant offers: the command line, the contract tests and the benchmarks iterate these."""

from calibrant.registry.measures import MEASURES, Measure
from calibrant.registry.methods import CALIBRATORS, METHODS, Method
from calibrant.registry.training_losses import LOSSES, TrainingLoss, make_loss, reads_embeddings

__all__ = [
    "CALIBRATORS",
    "LOSSES",
    "MEASURES",
    "METHODS",
    "Measure",
    "Method",
    "TrainingLoss",
    "make_loss",
    "reads_embeddings",
]
