"""Numbers out of range: every numeric option of every command refuses them in one sentence, or works."""

import inspect
import typing

import pytest
from PIL import Image

from calibrant import Predictions, save_predictions
from calibrant.cli import app
from calibrant.posthoc import TemperatureScaling
from tests.conftest import draw

# Each command with as little work as possible; what makes an option matter; {} is the option.
COMMANDS = {
    "evaluate": "evaluate x.npz --intervals {}",
    "calibrate": "calibrate x.npz --methods temperature {}",
    "report": "report x.npz --out page.html {}",
    "plot": "plot reliability x.npz --out figure.svg {}",
    "export": "export c.safetensors --out graph.onnx {}",
    "monitor": "monitor x.npz x.npz {}",
    "sets": "sets x.npz --calibrate temperature {}",
    "predict": "predict pictures --network tests.cli.test_predict:make --out p.npz {}",
    "decide": "decide x.npz --risk 0.5 --calibrate temperature {}",
    "cascade": "cascade x.npz --cost 1 --person 5 --risk 0.5 {}",
    "bench run": "bench run {}",
}
VALUES = ("-1", "0", "1e20", "100000000000000000000", "3000000000", "nan", "inf")


def numeric_options(commands, *before):
    """Yield the name of a command and of each of its options that take numbers."""
    for group in commands.registered_groups:
        yield from numeric_options(group.typer_instance, *before, group.name)
    for command in commands.registered_commands:
        name = " ".join([*before, command.name or command.callback.__name__])
        for parameter in inspect.signature(command.callback).parameters.values():
            kind, *notes = typing.get_args(parameter.annotation) or (parameter.annotation,)
            if {int, float} & {kind, *typing.get_args(kind)}:
                words = (notes[0].default, *notes[0].param_decls)
                yield name, next(word for word in words if str(word).startswith("--"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Predictions, a calibrator, a picture, and an experiment of no work, in the current folder."""
    logits, labels = draw(30, 3, sharpen=2.0)
    save_predictions(Predictions(logits=logits, labels=labels), tmp_path / "x.npz")
    TemperatureScaling(2.0).save(tmp_path / "c.safetensors")
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "pictures" / "one.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("command", "option"), sorted(numeric_options(app)))
def test_a_number_out_of_range_is_refused_in_one_sentence_or_works(run, command, option):
    # What starts processes or graphs for numbers that are allowed is tried with the others only.
    few = {"bench run": ("nan", "-1", "0", "100000000000000000000"), "export": ("nan", "-1", "0")}
    for value in few.get(command, VALUES):
        given = f"{option}={value}"
        if command == "bench run":
            given = f"indicators --out rows --only study=none {given}"
        code, out, err = run(*COMMANDS[command].format(given).split())
        assert code in (0, 2, 3), (value, err)
        assert "Traceback" not in err, value
        if code == 2:
            assert out == ""
            # Typer draws a box around what it refuses.
            assert err.startswith(("calibrant: ", "Usage: ")), err


def test_every_numeric_option_is_tried():
    found = set(numeric_options(app))
    assert {
        ("calibrate", "--seed"),
        ("evaluate", "--bins"),
        ("plot", "--width"),
        ("bench run", "--jobs"),
    } <= found
    assert {command for command, _ in found} == set(COMMANDS)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("calibrate", "x.npz", "--seed", "-1"), "--seed: expected a whole number of at least 0, got -1"),
        (("calibrate", "x.npz", "--seed", "1" + 20 * "0"), "--seed: expected a whole number of at most"),
        (("evaluate", "x.npz", "--bins", "3000000000"), "--bins: expected a whole number of at most"),
        (("train", "--set", 'training.loss=focal(gamma="x")'), "a finite number for gamma of focal, got 'x'"),
        (
            ("train", "--set", "training.loss=focal(gamma=1e400)"),
            "a finite number for gamma of focal, got inf",
        ),
        (("train", "--set", "hardware.devices=100000"), "devices: expected at most"),
        (("apply", "c.safetensors", "x.npz", "--out", f"{1000 * 'a'}.npz"), "File name too long"),
        (("apply", "c.safetensors", "x.npz", "--out", "/proc/a.npz"), "got an error: No such file"),
        (("report", "x.npz", "--out", f"{1000 * 'a'}.html"), "File name too long"),
        (("evaluate", f"{1000 * 'a'}.npz"), "aaa.npz"),
        (("calibrate", "x.npz", "--out", 1000 * "a"), "File name too long"),
        (("calibrate", "x.npz", "--out", "/proc/a"), "expected a folder to write to, got /proc/a"),
        (("report", "x.npz", "--out", "/dev/full"), "got a device or a pipe"),
    ],
)
def test_what_cannot_be_is_one_sentence(run, words, sentence):
    code, out, err = run(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
