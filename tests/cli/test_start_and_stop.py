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


def started(*arguments):
    """Run a command; return its exit code, what it printed, and the heavy packages that it imported."""
    code = (
        "import json, sys\n"
        "from calibrant.cli import main\n"
        f"sys.argv = ['calibrant', *{list(arguments)!r}]\n"
        "try:\n    main()\n"
        "finally:\n    print('\\n' + json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    modules = json.loads(done.stderr.splitlines()[-1])
    return done.returncode, done.stdout + done.stderr, HEAVY.intersection(modules)


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_of_a_command_imports_nothing_heavy(path):
    code, printed, heavy = started(*path.split(), "--help")
    assert (code, heavy) == (0, set())
    assert "Usage" in printed


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


def test_importing_the_package_imports_nothing_heavy():
    code = "import calibrant, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def seconds_of_cpu(process):
    """Return the CPU time of a process and its threads."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads CPU times from /proc")
def test_ctrl_c_ends_a_comparison_at_once_and_leaves_nothing_half_written(tmp_path):
    logits, labels = draw(10_000, 100, sharpen=2.0)
    np.savez(tmp_path / "val.npz", logits=logits.astype(np.float32), labels=labels)
    before = sorted(tmp_path.rglob("*"))
    run = "from calibrant.cli import main; main()"
    words = ["calibrate", "val.npz", "--methods", "structured_smart,matrix", "--folds", "50", "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-c", run, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background ignores Ctrl-C, and so would the command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while seconds_of_cpu(process) < 6 and process.poll() is None:
        time.sleep(0.05)
    assert process.poll() is None, "expected a comparison that takes longer"
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - sent < 5
    assert process.returncode in (1, 130)
    assert "Traceback" not in out + err
    assert sorted(tmp_path.rglob("*")) == before
