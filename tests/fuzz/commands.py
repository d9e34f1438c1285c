"""Fuzzer of commands: options with values of every kind, run in this process.

A command ends with code 0, 1 (an alarm), 2 (one line on stderr), 3 or 4, and never with a traceback.
"""

import atexit
import functools
import io
import os
import shutil
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer
from hypothesis import strategies as st

import calibrant.cli
from calibrant.cli import app, main
from calibrant.data import Predictions, save_predictions
from calibrant.errors import CalibrantError
from calibrant.posthoc import TemperatureScaling
from tests.conftest import draw
from tests.fuzz.fuzzer import Fuzzer, Verdict, check_sentence, expect
from tests.hostile import NAMES, file_names, raw_characters
from tests.papers.arena_rows import drawn_rows, folder_of

# What each command needs, in a folder that holds these files.
BASE = {
    "evaluate": ["evaluate", "p.npz"],
    "evaluate stream": ["evaluate", "p.parquet", "--skip-bad"],
    "gate": ["gate", "p.npz", "--require", "ece < 0.5"],
    "calibrate": ["calibrate", "p.npz", "--methods", "uncalibrated,temperature", "--folds", "2"],
    "apply": ["apply", "c.safetensors", "p.npz", "--out", "q.npz"],
    "report": ["report", "p.npz", "--out", "page.html"],
    "plot": ["plot", "reliability", "p.npz", "--out", "figure.svg"],
    "export": ["export", "c.safetensors", "--out", "c.onnx"],
    "decide": ["decide", "p.npz", "--risk", "0.5"],
    "cascade": ["cascade", "p.npz", "--cost", "1", "--person", "5", "--risk", "0.5"],
    "monitor": ["monitor", "p.npz", "p.csv", "--state", "state.json"],
    "bench page": ["bench", "page", "mine", "--add", "theirs/rows.jsonl", "--out", "arena.html"],
    "methods": ["methods"],
    "measures": ["measures"],
    "losses": ["losses"],
}
# They open a browser, start other processes, or are tried elsewhere.
_NOT = {"--open", "--engine", "--help", "--install-completion", "--show-completion"}
_VALUES = (
    *("-1", "0", "1", "3", "0.5", "nan", "inf", "1e999", "100000000000000000000", "3000000000", "-0"),
    *("x", "", " ", ",", "a,b", "../x", "/proc/x", "/proc/self/mem", "/dev/full", "/dev/null", "a" * 1000),
    *("\x1b[31mred", "[/x]", "[red]", "\udcff", "=1+1", "smart(epochs=-1)", "temperature(x=1)", "spline"),
    *(
        "p.npz",
        "p.csv",
        "p.parquet",
        "c.safetensors",
        "mine/rows.jsonl",
        "page.html",
        ".",
        "missing.npz",
        "nll",
        "ece",
        "core",
        "all",
        "words",
        "percent",
        "missing=drop",
        "labels=labels",
    ),
)


@functools.cache
def _options(base: str) -> list[str]:
    """Return the options of a command, as Typer knows them."""
    known: Any = typer.main.get_command(app)
    for word in BASE[base]:
        known = known.commands[word] if hasattr(known, "commands") else known
    return [
        each.opts[0] for each in known.params if each.opts[0].startswith("--") and each.opts[0] not in _NOT
    ]


def files_in(folder: Path) -> None:
    """Write the files that commands are run on."""
    logits, labels = draw(60, 3, sharpen=2.0)
    predictions = Predictions(logits=logits, labels=labels)
    for suffix in ("npz", "csv", "parquet"):
        save_predictions(predictions, folder / f"p.{suffix}")
    TemperatureScaling.fit(logits, labels).save(folder / "c.safetensors")
    rows = drawn_rows(3)
    folder_of(folder / "mine", rows[:2])
    folder_of(folder / "theirs", rows[1:])


@functools.cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="calibrant-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    files_in(folder)
    return folder


def run(arguments: list[str]) -> tuple[int, str, str]:
    """Run ``calibrant`` in this process; return its code and what it wrote to both of its outputs."""
    before, columns = sys.argv, os.environ.get("COLUMNS")
    sys.argv, os.environ["COLUMNS"] = ["calibrant", *arguments], "80"
    try:
        with (
            redirect_stdout(io.StringIO()) as shown,
            redirect_stderr(io.StringIO()) as errors,
            # It ends the process if threads still work on what nobody waits for.
            patch.object(calibrant.cli, "_leave_abandoned_work"),
        ):
            main()
    except SystemExit as stopped:
        return int(stopped.code or 0), shown.getvalue(), errors.getvalue()
    finally:
        sys.argv = before
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return 0, shown.getvalue(), errors.getvalue()


def _judge(case: tuple[str, list[tuple[int, str]]]) -> Verdict:
    base, chosen = case
    words = list(BASE[base])
    known = _options(base)
    for place, value in chosen:
        words += [known[place % len(known)], *([value] if value != "(flag)" else [])]
    with tempfile.TemporaryDirectory(prefix="calibrant-fuzz-") as folder:
        shutil.copytree(_template(), folder, dirs_exist_ok=True)
        with chdir(folder):
            code, _, errors = run(words)
    return _verdict(code, errors)


def _verdict(code: int, errors: str) -> Verdict:
    expect(code in (0, 1, 2, 3, 4), f"code {code}")
    expect("Traceback" not in errors, errors[-500:])
    if code != 2:
        return "right"
    own = [line for line in errors.splitlines() if line.startswith("calibrant: ")]
    expect(len(own) == 1 or "─ Error ─" in errors, f"no sentence: {errors[-500:]!r}")
    return "refused"


_SHOWN = {
    "evaluate": ["evaluate", "--by", "groups", "--measures", "core"],
    "evaluate as JSON": ["evaluate", "--json"],
    "report": ["report", "--out", "page.html"],
    "plot": ["plot", "reliability", "--out", "figure.svg"],
}


def _judge_names(case: tuple[str, list[str], str]) -> Verdict:
    """Show predictions whose classes, groups and file have names that attack."""
    command, names, file = case
    logits, labels = draw(60, len(names), sharpen=2.0)
    with tempfile.TemporaryDirectory(prefix="calibrant-fuzz-") as folder, chdir(folder):
        path = Path(f"{file}.npz")
        try:
            groups = [names[each] for each in labels]
            predictions = Predictions(logits=logits, labels=labels, class_names=names, groups=groups)
            save_predictions(predictions, path)
        except CalibrantError as error:
            check_sentence(str(error))
            return "refused"
        code, shown, errors = run([*_SHOWN[command], str(path)])
    raw = raw_characters(shown + errors)
    expect(not raw, f"shown as they are: {raw}")
    return _verdict(code, errors)


_CHOSEN = st.lists(
    st.tuples(st.integers(0, 255), st.sampled_from(_VALUES) | st.just("(flag)")), min_size=1, max_size=2
)
FUZZERS = (
    Fuzzer("options of", "commands", st.tuples(st.sampled_from(list(BASE)), _CHOSEN), _judge),
    Fuzzer(
        "names that attack in",
        "commands",
        st.tuples(
            st.sampled_from(list(_SHOWN)),
            st.lists(st.sampled_from(list(NAMES.values())), min_size=2, max_size=4, unique=True),
            st.just("p") | st.sampled_from(list(file_names())),
        ),
        _judge_names,
        share=0.3,
    ),
)
