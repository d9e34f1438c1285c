"""``calibrant losses``: the training losses are listed and explained."""

import json
import re

import pytest

from calibrant.losses.names import LOSSES


def test_all_losses_are_listed_with_their_recipes(run):
    code, text, _ = run("losses")
    assert code == 0
    assert all(name in text for name in LOSSES)
    assert "2.0 * mmce" in text


def test_a_program_gets_one_object(run):
    told = json.loads(run("losses", "--json")[1])
    assert list(told) == list(LOSSES)
    assert told["mdca"]["recipe"] == "focal(gamma=1.0) + 1.0 * mdca"
    assert told["crl"]["needs"] == "n_samples, indices"
    assert told["refinement"]["reads"] == "embeddings"


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_explained_with_formula_and_every_option(run, name):
    code, text, _ = run("losses", name)
    assert code == 0
    assert LOSSES[name].recipe in text
    assert LOSSES[name].module.__name__ in text
    told = json.loads(run("losses", name, "--json")[1])[name]
    assert "\\" in told["explanation"]  # a formula
    for markup in (":func:", ":math:", "``", ".. math"):
        assert markup not in text
    assert "ignore_index" in [option["name"] for option in told["options"]]
    assert all(option["meaning"] for option in told["options"])


def test_defaults_are_shown_and_what_must_be_given_is_said(run):
    told = json.loads(run("losses", "adafocal", "--json")[1])["adafocal"]
    defaults = {option["name"]: option["default"] for option in told["options"]}
    assert defaults["n_bins"] == "15"
    assert defaults["gamma_min"] == "-2.0"
    assert defaults["reduction"] == "'mean'"
    assert re.search("n_classes +must be given", run("losses", "ols")[1])


def test_an_unknown_name_is_one_sentence(run):
    code, _, err = run("losses", "adafocl")
    assert code == 2
    assert err == "calibrant: loss: expected the name of a loss, got 'adafocl'; did you mean 'adafocal'?\n"
    assert "calibrant losses lists them" in run("losses", "zzz")[2]
