"""Measures of score maps: equal to those of all pixels as rows, in memory that does not grow."""

import numpy as np
import pytest
import scipy
import torch
from sklearn.metrics import jaccard_score

from calibrant import Predictions, evaluate
from calibrant.errors import InputError
from calibrant.pixels import PixelImage, PixelMeasures, evaluate_pixels, images_of_batches
from calibrant.pixels.borders import BANDS, band_names, border_bands
from tests.pixels.scenes import flat, scene


def _maps(scores, masks, form="logits"):
    return images_of_batches([(torch.as_tensor(scores), torch.as_tensor(masks))], form=form)


@pytest.mark.parametrize("form", ["logits", "probs"])
def test_measures_are_those_of_all_pixels_as_rows(form):
    scores, masks = scene()
    scores = scores if form == "logits" else scipy.special.softmax(scores, axis=1)
    found = evaluate_pixels(_maps(scores, masks, form))
    rows, labels, _ = flat(scores, masks)
    expected = evaluate(Predictions(**{form: rows}, labels=labels), measures=list(found.metrics))
    for name, value in found.metrics.items():
        assert value == pytest.approx(expected.metrics[name], abs=1e-12), name
    assert found.n == len(labels)


def test_maps_in_single_precision_are_summed_in_double_precision():
    scores, masks = scene(dtype=np.float32)
    found = evaluate_pixels(_maps(scores, masks))
    p = torch.softmax(torch.as_tensor(scores), dim=1).double().numpy()
    rows, labels, _ = flat(p, masks)
    confidence, right = rows.max(axis=1), rows.argmax(axis=1) == labels
    assert found.metrics["mean_confidence"] == pytest.approx(confidence.mean(), abs=1e-12)
    assert found.metrics["accuracy"] == pytest.approx(right.mean(), abs=1e-12)
    of_class = rows[np.arange(len(rows)), labels]
    assert found.metrics["nll"] == pytest.approx(-np.log(of_class).mean(), abs=1e-12)


def test_intervals_draw_images_as_those_of_rows_with_units_do():
    scores, masks = scene(30)
    found = evaluate_pixels(_maps(scores, masks), intervals=True)
    rows, labels, images = flat(scores, masks)
    expected = evaluate(
        Predictions(logits=rows, labels=labels, units=images), measures=list(found.metrics), intervals=True
    )
    for name in ("accuracy", "nll", "brier", "ece"):
        ours, theirs = found.intervals[name], expected.intervals[name]
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-6)


def test_classes_bands_and_images_are_those_of_their_pixels():
    scores, masks = scene(6)
    found = evaluate_pixels(_maps(scores, masks))
    rows, labels, images = flat(scores, masks)
    predicted = rows.argmax(axis=1)
    assert found.mean_iou == pytest.approx(jaccard_score(labels, predicted, average="macro"))
    for part in found.classes:
        own = predicted == int(part.name)
        part_of = Predictions(logits=rows[own], labels=labels[own])
        expected = evaluate(part_of, measures=["ece", "accuracy", "mean_confidence"])
        assert {name: part.metrics[name] for name in expected.metrics} == pytest.approx(expected.metrics)
        assert part.recall == pytest.approx((predicted == labels)[labels == int(part.name)].mean())
    void = masks == 255
    of_pixels = np.stack([border_bands(np.where(v, 0, m), ~v) for v, m in zip(void, masks, strict=True)])
    for part in found.bands:
        own = of_pixels[~void] == band_names().index(part.name)
        expected = evaluate(Predictions(logits=rows[own], labels=labels[own]), measures=["ece", "accuracy"])
        assert {name: part.metrics[name] for name in expected.metrics} == pytest.approx(expected.metrics)
    worst = found.worst[0]
    own = images == int(worst.name.removeprefix("image "))
    one = evaluate(Predictions(logits=rows[own], labels=labels[own]), measures=["ece", "accuracy"])
    assert (worst.ece, worst.accuracy) == pytest.approx((one.metrics["ece"], one.metrics["accuracy"]))


@pytest.mark.parametrize("ignoring", [False, True])
def test_bands_are_steps_to_the_next_pixel_of_another_class(ignoring):
    rng = np.random.default_rng(int(ignoring))
    for _ in range(12):
        height, width = rng.integers(1, 40, size=2)
        labels = (rng.random((height, width)) < rng.choice([0.002, 0.05])).astype(np.uint8)
        ignored = rng.random((height, width)) < 0.1 if ignoring else np.zeros((height, width), dtype=bool)
        labels[ignored] = 0
        found = border_bands(labels, ~ignored if ignoring else None)
        for row, column in np.argwhere(~ignored):
            others = np.argwhere((labels != labels[row, column]) & ~ignored)
            steps = np.abs(others - [row, column]).max(axis=1).min() if len(others) else np.inf
            assert found[row, column] == sum(steps > end for end in BANDS)


def test_sums_of_parts_add_up_and_take_the_same_memory():
    scores, masks = scene(8)
    whole, left, right = (PixelMeasures(ranks=True) for _ in range(3))
    for number, image in enumerate(_maps(scores, masks)):
        whole.add(image)
        (left if number < 5 else right).add(image)
    before = sum(each.nbytes for each in left.sums.values())
    left.merge(right)
    assert left.compute().metrics == pytest.approx(whole.compute().metrics, abs=1e-12)
    assert sum(each.nbytes for each in left.sums.values()) == before
    assert left.compute().worst == whole.compute().worst


@pytest.mark.parametrize("form", ["logits", "probs"])
def test_measures_of_ranks_have_bounds_that_hold_those_of_all_pixels_as_rows(form):
    scores, masks = scene()
    scores = scores if form == "logits" else scipy.special.softmax(scores, axis=1)
    found = evaluate_pixels(_maps(scores, masks, form), ranks=True)
    rows, labels, _ = flat(scores, masks)
    expected = evaluate(Predictions(**{form: rows}, labels=labels), measures=list(found.bounds)).metrics
    ranked = {"aurc", "excess_aurc", "augrc", "auroc_correct", "ece_equal_mass", "two_bin"}
    assert set(found.bounds) == ranked
    for name, each in found.bounds.items():
        assert each.low - 1e-12 <= expected[name] <= each.high + 1e-12, name
        assert each.high - each.low < 1e-3
        assert found.metrics[name] == each.value
    assert "AURC" in str(found)


def test_probabilities_a_little_above_one_count_as_one():
    scores = torch.tensor([[[[1.0005, 0.3]], [[0.0, 0.7]]]])
    found = evaluate_pixels(_maps(scores, torch.tensor([[[0, 1]]]), "probs"))
    assert found.bins.count[-1] == 1
    assert found.metrics["mean_confidence"] == pytest.approx(0.85)
    assert [part.n for part in found.bands] == [2]


def test_an_image_in_which_all_is_ignored_is_counted_and_left_out():
    scores, masks = scene(4)
    masks[1] = 255
    found = evaluate_pixels(_maps(scores, masks))
    assert (found.n_images, found.n_ignored) == (3, 1)
    assert "1 images are left out" in str(found)
    with pytest.raises(
        InputError, match="^score maps: expected an image with pixels that count, got none, 4 images .*; look"
    ):
        evaluate_pixels(_maps(scores, np.full_like(masks, 255)))


def test_an_unlikely_class_in_single_precision_has_the_loss_of_its_logits():
    scores = torch.zeros(1, 2, 1, 2)
    scores[0, 0] = 200.0
    found = evaluate_pixels(images_of_batches([(scores, torch.tensor([[[1, 0]]]))]))
    assert found.metrics["nll"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda z, y: (z, y[:, 1:]), r"labels: expected masks of shape \(2, 24, 32\) .* resize"),
        (lambda z, y: (z, np.where(y == 0, 7, y)), "labels: expected classes from 0 to 3 .* got 7"),
        (lambda z, y: (np.where(z > 1, np.nan, z), y), "image 0: logits: expected numbers, got NaN"),
        (lambda z, y: (z[0], y), r"logits: expected maps of shape \(n, k, h, w\)"),
        (lambda z, y: (z, y.astype(float)), "labels: expected whole numbers, got torch.float64"),
    ],
)
def test_bad_maps_are_refused_in_one_sentence(change, message):
    scores, masks = change(*scene(2))
    with pytest.raises(InputError, match=message):
        evaluate_pixels(_maps(scores, masks))


def test_scores_that_are_no_probabilities_are_refused():
    scores, masks = scene(2)
    with pytest.raises(InputError, match="probs: expected probabilities that sum to one over the classes"):
        evaluate_pixels(_maps(scores, masks, "probs"))


def test_an_image_without_labels_is_refused():
    image = PixelImage.of("street.npy", "logits", torch.zeros(2, 3, 3), None)
    with pytest.raises(InputError, match="street.npy: expected labels of shape .* got an image without"):
        evaluate_pixels([image])


def test_images_with_another_number_of_classes_are_refused():
    images = [
        PixelImage.of(name, "logits", torch.zeros(k, 2, 2), torch.zeros(2, 2, dtype=torch.int64))
        for name, k in (("a", 2), ("b", 3))
    ]
    with pytest.raises(InputError, match="b: expected 2 classes as in the images before, got 3"):
        evaluate_pixels(images)


def test_a_network_is_run_batch_by_batch():
    scores, masks = scene(4, dtype=np.float32)
    network = torch.nn.Conv2d(4, 4, 1, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.eye(4)[:, :, None, None])
    loader = [(torch.as_tensor(scores[i : i + 2]), torch.as_tensor(masks[i : i + 2])) for i in (0, 2)]
    run = evaluate_pixels(images_of_batches(loader, model=network))
    assert run.metrics == pytest.approx(evaluate_pixels(_maps(scores, masks)).metrics, abs=1e-6)
    assert network.training
