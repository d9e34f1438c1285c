"""Commands that read the boxes of a detector."""

import json

import numpy as np
import pytest

from calibrant.boxes import average_precision, match_pairs, read_detections, read_ground_truth
from calibrant.evaluation import evaluate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Overconfident detections of two classes in COCO's files."""
    made, rng = tmp_path_factory.mktemp("boxes"), np.random.default_rng(0)
    images, annotations, found = [], [], []
    for i in range(120):
        images.append({"id": i, "width": 300, "height": 200, "file_name": f"{i}.png"})
        for place in range(4):
            score, c = round(float(rng.uniform(0.3, 1)), 3), int(rng.integers(2))
            box = [75 * place, 20, 60, 30 + 70 * c]
            found.append({"image_id": i, "category_id": c + 1, "bbox": box, "score": score, "id": len(found)})
            if rng.random() < score**2:
                annotations.append({"id": len(annotations), "image_id": i, "category_id": c + 1, "bbox": box})
    annotations.append({"id": 999, "image_id": 0, "category_id": 1, "bbox": [0, 150, 20, 20]})
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    truth = {"images": images, "annotations": annotations, "categories": categories}
    (made / "truth.json").write_text(json.dumps(truth))
    (made / "found.json").write_text(json.dumps(found))
    return made


def read(path, folder):
    return read_detections(path, read_ground_truth(folder / "truth.json"))


@pytest.fixture
def given(folder):
    return (folder / "found.json", "--ground-truth", folder / "truth.json")


def test_evaluate_prints_what_python_measures(run_once, folder, given):
    code, out, err = run_once("evaluate", *given, "--json")
    assert code == 0, err
    printed = json.loads(out)
    pairs = match_pairs(read(folder / "found.json", folder))
    assert printed["metrics"]["ece"] == pytest.approx(evaluate(pairs.predictions).metrics["ece"])
    assert printed["n_units"] == 120
    ap = printed["detector"]["measures"]["ap_50"]["value"]
    assert ap == pytest.approx(average_precision(pairs.detections, iou=0.5).value)
    assert printed["detector"]["classes"]["cat"]["missed"] == 1
    assert {"class=cat", "size=medium"} <= set(printed["groups"])


def test_evaluate_as_text_has_a_table_of_boxes_and_one_of_classes(run_once, given):
    code, out, err = run_once("evaluate", *given, "--iou", "0.7", "--by", "position", "--intervals")
    assert code == 0, err
    assert "Overconfident: mean confidence" in out
    assert "overlap from 0.7" in out
    assert "top left" in out
    assert "1 of" in out
    assert "objects missed" in out


@pytest.mark.parametrize("keep", [False, True])
def test_calibrate_and_apply_write_results_of_coco(run_once, tmp_path, folder, given, keep):
    methods = () if keep else ("--methods", "platt,beta,combination,pool")
    code, _, err = run_once(
        "calibrate", *given, "--out", tmp_path, *(("--keep-accuracy",) if keep else methods)
    )
    assert code == 0, err
    before, rows = read(folder / "found.json", folder), json.loads((folder / "found.json").read_text())
    calibrator, new = tmp_path / "calibrator.safetensors", tmp_path / "new.json"
    code, out, err = run_once("apply", calibrator, *given, "--out", new)
    assert (code, f"{len(rows):,} boxes repaired" in out) == (0, True), err
    for path in (tmp_path / "repaired.json", new):
        written = json.loads(path.read_text())
        assert [{**row, "score": 0} for row in written] == [{**row, "score": 0} for row in rows]
        after = match_pairs(read(path, folder))
        assert abs(after.score.mean() - after.correct.mean()) < 0.03
    assert "after repair" in (tmp_path / "report.html").read_text()
    if keep:
        assert average_precision(read(new, folder)).value == pytest.approx(average_precision(before).value)


def test_report_has_the_part_about_a_detector(run_once, tmp_path, given):
    code, _, err = run_once("report", *given, "--out", tmp_path / "page.html")
    assert code == 0, err
    page = (tmp_path / "page.html").read_text()
    assert "objects missed" in page
    assert "The worst boxes" not in page


def test_decide_finds_a_threshold_for_each_class_that_apply_keeps(run_once, tmp_path, folder, given):
    rule, kept = tmp_path / "rule.safetensors", tmp_path / "kept.json"
    code, out, err = run_once("decide", *given, "--risk", "0.4", "--out", rule)
    assert code == 0, err
    assert "cat" in out
    assert "dog" in out
    code, out, err = run_once("apply", rule, *given, "--out", kept)
    assert code == 0, err
    boxes = match_pairs(read(kept, folder))
    assert 0 < boxes.detections.n < 480
    assert boxes.correct.mean() > 0.6


def test_folders_of_yolo_are_read_and_written_as_results_of_coco(run_once, tmp_path):
    for name in ("labels", "found"):
        (tmp_path / name).mkdir()
    rng = np.random.default_rng(0)
    for i in range(40):
        (tmp_path / "labels" / f"{i}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
        places = [
            (0.5 if right else 0.2, score)
            for right, score in zip(rng.random(3) < 0.5, rng.random(3), strict=True)
        ]
        text = "".join(f"0 {x} 0.5 0.2 0.2 {score}\n" for x, score in places)
        (tmp_path / "found" / f"{i}.txt").write_text(text)
    given = (tmp_path / "found", "--ground-truth", tmp_path / "labels", "--classes", "weed", "--by", "class")
    code, out, err = run_once("evaluate", *given)
    assert code == 0, err
    assert "weed" in out
    code, _, err = run_once("calibrate", *given, "--methods", "platt,beta", "--out", tmp_path / "out")
    assert code == 0, err
    written = json.loads((tmp_path / "out" / "repaired.json").read_text())
    assert len(written) == 120
    assert written[0]["image_id"] == "0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "{found}", "--classes", "a"), "--classes: expected together with --ground-truth"),
        (("evaluate", "{found}", "--ground-truth", "{truth}", "--unit", "image"), "got units of a table"),
        (
            ("evaluate", "{found}", "--ground-truth", "{truth}", "--by", "colour"),
            "--by: expected one of class",
        ),
        (("evaluate", "{found}", "--ground-truth", "{truth}", "--per-class"), "--per-class: expected none"),
        (("evaluate", "{found}", "--ground-truth", "no.json"), "no.json: no such file or folder"),
        (
            ("evaluate", "{found}", "--ground-truth", "{truth}", "--iou", "2"),
            "--iou: expected overlaps above 0",
        ),
        (
            ("evaluate", "{found}", "--ground-truth", "{truth}", "--classes", "a"),
            "classes: expected 2 names",
        ),
        (
            ("calibrate", "{found}", "--ground-truth", "{truth}", "--by", "size", "--keep-accuracy"),
            "--by: expected class alone",
        ),
    ],
)
def test_what_boxes_cannot_have_is_one_sentence(run_once, folder, arguments, message):
    paths = {"found": folder / "found.json", "truth": folder / "truth.json"}
    code, _, err = run_once(*(each.format(**paths) for each in arguments))
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_precision_of_a_class_has_its_interval_by_image(run_once, given):
    _, out, _ = run_once("evaluate", *given, "--json", "--intervals")
    for row in json.loads(out)["detector"]["classes"].values():
        low, high = row["precision_interval"]
        assert low < row["precision"] < high


@pytest.fixture(scope="module")
def parts(folder):
    """The images in two halves: detections of each, the ground truth of each, and a list of files."""
    found, truth = (json.loads((folder / f"{name}.json").read_text()) for name in ("found", "truth"))
    for name, inside in (("val", lambda i: i < 70), ("test", lambda i: i >= 70)):
        some = [each for each in found if inside(each["image_id"])]
        (folder / f"{name}.json").write_text(json.dumps(some))
        own = {
            **truth,
            "images": [each for each in truth["images"] if inside(each["id"])],
            "annotations": [each for each in truth["annotations"] if inside(each["image_id"])],
        }
        (folder / f"{name}_truth.json").write_text(json.dumps(own))
        (folder / f"{name}.txt").write_text("".join(f"{each['file_name']}\n" for each in own["images"]))
    return folder


def test_images_that_count_are_named_by_another_ground_truth_or_a_list(run_once, parts):
    own = run_once("evaluate", parts / "val.json", "--ground-truth", parts / "val_truth.json", "--json")
    assert json.loads(own[1])["detector"]["images"] == 70
    whole = ("--ground-truth", parts / "truth.json", "--json", "--only")
    for source in ("val.json", "found.json"):
        for only in ("val_truth.json", "val.txt"):
            assert run_once("evaluate", parts / source, *whole, parts / only)[1] == own[1]
    (parts / "other.txt").write_text("elsewhere.png\n")
    code, _, error = run_once("evaluate", parts / "val.json", *whole, parts / "other.txt")
    assert code == 2
    assert "other.txt: expected images of the ground truth, got 'elsewhere.png'" in error


def test_one_ground_truth_of_val_and_test_is_as_good_as_one_of_each(run_once, parts, tmp_path):
    command = ("calibrate", parts / "val.json", "--test", parts / "test.json", "--methods", "platt", "--json")
    each = ("--ground-truth", parts / "val_truth.json", "--test-ground-truth", parts / "test_truth.json")
    both = ("--ground-truth", parts / "truth.json")
    found = []
    for name, truth in (("each", each), ("both", both)):
        code, out, error = run_once(*command, *truth, "--out", tmp_path / name)
        assert code == 0, error
        answer = json.loads(out)
        for result in answer["methods"].values():
            del result["fit_seconds"]
        found.append((answer, json.loads((tmp_path / name / "repaired.json").read_text())))
        assert "of 200 objects" not in (tmp_path / name / "report.html").read_text()
    assert found[0] == found[1]
