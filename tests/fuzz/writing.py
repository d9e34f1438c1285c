"""Fuzzer of writing: a command is killed, or its disk is full, at a random one of its writes.

What was there before stays whole or is replaced as a whole; a folder with files of two runs is refused; the
same command then works, and leaves no temporary files.
"""

import atexit
import errno
import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from calibrant.data import load_predictions
from calibrant.errors import CalibrantError
from calibrant.monitoring import Monitoring
from calibrant.posthoc import load_calibrator
from calibrant.report.write import load_page
from tests.fuzz.commands import files_in, run
from tests.fuzz.fuzzer import Fuzzer, Verdict, check_sentence, expect

_ROOT = Path(__file__).parents[2]
_TRAIN = [
    *("train", "--set", "data.limit=120", "--set", "model.options.hidden=[4]", "--set", "training.epochs=2"),
    *(
        "--set",
        "output.tensorboard=false",
        "--set",
        "hardware.accelerator=cpu",
        "--set",
        "posthoc.methods=[]",
    ),
]
# Each command as it ran before, and as it is interrupted; both write the same files.
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "calibrate": (
        ["calibrate", "p.npz", "--methods", "uncalibrated,temperature", "--folds", "2", "--out", "run"],
        ["calibrate", "p.npz", "--methods", "uncalibrated,vector", "--folds", "2", "--out", "run"],
    ),
    "apply npz": (
        ["apply", "c.safetensors", "p.npz", "--out", "q.npz"],
        ["apply", "c.safetensors", "p.csv", "--out", "q.npz"],
    ),
    "apply parquet": (
        ["apply", "c.safetensors", "p.npz", "--out", "q.parquet"],
        ["apply", "c.safetensors", "p.parquet", "--out", "q.parquet"],
    ),
    "report": (["report", "p.npz", "--out", "page.html"], ["report", "p.csv", "--out", "page.html"]),
    "plot": (
        ["plot", "reliability", "p.npz", "--out", "f.svg"],
        ["plot", "reliability", "p.csv", "--bins", "5", "--out", "f.svg"],
    ),
    "monitor": (
        ["monitor", "p.npz", "p.csv", "--state", "s.json", "--window", "20"],
        ["monitor", "p.npz", "p.parquet", "--state", "s.json"],
    ),
    "bench page": (
        ["bench", "page", "mine", "--out", "arena.html"],
        ["bench", "page", "mine", "--add", "theirs/rows.jsonl", "--out", "arena.html"],
    ),
    "train": ([*_TRAIN, "--out", "trained"], [*_TRAIN, "--out", "trained", "--resume"]),
}
# Where a file changes or becomes visible.
_CALLS: tuple[tuple[Any, str], ...] = (
    (os, "fsync"),
    (os, "replace"),
    (os, "rename"),
    (pathlib.Path, "replace"),
    (pathlib.Path, "touch"),
    (pathlib.Path, "chmod"),
    (pathlib.Path, "write_text"),
    (pathlib.Path, "write_bytes"),
    (pathlib.Path, "mkdir"),
    (pathlib.Path, "unlink"),
)


# What the commands import when they need it.
_IMPORTED = (
    *("calibrant.cli.printing", "calibrant.show.terminal", "calibrant.evaluation.effect"),
    *(
        "calibrant.report.describe",
        "calibrant.papers.arena_page",
        "calibrant.plots.kinds",
        "calibrant.streams.rewriting",
        "matplotlib.pyplot",
    ),
    *(
        "calibrant.monitoring.run",
        "calibrant.data.tables",
        "pyarrow.parquet",
        "pyarrow.csv",
        "sklearn.isotonic",
    ),
)


def interrupt(at: int, how: str) -> None:
    """End this process, or fail for want of room, at the write with this number and at all later ones."""
    writes = 0

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes > at and how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if writes > at and original.__name__ != "unlink":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*arguments, **options)

        return call

    for owner, name in _CALLS:
        setattr(owner, name, watched(getattr(owner, name)))


def serve() -> None:
    """Read commands from standard input, run each in a process of its own, and write how it ended.

    The processes are forks of this one, which has imported what they need and has no threads.
    """
    from tests.training.small import import_everything

    import_everything()
    for name in _IMPORTED:
        import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _run_and_exit(*json.loads(line))
        print(os.waitpid(child, 0)[1], flush=True)


def _run_and_exit(folder: str, words: list[str], at: int, how: str) -> None:
    """Run a command in a folder and end this process with its code."""
    code, errors = 99, "Traceback"
    try:
        os.chdir(folder)
        if how != "whole":
            interrupt(at, how)
        code, _, errors = run(words)
    except BaseException as error:
        errors = f"Traceback: {error!r}"
    finally:
        with open("stderr.log", "w", encoding="utf-8") as file:  # noqa: PTH123  # Path.open is watched
            file.write(errors)
        os._exit(code)


class _Server:
    """A process that runs commands in forks of itself."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", "from tests.fuzz.writing import serve; serve()"],
            cwd=_ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, words: list[str], at: int = 0, how: str = "whole") -> tuple[int, str]:
        """Run a command in a folder; return its code, below zero if it was killed, and standard error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        log = folder / "stderr.log"
        log.unlink(missing_ok=True)
        try:
            self.process.stdin.write(json.dumps([str(folder), words, at, how]) + "\n")
            self.process.stdin.flush()
            code = os.waitstatus_to_exitcode(int(self.process.stdout.readline()))
        except BaseException:  # no end, or no answer: the next command has a new server
            self.process.kill()
            _server.cache_clear()
            raise
        errors = log.read_text(encoding="utf-8") if log.exists() else ""
        log.unlink(missing_ok=True)
        return code, errors


@functools.cache
def _server() -> _Server:
    return _Server()


@functools.cache
def _before(command: str) -> tuple[Path, dict[str, bytes]]:
    """Return a folder in which a command has run once, and all its files."""
    folder = Path(tempfile.mkdtemp(prefix="calibrant-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    files_in(folder)
    code, errors = _server().run(folder, COMMANDS[command][0])
    assert code in (0, 1), errors
    return folder, dict(_contents(folder))


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()


def _judge(case: tuple[str, int, str]) -> Verdict:
    command, at, how = case
    template, old = _before(command)
    words = COMMANDS[command][1]
    with tempfile.TemporaryDirectory(prefix="calibrant-fuzz-") as name:
        folder = Path(name)
        shutil.copytree(template, folder, dirs_exist_ok=True)
        code, errors = _server().run(folder, words, at, how)
        expect("Traceback" not in errors, errors[-500:])
        if how == "full" and code == 2:
            check_sentence(errors.strip().splitlines()[-1])
        else:
            expect(code in (0, 1, -signal.SIGKILL), f"code {code}: {errors[-300:]}")
        now = dict(_contents(folder))
        expect(set(old) <= set(now), f"gone: {set(old) - set(now)}")
        for file, content in now.items():
            if not Path(file).name.startswith(".calibrant-") and content != old.get(file):
                _check_whole(folder / file)
        verdict: Verdict = "refused" if code == 2 else _check_folder(folder)
        code, errors = _server().run(folder, words)
        expect(code in (0, 1), f"does not run again: {errors[-300:]}")
        left = [str(path) for path in folder.rglob(".calibrant-*")]
        expect(not left, f"left behind: {left}")
    return verdict


def _check_whole(path: Path) -> None:
    """Read a file that the interrupted command wrote: it must be complete."""
    readers: dict[str, Callable[[Path], Any]] = {
        "q.npz": load_predictions,
        "q.parquet": load_predictions,
        "calibrator.safetensors": load_calibrator,
        "s.json": lambda path: Monitoring.load(path, load_predictions(path.with_name("p.npz"))),
    }
    try:
        if path.name in readers:
            readers[path.name](path)
        elif path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix in (".html", ".svg"):
            end = path.read_text(encoding="utf-8").rstrip()[-7:]
            expect(end.endswith(("</html>", "</svg>")), f"{path.name} ends with {end!r}")
    except CalibrantError as error:
        expect(False, f"{path.name} is not whole: {error}")


def _check_folder(folder: Path) -> Verdict:
    """Read a folder of calibrate: files of one run, or refused."""
    if (folder / "run").exists():
        try:
            load_page(folder / "run")
        except CalibrantError as error:
            check_sentence(str(error))
            return "refused"
    return "right"


# About how many writes each command has, so that most cases interrupt one.
_WRITES = {"calibrate": 20, "monitor": 12, "train": 45}
_MANY = ("calibrate", "apply npz", "apply parquet", "monitor")

FUZZERS = tuple(
    Fuzzer(
        "a write that fails in",
        command,
        st.tuples(
            st.just(command), st.integers(0, _WRITES.get(command, 6)), st.sampled_from(["kill", "full"])
        ),
        _judge,
        share=0.15 if command in _MANY else 0.05,
    )
    for command in COMMANDS
)
