"""What an installation weighs, how long its import takes, and what works with each extra; writes a page.

    pip install uv
    python benchmarks/install.py

Everything is downloaded once; each extra is then installed from there into a clean environment of its own.
"""

import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "install.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# All that every installation had before there was a light core.
BEFORE = (
    *("jinja2", "matplotlib", "numpy", "pyarrow", "rich", "safetensors", "scikit-learn", "scipy", "torch"),
    *("typer", "typing-extensions", "vl-convert-python"),
)
USERS = ("tables", "plots", "report", "sklearn", "export", "mlflow", "bench", "train", "scale", "all")
RUNS = 6
SIZES = ("installation", "packages", "download", "installed", "download beside PyTorch", "beside PyTorch")

# What a person does, and the extra that it needs.
FEATURES = {
    "`evaluate`, `gate`, `apply`, `decide`, `sets`, `monitor` on `.npz`, `.csv`, `.jsonl`": (
        "",
        "calibrant evaluate answers.csv --confidence stated",
    ),
    "`calibrate`": ("", "calibrant calibrate answers.csv --confidence stated --methods platt --out honest"),
    "`demo`": ("", "calibrant demo --out demo"),
    "Parquet": ("tables", "calibrant evaluate answers.parquet"),
    "`plot`": ("plots", "calibrant plot reliability answers.csv --confidence stated --out figure.png"),
    "`report`": ("report", "calibrant report answers.csv --confidence stated"),
    "scikit-learn": (
        "sklearn",
        "python -c 'from calibrant.integrations.sklearn import CalibratedClassifier'",
    ),
    "ONNX": ("export", "calibrant export temperature.safetensors --classes 3 --out calibrator.onnx"),
    "`bench`": ("bench", "python -c 'import calibrant.papers.runner'"),
    "`train`": ("train", "python -c 'import calibrant.training'"),
    "MLflow": ("mlflow", "python -c 'import calibrant.integrations.mlflow'"),
    "Lightning": ("train", "python -c 'import calibrant.integrations.lightning'"),
    "Hugging Face": ("train", "python -c 'import calibrant.integrations.transformers'"),
    "torchmetrics": ("train", "python -c 'import calibrant.integrations.torchmetrics'"),
    "Ray": ("scale", "python -c 'from calibrant.streams.ray_cluster import import_ray; import_ray()'"),
}
MAKE_PARQUET = (
    "import calibrant; p = calibrant.Predictions(confidence=[0.9, 0.6, 0.7], correct=[1, 0, 1]);"
    "calibrant.save_predictions(p, 'answers.parquet');"
    "calibrant.posthoc.TemperatureScaling(2.0).save('temperature.safetensors')"
)


class Weight(NamedTuple):
    """What an installation consists of: packages, and megabytes to download and on disk."""

    packages: int
    download: float
    installed: float


def main() -> None:
    """Measure everything and write the page."""
    with TemporaryDirectory() as scratch:
        work = Path(scratch)
        wheels = download(work)
        sets = {"PyTorch alone": ["torch"], "before: every installation": BEFORE, "core": ["calibrant"]}
        sets |= {f"`{extra}`": [f"calibrant[{extra}]"] for extra in USERS}
        weights, places = {}, {}
        for title, wanted in sets.items():
            places[title] = install(wanted, wheels, work / f"environment-{len(places)}")
            weights[title] = weigh(wheels, places[title])
            print(title, weights[title], flush=True)
        times = import_times(places["core"])
        write_answers(work, places["`tables`"])
        ends = {
            title: {
                feature: run(words, places[title], work)
                for feature, (extra, words) in FEATURES.items()
                if title in ("core", f"`{extra}`")
            }
            for title in sets
            if title == "core" or (title.startswith("`") and title != "`all`")
        }
    PAGE.write_text(page(weights, times, ends), encoding="utf-8")
    print(PAGE)


def download(work: Path) -> Path:
    """Build the wheel of this tree and download all that its extras need."""
    wheels = work / "wheels"
    pip = [sys.executable, "-m", "pip"]
    quiet = ["--quiet", "--disable-pip-version-check"]
    check([*pip, "wheel", *quiet, "--no-deps", "--wheel-dir", wheels, ROOT])
    # Folders that pip looks into as well, such as one with the CPU build of PyTorch.
    links = [
        word for place in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", place)
    ]
    lock = ROOT / "locks" / "python-{}.{}.txt".format(*sys.version_info)
    constraints = [ROOT / "constraints.txt", *([lock] if lock.is_file() else [])]
    wanted, pins = work / "wanted.txt", work / "pins.txt"
    wanted.write_text("calibrant[all]\n", encoding="utf-8")
    limits = [word for file in constraints for word in ("--constraint", file)]
    compile_pins = [uv(), "pip", "compile", "--quiet", "--python", sys.executable, "--output-file", pins]
    check([*compile_pins, "--find-links", wheels, *links, *limits, wanted])
    check([*pip, "download", *quiet, "--no-deps", "--dest", wheels, "--find-links", wheels, "-r", pins])
    return wheels


def install(wanted: Sequence[str], wheels: Path, place: Path) -> Path:
    """Install packages from a folder of wheels into a clean environment."""
    check([uv(), "venv", "--quiet", "--python", sys.executable, place])
    # Files are shared between environments where the disk can do that; each is counted in full.
    offline = ["--no-index", "--find-links", wheels, "--no-config"]
    check([uv(), "pip", "install", "--quiet", "--python", place / "bin" / "python", *offline, *wanted])
    return place


def uv() -> str:
    """Return the path of uv."""
    if (found := shutil.which("uv")) is None:
        sys.exit("uv: expected it on the path, got none; install it with: pip install uv")
    return found


def weigh(wheels: Path, place: Path) -> Weight:
    """Return the size of the wheels of an installation, and of what they became on disk."""
    packages = next(place.glob("lib/python*/site-packages"))
    names = [folder.name.removesuffix(".dist-info") for folder in packages.glob("*.dist-info")]
    files = {normal(re.match(r"(.+?-[^-]+)-", file.name)[1]): file for file in wheels.glob("*.whl")}
    sources = {normal(file.name.removesuffix(".tar.gz")): file for file in wheels.glob("*.tar.gz")}
    bytes_down = sum((files | sources)[normal(name)].stat().st_size for name in names)
    bytes_here = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
    return Weight(len(names), bytes_down / 1e6, bytes_here / 1e6)


def normal(name: str) -> str:
    """Return the name and version of a distribution as they are compared."""
    return re.sub(r"[-_.]+", "-", name.partition("+")[0]).lower()


def import_times(place: Path) -> dict[str, list[float]]:
    """Import PyTorch, and predictions, in turn, each in a fresh process whose bytecode is cached."""
    statements = {"import torch": [], "from calibrant import Predictions": []}
    measure = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
    for turn in range(RUNS + 1):
        for statement, seconds in statements.items():
            done = check([place / "bin" / "python", "-c", measure.format(statement)])
            if turn:  # the first one writes the bytecode
                seconds.append(float(done))
    return statements


def write_answers(work: Path, place: Path) -> None:
    """Write small files of answers for the features."""
    rows = "".join(f"{confidence},{correct}\n" for confidence, correct in [(0.9, 1), (0.6, 0), (0.8, 1)] * 30)
    (work / "answers.csv").write_text(f"stated,correct\n{rows}", encoding="utf-8")
    check([place / "bin" / "python", "-c", MAKE_PARQUET], cwd=work)


def run(words: str, place: Path, work: Path) -> str:
    """Return how a command ends: an empty text if it works, else its last line."""
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    done = subprocess.run(
        ["bash", "-c", words],
        cwd=work,
        env=environment | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stderr.strip().splitlines()
    if done.returncode:
        return re.sub(r"^calibrant(\.errors\.MissingPackageError)?: ", "", lines[-1])
    note = [line for line in lines if "note:" in line and "is not written" in line]
    return re.sub(r"^calibrant: note: ", "works; ", note[0]) if note else ""


def check(words: Sequence[object], cwd: Path | None = None) -> str:
    """Run a command and return what it prints; end with its errors if it fails."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
    return done.stdout


def page(
    weights: Mapping[str, Weight], times: Mapping[str, list[float]], ends: Mapping[str, Mapping[str, str]]
) -> str:
    """Return the page."""
    alone = weights["PyTorch alone"]
    sizes = [
        (
            title,
            str(each.packages),
            f"{each.download:,.0f} MB",
            f"{each.installed:,.0f} MB",
            f"{each.download - alone.download:+,.0f} MB",
            f"{each.installed - alone.installed:+,.0f} MB",
        )
        for title, each in weights.items()
    ]
    imports = [
        (f"`{statement}`", f"{statistics.median(seconds):.2f} s", f"{min(seconds):.2f} s")
        for statement, seconds in times.items()
    ]
    torch, ours = times.values()
    features = [
        (feature, f"`{extra}`" if extra else "core", "works" if not (end := ends["core"][feature]) else end)
        for feature, (extra, _) in FEATURES.items()
    ]
    works = [
        (title, ", ".join(feature for feature, end in found.items() if not end or end.startswith("works;")))
        for title, found in ends.items()
        if title != "core"
    ]
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return f"""# What an installation weighs

How large is Calibrant beside PyTorch, how long does its import take, and what does each extra add? Made by
`python benchmarks/install.py` ({system}, the CPU build of PyTorch in `constraints.txt`). Every line is a
clean environment; MB are millions of bytes; installed sizes are without bytecode.

{prose_table(SIZES, sizes)}
## Import

Medians of {RUNS} fresh processes each, in turn, with cached bytecode, in the environment of the core. The
ratio of the medians is **{statistics.median(ours) / statistics.median(torch):.2f}**, that of the
fastest runs {min(ours) / min(torch):.2f}.

{prose_table(["statement", "median", "fastest"], imports)}
## What the core does, and the sentence for what it lacks

{prose_table(["feature", "extra", "in the core alone"], features)}
## What works with each extra

The features of an extra, run in an environment with this extra alone.

{prose_table(["installation", "works"], works)}"""


def prose_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of words."""
    shown = [heads, ["---"] * len(heads), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in shown)


if __name__ == "__main__":
    main()
