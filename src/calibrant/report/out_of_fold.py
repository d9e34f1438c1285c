"""Out-of-fold predictions of one method, in the folds that the comparison used."""

from calibrant.data import Predictions
from calibrant.errors import InputError
from calibrant.registry import METHODS

# The comparison keeps measures, not predictions: the same parts give the same predictions again.
from calibrant.selection import _folds, _out_of_fold


def out_of_fold(name: str, validation: Predictions, *, n_folds: int, seed: int) -> Predictions:
    """Calibrate every sample by a fit that has not seen it.

    Args:
        name: A method from :data:`calibrant.registry.METHODS`.
        validation: Logits or probabilities with labels.
        n_folds: Number of parts, as in :func:`calibrant.selection.compare`.
        seed: That of the comparison.
    """
    if validation.labels is None:
        raise InputError("labels: expected the true class of each sample to fit on, got none")
    return _out_of_fold(METHODS[name], validation, _folds(validation.labels, n_folds, seed), seed)
