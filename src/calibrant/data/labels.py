"""``LabelPredictions``: the output of a classifier that gives each sample any number of labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.data.numbering import numbered
from calibrant.data.predictions import (
    ClassPredictions,
    ConfidencePredictions,
    Groups,
    Stored,
    check_rows,
    with_log_odds,
)
from calibrant.errors import InputError
from calibrant.inputs import (
    ArrayLike,
    at_least_float32,
    check_label_logits,
    check_label_matrix,
    check_label_probs,
    check_weights,
    to_tensor,
)
from calibrant.outcomes import log_probs
from calibrant.show.numbers import percent
from calibrant.show.table import Table

# Labels that a notebook shows.
_LABELS_SHOWN = 10


@dataclass(frozen=True, eq=False, init=False, repr=False)
class LabelPredictions(ConfidencePredictions):
    """The output of a classifier with several labels at once, for ``n`` rows and ``l`` labels.

    Whether a row has a label is a question of its own. So these are ``n * l`` predictions in long form, row
    after row: ``confidence`` is the probability of the label, ``correct`` is whether the row has it, and
    ``groups`` are the labels. Everything that takes confidences takes these: measures are those of the
    probability of the label, :func:`~calibrant.evaluation.groups.by_group` measures each label, and
    :func:`~calibrant.evaluation.compare` fits maps to all entries and corrects them for each label. Intervals
    and folds are made of rows, because the entries of a row are not independent: each row is a unit, unless
    rows belong to units themselves.

    Args:
        probs: Probabilities of the labels, shape ``(n, l)``; rows need not sum to one.
        logits: Log-odds of the labels, shape ``(n, l)``, instead of ``probs``.
        labels: 1 or true where a row has a label, shape ``(n, l)``; none if unknown.
        label_names: One name for each label; by default ``"0"``, ``"1"`` and so on.
        weights: How much each row counts, shape ``(n,)``.
        units: What each row belongs to, if rows depend on each other, shape ``(n,)``.
        metadata: Notes about the predictions, text to text.

    Example:
        >>> LabelPredictions(
        ...     probs=[[0.9, 0.2], [0.7, 0.6]], labels=[[1, 0], [1, 1]], label_names=["cat", "dog"]
        ... )
        LabelPredictions(n_rows=2, probs float64, labels, label_names cat, dog)
    """

    form: Literal["logits", "probs"]
    scores: Tensor
    row_units: Tensor | None
    label_names: tuple[str, ...]

    # Written out because it takes any array, while the fields above are always tensors.
    def __init__(
        self,
        *,
        probs: ArrayLike | None = None,
        logits: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        label_names: Sequence[str] | None = None,
        weights: ArrayLike | None = None,
        units: ArrayLike | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        if (probs is None) == (logits is None):
            got = "none" if probs is None else "both"
            raise InputError(f"predictions: expected either probs or logits, got {got}; pass one form")
        given, form = (logits, "logits") if probs is None else (probs, "probs")
        assert given is not None
        check = check_label_logits if form == "logits" else check_label_probs
        kind = to_tensor(given, form)
        scores = check(kind).to(kind.dtype if kind.is_floating_point() else torch.float64)
        n, n_labels = scores.shape
        p = torch.sigmoid(scores.double()) if form == "logits" else at_least_float32(scores)
        truth = None if labels is None else check_label_matrix(labels, shape=(n, n_labels))
        names = _check_label_names(label_names, n_labels)
        each_row = None if weights is None else check_weights(weights, n=n)
        row_units = None if units is None else numbered(units, "units", n=n)
        super().__init__(
            confidence=p.reshape(-1),
            correct=None if truth is None else truth.reshape(-1),
            groups=_groups(names, n),
            weights=None if each_row is None else each_row.repeat_interleave(n_labels),
            units=(torch.arange(n) if row_units is None else row_units).repeat_interleave(n_labels),
            metadata=metadata,
        )
        own = {"form": form, "scores": scores.detach(), "row_units": row_units, "label_names": names}
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        kind = str(self.scores.dtype).removeprefix("torch.")
        names = ", ".join(self.label_names[:8]) + (", ..." if self.n_labels > 8 else "")
        parts = [f"n_rows={self.n_rows}", f"{self.form} {kind}"]
        parts += ["labels"] if self.correct is not None else []
        parts += ["weights"] if self.weights is not None else []
        parts += [f"{self.n_units} units"] if self.row_units is not None else []
        return f"LabelPredictions({', '.join([*parts, f'label_names {names}'])})"

    def _repr_html_(self) -> str:
        """Return what notebooks show: the labels with their mean probability and frequency."""
        p, y = self.matrix[:, :_LABELS_SHOWN].double(), self.label_matrix
        columns = {"label": list(self.label_names[:_LABELS_SHOWN]), "mean probability": _percents(p)}
        if y is not None:
            columns["frequency"] = _percents(y[:, :_LABELS_SHOWN].double())
        more = self.n_labels - _LABELS_SHOWN
        remarks = (f"... and {more:,} more labels",) if more > 0 else ()
        title = f"LabelPredictions: {self.n_rows:,} rows, {self.n_labels:,} labels"
        return Table.of(
            list(columns), zip(*columns.values(), strict=True), title=title, notes=remarks
        )._repr_html_()

    def __reduce__(self) -> tuple[Callable[[], "LabelPredictions"], tuple[()]]:
        return partial(LabelPredictions, **self.arguments()), ()

    @property
    def own_name(self) -> str:  # type: ignore[override]  # a constant elsewhere
        """What the model's own probabilities are called: they are not stated in words."""
        return "uncalibrated"

    @property
    def described(self) -> str:
        """What the predictions are."""
        return f"probabilities of {self.class_count}"

    @property
    def class_count(self) -> str:
        """The number of labels as text."""
        return f"{self.n_labels:,} labels"

    @property
    def n_units(self) -> int | None:
        """Number of units that rows belong to; None if none were given."""
        return None if self.row_units is None else len(self.row_units.unique())

    @property
    def n_rows(self) -> int:
        """Number of rows; ``n`` is the number of entries."""
        return len(self.scores)

    @property
    def n_labels(self) -> int:
        """Number of labels, which is the number of entries of a row."""
        return len(self.label_names)

    @property
    def matrix(self) -> Tensor:
        """The probability of each label in each row, shape ``(n, l)``."""
        assert self.confidence is not None
        return self.confidence.view(self.n_rows, self.n_labels)

    @property
    def label_matrix(self) -> Tensor | None:
        """Which labels each row has, shape ``(n, l)``; None if unknown."""
        return None if self.correct is None else self.correct.view(self.n_rows, self.n_labels)

    @property
    def log_odds(self) -> Tensor:
        """The log-odds of each label in each row, shape ``(n, l)``; finite, in at least single precision."""
        if self.form == "logits":
            return at_least_float32(self.scores)
        p = self.matrix
        return log_probs(p) - log_probs(1 - p)

    @property
    def problem(self) -> ClassPredictions:
        """The entries as two classes: without the label, and with it."""
        return with_log_odds(self, self.log_odds.double().reshape(-1), ("absent", "present"))

    def with_scores(self, log_probs: Tensor) -> "LabelPredictions":
        """Return the same rows with the probabilities that log-probabilities of absent and present give."""
        return self.with_probs(log_probs[:, 1].exp())

    def with_probs(self, probs: Tensor) -> "LabelPredictions":
        """Return other probabilities of the same rows and labels, in any shape with as many entries."""
        others = {name: value for name, value in self.arguments().items() if name != self.form}
        return LabelPredictions(probs=probs.clamp(max=1.0).reshape(self.scores.shape), **others)

    def replaced(self, **others: Any) -> "LabelPredictions":  # noqa: ANN401  # any argument
        """Return the same predictions with other values of some arguments, such as the confidences."""
        if others.get("ids") is not None:
            raise InputError(
                "ids: expected none beside several labels, whose rows keep their order, got some"
            )
        if "confidence" in others:
            return self.with_probs(others["confidence"])
        return LabelPredictions(**{**self.arguments(), **others})

    def counted(self) -> "LabelPredictions":
        """Return the rows that count: those with a weight above 0. Equal weights are dropped."""
        weights = self.arguments()["weights"]
        if weights is None:
            return self
        used = weights > 0
        part = self if bool(used.all()) else self.take_rows(used)
        if float(weights[used].min()) < float(weights[used].max()):
            return part
        return part.replaced(weights=None)

    def stored(self) -> Stored:
        """Return what files hold: one row for each sample, and a column for each label."""
        arguments = self.arguments()
        labels = self.label_matrix
        tensors = {
            self.form: self.scores,
            "labels": None if labels is None else labels.to(torch.int8),
            "weights": arguments["weights"],
            "units": self.row_units,
        }
        arrays = {name: each for name, each in tensors.items() if each is not None}
        return Stored(arrays, {}, None, self.label_names, self.metadata)

    def take_rows(self, rows: ArrayLike) -> "LabelPredictions":
        """Return the rows with these numbers, or those where a mask of length ``n_rows`` is true.

        ``take`` chooses among the entries, and returns these as plain predictions.
        """
        index = check_rows(rows, self.n_rows)
        chosen: dict[str, Any] = {
            name: value[index.to(value.device)] if isinstance(value, Tensor) else value
            for name, value in self.arguments().items()
        }
        return LabelPredictions(**chosen)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that make these predictions again."""
        weights = None if self.weights is None else self.weights[:: self.n_labels]
        return {
            self.form: self.scores,
            "labels": self.label_matrix,
            "label_names": self.label_names,
            "weights": weights,
            "units": self.row_units,
            "metadata": dict(self.metadata),
        }


def is_label_matrix(values: Mapping[str, Any]) -> bool:
    """Return whether the labels in a file are several at once, and not one class in one-hot form."""
    labels = values.get("labels")
    if labels is None or getattr(labels, "ndim", 1) != 2:
        return False
    return bool((to_tensor(labels, "labels").double().sum(dim=1) != 1).any())


def read_labels(values: Mapping[str, Any], label_names: Sequence[str] | None) -> LabelPredictions:
    """Return several labels at once from the values of a file, with names that a person gave or its own."""
    if "groups" in values:
        raise InputError("groups: expected none beside several labels, which are the groups, got some")
    form = next((key for key in ("logits", "probs") if key in values), None)
    if form is None:
        raise InputError("predictions: expected probs or logits of several labels, got a confidence")
    return LabelPredictions(
        **{key: values.get(key) for key in (form, "labels", "weights", "units", "metadata")},
        label_names=label_names or values.get("class_names"),
    )


def _groups(names: Sequence[str], n: int) -> Groups:
    """Return the label of each entry, row after row; names of groups are in alphabetical order."""
    ordered = sorted(range(len(names)), key=lambda place: names[place])
    codes = torch.empty(len(names), dtype=torch.int64)
    codes[torch.tensor(ordered)] = torch.arange(len(names))
    return Groups(tuple(names[place] for place in ordered), codes.repeat(n))


def _check_label_names(names: Sequence[str] | None, n_labels: int) -> tuple[str, ...]:
    if names is None:
        return tuple(str(place) for place in range(n_labels))
    if isinstance(names, str) or len(names) != n_labels:
        got = f"the one string {names!r}" if isinstance(names, str) else f"{len(names)}"
        raise InputError(f"label_names: expected {n_labels} names, one per label, got {got}")
    checked = tuple(str(name) for name in names)
    twice = next((name for name in checked if checked.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"label_names: expected unique names, got {twice!r} twice; rename one of them")
    return checked


def _percents(values: Tensor) -> list[str]:
    return [str(percent(value, 1)) for value in values.mean(dim=0).tolist()]
