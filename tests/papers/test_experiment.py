"""Experiments as files."""

from dataclasses import replace

import pytest

from calibrant.errors import InputError
from calibrant.papers.experiment import experiment_names, load_experiment, parse_experiment
from calibrant.papers.inputs import inputs_digest
from calibrant.papers.printed import paper_figures
from calibrant.papers.runner import WORKERS
from tests.papers.small import TEXT, small_experiment


def test_jobs_are_all_points_of_the_grid_with_every_seed():
    jobs = list(small_experiment().jobs("quick"))
    assert [(job.key["method"], job.seed) for job in jobs] == [
        (method, seed) for seed in (0, 1) for method in ("uncalibrated", "temperature", "smart")
    ]


def test_the_number_of_seeds_can_be_chosen():
    assert {job.seed for job in small_experiment().jobs("quick", seeds=4)} == {0, 1, 2, 3}


def test_settings_of_the_preset_come_on_top_of_those_shared():
    text = TEXT + "[quick.settings]\nb = 2\n[shared]\na = 1\nb = 1\n"
    job = next(parse_experiment("x", text).jobs("quick"))
    assert job.settings == {"a": 1, "b": 2}


def test_a_preset_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="preset: expected one of quick for small, got 'full'"):
        list(small_experiment().jobs("full"))


def test_several_grids_are_run_one_after_another():
    grids = """
[[quick.grid]]
source = ["digits"]
method = ["smart"]
[[quick.grid]]
source = ["cifar10"]
method = ["temperature", "smart"]
"""
    jobs = parse_experiment("x", TEXT.partition("[quick.grid]")[0] + grids).jobs("quick", seeds=1)
    assert [tuple(job.key.values()) for job in jobs] == [
        ("digits", "smart"), ("cifar10", "temperature"), ("cifar10", "smart"),
    ]  # fmt: skip


def test_a_grid_may_have_fewer_seeds_than_the_others():
    grids = """
[[quick.grid]]
source = ["digits"]
[[quick.grid]]
source = ["cifar10"]
seeds = 1
"""
    experiment = parse_experiment("x", TEXT.partition("[quick.grid]")[0] + grids)
    both = [(job.key["source"], job.seed) for job in experiment.jobs("quick")]
    assert both.count(("cifar10", 0)) == 1
    assert {seed for source, seed in both if source == "cifar10"} == {0}
    assert len({seed for source, seed in both if source == "digits"}) == experiment.seeds("quick") > 1
    asked = {(job.key["source"], job.seed) for job in experiment.jobs("quick", seeds=2)}
    assert asked == {("digits", 0), ("digits", 1), ("cifar10", 0), ("cifar10", 1)}


def test_only_some_points_of_the_grid():
    def methods(**only):
        return [job.key["method"] for job in small_experiment().jobs("quick", seeds=1, only=only)]

    assert methods(method=["smart", "uncal*"]) == ["uncalibrated", "smart"]
    assert methods(method=["smart"], source=["cifar10"]) == []
    assert methods(task=["digits"]) == []


def test_only_some_seeds():
    jobs = list(small_experiment().jobs("quick", seeds=4, only={"seed": ["2", "3"]}))
    assert {job.seed for job in jobs} == {2, 3}
    assert len(jobs) == 2 * len(list(small_experiment().jobs("quick", seeds=1)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("title = ", "expected TOML"),
        ("titel = 'x'", "got 'titel'"),
        ("title = 'x'\nworker = 'posthoc'\n[table]\nrows = []", "^x.table: expected 'measures', got none"),
        ("title = 'x'\n[table]\nrows = []\nmeasures = []", "lacks 'worker'"),
    ],
)
def test_a_file_that_is_no_experiment_is_refused(text, told):
    with pytest.raises(InputError, match=told):
        parse_experiment("x", text)


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'posthoc'"):
        load_experiment("posthok")


def test_an_experiment_of_the_users_own_is_read_from_its_file(tmp_path):
    (tmp_path / "mine.toml").write_text(TEXT)
    assert load_experiment(str(tmp_path / "mine.toml")).name == "mine"
    with pytest.raises(InputError, match="does not exist"):
        load_experiment("nowhere.toml")


@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_has_two_presets_a_claim_and_a_worker(name):
    experiment = load_experiment(name)
    assert experiment.title
    assert experiment.claim
    assert experiment.worker in WORKERS
    assert set(experiment.presets) == {"quick", "full"}
    # The first two repeat over tasks and models instead of seeds; the last one takes hours.
    few_seeds = ("calarena", "llm", "cifar10_all")
    assert experiment.seeds("quick") >= (1 if name in few_seeds else 3)
    assert all(list(experiment.jobs(preset, seeds=1)) for preset in ("quick", "full"))


@pytest.mark.parametrize("name", experiment_names())
def test_columns_of_papers_find_figures(name):
    for layout in load_experiment(name).layouts:
        for column in layout.paper:
            where = dict(column.where)
            assert paper_figures(where.pop("paper"), **where), column.title


def test_the_first_experiment_needs_nothing_that_is_not_bundled():
    assert load_experiment("posthoc").needs("quick") == ()


def test_a_loss_of_ones_own_is_a_further_method_of_experiments_that_train():
    losses, own = load_experiment("losses"), "my_module:MyLoss(alpha=[1])"
    every = {job.key["method"] for job in losses.jobs("quick", seeds=1)}
    chosen = [job.key["method"] for job in losses.jobs("quick", seeds=1, only={"method": ["*", own]})]
    assert set(chosen) == every | {own}
    few = losses.jobs("quick", seeds=1, only={"method": ["seca", own], "task": ["digits"]})
    assert [job.key["method"] for job in few] == ["seca", own]
    assert list(small_experiment().jobs("quick", only={"method": [own]})) == []


def test_a_row_goes_stale_with_the_code_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for text in ("x = 1", "x = 10"):
        (tmp_path / "my_fresh_module.py").write_text(text)
        (job,) = load_experiment("losses").jobs(
            "quick", seeds=1, only={"task": ["digits"], "method": ["my_fresh_module:MyLoss"]}
        )
        digests.append(inputs_digest(job, None))
    assert len(set(digests)) == 2


def test_a_row_goes_stale_with_its_own_recipe_and_not_with_others():
    experiment = load_experiment("refcal")
    (job,) = experiment.jobs("quick", seeds=1, only={"task": ["digits"], "method": ["refcal + mdca"]})
    recipes = job.settings["recipes"]

    def changed(name):
        other = {**recipes, name: {**recipes[name], "encoder": {"epochs": 1}}}
        return inputs_digest(replace(job, settings={**job.settings, "recipes": other}), None)

    assert changed("refcal + crl") == inputs_digest(job, None) != changed("refcal + mdca")
