"""Fuzzer of saved calibrators of every method: one field or tensor is changed, and the file loaded again."""

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from calibrant.posthoc import load_calibrator
from calibrant.posthoc.names import COMBINATION, METHODS, POOL
from tests.fuzz.fuzzer import Fuzzer, Verdict, expect, judged
from tests.fuzz.mutations import PATHS, VALUES, changed_value

_NAMES = [name for name, each in METHODS.items() if not each.slow and name not in (POOL, COMBINATION)]
_FEATURES = np.random.default_rng(0).normal(size=(600, 4))
_LOGITS = _FEATURES @ np.random.default_rng(1).normal(size=(4, 3)) * 2
_LABELS = (_LOGITS + np.random.default_rng(2).gumbel(size=(600, 3))).argmax(axis=1)

_TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda t: torch.full_like(t, torch.nan, dtype=torch.float32),
    "infinite": lambda t: torch.full_like(t, torch.inf, dtype=torch.float32),
    "negative": lambda t: -t.double() - 1,
    "zero": torch.zeros_like,
    "huge": lambda t: t.double() * 1e600,
    "tiny": lambda t: t.double() * 1e-600,
    "whole": lambda t: t.to(torch.int32),
    "half": lambda t: t.half(),
    "complex": lambda t: t.to(torch.complex64),
    "longer": lambda t: torch.cat([t.reshape(-1), t.reshape(-1)]),
    "deeper": lambda t: t[None],
    "empty": lambda t: t.reshape(-1)[:0],
    "reversed": lambda t: t.reshape(-1).flip(0).reshape(t.shape),
}


@functools.cache
def _path() -> Path:
    folder = tempfile.mkdtemp(prefix="calibrant-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder, "c.safetensors")


@functools.cache
def _saved(name: str) -> tuple[dict[str, str], dict[str, Tensor], np.ndarray]:
    """Return the header without its digest, the tensors, and the answer of a fitted method."""
    features = _FEATURES if METHODS[name].calibrator.needs_features else None
    METHODS[name].fit(_LOGITS, _LABELS, features=features).save(_path())
    with safe_open(_path(), framework="pt") as file:
        header = {key: text for key, text in file.metadata().items() if key != "digest"}
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    return header, tensors, _answer(name)


def _answer(name: str) -> np.ndarray:
    features = _FEATURES[:9] if METHODS[name].calibrator.needs_features else None
    return np.asarray(load_calibrator(_path()).predict_proba(_LOGITS[:9], features))


def _judge(case: tuple[str, list[int], Any, str | None]) -> Verdict:
    name, path, value, how = case
    header, tensors, answer = _saved(name)
    if how is None or not tensors:
        described = changed_value(json.loads(header["calibrator"]), path, value, remove=value == "")
        header = header | {"calibrator": json.dumps(described)}
    else:
        key = sorted(tensors)[path[0] % len(tensors)]
        tensors = tensors | {key: _TENSORS[how](tensors[key])}
    save_file({key: each.contiguous() for key, each in tensors.items()}, _path(), metadata=header)

    def check(probs: np.ndarray) -> Verdict:
        expect(bool(np.isfinite(probs).all() and (probs >= 0).all()), f"{probs}")
        expect(bool(np.allclose(probs.sum(axis=1), 1, atol=1e-4)), f"{probs}")
        return "right" if np.array_equal(probs, answer) else "other"

    return judged(lambda: _answer(name), check)


FUZZERS = (
    Fuzzer(
        "changed values of",
        "calibrators of every method",
        st.tuples(st.sampled_from(_NAMES), PATHS, VALUES, st.none() | st.sampled_from(list(_TENSORS))),
        _judge,
        share=2,
    ),
)
