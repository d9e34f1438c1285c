"""Data sets by name: read, divided into parts, and made harder if asked."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.errors import InputError, did_you_mean
from calibrant.extras import optional
from calibrant.inputs import check_count
from calibrant.training.datasets.arrays import load_arrays
from calibrant.training.datasets.cifar import load_cifar10, load_cifar100
from calibrant.training.datasets.corruptions import CIFAR10_C, CORRUPTIONS, SEVERITIES, corrupt
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.datasets.image_folder import load_image_folder
from calibrant.training.datasets.own import load_own_data
from calibrant.training.datasets.pictures import resized_like
from calibrant.training.datasets.sampling import (
    check_imbalance,
    check_rate,
    check_validation,
    divide,
    hold_out_classes,
    limited,
    long_tail,
    symmetric_label_noise,
)
from calibrant.training.datasets.stl10 import load_stl10
from calibrant.training.datasets.svhn import load_svhn
from calibrant.training.datasets.text import load_text
from calibrant.training.own_code import is_code


def load_digits(*, validation: float = 0.1, seed: int = 0) -> Splits:
    """Return scikit-learn's 1,797 digits of 8 x 8 pixels; a fifth, the same for every seed, is the test part.

    Example:
        >>> load_digits().test
        LabelledData(n=359, image (1, 8, 8), class_names)
    """
    with optional("digits"):
        from sklearn.datasets import load_digits as bundled

    digits = bundled()
    # The shades are 0 to 16; images here are bytes.
    pixels = torch.from_numpy(np.rint(digits.images * (255 / 16)).astype(np.uint8))
    labels = torch.from_numpy(digits.target.astype(np.int64))
    data = LabelledData(pixels[:, None], labels, tuple(str(digit) for digit in range(10)), "image")
    return Splits(*divide(data, None, None, share=validation, seed=seed))


#: The loaders of data sets, by the name that ``data.name`` has in a configuration.
DATASETS: Mapping[str, Callable[..., Splits]] = {
    "digits": load_digits,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "svhn": load_svhn,
    "stl10": load_stl10,
    "image_folder": load_image_folder,
    "arrays": load_arrays,
    "embeddings": load_arrays,
    "text": load_text,
}


def load_dataset(
    name: str,
    *,
    path: str | os.PathLike[str] | None = None,
    validation: float = 0.1,
    limit: int | None = None,
    imbalance: float | None = None,
    label_noise: float = 0.0,
    corruptions: Sequence[str] = (),
    foreign: Mapping[str, str] | None = None,
    foreign_classes: Sequence[int | str] = (),
    seed: int = 0,
    **options: Any,  # noqa: ANN401  # each set has its own
) -> Splits:
    """Return a data set in its parts, ready for training.

    Args:
        name: One of :data:`DATASETS`, or ``"module:function"``, which is imported and called: take this text
            only from those who may run code.
        path: Where it is; all but ``digits`` need one.
        validation: Share of the training part that becomes the validation part, if the set has none.
        limit: Number of training samples to keep, the same share of each class and at least one; the other
            parts do not change. It applies before imbalance and noise, and the seed decides which samples are
            kept. The vocabulary still comes from all training texts.
        imbalance: Make training long-tailed: the ratio of the rarest class to the most common. The other
            parts do not change.
        label_noise: Share of the training labels that are replaced by wrong ones.
        corruptions: Shifted test sets, each a name such as ``"contrast"`` for all five severities or
            ``"contrast-3"`` for one; ``"cifar10_c"`` or ``"cifar10_c-3"`` for all fifteen of CIFAR-10-C.
        foreign: Out-of-distribution sets by name, each the test part of another set, written
            ``"cifar100:folder"``.
        foreign_classes: Classes, by number or name, that are held out of training and become an
            out-of-distribution set.
        seed: Seed of the random choices; the test part is the same for every seed.
        **options: Further options of the loader, such as ``size`` for ``image_folder``.

    Example:
        >>> splits = load_dataset("digits", imbalance=0.1, corruptions=["contrast-3"])
        >>> len(splits.validation), list(splits.shifted)
        (144, ['contrast-3'])
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed: expected a whole number from 0, got {seed!r}")
    # Reading may take long, so all options are checked first.
    check_validation(validation)
    check_rate(label_noise)
    if limit is not None:
        check_count(limit, "limit")
    if imbalance is not None:
        check_imbalance(imbalance)
    chosen = _chosen(corruptions)
    splits = _read(name, path, {**options, "validation": validation, "seed": seed})
    if foreign_classes:
        splits = hold_out_classes(splits, foreign_classes)
    train, k = splits.train, splits.n_classes
    if limit is not None:
        train = limited(train, limit, n_classes=k, seed=seed)
    if imbalance is not None:
        train = train.take(long_tail(train.labels, imbalance=imbalance, seed=seed, n_classes=k))
    if label_noise:
        noisy = symmetric_label_noise(train.labels, rate=label_noise, n_classes=k, seed=seed)
        train = replace(train, labels=noisy)
    return replace(
        splits,
        train=train,
        shifted={**splits.shifted, **_shifted(splits.test, chosen, seed)},
        foreign={**splits.foreign, **_foreign(foreign or {}, splits.test)},
    )


def _read(name: str, path: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> Splits:
    if is_code(name):
        given = {} if path is None else {"path": path}
        return load_own_data(name, {**given, **options})
    loader = DATASETS.get(name)
    if loader is None:
        raise InputError(
            f"dataset: expected one of {', '.join(DATASETS)}, or 'module:function', got {name!r}"
            f"{did_you_mean(name, DATASETS)}"
        )
    known = inspect.signature(loader).parameters
    for option in options:
        if option not in known or option == "path":
            takes = ", ".join(parameter for parameter in known if parameter != "path")
            raise InputError(
                f"{option}: expected an option of {name} ({takes}), got {option!r}"
                f"{did_you_mean(option, known)}"
            )
    if "path" not in known:
        if path is not None:
            raise InputError(
                f"path: expected none for {name}, which is bundled, got {str(path)!r}; leave it out"
            )
        return loader(**options)
    if path is None:
        raise InputError(f"path: expected the file or folder of {name}, got none")
    return loader(Path(path), **options)


def _chosen(corruptions: Sequence[str]) -> list[tuple[str, int]]:
    """Return the corruptions, each with its severity."""
    if isinstance(corruptions, str):
        raise InputError(f"corruptions: expected a list of names, got the one string {corruptions!r}")
    known = {"cifar10_c": CIFAR10_C, **{name: (name,) for name in CORRUPTIONS}}
    chosen = []
    for corruption in corruptions:
        word, _, severity = corruption.partition("-")
        if word not in known or severity not in ("", *map(str, SEVERITIES)):
            raise InputError(
                f"corruptions: expected one of {', '.join(known)}, alone or as in 'blur-3', "
                f"got {corruption!r}{did_you_mean(word, known) if word not in known else ''}"
            )
        severities = [int(severity)] if severity else SEVERITIES
        chosen += [(name, each) for name in known[word] for each in severities]
    return chosen


def _shifted(test: LabelledData, chosen: Sequence[tuple[str, int]], seed: int) -> dict[str, LabelledData]:
    if chosen and test.kind != "image":
        raise InputError(f"corruptions: expected images, got {test.kind} inputs; leave the corruptions out")
    if chosen and test.stored is not None:
        raise InputError(
            "corruptions: expected images in memory, got streamed ones; leave the corruptions out"
        )
    return {
        f"{name}-{severity}": replace(test, inputs=corrupt(test.inputs, name, severity, seed))
        for name, severity in chosen
    }


def _foreign(foreign: Mapping[str, str], test: LabelledData) -> dict[str, LabelledData]:
    if foreign and test.kind == "text":
        raise InputError("foreign: expected none for texts, which are put into oos.csv or oos_test, got some")
    sets = {}
    for title, source in foreign.items():
        loader, colon, path = source.partition(":")
        if not colon and source != "digits":
            raise InputError(
                f"foreign: expected a data set and where it is, as in 'cifar100:folder', got {source!r}"
            )
        # Pictures are read at the size of the training images.
        _, channels, height, width = test.inputs.shape if test.kind == "image" else (0, 0, 0, 0)
        fitted = {"size": (height, width), "channels": channels} if loader == "image_folder" else {}
        sets[title] = resized_like(_read(loader, path or None, fitted).test.as_foreign(), test)
    return sets
