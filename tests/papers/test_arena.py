"""Rankings and the arena: who beats whom."""

import math

import numpy as np
import pytest

from calibrant.errors import InputError
from calibrant.papers.calarena import run_arena
from calibrant.papers.model_predictions import load_model_predictions
from calibrant.papers.rankings import elo_ratings, task_win_rates


def tasks_with(wins_of_a, wins_of_b, ties=0):
    return (
        [{"a": 0.0, "b": 1.0}] * wins_of_a
        + [{"a": 1.0, "b": 0.0}] * wins_of_b
        + [{"a": 1.0, "b": 1.0}] * ties
    )


def random_tasks(n=40, names="abcde", seed=0):
    rng = np.random.default_rng(seed)
    skill = np.linspace(0, 1, len(names))
    return [dict(zip(names, (rng.normal(size=len(names)) - skill).tolist(), strict=True)) for _ in range(n)]


def test_a_win_rate_is_the_share_of_the_others_that_are_worse():
    assert task_win_rates({"a": 1, "b": 2, "c": 2, "d": 3}) == {"a": 1, "b": 1 / 3, "c": 1 / 3, "d": 0}


def test_a_difference_of_rounding_is_a_tie():
    nearly = 0.1 + 0.2
    assert nearly != 0.3
    assert task_win_rates({"a": nearly, "b": 0.3}) == {"a": 0, "b": 0}
    assert elo_ratings([{"a": nearly, "b": 0.3}] * 5) == pytest.approx({"a": 1000, "b": 1000})


def test_win_rates_are_means_over_tasks_counted_one_pair_at_a_time():
    tasks = random_tasks()
    each = [task_win_rates(task) for task in tasks]
    for name in "abcde":
        beaten = [task[name] < task[other] for task in tasks for other in "abcde" if other != name]
        assert np.mean([rates[name] for rates in each]) == pytest.approx(np.mean(beaten))


@pytest.mark.parametrize(("won", "lost", "ties"), [(3, 1, 0), (30, 10, 0), (2, 0, 2), (50, 50, 7)])
def test_two_methods_are_as_far_apart_as_their_odds_say(won, lost, ties):
    ratings = elo_ratings(tasks_with(won, lost, ties))
    odds = (won + ties / 2) / (lost + ties / 2)
    assert ratings["a"] - ratings["b"] == pytest.approx(400 * math.log10(odds), rel=0.05, abs=1e-9)


def test_ratings_make_expected_wins_equal_to_wins():
    tasks = random_tasks(200)
    ratings = elo_ratings(tasks)
    for name in "abcde":
        others = [other for other in "abcde" if other != name]
        won = sum(task[name] < task[other] for task in tasks for other in others)
        expected = sum(len(tasks) / (1 + 10 ** ((ratings[other] - ratings[name]) / 400)) for other in others)
        assert won == pytest.approx(expected, abs=0.02)


def test_ratings_have_a_mean_of_1000_and_do_not_depend_on_any_order():
    tasks = random_tasks()
    turned = [dict(reversed(task.items())) for task in reversed(tasks)]
    ratings = elo_ratings(tasks)
    assert np.mean(list(ratings.values())) == pytest.approx(1000)
    assert elo_ratings(turned) == pytest.approx(ratings)


def test_a_method_that_never_loses_has_the_highest_finite_rating():
    ratings = elo_ratings([{"a": 0, "b": 1, "c": 2}] * 10)
    assert math.inf > ratings["a"] > ratings["b"] > ratings["c"]


@pytest.mark.parametrize(
    "tasks", [[], [{"a": 1.0}], [{"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 2.0}], [{"a": math.nan, "b": 1.0}]]
)
def test_tasks_that_cannot_be_ranked_are_refused(tasks):
    with pytest.raises(InputError, match="^tasks: expected"):
        elo_ratings(tasks)


def test_methods_of_the_arena_may_have_options():
    settings = {"methods": ["temperature", "isotonic( mode='top_label' )", "isotonic_top"]}
    records = list(run_arena({"source": "digits/naive_bayes"}, settings, 0, None))
    assert [r.labels["method"] for r in records] == [
        "temperature",
        "isotonic(mode='top_label')",
        "isotonic_top",
    ]
    assert records[1].values["brier"] == records[2].values["brier"]


def test_the_arena_reports_gains_and_wins_of_every_method_on_the_same_samples():
    settings = {"methods": ["uncalibrated", "temperature", "histogram"]}
    found = {
        r.labels["method"]: r.values for r in run_arena({"source": "digits/naive_bayes"}, settings, 0, None)
    }
    test = load_model_predictions("digits/naive_bayes", seed=0).tests["test"]
    one_hot = np.eye(10)[test.labels.numpy()]
    brier = ((test.to_probs().numpy() - one_hot) ** 2).sum(axis=1).mean()
    assert found["uncalibrated"]["brier"] == pytest.approx(brier)
    assert found["uncalibrated"]["phi_brier"] == 0
    for values in found.values():
        assert values["phi_brier"] == pytest.approx(brier - values["brier"])
    assert {name: values["win_rate"] for name, values in found.items()} == task_win_rates(
        {name: values["brier"] for name, values in found.items()}
    )
    assert found["temperature"]["phi_nll"] > 0
