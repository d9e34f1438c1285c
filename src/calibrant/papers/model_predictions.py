"""Predictions for experiments: a source's name and a seed determine them completely."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from calibrant.data.files import load_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.outcomes import refuse_weights
from calibrant.papers.local_models import RealSet, arena, cifar10, clinc150, digits

# The papers hold out this share of a test set where there is no validation set.
_HELD_OUT = 0.2


@dataclass(frozen=True)
class ModelPredictions:
    """Predictions of one model on a validation set and on test sets.

    Attributes:
        validation: Predictions to fit on.
        tests: Predictions to measure on: ``"test"``, and shifted sets by name.
    """

    validation: Predictions
    tests: Mapping[str, Predictions]


def load_model_predictions(name: str, *, seed: int, data: Path | None = None) -> ModelPredictions:
    """Load the predictions of a source, or train the model that makes them.

    =========================== ==============================================================================
    ``cifar10``                 the bundled network; its 15,000 images are divided by the seed, 5,000 to fit
    ``digits``                  naive Bayes on scikit-learn's digits, the other 1,497 divided by the seed
    ``clinc150``                a perceptron on sentence embeddings in ``DATA/clinc150``, divided by the seed
    ``cifar10_noise``, ...      the same under noise; a fifth of the noisy samples is used to fit
    ``digits/forest``, ...      the arena: a classifier on a data set of scikit-learn, thirds by the seed
    ``synthetic:1000x5000``     random logits of 1,000 classes, twice as large as calibrated, 5,000 to fit
    ``run:FOLDER``              output of ``calibrant train``; ``{seed}`` stands for the seed
    ``files:VALIDATION,TEST``   two files of predictions
    ``files:TEST``              one file; the seed chooses a fifth of it to fit on
    =========================== ==============================================================================

    Args:
        name: One of these; ``{data}`` stands for the folder of data sets.
        seed: Decides which samples are used to fit.
        data: Folder of the data sets that are not bundled.

    Example:
        >>> source = load_model_predictions("digits", seed=0)
        >>> source.validation.n, {name: part.n for name, part in source.tests.items()}
        (748, {'test': 749, 'noise': 1497})
    """
    kind, _, rest = name.partition(":")
    if rest:
        if kind not in _PLACED:
            raise InputError(f"source: expected one of {', '.join(_PLACED)} before the colon, got {name!r}")
        if "{data}" in rest and data is None:
            raise InputError(f"data: expected the folder that {name} stands in, got none")
        return _PLACED[kind](rest.replace("{data}", str(data)).replace("{seed}", str(seed)), seed)
    if "/" in name:
        validation, test = arena(name, seed)
        return ModelPredictions(validation, {"test": test})
    sets = prediction_sets(None if data is None else data / "clinc150")
    plain = name.removesuffix("_noise")
    if plain not in sets:
        hint = "; clinc150 needs data=" if plain == "clinc150" else ""
        raise InputError(f"source: expected one of {', '.join(sets)}, got {name!r}{hint}")
    real = sets[plain]()
    if plain != name:
        validation, test = split(real.shifted, seed, n_validation=round(_HELD_OUT * real.shifted.n))
        return ModelPredictions(validation, {"noise": test})
    validation, test = split(real.predictions, seed)
    return ModelPredictions(validation, {"test": test, "noise": real.shifted})


def prediction_sets(clinc: Path | None) -> dict[str, Callable[[], RealSet]]:
    """Return the overconfident classifiers that are available, by name.

    Args:
        clinc: Folder of the sentence embeddings, if there is one.
    """
    sets: dict[str, Callable[[], RealSet]] = {"cifar10": cifar10, "digits": digits}
    if clinc is not None:
        sets["clinc150"] = lambda: clinc150(clinc)
    return sets


def split(
    predictions: Predictions, seed: int, *, n_validation: int | None = None
) -> tuple[Predictions, Predictions]:
    """Split at random into a part to fit on (half, at most 5,000) and a part to measure on.

    Samples keep their numbers as ids, so that the same sample is known in the splits of all seeds.
    """
    predictions = predictions.replaced(ids=np.arange(predictions.n))
    order = np.random.default_rng(seed).permutation(predictions.n)
    n = n_validation or min(predictions.n // 2, 5000)
    return predictions.take(order[:n]), predictions.take(order[n:])


@lru_cache(maxsize=1)
def _synthetic(shape: str, seed: int) -> ModelPredictions:
    """Return random logits, with labels drawn from the softmax of half these logits."""
    k, _, n = shape.partition("x")
    if not (k.isdecimal() and n.isdecimal() and int(k) > 1 and int(n) > 1):
        raise InputError(f"source: expected synthetic:CLASSESxSAMPLES, got synthetic:{shape}")
    rng = np.random.default_rng(seed)

    def drawn() -> Predictions:
        true = rng.normal(scale=2.0, size=(int(n), int(k)))
        true[np.arange(int(n)), rng.integers(int(k), size=int(n))] += rng.gamma(4.0, 3.0, size=int(n))
        labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
        return Predictions(logits=(2 * true).astype(np.float32), labels=labels)

    return ModelPredictions(drawn(), {"test": drawn()})


def load_unweighed(path: Path) -> Predictions:
    """Read predictions; those with weights are refused, because not all that is compared can take weights."""
    predictions = load_predictions(path)
    refuse_weights(predictions.weights, "benchmarks")
    return predictions


def _run(folder: str, _seed: int) -> ModelPredictions:
    root = Path(folder) / "predictions"
    if not (root / "validation.npz").is_file():
        raise InputError(f"source: expected a folder that `calibrant train` has written, got {folder}")
    shifted = sorted((root / "shifted").rglob("*.npz"))
    tests = {"test": load_unweighed(root / "test.npz")}
    for path in shifted:
        tests[path.relative_to(root / "shifted").with_suffix("").as_posix()] = load_unweighed(path)
    return ModelPredictions(load_unweighed(root / "validation.npz"), tests)


def _files(paths: str, seed: int) -> ModelPredictions:
    named = [Path(each) for each in paths.split(",")]
    for path in named:
        if not path.is_file():
            raise InputError(f"source: expected a file of predictions, got {path}, which does not exist")
    if len(named) == 1:
        whole = load_unweighed(named[0])
        validation, test = split(whole, seed, n_validation=max(1, round(_HELD_OUT * whole.n)))
        return ModelPredictions(validation, {"test": test})
    if len(named) > 2:
        raise InputError(f"source: expected files:VALIDATION,TEST or files:TEST, got {len(named)} files")
    return ModelPredictions(load_unweighed(named[0]), {"test": load_unweighed(named[1])})


_PLACED: Mapping[str, Callable[[str, int], ModelPredictions]] = {
    "synthetic": _synthetic,
    "run": _run,
    "files": _files,
}
