"""Compare every number that two commits print for the bundled predictions.

Runs ``evaluate``, ``calibrate``, ``decide``, ``sets`` and ``bench`` of both commits, each from a clean copy
of its files, and compares their JSON. Times are left out. Ends with code 1 if a number or a key differs.

    python scripts/compare_numbers.py main~20 main --jobs 2
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

TOLERANCE = 1e-12
TIMES = ("seconds", "date", "calibrant", "commit")
# The experiments on the bundled predictions, without --data: four minutes of one core for each commit.
EXPERIMENTS = (
    "posthoc",
    "indicators",
    "objectives",
    "lambda_delta",
    "nll_training",
    "validation_size",
    "corruptions",
    "theorem31",
    "figure2",
    "nll_vs_calibration",
)


def main() -> int:
    """Compare two commits and print each difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", help="a commit")
    parser.add_argument("--jobs", type=int, default=1, help="commits that run at the same time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        commits = (arguments.before, arguments.after)
        places = [Path(folder, side) for side in ("before", "after")]
        before, after = pool.map(numbers_of, commits, places)
    differences = [
        f"{key}: {before.get(key, 'missing')} -> {after.get(key, 'missing')}"
        for key in sorted(before.keys() | after.keys())
        if not same(before.get(key), after.get(key))
    ]
    print("\n".join(differences))
    compared = f"{len(before):,} values of {arguments.before} and {len(after):,} of {arguments.after}"
    print(f"{compared}: {len(differences):,} differ by more than {TOLERANCE:g}")
    return 1 if differences else 0


def numbers_of(commit: str, place: Path) -> dict[str, object]:
    """Return every value that the commands of a commit print, by command and key."""
    packed = subprocess.run(["git", "archive", commit], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(place, filter="data")
    data = place / "src/calibrant/data/bundled"
    val, test, noise = (str(data / f"cifar10_{name}.npz") for name in ("val", "test", "test_noise"))
    commands = {
        "evaluate all": ["evaluate", test, "--measures", "all"],
        "evaluate core": ["evaluate", test, "--intervals"],
        "evaluate parts": ["evaluate", test, "--per-class", "--per-margin", "5", "--ood", noise],
        "evaluate compare": ["evaluate", test, "--compare", noise],
        "calibrate": ["calibrate", val, "--test", test, "--methods", "all"],
        "calibrate out of fold": ["calibrate", val],
        "decide": ["decide", val, "--risk", "0.1"],
        "sets": ["sets", val, "--alpha", "0.1"],
    }
    values: dict[str, object] = {}
    for name, command in commands.items():
        printed = json.loads(calibrant(place, *command, "--json"))
        values |= {f"{name}: {key}": value for key, value in leaves(printed)}
    for name in EXPERIMENTS:
        out = place / "bench" / name
        calibrant(place, "bench", "run", name, "--seeds", "1", "--out", str(out))
        rows = [json.loads(line) for path in out.glob("*.jsonl") for line in path.read_text().splitlines()]
        for row in rows:
            job = json.dumps(row.get("key", {}), sort_keys=True)
            found = leaves(row.get("records", row))
            values |= {f"bench {name}, {job}, seed {row.get('seed')}: {key}": value for key, value in found}
    return values


def calibrant(place: Path, *arguments: str) -> str:
    """Run a command of the commit in a folder and return what it prints."""
    # One thread: the order of sums, and so the last digits, depends on their number.
    environment = os.environ | {"PYTHONPATH": str(place / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "calibrant", *arguments]
    result = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"calibrant {' '.join(arguments)} failed: {result.stderr}")
    return result.stdout


def leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield the numbers and texts in nested JSON, each with its path; times are left out."""
    if isinstance(value, dict):
        for name, each in value.items():
            if not any(word in name for word in TIMES):
                yield from leaves(each, f"{key}.{name}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(each, f"{key}[{index}]")
    else:
        yield key, value


def same(before: object, after: object) -> bool:
    """Return whether two values are equal; numbers may differ by the tolerance."""
    if isinstance(before, float) and isinstance(after, float):
        return math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or before != before != after
    return before == after


if __name__ == "__main__":
    sys.exit(main())
