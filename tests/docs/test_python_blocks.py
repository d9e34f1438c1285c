"""Every block of Python that is no doctest runs, in a folder with the files and the names that it uses.

Doctests run by ``--doctest-glob``, and the cells of tutorials in ``tests/test_tutorials.py``.
"""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from calibrant.posthoc import load_calibrator
from tests.docs.pages import BLOCKS, ROOT, Block
from tests.docs.worlds import served as models
from tests.docs.worlds import streams

# What is not run, by a text in it, and the reason.
NOT_RUN = {
    "evaluate_stream_on_ray(": "needs a cluster; in small: tests/streams/test_ray.py",
    "mapInPandas": "needs Spark and Java: tests/streams/test_spark.py runs it",
    "save_mlflow(": "takes seconds to export a network: tests/integrations/test_mlflow.py",
}

pytestmark = pytest.mark.slow


def is_doctest(block):
    return block.code.startswith(">>> ")


def why_not(block):
    """Return why a block is not run, or None."""
    return next((reason for text, reason in NOT_RUN.items() if text in block.code), None)


SHOWN = [
    block
    for block in BLOCKS
    if block.language == "python" and not is_doctest(block) and not block.is_of_a_tutorial
]
PAGES = dict.fromkeys(block.page for block in SHOWN)


def _loop(seed=0):
    """A small network, its data, and the names of a plain loop."""
    torch.manual_seed(seed)
    inputs, labels = torch.randn(48, 4), torch.arange(48) % 3
    model = nn.Linear(4, 3)
    batches = [(inputs[rows], labels[rows]) for rows in torch.arange(48).split(16)]
    return {
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "inputs": inputs,
        "labels": labels,
        "train_loader": batches,
        "val_loader": batches[:1],
    }


def integrations(folder):
    """The names that a reader has: network, data, loss; before the page of the Trainer those of a text."""
    from calibrant.losses import AdaFocalLoss

    def predict(model, loader):
        with torch.no_grad():
            return torch.cat([model(x) for x, _ in loader]), torch.cat([y for _, y in loader])

    return {
        **_loop(),
        "epochs": 2,
        "loss": AdaFocalLoss(),
        "path": folder / "checkpoint.pt",
        "predict": predict,
        "make_model": lambda: nn.Linear(4, 3),
    }


def with_texts(names):
    """Replace the network and its data by those of a small text classifier."""
    small = importlib.import_module("tests.integrations.small_transformers")
    return {
        **names,
        "model": small.classifier(),
        "train": small.TRAIN,
        "validation": small.VAL,
        "test": small.VAL,
    }


def scale(folder):
    """A folder of predictions, and the names of a worker of Ray Train that is the only one."""
    from calibrant.losses import AdaFocalLoss

    streams(folder)
    names = _loop()
    return {
        **names,
        "prepare_model": lambda model: model,
        "loss": AdaFocalLoss(),
        "order": torch.arange(48),
        "rank": 0,
        "workers": 1,
        "data": {"val": (names["inputs"], names["labels"])},
    }


def training(folder):
    """A configuration that takes no time."""
    (folder / "my.toml").write_text(
        "[data]\nlimit = 60\nvalidation = 0.5\n[training]\nepochs = 1\n", encoding="utf-8"
    )
    return {}


def served(folder):
    """A classifier of scikit-learn, a network, and their calibrator joined with a graph."""
    import json

    import numpy
    import onnxruntime
    from sklearn.linear_model import LogisticRegression

    from calibrant.integrations.onnx_join import join_onnx

    models(folder)
    fitted = load_calibrator(folder / "calibrated" / "calibrator.safetensors")
    fitted.class_names = tuple("abcdefghij")
    join_onnx(folder / "model.onnx", fitted, folder / "both.onnx")
    rows = numpy.eye(10, dtype=numpy.float32)
    return {
        "Path": Path,
        "json": json,
        "numpy": numpy,
        "onnxruntime": onnxruntime,
        "torch": torch,
        "classifier": LogisticRegression().fit(rows, range(10)),
        "network": nn.Linear(10, 10),
        "x": torch.from_numpy(rows),
        "rows": rows,
    }


SETUPS = {
    "docs/howto/serve.md": served,
    "docs/integrations.md": integrations,
    "docs/scale.md": scale,
    "docs/training.md": training,
}


def run(block, names):
    """Run a block with the names that are there, and those that it adds."""
    if "CalibratedTrainer" in block.code and "model" in names:
        names.update(with_texts(names))
    exec(compile(block.code, str(block), "exec"), names)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")  # without a GPU
@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated")
@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs_in_its_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = SETUPS[page](tmp_path) if page in SETUPS else {}
    for block in SHOWN:
        if block.page == page and why_not(block) is None:
            run(block, names)


@pytest.mark.parametrize("block", [block for block in SHOWN if why_not(block)], ids=str)
def test_python_that_is_not_run_names_what_there_is(block):
    for node in ast.walk(ast.parse(block.code)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            assert [each.name for each in node.names if not hasattr(module, each.name)] == []


def test_every_reason_is_needed_and_names_a_test_that_exists():
    for text, reason in NOT_RUN.items():
        assert [block for block in SHOWN if text in block.code], text
        assert all((ROOT / name).is_file() for name in re.findall(r"tests/[\w/]+\.py", reason))
    assert SETUPS.keys() <= PAGES.keys()


def test_a_block_that_fails_is_noticed():
    with pytest.raises(ImportError):
        run(Block("page.md", 1, "python", "from calibrant import no_such_name\n"), {})
