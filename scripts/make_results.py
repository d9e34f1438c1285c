"""Write docs/results/benchmark.md from the measured rows.

    python scripts/make_results.py                     # from docs/results/rows/NAME/
    python scripts/make_results.py --take DIR ...      # first copy the rows of these folders there

Every table of the page comes from rows that ``calibrant bench run`` wrote; no number is typed by hand.
"""

import argparse
import shutil
from pathlib import Path

from calibrant.bench.experiment import Experiment
from calibrant.bench.rows import ROWS, Row, finished_rows, saved_experiment
from calibrant.bench.table import make_tables
from calibrant.bench.writers import to_markdown

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
PAGE, FOLDER = RESULTS / "benchmark.md", RESULTS / "rows"

_HEAD = """# Benchmark results

What did each experiment measure?

```sh
calibrant bench run posthoc --preset quick    # the command above each table runs its experiment again
```

Results of the quick presets on two cores. `python scripts/make_results.py` makes this page from the rows in
[rows/](rows/), which `calibrant bench run` wrote. **Bold** is the best of a column, *italics* are not
significantly worse over the seeds. Columns named after a paper contain its own figures, for its networks and
data. Claim by claim: [reproduces.md](reproduces.md).
"""


# Alternative texts of the figures that scripts/make_result_figures.py draws.
_FIGURES = {
    "losses": "ECE of every loss on CLINC150 uncalibrated, after temperature scaling and after SMART",
    "validation_size": "ECE of post-hoc methods on CIFAR-10 against the number of validation samples",
}


def page(folder: Path = FOLDER) -> str:
    """Return the page of all experiments in a folder."""
    sections = [_section(saved_experiment(each), finished_rows(each)) for each in sorted(folder.iterdir())]
    return "\n".join([_HEAD, *sections])


def _section(experiment: Experiment, rows: list[Row]) -> str:
    preset = rows[0].preset
    needs = " --data DATA" if experiment.needs("quick" if preset == "quick" else "full") else ""
    command = f"calibrant bench run {experiment.name} --preset {preset}{needs}"
    seeds = len({row.seed for row in rows})
    minutes = sum(row.seconds for row in rows) / 60
    lines = [
        f"## {experiment.name}: {_inside_sentence(experiment.title)}\n",
        f"Claim: {experiment.claim}\n",
        f"`{command}`: {len(rows)} jobs, {seeds} seeds, {minutes:.0f} minutes of one core among others.\n",
    ]
    for table in make_tables(experiment, rows):
        if table.layout.title:
            lines.append(f"**{table.layout.title}**\n")
        lines.append(to_markdown(table))
    if experiment.name in _FIGURES:
        lines.append(f"![{_FIGURES[experiment.name]}](figures/{experiment.name}.svg)\n")
    return "\n".join(lines)


def _inside_sentence(title: str) -> str:
    """Return a title in lower case, unless its first word is a name with further capitals, as in AdaFocal."""
    first = title.split()[0]
    return title if first[1:] != first[1:].lower() else title[0].lower() + title[1:]


def take(source: Path) -> None:
    """Copy the rows of an experiment."""
    target = FOLDER / saved_experiment(source).name
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / ROWS, target / ROWS)
    for path in source.glob("*.toml"):
        shutil.copy(path, target / path.name)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--take", type=Path, nargs="*", default=[], help="folders that bench run wrote")
    for source in parser.parse_args().take:
        take(source)
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
