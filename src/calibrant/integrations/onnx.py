"""Calibrators as ONNX graphs, for runtimes without Python."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.errors import CalibrantError, InputError, MissingPackageError
from calibrant.files import atomic_path
from calibrant.inputs import at_least_float32, check_count, check_flag
from calibrant.outcomes import log_odds
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.confidence import ConfidenceCalibrator

# How far probabilities may be from PyTorch's, and log-probabilities, relative to their size.
TOLERANCE = 1e-5

_BATCHES = (1, 2, 257)


def export_onnx(
    calibrator: Calibrator,
    path: str | os.PathLike[str],
    *,
    n_classes: int | None = None,
    n_features: int | None = None,
    half_precision: bool = False,
) -> None:
    """Write a calibrator as an ONNX graph, all or nothing.

    The graph goes from ``logits`` (and ``features``) to ``log_probs``, in float32, for batches of any size;
    that of a :class:`~calibrant.posthoc.ConfidenceCalibrator` from ``confidence`` to ``repaired``, both of
    shape ``(n,)``. A calibrator with a map for each group also takes ``groups``, integers of shape ``(n,)``:
    the place of each sample's group among ``group_names``, or -1 for the common map.

    Before the file is written, ONNX Runtime and PyTorch must agree to 1e-5 for batches of 1, 2 and 257 random
    samples.

    Args:
        calibrator: A fitted calibrator.
        path: Where to write; usually ends in ``.onnx``.
        n_classes: Number of classes; only needed if the calibrator does not know it.
        n_features: Number of features; only needed if the calibrator uses them and does not know it.
        half_precision: Whether the graph takes logits, confidences and features in float16, as a model in
            half precision gives them. What it returns is float32 in any case.

    Raises:
        CalibrantError: The packages of the extra ``export`` are missing, PyTorch cannot express the
            calibrator in ONNX, ONNX Runtime cannot run the graph, or the two disagree.
    """
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if missing:
        raise MissingPackageError("export", " and ".join(missing), "export")
    of_pairs = isinstance(calibrator, ConfidenceCalibrator)
    widths = {} if of_pairs else {"logits": _known("n_classes", n_classes, calibrator.n_classes)}
    if of_pairs:
        widths["confidence"] = 1
    parts = [part for part in calibrator.modules() if isinstance(part, Calibrator)]
    known = next((n for part in parts if (n := getattr(part, "n_features", None)) is not None), None)
    if known is not None or any(part.needs_features for part in parts):
        widths["features"] = _known("n_features", n_features, known)
    if calibrator.group_names is not None:
        widths["groups"] = len(calibrator.group_names)
    frozen = _Graph(
        calibrator.eval(), tuple(widths), half_precision=check_flag(half_precision, "half_precision")
    )
    with atomic_path(path) as temporary:
        _write(frozen, temporary, widths)
        session, refusal = _session(temporary)
        if session is None:
            # Some calibrators keep numbers in double precision, for which the runtime lacks some operations.
            _write(deepcopy(frozen).float(), temporary, widths)
            session, refusal = _session(temporary)
        if session is None:
            raise CalibrantError(
                f"export: expected a graph that ONNX Runtime can run, got {type(calibrator).__name__}; ONNX "
                f"Runtime reports: {refusal}"
            )
        _verify(frozen, session, widths)


class _Graph(nn.Module):
    """A calibrator with the named inputs of its graph in place of the arguments of ``forward``."""

    def __init__(self, calibrator: Calibrator, names: tuple[str, ...], *, half_precision: bool) -> None:
        super().__init__()
        self.calibrator = calibrator
        self.names = names
        self.half_precision = half_precision

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return log-probabilities, or repaired confidences."""
        wide = (at_least_float32(each) if each.is_floating_point() else each for each in inputs)
        given = dict(zip(self.names, wide, strict=True))
        others = [given.get("features"), given["groups"]] if "groups" in given else [given.get("features")]
        if "logits" in given:
            log_probs: Tensor = self.calibrator(given["logits"], *others)
            return log_probs
        s = log_odds(given["confidence"]).float()
        repaired: Tensor = self.calibrator(torch.stack([-s / 2, s / 2], dim=1), *others)
        return repaired[:, 1].exp()

    @property
    def output(self) -> str:
        """The name of what the graph returns."""
        return "log_probs" if "logits" in self.names else "repaired"


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


def _write(graph: _Graph, path: Path, widths: dict[str, int]) -> None:
    batch = torch.export.Dim("batch")
    try:
        with _quiet():
            torch.onnx.export(
                graph,
                tuple(_samples(2, widths, seed=0, half_precision=graph.half_precision)),
                path,
                input_names=list(widths),
                output_names=[graph.output],
                dynamic_shapes=(tuple({0: batch} for _ in widths),),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
        kind, reason = type(graph.calibrator).__name__, str(error).strip().splitlines()[0]
        raise CalibrantError(
            f"export: expected a calibrator that ONNX can express, got {kind}; PyTorch reports: {reason}"
        ) from error


def _session(path: Path) -> tuple[Any, str]:
    """Return a session of ONNX Runtime, or None and its reason."""
    try:
        return import_module("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"]), ""
    except Exception as error:  # the runtime's own exceptions have no common class
        return None, str(error).strip().splitlines()[0]


def _verify(graph: _Graph, session: Any, widths: dict[str, int]) -> None:  # noqa: ANN401 - untyped
    for seed, n in enumerate(_BATCHES):
        inputs = _samples(n, widths, seed=seed, half_precision=graph.half_precision)
        with torch.no_grad():
            expected = graph(*inputs).numpy()
        fed = {name: values.numpy() for name, values in zip(widths, inputs, strict=True)}
        got = session.run([graph.output], fed)[0]
        wrong = float((np.abs(got - expected) / np.maximum(1, np.abs(expected))).max())
        if graph.output == "log_probs":
            wrong = max(wrong, float(np.abs(np.exp(got) - np.exp(expected)).max()))
        if not wrong <= TOLERANCE:
            raise CalibrantError(
                f"export: expected outputs equal to PyTorch's within {TOLERANCE:g}, got a difference of "
                f"{wrong:.2g} for {type(graph.calibrator).__name__} and a batch of {n}"
            )


def _samples(n: int, widths: dict[str, int], *, seed: int, half_precision: bool) -> list[Tensor]:
    """Draw logits from nearly uniform to very confident, with a tie, or confidences, and what is beside."""
    rng = np.random.default_rng(seed)
    drawn: dict[str, Any] = {}
    if "logits" in widths:
        logits = rng.normal(size=(n, widths["logits"])) * np.geomspace(20, 0.1, n)[:, None]
        logits[-1, :2] = logits[-1].max()
        drawn["logits"] = logits.astype(np.float32)
    if "confidence" in widths:
        confidence = rng.random(n)
        confidence[-1] = seed % 2  # exactly 0 and 1 are legal
        drawn["confidence"] = confidence.astype(np.float32)
    if "features" in widths:
        drawn["features"] = rng.normal(size=(n, widths["features"])).astype(np.float32)
    if "groups" in widths:
        drawn["groups"] = rng.integers(-1, widths["groups"], size=n)
    samples = [torch.from_numpy(drawn[name]) for name in widths]
    return [each.half() if half_precision and each.is_floating_point() else each for each in samples]


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
