"""``calibrant report``: a page, or one sentence and no file."""

import hashlib
import json
import webbrowser

import numpy as np
import pytest

from tests.conftest import draw

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, seed in (("val", 1), ("test", 2), ("other", 2), ("shift", 3)):
        logits, labels = draw(400, 4, seed=seed, sharpen=1.2 if name == "other" else 3.0)
        np.savez(tmp_path / f"{name}.npz", logits=logits, labels=labels)
    np.savez(tmp_path / "foreign.npz", logits=logits / 5)
    (tmp_path / "pairs.csv").write_text("confidence,correct\n0.9,1\n0.8,0\n0.6,1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_file_is_described_in_report_html(run, files):
    code, text, err = run("report", "test.npz")
    assert (code, err) == (0, "")
    assert text.startswith("report.html: Overconfident: confidence ")
    page = (files / "report.html").read_text()
    assert "calibrant report test.npz" in page
    assert "Methods compared" not in page


def test_a_pattern_of_files_is_described_as_one(run, files):
    code, _, err = run("report", "[to]*er.npz", "--out", "one.html")  # other.npz
    assert (code, err) == (0, "")
    digest = hashlib.sha256((files / "other.npz").read_bytes()).hexdigest()
    assert f"400 predictions, 4 classes, SHA-256 {digest[:16]}" in (files / "one.html").read_text()


def test_methods_are_compared_on_val_and_panels_appear_when_asked_for(run, files):
    told = ("--val", "val.npz", "--methods", "temperature", "--shift", "shift.npz", "--ood", "foreign.npz")
    code, _, _ = run("report", "test.npz", *told, "--out", "page.html")
    page = (files / "page.html").read_text()
    assert code == 0
    for heading in (
        "Methods compared",
        "Under distribution shift",
        "Out-of-distribution detection",
    ):
        assert heading in page
    assert 'data-name="uncalibrated"' in page  # the uncalibrated model is always first


def test_methods_with_options_are_text_on_the_page(run, files):
    wanted = "temperature(start=2),isotonic(mode='top_label'),smart(settled=0, epochs=5)"
    assert run("report", "test.npz", "--val", "val.npz", "--methods", wanted)[0] == 0
    page = (files / "report.html").read_text()
    assert '<option value="isotonic(mode=&#39;top_label&#39;)"' in page
    assert "temperature scaling (start=2)" in page
    assert "Temperature by logit margin" in page
    assert "Guo et al., ICML 2017" in page


def test_only_quick_methods_are_compared_if_asked_for(run, files):
    assert run("report", "test.npz", "--val", "val.npz", "--methods", "fast", "--out", "fast.html")[0] == 0
    page = (files / "fast.html").read_text()
    assert 'data-name="smart"' in page
    assert "structured" not in page.partition("<script")[0]


def test_models_are_compared_on_the_same_samples(run, files):
    assert run("report", "test.npz", "other.npz")[0] == 0
    page = (files / "report.html").read_text()
    assert "Models compared" in page
    assert '<option value="other.npz" selected>' in page


def test_pairs_have_a_page_too(run, files):
    assert run("report", "pairs.csv")[0] == 0
    assert "Measures" in (files / "report.html").read_text()


@pytest.mark.slow
def test_a_folder_is_shown_again_without_its_predictions(run, files):
    run("calibrate", "val.npz", "--test", "test.npz", "--methods", "uncalibrated,temperature", "--out", "dir")
    first = (files / "dir" / "report.html").read_text()
    for name in ("val.npz", "test.npz", "dir/report.html"):
        (files / name).unlink()
    code, text, _ = run("report", "dir")
    assert (code, text.partition(":")[0]) == (0, "dir/report.html")
    assert (files / "dir" / "report.html").read_text() == first
    assert run("report", "dir", "--shift", "shift.npz", "--out", "more.html")[0] == 0
    assert "after temperature scaling" in (files / "more.html").read_text()


def test_the_page_is_opened_when_asked_for(run, files, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    run("report", "pairs.csv", "--open")
    assert opened == [(files / "report.html").as_uri()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.npz",), "no such file"),
        (("foreign.npz",), "labels"),
        (("test.npz", "val.npz"), "expected the same samples in the same order"),
        (("test.npz", "test.npz"), "got one of them twice"),
        (("test.npz", "other.npz", "--val", "val.npz"), "expected one file beside --val, got 2"),
        (
            ("pairs.csv", "--val", "val.npz"),
            "expected scores of 4 classes, as in validation, got confidences of a black box",
        ),
        (("test.npz", "--val", "val.npz", "--methods", "alchemy"), "got 'alchemy'"),
        (("test.npz", "--out", "absent/page.html"), "expected an existing directory"),
        (("test.npz", "--out", "."), "got a directory"),
        (("empty",), "got one without results.json"),
        (("broken",), "got a file that is not JSON"),
        (("older",), "run calibrant calibrate again"),
        (("strange",), "expected 'title', got none"),
        (("older", "test.npz"), "a folder can only be combined with --shift"),
        (("older", "--measures", "ks"), "a folder can only be combined with --shift"),
        (("test.npz", "--measures", "alchemy"), "got 'alchemy'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_leaves_nothing_behind(run, files, arguments, message):
    saved = {"broken": "{", "older": "{}", "strange": json.dumps({"page": {}})}
    (files / "empty").mkdir()
    for name, text in saved.items():
        (files / name).mkdir()
        (files / name / "results.json").write_text(text)
    before = sorted(files.rglob("*"))
    code, out, err = run("report", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(files.rglob("*")) == before
