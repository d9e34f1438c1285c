"""What every figure promises: axes respected, nothing leaked, files whole, nothing computed when drawing."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import pytest
import torch
from matplotlib.figure import Figure

import calibrant.plots
from calibrant import InputError, Predictions, compare
from calibrant.boxes import match_pairs
from calibrant.decisions import cascade_for_risk, check_requirements
from calibrant.pixels import PixelImage
from calibrant.plots import Display
from calibrant.plots.kinds import KINDS
from calibrant.plots.model_honesty import ModelHonesty
from tests.boxes.random_boxes import detector
from tests.conftest import at_length, draw
from tests.contracts import Contract
from tests.plots.conftest import dynamics_rows

pytestmark = pytest.mark.slow


def detector_pairs():
    return match_pairs(detector(0, images=20))


DISPLAYS = {
    "AdaFocalGammasDisplay": lambda cls, _: cls.from_history([{"gammas": [1.0, -1.0]}] * 3),
    "BinErrorsDisplay": lambda cls, _: cls.from_rows(dynamics_rows(3, 4, gammas=True)),
    "BoxMapDisplay": lambda cls, _: cls.from_pairs(detector_pairs()),
    "BoxThresholdsDisplay": lambda cls, _: cls.from_pairs(detector_pairs()),
    "CascadeDisplay": lambda cls, p: cls(cascade_for_risk({"a": p}, [1], 0.5, person=9)).plot(),
    "ClassReliabilityDisplay": lambda cls, p: cls.from_predictions(p),
    "ConfidenceHistogramDisplay": lambda cls, p: cls.from_predictions(p),
    "CorrespondenceDisplay": lambda cls, _: cls.from_rows(dynamics_rows(3, 4)),
    "CorpReliabilityDisplay": lambda cls, p: cls.from_predictions(p, n_resamples=5),
    "CostOfAskingDisplay": lambda cls, p: cls.from_predictions(p),
    "ExpectedRiskDisplay": lambda cls, p: cls.from_predictions(p, p, methods=["temperature"]),
    "FrequencyShiftDisplay": lambda cls, p: cls.from_predictions(p, p),
    "GapMapDisplay": lambda cls, _: cls.from_image(
        PixelImage.of("a", "logits", torch.randn(3, 8, 12), torch.arange(96).view(8, 12) % 3)
    ),
    "GateDisplay": lambda cls, p: cls(check_requirements(p, ["ece < 0.1", "accuracy > 0.2"])).plot(),
    "GuaranteedRiskDisplay": lambda cls, p: cls.from_predictions(p),
    "IndicatorsDisplay": lambda cls, p: cls.from_predictions(p),
    "LossShapeDisplay": lambda cls, _: cls.from_functions({"cross-entropy": lambda nll: nll}),
    "MarginDiagnosisDisplay": lambda cls, p: cls.from_predictions(p),
    "MarginGroupsDisplay": lambda cls, p: cls.from_predictions({"a": p, "b": p}),
    "MarginReliabilityDisplay": lambda cls, p: cls.from_predictions({"a": p, "b": p}),
    "MethodComparisonDisplay": lambda cls, p: cls.from_comparison(
        compare(p, methods="temperature", n_folds=2, n_resamples=10)
    ),
    "ModelHonestyDisplay": lambda cls, _: cls(
        [ModelHonesty("a", 0.5, 0.9, 0.5, 0.4, 0.0), ModelHonesty("b", 0.7, 0.8, 0.7, 0.1, 0.0)]
    ).plot(),
    "OODRocDisplay": lambda cls, p: cls.from_predictions(p, p),
    "ReliabilityDisplay": lambda cls, p: cls.from_predictions(p, n_resamples=5),
    "RiskCoverageDisplay": lambda cls, p: cls.from_predictions(p),
    "SetSizesDisplay": lambda cls, p: cls.from_predictions(p, p, methods=["temperature"]),
    "SmoothReliabilityDisplay": lambda cls, p: cls.from_predictions(p, n_resamples=5),
    "TemperatureCurveDisplay": lambda cls, p: cls.from_predictions(p),
    "TrainingDynamicsDisplay": lambda cls, _: cls({"loss": [2.0, 1.0]}).plot(),
    "ValidationSizeDisplay": lambda cls, p: cls.from_predictions(
        p, p, methods=["temperature"], sizes=[50, 100], n_repeats=1
    ),
}


@dataclass(frozen=True)
class Entry:
    """A display that was drawn, and an empty folder."""

    display: Display
    folder: Path


contract = Contract()


@pytest.mark.parametrize("name", DISPLAYS)
def test_a_display_keeps_every_promise(name, logits, tmp_path, subtests):
    contract.check(subtests, Entry(DISPLAYS[name](getattr(calibrant.plots, name), logits), tmp_path))


def test_every_public_display_is_checked_here():
    assert sorted([*DISPLAYS, "Display"]) == calibrant.plots.__all__
    public = {name for name, value in vars(calibrant.plots).items() if inspect.isclass(value)}
    assert public == set(calibrant.plots.__all__)


@contract.promise
def given_axes_are_drawn_on_and_settings_come_back(entry):
    display, ax = entry.display, Figure().add_subplot()
    before = dict(mpl.rcParams)
    assert display.plot(ax, title="a title") is display
    assert display.ax_ is ax
    assert display.figure_ is ax.get_figure()
    assert ax.get_title() == "a title"
    assert dict(mpl.rcParams) == before
    display.figure_.draw_without_rendering()


@contract.promise
def a_figure_of_its_own_has_the_width_asked_for_and_pyplot_never_hears_of_it(entry):
    plt = pytest.importorskip("matplotlib.pyplot")
    before = plt.get_fignums()
    assert entry.display.plot(width=5.0, title="a title").figure_.get_size_inches()[0] == 5.0
    assert plt.get_fignums() == before
    with pytest.raises(InputError, match="width: expected inches from 1 to 40, got 100"):
        entry.display.plot(width=100)


@contract.promise
def vector_graphics_are_written_whole_and_text_stays_text(entry):
    check_files(entry.display, entry.folder, {".svg": b"<?xml"})


@contract.promise
def a_notebook_shows_the_figure_as_png(entry):
    assert isinstance(entry.display, Display)
    assert entry.display._repr_png_().startswith(b"\x89PNG")


def check_files(display, folder, starts):
    """Save the figure, titled ``a title``, in each format; check how each file begins, and its text."""
    for suffix, start in starts.items():
        display.save(folder / f"figure{suffix}")
        content = (folder / f"figure{suffix}").read_bytes()
        assert len(content) > 1000
        assert content.startswith(start)
        if suffix == ".svg":
            assert b">a title</text>" in content
    assert len(list(folder.iterdir())) == len(starts)


@pytest.mark.parametrize("name", at_length(DISPLAYS, ("ReliabilityDisplay", "BinErrorsDisplay")))
def test_a_pdf_is_written_whole(name, logits, tmp_path):
    display = DISPLAYS[name](getattr(calibrant.plots, name), logits)
    check_files(display.plot(title="a title"), tmp_path, {".pdf": b"%PDF"})


def test_a_png_is_written_whole(logits, tmp_path):
    display = calibrant.plots.ReliabilityDisplay.from_predictions(logits, n_resamples=5)
    check_files(display, tmp_path, {".png": b"\x89PNG"})


def test_equal_values_give_equal_files(logits, tmp_path):
    for suffix in (".svg", ".pdf"):
        for name in ("a", "b"):
            calibrant.plots.ReliabilityDisplay.from_predictions(logits).save(tmp_path / f"{name}{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_place_is_handed_on_from_predictions(logits, ax):
    made = calibrant.plots.RiskCoverageDisplay.from_predictions(logits, ax=ax, title="x")
    assert made.ax_ is ax
    assert ax.get_title() == "x"


def test_other_formats_are_refused(logits, tmp_path):
    display = calibrant.plots.RiskCoverageDisplay.from_predictions(logits)
    with pytest.raises(InputError, match=r"x.docx: expected a file named .pdf, .svg, .png, got '.docx'"):
        display.save(tmp_path / "x.docx")


def test_importing_the_displays_does_not_import_matplotlib():
    code = "import sys, calibrant.plots.kinds, calibrant.cli; print('matplotlib' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_a_read_only_system_is_told_in_one_sentence():
    code = """
import os, tempfile
from calibrant.errors import CalibrantError
from calibrant.plots import LossShapeDisplay

def refuse(*_, **__):
    raise OSError(30, "Read-only file system")

tempfile.mkdtemp = refuse
os.environ["MPLCONFIGDIR"] = "/proc/none"
try:
    LossShapeDisplay.from_functions({"log loss": lambda nll: nll})
except CalibrantError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("plot: expected a folder in which matplotlib may keep its list of fonts")


def computing_names(tree):
    """Names that a module imports from where things are computed."""
    layers = (
        "calibrant.metrics",
        "calibrant.evaluation",
        "calibrant.posthoc",
        "calibrant.bins",
        "scipy",
        "sklearn",
    )
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(layers)
        for alias in node.names
    }


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(calibrant.plots.__path__)])
def test_drawing_calls_nothing_that_computes(name):
    module = importlib.import_module(f"calibrant.plots.{name}")
    tree = ast.parse(inspect.getsource(module))
    computing = computing_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "draw" in node.name and name != "kinds":
            called = {
                n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
            }
            assert not called & computing, node.name


def test_a_display_that_was_not_drawn_draws_itself_when_saved(logits, tmp_path):
    bins = calibrant.plots.ReliabilityDisplay.from_predictions(logits).bins
    calibrant.plots.ReliabilityDisplay(bins).save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size > 1000


@pytest.mark.parametrize("k", [2, 30])
def test_few_and_many_classes_can_be_drawn(k):
    logits, labels = draw(300, k, sharpen=2.0)
    p = Predictions(logits=logits, labels=labels)
    for name in (
        "ClassReliabilityDisplay",
        "TemperatureCurveDisplay",
        "MarginGroupsDisplay",
        "MarginDiagnosisDisplay",
        "MarginReliabilityDisplay",
        "IndicatorsDisplay",
    ):
        getattr(calibrant.plots, name).from_predictions(p).figure_.draw_without_rendering()


def test_every_kind_says_what_it_means():
    assert all(kind.meaning for kind in KINDS.values())
