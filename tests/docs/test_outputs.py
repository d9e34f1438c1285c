"""Blocks of text on the pages are what the commands print, or no output at all."""

import os
import re
from dataclasses import dataclass

import pytest
import torch

from calibrant.data import load_bundled, save_predictions
from calibrant.data.predictions import Predictions
from tests.docs.pages import BLOCKS, words_of
from tests.docs.running import run_ours
from tests.docs.worlds import judged

NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?")
TEXTS = [block for block in BLOCKS if block.language == "text" and not block.is_of_a_tutorial]
# Blocks that are no output, by a text in them.
NO_OUTPUT = {
    "the one door": "a diagram",
    "flock -n": "a line of a crontab",
    "python examples/serve.py": "a service and its client",
    "onnxruntime_onnx": "a file of Triton",
    "rows wait for their labels": "when rows were read",
    "calibrant calibrate two_years.csv": "published data that are not part of Calibrant",
    "calibrant evaluate nfl_games.csv": "published data that are not part of Calibrant",
}


@dataclass(frozen=True)
class Printed:
    """A block that commands print.

    Attributes:
        contains: A text in the block.
        commands: The last one prints the block; those before it write what it reads.
        columns: The width of the terminal.
    """

    contains: str
    commands: tuple[str, ...]
    columns: int = 150


OUTPUTS = (
    Printed("Gate: cannot tell", ("calibrant gate test.npz --require 'ece < 0.15' --require 'nll <= 0.9'",)),
    Printed("at most wrong  confidence", ("calibrant decide val.npz --risk 0.02",)),
    Printed("dear alone costs", ("calibrant cascade cheap.npz dear.npz --cost 1,20 --risk 0.2",)),
    Printed(
        "new (EM)",
        (
            "calibrant calibrate val.npz --methods temperature --out calibrated",
            "calibrant apply calibrated/calibrator.safetensors new.npz --adapt frequencies "
            "--labelled val.npz --out corrected.npz",
        ),
        columns=80,
    ),
    Printed(
        "accuracy by neighbours",
        (
            "calibrant calibrate val.npz --methods temperature --out calibrated",
            "calibrant apply calibrated/calibrator.safetensors noisy.npz --adapt shift --out adapted.npz",
        ),
        columns=80,
    ),
    Printed(
        "aps, randomised",
        (
            "calibrant sets val.npz --alpha 0.1 --test test.npz --calibrate temperature --method aps "
            "--randomised --out sets.safetensors",
        ),
    ),
    Printed(
        "Alarm at row",
        (
            "calibrant monitor reference.npz monday.npz tuesday.npz --state model.json",
            "calibrant monitor reference.npz wednesday.npz --state model.json --events alarms.jsonl",
        ),
    ),
    Printed("nothing speaks against the estimate", ("calibrant estimate val.npz test.npz",), columns=80),
    Printed(
        "the estimate cannot be trusted",
        (
            "calibrant calibrate val.npz --methods temperature --out calibrated",
            "calibrant estimate val.npz noisy.npz --calibrator calibrated/calibrator.safetensors",
        ),
        columns=80,
    ),
    Printed(
        "old - new",
        ("calibrant estimate judged.csv --score judge --outcome human --policy model --unit prompt_id",),
        columns=100,
    ),
    Printed("row group 2: probs", ("calibrant evaluate predictions/",)),
    Printed("gap now reference", ("calibrant monitor before.csv answers/ --by region",)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The bundled predictions under the names of the pages."""
    folder = tmp_path_factory.mktemp("printed")
    val, test = load_bundled("cifar10_val"), load_bundled("cifar10_test")
    later = test.logits.clone()
    later[6500:] *= 2
    animals = ((test.labels > 1) & (test.labels < 8)).nonzero()[:, 0]
    keep = (test.labels < 2) | (test.labels > 7)
    keep[animals[::4]] = True
    files = {
        "val": val,
        "reference": val,
        "test": test,
        "noisy": load_bundled("cifar10_test_noise"),
        "cheap": load_bundled("cifar10_test_noise"),
        "dear": test,
        "monday": Predictions(logits=later[:3000], labels=test.labels[:3000]),
        "tuesday": Predictions(logits=later[3000:6000], labels=test.labels[3000:6000]),
        "wednesday": Predictions(logits=later[6000:], labels=test.labels[6000:]),
        "new": Predictions(logits=test.logits[keep], class_names=test.class_names),
    }
    for name, predictions in files.items():
        save_predictions(predictions, folder / f"{name}.npz")
    _write_bad_rows(folder / "predictions")
    judged(folder)
    (folder / "answers").mkdir()
    _write_regions(val, folder / "before.csv", sharpen=1.0)
    _write_regions(test.take(range(5000)), folder / "answers" / "1.csv", sharpen=0.5)
    return folder


def _write_regions(predictions, path, *, sharpen):
    """Confidences of three regions; in one of them the model is less sure than it was."""
    regions = ("eu", "asia", "us")
    factors = torch.tensor([sharpen, 1.0, 1.0])[torch.arange(len(predictions)) % 3]
    probs = torch.softmax(predictions.logits.double() * factors[:, None], dim=1)
    confidence, predicted = probs.max(dim=1)
    right = (predicted == predictions.labels).tolist()
    rows = (
        f"{c:.6f},{hit},{regions[row % 3]}"
        for row, (c, hit) in enumerate(zip(confidence, right, strict=True))
    )
    path.write_text("\n".join(["confidence,correct,region", *rows, ""]))


def _write_bad_rows(folder):
    """A stream whose last file has a missing probability in its third row group."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir()
    for part in (6, 7):
        probs = torch.full((300, 2), 0.5, dtype=torch.float64)
        if part == 7:
            probs[230, 1] = float("nan")
        table = pa.table({"probs": probs.tolist(), "labels": [row % 2 for row in range(300)]})
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=100)


def alike(ours, shown):
    """Whether two lines have the same words and about the same numbers: other machines round otherwise."""
    lines = [" ".join(line.split()) for line in (ours, shown)]
    numbers = [[float(each.replace(",", "")) for each in NUMBER.findall(line)] for line in lines]
    words = [NUMBER.sub("#", line) for line in lines]
    return words[0] == words[1] and numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=0.02)


def first_that_differs(printed, shown):
    """Return the first line of a block that is not printed after those before it; None if all are."""
    lines = iter(printed.splitlines())
    wanted = [line for line in shown.splitlines() if line.strip() not in ("", "...")]
    return next((line for line in wanted if not any(alike(ours, line) for ours in lines)), None)


@pytest.mark.slow
@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.contains)
def test_a_page_shows_what_is_printed(output, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (block,) = (block for block in TEXTS if output.contains in block.code)
    for command in output.commands:
        ended = run_ours(words_of(command), columns=output.columns)
    assert first_that_differs(ended.out + ended.err, block.code) is None, os.linesep + ended.out + ended.err


def test_every_text_is_printed_or_is_no_output():
    known = [*(output.contains for output in OUTPUTS), *NO_OUTPUT]
    assert [str(block) for block in TEXTS if sum(text in block.code for text in known) != 1] == []


def test_a_line_that_is_not_printed_is_noticed():
    printed = "accuracy  82.1 %\nECE  12.3 %\n"
    assert first_that_differs(printed, "accuracy 82.1 %\n...\nECE 12.3 %\n") is None
    assert first_that_differs(printed, "accuracy 82.1 %\nECE 14.3 %\n") == "ECE 14.3 %"
    assert first_that_differs(printed, "ECE 12.3 %\naccuracy 82.1 %\n") == "accuracy 82.1 %"
    assert first_that_differs(printed, "error 82.1 %\n") == "error 82.1 %"
