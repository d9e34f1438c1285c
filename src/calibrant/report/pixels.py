"""The part of the report about score maps: all pixels, classes, distances to a border, images, one map."""

import base64
import math
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from torch import Tensor

from calibrant.metrics.names import MEASURES
from calibrant.pixels.gap_map import gap_map
from calibrant.pixels.images import PixelImage
from calibrant.pixels.measures import PixelEvaluation, PixelPart
from calibrant.report.page import ImageMeasureLine, Page, PixelImageLine, PixelLine, PixelPanel
from calibrant.show.numbers import count

# The longer side of a map, in pixels; a gap from which the colour is full; the colours.
_SIDE, _FULL = 256, 0.5
_OVER, _UNDER = (213, 94, 0), (0, 158, 115)


def with_pixels(
    page: Page,
    images: Iterable[PixelImage],
    before: PixelEvaluation,
    *,
    after: PixelEvaluation | None = None,
    calibrator: Callable[[Tensor], Tensor] | None = None,
) -> Page:
    """Return a page with the part about score maps.

    Args:
        page: A page about a sample of the pixels.
        images: The images; the worst is read again.
        before: Their measures.
        after: Their measures after a repair, if there was one.
        calibrator: The repair.
    """
    measures = [_measure(name, before, after) for name in before.metrics]
    each = (before,) if after is None else (before, after)
    worst = next(image for image in images if image.name == before.worst[0].name)
    changes = (None,) if after is None else (None, calibrator)
    panel = PixelPanel(
        f"{count(before.n)} pixels of {count(before.n_images)} images, {before.k} classes",
        tuple(measures),
        tuple(_bins(one) for one in each),
        _lines(before.classes, () if after is None else after.classes),
        _lines(before.bands, () if after is None else after.bands),
        tuple(
            PixelImageLine(row.name, row.n, row.accuracy, row.mean_confidence, row.ece)
            for row in before.worst
        ),
        worst.name,
        tuple(_drawn(worst.changed(change)) for change in changes),
    )
    return replace(page, pixels=panel)


def _measure(name: str, before: PixelEvaluation, after: PixelEvaluation | None) -> ImageMeasureLine:
    measure, interval = MEASURES[name], before.intervals.get(name)
    return ImageMeasureLine(
        title=measure.title,
        better=measure.better,
        value=_known(before.metrics[name]),
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        after=None if after is None else _known(after.metrics[name]),
        percent=measure.percent,
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _bins(found: PixelEvaluation) -> tuple[tuple[float, float, int], ...]:
    bins = found.bins
    rows = zip(bins.confidence.tolist(), bins.accuracy.tolist(), bins.count.tolist(), strict=True)
    return tuple((confidence, accuracy, n) for confidence, accuracy, n in rows if n)


def _lines(before: tuple[PixelPart, ...], after: tuple[PixelPart, ...]) -> tuple[PixelLine, ...]:
    """Return a line for each part; a repair can leave a class without pixels."""
    gaps = {part.name: part.test.gap for part in after}
    return tuple(
        PixelLine(
            name=part.name,
            n=part.n,
            accuracy=part.metrics["accuracy"],
            confidence=part.metrics["mean_confidence"],
            gap=part.test.gap,
            low=_known(part.test.gap_low),
            high=_known(part.test.gap_high),
            gap_after=gaps.get(part.name),
            iou=None if part.iou is None else _known(part.iou),
        )
        for part in before
    )


def _drawn(image: PixelImage) -> str:
    """Return the map of the gap of an image as an address of data; the colour is paler for a smaller gap."""
    gaps = np.nan_to_num(gap_map(image).numpy())
    step = math.ceil(max(gaps.shape) / _SIDE)
    gaps = gaps[::step, ::step]
    colours = np.where((gaps > 0)[..., None], np.array(_OVER), np.array(_UNDER))
    opacity = 255 * np.clip(np.abs(gaps) / _FULL, 0, 1)
    pixels = np.concatenate([colours, opacity[..., None]], axis=2).astype(np.uint8)
    return f"data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}"


def _png(pixels: np.ndarray) -> bytes:
    """Return colours with opacity, shape ``(h, w, 4)``, in the format PNG."""
    height, width = pixels.shape[:2]
    rows = np.concatenate([np.zeros((height, 1), dtype=np.uint8), pixels.reshape(height, -1)], axis=1)
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0),
        b"IDAT": zlib.compress(rows.tobytes()),
        b"IEND": b"",
    }
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
