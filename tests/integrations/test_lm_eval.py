"""Functions for tasks of lm-evaluation-harness: by themselves, and in a run of the harness."""

import json
import math

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.errors import InputError
from calibrant.integrations.lm_eval import of_options, over_samples
from calibrant.posthoc import TemperatureScaling

SCORES = [[-1.0, -3.0, -2.0], [-0.5, -2.5], [-2.0, -1.0, -4.0], [-3.0, -0.2, -1.0]]
RIGHT = [0, 1, 1, 2]


def results(scores):
    return [(score, score == max(scores)) for score in scores]


def test_questions_give_the_accuracy_and_what_measures_read():
    process = of_options("answer", measures=["ece", "nll"])
    rows = [process({"answer": right}, results(scores)) for scores, right in zip(SCORES, RIGHT, strict=True)]
    assert [row["acc"] for row in rows] == [1.0, 0.0, 1.0, 0.0]
    of_right = [
        scores[right] - math.log(np.exp(scores).sum()) for scores, right in zip(SCORES, RIGHT, strict=True)
    ]
    assert over_samples("nll")([row["nll"] for row in rows]) == pytest.approx(-np.mean(of_right))
    confidence = [max(np.exp(scores) / np.exp(scores).sum()) for scores in SCORES]
    pairs = Predictions(confidence=confidence, correct=[1, 0, 1, 0])
    assert over_samples("ece")([row["ece"] for row in rows]) == pytest.approx(
        evaluate(pairs, measures=["ece"]).metrics["ece"]
    )


def test_a_calibrator_repairs_the_scores_first(tmp_path):
    TemperatureScaling(4.0).save(tmp_path / "t.safetensors")
    process = of_options(
        lambda doc: "AB".index(doc["key"]), measures=["nll"], calibrator=tmp_path / "t.safetensors"
    )
    log_probs, place = process({"key": "B"}, results([-1.0, -5.0]))["nll"]
    assert place == 1
    assert log_probs == pytest.approx([-math.log1p(math.exp(-1)), -1 - math.log1p(math.exp(-1))])


@pytest.mark.parametrize("right", [3, -1, "A", 1.0])
def test_a_place_that_is_none_is_refused(right):
    with pytest.raises(
        InputError, match=r"^right: expected the place of one of 2 options, got .*; give a function"
    ):
        of_options("answer", measures=["ece"])({"answer": right}, results([-1.0, -2.0]))


def test_a_run_of_the_harness_shows_the_measures(tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed (pip install lm-eval; it is large)")
    pytest.importorskip("datasets")
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Listed(LM):
        """A model that has a log-likelihood for each option."""

        def loglikelihood(self, requests):
            return [(float(request.args[1]), False) for request in requests]

        def loglikelihood_rolling(self, requests):
            raise NotImplementedError

        generate_until = loglikelihood_rolling

    rows = [
        {"question": f"q{i}", "options": [str(score) for score in scores], "answer": right}
        for i, (scores, right) in enumerate(zip(SCORES, RIGHT, strict=True))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    (tmp_path / "honesty.py").write_text(
        "from calibrant.integrations.lm_eval import of_options, over_samples\n"
        'process_results = of_options("answer", measures=["ece", "nll"])\n'
        'ece, nll = over_samples("ece"), over_samples("nll")\n',
        encoding="utf-8",
    )
    (tmp_path / "listed.yaml").write_text(
        f"""task: listed
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{tmp_path}/rows.jsonl"}}, cache_dir: "{tmp_path}/cache"}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{options}}}}"
doc_to_target: "{{{{answer}}}}"
process_results: !function honesty.process_results
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: ece, aggregation: !function honesty.ece, higher_is_better: false}}
  - {{metric: nll, aggregation: !function honesty.nll, higher_is_better: false}}
""",
        encoding="utf-8",
    )
    found = simple_evaluate(
        model=Listed(),
        tasks=["listed"],
        task_manager=TaskManager(include_path=str(tmp_path)),
        bootstrap_iters=0,
    )["results"]["listed"]
    process = of_options("answer", measures=["ece", "nll"])
    direct = [process(row, results(scores)) for row, scores in zip(rows, SCORES, strict=True)]
    for name in ("ece", "nll"):
        assert found[f"{name},none"] == pytest.approx(over_samples(name)([row[name] for row in direct]))
    assert found["acc,none"] == 0.5
