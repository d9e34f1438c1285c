"""Repair of detectors: scores, files of COCO, and AP that a monotone repair must not lower."""

import json

import numpy as np
import pytest

from calibrant.boxes import (
    Detections,
    average_precision,
    box_predictions,
    match_pairs,
    repaired_scores,
    write_repaired,
)
from calibrant.boxes.coco import as_coco_results
from calibrant.boxes.repair import MONOTONE_METHODS, in_order_of, kept_boxes
from calibrant.decisions import find_group_thresholds
from calibrant.evaluation import compare
from calibrant.integrations.onnx import export_onnx
from calibrant.posthoc import ByGroup, ConfidenceCalibrator
from calibrant.posthoc.calibrator import group_places
from tests.boxes.random_boxes import CLASSES, detector


@pytest.fixture(scope="module")
def found():
    return detector(0)


@pytest.mark.parametrize("method", [*MONOTONE_METHODS[1:-1], "isotonic"])
def test_a_monotone_repair_of_each_class_leaves_average_precision_as_it_was(found, method):
    pairs = match_pairs(found, by=("class",)).predictions.replaced(signals={})
    base = ConfidenceCalibrator.fit_pairs(pairs.confidence, pairs.correct, method=method, units=pairs.units)
    scores = repaired_scores(base, found)
    assert np.abs(scores - found.score).max() > 0.05
    repaired = Detections(found.truth, found.boxes, scores, found.image, found.label)
    assert average_precision(repaired).value == pytest.approx(average_precision(found).value, abs=1e-12)


def test_the_methods_that_keep_order_rise_with_the_score_in_every_class(found):
    comparison = compare(
        match_pairs(found, by=("class",)).predictions.replaced(signals={}), methods=list(MONOTONE_METHODS)
    )
    assert {each.name for each in comparison.results} == {*MONOTONE_METHODS, "by_group"}
    before = average_precision(found).value
    for each in comparison.results:
        if each.name != "uncalibrated":
            scores = repaired_scores(each.calibrator, found)
            for label in range(3):
                inside = found.label == label
                order = np.argsort(found.score[inside], kind="stable")
                assert (np.diff(scores[inside][order]) >= 0).all(), each.name
            repaired = Detections(found.truth, found.boxes, scores, found.image, found.label)
            assert average_precision(repaired).value == pytest.approx(before, abs=1e-12), each.name


def test_equal_repaired_scores_keep_the_order_of_their_own_scores(found):
    same = in_order_of(np.full(found.n, 0.5), found)
    assert same == pytest.approx(np.full(found.n, 0.5), abs=1e-8)
    for label in range(3):
        inside = found.label == label
        own, new = found.score[inside], same[inside]
        assert (np.sign(own[:, None] - own) == np.sign(new[:, None] - new)).all()


def test_repair_by_class_and_size_makes_held_out_boxes_calibrated(found):
    fitted, new = match_pairs(found), match_pairs(detector(1))
    base = compare(fitted.predictions, methods=["platt", "beta", "combination", "pool"])
    repaired = base.results[-1]
    assert repaired.name == "by_group"
    scores = repaired_scores(repaired.calibrator, new.detections)
    for c in range(3):
        inside = new.detections.label == c
        gap_before, gap = (s[inside].mean() - new.correct[inside].mean() for s in (new.score, scores))
        assert abs(gap) < 0.06 < gap_before


def test_scores_of_other_groups_and_signals_are_those_of_the_calibrator(found):
    pairs = match_pairs(found, by=("position",)).predictions
    groups = pairs.groups.values
    by_position = ConfidenceCalibrator(
        ByGroup.fit(pairs.problem.to_logits(), pairs.correct.long(), groups=groups, method="platt"),
        ConfidenceCalibrator.fit_pairs(pairs.confidence, pairs.correct, method="platt").ends,
    )
    expected = by_position.predict_confidence(pairs.confidence, groups=groups)
    assert repaired_scores(by_position, found) == pytest.approx(expected.numpy(), abs=1e-8)
    nobody = box_predictions(found, by=())
    assert nobody.groups is None


def test_results_of_coco_keep_order_and_fields(tmp_path, found):
    rows = [{**row, "track": place} for place, row in enumerate(as_coco_results(found))]
    (tmp_path / "in.json").write_text(json.dumps(rows))
    kept = found.score > 0.5
    assert write_repaired(tmp_path / "in.json", tmp_path / "out.json", found, found.score / 2) == found.n
    written = json.loads((tmp_path / "out.json").read_text())
    assert written == [{**row, "score": row["score"] / 2} for row in rows]
    assert (
        write_repaired(tmp_path / "in.json", tmp_path / "kept.json", found, found.score, kept=kept)
        == kept.sum()
    )
    assert json.loads((tmp_path / "kept.json").read_text()) == [row for row in rows if row["score"] > 0.5]


def test_a_threshold_of_each_class_keeps_its_guarantee_on_new_images(found):
    pairs = match_pairs(found, by=("class",))
    thresholds = find_group_thresholds(pairs.predictions, risk=0.35)
    assert thresholds.rule is not None
    new = match_pairs(detector(2), by=("class",))
    kept = kept_boxes(thresholds.rule, new.detections)
    for c, name in enumerate(CLASSES):
        inside = (new.detections.label == c) & kept
        lowest = thresholds.groups[name].threshold
        if lowest is None:
            assert not inside.any()
        else:
            assert (inside == ((new.detections.label == c) & (new.score >= lowest))).all()
            assert 1 - new.correct[inside].mean() < 0.35


@pytest.mark.slow
def test_the_graph_of_a_repair_by_class_and_size_reads_score_position_and_size(found, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pairs = match_pairs(found)
    comparison = compare(pairs.predictions, methods=["combination"])
    calibrator = comparison["by_group"].calibrator
    export_onnx(calibrator, tmp_path / "graph.onnx")
    graph = runtime.InferenceSession(tmp_path / "graph.onnx")
    new = box_predictions(found)
    columns, names = calibrator.group_columns, calibrator.group_names
    places = group_places(new.groups.by_column, names, n=new.n, columns=columns)
    given = {
        "confidence": new.confidence.float().numpy(),
        "features": new.beside.float().numpy(),
        "groups": places.numpy(),
    }
    assert {each.name for each in graph.get_inputs()} == set(given)
    (repaired,) = graph.run(["repaired"], given)
    assert repaired == pytest.approx(repaired_scores(calibrator, found), abs=1e-4)
