"""What every calibrator is: a fitted, immutable map from logits to calibrated log-probabilities."""

import functools
import inspect
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.errors import FitError, FormatError, InputError
from calibrant.inputs import (
    ArrayLike,
    at_least_float32,
    check_features,
    check_label_exists,
    check_labels,
    check_logits,
    check_weights,
    masked_classes,
    same_kind,
    to_tensor,
)
from calibrant.outcomes import effective, refused_weights
from calibrant.posthoc.fitting.shared import part_of
from calibrant.posthoc.fitting.stored import Numbers, declare
from calibrant.threads import few_threads

# Entries that are calibrated at a time.
_BLOCK_ENTRIES = 1 << 22

# Finite logits below minus this stand for a class that a row does not have.
_FAR = 1e15

# A calibrator with at most this many numbers shows them all; options that are only promises are not shown.
_FEW_NUMBERS = 8
_PROMISES = ("preserves_accuracy", "needs_features")


class UnusedSeed(TypedDict, total=False):
    """The seed, which every method accepts, for a method without randomness."""

    seed: int


class UnusedFeatures(TypedDict, total=False):
    """Penultimate features, which every method accepts, for a method that reads logits only."""

    features: ArrayLike | None


class Unused(UnusedFeatures, UnusedSeed, total=False):
    """Features and a seed, for a method that uses neither."""


class RefusedWeights(UnusedFeatures, total=False):
    """Features, for a method that reads logits only, and weights, which it refuses."""

    weights: ArrayLike | None


class Refused(RefusedWeights, UnusedSeed, total=False):
    """Features and a seed, for a method that uses neither, and weights, which it refuses."""


class Calibrator(nn.Module, ABC):
    """A fitted map from logits to calibrated log-probabilities.

    Calibrators are made by the class method ``fit`` of each method, or from known parameters; there is
    no unfitted state. Everything that was learned is in buffers; the only other things that a saved file
    needs are the plain attributes named in ``options``. So moving, saving, loading and exporting are the same
    for every method.

    Attributes:
        n_classes: The number of classes; None if any number will do.
        class_names: Their names, if the predictions of the fit had them. Predictions with the same names in
            another order are reordered by :func:`calibrant.evaluation.calibrated`, others refused.
        class_frequencies: The share of each class in the fitting set, if it is known; what
            :func:`calibrant.evaluation.compare` and ``fit_method`` return knows it.

    Class attributes:
        preserves_accuracy: Whether the predicted class can never change.
        needs_features: Whether ``fit`` and ``forward`` require penultimate features.
        masks: Whether classes may be masked by logits of ``-inf``, see :meth:`takes_masked`.
        options: Names of plain attributes (numbers, text, lists of them) that are saved to a file; their
            annotations say what a file may hold.
        stored: What each buffer must be, beside those that a base class declares; a file with others is
            refused. None if nothing is declared.
    """

    preserves_accuracy: bool = False
    needs_features: bool = False
    masks: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()
    stored: ClassVar[Mapping[str, Numbers] | None] = None
    methods: ClassVar[dict[str, type["Calibrator"]]] = {}

    n_classes: int | None
    class_names: tuple[str, ...] | None
    class_frequencies: tuple[float, ...] | None

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401  # Python's own hook
        super().__init_subclass__(**kwargs)
        # The exporter to ONNX makes a subclass of the same name while it traces, which is not the method.
        is_copy = Calibrator.methods.get(cls.__name__) in cls.__mro__
        if not is_copy and (cls.__module__ != "calibrant.posthoc.chain" or cls.__name__ == "Chain"):
            Calibrator.methods[cls.__name__] = cls
        if "fit" in cls.__dict__:
            fit = _on_few_threads(_with_masked_classes(_with_checked_weights(cls.__dict__["fit"].__func__)))
            setattr(cls, "fit", classmethod(fit))  # noqa: B010  # mypy refuses a plain assignment

    def __init__(self, *, n_classes: int | None = None) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.class_names = None
        self.class_frequencies = None

    @classmethod
    @abstractmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> Self:
        """Learn the map from held-out logits and labels; equal seeds give equal fits.

        A method that takes weights gets them checked: positive, and with the effective number of samples as
        their sum, see :func:`~calibrant.outcomes.effective`. Samples of weight 0 are left out before, and
        equal weights are none.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Penultimate activations of shape ``(n, d)``; most methods do not use them.
            weights: How much each sample counts, shape ``(n,)``; only their ratios matter.
            seed: Seed of whatever is random in the fit.
        """

    @classmethod
    def takes_masked(cls, **options: Any) -> bool:  # noqa: ANN401  # those of fit
        """Return whether a fit with these options takes logits in which classes are masked by ``-inf``.

        The calibrated probability of a masked class is exactly 0, and the others sum to one.
        """
        return cls.masks

    @property
    def applies_to_masked(self) -> bool:
        """Whether this calibrator takes logits in which classes are masked by ``-inf``."""
        return self.takes_masked(**{name: getattr(self, name) for name in self.options})

    @classmethod
    def memory(cls, n: int, k: int) -> int:
        """Return about how many bytes a fit on ``n`` samples of ``k`` classes needs beside the logits."""
        return 32 * n * k

    @abstractmethod
    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of dimensions that are known by name in ``stored``; ``"k"`` is the number of classes."""
        return {} if self.n_classes is None else {"k": self.n_classes}

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of the calibrators that this one must hold."""
        return ()

    @property
    def part_classes(self) -> int | None:
        """The number of classes that these have."""
        return self.n_classes

    def register_buffers(self, **buffers: Tensor) -> None:
        """Register what was learned, by name."""
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    @property
    def uses_features(self) -> bool:
        """Whether this calibrator, or one that it holds, reads features."""
        parts = (part for part in self.modules() if isinstance(part, Calibrator))
        return any(part.needs_features or getattr(part, "n_features", None) is not None for part in parts)

    @property
    def missing_features(self) -> bool:
        """Whether NaN is allowed for missing features: if all that read features allow it, or none does."""
        held = (part for part in self.children() if isinstance(part, Calibrator))
        readers = [part for part in held if part.uses_features]
        return all(part.missing_features for part in readers) if readers else not self.uses_features

    @property
    def group_names(self) -> tuple[str, ...] | None:
        """The groups of samples that have a map of their own; None if there is one map for all."""
        return None

    def predict_proba(
        self, logits: ArrayLike, features: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> ArrayLike:
        """Return calibrated probabilities of shape ``(n, k)`` in the caller's kind of array.

        Those of half-precision logits are float32.
        """
        return same_kind(self.predict_log_proba(logits, features, groups).exp(), like=logits)

    @torch.no_grad()
    def predict_log_proba(
        self, logits: ArrayLike, features: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Tensor:
        """Check the arguments and return calibrated log-probabilities of shape ``(n, k)``.

        They are float64 for float64 logits, else float32.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            features: Penultimate activations of shape ``(n, d)``, for methods that use them.
            groups: The name of the group of each sample, where groups have maps of their own; samples of
                other groups, and all samples without this argument, get the common map.
        """
        z = within_reach(check_logits(logits))
        if not self.applies_to_masked and masked_classes(z) is not None:
            raise refused_masked(type(self).__name__)
        if self.n_classes not in (None, z.shape[1]):
            raise InputError(
                f"logits: expected the {self.n_classes} classes that {type(self).__name__} was fitted on, "
                f"got {z.shape[1]}"
            )
        if self.needs_features:
            required_features(features, type(self).__name__)
        allowed = self.missing_features
        h = None if features is None else check_features(features, n=len(z), missing=allowed).to(z.device)
        if groups is None or self.group_names is None:
            return self._in_blocks(z, h)
        return self._in_blocks(z, h, group_places(groups, self.group_names, n=len(z)).to(z.device))

    def _in_blocks(self, *rows_of: Tensor | None) -> Tensor:
        """Apply the map to some rows at a time, so that its own arrays are small beside the logits."""
        z = rows_of[0]
        assert z is not None
        rows = max(1, _BLOCK_ENTRIES // z.shape[1])
        calibrated: Tensor = self(*(each if each is None else each[:rows] for each in rows_of))
        if len(z) <= rows:
            return calibrated
        whole = calibrated.new_empty(z.shape)
        whole[:rows] = calibrated
        for start in range(rows, len(z), rows):
            part = slice(start, start + rows)
            whole[part] = self(*(each if each is None else each[part] for each in rows_of))
        return whole

    @classmethod
    def then(cls, other: type["Calibrator"]) -> type["Calibrator"]:
        """Return the method that fits this one, then the other one on this one's log-probabilities."""
        from calibrant.posthoc.chain import chain

        return chain(cls, other)

    @property
    def searched(self) -> Mapping[str, Any]:
        """Options that ``fit`` found by a search; passed to another ``fit`` they save the search."""
        return {}

    @property
    def n_parameters(self) -> int:
        """How many numbers were learned."""
        return sum(buffer.numel() for buffer in self.buffers() if buffer.is_floating_point())

    def extra_repr(self) -> str:
        """Return the options and what was learned: the numbers if they are few, else how many there are."""
        own = {name: each for name, each in self.named_buffers(recurse=False) if each.is_floating_point()}
        few = sum(each.numel() for each in own.values()) <= _FEW_NUMBERS
        facts = {name: getattr(self, name) for name in self.options if name not in _PROMISES}
        facts |= {name: each.tolist() for name, each in own.items() if few or not each.ndim}
        hidden = 0 if few else sum(each.numel() for each in own.values() if each.ndim)
        shown = [f"{name}={_short(value)}" for name, value in facts.items()]
        return ", ".join([*shown, *([f"{hidden:,} parameters"] if hidden else [])])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibrator to a safetensors file, all or nothing."""
        from calibrant.posthoc.files import save_calibrator

        save_calibrator(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a calibrator of this method, or of any when called on ``Calibrator``."""
        from calibrant.posthoc.files import load_calibrator

        calibrator = load_calibrator(path)
        if not isinstance(calibrator, cls):
            raise FormatError(
                f"{os.fspath(path)}: expected a {cls.__name__}, got a {type(calibrator).__name__}; "
                "use load_calibrator to read any method"
            )
        return calibrator


def _short(value: Any) -> str:  # noqa: ANN401  # an option, a number or a list of numbers
    """Return a value as Python writes it, numbers with four digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _on_few_threads(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fit that uses one thread for few logits; threads of small operations wait for each other."""

    @functools.wraps(fit)
    def fit_on_few_threads(cls: type[Calibrator], *args: Any, **options: Any) -> Any:  # noqa: ANN401  # as fit
        logits = args[0] if args else options.get("logits")
        with few_threads(math.prod(getattr(logits, "shape", ()))):
            return fit(cls, *args, **options)

    return fit_on_few_threads


def _with_masked_classes(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fit that refuses masked classes unless its method takes them.

    Samples with a single class teach nothing, because its probability is 1 whatever the map; they are left
    out.
    """

    @functools.wraps(fit)
    def fit_with_masked_classes(
        cls: type[Calibrator],
        logits: ArrayLike,
        labels: ArrayLike,
        *args: Any,  # noqa: ANN401  # as fit
        **options: Any,  # noqa: ANN401  # as fit
    ) -> Any:  # noqa: ANN401  # as fit
        z = to_tensor(logits, "logits")
        masked = masked_classes(z) if z.ndim == 2 and z.numel() else None
        if masked is None:
            return fit(cls, logits, labels, *args, **options)
        z = check_logits(z)
        if not cls.takes_masked(**options):
            raise refused_masked(cls.__name__)
        several = (~masked).sum(dim=1) > 1
        if bool(several.all()):
            return fit(cls, logits, labels, *args, **options)
        if not bool(several.any()):
            raise FitError(
                "logits: expected two classes that are not masked in some row, got one in every row"
            )
        y = check_labels(labels, n=z.shape[0], k=z.shape[1]).to(z.device)
        check_label_exists(z, y)
        used = several.nonzero().squeeze(1)
        if options.get("weights") is not None:
            options["weights"] = check_weights(options["weights"], n=len(z))[used.cpu()]
        return fit(cls, z[used], y[used], *args, **{**options, **_options_of_rows(options, used)})

    return fit_with_masked_classes


def refused_masked(what: str) -> InputError:
    """Return the error of a method that cannot take masked classes."""
    return InputError(
        f"logits: expected finite numbers for {what}, got -inf, which masks a class; give a number such as "
        "-1e4 for a class that is only improbable, or use a method that takes masked classes, as those of "
        "'calibrant methods' do"
    )


def _options_of_rows(options: Mapping[str, Any], rows: Tensor) -> dict[str, Any]:
    """Return the features and groups among the options of a fit, of some rows."""
    taken: dict[str, Any] = {}
    if options.get("features") is not None:
        taken["features"] = to_tensor(options["features"], "features")[rows]
    if options.get("groups") is not None:
        taken["groups"] = np.asarray(options["groups"])[rows.cpu().numpy()]
    return taken


def _with_checked_weights(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fit whose weights are positive and effective; equal weights are not passed on at all."""
    takes_weights = "weights" in inspect.signature(fit).parameters

    @functools.wraps(fit)
    def fit_with_checked_weights(
        cls: type[Calibrator],
        logits: ArrayLike,
        labels: ArrayLike,
        *args: Any,  # noqa: ANN401  # as fit
        weights: ArrayLike | None = None,
        **options: Any,  # noqa: ANN401  # as fit
    ) -> Any:  # noqa: ANN401  # as fit
        if weights is None:
            return fit(cls, logits, labels, *args, **options)
        z = logits if isinstance(logits, Tensor) and part_of(logits) else check_logits(logits)
        w = check_weights(weights, n=len(z)).to(z.device)
        y = check_labels(labels, n=z.shape[0], k=z.shape[1]).to(z.device)
        if not bool(w.all()):
            used = w.nonzero().squeeze(1)
            z, y, w = z[used], y[used], w[used]
            options |= _options_of_rows(options, used)
        if float(w.min()) < float(w.max()):
            if not takes_weights:
                raise refused_weights(cls.__name__)
            options["weights"] = effective(w)
        return fit(cls, z, y, *args, **options)

    return fit_with_checked_weights


class Identity(Calibrator):
    """Leave the model uncalibrated: the softmax of its logits; the predicted class never changes."""

    preserves_accuracy = True
    masks = True
    stored = declare()

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        **unused: Unpack[Unused],
    ) -> Self:
        """Check the fitting set as every method does; there is nothing to learn, from weights neither."""
        z, _, _ = check_weighted_set(logits, labels, weights, **unused)
        return cls(n_classes=z.shape[1])

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the model's own log-probabilities of shape ``(n, k)``."""
        return torch.log_softmax(at_least_float32(logits), dim=1)


def within_reach(logits: Tensor) -> Tensor:
    """Return checked logits in which those that stand for minus infinity, such as -1e30, are -1e15.

    The probability of such a class is 0 in any case, and the squares of -1e15 are finite in float32.

    Example:
        >>> within_reach(torch.tensor([[2.0, -1e30, 0.5]]))
        tensor([[ 2.0000e+00, -1.0000e+15,  5.0000e-01]])
    """
    if float(logits.amin()) >= -_FAR:
        return logits
    is_far = (logits < -_FAR) & (logits > -torch.inf) & (logits.amax(dim=1, keepdim=True) > -_FAR)
    return logits.masked_fill(is_far, -_FAR)


def check_fitting_set(
    logits: ArrayLike, labels: ArrayLike, **unused: Unpack[Refused]
) -> tuple[Tensor, Tensor]:
    """Check the logits and labels that a method is fitted on; labels go to the device of the logits.

    Args:
        logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
        labels: Integer classes of shape ``(n,)``.
        **unused: Arguments of ``fit`` that the method ignores; any but features and a seed are refused.
    """
    for name in unused.keys() - Refused.__annotations__.keys():
        raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
    # Parts of a set in folds were checked as a whole, and a checked copy would not be known as a part.
    z = logits if isinstance(logits, Tensor) and part_of(logits) else within_reach(check_logits(logits))
    y = check_labels(labels, n=z.shape[0], k=z.shape[1]).to(z.device)
    check_label_exists(z, y)
    return z, y


def check_weighted_set(
    logits: ArrayLike, labels: ArrayLike, weights: ArrayLike | None, **unused: Unpack[Unused]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check the fitting set of a method that takes weights, which every ``fit`` gets checked.

    Args:
        logits: As for :func:`check_fitting_set`.
        labels: As for :func:`check_fitting_set`.
        weights: Positive weights with the effective number of samples as their sum, or None.
        **unused: As for :func:`check_fitting_set`.
    """
    assert weights is None or isinstance(weights, Tensor)
    return *check_fitting_set(logits, labels, **unused), weights


def group_places(groups: ArrayLike, names: Sequence[str], *, n: int) -> Tensor:
    """Return the place of each sample's group among names, shape ``(n,)``; -1 for groups without a name."""
    given = np.asarray(groups).astype(str)
    if given.shape != (n,):
        raise InputError(f"groups: expected {n} names, one per sample, got shape {given.shape}")
    places = {name: place for place, name in enumerate(names)}
    return torch.tensor([places.get(name, -1) for name in given.tolist()], dtype=torch.int64)


def required_features(
    features: ArrayLike | None, method: str, *, what: str = "penultimate features of shape (n, d)"
) -> ArrayLike:
    """Refuse missing features that a method needs."""
    if features is None:
        raise InputError(f"features: expected {what}, which {method} needs, got none")
    return features
