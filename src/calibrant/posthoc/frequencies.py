"""Class frequencies other than those of the fitting set: the correction of calibrated probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError, did_you_mean, listed
from calibrant.inputs import ArrayLike, Floats, at_least_float32, to_array
from calibrant.outcomes import LEAST_PROB
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.masked import lowest_for_masked, mask_again
from calibrant.posthoc.fitting.stored import POSITIVE, Numbers, declare, one_number
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.posthoc.names import method_named

#: Frequencies of all classes: ``"balanced"``, numbers in the order of the classes, or numbers by class name.
FrequenciesLike: TypeAlias = str | Mapping[str, float] | ArrayLike

# People round frequencies to three digits.
_ROUNDING = 1e-3

# Rows on which it is tried out whether a calibrator treats all classes alike.
_TRIED = 8


class FrequencyCorrection(Calibrator):
    r"""Correct a calibrator for classes that became more or less frequent.

    .. math:: p'(y \mid x) \propto p(y \mid x)\, \frac{\pi_\mathrm{new}(y)}{\pi_\mathrm{old}(y)}

    This is Bayes' rule if the samples of each class look as they did before. The corrected calibrator is
    saved, exported and applied like any other. The predicted class may change.

    Attributes:
        base: The calibrator, whose probabilities are right where classes have the old frequencies.
        intercept: What is added to the log-probability of each class: the logarithm of the ratio of
            frequencies, and a correction of the base if there is one.
        scale: What log-probabilities are multiplied by before.

    References:
        Saerens, Latinne and Decaestecker, "Adjusting the Outputs of a Classifier to New a Priori
        Probabilities: A Simple Procedure", Neural Computation 2002.
        Elkan, "The Foundations of Cost-Sensitive Learning", IJCAI 2001.
    """

    masks = True
    options = ("needs_features",)
    stored = declare(intercept=Numbers(("k",)), scale=one_number(POSITIVE))
    part_names = ("base",)

    base: Calibrator
    intercept: Tensor
    scale: Tensor

    def __init__(self, base: Calibrator, intercept: Tensor, scale: float = 1.0) -> None:
        super().__init__(n_classes=len(intercept))
        self.base = base
        self.needs_features = base.needs_features
        self.class_names = base.class_names
        self.register_buffers(
            intercept=intercept.double(), scale=torch.tensor(float(scale), dtype=torch.float64)
        )

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        frequencies: FrequenciesLike = "balanced",
        method: str = "vector",
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit a method, and correct it from the class frequencies of the fitting set to others.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            frequencies: The new frequencies.
            method: The method to correct, from :data:`calibrant.posthoc.names.METHODS`.
        """
        data = cls.data(logits, labels, **rows)
        base = method_named(method).fit(data)
        return cls.of(base, frequencies, old=frequencies_of(data.labels, data.n_classes, data.weights))

    @classmethod
    def of(
        cls,
        calibrator: Calibrator,
        new: FrequenciesLike,
        *,
        old: FrequenciesLike | None = None,
        new_name: str = "new",
        old_name: str = "old",
    ) -> Self:
        """Correct a fitted calibrator.

        Args:
            calibrator: The calibrator.
            new: The frequencies where it will be applied.
            old: Those of its fitting set; by default what it knows of them, as calibrators do that
                :func:`calibrant.evaluation.compare` or ``calibrant calibrate`` made.
            new_name: What ``new`` is called in error messages.
            old_name: What ``old`` is called there.

        Example:
            >>> from calibrant.posthoc import Identity
            >>> rare = FrequencyCorrection.of(Identity(), [0.9, 0.1], old="balanced")
            >>> [[round(each, 2) for each in row] for row in rare.predict_proba([[0.0, 0.0]])]
            [[0.9, 0.1]]
        """
        if old is None and calibrator.class_frequencies is None:
            raise InputError(
                f"{old_name}: expected the class frequencies of the set that the calibrator was fitted on, "
                "got none, and the calibrator does not know them; give them"
            )
        known = _known_sizes(calibrator, new, old)
        before = calibrator.class_frequencies if old is None else old
        assert before is not None
        names = calibrator.class_names
        frequencies = check_frequencies(new, name=new_name, class_names=names, k=known)
        fitted = check_frequencies(before, name=old_name, class_names=names, k=known)
        _check_occurred(frequencies, fitted, names)
        made = cls(calibrator, torch.from_numpy(log_ratios(frequencies, fitted)))
        made.class_frequencies = tuple(frequencies.tolist())
        return made

    @property
    def group_names(self) -> tuple[str, ...] | None:
        """The groups that have a map of their own; None if there is one map for all."""
        return self.base.group_names

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns that make these groups, if there are several."""
        return self.base.group_columns

    def forward(self, logits: Tensor, features: Tensor | None = None, groups: Tensor | None = None) -> Tensor:
        """Return corrected log-probabilities of shape ``(n, k)``."""
        given = (logits, features) if groups is None else (logits, features, groups)
        before: Tensor = at_least_float32(self.base(*given))
        moved = lowest_for_masked(before) * self.scale.to(before.dtype) + self.intercept.to(before.dtype)
        return torch.log_softmax(mask_again(moved, before), dim=1)


def frequencies_of(labels: Tensor, k: int, weights: Tensor | None = None) -> tuple[float, ...]:
    """Return the share of each class among labels, by weight if there are weights.

    Example:
        >>> frequencies_of(torch.tensor([0, 0, 2, 1]), 3)
        (0.5, 0.25, 0.25)
    """
    w = None if weights is None else weights.double().cpu()
    counts = torch.bincount(labels.cpu(), weights=w, minlength=k).double()
    return tuple((counts / counts.sum()).tolist())


def log_ratios(new: Floats, old: Floats) -> Floats:
    """Return the logarithms of ratios of frequencies; a frequency of 0 counts as one in a trillion."""
    return np.asarray(np.log(new.clip(LEAST_PROB)) - np.log(old.clip(LEAST_PROB)))


def check_frequencies(
    given: FrequenciesLike, *, k: int, class_names: Sequence[str] | None = None, name: str = "frequencies"
) -> Floats:
    """Return the frequencies of ``k`` classes in their order, with the sum 1.

    Args:
        given: ``"balanced"``, numbers in the order of the classes, or numbers by class name; classes without
            names are called by their number from 0.
        k: The number of classes.
        class_names: Their names, if they have any.
        name: What the frequencies are called in error messages.

    Example:
        >>> check_frequencies({"dog": 0.75, "cat": 0.25}, k=2, class_names=["cat", "dog"])
        array([0.25, 0.75])
    """
    if isinstance(given, str):
        if given != "balanced":
            raise InputError(f"{name}: expected 'balanced' or the frequency of each class, got {given!r}")
        return np.full(k, 1 / k)
    if isinstance(given, Mapping):
        given = _in_order(given, list(class_names or map(str, range(k))), name)
    values = to_array(given, name).astype(np.float64)
    if values.shape != (k,):
        raise InputError(f"{name}: expected {k} numbers, one for each class, got shape {values.shape}")
    if not bool((np.isfinite(values) & (values >= 0)).all()):
        bad = values[~(np.isfinite(values) & (values >= 0))][0]
        raise InputError(f"{name}: expected frequencies of at least 0, got {bad:g}")
    total = float(values.sum())
    if abs(total - 1) > _ROUNDING:
        raise InputError(
            f"{name}: expected frequencies that sum to one, got the sum {total:.6g}; divide each by their sum"
        )
    return np.asarray(values / total)


def treats_classes_alike(calibrator: Calibrator, k: int) -> bool:
    """Return whether a calibrator has no numbers of single classes, as temperature scaling has none.

    Such a calibrator cannot learn how frequent classes are. It is tried out on some logits: if their classes
    are exchanged, so must be the probabilities.
    """
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(0, 2, size=(_TRIED, k)))
    order = torch.from_numpy(rng.permutation(k) if k > 2 else np.array([1, 0]))
    parts = (getattr(part, "n_features", None) for part in calibrator.modules())
    width = next((n for n in parts if n is not None), None)
    h = None if width is None else torch.zeros(_TRIED, width, dtype=torch.float64)
    one, other = (calibrator.predict_log_proba(each, h).exp() for each in (z, z[:, order]))
    return bool(torch.allclose(one[:, order], other, atol=1e-5))


def _known_sizes(calibrator: Calibrator, *given: Any) -> int:  # noqa: ANN401  # any FrequenciesLike, or None
    """Return the number of classes, from whatever knows it."""
    if calibrator.n_classes is not None:
        return calibrator.n_classes
    for each in (calibrator.class_names, calibrator.class_frequencies, *given):
        if each is not None and not isinstance(each, str):
            return len(each)
    raise InputError("frequencies: expected the number of classes, got a calibrator for any; give a list")


def _in_order(given: Mapping[str, float], names: list[str], name: str) -> list[float]:
    for each in given:
        if each not in names:
            raise InputError(
                f"{name}: expected the classes {listed(names)}, got {each!r}{did_you_mean(each, names)}"
            )
    missing = [each for each in names if each not in given]
    if missing:
        raise InputError(f"{name}: expected a frequency of every class, got none of {listed(missing)}")
    return [given[each] for each in names]


def _check_occurred(new: Floats, old: Floats, class_names: Sequence[str] | None) -> None:
    """Refuse a class that is to occur and never did: nothing is known of how likely it makes a sample."""
    unseen = np.flatnonzero((old == 0) & (new > 0))
    if len(unseen):
        each = int(unseen[0])
        name = each if class_names is None else repr(class_names[each])
        raise InputError(
            f"old: expected some samples of every class that has a new frequency, got none of class {name}; "
            "fit on samples of it, or give it the frequency 0"
        )
