"""What a command prints with --json is what its result writes with to_json, and options are counted."""

import json

import pytest
import typer

from calibrant import compare, load_predictions
from calibrant.cli import app
from calibrant.cli.flags import with_flags
from calibrant.data import Predictions, save_predictions
from calibrant.decisions import check_requirements, compare_sets, estimate_quality
from calibrant.decisions.thresholds import find_threshold
from calibrant.evaluation import effect_of, evaluate, make_choice
from calibrant.evaluation.calibration import Calibration
from calibrant.evaluation.full import evaluate_fully
from tests.conftest import draw


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    logits, labels = draw(300, 3, seed=0, sharpen=2.0)
    path = tmp_path_factory.mktemp("json") / "p.npz"
    save_predictions(Predictions(logits=logits, labels=labels), path)
    return path


def _calibration(predictions):
    comparison = compare(predictions, methods=["uncalibrated", "temperature"])
    choice = make_choice(comparison)
    return Calibration(comparison, choice, effect_of(comparison, choice, predictions))


RESULTS = {
    "evaluate": lambda p: evaluate(p, chance=True),
    "evaluate --per-class --per-margin 2": lambda p: evaluate_fully(p, per_class=True, n_margins=2),
    "gate --require ece<0.5": lambda p: check_requirements(p, "ece < 0.5"),
    "calibrate --methods uncalibrated,temperature": _calibration,
    "decide --risk 0.3": lambda p: find_threshold(p, risk=0.3),
    "sets --method aps": lambda p: compare_sets(p).choose("aps"),
    "estimate FILE --methods temperature": lambda p: estimate_quality(p, p, methods="temperature"),
}


def _without_seconds(value):
    if isinstance(value, dict):
        return {key: _without_seconds(each) for key, each in value.items() if "seconds" not in key}
    return value


@pytest.mark.parametrize("line", RESULTS)
def test_json_is_that_of_the_result(run, file, line):
    command, *options = line.replace("FILE", str(file)).split()
    code, out, _ = run(command, file, *options, "--json")
    assert code in (0, 3, 4)
    expected = json.loads(RESULTS[line](load_predictions(file)).to_json())
    assert _without_seconds(json.loads(out)) == _without_seconds(expected)


def _commands(command, name=""):
    for key, each in getattr(command, "commands", {}).items():
        yield from _commands(each, f"{name} {key}".strip())
    if not hasattr(command, "commands"):
        yield name, [each for each in command.params if each.param_type_name == "option"]


def test_there_are_few_options_and_fewer_above_the_columns():
    found = dict(_commands(typer.main.get_command(app)))
    assert sum(len(options) + 1 for options in found.values()) <= 279  # one more for --help
    for name, options in found.items():
        above = [each.opts[0] for each in options if each.rich_help_panel != "Columns"]
        assert len(above) <= 15, (name, above)


def test_an_option_that_is_given_twice_is_refused(run, file):
    code, out, err = run("evaluate", file, "--compare", file, "--compare", file)
    assert (code, out, err) == (
        2,
        "",
        "calibrant: --compare: expected once, got it twice; leave one out\n",
    )
    assert run("gate", file, "--require", "ece < 1", "--require", "nll < 9")[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--column", "label=x"),
            "--column: expected one of its words, got 'label=x'; did you mean",
        ),
        (("--column", "labels"), "--column: expected labels=NAME, got 'labels'"),
        (("--read", "percent=1"), "--read: expected percent, got 'percent=1'"),
        (("--read", "missing=never"), "--read missing: expected one of refuse, drop, group, got 'never'"),
    ],
)
def test_words_about_columns_that_do_not_exist_are_refused(run, file, words, sentence):
    code, _, err = run("evaluate", file, *words)
    assert (code, err.startswith(f"calibrant: {sentence}")) == (2, True), err


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("n_folds: expected 2, got 1", "--folds: expected 2, got 1"),
        ("confidence: expected numbers, got x", "confidence: expected numbers, got x"),
        ("x: got 95; say percent=True", "x: got 95; say --read percent"),
        (
            "x: got none; say labels='truth', or rename it",
            "x: got none; say --column labels=truth, or rename it",
        ),
        (
            "folder: expected a new one, got a; continue it with resume=True",
            "folder: expected a new one, got a; continue it with --resume",
        ),
    ],
)
def test_arguments_of_the_library_become_options(message, shown):
    assert with_flags(message, {"--folds", "--confidence", "--read"}) == shown
