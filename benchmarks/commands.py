"""CPU seconds of whole commands, each as a ratio to a reference that is measured in the same run.

    pip install probmetrics  # optional: the peer; its rows are left out without it
    python benchmarks/commands.py [--quick] [--only PARTS] [--out FILE]

Parts are help, start, fits, evaluate, busy, growth and calibrate, separated by commas.

Commands run as processes of their own with the default number of threads; their CPU time (user and system)
is that of all their threads and child processes. References run in a process with one thread. Predictions
are drawn from a seed: normal noise, a signal on the true class, a bias towards three classes that it is
confused with, and a factor that makes the model overconfident.
"""

import argparse
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any, TypeAlias

import numpy as np
import torch

from calibrant._version import __version__
from calibrant.report.drawing_library import drawing_library
from timing import benchmark_parser, best_time, extra_memory, table_head, table_row

_COLUMNS = ("what", "data", "CPU s", "ratio", "MB above the data", "limit", "holds")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# What each command imports before it reads a file.
_IMPORTS = {
    "calibrate": "torch, calibrant.cli.calibrate, calibrant.cli.printing, calibrant.evaluation.calibration, "
    "calibrant.evaluation.compare, calibrant.posthoc.methods, calibrant.report.describe, "
    "calibrant.report.write",
    "evaluate": "torch, calibrant.cli.evaluate, calibrant.cli.printing, calibrant.streams.files, "
    "calibrant.evaluation.full",
    "report": "torch, calibrant.cli.report, calibrant.evaluation.compare, calibrant.report.describe, "
    "calibrant.report.write",
}
# Seconds by the clock after which a command is stopped.
_PATIENCE = 600
_FIVE_METHODS = "temperature,ensemble,spline,smart,structured_matrix"
_WITH_REPORT = "`calibrate --test --out`"
_NO_PEER = "probmetrics is not installed (pip install probmetrics)"
# A child's peak resident set includes that of the process that starts it, so that one has to be small.
_LAUNCHER = """
import json, os, sys
null = os.open(os.devnull, os.O_RDWR)
actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=actions)
_, status, used = os.wait4(child, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""


class CommandError(Exception):
    """A command that was measured ended with an error."""


@dataclass(frozen=True)
class Used:
    """CPU seconds and the peak of the resident set, in MB, of a process."""

    seconds: float
    peak: float


@dataclass(frozen=True)
class Row:
    """One row of the table; ``holds`` is None where no limit is set."""

    what: str
    data: str
    seconds: float | None = None
    ratio: str = ""
    memory: float | None = None
    limit: str = ""
    holds: bool | None = None

    def cells(self) -> list[str]:
        """Return the cells of the row."""
        seconds = "" if self.seconds is None else f"{self.seconds:.2f}"
        memory = "" if self.memory is None else f"{self.memory:,.0f}"
        holds = {None: "", True: "yes", False: "**no**"}[self.holds]
        return [self.what, self.data, seconds, self.ratio, memory, self.limit, holds]


@dataclass(frozen=True)
class Run:
    """Where the predictions are, and whether everything is small."""

    folder: Path
    quick: bool

    def data(self, n: int, k: int) -> "Data":
        """Draw validation and test predictions of one shape, unless they were drawn before."""
        if self.quick:
            n, k = max(n // 100, 100), min(k, 20)
        val, test = (self.folder / f"{n}x{k}_{part}.npz" for part in ("val", "test"))
        n_test = 3080 if n == 3000 else min(n, 25_000)
        for path, size, seed in ((val, n, 0), (test, n_test, 1)):
            if not path.exists():
                save(path, *draw(size, k, seed=seed))
        return Data(n, f"{n:,} x {k:,}", f"{n_test:,} x {k:,}", val, test)

    def repeats(self, most: int) -> int:
        """Return how often something is measured."""
        return 1 if self.quick else most


@dataclass(frozen=True)
class Data:
    """Files of predictions, the number of validation samples, and both sizes in words."""

    n: int
    size: str
    test_size: str
    val: Path
    test: Path


Part: TypeAlias = Callable[[Run], Iterator[Row]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for, print a Markdown table, and write the page."""
    parser = benchmark_parser(__doc__, "small data, everything once")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--out", type=Path, help="write the page to this file, too")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        torch.set_num_threads(1)
        print(json.dumps(CHILDREN[args.child[0]](*args.child[1:])))
        return
    unknown = set(args.only.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--only: expected names from {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    drawing_library()  # bundled once for each version, then read from the user's cache folder
    rows: list[Row] = []
    load_before = os.getloadavg()[0]
    print(table_head(*_COLUMNS), flush=True)
    with TemporaryDirectory() as folder:
        run = Run(Path(folder), args.quick)
        for name in args.only.split(","):
            for row in PARTS[name](run):
                print(table_row(*row.cells()), flush=True)
                rows.append(row)
    if args.out is not None:
        args.out.write_text(page(rows, load_before), encoding="utf-8")


def calibrate(run: Run) -> Iterator[Row]:
    """Measure ``calibrate VAL --test TEST --out DIR`` with defaults, which also writes the report."""
    start = startup("calibrate", run.repeats(3))
    yield Row("start-up of `calibrate`", "none", start)
    beside_peer = ((3000, 77, 40), (10_000, 100, 60))
    # The most seconds in imports of torch, then the most MB in all; `start` has those without a report.
    small = ((1_000_000, 10, 12.0, 1000),)
    large = ((25_000, 1000, 700), (200, 10_000, None), (200, 50_000, 550))
    for n, k, most in beside_peer[: run.repeats(2)]:
        yield from guarded(_WITH_REPORT, run.data(n, k).size, against_peer, run, run.data(n, k), start, most)
    for n, k, imports, memory in small[: run.repeats(3)]:
        data = run.data(n, k)
        yield from guarded(_WITH_REPORT, data.size, against_imports, run, data, imports, memory)
    for n, k, passes in large[: run.repeats(3)]:
        yield from guarded(_WITH_REPORT, run.data(n, k).size, against_passes, run.data(n, k), passes)


def against_peer(run: Run, data: Data, start: float, most: int) -> Row:
    """Measure a calibration in fits of structured matrix scaling by probmetrics."""
    used, above = calibration(data)
    fit = one_thread("peer", data.val, run.repeats(5))["seconds"]
    if fit is None:
        return Row(_WITH_REPORT, data.size, used.seconds, _NO_PEER, above)
    fits, limit = (used.seconds - start) / fit, f"{most} fits + start-up"
    ratio = f"{fits:.1f} fits + start-up"
    return Row(_WITH_REPORT, data.size, used.seconds, ratio, above, limit, fits <= most)


def against_imports(run: Run, data: Data, most: float, memory: int | None) -> Row:
    """Measure a calibration in imports of torch, and its peak memory if that has a limit."""
    once = min(python("-c", "import torch").seconds for _ in range(run.repeats(5)))
    used, above = calibration(data)
    imports = used.seconds / once
    limit = f"{most:g} imports" + ("" if memory is None else f", {memory:,} MB in all")
    holds = imports <= most and (memory is None or used.peak <= memory)
    ratio = f"{imports:.1f} imports of torch"
    return Row(_WITH_REPORT, data.size, used.seconds, ratio, above, limit, holds)


def against_passes(data: Data, most: int | None) -> Row:
    """Measure a calibration in passes of ``log_softmax`` over the validation logits."""
    used, above = calibration(data)
    passes = used.seconds / one_thread("log_softmax", data.val)["seconds"]
    limit = "" if most is None else f"{most:,} passes, 1,000 MB"
    holds = None if most is None else passes <= most and above <= 1000
    return Row(_WITH_REPORT, data.size, used.seconds, f"{passes:,.0f} passes", above, limit, holds)


def calibration(data: Data) -> tuple[Used, float]:
    """Return what a calibration uses, and its peak memory above that of a process that loads both files."""
    used = command(*arguments("calibrate", data))
    load = f"load_predictions({str(data.val)!r}), load_predictions({str(data.test)!r})"
    loaded = python("-c", f"from calibrant.data.files import load_predictions; kept = {load}")
    return used, used.peak - loaded.peak


def fits(run: Run) -> Iterator[Row]:
    """Measure fits of ``structured_matrix`` beside the peer's fit of the same objective."""
    for n, k in ((3000, 77), (10_000, 100))[: run.repeats(2)]:
        data = run.data(n, k)
        found = one_thread("structured", data.val, run.repeats(5))
        peer = found["peer"]
        if peer is None:
            yield Row("fit of `structured_matrix`", data.size, found["fixed"], _NO_PEER)
            continue
        yield Row(f"SMS by probmetrics, objective {found['peer_objective']:.8f}", data.size, peer)
        what = f"`structured_matrix`, strength 1, objective {found['objective']:.8f}"
        # The same optimum: ours may be lower, because the peer may stop before it.
        same, ratio = found["objective"] <= found["peer_objective"] + 1e-6, found["fixed"] / peer
        limit, holds = "2 SMS, objective not above", same and ratio <= 2
        yield Row(what, data.size, found["fixed"], f"{ratio:.2f} SMS", None, limit, holds)
        what = f"`structured_matrix`, strength chosen ({found['strength']:g})"
        ratio = found["chosen"] / peer
        yield Row(what, data.size, found["chosen"], f"{ratio:.2f} SMS", None, "6 SMS", ratio <= 6)


def evaluate(run: Run) -> Iterator[Row]:
    """Measure ``evaluate`` with all intervals, with another model, and ``report`` with five methods."""
    everything, compare, report = "evaluate --measures all --intervals", "evaluate --compare", "report --val"
    cases = (
        (everything, 3000, 77, 30),
        (everything, 10_000, 10, 20),
        (compare, 3000, 77, None),
        (report, 3000, 77, None),
    )
    for name, n, k, most in cases[: run.repeats(4)]:
        data = run.data(n, k)
        yield from guarded(f"`{name}`", data.test_size, in_starts, run, name, data, most)
    yield from guarded(f"`{everything}`", "7 distinct confidences", with_ties, run)


def with_ties(run: Run) -> Row:
    """Measure ``evaluate`` of few distinct confidences beside as many rows without ties."""
    n, rng = 11_202 // (10 if run.quick else 1), np.random.default_rng(0)
    tied = rng.choice([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95], size=n)
    used = []
    for name, confidence in (("ties", tied), ("no_ties", 0.5 + 0.5 * rng.random(n))):
        path = run.folder / f"{name}.npz"
        np.savez(path, confidence=confidence, correct=rng.random(n) < confidence)
        words = ("evaluate", path, "--measures", "all", "--intervals")
        used.append(min(command(*words).seconds for _ in range(run.repeats(2))))
    ratio, limit = used[0] / used[1], "1 of that without ties"
    what, size = "`evaluate --measures all --intervals`", f"{n:,} rows, 7 distinct confidences"
    return Row(what, size, used[0], f"{ratio:.2f} of that without ties", None, limit, ratio <= 1)


def in_starts(run: Run, name: str, data: Data, most: float | None) -> Row:
    """Measure a command in seconds and as a multiple of its start-up."""
    start = startup(name.split()[0], run.repeats(3))
    seconds = min(command(*arguments(name, data)).seconds for _ in range(run.repeats(2)))
    limit, holds = ("", None) if most is None else (f"{most} s", seconds <= most)
    return Row(f"`{name}`", data.test_size, seconds, f"{seconds / start:.1f} start-ups", None, limit, holds)


def arguments(name: str, data: Data) -> list[object]:
    """Return the arguments of a command by its name in the table."""
    if name == "evaluate --measures all --intervals":
        return ["evaluate", data.test, "--measures", "all", "--intervals"]
    if name == "evaluate --compare":
        return ["evaluate", data.test, "--compare", other_model(data.test)]
    out = data.val.with_suffix("")
    if name == "calibrate":
        return ["calibrate", data.val, "--test", data.test, "--out", out]
    options = ["--val", data.val, "--methods", _FIVE_METHODS, "--out", out.with_suffix(".html")]
    return ["report", data.test, *options]


def help_texts(run: Run) -> Iterator[Row]:
    """Measure what needs no torch: ``--version``, ``--help``, and the slowest ``--help`` of a command."""
    from typer.main import get_command

    from calibrant.cli import app

    def least(*words: str) -> float:
        return min(command(*words).seconds for _ in range(run.repeats(5)))

    for word in ("--version", "--help"):
        seconds = least(word)
        yield Row(f"`{word}`", "none", seconds, "", None, "0.3 s", seconds <= 0.3)
    names = list(command_names(get_command(app)))[: 2 if run.quick else None]
    slowest, which = max((least(*words, "--help"), " ".join(words)) for words in names)
    what = f"`{which} --help`, the slowest of {len(names)} commands"
    yield Row(what, "none", slowest, "", None, "0.3 s", slowest <= 0.3)


def command_names(group: Any) -> Iterator[list[str]]:
    """Yield the words of every command, those of groups and what is in them, too."""
    for name, inner in group.commands.items():
        yield [name]
        if hasattr(inner, "commands"):
            yield from ([name, *words] for words in command_names(inner))


def start(run: Run) -> Iterator[Row]:
    """Measure what takes little time beyond importing torch, each beside an import of torch alone."""
    small, more, two = run.data(1000, 10), run.data(3000, 77), run.data(10_000, 2)
    models = [two.test, *(other_model(two.test, number) for number in (1, 2))]
    page = two.test.with_suffix(".html")
    cases: tuple[tuple[str, str, float, tuple[object, ...]], ...] = (
        ("`from calibrant import Predictions`", "none", 1.15, ("-c", "from calibrant import Predictions")),
        ("`from calibrant import compare`", "none", 1.3, ("-c", "from calibrant import compare")),
        ("`evaluate`", small.test_size, 1.3, ("-m", "calibrant", "evaluate", small.test)),
        ("`calibrate`", small.size, 2.0, ("-m", "calibrant", "calibrate", small.val)),
        ("`calibrate`", more.size, 3.5, ("-m", "calibrant", "calibrate", more.val)),
    )
    for what, size, most, words in cases:
        yield from guarded(what, size, beside_torch, what, size, most, words, run.repeats(3))
    words = ("-m", "calibrant", "report", *models, "--out", page)
    arguments = "`report` of three models", two.test_size, 5.0, words, run.repeats(3)
    yield from guarded(*arguments[:2], partial(beside_torch, in_seconds=True), *arguments)


def beside_torch(
    what: str, size: str, most: float, words: Sequence[object], repeats: int, *, in_seconds: bool = False
) -> Row:
    """Measure Python with these words as a multiple of ``import torch``, measured in turns with it."""
    used = [(python("-c", "import torch").seconds, python(*words).seconds) for _ in range(repeats)]
    torch_alone, seconds = map(min, zip(*used, strict=True))
    ratio = seconds / torch_alone
    limit, holds = (
        (f"{most:g} s", seconds <= most) if in_seconds else (f"{most:g} import torch", ratio <= most)
    )
    return Row(what, size, seconds, f"{ratio:.2f} import torch", None, limit, holds)


def busy(run: Run) -> Iterator[Row]:
    """Measure commands beside a busy loop on each core, as multiples of their time without the loops."""
    data = run.data(3000, 77)
    for name in ("report --val", "calibrate", "evaluate --measures all --intervals")[: run.repeats(3)]:
        yield from guarded(f"`{name}`, busy machine", data.test_size, beside_loops, run, name, data)


def beside_loops(run: Run, name: str, data: Data) -> Row:
    """Measure a command without and with busy loops."""
    words = arguments(name, data)
    idle = min(command(*words).seconds for _ in range(run.repeats(2)))
    with busy_loops(os.cpu_count() or 1):
        loaded = min(command(*words).seconds for _ in range(run.repeats(2)))
    size = data.size if name == "calibrate" else data.test_size
    ratio, limit = loaded / idle, "1.3 of idle"
    return Row(f"`{name}`, busy machine", size, loaded, f"{ratio:.2f} of idle", None, limit, ratio <= 1.3)


@contextmanager
def busy_loops(n: int) -> Iterator[None]:
    """Keep this many cores busy."""
    loops: list[subprocess.Popen] = []
    try:
        for _ in range(n):
            # A loop whose parent was killed ends by itself.
            code = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(100_000))"
            loops.append(subprocess.Popen([sys.executable, "-S", "-c", code]))
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def growth(run: Run) -> Iterator[Row]:
    """Measure how the fit of ``smart`` grows with samples, and measures of ranking in sorts."""
    points = []
    for n in (10_000, 30_000, 100_000, 300_000)[: 2 if run.quick else None]:
        data = run.data(n, 10)
        seconds = one_thread("smart", data.val, run.repeats(3))["seconds"]
        points.append((data.n, seconds))
        yield Row("fit of `smart`, 80 epochs", data.size, seconds)
    logs = np.log(np.array(points))
    slope, last = (float(np.polyfit(*part.T, 1)[0]) for part in (logs, logs[-2:]))
    what, size = "fit of `smart`, growth", f"{points[0][0]:,} to {points[-1][0]:,} x 10"
    ratio, limit = f"exponent {slope:.2f}, last two sizes {last:.2f}", "exponent 1.25 of the last two"
    yield Row(what, size, None, ratio, None, limit, last <= 1.25)
    n, limit = 10_000_000 // (1000 if run.quick else 1), "3 sorts, 200 MB"
    for name, function in (
        ("AURC", "aurc"),
        ("AUGRC", "augrc"),
        ("AUROC of correctness", "auroc_correctness"),
    ):
        for dtype in ("float32", "float64"):
            found = one_thread("sorts", function, n, dtype, run.repeats(7))
            ratio = found["seconds"] / found["sort"]
            holds, size = ratio <= 3 and found["memory"] <= 200, f"{n:,} {dtype}"
            yield Row(name, size, found["seconds"], f"{ratio:.2f} sorts", found["memory"], limit, holds)


def guarded(what: str, size: str, measure: Callable[..., Row], *arguments: object) -> Iterator[Row]:
    """Yield the measured row, or one with the error: a command that fails is a result, too."""
    try:
        yield measure(*arguments)
    except CommandError as error:
        yield Row(what, size, ratio=f"fails: {error}", holds=False)


def command(*words: object) -> Used:
    """Run ``calibrant`` with these words and return what it used."""
    return python("-m", "calibrant", *words)


def python(*words: object) -> Used:
    """Run Python with default threads and return what it and its children used."""
    environment = {name: value for name, value in os.environ.items() if name not in _THREADS}
    launch = [sys.executable, "-I", "-S", "-c", _LAUNCHER, sys.executable, *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        launch, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    ) as launcher:
        try:
            answer, errors = launcher.communicate(timeout=_PATIENCE)
        except BaseException as error:
            os.killpg(launcher.pid, signal.SIGKILL)  # the command, too
            if isinstance(error, subprocess.TimeoutExpired):
                raise CommandError(f"stopped after {_PATIENCE} s by the clock") from None
            raise
    code, seconds, peak = json.loads(answer)
    if code:
        last = (errors.strip().splitlines() or [f"exit code {code}"])[-1]
        raise CommandError(last.replace("|", "/"))
    return Used(seconds, peak)


@cache
def startup(name: str, repeats: int) -> float:
    """Return the least CPU seconds of importing what a command imports."""
    return min(python("-c", f"import {_IMPORTS[name]}").seconds for _ in range(repeats))


def one_thread(*words: object) -> dict[str, Any]:
    """Call one of the functions of ``CHILDREN`` in a process with one thread and return its answer."""
    environment = os.environ | dict.fromkeys(_THREADS, "1")
    child = [sys.executable, "-W", "ignore", __file__, "--child", *map(str, words)]
    ended = subprocess.run(child, check=True, capture_output=True, text=True, env=environment)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def cpu_time(call: Callable[[], object], most: int) -> float:
    """Return the least CPU seconds of several calls, after one that is not measured if there are several."""
    if most > 1:
        call()
    return best_time(call, most=most, seconds=20, clock=time.process_time)


def load(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Load logits and labels as tensors."""
    saved = np.load(path)
    return torch.from_numpy(saved["logits"]), torch.from_numpy(saved["labels"])


def child_log_softmax(path: str) -> dict[str, Any]:
    """Measure a pass of ``log_softmax`` over float32 logits."""
    logits, _ = load(path)
    return {"seconds": cpu_time(lambda: torch.log_softmax(logits, dim=1), 7)}


def child_peer(path: str, repeats: str) -> dict[str, Any]:
    """Measure a fit of structured matrix scaling by probmetrics, if it is installed."""
    fit = peer_fit(*load(path))
    return {"seconds": None if fit is None else cpu_time(fit, int(repeats))}


def child_structured(path: str, repeats: str) -> dict[str, Any]:
    """Measure fits of structured matrix scaling by both, and the objective that each reaches."""
    from calibrant.posthoc import StructuredMatrixScaling

    z, y = load(path)
    n, k = z.shape

    def objective(probs: np.ndarray, weight: np.ndarray, intercept: np.ndarray) -> float:
        change = weight - np.eye(k)
        diagonal = (np.diag(change) ** 2).sum()
        ridge = k * (diagonal + (intercept**2).sum()) + k * (k - 1) * ((change**2).sum() - diagonal)
        return float(-np.log(probs[np.arange(n), y]).mean() + ridge / n)

    ours = StructuredMatrixScaling.fit(z, y, strength=1.0)
    found: dict[str, Any] = {
        "fixed": cpu_time(lambda: StructuredMatrixScaling.fit(z, y, strength=1.0), int(repeats)),
        "chosen": cpu_time(lambda: StructuredMatrixScaling.fit(z, y), int(repeats)),
        "strength": float(StructuredMatrixScaling.fit(z, y).strength),
        "objective": objective(
            ours.predict_proba(z.double()).numpy(),
            ours.weight.double().numpy(),
            ours.intercept.double().numpy(),
        ),
        "peer": None,
    }
    fit = peer_fit(z, y)
    if fit is not None:
        peer = fit()
        probs = peer.predict_proba(peer_probs(z))
        found["peer"] = cpu_time(fit, int(repeats))
        found["peer_objective"] = objective(probs, peer.W_[:, :-1], peer.W_[:, -1])
    return found


def peer_fit(z: torch.Tensor, y: torch.Tensor) -> Callable[[], Any] | None:
    """Return a function that fits structured matrix scaling by probmetrics."""
    if importlib.util.find_spec("probmetrics") is None:
        return None
    from probmetrics.calibrators.logistic import SMSCalibrator

    probs, labels = peer_probs(z), y.numpy()

    def fit() -> Any:
        calibrator = SMSCalibrator()
        calibrator.fit(probs, labels)
        return calibrator

    return fit


def peer_probs(z: torch.Tensor) -> np.ndarray:
    """Return probabilities as probmetrics expects them."""
    probs = torch.softmax(z.double(), dim=1).numpy()
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def child_smart(path: str, repeats: str) -> dict[str, Any]:
    """Measure a fit of SMART."""
    from calibrant.posthoc import SMART

    z, y = load(path)
    # SMART stops by itself after a number of epochs that depends on the data; here all sizes have as many.
    return {"seconds": cpu_time(lambda: SMART.fit(z, y, epochs=80, settled=0), int(repeats))}


def child_sorts(function: str, n: str, dtype: str, repeats: str) -> dict[str, Any]:
    """Measure a function of the ranking and a sort of the same confidences."""
    from calibrant import metrics

    rng = np.random.default_rng(0)
    confidence = (rng.random(int(n)) ** 0.2).astype(dtype)
    correct = rng.random(int(n)) < confidence**1.3

    def call() -> float:
        return float(getattr(metrics, function)(confidence=confidence, correct=correct))

    sort = cpu_time(lambda: np.sort(confidence), int(repeats))
    return {"seconds": cpu_time(call, int(repeats)), "sort": sort, "memory": extra_memory(call)}


def draw(n: int, k: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits and labels of an overconfident model that confuses each class with three others."""
    rng = np.random.default_rng([seed, n, k])
    labels = rng.integers(k, size=n)
    logits = rng.standard_normal(size=(n, k), dtype=np.float32)
    rows = np.arange(n)
    logits[rows, labels] += np.float32(math.sqrt(2 * math.log(k)) + 2) + rng.standard_normal(
        n, dtype=np.float32
    )
    # The confusions belong to the classes: they are the same in every set of predictions.
    confusions = np.random.default_rng(k).uniform(0, 2, size=(k, 3)).astype(np.float32)
    for shift in (1, 2, 3):
        logits[rows, (labels + shift) % k] += confusions[labels, shift - 1]
    logits *= np.float32(1.8)
    return logits, labels


def save(path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    """Write a file of predictions."""
    np.savez(path, logits=logits, labels=labels)


def other_model(path: Path, number: int = 0) -> Path:
    """Write predictions of a slightly worse model for the same samples; each number is another model."""
    other = path.with_stem(f"{path.stem}_other{number}")
    z, y = load(str(path))
    noise = np.random.default_rng(number).standard_normal(size=z.shape, dtype=np.float32)
    save(other, z.numpy() + noise, y.numpy())
    return other


def page(rows: Sequence[Row], load_before: float) -> str:
    """Return the page with the table; the load is the average before the run."""
    judged = [row for row in rows if row.holds is not None]
    broken = [f"{row.what} on {row.data}" for row in judged if not row.holds]
    summary = (
        f"The versions were Calibrant {__version__}, PyTorch {torch.__version__} and NumPy {np.__version__}, "
        f"on a machine with {os.cpu_count()} cores and a load average of {load_before:.1f} when the "
        f"run began. {len(judged) - len(broken)} of {len(judged)} limits hold."
    )
    if broken:
        summary += f" These do not: {'; '.join(broken)}."
    wrapped = [fill(summary, 110, break_on_hyphens=False), ""]
    wrapped += [
        fill(f"- {note}", 110, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        for note in _NOTES
    ]
    table = [table_head(*_COLUMNS), *(table_row(*row.cells()) for row in rows)]
    return "\n".join([_HEAD, *wrapped, "", *table, ""])


_HEAD = """# CPU time of whole commands

How long does a command take, from the start of Python to its end, and is that in proportion to its data?

```sh
pip install probmetrics   # optional: the peer; its rows are left out without it
python benchmarks/commands.py --out docs/results/commands.md
python benchmarks/commands.py --only evaluate,help   # single parts
```
"""
_NOTES = (
    "**CPU s** is user and system time of a command with all its threads and child processes, or the "
    "least of several fits in a process with one thread. Commands have the default number of threads. The "
    "drawing library of the report is in its cache.",
    "**Ratios** are to a reference in the same run, on the same predictions. *Fits* and *SMS*: one fit of "
    "structured matrix scaling by probmetrics (`SMSCalibrator`) with one thread. *Passes*: one "
    "`torch.log_softmax` of the float32 validation logits with one thread. *Sorts*: one `np.sort` of the "
    "confidences. *Start-up*: importing the modules that the command imports before it reads a file, torch "
    "among them. *import torch*: that alone. *Idle*: the same command just before, without a "
    "busy loop on each core.",
    "**MB above the data** is the peak resident set minus that of a process that only loads both files "
    "(measures of ranking: minus that before the call).",
    "**Objective** is the mean negative log-likelihood plus the ridge of structured matrix scaling at "
    "strength one. Both libraries minimise it. Ours must not be above the peer's by more than 1e-6; where it "
    "is lower by more than that, the peer stopped before the optimum.",
    "**Predictions** are drawn from a seed: an overconfident model that confuses each class with three "
    "others. Sizes of `calibrate` and of fits are those of the validation set; the test set has as many "
    "samples, at most 25,000, and 3,080 beside 3,000. Sizes of `evaluate` and `report` are those of the "
    "test set.",
    f"**`report --val`** compares five methods: {_FIVE_METHODS.replace(',', ', ')}.",
)

PARTS: dict[str, Part] = {
    "help": help_texts,
    "start": start,
    "fits": fits,
    "evaluate": evaluate,
    "busy": busy,
    "growth": growth,
    "calibrate": calibrate,
}
CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {
    "log_softmax": child_log_softmax,
    "peer": child_peer,
    "structured": child_structured,
    "smart": child_smart,
    "sorts": child_sorts,
}


if __name__ == "__main__":
    main()
