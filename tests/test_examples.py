"""Every example runs in small, trains, and prints a table of what it returns."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = [
    # Lightning looks at batches in a way that this version of torch will give up.
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated"),
    # The examples keep to one process.
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The package that an example needs, and settings that make it small.
SMALL = {
    "plain_loop": ("sklearn", {"epochs": 4}),
    "lightning_callback": ("lightning", {"epochs": 2}),
    "transformers_trainer": ("transformers", {"epochs": 3, "n_train": 200}),
}


@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs_in_small_and_prints_what_it_returns(name, tmp_path, monkeypatch, capsys):
    package, options = SMALL[name]
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    rows = example(name).main(**options)
    table = [line.split() for line in capsys.readouterr().out.splitlines()[-3:]]
    assert [line[0] for line in table] == ["loss", "cross_entropy", "adafocal"]
    heads = table[0][1:]
    assert any(head.endswith("ece") for head in heads)
    for line in table[1:]:
        assert [float(cell) for cell in line[1:]] == pytest.approx(
            [rows[line[0]][h] for h in heads], abs=5e-3
        )
    ece = next(head for head in heads if head.endswith("ece"))
    assert rows["cross_entropy"][ece] != rows["adafocal"][ece]
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_the_plain_loop_goes_on_from_its_checkpoint():
    rows = example("plain_loop").main(epochs=4)
    assert rows["adafocal"]["updates"] == 4
    assert rows["cross_entropy"]["updates"] == 0


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SMALL)
