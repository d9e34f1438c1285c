"""What every rule is: a fitted, immutable map from class scores, or a confidence, to a decision."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, get_type_hints

import torch
from torch import Tensor, nn

from calibrant.data.labels import LabelPredictions
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.evaluation.calibrated import check_form, mapped_log_probs
from calibrant.files import between, read_dataclass, read_value
from calibrant.lazy import import_all
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.files import describe, reading_described, restore, write_described
from calibrant.posthoc.fitting.stored import Numbers, check_declared, declare
from calibrant.results import FrozenDict, Result

RULE_FORMAT = "calibrant-rule"
RULE_VERSION = 1

_MOST_CLASSES = 1 << 31


@dataclass(frozen=True, eq=False)
class Decisions(Result):
    """What a rule decides for each sample.

    Attributes:
        n: Number of samples.
        columns: What is decided, by name, in the order of a table: an entry for each sample, which is a
            number, a text, true or false, or a list of texts.
    """

    n: int
    columns: Mapping[str, list[Any]]


class Rule(nn.Module, ABC):
    """A fitted, immutable map from class scores, or from the confidence of a black box, to a decision.

    A rule holds the calibrator that comes before it, so that one file and one ONNX graph go from raw scores
    to the decision. What was learned is in buffers, and the plain attributes named in ``options`` are saved
    beside them, as for a :class:`~calibrant.posthoc.calibrator.Calibrator`.

    Attributes:
        n_classes: The number of classes; None for confidences of a black box.
        class_names: Their names, if the predictions of the fit had them.
        calibrator: What is applied before; None if the rule was fitted on the scores as they are.

    Class attributes:
        options: Names of plain attributes (numbers, text, lists of them) that are saved to a file; their
            annotations say what a file may hold. Those with a default may be missing in a file.
        stored: What each buffer must be; a file with others is refused.
        outputs: Names of what ``forward`` returns, which are those of an ONNX graph.
    """

    options: ClassVar[tuple[str, ...]] = ()
    stored: ClassVar[Mapping[str, Numbers]] = declare()
    outputs: ClassVar[tuple[str, ...]] = ()
    kinds: ClassVar[dict[str, type["Rule"]]] = {}

    n_classes: int | None
    class_names: tuple[str, ...] | None
    calibrator: Calibrator | None

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401  # Python's own hook
        super().__init_subclass__(**kwargs)
        # The exporter to ONNX makes a subclass of the same name while it traces, which is not the rule.
        if Rule.kinds.get(cls.__name__) not in cls.__mro__:
            Rule.kinds[cls.__name__] = cls

    def __init__(
        self,
        *,
        n_classes: int | None = None,
        class_names: tuple[str, ...] | None = None,
        calibrator: Calibrator | None = None,
    ) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.class_names = class_names
        self.calibrator = calibrator

    @abstractmethod
    def forward(self, log_probs: Tensor) -> tuple[Tensor, ...]:
        """Return what ``outputs`` names, from log-probabilities of shape ``(n, k)``.

        Those of a black box have two columns: wrong and right. They are calibrated already.
        """

    @abstractmethod
    def columns(self, outputs: Mapping[str, Tensor]) -> dict[str, list[Any]]:
        """Return the columns of a table of decisions from what ``forward`` returned, by name."""

    @torch.no_grad()
    def decide(self, predictions: Predictions) -> Decisions:
        """Decide for each sample; its label is not read.

        Predictions whose class names are those of the rule in another order are reordered; others refused.
        """
        found = dict(zip(self.outputs, self(self.log_probs(predictions)), strict=True))
        return Decisions(predictions.n, FrozenDict(self.columns(found)))

    def log_probs(self, predictions: Predictions) -> Tensor:
        """Check that predictions have the form of the rule; return their calibrated log-probabilities."""
        self.check_form(predictions)
        given = predictions.in_order(self.class_names)
        return calibrated_log_probs(given, self.calibrator)

    def check_form(self, predictions: Predictions) -> None:
        """Refuse predictions of another form than the rule was fitted on."""
        check_one_label(predictions)
        if self.calibrator is not None:
            check_form(self.calibrator, predictions.k)
        if predictions.k != self.n_classes:
            own = f"scores of {self.n_classes} classes" if self.n_classes else "confidences of a black box"
            raise InputError(
                f"predictions: expected {own}, which the {type(self).__name__} was fitted on, got "
                f"{predictions.described}"
            )

    def check_stored(self) -> None:
        """Refuse options and buffers of a file that do not fit together; each is checked by itself before."""

    def check_exportable(self) -> None:
        """Refuse a rule that no graph from scores to a decision expresses."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rule, with its calibrator, to a safetensors file, all or nothing."""
        description = {
            "rule": type(self).__name__,
            "n_classes": self.n_classes,
            "class_names": None if self.class_names is None else list(self.class_names),
            "options": {name: getattr(self, name) for name in self.options},
            "calibrator": None if self.calibrator is None else describe(self.calibrator),
        }
        write_described(path, RULE_FORMAT, RULE_VERSION, rule=description, tensors=self.state_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a rule of this kind, or of any when called on ``Rule``."""
        rule = load_rule(path)
        if not isinstance(rule, cls):
            raise FormatError(
                f"{os.fspath(path)}: expected a {cls.__name__}, got a {type(rule).__name__}; use load_rule "
                "to read any rule"
            )
        return rule


def check_one_label(predictions: Predictions, *, name: str = "predictions") -> None:
    """Refuse predictions of several labels at once, which no rule decides about."""
    if isinstance(predictions, LabelPredictions):
        form, first = predictions.form, predictions.label_names[0]
        raise InputError(
            f"{name}: expected one label for each sample, got several at once; take one label at a time, as "
            f"a problem with two classes, by its columns: {form}='{form}_{first}', labels='labels_{first}'"
        )


def calibrated_log_probs(predictions: Predictions, calibrator: Calibrator | None = None) -> Tensor:
    """Return the log-probabilities of predictions in float64, after a calibrator if there is one.

    Those of a black box have two columns: wrong and right.

    Example:
        >>> pairs = Predictions(confidence=[0.75, 0.5])
        >>> calibrated_log_probs(pairs).exp()
        tensor([[0.2500, 0.7500],
                [0.5000, 0.5000]], dtype=torch.float64)
    """
    # As in the graph of a rule, repaired confidences are not rounded again.
    z = predictions.problem.to_logits() if calibrator is None else mapped_log_probs(calibrator, predictions)
    return torch.log_softmax(z.double(), dim=1)


@dataclass(frozen=True)
class _Description:
    """What the header of a file says about a rule; the tensors follow from it."""

    rule: str
    options: dict[str, Any]
    n_classes: Annotated[int, between(2, _MOST_CLASSES)] | None = None
    class_names: tuple[str, ...] | None = None
    calibrator: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        names = self.class_names
        if names is not None and not len(names) == len(set(names)) == self.n_classes:
            raise FormatError(
                f"class_names: expected {self.n_classes} different names, got {len(set(names))}"
            )


def load_rule(path: str | os.PathLike[str]) -> Rule:
    """Read a rule of any kind.

    Raises:
        FormatError: The file is missing, damaged, of another kind, or of an unknown version; or its numbers
            cannot be those of such a rule.
    """
    with reading_described(path, RULE_FORMAT, RULE_VERSION, "rule") as (table, tensors):
        header = read_dataclass(_Description, table, "")
        import_all("calibrant.decisions")
        kind = Rule.kinds.get(header.rule)
        if kind is None:
            raise FormatError(f"rule: expected one that is known here, got {header.rule!r}")
        rule = kind.__new__(kind)
        before = None
        if header.calibrator is not None:
            before = restore(header.calibrator, tensors, header.n_classes, "calibrator.")
        Rule.__init__(rule, n_classes=header.n_classes, class_names=header.class_names, calibrator=before)
        kinds = get_type_hints(kind, include_extras=True)
        for name in kind.options:
            if name not in header.options and hasattr(kind, name):
                continue  # the file is older than this option, and means its default
            if name not in header.options:
                raise FormatError(f"{name}: expected a value, got none")
            setattr(rule, name, read_value(kinds[name], header.options[name], name))
        found = {name: tensors.pop(name) for name in list(tensors) if "." not in name}
        # A confidence is a question with two classes: wrong and right.
        check_declared(kind.stored, found, {"k": 2 if header.n_classes is None else header.n_classes}, "")
        for name, buffer in found.items():
            rule.register_buffer(name, buffer)
        rule.check_stored()
    return rule
