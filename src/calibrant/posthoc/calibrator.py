"""What every calibrator is: a fitted, immutable map from logits to calibrated log-probabilities."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeAlias, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.errors import FormatError, InputError
from calibrant.inputs import (
    ArrayLike,
    at_least_float32,
    check_features,
    check_logits,
    class_order,
    column_sets,
    group_name,
    masked_classes,
    names_of_columns,
    same_kind,
    to_tensor,
)
from calibrant.outcomes import refused_weights
from calibrant.posthoc.fitting.masked import within_reach
from calibrant.posthoc.fitting.stored import Numbers, declare
from calibrant.posthoc.fitting_set import FittingSet, Rows

#: The name of each sample's group, or several columns of such names.
GroupsLike: TypeAlias = ArrayLike | Mapping[str, ArrayLike]

# Entries that are calibrated at a time, and so few that calls take longer than their work.
_BLOCK_ENTRIES, _FEW_ENTRIES = 1 << 22, 1 << 12

# A calibrator with at most this many numbers shows them all; options that are only promises are not shown.
_FEW_NUMBERS = 8
_PROMISES = ("preserves_accuracy", "needs_features")


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
        signal_names: The names of a black box's signals, if it was fitted with some; others, or another
            order, are refused by :func:`calibrant.evaluation.calibrated`.
        for_folds: Options for fits on parts of the same samples: what this fit found by a search, and how
            exactly to fit. A file does not keep them.

    Class attributes:
        preserves_accuracy: Whether the predicted class can never change.
        needs_features: Whether ``fit`` and ``forward`` require penultimate features.
        features_are: What the features are called in error messages.
        takes_weights: Whether samples may have weights.
        masks: Whether classes may be masked by logits of ``-inf``. Their calibrated probability is exactly 0,
            and the others sum to one.
        options: Names of plain attributes (numbers, text, lists of them) that are saved to a file; their
            annotations say what a file may hold.
        stored: What each buffer must be, beside those that a base class declares; a file with others is
            refused. None if nothing is declared.
    """

    preserves_accuracy: bool = False
    needs_features: bool = False
    features_are: ClassVar[str] = "penultimate features of shape (n, d)"
    takes_weights: ClassVar[bool] = True
    masks: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()
    stored: ClassVar[Mapping[str, Numbers] | None] = None
    methods: ClassVar[dict[str, type["Calibrator"]]] = {}

    n_classes: int | None
    class_names: tuple[str, ...] | None
    class_frequencies: tuple[float, ...] | None
    signal_names: tuple[str, ...] | None
    for_folds: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401  # Python's own hook
        super().__init_subclass__(**kwargs)
        # The exporter to ONNX makes a subclass of the same name while it traces, which is not the method.
        is_copy = Calibrator.methods.get(cls.__name__) in cls.__mro__
        if not is_copy and (cls.__module__ != "calibrant.posthoc.chain" or cls.__name__ == "Chain"):
            Calibrator.methods[cls.__name__] = cls

    def __init__(self, *, n_classes: int | None = None) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.class_names = None
        self.class_frequencies = None
        self.signal_names = None

    @classmethod
    @abstractmethod
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        **rows: Unpack[Rows],
    ) -> Self:
        """Learn the map from held-out logits and labels; equal samples and seeds give equal fits.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1; or a fitting set,
                which holds everything else too.
            labels: Integer classes of shape ``(n,)``.
            **rows: Features, weights and a seed, see :class:`~calibrant.posthoc.fitting_set.Rows`.
        """

    @classmethod
    def data(
        cls, logits: ArrayLike | FittingSet, labels: ArrayLike | None = None, **rows: Unpack[Rows]
    ) -> FittingSet:
        """Return the arguments of ``fit`` as a fitting set, or refuse what this method cannot take."""
        data = FittingSet.of(logits, labels, **rows)
        if data.weights is not None and not cls.takes_weights:
            raise refused_weights(cls.__name__)
        if data.rows_masked and not cls.masks:
            raise refused_masked(cls.__name__)
        return data

    @property
    def applies_to_masked(self) -> bool:
        """Whether this calibrator, and all that it holds, take logits in which classes are masked."""
        return all(part.masks for part in self.modules() if isinstance(part, Calibrator))

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

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns that make these groups, if there are several; empty if there is one."""
        return ()

    def predict_proba(
        self, logits: ArrayLike, features: ArrayLike | None = None, groups: GroupsLike | None = None
    ) -> ArrayLike:
        """Return calibrated probabilities of shape ``(n, k)`` in the caller's kind of array.

        Those of half-precision logits are float32.
        """
        return same_kind(self.predict_log_proba(logits, features, groups).exp(), like=logits)

    def predict_one(
        self,
        row: ArrayLike | float,
        features: ArrayLike | None = None,
        group: str | Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401  # the caller's kind of array, or a number for a number
        """Return the calibrated probabilities of one sample, shape ``(k,)``, in the caller's kind of array.

        It changes nothing outside, so that any number of threads may call it at once.

        Args:
            row: Scores of shape ``(k,)``, or the log-odds of class 1 of two. Calibrators of confidences and
                scores take and return one number.
            features: Penultimate activations of shape ``(d,)``, for methods that use them.
            group: The name of its group, where groups have maps of their own; by column if several columns
                make the groups.

        Example:
            >>> Identity().predict_one([0.0, 0.0])
            [0.5, 0.5]
        """
        given = [row] if isinstance(row, (int, float)) else row
        z = to_tensor(given, "row")
        if z.ndim != 1:
            raise InputError(
                f"row: expected scores of shape (k,), got shape {tuple(z.shape)}; predict_proba takes several"
            )
        h = None if features is None else to_tensor(features, "features")[None]
        log_probs = self.predict_log_proba(z if len(z) == 1 else z[None], h, groups_of_one(group))
        return same_kind(log_probs[0].exp(), like=given)

    @torch.no_grad()
    def predict_log_proba(
        self, logits: ArrayLike, features: ArrayLike | None = None, groups: GroupsLike | None = None
    ) -> Tensor:
        """Check the arguments and return calibrated log-probabilities of shape ``(n, k)``.

        They are float64 for float64 logits, else float32.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1. The columns of a data
                frame may stand in any order, in which the result has them too; if the calibrator knows the
                names of its classes, others are refused.
            features: Penultimate activations of shape ``(n, d)``, for methods that use them.
            groups: The name of the group of each sample, where groups have maps of their own; samples of
                other groups, and all samples without this argument, get the common map. If several columns
                make the groups (``group_columns``), these columns by name.
        """
        order = class_order(self.class_names, names_of_columns(logits, "logits"), name="logits")
        z = self._within_reach(check_logits(logits))
        z = z if order is None else z[:, order.to(z.device)]
        if self.n_classes not in (None, z.shape[1]):
            raise InputError(
                f"logits: expected the {self.n_classes} classes that {type(self).__name__} was fitted on, "
                f"got {z.shape[1]}"
            )
        if self.needs_features:
            required_features(features, type(self).__name__, what=self.features_are)
        h = None
        if features is not None:
            h = check_features(features, n=len(z), missing=self.missing_features).to(z.device)
        rows = [z, h]
        if groups is not None and self.group_names is not None:
            rows.append(
                group_places(groups, self.group_names, n=len(z), columns=self.group_columns).to(z.device)
            )
        calibrated = self._in_blocks(*rows)
        return calibrated if order is None else calibrated[:, order.argsort().to(z.device)]

    def _within_reach(self, z: Tensor) -> Tensor:
        """Refuse masked classes that the map does not take; bring others that are very low within reach."""
        reached = within_reach(z)
        if reached is not z and not self.applies_to_masked and masked_classes(z) is not None:
            raise refused_masked(type(self).__name__)
        return reached

    def _in_blocks(self, *rows_of: Tensor | None) -> Tensor:
        """Apply the map to some rows at a time, so that its own arrays are small beside the logits."""
        z = rows_of[0]
        assert z is not None
        if z.numel() <= _FEW_ENTRIES:
            # A sixth faster, but what it returns could not be used where gradients are recorded.
            with torch.inference_mode():
                few: Tensor = self(*rows_of)
            return few.clone()
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


def groups_of_one(group: str | Mapping[str, str] | None) -> GroupsLike | None:
    """Return the group of one sample as those of several.

    Example:
        >>> groups_of_one("north"), groups_of_one({"region": "north"})
        (['north'], {'region': ['north']})
    """
    if group is None or isinstance(group, str):
        return None if group is None else [group]
    return {column: [str(name)] for column, name in group.items()}


def refused_masked(what: str) -> InputError:
    """Return the error of a method that cannot take masked classes."""
    return InputError(
        f"logits: expected finite numbers for {what}, got -inf, which masks a class; give a number such as "
        "-1e4 for a class that is only improbable, or use a method that takes masked classes, as those of "
        "'calibrant methods' do"
    )


class Identity(Calibrator):
    """Leave the model uncalibrated: the softmax of its logits; the predicted class never changes."""

    preserves_accuracy = True
    masks = True
    stored = declare()

    @classmethod
    def fit(
        cls, logits: ArrayLike | FittingSet, labels: ArrayLike | None = None, **rows: Unpack[Rows]
    ) -> Self:
        """Check the fitting set as every method does; there is nothing to learn."""
        return cls(n_classes=cls.data(logits, labels, **rows).n_classes)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the model's own log-probabilities of shape ``(n, k)``."""
        return torch.log_softmax(at_least_float32(logits), dim=1)


def group_places(groups: GroupsLike, names: Sequence[str], *, n: int, columns: Sequence[str] = ()) -> Tensor:
    """Return the place of each sample's group among names, shape ``(n,)``; -1 for groups without a name.

    If several columns make the groups, a sample has one place for each column and for each set of columns,
    shape ``(n, sets)``.
    """
    if columns:
        return torch.stack([group_places(each, names, n=n) for each in crossed_names(groups, columns)], dim=1)
    if isinstance(groups, Mapping):
        raise InputError(
            f"groups: expected one column of names, got {' and '.join(groups)}; give one of them"
        )
    given = np.asarray(groups).astype(str)
    if given.shape != (n,):
        raise InputError(f"groups: expected {n} names, one per sample, got shape {given.shape}")
    places = {name: place for place, name in enumerate(names)}
    return torch.tensor([places.get(name, -1) for name in given.tolist()], dtype=torch.int64)


def crossed_names(groups: GroupsLike, columns: Sequence[str]) -> list[list[str]]:
    """Return the names of each sample's groups, for each column and for each set of columns."""
    given = groups if isinstance(groups, Mapping) else {}
    if missing := [column for column in columns if column not in given]:
        raise InputError(
            f"groups: expected the columns {' and '.join(columns)}, which this was fitted on, got none for "
            f"{' and '.join(missing)}; give all of them by name"
        )
    levels = {column: np.asarray(given[column]).astype(str).tolist() for column in columns}
    sets = ([(c, levels[c]) for c in each] for each in column_sets(columns))
    return [
        [group_name([c for c, _ in each], row) for row in zip(*(x for _, x in each), strict=True)]
        for each in sets
    ]


def required_features(
    features: ArrayLike | None, method: str, *, what: str = "penultimate features of shape (n, d)"
) -> ArrayLike:
    """Refuse missing features that a method needs."""
    if features is None:
        raise InputError(f"features: expected {what}, which {method} needs, got none")
    return features
