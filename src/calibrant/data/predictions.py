"""``Predictions``: the output of a classifier and, if known, the true classes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.data.numbering import numbered
from calibrant.errors import InputError, did_you_mean, listed
from calibrant.inputs import (
    ArrayLike,
    check_confidence,
    check_correct,
    check_features,
    check_label_exists,
    check_labels,
    check_logits,
    check_probs,
    check_weights,
    class_order,
    column_sets,
    group_name,
    names_of_columns,
    to_array,
    to_tensor,
)
from calibrant.outcomes import Outcomes, effective, log_odds, log_probs
from calibrant.show.numbers import percent
from calibrant.show.table import Table
from calibrant.text import check_text

# More columns of groups have more intersections than a table, or most data, can tell apart.
_MOST_COLUMNS = 4
# Samples that a notebook shows.
_ROWS_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Groups:
    """The group that each sample belongs to.

    Attributes:
        names: Names of the groups, in alphabetical order.
        codes: Place of each sample's group among the names: integers of shape ``(n,)``, on the CPU.
        columns: Names of the columns that make the groups, if there are several: a group is then the samples
            that agree in all of them. Empty for one column.
        levels: What each group is in each of these columns.
    """

    names: tuple[str, ...]
    codes: Tensor
    columns: tuple[str, ...] = ()
    levels: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, values: "Groups | ArrayLike | Mapping[str, ArrayLike]", *, n: int) -> "Groups":
        """Return groups from a name or a whole number for each sample, or from several columns of them.

        Example:
            >>> Groups.of(["law", "art", "law"], n=3).names
            ('art', 'law')
            >>> Groups.of({"race": ["A", "B", "A"], "sex": ["f", "f", "m"]}, n=3).names
            ('race=A, sex=f', 'race=A, sex=m', 'race=B, sex=f')
        """
        if isinstance(values, Groups):
            groups = values
        elif isinstance(values, Mapping):
            groups = cls._crossed(values, n)
        else:
            array = values.numpy(force=True) if isinstance(values, Tensor) else to_array(values, "groups")
            if array.ndim != 1 or array.dtype.kind not in "USOTiub":
                raise InputError(
                    f"groups: expected a name or a whole number for each sample, got shape {array.shape} of "
                    f"type {array.dtype}; pass a list of text"
                )
            missing = [row for row, name in enumerate(array.tolist()) if name is None or name != name]
            if missing:
                raise InputError(f"groups: expected a name in every row, got none in row {missing[0]}")
            names, codes = np.unique(array.astype(str), return_inverse=True)
            check_text(names.tolist(), "groups")
            groups = cls(tuple(names.tolist()), torch.from_numpy(codes.astype(np.int64)))
        if len(groups.codes) != n:
            raise InputError(f"groups: expected {n} entries, one per prediction, got {len(groups.codes)}")
        return groups

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def values(self) -> list[str]:
        """The name of the group of each sample."""
        return [self.names[code] for code in self.codes.tolist()]

    def take(self, index: Tensor) -> "Groups":
        """Return the groups of some samples; names that no longer occur are dropped."""
        kept, codes = self.codes[index.cpu()].unique(return_inverse=True)
        levels = tuple(self.levels[code] for code in kept.tolist()) if self.columns else ()
        return Groups(tuple(self.names[code] for code in kept.tolist()), codes, self.columns, levels)

    @property
    def by_column(self) -> dict[str, list[str]]:
        """What each sample is in each of several columns, by the name of the column."""
        codes = self.codes.tolist()
        return {
            column: [self.levels[code][place] for code in codes] for place, column in enumerate(self.columns)
        }

    def by(self, columns: Sequence[str]) -> "Groups":
        """Return the groups that some of several columns make; refuse columns that are not there."""
        missing = [column for column in columns if column not in self.columns]
        if missing:
            got = f"only {' and '.join(self.columns)}" if self.columns else "one column without a name"
            raise InputError(
                f"groups: expected the columns {' and '.join(columns)}, got {got}; name them all"
            )
        if tuple(columns) == self.columns:
            return self
        chosen = [self.columns.index(column) for column in columns]
        own = [tuple(levels[place] for place in chosen) for levels in self.levels]
        levels = sorted(set(own))
        places = {each: place for place, each in enumerate(levels)}
        codes = torch.tensor([places[each] for each in own], dtype=torch.int64)[self.codes]
        return Groups(
            tuple(group_name(columns, each) for each in levels), codes, tuple(columns), tuple(levels)
        )

    @property
    def families(self) -> "tuple[Groups, ...]":
        """The groups of each column, and of the columns together; of one column, these groups alone."""
        return tuple(self.by(columns) for columns in column_sets(self.columns)) or (self,)

    @classmethod
    def _crossed(cls, values: "Mapping[str, ArrayLike]", n: int) -> "Groups":
        if not 1 <= len(values) <= _MOST_COLUMNS:
            raise InputError(
                f"groups: expected at most {_MOST_COLUMNS} columns, got {len(values)}; join some"
            )
        each = {str(column): cls.of(column_values, n=n) for column, column_values in values.items()}
        if len(each) == 1:
            return next(iter(each.values()))
        columns = tuple(each)
        check_text(columns, "groups")
        own = torch.stack([groups.codes for groups in each.values()], dim=1)
        rows, codes = torch.unique(own, dim=0, return_inverse=True)
        levels = tuple(
            tuple(groups.names[code] for groups, code in zip(each.values(), row, strict=True))
            for row in rows.tolist()
        )
        return cls(tuple(group_name(columns, each) for each in levels), codes, columns, levels)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Predictions:
    """The output of a classifier for ``n`` samples and, if known, their true classes.

    Exactly one form is given: ``logits``, ``probs``, or ``confidence`` for a black box that only states how
    sure it is. What differs between the forms is asked of the predictions: :meth:`outcomes`, :attr:`problem`,
    :meth:`with_scores`, :meth:`classes`, :attr:`truth`. Arrays are checked once, here, and
    stored as detached tensors of the caller's floating type on the device of the predictions; memory is
    shared where possible.

    Args:
        logits: Scores of shape ``(n, k)``, or log-odds of class 1 of shape ``(n,)``; ``-inf`` masks a class
            that a sample does not have.
        probs: Distributions of shape ``(n, k)``, or probabilities of class 1 of shape ``(n,)``.
        confidence: Stated probabilities that the prediction is correct, shape ``(n,)``.
        correct: Whether each prediction was correct, beside ``confidence``, shape ``(n,)``; none if unknown.
        labels: True classes of shape ``(n,)``: whole numbers from 0, or names of classes; none for unlabelled
            or out-of-distribution samples.
        features: Penultimate activations of shape ``(n, d)``.
        signals: What else a black box says about each answer, beside ``confidence``: numbers by name, each of
            shape ``(n,)``, NaN where missing.
        groups: The group of each sample, such as the subject of a question: a name or a whole number each;
            or several columns of them by name, such as race and sex.
        weights: How much each sample counts, shape ``(n,)``: 3 is like three equal samples, 0 like none. Only
            their ratios matter.
        units: What each sample belongs to, if samples depend on each other, such as the question of an
            answer, the image of a box or the patient of a visit: a name or a whole number each. Samples of
            one unit are drawn together in intervals and tests, and stay together in folds.
        ids: A name or a whole number for each sample, by which two models are compared.
        class_names: One name for each of the ``k`` classes; by default the names of the columns if the
            predictions are a DataFrame.
        metadata: Notes about the predictions, text to text; empty by default.

    Example:
        >>> Predictions(probs=[[0.9, 0.1], [0.4, 0.6]], labels=[0, 1], class_names=["cat", "dog"])
        Predictions(n=2, k=2, probs float64, labels, class_names)
        >>> import pandas as pd
        >>> probs = pd.DataFrame({"cat": [0.9, 0.4], "dog": [0.1, 0.6]})
        >>> Predictions(probs=probs, labels=["cat", "dog"]).labels
        tensor([0, 1])
    """

    logits: Tensor | None
    probs: Tensor | None
    confidence: Tensor | None
    correct: Tensor | None
    labels: Tensor | None
    features: Tensor | None
    signals: Mapping[str, Tensor]
    groups: Groups | None
    weights: Tensor | None
    units: Tensor | None
    ids: Tensor | None
    class_names: tuple[str, ...] | None
    metadata: Mapping[str, str]

    def __new__(cls, **given: object) -> "Predictions":
        """Choose the form; ``Predictions(...)`` is all that callers write."""
        form = ConfidencePredictions if given.get("confidence") is not None else ClassPredictions
        return object.__new__(form if cls is Predictions else cls)

    # Written out because it takes any array, while the fields above are always tensors.
    def __init__(
        self,
        *,
        logits: ArrayLike | None = None,
        probs: ArrayLike | None = None,
        confidence: ArrayLike | None = None,
        correct: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        features: ArrayLike | None = None,
        signals: Mapping[str, ArrayLike] | None = None,
        groups: Groups | ArrayLike | Mapping[str, ArrayLike] | None = None,
        weights: ArrayLike | None = None,
        units: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        values: dict[str, Any] = {
            "logits": logits,
            "probs": probs,
            "confidence": confidence,
            "correct": correct,
            "labels": labels,
            "features": features,
            "signals": signals or None,
            "groups": groups,
            "weights": weights,
            "units": units,
            "ids": ids,
            "class_names": class_names,
        }
        given = {name: value for name, value in values.items() if value is not None}
        form = _check_form(list(given))
        names = names_of_columns(given[form], form) if class_names is None else class_names
        main = _keep_type(_FORMS[form], given[form], form)
        n, k = len(main), main.shape[-1]  # pairs have no k, and none of the arguments that need it below
        given[form] = main
        if names is not None:
            given["class_names"] = _check_class_names(names, k)
        if "correct" in given:
            given["correct"] = check_correct(given["correct"], n=n).to(main.device)
        if "labels" in given:
            places = _places_of_labels(given["labels"], given.get("class_names"))
            given["labels"] = _check_labels(places, main, form)
        given["signals"] = _check_signals(signals or {}, n, main.device)
        given |= _check_beside(given, n, main.device)
        for name, value in (values | given | {"metadata": _check_metadata(metadata or {})}).items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self._main)

    def __repr__(self) -> str:
        form, main = next(iter(self._tensors().items()))
        parts = [f"n={self.n}", f"{form} {str(main.dtype).removeprefix('torch.')}"]
        if self.class_count:
            parts.insert(1, f"k={self.k}")
        parts += [name for name in ("correct", "labels") if getattr(self, name) is not None]
        if self.features is not None:
            parts.append(f"features d={self.features.shape[1]}")
        if self.signals:
            parts.append(f"signals {', '.join(self.signals)}")
        if self.groups is not None:
            parts.append(f"{len(self.groups.names)} groups")
        parts += ["weights"] if self.weights is not None else []
        parts += [f"{self.n_units} units"] if self.units is not None else []
        parts += ["ids"] if self.ids is not None else []
        parts += [name for name in ("class_names", "metadata") if getattr(self, name)]
        return f"Predictions({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Return what notebooks show: the contents, and the first samples."""
        samples = self.take(range(min(self.n, _ROWS_SHOWN)))
        shown = _columns_shown(samples)
        rows = zip(range(samples.n), *shown.values(), strict=True)
        title = " of ".join(filter(None, (f"Predictions: {self.n:,} samples", self.class_count)))
        return Table.of(["row", *shown], rows, title=title, notes=(repr(self), *_named(self)))._repr_html_()

    def __reduce__(self) -> tuple[Callable[[], "Predictions"], tuple[()]]:
        # Needed by workers and deepcopy, because a read-only mapping cannot be pickled.
        more = {"signals": dict(self.signals), "groups": self.groups}
        return partial(Predictions, **{**self._tensors(), **more, **self._notes()}), ()

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self)

    @property
    def n_rows(self) -> int:
        """Number of rows: of samples, except that several labels at once have one row for many entries."""
        return self.n

    @property
    def n_units(self) -> int | None:
        """Number of units; None if none were given."""
        return None if self.units is None else len(self.units.unique())

    @property
    def n_independent(self) -> int:
        """Number of what is drawn and dealt to folds: units if they were given, else rows."""
        return self.n_units or self.n_rows

    @property
    def k(self) -> int | None:
        """Number of classes; none for (confidence, correct) pairs."""
        raise NotImplementedError

    @property
    def described(self) -> str:
        """What the predictions are, for messages: "scores of 10 classes"."""
        raise NotImplementedError

    @property
    def class_count(self) -> str:
        """The number of classes as text; empty if there are none."""
        raise NotImplementedError

    @property
    def own_name(self) -> str:
        """What the model's own confidence is called beside calibrated ones."""
        raise NotImplementedError

    @property
    def truth(self) -> Tensor | None:
        """What came true: the class of each sample, or whether each answer was right; None if unknown."""
        raise NotImplementedError

    def truth_for(self, purpose: str) -> Tensor:
        """Return what came true, or refuse predictions that do not know it."""
        raise NotImplementedError

    @property
    def problem(self) -> "ClassPredictions":
        """The classes that methods are fitted to: those of the scores, or wrong and right.

        So whatever works with two classes works with pairs. The logits of pairs are log-probabilities in
        float64, and the labels are whether each answer was right.

        Example:
            >>> Predictions(confidence=[0.9, 0.6], correct=[True, False]).problem
            Predictions(n=2, k=2, logits float64, labels, class_names)
        """
        raise NotImplementedError

    def with_scores(self, log_probs: Tensor) -> "Predictions":
        """Return the same samples with other log-probabilities of the classes of :attr:`problem`."""
        raise NotImplementedError

    def classes(
        self, expected: str = "logits or probs with labels", *, name: str = "predictions"
    ) -> "ClassPredictions":
        """Return the predictions if they are scores of classes; refuse others, saying what was expected."""
        raise NotImplementedError

    def outcomes(self) -> Outcomes:
        """Return the confidence of each prediction and whether it was correct, with weights and units."""
        raise NotImplementedError

    @property
    def beside(self) -> Tensor | None:
        """What methods may use beside the scores: the features, or the signals of a black box, ``(n, d)``."""
        return torch.stack(list(self.signals.values()), dim=1) if self.signals else self.features

    def to_probs(self) -> Tensor:
        """Return class probabilities of shape ``(n, k)``: those given, or the softmax of the logits."""
        raise NotImplementedError

    def to_logits(self) -> Tensor:
        """Return scores of shape ``(n, k)`` whose softmax are the probabilities: those given, or their logs.

        Probabilities count as at least 1e-12 in it, see :func:`~calibrant.outcomes.log_probs`.
        """
        raise NotImplementedError

    def take(self, rows: ArrayLike) -> "Predictions":
        """Return the samples with these row numbers, or those where a mask of length ``n`` is true."""
        index = check_rows(rows, self.n).to(self._main.device)
        chosen: dict[str, Any] = {name: tensor[index] for name, tensor in self._tensors().items()}
        chosen["signals"] = {name: signal[index] for name, signal in self.signals.items()}
        chosen["groups"] = None if self.groups is None else self.groups.take(index)
        return Predictions(**{**chosen, **self._notes()})

    def counted(self) -> "Predictions":
        """Return the samples that count: those with a weight above 0. Equal weights are dropped.

        Example:
            >>> Predictions(probs=[0.9, 0.6, 0.2], labels=[1, 0, 0], weights=[2, 2, 0]).counted()
            Predictions(n=2, k=2, probs float64, labels)
        """
        if self.weights is None:
            return self
        used = effective(self.weights) > 0
        part = self if bool(used.all()) else self.take(used)
        assert part.weights is not None
        unequal = float(part.weights.min()) < float(part.weights.max())
        return part if unequal else part.replaced(weights=None)

    def replaced(self, **others: Any) -> "Predictions":  # noqa: ANN401  # any argument of Predictions
        """Return the same predictions with other values of some arguments."""
        values: dict[str, Any] = {**self._tensors(), "signals": self.signals, "groups": self.groups}
        return Predictions(**{**values, **self._notes(), **others})

    def in_order(self, class_names: Sequence[str] | None, *, name: str = "predictions") -> "Predictions":
        """Return the predictions with their classes in the order of these names; refuse other names.

        Predictions without class names, and those to which none are given, stay as they are.

        Args:
            class_names: The names in the wanted order.
            name: What the predictions are called in error messages.

        Example:
            >>> pets = Predictions(probs=[[0.9, 0.1]], labels=[0], class_names=["cat", "dog"])
            >>> pets.in_order(["dog", "cat"]).labels
            tensor([1])
        """
        order = class_order(class_names, self.class_names, name=name)
        if order is None:
            return self
        values: dict[str, Any] = {
            form: scores[:, order] for form, scores in self._tensors().items() if form in ("logits", "probs")
        }
        if self.labels is not None:
            values["labels"] = order.argsort().to(self.labels.device)[self.labels]
        return self.replaced(**values, class_names=class_names)

    def stored(self) -> "Stored":
        """Return what files hold."""
        return Stored(self._tensors(), self.signals, self.groups, self.class_names, self.metadata)

    @property
    def _main(self) -> Tensor:
        return next(iter(self._tensors().values()))

    def _tensors(self) -> dict[str, Tensor]:
        """Return the arrays that were given, the predictions first."""
        names = ("logits", "probs", "confidence", "correct", "labels", "features", "weights", "units", "ids")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _notes(self) -> dict[str, Any]:
        return {"class_names": self.class_names, "metadata": dict(self.metadata)}


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ClassPredictions(Predictions):
    """Scores of all classes: logits or probabilities, with labels if known."""

    own_name = "uncalibrated"

    @property
    def k(self) -> int:
        """Number of classes."""
        return self._main.shape[1]

    @property
    def described(self) -> str:
        """What the predictions are."""
        return f"scores of {self.class_count}"

    @property
    def class_count(self) -> str:
        """The number of classes as text."""
        return f"{self.k:,} classes"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, or their numbers."""
        return self.class_names or tuple(str(place) for place in range(self.k))

    @property
    def truth(self) -> Tensor | None:
        """The class of each sample; None if unknown."""
        return self.labels

    def truth_for(self, purpose: str) -> Tensor:
        """Return the class of each sample, or refuse predictions without labels."""
        if self.labels is None:
            raise InputError(f"labels: expected the true class of each sample, got none; {purpose}")
        return self.labels

    @property
    def problem(self) -> "ClassPredictions":
        """The predictions themselves."""
        return self

    def with_scores(self, log_probs: Tensor) -> Predictions:
        """Return the same samples with other log-probabilities as logits."""
        return self.replaced(probs=None, logits=log_probs)

    def classes(
        self, expected: str = "logits or probs with labels", *, name: str = "predictions"
    ) -> "ClassPredictions":
        """Return the predictions themselves; refuse those without labels if labels are expected."""
        if "labels" in expected and self.labels is None:
            raise InputError(f"{name}: expected {expected}, got {self.described} without labels")
        return self

    def to_probs(self) -> Tensor:
        """Return the probabilities, or the softmax of the logits."""
        if self.logits is not None:
            return torch.softmax(_widen(self.logits), dim=1)
        return self._main

    def to_logits(self) -> Tensor:
        """Return the logits, or the logarithms of the probabilities."""
        return self.logits if self.logits is not None else log_probs(_widen(self._main))

    def outcomes(self) -> Outcomes:
        """Return the confidence of each prediction and whether it was correct, with weights and units."""
        labels = self.truth_for("without labels it is unknown whether a prediction was correct")
        if self.logits is not None:
            found = Outcomes.from_logits(self.logits, labels)
        else:
            found = Outcomes.from_probs(_widen(self._main), labels)
        return replace(found, units=self.units).weighed(self.weights)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ConfidencePredictions(Predictions):
    """Confidences of a black box, and whether each answer was right if that is known."""

    own_name = "as stated"

    @property
    def k(self) -> None:
        """There are no classes."""
        return None

    @property
    def described(self) -> str:
        """What the predictions are."""
        return "confidences of a black box"

    @property
    def class_count(self) -> str:
        """There are no classes to count."""
        return ""

    @property
    def truth(self) -> Tensor | None:
        """Whether each answer was right; None if unknown."""
        return self.correct

    def truth_for(self, purpose: str) -> Tensor:
        """Return whether each answer was right, or refuse predictions that do not know it."""
        if self.correct is None:
            raise InputError(f"correct: expected a hit or miss for each confidence, got none; {purpose}")
        return self.correct

    @property
    def problem(self) -> ClassPredictions:
        """Two classes, wrong and right."""
        return as_two_classes(self, log_odds(self._main), ("wrong", "right"))

    def with_scores(self, log_probs: Tensor) -> Predictions:
        """Return the same answers with the confidences that log-probabilities of wrong and right give."""
        return self.replaced(confidence=log_probs[:, 1].exp().clamp(max=1.0))

    def classes(
        self, expected: str = "logits or probs with labels", *, name: str = "predictions"
    ) -> ClassPredictions:
        """Refuse: there are no classes."""
        raise InputError(f"{name}: expected {expected}, got {self.described}, which have no classes")

    def to_probs(self) -> Tensor:
        """Refuse: there are no class probabilities."""
        raise InputError(
            "predictions: expected logits or probs, got confidence with correct; "
            "pairs have no class probabilities, so use a top-label measure"
        )

    to_logits = to_probs

    def outcomes(self) -> Outcomes:
        """Return the confidence of each answer and whether it was right, with the weights if given."""
        correct = self.truth_for("without it nobody knows which answers were right")
        return Outcomes(_widen(self._main), correct, units=self.units).weighed(self.weights)


class Stored(NamedTuple):
    """What a file of predictions holds: arrays by name, signals, groups, class names and metadata."""

    arrays: Mapping[str, Tensor]
    signals: Mapping[str, Tensor]
    groups: Groups | None
    class_names: tuple[str, ...] | None
    metadata: Mapping[str, str]


def as_two_classes(predictions: Predictions, s: Tensor, names: tuple[str, str]) -> ClassPredictions:
    """Return log-odds as predictions of two classes."""
    softplus = torch.nn.functional.softplus
    return ClassPredictions(
        logits=torch.stack([-softplus(s), -softplus(-s)], dim=1),
        labels=None if predictions.correct is None else predictions.correct.long(),
        groups=predictions.groups,
        weights=predictions.weights,
        units=predictions.units,
        ids=predictions.ids,
        class_names=names,
        metadata=predictions.metadata,
    )


def _columns_shown(predictions: Predictions) -> dict[str, list[str]]:
    """Return the columns that notebooks show: what was predicted, how surely, and the truth."""
    columns: dict[str, list[str]] = {}
    if predictions.confidence is None:
        probs = torch.softmax(predictions.to_logits().double(), dim=1)
        names = predictions.class_names or [str(place) for place in range(probs.shape[1])]
        confidence, predicted = probs.max(dim=1)
        columns["predicted"] = [names[place] for place in predicted.tolist()]
        if predictions.labels is not None:
            columns["true class"] = [names[place] for place in predictions.labels.tolist()]
    else:
        confidence = predictions.confidence
    columns["confidence"] = [str(percent(value, 1)) for value in confidence.tolist()]
    if predictions.correct is not None:
        columns["correct"] = ["yes" if value else "no" for value in predictions.correct.tolist()]
    if predictions.groups is not None:
        columns["group"] = predictions.groups.values
    return columns


def _named(predictions: Predictions) -> list[str]:
    """Return sentences that list classes and groups by name, as far as they are known."""
    named = {
        "classes": predictions.class_names,
        "groups": None if predictions.groups is None else predictions.groups.names,
    }
    return [f"{what}: {listed(list(names))}" for what, names in named.items() if names]


def join_predictions(parts: Mapping[str, Predictions]) -> Predictions:
    """Return the samples of several sets of predictions, such as the files of a folder, as one.

    Args:
        parts: The predictions by the names that errors give them; all have the same form, classes, signals
            and features, and all or none have labels, groups, weights, units and ids.

    Example:
        >>> day = Predictions(logits=[[2.0, 0.0]], labels=[0])
        >>> join_predictions({"monday": day, "tuesday": day})
        Predictions(n=2, k=2, logits float64, labels)
    """
    (name, first), *others = parts.items()
    for other, part in others:
        ours, theirs = (_contents(each) for each in (first, part))
        if ours != theirs or part.n_rows != part.n:
            raise InputError(
                f"{other}: expected {ours} as in {name}, got {theirs if ours != theirs else repr(part)}; "
                "read them apart"
            )
    every = list(parts.values())
    if len(every) == 1:
        return first
    values: dict[str, Any] = {key: torch.cat([p._tensors()[key] for p in every]) for key in first._tensors()}
    values["signals"] = {key: torch.cat([p.signals[key] for p in every]) for key in first.signals}
    if first.groups is not None:
        parted = [p.groups for p in every if p.groups is not None]
        values["groups"] = (
            {c: [x for groups in parted for x in groups.by_column[c]] for c in first.groups.columns}
            if first.groups.columns
            else [group for groups in parted for group in groups.values]
        )
    return Predictions(**values, class_names=first.class_names)


def _contents(predictions: Predictions) -> str:
    """Return what predictions hold, in words that differ unless they can be joined."""
    classes = f" of {predictions.class_count}" if predictions.class_count else ""
    if predictions.class_names is not None:
        classes += f" ({listed(predictions.class_names)})"
    form, *more = (*predictions._tensors(), *predictions.signals)
    more += [] if predictions.groups is None else [" and ".join(("groups", *predictions.groups.columns))]
    return f"{form}{classes}" + (f" with {', '.join(more)}" if more else "")


_FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "logits": check_logits,
    "probs": check_probs,
    "confidence": check_confidence,
}


def _check_form(given: list[str]) -> str:
    """Return which of the three forms the predictions have."""
    form = [name for name in given if name in ("logits", "probs", "confidence", "correct")]
    if form in (["logits"], ["probs"]) and "signals" not in given:
        return form[0]
    if "confidence" not in form and "signals" in given:
        raise InputError(
            "signals: expected none beside class scores, got some; signals are what a black box says "
            "about its answers, and stand beside confidence"
        )
    if not form or form[0] != "confidence":
        raise InputError(
            "predictions: expected exactly one of logits, probs, or confidence with correct, "
            f"got {' with '.join(form) if form else 'none of them'}; pass one form"
        )
    if "labels" in given:
        raise InputError(
            "labels: expected none next to confidence, because the predicted class is unknown, got some; "
            "pass correct = (predicted == labels) instead"
        )
    if "class_names" in given:
        raise InputError(
            "class_names: expected none next to confidence, which has no classes, got some; leave them out"
        )
    return "confidence"


def _check_beside(given: Mapping[str, Any], n: int, device: torch.device) -> dict[str, Any]:
    """Check what stands beside predictions of any form: features, groups, weights, units and ids."""
    checks: dict[str, Callable[[Any], Tensor | Groups]] = {
        "features": lambda value: _keep_type(partial(check_features, n=n), value, "features").to(device),
        "groups": lambda value: Groups.of(value, n=n),
        "weights": lambda value: check_weights(value, n=n, some=False).to(device),
        "units": lambda value: numbered(value, "units", n=n).to(device),
        "ids": lambda value: numbered(value, "ids", n=n).to(device),
    }
    return {name: check(given[name]) for name, check in checks.items() if name in given}


def _check_signals(signals: Mapping[str, ArrayLike], n: int, device: torch.device) -> Mapping[str, Tensor]:
    checked = {}
    for name, value in signals.items():
        signal = to_tensor(value, f"signals {name!r}").to(device, torch.float64)
        if signal.shape != (n,):
            raise InputError(
                f"signals {name!r}: expected shape ({n},), one number for each confidence, "
                f"got shape {tuple(signal.shape)}"
            )
        if bool(signal.isinf().any()):
            row = int(signal.isinf().nonzero()[0])
            raise InputError(
                f"signals {name!r}: expected finite numbers, or NaN where missing, got "
                f"{float(signal[row])} in row {row}"
            )
        checked[str(name)] = signal
    return MappingProxyType(checked)


def _places_of_labels(labels: ArrayLike, names: tuple[str, ...] | None) -> ArrayLike:
    """Return the place of each label among the names of the classes; labels that are no text as they are."""
    values = _texts(labels)
    places = {name: place for place, name in enumerate(names or ())}
    if values is None or set(values) <= places.keys():
        return labels if values is None else np.array([places[value] for value in values])
    if all(value.strip().isdecimal() for value in values):
        return np.array([int(value) for value in values])
    if names is None:
        return labels
    row = next(row for row, value in enumerate(values) if value not in places)
    hint = did_you_mean(values[row], names).removesuffix("?")
    advice = "give other names of the classes, in the order of the columns, with class_names="
    raise InputError(
        f"labels: expected one of the classes {listed(names)}, got {values[row]!r} in row {row}"
        f"{hint}{'? Else ' if hint else '; '}{advice}"
    )


def _check_labels(labels: ArrayLike, main: Tensor, form: str) -> Tensor:
    """Check classes beside scores of shape ``(n, k)``; a class that is masked there is refused."""
    y = check_labels(labels, n=len(main), k=main.shape[-1]).to(main.device)
    if form == "logits":
        check_label_exists(main, y)
    return y


def _texts(labels: ArrayLike) -> list[str] | None:
    """Return labels that are text; none if they are something else."""
    array = np.zeros(0) if isinstance(labels, Tensor) else to_array(labels, "labels")
    if array.ndim != 1 or array.dtype.kind not in "UTO":
        return None
    values = array.tolist()
    if not any(isinstance(value, str) for value in values):
        return None
    for row, value in enumerate(values):
        if value is None or value != value:
            raise InputError(
                f"labels: expected a class in every row, got none in row {row}; drop rows without a label"
            )
    return [str(value) for value in values]


def _keep_type(check: Callable[[Tensor], Tensor], value: ArrayLike, name: str) -> Tensor:
    """Check a value and return it in its own floating type; checks convert half precision to float32."""
    raw = to_tensor(value, name)
    checked = check(raw)
    return checked.to(raw.dtype) if raw.is_floating_point() else checked


def _widen(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _check_class_names(class_names: Sequence[str], k: int) -> tuple[str, ...]:
    if isinstance(class_names, str):
        raise InputError(
            f"class_names: expected {k} names, got the one string {class_names!r}; pass a list of strings"
        )
    names = tuple(class_names)
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"class_names: expected strings, got {type(name).__name__} {name!r}; convert each with str"
            )
    if len(names) != k:
        raise InputError(f"class_names: expected {k} names, got {len(names)}; pass one name per class")
    if len(set(names)) != k:
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"class_names: expected unique names, got {str(twice)!r} twice; rename one of them")
    check_text(names, "class_names")
    return tuple(str(name) for name in names)  # NumPy strings become plain ones


def _check_metadata(metadata: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(metadata, Mapping):
        raise InputError(
            f"metadata: expected a mapping of text to text, got {type(metadata).__name__}; pass a dict"
        )
    for key, value in metadata.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise InputError(
                f"metadata: expected text keys and values, got {key!r}: {value!r}; "
                "convert with str or json.dumps"
            )
        check_text((key, value), "metadata")
    return MappingProxyType(dict(metadata))


def check_rows(rows: ArrayLike, n: int) -> Tensor:
    """Check row numbers, or a mask of length ``n``."""
    index = to_tensor(rows, "rows")
    if index.ndim != 1 or len(index) == 0:
        raise InputError(
            f"rows: expected a list of row numbers or a mask, got shape {tuple(index.shape)}; "
            "name at least one row"
        )
    if index.dtype == torch.bool:
        if len(index) != n:
            raise InputError(f"rows: expected a mask of {n} entries, got {len(index)}; give one per sample")
        return index
    if index.is_floating_point():
        raise InputError(
            "rows: expected whole numbers or a mask, got fractions; convert with rows.astype(int)"
        )
    low, high = (int(v) for v in torch.aminmax(index))
    if low < 0 or high >= n:
        raise InputError(
            f"rows: expected numbers from 0 to {n - 1}, got {low if low < 0 else high}; there are {n} samples"
        )
    return index.long()
