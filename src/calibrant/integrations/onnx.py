"""Calibrators, and rules that decide, as ONNX graphs, for runtimes without Python."""

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from calibrant.decisions.cascade_rule import CascadeRule
from calibrant.decisions.rule import Rule
from calibrant.errors import CalibrantError, InputError
from calibrant.extras import why_missing
from calibrant.files import atomic_path
from calibrant.inputs import at_least_float32, check_count, check_flag, column_sets
from calibrant.outcomes import log_odds
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.confidence import ConfidenceCalibrator, ScoreCalibrator
from calibrant.posthoc.pixelwise import PixelCalibration

# How far probabilities may be from PyTorch's, and log-probabilities, relative to their size.
TOLERANCE = 1e-5

_BATCHES = (1, 2, 257)
_NAMES = ("class_names", "group_names", "group_columns", "signal_names", "models")


def export_onnx(
    calibrator: Calibrator | Rule,
    path: str | os.PathLike[str],
    *,
    n_classes: int | None = None,
    n_features: int | None = None,
    half_precision: bool = False,
) -> None:
    """Write a calibrator, or a rule with its calibrator, as an ONNX graph, all or nothing.

    The graph goes from ``logits`` (and ``features``) to ``log_probs``, in float32, for batches of any size;
    that of a :class:`~calibrant.posthoc.ConfidenceCalibrator` from ``confidence``, or of a
    :class:`~calibrant.posthoc.ScoreCalibrator` from ``score``, to ``repaired``, both of
    shape ``(n,)``. A calibrator with a map for each group also takes ``groups``, integers of shape ``(n,)``:
    the place of each sample's group among ``group_names``, or -1 for the common map. If several columns make
    the groups, ``groups`` has shape ``(n, sets)``: the place for each column, then for each set of columns in
    the order of ``group_columns``, two at a time first. The graph of a rule has the same inputs, and the
    outputs that its ``outputs`` names; that of a :class:`~calibrant.decisions.CascadeRule` goes from
    ``confidences`` of shape ``(n, d)``, of all stages but the last, to the place of the ``stage`` that
    answers. Give 1 for a model that was not asked yet: the stage is then the one to ask next. The names that
    are known, of classes, groups, signals and stages, are in the metadata of the graph, as JSON lists under
    ``class_names``, ``group_names``, ``group_columns``, ``signal_names`` and ``models``; signals are the
    columns of ``features``. The graph of a :class:`~calibrant.posthoc.PixelCalibration` takes and returns
    maps of shape ``(n, k, h, w)`` for images of any size.

    Before the file is written, ONNX Runtime and PyTorch must agree to 1e-5 for batches of 1, 2 and 257 random
    samples, some of which have masked classes if the calibrator takes them.

    Args:
        calibrator: A fitted calibrator or rule.
        path: Where to write; usually ends in ``.onnx``.
        n_classes: Number of classes; only needed if the calibrator does not know it.
        n_features: Number of features; only needed if the calibrator uses them and does not know it.
        half_precision: Whether the graph takes logits, confidences and features in float16, as a model in
            half precision gives them. What it returns is float32 in any case.

    Raises:
        CalibrantError: The packages of the extra ``export`` are missing, PyTorch cannot express the
            calibrator in ONNX, ONNX Runtime cannot run the graph, or the two disagree.
    """
    if missing := why_missing("export", "onnx", "onnxruntime", "onnxscript"):
        raise missing
    frozen, widths = graph_of(
        calibrator, n_classes=n_classes, n_features=n_features, half_precision=half_precision
    )
    # The runtime lacks some operations on numbers in double precision, which some calibrators keep; where
    # single precision is too coarse, they stay as they are.
    doubles = any(each.dtype == torch.float64 for each in frozen.buffers())
    forms = [deepcopy(frozen).float(), frozen] if doubles else [frozen]
    with atomic_path(path) as temporary:
        for form in forms[:-1]:
            with suppress(CalibrantError):
                _write_checked(form, frozen, temporary, widths)
                return
        _write_checked(forms[-1], frozen, temporary, widths)


def graph_of(
    calibrator: Calibrator | Rule,
    *,
    n_classes: int | None = None,
    n_features: int | None = None,
    half_precision: bool = False,
) -> "tuple[Graph, dict[str, int]]":
    """Return what is exported as a module, and its inputs with their numbers of columns or of groups."""
    _check_fitted(calibrator)
    rule = calibrator if isinstance(calibrator, Rule) else None
    if rule is not None:
        rule.check_exportable()
    before = calibrator.calibrator if isinstance(calibrator, Rule) else calibrator
    widths = _inputs(before, rule, n_classes, n_features)
    half_precision = check_flag(half_precision, "half_precision")
    return Graph(before, tuple(widths), rule=rule, half_precision=half_precision).eval(), widths


def _check_fitted(given: object) -> None:
    """Refuse what is neither a calibrator nor a rule, and name the calibrator inside of it."""
    if isinstance(given, (Calibrator, Rule)):
        return
    inside = next((name for name in ("calibrator", "calibrator_") if hasattr(given, name)), None)
    advice = "pass what fit returned"
    if inside is not None:
        advice = f"pass its .{inside}, which takes the classifier's scores; export the classifier by itself"
    raise InputError(
        f"calibrator: expected a fitted calibrator or rule, got {type(given).__name__}; {advice}"
    )


def _write_checked(form: "Graph", graph: "Graph", path: Path, widths: dict[str, int]) -> None:
    """Write one form of a graph, and compare what ONNX Runtime makes of it with the graph itself."""
    _write(form, path, widths)
    session, refusal = _session(path)
    if session is None:
        raise CalibrantError(
            f"export: expected a graph that ONNX Runtime can run, got {graph.kind}; ONNX Runtime reports: "
            f"{refusal}"
        )
    _verify(graph, session, widths)


def _inputs(
    calibrator: Calibrator | None, rule: Rule | None, n_classes: int | None, n_features: int | None
) -> dict[str, int]:
    """Return the inputs of a graph, with their numbers of columns, or of groups."""
    fitted = calibrator if rule is None else rule
    assert fitted is not None
    if isinstance(rule, CascadeRule):
        return {"confidences": len(rule.thresholds)}
    of_pairs = isinstance(calibrator, ConfidenceCalibrator) if rule is None else rule.n_classes is None
    widths = {"confidence": 1} if of_pairs else {"logits": _known("n_classes", n_classes, fitted.n_classes)}
    widths = {"score": 1} if isinstance(calibrator, ScoreCalibrator) else widths
    if calibrator is None or isinstance(calibrator, PixelCalibration):
        return widths
    parts = [part for part in calibrator.modules() if isinstance(part, Calibrator)]
    known = next((n for part in parts if (n := getattr(part, "n_features", None)) is not None), None)
    if known is not None or any(part.needs_features for part in parts):
        widths["features"] = _known("n_features", n_features, known)
    if calibrator.group_names is not None:
        widths["groups"] = len(calibrator.group_names)
    return widths


class Graph(nn.Module):
    """A calibrator and a rule, or one of them, with the named inputs of their graph."""

    def __init__(
        self,
        calibrator: Calibrator | None,
        names: tuple[str, ...],
        *,
        rule: Rule | None,
        half_precision: bool,
    ) -> None:
        super().__init__()
        self.calibrator = calibrator
        self.rule = rule
        self.names = names
        self.half_precision = half_precision

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return log-probabilities, repaired confidences, or decisions."""
        wide = (at_least_float32(each) if each.is_floating_point() else each for each in inputs)
        given = dict(zip(self.names, wide, strict=True))
        others = [given.get("features")]
        if "groups" in given and self.calibrator is not None:
            known = (given["groups"] >= 0) & (given["groups"] < len(self.calibrator.group_names or ()))
            others.append(torch.where(known, given["groups"], -1))
        if "confidences" in given and self.rule is not None:
            answering: tuple[Tensor, ...] = self.rule(log_odds(given["confidences"]).float())
            return answering
        if "logits" in given:
            z = given["logits"]
        else:
            s = given["score"] if "score" in given else log_odds(given["confidence"]).float()
            z = torch.stack([-s / 2, s / 2], dim=1)
        log_probs: Tensor = z.log_softmax(dim=1) if self.calibrator is None else self.calibrator(z, *others)
        if self.rule is not None:
            decided: tuple[Tensor, ...] = self.rule(log_probs)
            return decided
        return log_probs if "logits" in given else log_probs[:, 1].exp()

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what the graph returns."""
        if self.rule is not None:
            return self.rule.outputs
        return ("log_probs",) if "logits" in self.names else ("repaired",)

    @property
    def known_names(self) -> dict[str, str]:
        """The names of classes, groups and signals that are known, as JSON lists."""
        fitted = self.rule if self.calibrator is None else self.calibrator
        names = {each: getattr(fitted, each, None) for each in _NAMES}
        return {each: json.dumps(found) for each, found in names.items() if found}

    @property
    def place(self) -> tuple[float, float]:
        """The median and the width of the scores of the fit, if the graph takes a score."""
        if not isinstance(self.calibrator, ScoreCalibrator):
            return 0.0, 1.0
        middle, width = self.calibrator.place.tolist()
        return middle, width

    @property
    def n_sets(self) -> int | None:
        """The number of sets of columns that groups are made by; None for one column."""
        columns = () if self.calibrator is None else self.calibrator.group_columns
        return len(column_sets(columns)) or None

    @property
    def takes_masked(self) -> bool:
        """Whether a calibrator is exported that takes logits in which classes are masked."""
        return self.rule is None and self.calibrator is not None and self.calibrator.applies_to_masked

    @property
    def takes_maps(self) -> bool:
        """Whether logits are maps of shape ``(n, k, h, w)``."""
        return isinstance(self.calibrator, PixelCalibration)

    @property
    def kind(self) -> str:
        """The name of what is exported, for error messages."""
        return type(self.calibrator if self.rule is None else self.rule).__name__


def _known(name: str, given: int | None, own: int | None) -> int:
    """Return the number that is given or that the calibrator knows; refuse none, and two that differ."""
    answer = own if given is None else given
    if answer is None:
        raise InputError(
            f"{name}: expected a whole number, because this calibrator does not store it, got none"
        )
    if own not in (None, answer):
        raise InputError(f"{name}: expected {own}, which the calibrator was fitted on, got {given}")
    return check_count(answer, name)


def _write(graph: Graph, path: Path, widths: dict[str, int]) -> None:
    sizes = {0: torch.export.Dim("batch")}
    if graph.takes_maps:
        sizes |= {2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
    try:
        with _quiet():
            torch.onnx.export(
                graph,
                tuple(drawn_inputs(graph, 2, widths, seed=0, masked=False)),
                path,
                input_names=list(widths),
                output_names=list(graph.outputs),
                dynamic_shapes=(tuple(sizes for _ in widths),),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CalibrantError(
            f"export: expected what ONNX can express, got {graph.kind}; PyTorch reports: {reason}"
        ) from error
    if graph.known_names:
        onnx = import_module("onnx")
        model = onnx.load(path)
        onnx.helper.set_model_props(model, graph.known_names)
        onnx.save(model, path)


def _session(path: Path) -> tuple[Any, str]:
    """Return a session of ONNX Runtime, or None and its reason."""
    try:
        return import_module("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"]), ""
    except Exception as error:  # the runtime's own exceptions have no common class
        return None, str(error).strip().splitlines()[0]


def _verify(graph: Graph, session: Any, widths: dict[str, int]) -> None:  # noqa: ANN401 - untyped
    for seed, n in enumerate(_BATCHES):
        inputs = drawn_inputs(graph, n, widths, seed=seed)
        fed = {name: values.numpy() for name, values in zip(widths, inputs, strict=True)}
        refuse_difference(graph, inputs, session.run(list(graph.outputs), fed))


def drawn_inputs(
    graph: Graph, n: int, widths: dict[str, int], *, seed: int, masked: bool | None = None
) -> list[Tensor]:
    """Return random inputs of a graph, in the order of ``widths``."""
    if graph.takes_maps:
        return [_maps(n, widths["logits"], seed=seed, half_precision=graph.half_precision)]
    return _samples(
        n,
        widths,
        seed=seed,
        half_precision=graph.half_precision,
        masked=graph.takes_masked if masked is None else masked,
        place=graph.place,
        n_sets=graph.n_sets,
    )


def refuse_difference(graph: Graph, inputs: list[Tensor], returned: list[npt.NDArray[Any]]) -> None:
    """Refuse outputs of ONNX Runtime that are not those of PyTorch."""
    with torch.no_grad():
        found = graph(*inputs)
    expected = found if isinstance(found, tuple) else (found,)
    for name, ours, theirs in zip(graph.outputs, expected, returned, strict=True):
        wrong = _difference(name, ours.numpy(), theirs)
        if not wrong <= TOLERANCE:
            raise CalibrantError(
                f"export: expected outputs equal to PyTorch's within {TOLERANCE:g}, got a difference of "
                f"{wrong:.2g} for {graph.kind} and a batch of {len(inputs[0])}"
            )


def _difference(name: str, ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    """Return how far an output is from PyTorch's; decisions are equal or not."""
    if ours.dtype.kind != "f":
        return float(not np.array_equal(ours, theirs))
    with np.errstate(invalid="ignore"):
        apart = np.abs(theirs - ours) / np.maximum(1, np.abs(ours))
    # Masked classes have the same infinite logarithm in both.
    wrong = float(np.where(ours == theirs, 0.0, apart).max())
    if name == "log_probs":
        wrong = max(wrong, float(np.abs(np.exp(theirs) - np.exp(ours)).max()))
    return wrong


def _samples(
    n: int,
    widths: dict[str, int],
    *,
    seed: int,
    half_precision: bool,
    masked: bool = False,
    place: tuple[float, float] = (0.0, 1.0),
    n_sets: int | None = None,
) -> list[Tensor]:
    """Draw logits from nearly uniform to very confident, with a tie, or confidences, and what is beside.

    With ``masked`` some rows lack the last class, and some all but the first. Scores lie around the median
    and width ``place`` of those of the fit.
    """
    rng = np.random.default_rng(seed)
    drawn: dict[str, Any] = {}
    if "logits" in widths:
        logits = rng.normal(size=(n, widths["logits"])) * np.geomspace(20, 0.1, n)[:, None]
        logits[-1, :2] = logits[-1].max()
        if masked:
            logits[1::3, -1], logits[2::9, 1:] = -np.inf, -np.inf
        drawn["logits"] = logits.astype(np.float32)
    if "confidence" in widths:
        confidence = rng.random(n)
        confidence[-1] = seed % 2  # exactly 0 and 1 are legal
        drawn["confidence"] = confidence.astype(np.float32)
    if "score" in widths:
        drawn["score"] = (place[0] + 3 * place[1] * rng.normal(size=n)).astype(np.float32)
    if "confidences" in widths:
        drawn["confidences"] = rng.random((n, widths["confidences"])).astype(np.float32)
    if "features" in widths:
        drawn["features"] = rng.normal(size=(n, widths["features"])).astype(np.float32)
    if "groups" in widths:
        size = n if n_sets is None else (n, n_sets)
        drawn["groups"] = rng.integers(-2, widths["groups"] + 2, size=size)  # some that the fit has not seen
    samples = [torch.from_numpy(drawn[name]) for name in widths]
    return [each.half() if half_precision and each.is_floating_point() else each for each in samples]


def _maps(n: int, k: int, *, seed: int, half_precision: bool) -> Tensor:
    """Draw score maps of few pixels, whose height and width differ."""
    rng = np.random.default_rng(seed)
    maps = rng.normal(size=(n, k, 5 + seed, 7)) * np.geomspace(20, 0.1, n)[:, None, None, None]
    drawn = torch.from_numpy(maps.astype(np.float32))
    return drawn.half() if half_precision else drawn


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's own log messages and warnings."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
