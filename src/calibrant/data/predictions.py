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
    check_outcome,
    check_probs,
    check_score,
    check_weights,
    class_order,
    column_sets,
    group_name,
    names_of_columns,
    to_array,
    to_tensor,
)
from calibrant.outcomes import Outcomes, effective, log_odds, log_probs, mean_of
from calibrant.show.numbers import percent
from calibrant.show.table import Table
from calibrant.text import check_text

#: Metadata of scores that were turned round, because they fall with the outcome.
FALLING = "falling"
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

    Exactly one form is given: ``logits``, ``probs``, ``confidence`` for a black box that only states how sure
    it is, or ``score`` for any number that should rise with the outcome. What differs between the forms is
    asked of the predictions: :meth:`outcomes`, :attr:`problem`, :meth:`with_scores`, :meth:`classes`,
    :attr:`truth`. Arrays are checked once, here, and stored as detached tensors of the caller's floating type
    on the device of the predictions; memory is shared where possible.

    Args:
        logits: Scores of shape ``(n, k)``, or log-odds of class 1 of shape ``(n,)``; ``-inf`` masks a class
            that a sample does not have.
        probs: Distributions of shape ``(n, k)``, or probabilities of class 1 of shape ``(n,)``.
        confidence: Stated probabilities that the prediction is correct, shape ``(n,)``.
        score: Numbers that rank the samples and are no probabilities, shape ``(n,)``, such as the score of a
            reranker or the grade of a judge. Measures of rank and repairs take them.
        correct: Whether each prediction was correct, beside ``confidence``, shape ``(n,)``; none if unknown.
        outcome: What came true, from 0 to 1, instead of ``correct``: 0.5 for a tie, the mean of several
            raters. See :meth:`split`.
        labels: True classes of shape ``(n,)``: whole numbers from 0, or names of classes; or a distribution
            over the classes for each sample, shape ``(n, k)``; none for unlabelled or out-of-distribution
            samples.
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
    score: Tensor | None
    correct: Tensor | None
    outcome: Tensor | None
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
        forms = {"score": ScorePredictions, "confidence": ConfidencePredictions}
        form = next((form for name, form in forms.items() if given.get(name) is not None), ClassPredictions)
        return object.__new__(form if cls is Predictions else cls)

    # Written out because it takes any array, while the fields above are always tensors.
    def __init__(
        self,
        *,
        logits: ArrayLike | None = None,
        probs: ArrayLike | None = None,
        confidence: ArrayLike | None = None,
        score: ArrayLike | None = None,
        correct: ArrayLike | None = None,
        outcome: ArrayLike | None = None,
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
            "score": score,
            "correct": correct,
            "outcome": outcome,
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
            given |= _check_truth(given["labels"], main, form, given.get("class_names"))
        elif "outcome" in given:
            given |= _check_outcome(given["outcome"], main)
        given["signals"] = _check_signals(signals or {}, n, main.device)
        given |= _check_beside(given, n, main.device)
        values = dict.fromkeys(values) | {"signals": signals}
        for name, value in (values | given | {"metadata": _check_metadata(metadata or {})}).items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self._main)

    def __repr__(self) -> str:
        form, main = next(iter(self._tensors().items()))
        parts = [f"n={self.n}", f"{form} {str(main.dtype).removeprefix('torch.')}"]
        if self.class_count:
            parts.insert(1, f"k={self.k}")
        parts += [name for name in ("correct", "outcome", "labels") if getattr(self, name) is not None]
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
        return partial(Predictions, **{**self._arguments(), **more, **self._notes()}), ()

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
        chosen: dict[str, Any] = {name: tensor[index] for name, tensor in self._arguments().items()}
        chosen["signals"] = {name: signal[index] for name, signal in self.signals.items()}
        chosen["groups"] = None if self.groups is None else self.groups.take(index)
        return Predictions(**{**chosen, **self._notes()})

    def split(self) -> "Predictions":
        """Return predictions whose outcomes are yes or no, or one class.

        A sample with a graded outcome becomes a hit and a miss, one of each class for a distribution over
        classes; their weights are the shares of the outcome, and they are one unit. So proper scores,
        calibration errors and fits are those of the expected outcome, and resampling draws whole samples.
        Samples follow each other in their order. Other predictions are returned as they are.

        Example:
            >>> tie = Predictions(confidence=[0.7, 0.4], outcome=[0.5, 0.0]).split()
            >>> tie.correct.tolist(), tie.weights.tolist()
            ([True, False, False], [0.5, 0.5, 1.0])
        """
        if self.outcome is None:
            return self
        shares = self._shares(self.outcome)
        rows, classes = shares.nonzero(as_tuple=True)
        part = self.replaced(outcome=None, ids=None).take(rows)
        weights = shares[rows, classes] if part.weights is None else shares[rows, classes] * part.weights
        units = rows if part.units is None else part.units
        return part.replaced(weights=weights, units=units, **self._truth_of(classes))

    def first_parts(self) -> Tensor:
        """Return the place of the first part of each sample after :meth:`split`, shape ``(n,)``."""
        if self.outcome is None:
            return torch.arange(self.n)
        parts = (self._shares(self.outcome) > 0).sum(dim=1)
        return parts.cumsum(0) - parts

    def _shares(self, outcome: Tensor) -> Tensor:
        """Return how much of the outcome falls on each class of :attr:`problem`, hits first, ``(n, k)``."""
        raise NotImplementedError

    def _truth_of(self, classes: Tensor) -> dict[str, Tensor]:
        """Return the argument that says what came true, from places among the shares."""
        raise NotImplementedError

    @property
    def own_entropy(self) -> tuple[float, float]:
        """The mean log-loss and squared error of graded outcomes themselves, which no forecast can avoid."""
        if self.outcome is None:
            return 0.0, 0.0
        p, w = self._shares(self.outcome), self.weights
        entropy, spread = torch.special.entr(p).sum(dim=1), 1 - p.square().sum(dim=1)
        return float(mean_of(entropy, w)), float(mean_of(spread / (2 if self.k is None else 1), w))

    def counted(self) -> "Predictions":
        """Return the samples that count: those with a weight above 0, split if their outcomes are graded.

        Equal weights are dropped.

        Example:
            >>> Predictions(probs=[0.9, 0.6, 0.2], labels=[1, 0, 0], weights=[2, 2, 0]).counted()
            Predictions(n=2, k=2, probs float64, labels)
        """
        if self.outcome is not None:
            return self.split().counted()
        if self.weights is None:
            return self
        used = effective(self.weights) > 0
        part = self if bool(used.all()) else self.take(used)
        assert part.weights is not None
        unequal = float(part.weights.min()) < float(part.weights.max())
        return part if unequal else part.replaced(weights=None)

    def replaced(self, **others: Any) -> "Predictions":  # noqa: ANN401  # any argument of Predictions
        """Return the same predictions with other values of some arguments."""
        values: dict[str, Any] = {**self._arguments(), "signals": self.signals, "groups": self.groups}
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
        elif self.outcome is not None:
            values["labels"] = self.outcome[:, order]
        return self.replaced(**values, class_names=class_names)

    def stored(self) -> "Stored":
        """Return what files hold."""
        return Stored(self._arguments(), self.signals, self.groups, self.class_names, self.metadata)

    @property
    def _main(self) -> Tensor:
        return next(iter(self._tensors().values()))

    def _tensors(self) -> dict[str, Tensor]:
        """Return the arrays that were given, the predictions first."""
        return {name: value for name in _TENSORS if (value := getattr(self, name)) is not None}

    def _arguments(self) -> dict[str, Tensor]:
        """Return the arrays under the names of the arguments that make them again."""
        return self._tensors()

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

    def _arguments(self) -> dict[str, Tensor]:
        """Return the arrays; a distribution over classes is an argument ``labels``."""
        return {"labels" if name == "outcome" else name: each for name, each in self._tensors().items()}

    def _shares(self, outcome: Tensor) -> Tensor:
        """Return the distribution over the classes."""
        return outcome

    def _truth_of(self, classes: Tensor) -> dict[str, Tensor]:
        """Return the label of each sample."""
        return {"labels": classes}

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
        if self.outcome is not None:
            return self.split().outcomes()
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

    def _shares(self, outcome: Tensor) -> Tensor:
        """Return the shares of right and wrong."""
        return torch.stack([outcome, 1 - outcome], dim=1)

    def _truth_of(self, classes: Tensor) -> dict[str, Tensor]:
        """Return whether each answer was right: hits stand first."""
        return {"correct": classes == 0}

    def truth_for(self, purpose: str) -> Tensor:
        """Return whether each answer was right, or refuse predictions that do not know it."""
        if self.correct is None:
            raise InputError(f"correct: expected a hit or miss for each confidence, got none; {purpose}")
        return self.correct

    @property
    def problem(self) -> ClassPredictions:
        """Two classes, wrong and right."""
        return with_log_odds(self, log_odds(self._main), ("wrong", "right"))

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
        if self.outcome is not None:
            return self.split().outcomes()
        correct = self.truth_for("without it nobody knows which answers were right")
        return Outcomes(_widen(self._main), correct, units=self.units).weighed(self.weights)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ScorePredictions(ConfidencePredictions):
    """Scores that rank the samples but are no probabilities, and the outcomes if they are known.

    What needs probabilities refuses them; :func:`~calibrant.evaluation.compare` turns them into
    probabilities.
    """

    own_name = "by its rank"

    @property
    def described(self) -> str:
        """What the predictions are."""
        return "scores that are no probabilities"

    @property
    def problem(self) -> ClassPredictions:
        """Two classes, wrong and right, with the score as their log-odds; the fit finds its scale."""
        s = self._main.double()
        return as_two_classes(self, torch.stack([-s / 2, s / 2], dim=1), ("wrong", "right"))

    def with_scores(self, log_probs: Tensor) -> Predictions:
        """Return the same samples with the confidences that log-probabilities of wrong and right give."""
        return self.replaced(score=None, confidence=log_probs[:, 1].exp().clamp(max=1.0))

    def ranked(self) -> Predictions:
        """Return the same samples with the share of samples below each as confidence: right for ranks only.

        Example:
            >>> Predictions(score=[30.0, -2.0, 5.0, 30.0], outcome=[1, 0, 0, 1]).ranked().confidence.tolist()
            [0.75, 0.125, 0.375, 0.75]
        """
        _, place, count = self._main.double().unique(return_inverse=True, return_counts=True)
        middle = count.cumsum(0) - count / 2
        return self.replaced(score=None, confidence=(middle / self.n)[place])

    def base_rate(self) -> Predictions:
        """Return the same samples with the mean outcome as confidence: what is known without the score."""
        correct = self.truth_for("without outcomes there is no base rate").double()
        rate = mean_of(correct, self.weights).expand(self.n).clone()
        given: dict[str, Any] = {name: each for name, each in self._arguments().items() if name != "score"}
        return BaseRatePredictions(**given, confidence=rate, groups=self.groups, metadata=self.metadata)

    def outcomes(self) -> Outcomes:
        """Refuse: a score is no confidence."""
        raise InputError(
            "score: expected confidences between 0 and 1, got scores that only rank; repair them first: "
            "compare(...), or calibrant calibrate, then apply"
        )


@dataclass(frozen=True, eq=False, init=False, repr=False)
class BaseRatePredictions(ConfidencePredictions):
    """The mean outcome as the confidence of every sample: what a repaired score is compared with."""

    own_name = "base rate"


class Stored(NamedTuple):
    """What a file of predictions holds: arrays by name, signals, groups, class names and metadata."""

    arrays: Mapping[str, Tensor]
    signals: Mapping[str, Tensor]
    groups: Groups | None
    class_names: tuple[str, ...] | None
    metadata: Mapping[str, str]


def with_log_odds(predictions: Predictions, s: Tensor, names: tuple[str, str]) -> ClassPredictions:
    """Return log-odds as log-probabilities of two classes."""
    softplus = torch.nn.functional.softplus
    return as_two_classes(predictions, torch.stack([-softplus(s), -softplus(-s)], dim=1), names)


def as_two_classes(predictions: Predictions, logits: Tensor, names: tuple[str, str]) -> ClassPredictions:
    """Return logits of shape ``(n, 2)`` as predictions of two classes."""
    return ClassPredictions(
        logits=logits,
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
    if predictions.score is not None:
        columns["score"] = [f"{value:.6g}" for value in predictions.score.tolist()]
        confidence = None
    elif predictions.confidence is None:
        probs = torch.softmax(predictions.to_logits().double(), dim=1)
        names = predictions.class_names or [str(place) for place in range(probs.shape[1])]
        confidence, predicted = probs.max(dim=1)
        columns["predicted"] = [names[place] for place in predicted.tolist()]
        if predictions.labels is not None:
            columns["true class"] = [names[place] for place in predictions.labels.tolist()]
    else:
        confidence = predictions.confidence
    if confidence is not None:
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
    values: dict[str, Any] = {
        key: torch.cat([p._arguments()[key] for p in every]) for key in first._arguments()
    }
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
    "score": check_score,
}
# The arrays, the predictions first.
_TENSORS = (*_FORMS, "correct", "outcome", "labels", "features", "weights", "units", "ids")


def _check_form(given: list[str]) -> str:
    """Return which form the predictions have."""
    form = [name for name in given if name in (*_FORMS, "correct", "outcome")]
    if form in (["logits"], ["probs"]) and "signals" not in given:
        return form[0]
    if form in (["score"], ["score", "outcome"], ["score", "correct"]) and "signals" not in given:
        return _check_no_classes(given, "score")
    if "confidence" not in form and "signals" in given:
        beside = "a score" if "score" in form else "class scores"
        raise InputError(
            f"signals: expected none beside {beside}, got some; signals are what a black box says about its "
            "answers, and stand beside confidence"
        )
    if form not in (["confidence"], ["confidence", "correct"], ["confidence", "outcome"]):
        raise InputError(
            "predictions: expected exactly one of logits, probs, confidence with correct, or score with "
            f"outcome, got {' with '.join(form) if form else 'none of them'}; pass one form"
        )
    return _check_no_classes(given, "confidence")


def _check_no_classes(given: list[str], form: str) -> str:
    """Return the form, or refuse labels and class names beside it."""
    if "labels" in given:
        raise InputError(
            f"labels: expected none next to {form}, because the predicted class is unknown, got some; "
            "pass correct = (predicted == labels) instead"
        )
    if "class_names" in given:
        raise InputError(
            f"class_names: expected none next to {form}, which has no classes, got some; leave them out"
        )
    return form


def _check_outcome(outcome: ArrayLike, main: Tensor) -> dict[str, Tensor | None]:
    """Return outcomes beside a confidence or a score: hits if all are 0 or 1, else graded ones."""
    o = check_outcome(outcome, n=len(main)).to(main.device)
    if bool(((o == 0) | (o == 1)).all()):
        return {"correct": o != 0, "outcome": None}
    return {"outcome": o}


def _check_truth(
    labels: ArrayLike, main: Tensor, form: str, names: tuple[str, ...] | None
) -> dict[str, Tensor | None]:
    """Return the class of each sample, or the distribution over classes if there is one for each."""
    if _is_distribution(labels, main):
        p = check_probs(labels, name="labels").double().to(main.device)
        predicted = torch.softmax(main, dim=1) if form == "logits" else main
        if torch.allclose(predicted.double(), p, atol=1e-6):
            raise InputError(
                "labels: expected the truth, got the predicted probabilities of the labels; pass "
                "labels.argmax(axis=1), or a distribution that raters gave"
            )
        return {"outcome": p, "labels": None}
    return {"labels": _check_labels(_places_of_labels(labels, names), main, form)}


def _is_distribution(labels: ArrayLike, main: Tensor) -> bool:
    """Return whether labels have the shape of class scores, and are fractions that sum to one."""
    if np.ndim(labels) != 2 or _texts(labels) is not None:
        return False
    p = to_tensor(labels, "labels").double()
    fractions = bool(((p > 0) & (p < 1)).any()) and bool(((p >= 0) & (p <= 1)).all())
    return p.shape == main.shape and fractions


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
