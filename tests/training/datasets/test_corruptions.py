import colorsys
import math
import sys

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate, gaussian_filter, map_coordinates, zoom

from calibrant.errors import InputError, MissingPackageError
from calibrant.training.datasets import CORRUPTIONS, corrupt
from calibrant.training.datasets.corruptions import (
    CIFAR10_C,
    CORRUPTION_STRENGTHS,
    affine_places,
    elastic_transform,
    ice_crystals,
    moved,
    plasma,
    zoomed,
)

# What these do does not grow in one number; see their own tests.
BY_OTHER_MEASURES = ("glass_blur", "frost", "elastic_transform")
RANDOM = ("glass_blur", "motion_blur", "snow", "frost", "fog", "elastic_transform")


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    """Smooth colour gradients with some detail, of the size that the strengths were chosen for."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(60, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=32, mode="bilinear")
    detail = 0.1 * torch.rand(60, 3, 32, 32, generator=generator)
    return ((0.9 * smooth + detail) * 255).to(torch.uint8)


def test_the_fifteen_are_those_of_hendrycks_and_dietterich() -> None:
    assert CIFAR10_C == (
        "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur",
        "zoom_blur", "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate",
        "jpeg",
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name not in BY_OTHER_MEASURES])
def test_each_severity_is_further_from_the_original(name, pictures) -> None:
    distances = [
        float((corrupt(pictures, name, severity).double() - pictures.double()).abs().mean())
        for severity in (1, 2, 3, 4, 5)
    ]
    assert distances[0] > 0
    assert distances == sorted(distances)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_grey_and_colour_keep_their_shape_and_the_seed_decides(name, pictures) -> None:
    few = pictures[:3]
    for images in (few, few[:, :1]):
        first = corrupt(images, name, 5, seed=4)
        assert first.shape == images.shape
        assert first.dtype == torch.uint8
        assert torch.equal(first, corrupt(images, name, 5, seed=4))
    noisy = not torch.equal(corrupt(few, name, 5, seed=4), corrupt(few, name, 5, seed=5))
    assert noisy == (name.endswith("noise") or name in RANDOM)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (8, 8), (40, 24)])
def test_images_of_any_size_are_taken(name, shape) -> None:
    images = torch.randint(0, 256, (2, 3, *shape), dtype=torch.uint8)
    for severity in (1, 5):
        assert corrupt(images, name, severity).shape == images.shape


@pytest.mark.parametrize(
    "name", ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform"]
)
def test_blurs_and_stretches_leave_a_flat_picture_and_the_mean_brightness_as_they_are(name, pictures) -> None:
    flat = torch.full((3, 3, 32, 32), 90, dtype=torch.uint8)
    for severity in (1, 2, 3, 4, 5):
        assert (corrupt(flat, name, severity).int() - 90).abs().max() <= 1
        change = corrupt(pictures, name, severity).double().mean() - pictures.double().mean()
        assert abs(change) < 1.5


def test_snow_and_frost_are_lighter_and_fog_is_about_as_light(pictures) -> None:
    before = pictures.double().mean()
    snowy = [corrupt(pictures, "snow", severity).double().mean() for severity in (1, 2, 3, 4, 5)]
    assert before + 5 < snowy[0] < snowy[1] < snowy[2] < snowy[3] < snowy[4]
    for severity in (1, 2, 3, 4, 5):
        assert corrupt(pictures, "frost", severity).double().mean() > before + 20
        assert abs(corrupt(pictures, "fog", severity).double().mean() - before) < 10


def test_images_beyond_the_first_thousand_have_noise_of_their_own() -> None:
    grey = torch.full((2100, 1, 2, 2), 128, dtype=torch.uint8)
    noisy = corrupt(grey, "gaussian_noise", 5)
    assert (noisy != 128).flatten(1).any(dim=1).all()
    assert not torch.equal(noisy[:1000], noisy[1000:2000])


def test_gaussian_noise_has_the_deviation_of_cifar_10_c() -> None:
    grey = torch.full((40, 3, 32, 32), 128, dtype=torch.uint8)
    for severity, deviation in enumerate((0.04, 0.06, 0.08, 0.09, 0.10), start=1):
        assert corrupt(grey, "gaussian_noise", severity).double().std() / 255 == pytest.approx(
            deviation, rel=0.02
        )


def test_shot_noise_has_the_variance_of_counted_photons() -> None:
    grey = torch.full((40, 3, 32, 32), 51, dtype=torch.uint8)
    values = corrupt(grey, "shot_noise", 5).double() / 255
    assert values.var() == pytest.approx(0.2 / 50, rel=0.05)
    assert values.mean() == pytest.approx(0.2, abs=0.005)


def test_impulse_noise_turns_a_share_black_or_white() -> None:
    grey = torch.full((40, 3, 32, 32), 100, dtype=torch.uint8)
    changed = corrupt(grey, "impulse_noise", 5)
    assert set(changed.unique().tolist()) == {0, 100, 255}
    assert (changed == 0).double().mean() == pytest.approx(0.035, rel=0.05)
    assert (changed == 255).double().mean() == pytest.approx(0.035, rel=0.05)


def test_brightness_adds_to_the_value_of_hsv(pictures) -> None:
    few = pictures[:1, :, :4, :4].clone()
    few[0, :, 0, 0] = 0
    result = corrupt(few, "brightness", 3)
    for row in range(4):
        for column in range(4):
            hue, saturation, value = colorsys.rgb_to_hsv(*(few[0, :, row, column] / 255).tolist())
            expected = np.array(colorsys.hsv_to_rgb(hue, saturation, min(value + 0.15, 1))) * 255
            assert np.abs(expected - result[0, :, row, column].numpy()).max() < 1.01


def test_contrast_shrinks_around_the_mean_of_each_channel(pictures) -> None:
    image = pictures[:1].double()
    mean = image.mean(dim=(2, 3), keepdim=True)
    expected = mean + 0.15 * (image - mean)
    assert (corrupt(pictures[:1], "contrast", 5).double() - expected).abs().max() <= 1


def test_blur_is_a_gaussian_of_the_stated_width() -> None:
    dot = torch.zeros(1, 1, 15, 15, dtype=torch.uint8)
    dot[0, 0, 7, 7] = 255
    weight = np.exp(-0.5 * np.arange(-4, 5) ** 2)
    expected = np.zeros((15, 15))
    expected[3:12, 3:12] = 255 * np.outer(weight, weight) / weight.sum() ** 2
    assert np.abs(corrupt(dot, "blur", 5)[0, 0].numpy() - expected).max() <= 1


def test_defocus_is_a_disk_with_a_soft_edge() -> None:
    dot = torch.zeros(1, 1, 15, 15, dtype=torch.uint8)
    dot[0, 0, 7, 7] = 255
    for severity, (radius, soft) in enumerate(
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)), start=1
    ):
        disk = np.zeros((15, 15))
        for row in range(15):
            for column in range(15):
                disk[row, column] = (row - 7) ** 2 + (column - 7) ** 2 <= radius**2
        edge = np.exp(-np.array([1, 0, 1]) / (2 * soft**2))
        expected = 255 * correlate(disk / disk.sum(), np.outer(edge, edge) / edge.sum() ** 2)
        assert np.abs(corrupt(dot, "defocus_blur", severity)[0, 0].numpy() - expected).max() <= 1


def test_defocus_mirrors_the_picture_at_the_border_without_its_last_pixel() -> None:
    ramp = torch.arange(0, 160, 10, dtype=torch.uint8).expand(1, 1, 16, 16)
    expected = (10 + 0 + 10) / 3  # of the columns -1, 0 and 1
    assert abs(int(corrupt(ramp, "defocus_blur", 5)[0, 0, 8, 0]) - expected) <= 1


def test_glass_takes_a_pixel_or_one_of_three_neighbours_equally_often() -> None:
    # Every pixel of a picture has a colour of its own; severity 1 does not blur.
    numbers = np.arange(32 * 32)
    colours = np.stack([numbers // 32 * 8, numbers % 32 * 8, numbers % 251]).reshape(3, 32, 32)
    images = torch.from_numpy(colours.astype(np.uint8)).expand(50, 3, 32, 32)
    result = corrupt(images, "glass_blur", 1).numpy()
    assert np.array_equal(result[:, :, :2], images[:, :, :2].numpy())
    assert np.array_equal(result[:, :, :, :2], images[:, :, :, :2].numpy())
    counts = {
        (up, left): int(
            (result[:, :, 2:, 2:] == colours[:, 2 - up : 32 - up, 2 - left : 32 - left]).all(axis=1).sum()
        )
        for up in (0, 1)
        for left in (0, 1)
    }
    assert sum(counts.values()) == 50 * 30 * 30
    assert all(count == pytest.approx(50 * 30 * 30 / 4, rel=0.05) for count in counts.values())


def test_glass_loses_detail_by_its_blur_and_accuracy_by_its_repetitions(pictures) -> None:
    results = [corrupt(pictures, "glass_blur", severity).double() for severity in (1, 2, 3, 4, 5)]
    detail = [float(result.diff(dim=3).abs().mean()) for result in results]
    assert detail[0] > detail[1] > detail[2]
    assert detail[3] > detail[4]
    distances = [float((result - pictures.double()).abs().mean()) for result in results]
    assert min(distances[3:]) > max(distances[:3])


@pytest.mark.parametrize(("radius", "deviation"), CORRUPTION_STRENGTHS["motion_blur"])
def test_motion_is_half_a_gaussian_along_a_line(radius, deviation) -> None:
    generator = np.random.default_rng(0)
    images = generator.random((3, 2, 12, 12), dtype=np.float32)
    angles = np.array([0.0, 30.0, -45.0])
    result = moved(images, angles, radius, deviation)
    weights = [math.exp(-(step**2) / (2 * deviation**2)) for step in range(2 * radius + 1)]
    for sample, row, column in [(0, 5, 2), (1, 3, 4), (1, 11, 11), (2, 6, 6), (2, 0, 3)]:
        turned = math.radians(angles[sample])
        expected = np.zeros(2)
        for step, weight in enumerate(weights):
            y = row + math.ceil(step * math.sin(turned) - 0.5)
            x = column + math.ceil(step * math.cos(turned) - 0.5)
            expected += weight * images[sample, :, min(max(y, 0), 11), min(max(x, 0), 11)]
        assert np.abs(result[sample, :, row, column] - expected / sum(weights)).max() < 0.51 / 255


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.05, 1.25, 1.75, 2.25])
@pytest.mark.parametrize("side", [8, 32])
def test_enlarging_is_that_of_scipy(factor, side) -> None:
    images = np.random.default_rng(0).random((2, 1, side, side), dtype=np.float32)
    middle = math.ceil(side / factor)
    top = (side - middle) // 2
    for image, result in zip(images, zoomed(images, factor), strict=True):
        large = zoom(image[0, top : top + middle, top : top + middle], factor, order=1)
        trim = (len(large) - side) // 2
        expected = large[trim : trim + side, trim : trim + side]
        assert np.abs(result[0] - expected).max() < 1e-5


def test_zoom_averages_the_picture_and_its_enlargements(pictures) -> None:
    images = pictures[:2].numpy().astype(np.float32) / 255
    for severity, until in enumerate((1.06, 1.11, 1.16, 1.21, 1.26), start=1):
        seen = [images, *(zoomed(images, factor) for factor in np.arange(1, until, 0.01))]
        expected = np.mean(seen, axis=0) * 255
        assert np.abs(corrupt(pictures[:2], "zoom_blur", severity).numpy() - expected).max() <= 1.01


def test_snow_is_white_flakes_on_a_whitened_picture() -> None:
    grey = torch.full((40, 3, 32, 32), 51, dtype=torch.uint8)
    for severity, numbers in enumerate(CORRUPTION_STRENGTHS["snow"], start=1):
        kept = numbers[-1]
        ground = 255 * (kept * 0.2 + (1 - kept) * (0.2 * 1.5 + 0.5))
        result = corrupt(grey, "snow", severity).double()
        assert result.min() >= math.floor(ground)
        assert torch.equal(result[:, 0], result[:, 2])  # no colour
        assert result.max() > ground + 20
        # One layer is the other upside down, so their sum is the same from both sides.
        assert torch.equal(result, result.flip(2, 3))


def test_the_ice_covers_more_of_the_picture_with_each_severity(pictures) -> None:
    def likeness(severity):
        pairs = zip(corrupt(pictures, "frost", severity).numpy(), pictures.numpy(), strict=True)
        return np.mean([np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in pairs])

    likenesses = [likeness(severity) for severity in (1, 2, 3, 4, 5)]
    assert likenesses == sorted(likenesses, reverse=True)
    black = torch.zeros(20, 3, 32, 32, dtype=torch.uint8)
    for severity, (_, ice) in enumerate(CORRUPTION_STRENGTHS["frost"], start=1):
        assert 0.8 * ice < corrupt(black, "frost", severity).max().item() / 255 <= ice
    white = torch.full((20, 1, 32, 32), 255, dtype=torch.uint8)
    assert corrupt(white, "frost", 5).min() >= math.floor(0.75 * 255)


def test_ice_is_slightly_blue_has_detail_and_differs_between_pictures() -> None:
    ice = ice_crystals((8, 3, 32, 32), np.random.default_rng(0))
    assert ice.min() >= 0
    assert ice.max() <= 1
    red, green, blue = ice.mean(axis=(0, 2, 3))
    assert red < green < blue
    assert np.abs(np.diff(ice, axis=3)).mean() > 0.05
    assert not np.array_equal(ice[0], ice[1])


def test_fog_is_a_cloud_between_nothing_and_the_amount() -> None:
    value = 153 / 255
    grey = torch.full((10, 1, 32, 32), 153, dtype=torch.uint8)
    for severity, (amount, _) in enumerate(CORRUPTION_STRENGTHS["fog"], start=1):
        result = corrupt(grey, "fog", severity)
        clear = 255 * value * value / (value + amount)
        for image in result:
            assert abs(int(image.min()) - clear) <= 1
            assert int(image.max()) == 153


def test_a_cloud_is_the_same_by_loops_over_its_points() -> None:
    class Counting:
        """Random numbers that can be repeated: 0, 1/7, 2/7, ... of the range."""

        def uniform(self, low, high, shape):
            return low + (high - low) * (np.arange(math.prod(shape)) % 7 / 7).reshape(shape)

    side, decay = 8, 2.0
    cloud = np.zeros((side, side))
    step, strength = side, 100.0
    while step >= 2:
        half = step // 2
        at = range(0, side, step)
        for corner, others in (
            ((half, half), ((0, 0), (step, 0), (0, step), (step, step))),
            ((0, half), ((0, 0), (0, step), (half, half), (-half, half))),
            ((half, 0), ((0, 0), (step, 0), (half, half), (half, -half))),
        ):
            for count, (row, column) in enumerate((row, column) for row in at for column in at):
                mean = sum(cloud[(row + y) % side, (column + x) % side] for y, x in others) / 4
                noise = strength * (2 * strength * (count % 7 / 7) - strength)
                cloud[row + corner[0], column + corner[1]] = mean + noise
        step, strength = half, strength / decay
    expected = (cloud - cloud.min()) / (cloud.max() - cloud.min())
    found = plasma(1, side, side, Counting(), decay=decay)[0, 0]
    assert np.abs(found - expected).max() < 1e-6


def test_clouds_that_decay_faster_are_smoother() -> None:
    def roughness(decay):
        cloud = plasma(50, 32, 32, np.random.default_rng(0), decay=decay)
        return np.abs(np.diff(cloud, axis=3)).mean()

    assert roughness(3) < roughness(2) < roughness(1.5)


def test_an_affine_map_takes_the_moved_corners_from_where_they_were() -> None:
    columns, rows = affine_places(4, 32, 32, np.random.default_rng(3), distance=2.5)
    moves = np.random.default_rng(3).uniform(-2.5, 2.5, (4, 3, 2))
    corners = np.array([[26, 26], [26, 6], [6, 6]])
    grid = np.array([[0, 0], [31, 0], [0, 31]])
    for sample in range(4):
        # The map is known at three pixels; there is only one affine map that agrees with it.
        sources = np.array([[columns[sample, y, x], rows[sample, y, x]] for x, y in grid])
        linear = np.linalg.solve(np.column_stack([grid, np.ones(3)]), sources)
        found = np.column_stack([corners + moves[sample], np.ones(3)]) @ linear
        assert np.abs(found - corners).max() < 1e-6


def test_an_elastic_picture_is_read_at_moved_places_as_scipy_reads_them() -> None:
    images = np.random.default_rng(0).random((2, 1, 32, 32), dtype=np.float32)
    numbers = CORRUPTION_STRENGTHS["elastic_transform"][4]
    result = elastic_transform(images, np.random.default_rng(5), *numbers)
    generator = np.random.default_rng(5)
    columns, rows = affine_places(2, 32, 32, generator, distance=32 * 0.03)
    across, down = (generator.uniform(-1, 1, (2, 32, 32)) for _ in range(2))
    y, x = np.meshgrid(np.arange(32), np.arange(32), indexing="ij")
    for sample in range(2):
        turned = map_coordinates(images[sample, 0], [rows[sample], columns[sample]], order=1, mode="mirror")
        moves = [
            32 * 0.1 * gaussian_filter(field[sample], 32 * 0.03, mode="reflect", truncate=3)
            for field in (down, across)
        ]
        expected = map_coordinates(turned, [y + moves[0], x + moves[1]], order=1, mode="reflect")
        assert np.abs(result[sample, 0] - expected).max() < 1e-3


def test_elastic_pictures_are_stretched_more_with_each_severity() -> None:
    # The shade of a pixel is its column, so a corrupted picture shows where its pixels come from.
    ramp = np.tile(np.linspace(0, 1, 32, dtype=np.float32), (20, 1, 32, 1))
    y, x = np.meshgrid(np.arange(10, 22), np.arange(10, 22), indexing="ij")
    design = np.column_stack([x.ravel(), y.ravel(), np.ones(x.size)])
    stretched = []
    for numbers in CORRUPTION_STRENGTHS["elastic_transform"]:
        result = elastic_transform(ramp, np.random.default_rng(0), *numbers)[:, 0, 10:22, 10:22]
        columns = 31 * result.reshape(20, -1).T
        rest = columns - design @ np.linalg.lstsq(design, columns, rcond=None)[0]
        stretched.append(np.sqrt((rest**2).mean()))
    assert stretched[0] < 1e-3  # nothing but an affine map
    assert stretched == sorted(stretched)
    assert stretched[4] > 0.3


def test_pixelate_and_jpeg_leave_a_flat_picture_as_it_is() -> None:
    flat = torch.full((2, 3, 32, 32), 90, dtype=torch.uint8)
    assert torch.equal(corrupt(flat, "pixelate", 5), flat)
    assert (corrupt(flat, "jpeg", 5).int() - 90).abs().max() <= 2


def test_unknown_names_severities_and_inputs_are_refused(pictures) -> None:
    with pytest.raises(InputError, match="corruption: expected one of gaussian_noise"):
        corrupt(pictures, "haze", 1)
    for severity in (0, 6, 2.0):
        with pytest.raises(InputError, match="severity: expected a whole number from 1 to 5"):
            corrupt(pictures, "blur", severity)
    with pytest.raises(InputError, match="images: expected uint8"):
        corrupt(pictures.float(), "blur", 1)


def test_without_pillow_the_sentence_says_what_to_install(pictures, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match=r"the package pillow, got none.*'calibrant\[train\]'"):
        corrupt(pictures, "jpeg", 1)
