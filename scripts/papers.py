"""Write docs/papers.md from scripts/papers.csv, after checking that everything it names exists.

    python scripts/papers.py            # check and write the page
    python scripts/papers.py --check    # only check, and fail if the page differs

Each line of the catalogue is an item of a paper. Its ``where`` has references, separated by ``;``:

    calibrant.module:name               an object; ``name == value`` also checks its value
    call calibrant.module:name(a=1)     an option of a function or class, with its default value
    method NAME, loss NAME              a post-hoc method or training loss, with options
    measure, model, data, corruption    a name of these catalogues
    experiment NAME seeds=5             a benchmark, and the seeds of its full preset
    config FILE key=value               a setting of a configuration in configs/
    test FILE::NAME                     a test
"""

import argparse
import ast
import csv
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.losses.names import make_loss
from calibrant.metrics.names import MEASURES
from calibrant.papers.experiment import load_experiment
from calibrant.posthoc.names import method_named
from calibrant.training.config.toml import config_to_table, load_config
from calibrant.training.datasets.corruptions import CORRUPTIONS
from calibrant.training.datasets.load import DATASETS
from calibrant.training.models import MODELS

ROOT = Path(__file__).resolve().parent.parent
CATALOGUE = ROOT / "scripts" / "papers.csv"
PAGE = ROOT / "docs" / "papers.md"

STATUSES = ("exact", "selectable", "differs", "not here")

_PAPERS = {
    "smart": "SMART: sample margin-aware recalibration of temperature",
    "seca": "SECA: self-guided model calibration",
    "selective_risk": "Selective risk (AU): revisiting reweighted risk for calibration",
    "adafocal": "AdaFocal: calibration-aware adaptive focal loss",
    "refcal": "RefCal: refinement and calibration",
}
_KINDS = {
    "equation": "Equations, theorems and definitions",
    "algorithm": "Algorithms and procedures",
    "hyper-parameter": "Hyper-parameters and settings of training",
    "baseline": "Baselines",
    "measure": "Measures",
    "network": "Networks",
    "data set": "Data sets",
}

_HEAD = """# The papers, item by item

Is a paper's system in Calibrant as it is printed, and where?

```sh
python scripts/papers.py            # checks every reference below and writes this page
calibrant bench list --papers       # the commands that make each table and figure
```

Every equation, algorithm, hyper-parameter, baseline, measure, network and data set of the five papers.
*Exact*: it is there as printed, under the name given. *Selectable*: our default differs, the paper leaves
something open, or there are several readings, and the name or option given is the paper's. *Differs*: ours is
not what is printed, and the remark says how. *Not here*: and why. The page is made from
`scripts/papers.csv`; the script imports every object, makes every loss and method, and compares every
setting with its configuration, so nothing on this page can be a name that does not exist.
"""


@dataclass(frozen=True)
class Item:
    """An item of a paper: what it is, whether it is here as printed, where, and what has to be known."""

    paper: str
    kind: str
    item: str
    status: str
    where: str
    remark: str

    @property
    def references(self) -> list[str]:
        """The references, one by one."""
        return [each.strip() for each in self.where.split(";") if each.strip()]


def items() -> list[Item]:
    """Read the catalogue."""
    with CATALOGUE.open(encoding="utf-8", newline="") as file:
        return [Item(**row) for row in csv.DictReader(file)]


def problems(item: Item) -> list[str]:
    """Return what is wrong with an item; nothing if all its references exist."""
    found = []
    if item.paper not in _PAPERS or item.kind not in _KINDS or item.status not in STATUSES:
        found.append("expected a known paper, kind and status")
    if item.status == "not here":
        found += [] if item.remark else ["expected the reason"]
    elif not item.references:
        found.append("expected a reference")
    if item.status in ("selectable", "differs") and not item.remark:
        found.append("expected what differs")
    for reference in item.references:
        try:
            check(reference)
        except Exception as error:  # whatever a wrong reference raises belongs to the message
            found.append(f"{reference}: {error}")
    return [f"{item.paper}, {item.item}: {each}" for each in found]


def check(reference: str) -> None:
    """Raise an error if a reference names something that does not exist or has another value."""
    kind, _, rest = reference.partition(" ")
    if kind in _CHECKS:
        _CHECKS[kind](rest)
        return
    name, sign, value = reference.partition(" == ")
    found = _object(name)
    if sign and found != ast.literal_eval(value):
        raise ValueError(f"expected {value}, got {found!r}")


def _object(name: str) -> Any:  # noqa: ANN401  # any object
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _call(text: str) -> None:
    name, _, options = text.removesuffix(")").partition("(")
    known = inspect.signature(_object(name)).parameters
    for keyword in ast.parse(f"f({options})", mode="eval").body.keywords:  # type: ignore[attr-defined]  # a call
        if keyword.arg not in known:
            raise ValueError(f"expected options among {', '.join(known)}, got {keyword.arg!r}")
        default = known[keyword.arg].default
        if default != ast.literal_eval(keyword.value):
            raise ValueError(f"{keyword.arg}: expected {ast.unparse(keyword.value)}, got {default!r}")


def _loss(text: str) -> None:
    make_loss(text, n_classes=10, n_samples=10)


def _config(text: str) -> None:
    file, _, setting = text.partition(" ")
    found: Any = config_to_table(load_config(ROOT / "configs" / file))
    if not setting:
        return
    key, _, value = setting.partition("=")
    for part in key.split("."):
        found = found[part]
    found = list(found) if isinstance(found, tuple) else found
    if str(found) != value:
        raise ValueError(f"{key}: expected {value}, got {found!r}")


def _experiment(text: str) -> None:
    name, _, seeds = text.partition(" seeds=")
    found = load_experiment(name).seeds("full")
    if seeds and found != int(seeds):
        raise ValueError(f"expected {seeds} seeds, got {found}")


def _test(text: str) -> None:
    file, _, name = text.partition("::")
    if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8"):
        raise ValueError(f"expected a test of this name in {file}")


def _among(known: Mapping[str, object]) -> Callable[[str], None]:
    def check_name(name: str) -> None:
        if name not in known:
            raise ValueError(f"expected one of {', '.join(known)}")

    return check_name


_CHECKS: Mapping[str, Callable[[str], object]] = {
    "call": _call,
    "method": method_named,
    "loss": _loss,
    "measure": _among(MEASURES),
    "model": _among(MODELS),
    "data": _among(DATASETS),
    "corruption": _among(CORRUPTIONS),
    "experiment": _experiment,
    "config": _config,
    "test": _test,
}


def page() -> str:
    """Return the page."""
    every = items()
    count = {status: sum(item.status == status for item in every) for status in STATUSES}
    lines = [
        _HEAD,
        f"{len(every)} items: {', '.join(f'{count[status]} {status}' for status in STATUSES)}.\n",
    ]
    for paper, title in _PAPERS.items():
        lines.append(f"## {title}\n")
        for kind, heading in _KINDS.items():
            own = [item for item in every if item.paper == paper and item.kind == kind]
            if own:
                lines += [f"### {heading}\n", "| item | | where | remark |", "|---|---|---|---|"]
                lines += [_line(item) for item in own]
                lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _line(item: Item) -> str:
    where = ", ".join(f"`{each}`" for each in item.references)
    return f"| {item.item} | {item.status} | {where} | {item.remark} |".replace("  ", " ")


def main() -> None:
    """Check the catalogue and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only check; fail if the page differs")
    wrong = [problem for item in items() for problem in problems(item)]
    text = page()
    if parser.parse_args().check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            wrong.append(f"{PAGE}: expected the page of the catalogue; run scripts/papers.py")
    elif not wrong:
        PAGE.write_text(text, encoding="utf-8")
        print(PAGE)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
