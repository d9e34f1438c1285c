"""``calibrant calibrate``, ``apply`` and ``methods``: from predictions to a calibrator to be shipped."""

import inspect
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from calibrant import Predictions, evaluate, load_predictions, save_predictions
from calibrant.data.predictions import join_predictions
from calibrant.evaluation.calibrated import calibrated
from calibrant.posthoc import load_calibrator
from calibrant.posthoc.names import METHODS, resolve_methods
from tests.conftest import draw

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path):
    for name, seed in (("val", 1), ("test", 2)):
        logits, labels = draw(800, 4, seed=seed, sharpen=3.0)
        np.savez(tmp_path / f"{name}.npz", logits=logits, labels=labels)
    return tmp_path / "val.npz", tmp_path / "test.npz"


@pytest.mark.slow
def test_calibrate_compares_chooses_and_saves(run, files, tmp_path):
    out = tmp_path / "deep" / "out"
    arguments = (
        "calibrate",
        files[0],
        "--test",
        files[1],
        "--methods",
        "uncalibrated,temperature",
        "--out",
        out,
    )
    code, text, err = run(*arguments)
    assert (code, err) == (0, "")
    assert "\nIt changes the negative log-likelihood by -" in text
    assert "share" not in text  # of a pool, which was not asked for
    before, after = (
        evaluate(load_predictions(files[1])).metrics,
        json.loads((out / "results.json").read_text())["methods"]["temperature"]["test"],
    )
    assert (
        f"On the test set: ECE {100 * before['ece']:.2f} -> {100 * after['ece']:.2f} %, accuracy "
        f"{100 * before['accuracy']:.2f} %: no prediction changes.\n" in text
    )
    assert sorted(p.name for p in out.iterdir()) == [
        "calibrator.safetensors",
        "report.html",
        "results.json",
    ]
    results = json.loads((out / "results.json").read_text())
    assert (results["chosen"], results["score"]) == ("temperature", "nll")
    assert f"Chosen: temperature: {results['choice']}." in " ".join(text.split())
    assert "no simpler method is within one standard error of it by negative" in results["choice"]
    assert (
        results["methods"]["temperature"]["test"]["ece"] < results["methods"]["uncalibrated"]["test"]["ece"]
    )
    assert float(load_calibrator(out / "calibrator.safetensors").temperature) == pytest.approx(3, rel=0.2)


def test_every_method_is_fitted_once_per_fold_and_once_on_all_samples(run, files, tmp_path, monkeypatch):
    """Table, choice, saved calibrator and report use the same fits; fits inside other fits do not count."""
    names = ("uncalibrated", "temperature", "ensemble", "spline", "smart")
    calls, depth = Counter(), 0

    def counted(method, fit):
        def call(cls, *arguments, **options):
            nonlocal depth
            calls[method] += depth == 0
            depth += 1
            try:
                return fit.__func__(cls, *arguments, **options)
            finally:
                depth -= 1

        return classmethod(call)

    for name in names:
        calibrator = METHODS[name].calibrator
        monkeypatch.setattr(calibrator, "fit", counted(name, inspect.getattr_static(calibrator, "fit")))
    arguments = ("--methods", ",".join(names), "--folds", 3, "--out", tmp_path / "out")
    code, _, err = run("calibrate", files[0], "--test", files[1], *arguments)
    assert (code, err) == (0, "")
    assert "Temperature by logit margin" in (tmp_path / "out" / "report.html").read_text()
    assert calls == dict.fromkeys(names, 3 + 1)


def test_json_is_what_is_saved(run, files):
    code, text, _ = run("calibrate", files[0], "--methods", "temperature", "--json")
    answer = json.loads(text)
    assert code == 0
    assert answer["methods"]["temperature"]["test"] is None
    assert answer["methods"]["temperature"]["parameters"] == 1


def test_methods_with_options_are_named_in_tables_and_results(run, files, tmp_path):
    wanted = "temperature, vector( ridge = 1e3 ),temperature(start=2,n_bins=5)"
    code, text, err = run("calibrate", files[0], "--methods", wanted, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "temperature(start=2, n_bins=5) " in text
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(results["methods"]) == [
        "temperature",
        "temperature(start=2, n_bins=5)",
        "vector(ridge=1000.0)",
    ]
    assert run("report", tmp_path / "out")[0] == 0


def test_a_long_name_cuts_no_number(run, files):
    name = "smart(objective='charbonnier', indicator='margin', epochs=5, strength=30.0, settled=0)"
    text = run("calibrate", files[0], "--methods", f"temperature,{name}")[1]
    assert "strength=30.0" in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_quick_methods_and_those_that_keep_accuracy_can_be_asked_for(run, files):
    answer = json.loads(run("calibrate", files[0], "--methods", "fast", "--json")[1])
    quick = ["uncalibrated", "temperature", "ensemble", "spline", "smart", "pool"]
    assert list(answer["methods"]) == quick
    assert set(answer["methods"]["pool"]["weights"]) < set(quick)
    told = json.loads(run("calibrate", files[0], "--folds", 2, "--keep-accuracy", "--json")[1])
    assert list(told["methods"]) == resolve_methods("auto", n_classes=4, keep_accuracy=True)
    assert len({method["validation"]["accuracy"] for method in told["methods"].values()}) == 1


def test_the_documentation_lists_the_methods_that_are_compared_by_default():
    page = (Path(__file__).parents[2] / "docs" / "posthoc.md").read_text(encoding="utf-8")
    table = page.partition("`--methods auto` means ")[2].partition("\n\n")[0].splitlines()
    always, rows = re.findall("`(.*?)`", table[0]), [row.split("|")[1:3] for row in table[2:]]
    further = {problem.strip(): re.findall("`(.*?)`", names) for problem, names in rows}
    meant = {
        "two classes": resolve_methods("auto", n_classes=2),
        "3 to 300 classes": resolve_methods("auto", n_classes=300),
        "more than 300 classes": resolve_methods("auto", n_classes=301),
        "`--keep-accuracy`, up to 300 classes": resolve_methods("auto", n_classes=300, keep_accuracy=True),
        "`--keep-accuracy`, more than 300 classes": resolve_methods(
            "auto", n_classes=301, keep_accuracy=True
        ),
        "`--methods fast`, any number of classes": resolve_methods("auto", fast=True),
    }
    assert {problem: sorted(always + names) for problem, names in further.items()} == {
        problem: sorted(names) for problem, names in meant.items()
    }


def test_a_method_that_cannot_be_fitted_is_shown_with_the_reason(run, files):
    text = run("calibrate", files[0], "--methods", "temperature,proximity")[1]
    assert "proximity is left out: features: expected" in text


def test_apply_writes_calibrated_predictions_without_needing_labels(run, files, tmp_path):
    run("calibrate", files[0], "--methods", "temperature", "--out", tmp_path)
    logits = np.load(files[1])["logits"]
    np.savez(tmp_path / "new.npz", logits=logits)
    code, text, _ = run(
        "apply", tmp_path / "calibrator.safetensors", tmp_path / "new.npz", "--out", tmp_path / "x.csv"
    )
    assert code == 0
    assert "800 predictions calibrated by TemperatureScaling" in text
    assert load_predictions(tmp_path / "x.csv", need_labels=False).n == 800
    run("apply", tmp_path / "calibrator.safetensors", files[1], "--out", tmp_path / "honest.npz")
    before, after = (
        evaluate(load_predictions(p)).metrics["ece"] for p in (files[1], tmp_path / "honest.npz")
    )
    assert after < before / 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calibrate", "absent.npz"), "no such file"),
        (("calibrate", "VAL", "--methods", "alchemy"), "got 'alchemy'"),
        (("calibrate", "VAL", "--methods", "smart(setled=0)"), "got 'setled'; did you mean 'settled'?"),
        (("calibrate", "VAL", "--methods", "smart(settled=0"), "such as 'smart(settled=0)', got"),
        (("calibrate", "VAL", "--methods", "vector", "--keep-accuracy"), "predicted class, got vector;"),
        (("calibrate", "VAL", "--methods", "pool,vector", "--keep-accuracy"), "predicted class, got vector;"),
        (("calibrate", "VAL", "--out", "VAL"), "expected a folder, got the file"),
        (
            ("calibrate", "VAL", "--criterion", "auroc"),
            "--criterion: expected one of nll, brier, ece, classwise_ece",
        ),
        (("calibrate", "VAL", "--folds", "1"), "--folds: expected a whole number of at least 2, got 1"),
        (("apply", "VAL", "VAL", "--out", "x.npz"), "expected a safetensors file"),
        (("apply", "absent.safetensors", "VAL", "--out", "x.npz"), "no such file"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_leaves_nothing_behind(
    run, files, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    code, out, err = run(*[files[0] if a == "VAL" else a for a in arguments])
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_stream_is_sampled_for_the_fit_and_measured_as_a_whole(run, tmp_path, monkeypatch):
    """As if files of some kilobytes and samples of some hundred rows were large."""
    monkeypatch.setattr("calibrant.streams.files._LARGE", 10_000)
    monkeypatch.setattr("calibrant.evaluation.large_sets.MOST_ROWS", 300)  # twice as many of four classes
    for name in ("val", "test"):
        (tmp_path / name).mkdir()
        for part in range(2):
            logits, labels = draw(1000, 4, seed=part, sharpen=3.0)
            save_predictions(Predictions(logits=logits, labels=labels), tmp_path / name / f"{part}.parquet")
    given = ("calibrate", tmp_path / "val", "--test", tmp_path / "test", "--out", tmp_path / "out")
    code, out, err = run(*given, "--methods", "temperature", "--json")
    assert code == 0
    assert f"{tmp_path / 'val'}: methods see a sample of 600 rows of its 2,000, drawn with --seed 0" in err
    found = json.loads(out)
    assert found["n_validation"] == found["n_test"] == 600
    whole = join_predictions(
        {str(part): load_predictions(tmp_path / "test" / f"{part}.parquet") for part in range(2)}
    )
    fitted = load_calibrator(tmp_path / "out" / "calibrator.safetensors")
    after = evaluate(calibrated(fitted, whole)).metrics
    assert found["whole"]["n"] == 2000
    assert found["whole"]["before"]["nll"] == pytest.approx(evaluate(whole).metrics["nll"])
    assert found["whole"]["after"]["nll"] == pytest.approx(after["nll"])
    _, text, _ = run(*given, "--methods", "temperature")
    assert "On all 2,000 test rows: negative log-likelihood" in text
    code, out, err = run(*given, "--methods", "temperature", "--all-samples", "--json")
    assert code == 0
    assert "methods see a sample" not in err
    assert json.loads(out)["n_validation"] == 2000


def test_segments_are_looked_for_in_signals_and_refused_without_any(run, tmp_path):
    rng = np.random.default_rng(0)
    stated, length = rng.uniform(0.5, 1, 1500), rng.normal(size=1500)
    right = rng.random(1500) < stated - 0.4 * (length > 0.5)
    rows = [f"{c:.6f},{x:.6f},{int(y)}\n" for c, x, y in zip(stated, length, right, strict=True)]
    (tmp_path / "answers.csv").write_text("stated,length,correct\n" + "".join(rows))
    asked = ("calibrate", tmp_path / "answers.csv", "--by", "auto", "--methods", "platt", "--json")
    code, out, err = run(*asked, "--confidence", "stated,length")
    assert code == 0, err
    methods = json.loads(out)["methods"]
    assert methods["segments"]["validation"]["nll"] < methods["platt"]["validation"]["nll"] - 0.02
    code, _, err = run(*asked, "--confidence", "stated")
    assert code == 2
    assert "segments: expected features, or signals beside the confidence" in err
