"""docs/papers.md: made by its script, with nothing that does not exist."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from calibrant.papers.printed import PAPERS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("papers_page", ROOT / "scripts" / "papers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_reference_of_the_catalogue_exists(script):
    assert [problem for item in script.items() for problem in script.problems(item)] == []


def test_the_page_is_what_the_script_writes(script):
    assert (ROOT / "docs" / "papers.md").read_text(encoding="utf-8") == script.page()


def test_every_paper_has_items_of_every_kind(script):
    kinds = {(item.paper, item.kind) for item in script.items()}
    assert kinds == {(paper, kind) for paper in PAPERS for kind in script._KINDS}
    names = [(item.paper, item.kind, item.item) for item in script.items()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "reference",
    [
        "calibrant.metrics:no_such_measure",
        "calibrant.posthoc.smart:HIDDEN_UNITS == 17",
        "call calibrant.losses:AdaFocalLoss(n_bins=16)",
        "call calibrant.losses:AdaFocalLoss(bins=15)",
        "method smrt",
        "method smart(hiden=16)",
        "loss no_such_loss",
        "measure eec",
        "model resnet51",
        "data cifar11",
        "corruption gaussian_nose",
        "experiment no_such_experiment",
        "experiment seca_tables seeds=4",
        "config seca/cifar10_resnet32.toml training.epochs=161",
        "config seca/no_such_file.toml",
        "test tests/losses/test_seca.py::test_no_such_test",
    ],
)
def test_a_reference_to_nothing_or_to_another_value_is_found(script, reference):
    item = script.Item("smart", "equation", "x", "exact", reference, "")
    [problem] = script.problems(item)
    assert problem.startswith(f"smart, x: {reference}: ")


def test_an_item_needs_a_place_or_a_reason(script):
    assert script.problems(script.Item("smart", "equation", "x", "exact", "", ""))
    assert script.problems(script.Item("smart", "equation", "x", "not here", "", ""))
    assert script.problems(script.Item("smart", "equation", "x", "selectable", "method smart", ""))
    assert script.problems(script.Item("smart", "equation", "x", "differs", "method smart", ""))
    assert script.problems(script.Item("smart", "equation", "x", "similar", "method smart", "so it is"))
    assert not script.problems(script.Item("smart", "equation", "x", "not here", "", "because"))
