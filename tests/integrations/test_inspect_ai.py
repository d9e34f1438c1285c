"""The scorer and the metric of confidences, in runs of Inspect with a model that answers from a list."""

import re

import numpy as np
import pytest

from calibrant import evaluate, load_predictions

pytest.importorskip("inspect_ai", reason="inspect-ai is not installed (pip install inspect-ai; it is large)")

import inspect_ai
from inspect_ai.dataset import Sample
from inspect_ai.model import Logprob, Logprobs, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import SampleScore, Score, match
from inspect_ai.solver import generate

from calibrant.integrations.inspect_ai import STATED, calibration, stated_confidence, with_confidence

# Inspect's own packages give warnings.
pytestmark = pytest.mark.filterwarnings("ignore")

USAGE = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)


def run(tmp_path, answers, targets, *, log_format="eval"):
    for answer in answers:
        answer.usage = USAGE  # otherwise Inspect would download a tokeniser to count
    model = get_model("mockllm/model", custom_outputs=answers)
    samples = [Sample(input=f"question {i}", target=target) for i, target in enumerate(targets)]
    task = inspect_ai.Task(dataset=samples, solver=generate(), scorer=with_confidence(match("end")))
    (log,) = inspect_ai.eval(
        task, model=model, log_dir=str(tmp_path), log_format=log_format, display="none", max_samples=1
    )
    assert log.status == "success", log.error
    metrics = {name: each.value for score in log.results.scores for name, each in score.metrics.items()}
    return metrics, log.location


@pytest.mark.parametrize("log_format", ["eval", "json"])
def test_measures_of_a_run_are_those_of_its_log(tmp_path, log_format):
    confidences, right = [60, 70, 80, 90, 95, 100, 50, 65], [1, 0, 1, 1, 1, 1, 0, 1]
    answers = [ModelOutput.from_content("m", f"Confidence: {c}%\nANSWER: yes") for c in confidences]
    targets = ["yes" if hit else "no" for hit in right]
    metrics, log = run(tmp_path, answers, targets, log_format=log_format)
    read = load_predictions(log)
    assert read.confidence.tolist() == pytest.approx([c / 100 for c in confidences])
    assert read.outcomes().correct.tolist() == [hit == 1 for hit in right]
    assert metrics["n"] == 8
    measures = ["ece", "brier", "nll", "auroc_correct"]
    assert {name: metrics[name] for name in measures} == pytest.approx(
        evaluate(read, measures=measures).metrics
    )


def test_without_a_stated_confidence_it_is_that_of_the_tokens(tmp_path):
    answers = [ModelOutput.from_content("m", "yes") for _ in range(4)]
    for answer, log_prob in zip(answers, (-0.1, -0.2, -0.7, -1.5), strict=True):
        tokens = [Logprob(token="y", logprob=log_prob), Logprob(token="es", logprob=log_prob)]
        answer.choices[0].logprobs = Logprobs(content=tokens)
    metrics, log = run(tmp_path, answers, ["yes", "no", "yes", "no"])
    assert metrics["n"] == 4
    np.testing.assert_allclose(load_predictions(log).confidence, np.exp([-0.1, -0.2, -0.7, -1.5]), rtol=1e-6)


def test_answers_without_a_confidence_are_left_out_and_counted():
    measured = calibration(["ece", "brier"])
    scores = [
        SampleScore(score=Score(value="C", metadata={"confidence": 0.8})),
        SampleScore(score=Score(value=0, metadata={"confidence": 0.8})),
        SampleScore(score=Score(value="I", metadata={"confidence": None})),
        SampleScore(score=Score(value="P", metadata={"confidence": 0.5})),
        SampleScore(score=Score(value="I")),
    ]
    assert measured(scores) == {"n": 2, "ece": pytest.approx(0.3), "brier": pytest.approx(0.34)}
    none = measured(scores[1:])
    assert none["n"] == 1
    assert np.isnan(none["ece"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Confidence: 85%", 0.85),
        ("I am unsure.\nconfidence = 0.4", 0.4),
        ("CONFIDENCE - **90**", 0.9),
        ("confidence: 1", 1.0),
        ("confidence: .35; on reflection, confidence: 30 %", 0.3),
        ("confidence: 850%", None),
        ("no number of confidence here", None),
        ("", None),
    ],
)
def test_the_last_stated_confidence_counts(text, expected):
    assert stated_confidence(text, re.compile(STATED, re.IGNORECASE)) == expected
