"""A pool from the command line: chosen, explained, saved, applied, exported and monitored."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from calibrant import load_predictions
from calibrant.data import load_bundled, save_predictions
from calibrant.posthoc import Pool, load_calibrator

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Pooled:
    """What ``calibrate --keep-accuracy --out`` wrote and printed, and the predictions that it did not see."""

    folder: Path
    test: Path
    text: str

    @property
    def file(self):
        return self.folder / "calibrator.safetensors"

    @property
    def results(self):
        return json.loads((self.folder / "results.json").read_text())


@pytest.fixture(scope="module")
def pooled(tmp_path_factory, run_once):
    """Temperature scaling and the spline of a real network, of which neither is as good as both."""
    folder = tmp_path_factory.mktemp("pooled")
    save_predictions(load_bundled("cifar10_val").take(range(2000)), folder / "val.npz")
    save_predictions(load_bundled("cifar10_test").take(range(2000)), folder / "test.npz")
    told = ("--methods", "temperature,spline,pool", "--keep-accuracy", "--out", folder / "out")
    code, text, err = run_once("calibrate", folder / "val.npz", "--test", folder / "test.npz", *told)
    assert (code, err) == (0, "")
    return Pooled(folder / "out", folder / "test.npz", text)


def test_the_last_lines_say_what_was_chosen_and_why(pooled):
    weights = pooled.results["methods"]["pool"]["weights"]
    members = ", ".join(f"{100 * share:.0f} % {name}" for name, share in weights.items())
    sentence = f"Chosen: pool ({members}, then temperatures): {pooled.results['choice']}."
    assert sentence in " ".join(pooled.text.split())
    assert "better than temperature scaling by negative log-likelihood" in sentence


def test_the_table_shows_the_shares(pooled):
    lines = pooled.text.splitlines()
    end = next(line for line in lines if "share" in line).index("share") + len("share")
    shares = {name: row[:end].split()[-1] for row in lines if (name := row.strip("→ ").partition(" ")[0])}
    for name, share in pooled.results["methods"]["pool"]["weights"].items():
        assert shares[name] == f"{100 * share:.0f}"
    row = next(line for line in lines if line.startswith("→ pool"))
    assert row[end - len("share") : end].strip() == ""


def test_results_have_the_reason_the_score_the_weights_and_the_temperature(pooled):
    results, pool = pooled.results, load_calibrator(pooled.file)
    assert isinstance(pool, Pool)
    assert (results["chosen"], results["score"]) == ("pool", "nll")
    found = results["methods"]["pool"]
    assert found["weights"] == pytest.approx(pool.weights)
    assert found["temperature"] == pytest.approx(float(pool.temperature))
    assert "weights" not in results["methods"]["temperature"]


def test_keep_accuracy_never_changes_a_class_through_the_file_and_apply(run, pooled, tmp_path):
    test = load_predictions(pooled.test)
    classes = test.logits.argmax(dim=1)
    pool = load_calibrator(pooled.file)
    assert pool.preserves_accuracy
    assert (pool.predict_proba(test.logits).argmax(dim=1) == classes).all()
    code, text, _ = run("apply", pooled.file, pooled.test, "--out", tmp_path / "applied.npz")
    assert code == 0
    assert "2,000 predictions calibrated by Pool" in text
    applied = load_predictions(tmp_path / "applied.npz")
    assert (applied.logits.argmax(dim=1) == classes).all()
    assert np.allclose(applied.to_probs(), pool.predict_proba(test.logits), atol=1e-6)


@pytest.mark.long
def test_the_onnx_graph_of_a_pool_equals_predict_proba(run, pooled, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    code, text, _ = run("export", pooled.file, "--out", tmp_path / "pool.onnx")
    assert code == 0
    assert "Pool as an ONNX graph" in text
    logits = np.asarray(load_predictions(pooled.test).logits, dtype=np.float32)
    graph = onnxruntime.InferenceSession(tmp_path / "pool.onnx")
    (log_probs,) = graph.run(["log_probs"], {"logits": logits})
    expected = load_calibrator(pooled.file).predict_proba(logits)
    assert np.abs(np.exp(log_probs) - expected).max() <= 1e-6


def test_predictions_of_a_pool_can_be_monitored(run, pooled, tmp_path):
    run("apply", pooled.file, pooled.test, "--out", tmp_path / "applied.npz")
    code, text, err = run("monitor", tmp_path / "applied.npz", tmp_path / "applied.npz", "--window", 500)
    assert (code, err) == (0, "")
    assert text.count("stable") == 4


def test_the_report_of_the_folder_has_the_shares(run, pooled, tmp_path):
    assert run("report", pooled.folder, "--out", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    widths = [float(width) for width in re.findall(r'<div class="share">.*?width:([\d.]+)%', page)]
    weights = pooled.results["methods"]["pool"]["weights"]
    assert sorted(widths) == pytest.approx(sorted(100 * share for share in weights.values()))


@pytest.mark.parametrize(("score", "measure"), [("brier", "Brier score"), ("ece", "ECE, equal width")])
def test_the_score_decides_and_is_named(run, pooled, score, measure):
    told = ("--methods", "uncalibrated,temperature,spline,pool", "--criterion", score, "--json")
    answer = json.loads(run("calibrate", pooled.test, *told)[1])
    assert answer["score"] == score
    assert measure in answer["choice"]


def test_simple_prefers_a_method_that_is_as_good_as_the_pool(run, pooled):
    """Maps of single classes are within one standard error of their pool here, temperature scaling is not."""
    names = "uncalibrated,temperature,vector,structured_vector,pool"
    told = (pooled.test, "--methods", names, "--json")
    pool, simple = (json.loads(run("calibrate", *told, *more)[1]) for more in ((), ("--simple",)))
    assert pool["chosen"] == "pool"
    assert simple["chosen"] in ("vector", "structured_vector")
    assert simple["choice"].startswith("the simplest method within one standard error of the pool by")


def test_eighty_characters_show_every_measure_and_the_shares(pooled):
    """Parameters and times are left out before a number would be cut."""
    from calibrant.evaluation import compare
    from calibrant.show.terminal import fitted

    names = ["temperature", "structured_vector_smart", "pool"]
    comparison = compare(load_predictions(pooled.test).take(range(500)), methods=names, n_resamples=20)
    headings = {
        width: [column.title for column in fitted(comparison.to_table(comparison["pool"]), width).columns]
        for width in (80, 86, 120)
    }
    assert headings[120][-4:] == ["share %", "change of NLL", "fit s", "params"]
    assert headings[86][-2:] == ["share %", "fit s"]
    assert headings[80][-1:] == ["share %"]
