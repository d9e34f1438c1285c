"""A folder for the Hugging Face Hub, read back by its own library; and the module for ``evaluate``."""

import json
from pathlib import Path

import numpy as np
import pytest

from calibrant import Predictions, evaluate, load_calibrator
from calibrant.errors import CalibrantError
from calibrant.evaluation import calibrated
from calibrant.integrations.hub import write_hub_folder
from calibrant.posthoc import ConfidenceCalibrator, TemperatureScaling
from tests.conftest import draw

EXAMPLE = Path(__file__).parents[2] / "examples" / "huggingface" / "ece"


@pytest.fixture
def fitted():
    logits, labels = draw(600, 4, sharpen=3.0)
    return TemperatureScaling.fit(logits[:300], labels[:300]), Predictions(
        logits=logits[300:], labels=labels[300:]
    )


def test_the_hub_reads_the_measures_of_the_card(tmp_path, fitted):
    hub = pytest.importorskip("huggingface_hub")
    calibrator, test = fitted
    write_hub_folder(
        calibrator, test, tmp_path / "honest", name="topics", data="news", task="text-classification"
    )
    card = hub.ModelCard.load(tmp_path / "honest" / "README.md")
    found = {each.metric_type: each.metric_value for each in card.data.eval_results}
    expected = evaluate(calibrated(calibrator, test), measures=list(found)).metrics
    assert set(found) == {"accuracy", "ece", "nll", "brier"}
    assert found == pytest.approx(expected)
    assert {(each.task_type, each.dataset_name) for each in card.data.eval_results} == {
        ("text-classification", "news")
    }
    assert (card.data.library_name, card.data.model_name) == ("calibrant", "topics")
    for picture in ("before.png", "after.png"):
        assert f"]({picture})" in card.text
        assert (tmp_path / "honest" / picture).read_bytes().startswith(b"\x89PNG")


def test_the_calibrator_and_its_configuration_are_beside_the_card(tmp_path, fitted):
    calibrator, test = fitted
    (tmp_path / "kept").write_text("of git", encoding="utf-8")
    write_hub_folder(calibrator, test, tmp_path)
    loaded = load_calibrator(tmp_path / "calibrator.safetensors")
    assert float(loaded.temperature) == float(calibrator.temperature)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (config["calibrator"], config["takes"], config["n_classes"]) == ("TemperatureScaling", "logits", 4)
    assert (tmp_path / "kept").read_text(encoding="utf-8") == "of git"


def test_a_card_of_confidences_says_how_to_use_them(tmp_path):
    rng = np.random.default_rng(0)
    confidence = rng.beta(5, 2, size=400)
    pairs = Predictions(confidence=confidence, correct=rng.random(400) < confidence**2)
    calibrator = ConfidenceCalibrator.fit_pairs(pairs.confidence, pairs.correct, method="platt")
    write_hub_folder(calibrator, pairs, tmp_path / "honest")
    assert "predict_confidence(stated)" in (tmp_path / "honest" / "README.md").read_text(encoding="utf-8")
    assert (
        json.loads((tmp_path / "honest" / "config.json").read_text(encoding="utf-8"))["takes"] == "confidence"
    )


def test_nothing_is_written_without_labels_or_for_other_classes(tmp_path, fitted):
    calibrator, test = fitted
    for wrong in (
        Predictions(logits=test.logits),
        Predictions(logits=test.logits[:, :3], labels=test.labels % 3),
    ):
        with pytest.raises(CalibrantError, match="expected"):
            write_hub_folder(calibrator, wrong, tmp_path / "honest")
    assert not (tmp_path / "honest").exists()


def test_the_command_writes_the_folder(run_once, tmp_path, fitted):
    calibrator, test = fitted
    calibrator.save(tmp_path / "c.safetensors")
    np.savez(tmp_path / "test.npz", logits=test.logits.numpy(), labels=test.labels.numpy())
    given = ("export", tmp_path / "c.safetensors", "--test", tmp_path / "test.npz", "--out")
    code, out, _ = run_once(*given, tmp_path / "honest")
    assert code == 0
    assert out.strip().endswith("honest: TemperatureScaling with its model card; nothing was uploaded")
    assert "(test.npz)" in (tmp_path / "honest" / "README.md").read_text(encoding="utf-8")
    code, _, err = run_once(*given, tmp_path / "again", "--classes", 4)
    assert code != 0
    assert "--test: expected alone, got --model or --classes" in err


def test_the_module_of_evaluate_gives_our_measures(fitted):
    library = pytest.importorskip("evaluate", reason="evaluate is not installed (pip install evaluate)")
    _, test = fitted
    probs = np.asarray(test.to_probs())
    found = library.load(str(EXAMPLE)).compute(predictions=probs, references=test.labels.numpy())
    assert found == pytest.approx(evaluate(test, measures=["ece", "nll", "brier"]).metrics)
