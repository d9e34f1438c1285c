"""Run the commands that the reference shows, and keep what they print in docs/reference/outputs.

    python -m scripts.website.outputs               # all; the demo and a training take a while
    python -m scripts.website.outputs evaluate      # some
    python -m scripts.website.outputs --check       # compare the quick ones with what is kept

All run in one temporary folder with the bundled predictions as val.npz, test.npz and noisy.npz, and
some digits as pictures in photos/.
"""

import argparse
import io
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS = ROOT / "docs" / "reference" / "outputs"
COLUMNS = "100"

#: What the page of each command shows, in an order in which each finds what it needs.
SHOWN = {
    "evaluate": ["evaluate test.npz", "evaluate test.npz --measures ece,smece,augrc --intervals"],
    "gate": ["gate test.npz --require ece<0.15 --require nll<=0.9"],
    "calibrate": ["calibrate val.npz --test test.npz --methods temperature,spline,beta --out calibrated"],
    "apply": ["apply calibrated/calibrator.safetensors test.npz --out test_calibrated.npz"],
    "estimate": ["estimate val.npz noisy.npz"],
    "methods": ["methods temperature"],
    "measures": ["measures ece"],
    "losses": ["losses focal"],
    "report": ["report test.npz --val val.npz --methods temperature,spline --out report.html"],
    "plot": ["plot reliability test.npz --out reliability.svg"],
    "decide": ["decide val.npz --risk 0.05 --out rule.safetensors"],
    "cascade": ["cascade noisy.npz test.npz --cost 1,20 --risk 0.2 --out cascade.safetensors"],
    "sets": ["sets val.npz --test test.npz --out sets.safetensors"],
    "monitor": ["monitor val.npz test.npz noisy.npz --state model.json"],
    "bench": ["bench list"],
    "export": ["export calibrated/calibrator.safetensors --out calibrator.onnx"],
    "train": ["train --set training.epochs=10 --out runs/digits"],
    "predict": ["predict photos --network runs/digits --out photos.npz"],
    "demo": ["demo"],
}
#: Not run again by the tests, which run these commands elsewhere.
SLOW = ("estimate", "report", "export", "train", "predict", "demo")
# What makes a calibrator or a network for the commands that need one, if it is not among those that are run.
_BEFORE = {"apply": "calibrate", "export": "calibrate", "predict": "train"}

# Seconds differ from run to run.
_SECONDS = re.compile(r"\d+(\.\d+)? ?s\b|\d+:\d\d(:\d\d)?")


def main() -> None:
    """Write or check the outputs that the command line names."""
    parser = argparse.ArgumentParser(description="Keep or check what the commands print.")
    parser.add_argument("commands", nargs="*", help="commands; all of them if none is named")
    parser.add_argument("--check", action="store_true", help="write nothing; name outputs that differ")
    given = parser.parse_args()
    wanted = given.commands or [name for name in SHOWN if not given.check or name not in SLOW]
    if given.check:
        stale = [name for name, text in printed(wanted) if not is_same(text, kept(name))]
        sys.exit(f"different from what is kept: {', '.join(stale)}" if stale else 0)
    OUTPUTS.mkdir(parents=True, exist_ok=True)
    for name, text in printed(wanted):
        (OUTPUTS / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"{name}: {len(text.splitlines())} lines")


def kept(name: str) -> str:
    """Return what is kept of a command; empty if nothing is."""
    file = OUTPUTS / f"{name}.txt"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def printed(commands: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Run commands and yield the name of each with what a terminal would show."""
    wanted = set(commands)
    needed = wanted | {before for name, before in _BEFORE.items() if name in wanted}
    with _folder():
        for name, lines in SHOWN.items():
            if name in needed:
                text = "\n".join(_session(line) for line in lines)
                if name in wanted:
                    yield name, text


def is_same(text: str, other: str) -> bool:
    """Whether two outputs are equal but for seconds, where a table or a sentence shows them.

    Example:
        >>> is_same("done in 3.1 s", "done in 4.0 s"), is_same("ECE 0.1", "ECE 0.2")
        (True, False)
    """
    return _without_seconds(text) == _without_seconds(other)


def _without_seconds(text: str) -> list[list[str]]:
    rows = []
    timed = False
    for line in text.splitlines():
        words = _SECONDS.sub("-", line).split()
        timed = "fit" in words or (timed and bool(words))
        # In a table of methods the seconds stand before the number of parameters.
        rows.append([*words[:-2], *words[-1:]] if timed else words)
    return rows


def _session(line: str) -> str:
    """Run one command line as a shell would, and return it with what it prints."""
    from calibrant.cli import main as run

    stdout = io.StringIO()
    arguments = sys.argv
    sys.argv = ["calibrant", *line.split()]
    try:
        with redirect_stdout(stdout), redirect_stderr(io.StringIO()):
            run()
    except SystemExit as stopped:
        code = stopped.code or 0
    finally:
        sys.argv = arguments
    lines = [each.rstrip() for each in stdout.getvalue().strip("\n").splitlines()]
    ending = [] if code == 0 else [f"(exit code {code})"]
    return "\n".join([f"$ calibrant {line}", *lines, *ending, ""])


@contextmanager
def _folder() -> Iterator[None]:
    """Make a temporary folder with the bundled predictions the working directory."""
    bundled = ROOT / "src" / "calibrant" / "data" / "bundled"
    before, columns = Path.cwd(), os.environ.get("COLUMNS")
    with TemporaryDirectory() as folder:
        for name, file in (("val", "cifar10_val"), ("test", "cifar10_test"), ("noisy", "cifar10_test_noise")):
            shutil.copy(bundled / f"{file}.npz", Path(folder) / f"{name}.npz")
        _draw_digits(Path(folder) / "photos")
        os.chdir(folder)
        os.environ["COLUMNS"] = COLUMNS
        try:
            yield
        finally:
            os.chdir(before)
            if columns is None:
                del os.environ["COLUMNS"]
            else:
                os.environ["COLUMNS"] = columns


def _draw_digits(folder: Path) -> None:
    """Write some digits as pictures, each in the folder of its class."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:60], digits.target[:60], strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * (255 / 16)).astype("uint8")).save(place / f"{number}.png")


if __name__ == "__main__":
    main()
