"""Fuzzers of functions: arrays of every type and shape, valid or not, and options in and out of range."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from calibrant import metrics
from calibrant.data import Predictions
from calibrant.evaluation import compare, evaluate
from calibrant.losses.names import LOSSES, make_loss
from calibrant.metrics.names import MEASURES
from calibrant.posthoc.names import COMBINATION, METHODS, POOL
from tests.conftest import softmax
from tests.fuzz.fuzzer import Fuzzer, Verdict, expect, judged
from tests.fuzz.references import OF_CLASSES, OF_PAIRS, OF_POSITIVE, of_class, top_label

# How an array is passed.
_FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "list": lambda a: a.tolist(),
    "float64": lambda a: a,
    "float32": lambda a: a.astype(np.float32),
    "float16": lambda a: a.astype(np.float16),
    "Fortran": np.asfortranarray,
    "reversed": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "tensor": lambda a: torch.tensor(a),
    "tensor, float32": lambda a: torch.tensor(a, dtype=torch.float32),
    "tensor, bfloat16": lambda a: torch.tensor(a, dtype=torch.bfloat16),
    "with gradient": lambda a: torch.tensor(a, dtype=torch.float64, requires_grad=True),
}
_ODD_FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "None": lambda _: None,
    "text": lambda a: a.astype(str),
    "objects": lambda a: a.astype(object),
    "complex": lambda a: a.astype(complex),
    "integers": lambda a: np.nan_to_num(a, posinf=1, neginf=0).astype(np.int64),
    "bytes": lambda a: a.tobytes(),
    "flat": lambda a: a.ravel(),
    "deep": lambda a: a[None],
    "transposed": lambda a: a.T,
    "ragged": lambda a: [*a.tolist(), [0.5]],
    "masked": lambda a: np.ma.masked_array(a, mask=a > 0.5),
    "meta": lambda a: torch.tensor(a).to("meta"),
    "sparse": lambda a: torch.tensor(a).to_sparse(),
    "first": lambda a: a[:1],
    "empty": lambda a: a[:0],
    "no columns": lambda a: a[..., :0],
    "one column": lambda a: a[..., :1],
    "dict": lambda a: {"values": a.tolist()},
    "number": lambda a: float(a.ravel()[0]) if a.size else 0.0,
}
_SPECIAL = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1.0, 2.0, 1e300, -1e300, 1e-320, -0.0, 0.5)
_OPTIONS = (
    *(0, -1, 1, 2, 3, 0.5, 1.5, math.nan, math.inf, 1e-300, 1e300, True, 10**12, 3_000_000_000),
    *("x", "", "mass", "width", "l1", "l2", "binned", "conditional", "corp", "canonical", "linear"),
)


@dataclass(frozen=True)
class Case:
    """Predictions of a few samples, in some form, with at most one thing wrong."""

    name: str
    scores: Any
    labels: Any
    weights: Any
    options: dict[str, Any]
    pairs: bool


@st.composite
def scores(draw_one: st.DrawFn, n: int, k: int, *, probs: bool) -> np.ndarray:
    """Draw logits or probabilities with ties, zeros, ones and large numbers."""
    rng = np.random.default_rng(draw_one(st.integers(0, 1 << 16)))
    values = rng.normal(size=(n, k)) * draw_one(st.sampled_from([0.0, 0.5, 3.0, 50.0, 1e4]))
    if draw_one(st.booleans()):
        values = np.round(values)
    if not probs:
        return values
    values = softmax(values) if n else values
    if draw_one(st.integers(0, 3)) == 0:
        values[: n // 2] = np.eye(k)[rng.integers(k, size=n // 2)]
    return values


@st.composite
def spoiled(draw_one: st.DrawFn, array: np.ndarray) -> Any:
    """Draw a form of an array; in one of three cases an odd one, or one with odd numbers in it."""
    how = draw_one(st.integers(0, 5))
    if how == 0:
        return _ODD_FORMS[draw_one(st.sampled_from(list(_ODD_FORMS)))](array)
    if how == 1 and array.size:
        array = array.astype(float)
        place = draw_one(st.integers(0, array.size - 1))
        array.flat[place] = draw_one(st.sampled_from(_SPECIAL))
    with np.errstate(over="ignore"):
        return _FORMS[draw_one(st.sampled_from(list(_FORMS)))](array)


@st.composite
def labels(draw_one: st.DrawFn, n: int, k: int) -> Any:
    """Draw labels: most often valid ones."""
    rng = np.random.default_rng(draw_one(st.integers(0, 1 << 16)))
    one_class = draw_one(st.integers(0, 4)) == 0
    drawn = np.full(n, k - 1) if one_class else rng.integers(k, size=n)
    how = draw_one(st.integers(0, 7))
    if how == 0:
        return draw_one(spoiled(drawn))
    if how == 1:
        return drawn + draw_one(st.sampled_from([-1, 1, 1 << 40]))
    kinds = [np.int64, np.int32, np.uint8, float]
    return draw_one(st.sampled_from([drawn.tolist(), torch.tensor(drawn), *map(drawn.astype, kinds)]))


@st.composite
def weights(draw_one: st.DrawFn, n: int) -> Any:
    """Draw no weights, or valid ones, or odd ones."""
    how = draw_one(st.integers(0, 7))
    if how > 2:
        return None
    drawn = np.random.default_rng(how).integers(0, 4, size=n).astype(float)
    return draw_one(spoiled(drawn)) if how == 0 else drawn


def _cases(
    names: list[str], *, probs: bool, most: int = 12, options: tuple[Any, ...] = ()
) -> st.SearchStrategy[Case]:
    @st.composite
    def case(draw_one: st.DrawFn) -> Case:
        n = draw_one(st.integers(0, most))
        k = draw_one(st.integers(1, 5))
        name = draw_one(st.sampled_from(names))
        pairs = probs and draw_one(st.integers(0, 3)) == 0
        array = draw_one(scores(n, k, probs=probs))
        return Case(
            name,
            draw_one(spoiled(array.max(axis=1) if pairs else array)),
            draw_one(spoiled(np.arange(n) % 2 == 0)) if pairs else draw_one(labels(n, k)),
            draw_one(weights(n)),
            {"any": draw_one(st.sampled_from(options))} if options and draw_one(st.booleans()) else {},
            pairs,
        )

    return case()


# Measures

_FUNCTIONS = {name: each for name in metrics.__all__ if inspect.isfunction(each := getattr(metrics, name))}
# They take functions, bins or single numbers, and have fuzzed ones inside.
_OTHER_INPUTS = {"accuracy_band", "curve_band", "smoothing_bias", "smoothing_bias_bound", "wilson_interval"}
_MEASURED = [name for name in _FUNCTIONS if name not in _OTHER_INPUTS]
# Documented to be NaN where they are undefined.
_MAY_BE_NAN = {
    *("auroc_correctness", "auroc_ovo", "auroc_ovr", "overconfidence", "underconfidence"),
    *("recall", "precision", "average_precision", "calibration_slope", "calibration_intercept"),
}
_INPUTS = {
    *("probs", "labels", "logits", "confidence", "correct", "weights", "in_scores", "out_scores", "metric"),
    *("a", "b", "probs_before", "probs_after", "name", "correct_a", "correct_b", "progress", "measures"),
}


# Arguments that are scores of samples.
_SCORES = {"probs", "a", "b", "probs_before", "probs_after", "in_scores", "out_scores"}
# What some functions need beside predictions.
_FIXED = {
    "metric": metrics.expected_calibration_error,
    "name": "msp",
    "n_resamples": 20,
    "risk": 0.1,
    "coverage": 0.5,
}


def _arguments(case: Case) -> dict[str, Any]:
    """Return the arguments of a function: its inputs by their names, and perhaps one odd option."""
    known = inspect.signature(_FUNCTIONS[case.name]).parameters
    takes_more = any(each.kind is each.VAR_KEYWORD for each in known.values())
    filled: dict[str, Any] = {name: case.scores for name in known if name in _SCORES}
    filled |= {name: value for name, value in _FIXED.items() if name in known}
    if case.name == "margin_slices":
        filled["logits"] = case.scores
    if "labels" in known:
        filled["labels"] = case.labels
    if case.pairs and "probs" in known and (takes_more or "confidence" in known):
        del filled["probs"], filled["labels"]
        filled |= {"confidence": case.scores, "correct": case.labels}
    if case.weights is not None and (takes_more or "weights" in known):
        filled["weights"] = case.weights
    odd = [name for name, each in known.items() if name not in _INPUTS and each.kind is each.KEYWORD_ONLY]
    if case.options and odd:
        filled[odd[len(str(case.options)) % len(odd)]] = case.options["any"]
    return filled


def _judge_measure(case: Case) -> Verdict:
    arguments = _arguments(case)

    def check(result: Any) -> None:
        if isinstance(result, float):
            finite = math.isfinite(result) or (math.isnan(result) and case.name in _MAY_BE_NAN)
            expect(finite, f"{case.name} is {result}")
            _check_reference(case, arguments, result)
        else:
            expect(is_dataclass(result) or isinstance(result, (Tensor, tuple)), f"got {type(result)}")

    return judged(lambda: _FUNCTIONS[case.name](**arguments), check)


def _numbers(values: Any) -> list[Any]:
    """Return what a person means by the array: a list of numbers in double precision."""
    array = (
        values.detach().double().numpy() if isinstance(values, Tensor) else np.asarray(values, dtype=float)
    )
    return list(array.tolist())


def _check_reference(case: Case, arguments: dict[str, Any], result: float) -> None:
    if set(arguments) - {"probs", "labels", "confidence", "correct", "weights", "n_bins"}:
        return
    n_bins = arguments.get("n_bins", 15)
    first = _numbers(case.scores)
    given = [1.0] * len(first) if arguments.get("weights") is None else _numbers(arguments["weights"])
    if case.pairs:
        pairs = list(zip(first, [each == 1 for each in _numbers(case.labels)], given, strict=True))
    else:
        if first and not isinstance(first[0], list):  # probabilities of class 1
            first = [[1 - p, p] for p in first]
        true = [int(each) for each in _numbers(case.labels)]
        pairs = list(top_label(first, true, given))
    if case.name in OF_POSITIVE:
        truth = OF_POSITIVE[case.name](pairs if case.pairs else of_class(first, true, given, 1))
    elif case.name in OF_PAIRS:
        truth = OF_PAIRS[case.name](pairs, n_bins)
    elif case.name in OF_CLASSES and not case.pairs:
        truth = OF_CLASSES[case.name](first, true, given, n_bins)
    else:
        return
    same = math.isclose(result, truth, rel_tol=1e-6, abs_tol=1e-9) or (result != result and truth != truth)
    expect(same, f"{case.name}: expected {truth}, got {result}")


# Post-hoc methods

_FITTED = [name for name, each in METHODS.items() if not each.slow and name not in (POOL, COMBINATION)]


def _judge_fit(case: Case) -> Verdict:
    method = METHODS[case.name]

    def fit_and_predict() -> tuple[np.ndarray, np.ndarray]:
        n = len(case.scores) if hasattr(case.scores, "__len__") else 1
        features = np.random.default_rng(0).normal(size=(n, 3)) if method.calibrator.needs_features else None
        given = {} if case.weights is None or not method.takes_weights else {"weights": case.weights}
        calibrator = method.fit(case.scores, case.labels, features=features, **given)
        rows = np.array(_numbers(case.scores))
        return rows, np.asarray(calibrator.predict_proba(rows, features))

    def check(result: tuple[np.ndarray, np.ndarray]) -> None:
        rows, probs = result
        expect(bool(np.isfinite(probs).all() and (probs >= 0).all()), f"{case.name}: {probs}")
        if rows.ndim == 2:
            expect(bool(np.allclose(probs.sum(axis=1), 1, atol=1e-5)), f"{case.name}: {probs}")
            if method.preserves_accuracy:
                kept = probs[np.arange(len(rows)), rows.argmax(axis=1)]
                expect(bool((kept >= probs.max(axis=1) - 1e-12).all()), f"{case.name} changed a class")

    return judged(fit_and_predict, check)


# Losses


def _judge_loss(case: Case) -> Verdict:
    def value_and_slope() -> tuple[Tensor, Tensor | None]:
        loss = make_loss(case.name, n_classes=5, n_samples=12)
        inputs, true = _tensor(case.scores), _tensor(case.labels)
        if isinstance(inputs, Tensor) and inputs.is_floating_point():
            inputs = inputs.detach().requires_grad_()
        more = (
            {"indices": torch.arange(len(inputs) if hasattr(inputs, "__len__") else 1)}
            if "indices" in loss.needs
            else {}
        )
        value = loss(inputs, true, **more)
        if value.requires_grad and value.ndim == 0:
            value.backward()
        return value.detach(), inputs.grad

    def check(result: tuple[Tensor, Tensor | None]) -> None:
        value, slope = result
        given = _tensor(case.scores)
        expect(given.is_floating_point(), f"{case.name} takes {given.dtype}")
        if not given.isfinite().all():
            return  # as with cross-entropy, the loss of no number is no number
        expect(bool(value.isfinite().all()), f"{case.name}: {value}")
        if slope is not None and given.dtype != torch.float16:  # whose numbers end at 65,504
            expect(bool(slope.isfinite().all()), f"{case.name}: gradient {slope}")

    return judged(value_and_slope, check)


def _tensor(values: Any) -> Any:
    """Losses take tensors: arrays become some, and what cannot is passed as it is.

    Tensors without numbers or in another layout are PyTorch's own matter there.
    """
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        return values
    odd = tensor.is_meta or tensor.is_sparse
    return torch.zeros(tensor.shape, dtype=tensor.dtype) if odd else tensor


# Evaluations


def _judge_evaluation(case: Case) -> Verdict:
    def call() -> Any:
        keys = ("confidence", "correct") if case.pairs else ("probs", "labels")
        predictions = Predictions(
            **dict(zip(keys, (case.scores, case.labels), strict=True)), weights=case.weights
        )
        options = {"n_bins": case.options["any"]} if case.options else {}
        return evaluate(predictions, measures="all", intervals=case.pairs, n_resamples=20, **options)

    def check(evaluation: Any) -> None:
        for name, value in evaluation.metrics.items():
            measure = MEASURES[name]
            undefined = measure.function.__name__ in _MAY_BE_NAN
            expect(math.isfinite(value) or undefined, f"{name} is {value}")
            if not measure.options:
                given = {"weights": case.weights} if case.weights is not None else {}
                bins = {"n_bins": case.options["any"]} if case.options and measure.takes_bins else {}
                named = Case(
                    measure.function.__name__, case.scores, case.labels, case.weights, {}, case.pairs
                )
                _check_reference(named, given | bins, value)
        evaluation.to_dict()

    return judged(call, check)


def _judge_comparison(case: Case) -> Verdict:
    def call() -> Any:
        predictions = Predictions(logits=case.scores, labels=case.labels, weights=case.weights)
        return compare(predictions, methods=["uncalibrated", "temperature", case.name], n_resamples=20)

    def check(result: Any) -> None:
        for method in result.results:
            expect(math.isfinite(method.metrics["nll"]), f"{method.name}: {method.metrics}")

    return judged(call, check)


FUZZERS = (
    Fuzzer("arrays given to", "measures", _cases(_MEASURED, probs=True, options=_OPTIONS), _judge_measure, 4),
    Fuzzer("arrays given to", "losses", _cases(list(LOSSES), probs=False), _judge_loss, 2),
    Fuzzer("arrays given to", "fits of post-hoc methods", _cases(_FITTED, probs=False, most=40), _judge_fit),
    Fuzzer(
        "arrays given to",
        "evaluate",
        _cases(["evaluate"], probs=True, options=_OPTIONS),
        _judge_evaluation,
        0.5,
    ),
    Fuzzer(
        "arrays given to",
        "compare",
        _cases(["spline", "vector"], probs=False, most=40),
        _judge_comparison,
        0.2,
    ),
)
