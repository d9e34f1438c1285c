"""``calibrant methods``, ``measures`` and ``losses``: what there is, and what one of them is."""

import inspect
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import calibrant.metrics
from calibrant import Predictions, evaluate
from calibrant.losses.names import LOSSES, make_loss
from calibrant.metrics.names import MEASURES
from calibrant.posthoc.names import METHODS, automatic_methods, canonical_name, resolve_methods
from tests.conftest import draw

CATALOGUES: dict[str, dict] = {"methods": METHODS, "measures": MEASURES, "losses": LOSSES}
MARKUP = (":func:", ":math:", ":class:", "``", ".. math", "\N{HORIZONTAL ELLIPSIS}")


@pytest.mark.parametrize(
    ("arguments", "known", "most_lines"),
    [
        (["methods"], METHODS, 60),
        (["methods", "--all"], METHODS, 200),
        (["measures"], MEASURES, 60),
        (["losses"], LOSSES, 65),
    ],
)
@pytest.mark.parametrize("columns", [80, 100])
def test_a_list_fits_a_terminal_and_cuts_no_name(run, arguments, known, most_lines, columns):
    code, text, _ = run(*arguments, columns=columns)
    lines = text.splitlines()
    assert code == 0
    assert len(lines) <= most_lines
    assert max(map(len, lines)) <= columns
    assert set(known) <= set(re.findall(r"\S+", text))
    assert not [mark for mark in MARKUP if mark in text]


def test_methods_are_described_if_they_are_compared_by_default(run):
    table = run("methods")[1].partition("\nFurther")[0].partition("method ")[2]
    described = re.findall(r"^(\w+) ", table, re.MULTILINE)
    assert described == automatic_methods()
    for n_classes in (2, 10, 1000):
        for keep in (False, True):
            assert {*resolve_methods("auto", n_classes=n_classes, keep_accuracy=keep)} <= {*described}
    pairs = run("methods", "--pairs")[1]
    assert "combination" in pairs
    assert "intra_order" not in pairs


def test_a_program_gets_the_whole_list(run):
    told = {command: json.loads(run(command, "--json")[1]) for command in CATALOGUES}
    assert {command: list(entries) for command, entries in told.items()} == {
        command: list(known) for command, known in CATALOGUES.items()
    }
    assert told["methods"]["temperature"]["preserves_accuracy"]
    assert told["methods"]["temperature"]["meaning"].startswith("Divide logits by one positive number")
    assert all(entry["meaning"] and entry["paper"] for entry in told["methods"].values())
    assert told["measures"]["skce"]["of_pairs"] is False
    assert told["losses"]["mdca"]["recipe"] == "focal(gamma=1.0) + 1.0 * mdca"
    assert told["losses"]["crl"]["needs"] == "n_samples, indices"
    assert told["losses"]["refinement"]["reads"] == "embeddings"


@pytest.mark.parametrize("command", CATALOGUES)
def test_every_entry_is_explained_with_its_options(run, command):
    for name in CATALOGUES[command]:
        code, text, _ = run(command, name, columns=80)
        told = json.loads(run(command, name, "--json")[1])[name]
        assert code == 0
        assert text.startswith(f"{name}: ")
        assert not [mark for mark in MARKUP if mark in text], name
        assert all(line in text for line in (*told["commands"], *told["python"]))
        for option in told["options"]:
            assert option["meaning"], (name, option["name"])
            assert re.search(rf"^{option['name']} ", text, re.MULTILINE), (name, option["name"])


def test_defaults_are_those_of_the_variant_and_what_must_be_given_is_said(run):
    def defaults(command, name):
        told = json.loads(run(command, name, "--json")[1])[name]
        return {option["name"]: option["default"] for option in told["options"]}

    assert defaults("losses", "adafocal")["n_bins"] == "15"
    assert defaults("losses", "adafocal")["reduction"] == "'mean'"
    assert re.search("n_classes +must be given", run("losses", "ols")[1])
    assert defaults("methods", "temperature_ece")["objective"] == "'ece'"
    assert defaults("measures", "ece_equal_mass") == {"n_bins": "15", "binning": "'mass'"}


def test_the_lines_of_python_and_the_commands_work(run):
    seen = set()
    for k in (2, 7):
        logits, labels = draw(60, k, seed=0)
        probs = torch.softmax(torch.tensor(logits), dim=1)
        names = {name: getattr(calibrant.metrics, name) for name in calibrant.metrics.__all__}
        names |= {"logits": logits, "probs": probs, "labels": labels}
        values = evaluate(Predictions(logits=logits, labels=labels), measures=list(MEASURES)).metrics
        for name, expected in values.items():
            value = eval(MEASURES[name].python, names)
            np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=name)
        seen |= set(values)
    assert seen == set(MEASURES)
    for name, method in METHODS.items():
        signature = inspect.signature(method.calibrator.fit)
        class_name = method.calibrator.__name__
        assert getattr(calibrant.posthoc, class_name) is method.calibrator
        recorded = SimpleNamespace(fit=signature.bind)
        bound = eval(method.python, {class_name: recorded, **dict.fromkeys(("logits", "labels", "features"))})
        assert method.options.items() <= {**bound.arguments, **bound.kwargs}.items()
        told = json.loads(run("methods", name, "--json")[1])[name]
        for line in told["commands"]:
            assert canonical_name(line.partition("--methods ")[2].strip("'"))
    for name in LOSSES:
        line = json.loads(run("losses", name, "--json")[1])[name]["python"][1]
        assert eval(line.partition(" = ")[2], {"make_loss": make_loss, "n_classes": 3, "n_samples": 9})


@pytest.mark.parametrize(
    ("command", "typo", "meant", "what"),
    [
        ("methods", "smrt", "smart", "method"),
        ("measures", "emce", "mce", "measure"),
        ("losses", "adafocl", "adafocal", "loss"),
    ],
)
def test_an_unknown_name_is_one_sentence(run, command, typo, meant, what):
    code, _, err = run(command, typo)
    assert code == 2
    assert err == (
        f"calibrant: {what}: expected the name of a {what}, got {typo!r}; did you mean {meant!r}?\n"
    )
    assert f"calibrant {command} lists them" in run(command, "zzz")[2]


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("evaluate FILE --measures ecee", "ece"),
        ("calibrate FILE --methods smrt", "smart"),
        ("calibrate FILE --methods smart(setled=0)", "settled"),
        ("calibrate FILE --criterion eec", "ece"),
        ("plot relaibility FILE --out x.png", "reliability"),
        ("plot dynamcs FILE --out x.png", "dynamics"),
        ("train --set training.loss=adafocl", "adafocal"),
        ("train --set training.los=focal", "loss"),
        ("bench run arna", "arena"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_name(run, tmp_path, monkeypatch, command, meant):
    monkeypatch.chdir(tmp_path)
    logits, labels = draw(60, 3, seed=0)
    np.savez(tmp_path / "FILE.npz", logits=logits, labels=labels)
    code, out, err = run(*command.replace("FILE", "FILE.npz").split())
    assert (code, out) == (2, "")
    assert err.endswith(f"; did you mean {meant!r}?\n")
    assert err.count("\n") == 1
