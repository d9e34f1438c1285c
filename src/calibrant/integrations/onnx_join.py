"""One ONNX graph: a classifier, and its calibrator or rule after it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from calibrant.decisions.rule import Rule
from calibrant.errors import CalibrantError, InputError
from calibrant.files import atomic_path
from calibrant.inputs import class_order
from calibrant.integrations.onnx import Graph, drawn_inputs, export_onnx, graph_of, refuse_difference
from calibrant.outcomes import LEAST_PROB
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.confidence import ConfidenceCalibrator

Scale: TypeAlias = Literal["logits", "probs"]

# Names that say which scale an output has; others must be said.
_KNOWN: dict[str, Scale] = {
    "logits": "logits",
    "log_probs": "logits",
    "probs": "probs",
    "probabilities": "probs",
    "output_probability": "probs",
}
_PREFIX = "calibrator/"
_BATCHES = (1, 2, 57)
_CLASSES = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")


@dataclass(frozen=True)
class _Scores:
    """The output of a classifier that is calibrated.

    Attributes:
        name: Its name in the graph.
        scale: Whether it holds logits or probabilities.
        classes: The names of its classes; None if the graph does not know them.
    """

    name: str
    scale: Scale
    classes: tuple[str, ...] | None


def join_onnx(
    classifier: str | os.PathLike[str],
    calibrator: Calibrator | Rule,
    path: str | os.PathLike[str],
    *,
    logits: str | None = None,
    probs: str | None = None,
    inputs: Mapping[str, npt.NDArray[Any]] | str | os.PathLike[str] | None = None,
    n_classes: int | None = None,
) -> None:
    """Write one ONNX graph: a classifier, and a calibrator or rule after it, all or nothing.

    The graph takes the inputs of the classifier, and the ``groups`` or ``features`` of the calibrator unless
    the classifier has an output ``features``. It returns what that of
    :func:`~calibrant.integrations.onnx.export_onnx` returns. The older of the two operator sets is raised to
    the newer. Classes are put into the order of the calibrator if both know their names. Dictionaries of
    probabilities (``ZipMap``) are left out.

    The file is written if ONNX Runtime returns for it what it returns for the classifier followed by PyTorch
    for the calibrator, to 1e-5, for random inputs and for those given.

    Args:
        classifier: An ONNX graph, as scikit-learn (skl2onnx), LightGBM (onnxmltools) or PyTorch export it.
        calibrator: A fitted calibrator or rule of class scores.
        path: Where to write; usually ends in ``.onnx``.
        logits: The output of the classifier with logits of shape ``(n, k)``. By default that named
            ``logits`` or ``log_probs``.
        probs: The output with probabilities instead, or with a dictionary of them. By default that named
            ``probs``, ``probabilities`` or ``output_probability``.
        inputs: Further inputs to check, by name, or an ``.npz`` file of them; required if random ones cannot
            be drawn, such as texts.
        n_classes: Number of classes; only needed if the calibrator does not know it.

    Raises:
        CalibrantError: The packages of the extra ``export`` are missing, or the graphs cannot be joined.
    """
    if logits is not None and probs is not None:
        raise InputError("probs: expected either logits or probs, got both; name one output")
    with TemporaryDirectory() as folder:
        head_path = Path(folder, "calibrator.onnx")
        k = calibrator.n_classes if n_classes is None else n_classes
        if isinstance(calibrator, ConfidenceCalibrator) or k is None:
            raise InputError(
                f"calibrator: expected one for a known number of classes, got {type(calibrator).__name__}; "
                "say how many with n_classes=, or export it by itself if it takes confidences"
            )
        export_onnx(calibrator, head_path, n_classes=k)
        onnx = import_module("onnx")
        model, head = _loaded(onnx, classifier), onnx.load(head_path)
    given = _arrays(inputs)
    scores = _scores_of(model, logits, probs)
    order = class_order(getattr(calibrator, "class_names", None), scores.classes)
    alone = _with_scores_alone(onnx, model, scores)
    joined = _joined(onnx, alone, head, scores, order)
    with atomic_path(path) as temporary:
        onnx.save(joined, temporary)
        for batch in [*_random_inputs(alone, given), *([] if given is None else [given])]:
            _check(alone, temporary, graph_of(calibrator, n_classes=k), scores, order, batch)


def _arrays(given: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any] | None:
    """Return inputs by name, of a file or as they are; nothing is unpickled."""
    if given is None or isinstance(given, Mapping):
        return None if given is None else dict(given)
    try:
        with np.load(given, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"inputs: expected an .npz file of arrays, got {Path(given).name}: {error}"
        ) from None


def _loaded(onnx: Any, path: str | os.PathLike[str]) -> Any:  # noqa: ANN401  # the package has no types
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except FileNotFoundError:
        raise InputError(f"classifier: expected an ONNX graph, got no file {Path(path).name}") from None
    except Exception as error:  # of protobuf or of the checker
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"classifier: expected an ONNX graph, got {Path(path).name}: {reason}") from None
    return model


def _scores_of(model: Any, logits: str | None, probs: str | None) -> _Scores:  # noqa: ANN401
    """Return the output to calibrate: the one that is named, or the only one whose name says what it is."""
    names = [each.name for each in model.graph.output]
    named: dict[str, Scale] = {name: _KNOWN[name] for name in names if name in _KNOWN}
    if logits is not None or probs is not None:
        wanted = logits if logits is not None else str(probs)
        if wanted not in names:
            raise InputError(
                f"{'logits' if logits is not None else 'probs'}: expected one of the outputs "
                f"{', '.join(names)}, got {wanted}"
            )
        named = {wanted: "logits" if logits is not None else "probs"}
    if len(named) != 1:
        raise InputError(
            f"classifier: expected one output that is named logits or probabilities, got {', '.join(names)}; "
            "say which one it is with logits=NAME or probs=NAME"
        )
    ((name, scale),) = named.items()
    makers = {output: node for node in model.graph.node for output in node.output}
    classes = None
    if name in makers and makers[name].op_type == "ZipMap":
        classes = _class_labels(makers[name])
        name = makers[name].input[0]
    source = name
    while classes is None and source in makers:  # through what only copies
        classes = _class_labels(makers[source])
        source = makers[source].input[0] if makers[source].op_type in ("Identity", "Cast") else ""
    return _Scores(name, scale, classes)


def _class_labels(node: Any) -> tuple[str, ...] | None:  # noqa: ANN401
    """Return the classes that a node names; whole numbers from 0 are only places."""
    for attribute in node.attribute:
        if attribute.name in _CLASSES:
            if attribute.strings:
                return tuple(each.decode() for each in attribute.strings)
            numbers = list(attribute.ints)
            return None if numbers == list(range(len(numbers))) else tuple(map(str, numbers))
    return None


def _with_scores_alone(onnx: Any, model: Any, scores: _Scores) -> Any:  # noqa: ANN401
    """Return the classifier with two outputs at most: the scores, and features if it has them."""
    alone = type(model)()
    alone.CopyFrom(model)
    keep = [each for each in alone.graph.output if each.name == "features"]
    typed = next((each for each in alone.graph.output if each.name == scores.name), None)
    if typed is None:
        typed = onnx.helper.make_empty_tensor_value_info(scores.name)
    nodes = [node for node in alone.graph.node if node.op_type != "ZipMap"]
    keep = [typed, *keep]
    del alone.graph.output[:], alone.graph.node[:]
    alone.graph.node.extend(nodes)
    alone.graph.output.extend(keep)
    return alone


def _joined(onnx: Any, model: Any, head: Any, scores: _Scores, order: Any) -> Any:  # noqa: ANN401
    version = max(_opset(model), _opset(head))
    model, head = (_raised(onnx, each, version) for each in (model, head))
    helper, numbers = onnx.helper, onnx.numpy_helper
    last, steps = scores.name, []

    def step(kind: str, *more: str, **attributes: Any) -> None:  # noqa: ANN401
        nonlocal last
        result = f"{_PREFIX}{kind.lower()}"
        steps.append(helper.make_node(kind, [last, *more], [result], name=result, **attributes))
        last = result

    step("Cast", to=onnx.TensorProto.FLOAT)
    if scores.scale == "probs":
        for name, value in (("least", LEAST_PROB), ("most", 1.0)):
            model.graph.initializer.append(
                numbers.from_array(np.array(value, dtype=np.float32), f"{_PREFIX}{name}")
            )
        step("Clip", f"{_PREFIX}least", f"{_PREFIX}most")
        step("Log")
    if order is not None:
        places = np.asarray(order, dtype=np.int64)
        model.graph.initializer.append(numbers.from_array(places, f"{_PREFIX}order"))
        step("Gather", f"{_PREFIX}order", axis=1)
    model.graph.node.extend(steps)
    model.graph.output.append(helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, None))
    head = onnx.compose.add_prefix(head, _PREFIX, rename_inputs=False, rename_outputs=False)
    feeds = {"logits": last}
    if any(each.name == "features" for each in model.graph.output):
        feeds["features"] = "features"
    head.graph.name, head.ir_version = "calibrator", model.ir_version
    ours = {each.key: each.value for each in head.metadata_props}
    theirs = {each.key: each.value for each in model.metadata_props}
    del head.metadata_props[:], model.metadata_props[:]
    try:
        joined = onnx.compose.merge_models(
            model,
            head,
            [(source, name) for name, source in feeds.items() if _has_input(head, name)],
            outputs=[each.name for each in head.graph.output],
        )
    except ValueError as error:
        raise CalibrantError(
            f"export: expected a classifier whose names differ from the calibrator's, got one that cannot be "
            f"joined: {str(error).splitlines()[0]}"
        ) from None
    helper.set_model_props(joined, theirs | ours)
    return joined


def _has_input(model: Any, name: str) -> bool:  # noqa: ANN401
    return any(each.name == name for each in model.graph.input)


def _opset(model: Any) -> int:  # noqa: ANN401
    """Return the version of the standard operators; 0 if a graph has none of them, as those of XGBoost."""
    standard = (each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    return int(max(standard, default=0))


def _raised(onnx: Any, model: Any, version: int) -> Any:  # noqa: ANN401
    if _opset(model) == version:
        return model
    if _opset(model) == 0:
        model.opset_import.append(onnx.helper.make_opsetid("", version))
        return model
    try:
        return onnx.version_converter.convert_version(model, version)
    except Exception as error:  # the converter's own exceptions have no common class
        reason = str(error).strip().splitlines()[0]
        raise CalibrantError(
            f"export: expected graphs of one operator set, got {_opset(model)}, which cannot be raised to "
            f"{version}: {reason}; export the classifier with operator set {version}"
        ) from None


def _inputs_of(model: Any) -> list[Any]:  # noqa: ANN401
    stored = {each.name for each in model.graph.initializer}
    return [each for each in model.graph.input if each.name not in stored]


def _random_inputs(model: Any, given: Mapping[str, Any] | None) -> list[dict[str, npt.NDArray[Any]]]:  # noqa: ANN401
    """Return random inputs of some batches; none if they cannot be drawn, and others are given."""
    helper, batches = import_module("onnx").helper, []
    for n in _BATCHES:
        rng, drawn = np.random.default_rng(n), {}
        for each in _inputs_of(model):
            kind = helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type)
            sizes = [size.dim_value for size in each.type.tensor_type.shape.dim]
            if kind.kind not in "fiub" or 0 in sizes[1:] or not sizes:
                if given is None:
                    raise InputError(
                        f"inputs: expected some for {each.name}, for which random ones cannot be drawn, got "
                        "none; give a few"
                    )
                return []
            shape = (sizes[0] or n, *sizes[1:])
            values = rng.normal(size=shape) if kind.kind == "f" else rng.integers(0, 2, size=shape)
            drawn[each.name] = values.astype(kind)
        batches.append(drawn)
    return batches


def _check(
    alone: Any,  # noqa: ANN401
    path: Path,
    calibrated: tuple[Graph, dict[str, int]],
    scores: _Scores,
    order: Any,  # noqa: ANN401
    given: dict[str, npt.NDArray[Any]],
) -> None:
    """Compare the joined graph with the classifier by itself, followed by PyTorch."""
    runtime = import_module("onnxruntime")
    providers = ["CPUExecutionProvider"]
    first = runtime.InferenceSession(alone.SerializeToString(), providers=providers)
    both = runtime.InferenceSession(str(path), providers=providers)
    returned = dict(zip([each.name for each in first.get_outputs()], first.run(None, given), strict=True))
    found = torch.from_numpy(np.asarray(returned[scores.name], dtype=np.float32))
    graph, widths = calibrated
    k = widths["logits"]
    if found.ndim != 2 or found.shape[1] != k:
        raise InputError(
            f"classifier: expected scores of {k} classes in {scores.name}, which the calibrator was fitted "
            f"on, got shape {tuple(found.shape)}"
        )
    if scores.scale == "probs":
        if bool(((found.sum(dim=1) - 1).abs() > 1e-3).any()):
            raise InputError(
                f"classifier: expected probabilities in {scores.name}, got rows that do not sum to one; if "
                "they are logits, say so with logits=NAME"
            )
        found = found.clamp(LEAST_PROB, 1.0).log()
    z = found if order is None else found[:, torch.as_tensor(order)]
    beside = dict(zip(widths, drawn_inputs(graph, len(z), widths, seed=0), strict=True)) | {"logits": z}
    if "features" in returned and "features" in beside:
        beside["features"] = torch.from_numpy(returned["features"])
    taken = {each.name for each in both.get_inputs()}
    fed = given | {name: each.numpy() for name, each in beside.items() if name in taken}
    refuse_difference(graph, list(beside.values()), both.run(list(graph.outputs), fed))
