"""``calibrant plot``: a figure, or one sentence and no file."""

import re

import numpy as np
import pytest

from calibrant.cli.flags import flag_of
from calibrant.plots.kinds import KINDS, RUN_KINDS
from calibrant.training.config.toml import load_config
from calibrant.training.folder import load_rows, load_runs
from calibrant.training.run import train
from tests.conftest import draw

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path):
    for name, seed in (("val", 1), ("test", 2)):
        logits, labels = draw(300, 4, seed=seed, sharpen=3.0)
        np.savez(tmp_path / f"{name}.npz", logits=logits, labels=labels)
    np.savez(tmp_path / "foreign.npz", logits=logits / 5)
    (tmp_path / "pairs.csv").write_text("confidence,correct\n0.9,1\n0.8,0\n0.6,1\n")
    return tmp_path


OPTIONS = {
    "methods": ("--val", "VAL", "--methods", "uncalibrated,temperature"),
    "validation-size": ("--val", "VAL", "--methods", "temperature"),
    "ood": ("--ood", "FOREIGN"),
    "estimate": ("--val", "VAL", "--methods", "temperature"),
    "frequencies": ("--val", "VAL"),
    "sets": ("--val", "VAL", "--methods", "temperature"),
    "margins": ("--val", "VAL", "--methods", "temperature,spline"),
    "margin-reliability": ("--val", "VAL", "--methods", "temperature,smart", "--bins", "2"),
    "temperature": ("--methods", "smart_paper(epochs=5)"),
    "risk-coverage": ("--val", "VAL", "--methods", "temperature"),
    "asking": ("--val", "VAL", "--methods", "temperature"),
    "reliability": ("--bins", "5", "--title", "after <all>", "--width", "4"),
}
NAMES = {"VAL": "val.npz", "TEST": "test.npz", "FOREIGN": "foreign.npz", "PAIRS": "pairs.csv"}


def named(files, arguments):
    return [files / NAMES[a] if a in NAMES else a for a in arguments]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn(run, files, kind):
    out = files / "figure.svg"
    code, text, err = run("plot", kind, *named(files, ("TEST", *OPTIONS.get(kind, ()))), "--out", out)
    assert (code, err) == (0, "")
    assert KINDS[kind].meaning in text
    assert "<text" in out.read_text()


def test_a_method_is_fitted_on_the_validation_set_and_shown(run, files):
    out = files / "figure.svg"
    errors = []
    for options in ((), ("--methods", "temperature", "--val", files / "val.npz")):
        run("plot", "smooth", files / "test.npz", *options, "--out", out)
        (text,) = [line for line in out.read_text().splitlines() if "smECE" in line and "<text" in line]
        errors.append(float(text.split("smECE ")[1].split()[0]))
    assert errors[1] < errors[0] / 2


def test_methods_with_options_are_drawn_by_name(run, files):
    out = files / "figure.svg"
    wanted = "temperature(start=2, n_bins = 5), isotonic(mode='top_label')"
    code, _, err = run(
        "plot", "methods", *named(files, ("TEST", "--val", "VAL")), "--methods", wanted, "--out", out
    )
    assert (code, err) == (0, "")
    assert "temperature(start=2, n_bins=5)" in out.read_text()


def test_title_and_width_are_options(run, files):
    out = files / "figure.svg"
    run("plot", "reliability", files / "test.npz", *OPTIONS["reliability"], "--out", out)
    assert 'width="288pt"' in out.read_text()
    assert "after &lt;all&gt;" in out.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reliability", "smooth", "corp", "histogram", "risk-coverage"])
def test_confidences_alone_suffice(run, files, kind):
    out = files / "figure.pdf"
    assert run("plot", kind, files / "pairs.csv", "--out", out)[0] == 0
    assert out.read_bytes().startswith(b"%PDF")


@pytest.fixture
def answers(tmp_path):
    """A black box that is overconfident: it is right in at most 70 % of the cases."""
    rng = np.random.default_rng(0)
    for name in ("val", "test"):
        stated = rng.choice([0.5, 0.8, 0.9, 1.0], 400)
        np.savez(tmp_path / f"{name}.npz", confidence=stated, correct=rng.random(400) < 0.2 + stated / 2)
    return tmp_path


def test_a_stated_confidence_is_repaired_and_shown(run, answers):
    out = answers / "figure.svg"
    errors = []
    for options in ((), ("--methods", "platt", "--val", answers / "val.npz")):
        assert run("plot", "reliability", answers / "test.npz", *options, "--out", out)[0] == 0
        (text,) = [line for line in out.read_text().splitlines() if "ECE " in line and "<text" in line]
        errors.append(float(text.split("ECE ")[1].split()[0]))
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if "validation" in kind.takes])
def test_every_figure_of_repaired_confidences_is_drawn_or_refused_in_a_sentence(run, answers, kind):
    out = answers / "figure.svg"
    given = ("--val", answers / "val.npz", "--methods", "isotonic")
    code, _, err = run("plot", kind, answers / "test.npz", *given, "--out", out)
    if KINDS[kind].needs_classes:
        assert (code, out.exists()) == (2, False)
        assert f"{kind}: expected logits or probs with labels, got confidences" in err
        assert err.count("\n") == 1
    else:
        assert (code, err) == (0, "")
        assert ("as stated" in out.read_text()) == (kind in ("risk-coverage", "asking"))


def test_methods_that_need_classes_are_refused_for_confidences(run, answers):
    given = ("--val", answers / "val.npz", "--methods", "dirichlet", "--out", answers / "x.svg")
    for kind in ("histogram", "validation-size"):
        code, _, err = run("plot", kind, answers / "test.npz", *given)
        assert code == 2
        assert "methods: expected methods that repair a confidence, got dirichlet" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("mystery", "TEST", "--out", "x.pdf"),
            "KIND: expected the name of a figure, got 'mystery'; known are reliability, ",
        ),
        (("reliability", "TEST", "--out", "x.docx"), "x.docx: expected a file named .pdf, .svg, .png, got"),
        (("reliability", "TEST", "--out", "x"), "got 'no suffix'"),
        (("reliability", "absent.npz", "--out", "x.pdf"), "no such file"),
        (("reliability", "TEST", "--out", "deep/x.pdf"), "expected an existing directory"),
        (("reliability", "TEST", "--out", "x.pdf", "--bins", "0"), "--bins: expected a whole number"),
        (("reliability", "TEST", "--out", "x.pdf", "--width", "90"), "width: expected inches from 1 to 40"),
        (("reliability", "TEST", "--out", "x.pdf", "--methods", "smart"), "--val: expected predictions"),
        (
            ("reliability", "TEST", "--out", "x.pdf", "--val", "VAL"),
            "--methods: expected the name of a method",
        ),
        (
            ("reliability", "TEST", "--out", "x.pdf", "--val", "VAL", "--methods", "magic"),
            "--methods: expected the name of a method, got 'magic'",
        ),
        (
            ("corp", "TEST", "--out", "x.pdf", "--val", "VAL", "--methods", "smart,spline"),
            "--methods: expected one for this figure, got smart, spline",
        ),
        (("ood", "TEST", "--out", "x.pdf"), "--ood: expected predictions of out-of-distribution samples"),
        (
            ("smooth", "TEST", "--out", "x.pdf", "--bins", "9"),
            "--bins: expected none for smooth, which takes",
        ),
        (("margins", "PAIRS", "--out", "x.pdf"), "expected logits"),
        (("margins", "TEST", "VAL", "--out", "x.pdf"), "FILE: expected one file for margins, got 2"),
        (
            ("temperature", "TEST", "--methods", "spline", "--out", "x.pdf"),
            "--methods: expected smart or smart_paper for this figure, got spline",
        ),
        (("methods", "TEST", "--out", "x.pdf"), "--val: expected predictions"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence_and_leaves_nothing_behind(
    run, files, monkeypatch, arguments, message
):
    monkeypatch.chdir(files)
    before = sorted(path.name for path in files.iterdir())
    code, out, err = run("plot", *named(files, arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in files.iterdir()) == before


def test_help_shows_an_example_and_the_option_that_lists_every_kind(run):
    code, out, _ = run("plot", "--help")
    assert code == 0
    assert "Example: calibrant plot reliability" in out
    assert "--list" in out
    code, out, err = run("plot", "--list", columns=300)
    assert (code, err) == (0, "")
    for name, kind in (KINDS | RUN_KINDS).items():
        (line,) = [line for line in out.splitlines() if re.match(rf"{name} +{re.escape(kind.meaning)}", line)]
        assert set(re.findall(r"--\w+", line)) == {flag_of(each) for each in getattr(kind, "takes", ())}


@pytest.fixture(scope="module")
def run_folders(tmp_path_factory):
    """Tiny runs: cross-entropy with two seeds, AdaFocal, and AdaFocal with another number of epochs."""
    folder = tmp_path_factory.mktemp("runs")
    small = ["data.limit=120", "training.epochs=2", "output.tensorboard=false"]
    wanted = {
        "ce-0": ["training.loss=cross_entropy"],
        "ce-1": ["training.loss=cross_entropy", "seed=1"],
        "ada": ["training.loss=adafocal"],
        "ada-3": ["training.loss=adafocal", "training.epochs=3"],
    }
    for name, words in wanted.items():
        train(load_config(None, [*small, *words]), folder / name)
    return folder


@pytest.mark.parametrize("kind", ["dynamics", "bins"])
def test_several_runs_are_drawn_in_one_figure_by_loss_and_seeds_are_averaged(
    run, run_folders, tmp_path, kind
):
    out = tmp_path / "figure.svg"
    code, _, err = run("plot", kind, *(run_folders / name for name in ("ce-0", "ce-1", "ada")), "--out", out)
    assert (code, err) == (0, "")
    legend = re.findall(r">(cross_entropy[^<]*|adafocal[^<]*)</text>", out.read_text())
    assert legend == ["cross_entropy, mean of 2", "adafocal"]


def test_runs_of_one_loss_that_differ_in_more_than_the_seed_have_the_names_of_their_folders(run_folders):
    runs = load_runs([run_folders / name for name in ("ce-0", "ada", "ada-3")])
    assert {name: len(each) for name, each in runs.items()} == {
        "cross_entropy": 1, "adafocal, ada": 1, "adafocal, ada-3": 1,
    }  # fmt: skip
    (one,) = runs["adafocal, ada-3"]
    assert one == load_rows(run_folders / "ada-3")
