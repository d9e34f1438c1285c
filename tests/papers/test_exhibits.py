"""The papers' tables and figures: complete, with commands that exist, and each quick one runs."""

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from calibrant.cli.flags import flag_of
from calibrant.data.files import load_predictions
from calibrant.losses.names import make_loss
from calibrant.papers.exhibits import all_exhibits, exhibits
from calibrant.papers.experiment import Job, experiment_names, load_experiment
from calibrant.papers.posthoc import run_posthoc
from calibrant.papers.printed import PAPERS, paper_figures
from calibrant.papers.runner import WORKERS, run_job
from calibrant.papers.training import configurations
from calibrant.plots.kinds import KINDS, RUN_KINDS, Request, draw, draw_runs
from calibrant.posthoc.names import method_named
from calibrant.training.config.toml import config_from_table, load_config
from calibrant.training.folder import load_rows
from calibrant.training.models import MODELS
from calibrant.training.run import train
from tests.conftest import at_length

ROOT = Path(__file__).parents[2]

# Figures and tables as the papers number them. What is in an appendix that is not at hand comes on top.
NUMBERS = {
    "smart": {"table": 14, "figure": 16},
    "seca": {"table": 7, "figure": 13},
    "selective_risk": {"table": 2, "figure": 3, "appendix table": 4, "appendix figure": 6},
    "adafocal": {"table": 2, "figure": 6},
    "refcal": {},
}

COMMANDS = sorted({line for _, each in all_exhibits() for line in (*each.quick, *each.full)})
BENCH = [line for line in COMMANDS if line.startswith("calibrant bench run ")]
TRAIN = [line for line in COMMANDS if line.startswith("calibrant train ")]
PLOT = [line for line in COMMANDS if line.startswith("calibrant plot ")]
BENCH_PLOT = [line for line in COMMANDS if line.startswith("calibrant bench plot ")]
QUICK = sorted({line for _, each in all_exhibits() for line in each.quick})
EXPERIMENTS = sorted({shlex.split(line)[3] for line in QUICK if line in BENCH})
DRAWN = [line for line in QUICK if line in PLOT]


def options(line: str) -> dict[str, list[str]]:
    """Return the words after each option of a command."""
    words = shlex.split(line)
    found: dict[str, list[str]] = {}
    for name, value in pairwise(words):
        if name.startswith("--"):
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_is_there_once(paper):
    names = [exhibit.name for exhibit in exhibits(paper)]
    assert len(names) == len(set(names))
    expected = {f"{kind} {number}" for kind, last in NUMBERS[paper].items() for number in range(1, last + 1)}
    assert expected <= set(names)
    extra = set(names) - expected
    assert all(name.startswith("appendix ") or paper == "refcal" for name in extra), extra


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_with_published_figures_has_its_commands(paper):
    def name(table: str) -> str:
        if table.startswith("appendix "):
            return table.replace("appendix", "appendix table")
        return f"table {table}" if table.isdigit() else table

    published = {name(figure.table) for figure in paper_figures(paper)}
    assert published <= {exhibit.name for exhibit in exhibits(paper)}


def test_every_command_is_one_of_four_and_quick_is_not_full():
    assert set(COMMANDS) == set(BENCH) | set(TRAIN) | set(PLOT) | set(BENCH_PLOT)
    for _, exhibit in all_exhibits():
        assert exhibit.shows
        assert exhibit.quick
        assert exhibit.full
        assert exhibit.quick != exhibit.full, exhibit.name
        assert not any("--preset full" in line for line in exhibit.quick)


@pytest.mark.parametrize("line", BENCH)
def test_every_experiment_exists_and_has_jobs_for_the_values_named(line):
    given = options(line)
    experiment = load_experiment(shlex.split(line)[3])
    preset = experiment.preset_named(given.get("--preset", ["quick"])[0])
    assert ("--data" in given) == bool(experiment.needs(preset)), line
    for word in given.get("--only", []):
        name, _, values = word.partition("=")
        for value in values.split(","):
            assert any(experiment.jobs(preset, seeds=1, only={name: [value]})), (line, value)


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_every_figure_has_a_command_that_draws_it(preset):
    for paper, exhibit in all_exhibits():
        lines = getattr(exhibit, preset)
        if "figure" in exhibit.name:
            assert any(line in PLOT or line in BENCH_PLOT for line in lines), (paper, exhibit.name)


def test_figures_of_rows_are_drawn_from_the_rows_of_the_command_before_and_redraw_their_figure():
    for paper, exhibit in all_exhibits():
        for preset, lines in (("quick", exhibit.quick), ("full", exhibit.full)):
            run = {f"bench/{shlex.split(line)[3]}-{preset}" for line in lines if line in BENCH}
            for line in set(lines) & set(BENCH_PLOT):
                folder = shlex.split(line)[3]
                assert folder in run, line
                name = folder.removeprefix("bench/").removesuffix(f"-{preset}")
                redrawn = {each for figure in load_experiment(name).figures for each in figure.redraws}
                assert f"{paper} {exhibit.name}" in redrawn, line


@pytest.mark.parametrize("name", experiment_names())
def test_every_figure_of_an_experiment_redraws_one_of_a_paper_that_names_its_command(name):
    known = {f"{paper} {exhibit.name}": exhibit for paper, exhibit in all_exhibits()}
    for figure in load_experiment(name).figures:
        assert figure.redraws
        for redrawn in figure.redraws:
            assert f"calibrant bench plot bench/{name}-quick --out figures" in known[redrawn].quick


@pytest.mark.parametrize("line", TRAIN)
def test_every_configuration_exists_and_takes_the_settings_named(line):
    words = shlex.split(line)
    file = ROOT / words[2] if words[2].endswith(".toml") else None
    config = load_config(file, options(line).get("--set", ()))
    assert make_loss(config.training.loss, n_classes=10, n_samples=10) is not None


@pytest.mark.parametrize("line", PLOT)
def test_every_figure_exists_and_takes_the_options_named(line):
    kind = shlex.split(line)[2]
    taken = set(map(flag_of, KINDS[kind].takes)) if kind in KINDS else set()
    assert set(options(line)) - {"--out"} <= taken
    assert kind in KINDS or kind in RUN_KINDS
    for names in options(line).get("--methods", ()):
        for name in names.split(","):
            method_named(name)


@pytest.mark.parametrize("name", sorted({shlex.split(line)[3] for line in BENCH}))
def test_every_job_of_the_experiments_can_be_read(name):
    """Losses, networks, methods and settings of all jobs exist, also of those that need a cluster."""
    experiment = load_experiment(name)
    for preset in ("quick", "full"):
        for job in experiment.jobs(preset, seeds=1):
            if WORKERS[job.worker] is run_posthoc:
                method_named(job.key["method"])
            elif job.worker == "training":
                for table in configurations(job.key, job.settings, 0, Path("data")):
                    config = config_from_table(table)
                    make_loss(config.training.loss, n_classes=10, n_samples=10)
                    assert config.model.name in MODELS


def tiny(job: Job) -> Job:
    """Return a job with one epoch of training, few samples and few draws."""
    settings: dict[str, Any] = dict(job.settings)
    changed: Mapping[str, Any] = {"draws": 40, "samples": 200, "epochs": [1, 2], "images": 20}
    settings |= {name: value for name, value in changed.items() if name in settings}
    if "tasks" in settings:
        settings["tasks"] = {name: _short(task) for name, task in settings["tasks"].items()}
        settings["recipes"] = {
            name: {**each, **({"encoder": {**each["encoder"], "epochs": 1}} if "encoder" in each else {})}
            for name, each in settings.get("recipes", {}).items()
        }
    return replace(job, settings=settings)


def _short(task: Mapping[str, Any]) -> dict[str, Any]:
    data = {**task["data"], "limit": 100}
    if "path" in data:  # a set that is not bundled: digits take its place
        data = {"name": "digits", "limit": 100, **({"imbalance": 0.1} if "imbalance" in data else {})}
    training = {**task["training"], "epochs": 1, "batch_size": 50, "augment": False}
    return {**task, "data": data, "model": {"name": "mlp", "options": {"hidden": [8]}}, "training": training}


@cache
def files_folder(folder: Path) -> Path:
    """Write a small file of predictions under every name that quick experiments read."""
    from calibrant.data.bundled import load_bundled
    from calibrant.data.files import save_predictions

    small = load_bundled("cifar10_test").take(list(range(500)))
    for name in ("cifar10_wide_resnet16_4", "cifar10_lenet5", "cifar100_wide_resnet16_4", "cifar100_lenet5"):
        save_predictions(small, folder / "predictions" / f"{name}.npz")
    return folder


# They train or fit for a second or more even in small.
LONG = {"smart_training", "lambda_delta", "indicators", "run_time", "refcal", "adafocal_bins"}


@pytest.mark.parametrize("name", at_length(EXPERIMENTS, set(EXPERIMENTS) - LONG))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_quick_experiment_runs(name, tmp_path):
    (tmp_path / "predictions").mkdir()
    first = next(iter(load_experiment(name).jobs("quick", seeds=1)))
    row = run_job(tiny(first), files_folder(tmp_path))
    assert row.records
    for record in row.records:
        assert any(value is not None for value in record.values.values())


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Train a small network on digits, as ``calibrant train`` does without a configuration."""
    folder = tmp_path_factory.mktemp("run")
    words = ["training.epochs=2", "data.limit=200", "data.foreign_classes=[8,9]", "training.loss=adafocal"]
    train(load_config(None, words), folder)
    return folder


@pytest.mark.parametrize("line", DRAWN)
def test_every_quick_figure_is_drawn(line, run_folder, tmp_path):
    # Here all runs are one, whichever loss a command names.
    words = shlex.split(re.sub(r"RUN[-\w]*", str(run_folder), line))
    kind, path, given = words[2], Path(words[3]), options(shlex.join(words))
    if kind in RUN_KINDS:
        runs = line[: line.index(" --out")].split()[3:]
        display = draw_runs(kind, {name: [load_rows(run_folder)] for name in runs})
    else:
        request = Request(
            load_predictions(path),
            validation=load_predictions(given["--val"][0]) if "--val" in given else None,
            foreign=load_predictions(given["--ood"][0], need_labels=False) if "--ood" in given else None,
            methods=tuple(given["--methods"][0].split(",")) if "--methods" in given else (),
            n_bins=int(given["--bins"][0]) if "--bins" in given else None,
        )
        display = draw(kind, request)
    display.save(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_the_file_has_nothing_but_the_papers():
    text = (ROOT / "src/calibrant/papers/printed/exhibits.toml").read_text(encoding="utf-8")
    assert tuple(tomllib.loads(text)) == PAPERS
