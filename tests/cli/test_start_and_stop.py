"""How commands start, without what they do not use, and how Ctrl-C ends them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer

from calibrant.cli import app
from tests.conftest import draw

pytestmark = pytest.mark.slow

HEAVY = {
    "torch", "numpy", "scipy", "sklearn", "matplotlib", "altair", "vl_convert", "pandas", "polars", "pyarrow",
    "ray", "lightning", "lightning_fabric", "transformers", "onnx", "pydantic",
}  # fmt: skip


def paths(command, *before):
    """Yield every command and group with the words that lead to it."""
    yield before
    for name, each in getattr(command, "commands", {}).items():
        yield from paths(each, *before, name)


COMMANDS = [" ".join(path) for path in paths(typer.main.get_command(app))]


def test_the_commands_are_found():
    assert {"", "evaluate", "calibrate", "bench", "bench run"} <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_the_terminal_alone_breaks_the_lines_of_a_help(path):
    command = typer.main.get_command(app)
    for name in path.split():
        command = getattr(command, "commands", {})[name]
    assert [part for part in command.help.split("\n\n") if "\n" in part or part.strip() != part] == []


def started(*arguments):
    """Run a command; return its exit code, what it printed, and the heavy packages that it imported."""
    code, printed, modules = run(*arguments)
    return code, printed, HEAVY.intersection(modules)


def run(*arguments):
    """Run a command; return its exit code, what it printed, and the modules that it imported."""
    code = (
        "import json, sys\n"
        "from calibrant.cli import main\n"
        f"sys.argv = ['calibrant', *{list(arguments)!r}]\n"
        "try:\n    main()\n"
        "finally:\n    print('\\n' + json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    modules = json.loads(done.stderr.splitlines()[-1])
    return done.returncode, done.stdout + done.stderr[: done.stderr.rstrip().rfind("\n")], set(modules)


def test_the_help_of_a_command_imports_nothing_heavy():
    code = (
        "import json, sys\n"
        "from calibrant.cli import main\n"
        f"for path in {COMMANDS!r}:\n"
        "    sys.argv = ['calibrant', *path.split(), '--help']\n"
        "    try:\n        main()\n"
        "    except SystemExit as stopped:\n"
        "        print(json.dumps([path, stopped.code or 0, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ended = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(path, code, HEAVY.intersection(modules)) for path, code, modules in ended] == [
        (path, 0, set()) for path in COMMANDS
    ]
    assert done.stdout.count("Usage") == len(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--version"], 0, "calibrant "),
        (["evalute"], 2, "No such command"),
        (["evaluate", "--no-such-option"], 2, "No such option"),
        (["calibrate"], 2, "Missing argument"),
        (["bench", "run", "--no-such-option"], 2, "No such option"),
    ],
)
def test_the_version_and_errors_of_options_import_nothing_heavy(arguments, code, message):
    ended, printed, heavy = started(*arguments)
    # Typer converts values with Pydantic, also missing ones.
    assert (ended, heavy - {"pydantic"}) == (code, set())
    assert message in printed


# What a command on a small .npz file has no use for, beside what none of them has.
_EVERY = (
    *("pandas", "pyarrow", "sklearn", "altair", "vl_convert", "onnx", "lightning", "sympy", "torch._dynamo"),
    *("calibrant.streams.measures", "calibrant.streams.evaluate", "calibrant.monitoring", "calibrant.papers"),
    *("calibrant.training", "calibrant.losses.names"),
)
_FITTING = ("calibrant.posthoc.calibrator", "calibrant.evaluation.compare", "calibrant.evaluation.choose")
_SCIPY = ("scipy.special", "scipy.sparse", "scipy.fft", "scipy.stats", "scipy.optimize", "scipy.interpolate")
_PAGE = ("jinja2", "matplotlib", "calibrant.report.write", "calibrant.plots.display")
UNUSED = {
    "evaluate small.npz": (*_SCIPY, *_FITTING, *_PAGE),
    "evaluate small.npz --intervals": (*_FITTING, *_PAGE, "scipy.stats", "scipy.interpolate"),
    "calibrate small.npz --methods temperature,smart": (*_PAGE, "calibrant.report.describe", "scipy.stats"),
    "report small.npz --out report.html": ("matplotlib", "scipy.stats", "scipy.interpolate"),
    "plot reliability small.npz --out figure.png": ("jinja2", *_SCIPY),
    "gate small.npz --require ece<=0.9": (*_FITTING[1:], *_PAGE),
    "decide small.npz --risk 0.5": ("jinja2", "matplotlib", "scipy.stats"),
    "measures": (*_SCIPY, *_FITTING, *_PAGE),
    "methods": (*_SCIPY, "jinja2", "matplotlib", "calibrant.evaluation.compare"),
}


@pytest.mark.parametrize("words", UNUSED)
def test_a_command_imports_only_what_it_runs(words, tmp_path, monkeypatch):
    logits, labels = draw(200, 3, seed=0)
    np.savez(tmp_path / "small.npz", logits=logits, labels=labels)
    monkeypatch.chdir(tmp_path)
    code, printed, modules = run(*words.split())
    assert code == 0, printed
    assert modules.intersection((*UNUSED[words], *_EVERY)) == set()


def test_a_command_imports_no_other_command():
    _, _, modules = run("measures")
    assert {name for name in modules if name.startswith("calibrant.cli.")} == {
        f"calibrant.cli.{name}" for name in ("catalogues", "flags", "options", "printing")
    }


def test_importing_the_package_imports_nothing_heavy():
    code = "import calibrant, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def calibrating(folder, *words, code=""):
    """Start ``calibrant calibrate`` in a folder, after some code."""
    run = f"{code}\nfrom calibrant.cli import main\nmain()"
    return subprocess.Popen(
        [sys.executable, "-c", run, "calibrate", "val.npz", "--out", "out", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background ignores Ctrl-C, and so would the command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def interrupt(process):
    """Press Ctrl-C; the command must end long before its work would, and without a traceback."""
    assert process.poll() is None, "expected a comparison that takes longer"
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode in (1, 130)
    assert "Traceback" not in out + err


def test_ctrl_c_ends_a_benchmark_with_one_line_and_its_workers(tmp_path):
    words = ["bench", "run", "posthoc", "--jobs", "2", "--out", "rows"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from calibrant.cli import main\nmain()", *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        end = time.monotonic() + 300
        while len(children.read_text().split()) < 3 and time.monotonic() < end:  # two workers and a tracker
            time.sleep(0.05)
        workers = [int(pid) for pid in children.read_text().split()]
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    stopped = "calibrant: stopped; finished jobs are kept in rows, and the same command continues\n"
    assert err.endswith(stopped)
    assert "Traceback" not in err
    end = time.monotonic() + 120  # the tracker ends after the others
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers if Path(f"/proc/{pid}").exists()]


def save(folder, n, k):
    logits, labels = draw(n, k, sharpen=2.0)
    np.savez(folder / "val.npz", logits=logits.astype(np.float32), labels=labels)


SLOW_FIT = """
import time
from pathlib import Path
from calibrant.posthoc.temperature import TemperatureScaling

def fit(*_, **__):
    Path("begun").touch()
    time.sleep(3600)

TemperatureScaling.fit = fit
"""


def test_ctrl_c_does_not_wait_for_a_fit(tmp_path):
    save(tmp_path, 100, 3)
    process = calibrating(tmp_path, "--methods", "temperature", code=SLOW_FIT)
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.05)
    interrupt(process)
    assert {each.name for each in tmp_path.rglob("*") if each.is_file()} == {"begun", "val.npz"}


CRUNCHING = """
from pathlib import Path
from calibrant.posthoc.structured import StructuredMatrixScaling

crunch = StructuredMatrixScaling.fit.__func__

def fit(*arguments, **options):
    Path("begun").touch()
    return crunch(*arguments, **options)

StructuredMatrixScaling.fit = classmethod(fit)
"""


def test_ctrl_c_while_numbers_are_crunched_leaves_nothing_half_written(tmp_path):
    save(tmp_path, 10_000, 100)
    process = calibrating(tmp_path, "--methods", "structured_matrix", "--folds", "50", code=CRUNCHING)
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.05)
    interrupt(process)
    assert {each.name for each in tmp_path.rglob("*") if each.is_file()} == {"begun", "val.npz"}
