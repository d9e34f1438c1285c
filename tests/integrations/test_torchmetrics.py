"""The torchmetrics metric against the one-shot functions, in one process and in two."""

import json
import math
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from calibrant.errors import InputError
from calibrant.integrations.torchmetrics import CalibrationMetrics
from calibrant.metrics.accuracy import accuracy, mean_confidence, top_k_error
from calibrant.metrics.binned import (
    average_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    overconfidence,
    rms_calibration_error,
    underconfidence,
)
from calibrant.metrics.classwise import classwise_calibration_error
from calibrant.metrics.cumulative import averaged_two_bin_error
from calibrant.metrics.discrimination import auroc_correctness
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES
from calibrant.metrics.proper import brier_score, negative_log_likelihood, ranked_probability_score
from calibrant.metrics.selective import augrc, aurc, excess_aurc
from calibrant.streams.measures import streamed_measures

TOP_LABEL = {
    "accuracy": accuracy,
    "mean_confidence": mean_confidence,
    "ece": expected_calibration_error,
    "mce": maximum_calibration_error,
    "rmsce": rms_calibration_error,
    "ace": average_calibration_error,
    "overconfidence": overconfidence,
    "underconfidence": underconfidence,
}
OF_PROBS = {
    "nll": negative_log_likelihood,
    "brier": brier_score,
    "classwise_ece": classwise_calibration_error,
    "rps": ranked_probability_score,
}
RANKED = {
    "ece_equal_mass": lambda *batch: expected_calibration_error(*batch, binning="mass"),
    "auroc_correct": auroc_correctness,
    "aurc": aurc,
    "excess_aurc": excess_aurc,
    "augrc": augrc,
    "two_bin": averaged_two_bin_error,
}

# Forked after the imports, which take longer than the test.
WORKERS = """
import json, os, sys
import torch
from torch import distributed
from calibrant.integrations.torchmetrics import CalibrationMetrics

store, data, *outs = sys.argv[1:]
child = os.fork()
rank = 0 if child else 1
out = outs[rank]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
probs, labels = torch.load(data)
by_update = CalibrationMetrics(reads="probs", n_classes=probs.shape[1], resolution=64)
by_forward = CalibrationMetrics(reads="probs", n_classes=probs.shape[1], resolution=64)
idle_first = CalibrationMetrics(reads="probs", n_classes=probs.shape[1], resolution=64)
rows = torch.arange(len(labels))[rank::2]
for batch in [*rows.split(97 + 10 * rank), rows[:0]]:
    by_update.update(probs[batch], labels[batch])
    if len(batch):
        by_forward(probs[batch], labels[batch])
if rank == 1:
    idle_first.update(probs, labels)
else:
    idle_first.update(probs[:0], labels[:0])
results = [metric.compute() for metric in (by_update, by_forward, idle_first)]
with open(out, "w") as file:
    json.dump([{name: float(value) for name, value in result.items()} for result in results], file)
distributed.destroy_process_group()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def batches(probs, labels, size=97):
    return zip(torch.as_tensor(probs).split(size), torch.as_tensor(labels).split(size), strict=True)


def filled(probs, labels, **options):
    metric = CalibrationMetrics(**options)
    for preds, target in batches(probs, labels):
        metric.update(preds, target)
    return metric


def floats(values):
    return {name: float(value) for name, value in values.items()}


def test_its_measures_are_those_of_all_samples_at_once(sample):
    values = filled(*sample, reads="probs", n_classes=4, resolution=8192).compute()
    expected = {name: f(*sample) for name, f in (TOP_LABEL | OF_PROBS).items()}
    ranked = {name: f(*sample) for name, f in RANKED.items()}
    ends = {f"{name}_{end}" for name in ranked for end in ("low", "high")}
    assert set(values) == set(expected) | set(ranked) | ends
    assert all(value.dtype == torch.float64 for value in values.values())
    assert {name: float(values[name]) for name in expected} == pytest.approx(expected, abs=1e-12)
    for name, value in ranked.items():
        assert values[f"{name}_low"] - 1e-12 <= value <= values[f"{name}_high"] + 1e-12


def test_logits_and_confidences_are_named_and_read_as_such(overconfident):
    logits, labels = overconfident
    probs = torch.softmax(torch.tensor(logits), dim=1)
    of_logits = floats(filled(logits, labels, reads="logits", n_bins=10).compute())
    of_probs = floats(filled(probs, labels, reads="probs", n_bins=10).compute())
    assert of_logits == pytest.approx(of_probs, abs=1e-12)
    assert "classwise_ece" not in of_probs
    confidence, hits = probs.amax(dim=1), probs.argmax(dim=1) == torch.tensor(labels)
    of_pairs = floats(filled(confidence, hits, reads="confidence", n_bins=10).compute())
    # Of a black box, proper scores are those of two classes, wrong and right.
    millionths = torch.where(hits, confidence, 1 - confidence).mul(1e6).round().clamp(1, 999_999)
    scores = {
        "nll": float(-(millionths / 1e6).log().mean()),
        "brier": float((confidence - hits.double()).square().mean()),
    }
    assert of_pairs == pytest.approx({name: of_probs[name] for name in TOP_LABEL} | scores, abs=1e-11)


def test_its_names_are_those_of_calibrant_evaluate(sample):
    values = filled(*sample, reads="probs", n_classes=4, resolution=64).compute()
    names = [name for name in values if not name.endswith(("_low", "_high"))]
    assert names == [name for name in streamed_measures() if name not in ("top_5_error", "base_rate")]
    assert set(names) <= set(MEASURES)


def test_six_classes_have_a_top_five_error():
    rng = np.random.default_rng(0)
    batch = torch.tensor(rng.dirichlet(np.ones(6), 500)), torch.tensor(rng.integers(6, size=500))
    values = filled(*batch, reads="probs", n_classes=6).compute()
    assert float(values["top_5_error"]) == pytest.approx(top_k_error(*batch), abs=1e-12)


def test_a_measure_added_to_the_catalogue_is_collected_too(sample, monkeypatch):
    before = CalibrationMetrics(reads="probs")
    tenth = Measure(lambda **_: 0.0, "tenth", "tenth", "probs", terms=lambda probs, **_: probs[:, 0] / 10)
    monkeypatch.setitem(MEASURES, "tenth", tenth)
    values = floats(filled(*sample, reads="probs").compute())
    assert values["tenth"] == pytest.approx(float(np.mean(sample[0][:, 0])) / 10, abs=1e-12)
    before.update(*map(torch.as_tensor, sample))
    assert set(values) - set(before.compute()) == {"tenth"}


def test_forward_returns_the_batch_and_collects_the_stream(sample):
    metric = CalibrationMetrics(reads="probs", n_classes=4, resolution=64)
    for preds, target in batches(*sample):
        of_batch = metric(preds, target)
        assert float(of_batch["ece"]) == pytest.approx(expected_calibration_error(preds, target), abs=1e-12)
    one_batch = CalibrationMetrics(reads="probs", n_classes=4, resolution=64)
    one_batch.update(*map(torch.as_tensor, sample))
    assert floats(metric.compute()) == pytest.approx(floats(one_batch.compute()), abs=1e-12)


def test_an_empty_batch_changes_nothing_and_has_no_measures(sample):
    metric = filled(*sample, reads="probs")
    before = floats(metric.compute())
    of_batch = metric(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert set(of_batch) == set(before)
    assert all(math.isnan(value) for value in of_batch.values())
    assert floats(metric.compute()) == before
    metric.reset()
    with pytest.warns(UserWarning, match="before the ``update`` method"):
        assert math.isnan(metric.compute()["ece"])


def test_it_lives_in_a_collection_beside_metrics_of_torchmetrics(sample):
    collection = MetricCollection(
        {
            "calibration": CalibrationMetrics(reads="probs", n_classes=4),
            "coarse": CalibrationMetrics(reads="probs", n_bins=5),
            "theirs": MulticlassAccuracy(4, average="micro"),
        },
        prefix="val/",
    )
    for preds, target in batches(*sample):
        collection.update(preds=preds, target=target)
    values = floats(collection.compute())
    assert values["val/calibration_accuracy"] == pytest.approx(values["val/theirs"], abs=1e-6)
    assert values["val/calibration_ece"] == pytest.approx(expected_calibration_error(*sample), abs=1e-12)
    expected = expected_calibration_error(*sample, n_bins=5)
    assert values["val/coarse_ece"] == pytest.approx(expected, abs=1e-12)
    expected = classwise_calibration_error(*sample)
    assert values["val/calibration_classwise_ece"] == pytest.approx(expected, abs=1e-12)


def test_it_can_be_copied_saved_merged_reset_and_told_to_be_half(sample):
    options = {"reads": "probs", "n_classes": 4, "resolution": 64}
    metric = filled(*sample, **options)
    expected = floats(metric.compute())
    assert floats(pickle.loads(pickle.dumps(metric)).compute()) == expected
    assert floats(metric.clone().half().to("cpu").compute()) == expected

    metric.persistent(True)
    restored = CalibrationMetrics(**options)
    restored.persistent(True)
    restored.load_state_dict(metric.state_dict())
    restored.update(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert floats(restored.compute()) == expected

    probs, labels = sample
    half = filled(probs[:300], labels[:300], **options)
    half.merge_state(filled(probs[300:], labels[300:], **options))
    assert floats(half.compute()) == pytest.approx(expected, abs=1e-12)

    metric.reset()
    metric.update(*map(torch.as_tensor, sample))
    assert floats(metric.compute()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path, sample):
    data = tmp_path / "sample.pt"
    torch.save([torch.tensor(part) for part in sample], data)
    outs = [tmp_path / f"{rank}.json" for rank in range(2)]
    command = [sys.executable, "-c", WORKERS, str(tmp_path / "store"), str(data), *map(str, outs)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    expected = floats(filled(*sample, reads="probs", n_classes=4, resolution=64).compute())
    for out in outs:
        for values in json.loads(out.read_text()):
            assert values == pytest.approx(expected, abs=1e-12)


def test_wrong_options_are_refused():
    with pytest.raises(InputError, match="^reads: expected 'logits', 'probs' or 'confidence', got 'scores'"):
        CalibrationMetrics(reads="scores")
    with pytest.raises(InputError, match="^n_classes: expected none with reads='confidence'"):
        CalibrationMetrics(reads="confidence", n_classes=3)
    with pytest.raises(InputError, match="^n_bins: expected a whole number"):
        CalibrationMetrics(reads="probs", n_bins=0)


def test_without_torchmetrics_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "calibrant.integrations.torchmetrics")
    with pytest.raises(ImportError, match=r"pip install 'calibrant\[train\]'$"):
        import calibrant.integrations.torchmetrics  # noqa: F401  # the import is the test


def test_batches_of_numbers_far_apart_in_size_do_not_lose_the_small_ones():
    metric = CalibrationMetrics(reads="confidence", n_bins=1)
    metric.update(torch.full((1,), 0.9, dtype=torch.float64), torch.ones(1, dtype=torch.bool))
    for _ in range(30):
        metric.merge_state(metric)
    for _ in range(50):
        metric(torch.full((1,), 0.1, dtype=torch.float64), torch.zeros(1, dtype=torch.bool))
    total = float(metric.compute()["mean_confidence"]) * (2**30 + 50)
    assert total == pytest.approx(2**30 * np.float64(0.9) + 50 * 0.1, abs=3e-7)
