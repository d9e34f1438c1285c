"""Write docs/results/benchmark.md and docs/results/llm.md from the measured rows.

    python -m scripts.make_results                     # from docs/results/rows/NAME/
    python -m scripts.make_results --take DIR ...      # first copy the rows of these folders there

Every table of the pages comes from rows that ``calibrant bench run`` wrote; no number is typed by hand.
"""

import argparse
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from scripts.llm_page import RIVAL, Honesty, honesty_page, read_honesty

from calibrant.papers.arena_real import CALIBRANT
from calibrant.papers.experiment import Experiment
from calibrant.papers.llm import CALIBRANT_BY_GROUP, COMBINED, UNCALIBRATED
from calibrant.papers.rows import LEFT_OUT, ROWS, Row, files_left_out, finished_rows, saved_experiment
from calibrant.papers.table import make_tables
from calibrant.papers.writers import markdown_table

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
PAGE, FOLDER = RESULTS / "benchmark.md", RESULTS / "rows"
LLM_PAGE, LLM = RESULTS / "llm.md", "llm"

_HEAD = """# Benchmark results

What did each experiment measure?

```sh
calibrant bench run posthoc --preset quick    # the command above each table runs its experiment again
```

Results of the quick presets on two cores. `python -m scripts.make_results` makes this page from the rows in
[rows/](rows/), which `calibrant bench run` wrote. **Bold** is the best of a column, *italics* are not
significantly worse over the seeds. Columns named after a paper contain its own figures, for its networks and
data. Claim by claim: [reproduces.md](reproduces.md).
"""


# Alternative texts of the figures that scripts/make_result_figures.py draws.
_FIGURES = {
    "losses": "ECE of every loss on CLINC150 uncalibrated, after temperature scaling and after SMART",
    "validation_size": "ECE of post-hoc methods on CIFAR-10 against the number of validation samples",
}


_MEANS = ("mean_confidence", "accuracy")

_LLM_HEAD = """# How honest are language models?

Is a language model right as often as it says, and what repairs its confidence?

```sh
calibrant bench run llm --data DIR     # the tables below and the figure; DIR has llm_mmlu_pro/answers.parquet
calibrant bench run llm --data MINE    # your own models; MINE has answers.parquet
```

![Mean stated confidence against the share of right answers for 42 language models: all are overconfident, \
and 1,000 answers bring each close to the diagonal](figures/llm.svg)

Each dot is a model: what it states on average, and how often it is right. Arrows lead to the mean confidence
after repair; the numbers are calibration errors (ECE). The figure as [PNG](figures/llm.png).

The data: 476,009 answers of 42 models to multiple-choice questions of MMLU-Pro in 14 subjects, collected by
[Linwei94/LLM-Calibration-Study](https://github.com/Linwei94/LLM-Calibration-Study) (MIT). `stated` is the
number that the model says, `logprob` comes from its token probabilities, `wording` from how it phrases the
answer. `python -m scripts.make_results` makes this page from the rows in [rows/llm](rows/llm/), which
`calibrant bench run` wrote, and `python -m scripts.make_result_figures` the figure.
"""


def page(folder: Path = FOLDER) -> str:
    """Return the page of all experiments in a folder, but those with a page of their own."""
    folders = [each for each in sorted(folder.iterdir()) if each.name != LLM]
    sections = [_section(saved_experiment(each), finished_rows(each)) for each in folders]
    return "\n".join([_HEAD, *sections])


def llm_page(folder: Path = FOLDER / LLM) -> str:
    """Return the page of language models: what was asked, what came out, and all tables."""
    rows = finished_rows(folder)
    heads = ["the default, mean over models", "asked", "measured", "reached"]
    asked = markdown_table(heads, goals(read_honesty(rows)))
    minutes = sum(row.seconds for row in rows) / 60
    sections = [
        findings(read_honesty(rows)),
        f"## What was asked, and what came out\n\n{asked}",
        f"`calibrant bench run llm`: {len(rows)} jobs, {minutes:.0f} minutes of one core among others.\n",
        honesty_page(rows, left_out=files_left_out(folder)),
    ]
    return "\n".join([_LLM_HEAD, *sections])


def findings(results: Honesty) -> str:
    """Return what the rows of language models show, in a few sentences."""
    models = results.models("stated", 1000)
    own = {model: results.of(model, "stated", 1000, UNCALIBRATED) for model in models}
    over = sum(each["mean_confidence"] > each["accuracy"] for each in own.values())
    states, right = (_share(fmean(each[name] for each in own.values())) for name in _MEANS)
    best, worst = (choice(models, key=lambda model: own[model]["ece"]) for choice in (min, max))
    ece = {name: 100 * results.mean("ece", "stated", 1000, name) for name in results.methods("stated")}
    single = min((name for name in ece if not name.startswith(CALIBRANT)), key=lambda name: ece[name])
    by_group = {
        size: _share(results.share_better("nll", "stated", size, CALIBRANT_BY_GROUP, CALIBRANT))
        for size in results.sizes
    }
    combined = {size: _combined_wins(results, size) for size in results.sizes}
    pays = {size: _share(share) + ("" if share > 0.5 else ", too few") for size, share in combined.items()}
    return f"""**What it shows.**

- **{over} of {len(models)} models are overconfident**: they state {states} on average, and {right} of their
  answers are right. The most honest one is {best} (ECE {100 * own[best]["ece"]:.1f} %), the least
  honest one {worst} ({100 * own[worst]["ece"]:.1f} %).
- **1,000 answers repair them**: the ECE falls from {ece[UNCALIBRATED]:.1f} to {ece[CALIBRANT]:.1f} %. One
  temperature leaves {ece["temperature"]:.1f} %, Platt scaling {ece[RIVAL]:.1f} %. The smallest ECE of a
  single method is that of `{single}` ({ece[single]:.1f} %); the default is chosen by NLL.
- **A map for each subject** has a smaller NLL for this share of the models:
  {_by_size(by_group)}.
- **Combining all confidences** has a smaller Brier score than the best single one for this share of the
  models: {_by_size(pays)}.

Each model's answers were split once. Which methods are mixed by default, and what their mixture is drawn back
to, was chosen on these very models, so small differences prove nothing; try it on your own.
"""


def goals(results: Honesty) -> Iterator[list[str]]:
    """Yield what the defaults should reach on these answers, with what was measured and whether it does."""
    for confidence, limit in (("stated", 3.0), ("logprob", 2.5)):
        ece = 100 * results.mean("ece", confidence, 1000, CALIBRANT)
        what = f"{confidence}: ECE, fitted on 1,000 answers"
        yield [what, f"at most {limit} %", f"{ece:.2f} %", _reached(ece <= limit)]
    for confidence in ("stated", "logprob"):
        nll, rival = (results.mean("nll", confidence, 1000, name) for name in (CALIBRANT, RIVAL))
        what = f"{confidence}: NLL, fitted on 1,000 answers"
        yield [what, f"at most Platt's, {rival:.4f}", f"{nll:.4f}", _reached(nll <= rival)]
    for confidence in ("stated", "logprob"):
        methods = (CALIBRANT, CALIBRANT_BY_GROUP)
        one, own = (100 * results.mean("group_ece", confidence, 3000, name) for name in methods)
        fall = 100 * (1 - own / one)
        what = f"{confidence}: ECE within subjects with a map for each, fitted on 3,000 answers"
        measured = f"{fall:.0f} % lower: {own:.2f} %"
        yield [what, f"25 % lower than with one map, {one:.2f} %", measured, _reached(fall >= 25)]
    for size in (1000, 3000):
        wins = 100 * _combined_wins(results, size)
        what = f"combined: Brier score below that of the best single confidence, fitted on {size:,} answers"
        yield [what, "at least 80 % of the models", f"{wins:.0f} %", _reached(wins >= 80)]


def _combined_wins(results: Honesty, size: int) -> float:
    """Return the share of models for which all confidences together beat the best one by Brier score."""
    return fmean(
        results.of(model, COMBINED, size, CALIBRANT)["complete_brier"]
        < results.best_single("complete_brier", model, size)
        for model in results.models(COMBINED, size)
    )


def _by_size(texts: Mapping[int, str]) -> str:
    return "; ".join(f"with {size:,} answers {text}" for size, text in texts.items())


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"


def _reached(met: bool) -> str:
    return "yes" if met else "**no**"


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
        lines.append(table.to_table().to_markdown())
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
    for path in (*source.glob("*.toml"), *source.glob(LEFT_OUT)):
        shutil.copy(path, target / path.name)


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--take", type=Path, nargs="*", default=[], help="folders that bench run wrote")
    for source in parser.parse_args().take:
        take(source)
    for path, text in ((PAGE, page()), (LLM_PAGE, llm_page())):
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
