"""Options for score maps, and what calibrate and report do with them."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from calibrant.cli.options import COLUMNS, word_or_list
from calibrant.cli.printing import say
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.data.predictions import Predictions
    from calibrant.evaluation.calibration import WholeStream
    from calibrant.evaluation.choose import Choice
    from calibrant.inputs import Progress
    from calibrant.pixels.images import ImageSource
    from calibrant.pixels.measures import PixelEvaluation
    from calibrant.posthoc.pixelwise import PixelCalibration
    from calibrant.report.page import Page

#: The label of pixels that do not count, by default.
IGNORED_PIXEL = 255

IgnoreIndex: TypeAlias = Annotated[
    int,
    typer.Option(
        "--ignore-index",
        help="Label of the pixels of score maps that do not count.",
        rich_help_panel=COLUMNS,
    ),
]
MapLabels: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        help="Labels of the score maps in the first .npy file or folder: a .npy file, or a folder of masks. "
        "By default those of the same name with labels in place of logits or probs, as for other files.",
        metavar="FILE|FOLDER",
        rich_help_panel=COLUMNS,
    ),
]


@dataclass(frozen=True)
class ScoreMaps:
    """Files of score maps: they are compared on a sample of pixels, and measured whole.

    Attributes:
        first: The file whose labels are named.
        labels: Its labels.
        ignore_index: The label of pixels that do not count.
        seed: Seed of the sample.
    """

    first: Path
    labels: Path | None
    ignore_index: int
    seed: int = 0

    @classmethod
    def of(
        cls, first: Path, labels: Path | None, ignore_index: int, columns: "Columns", *, seed: int = 0
    ) -> "ScoreMaps | None":
        """Return how score maps are read; None if a path names other predictions."""
        from calibrant.data.columns import Columns
        from calibrant.pixels.headers import holds_images

        if holds_images(first):
            for each in fields(Columns):
                if getattr(columns, each.name) != getattr(Columns(), each.name):
                    raise InputError(
                        f"{first.name}: expected score maps, which have no columns and whose unit is the "
                        f"image, got {each.name} of a table; leave out one of the two"
                    )
            return cls(first, labels, ignore_index, seed)
        if labels is not None:
            raise InputError(f"--labels: expected score maps beside it, got {first.name}; leave it out")
        return None

    def open(self, path: Path) -> "ImageSource":
        """Open a file or folder; labels are named for the first alone."""
        from calibrant.pixels.files import open_images

        return open_images(path, self.labels if path == self.first else None, ignore_index=self.ignore_index)

    def rows(self, path: Path, progress: "Progress") -> "Predictions":
        """Return a sample of the pixels of each image, and say how large it is."""
        from calibrant.pixels.rows import PIXELS_PER_IMAGE, pixel_rows

        found = pixel_rows(self.open(path), seed=self.seed, progress=progress)
        say(
            f"{path.name}: methods see {found.n:,} pixels of {found.n_units:,} images, at most "
            f"{PIXELS_PER_IMAGE} of each, drawn with seed {self.seed}",
            err=True,
        )
        return found

    def methods(self, named: str, *, keep_accuracy: bool) -> list[str]:
        """Return the methods that make sense for pixels, or those of them that are named."""
        from calibrant.posthoc.names import METHODS, method_term
        from calibrant.posthoc.pixelwise import PIXEL_METHODS

        known = ("uncalibrated", *PIXEL_METHODS)
        wanted = word_or_list(named, "auto", "fast", "all")
        if isinstance(wanted, str):
            return [name for name in known if not keep_accuracy or METHODS[name].preserves_accuracy]
        for name in wanted:
            if method_term(name).name not in known:
                raise InputError(
                    f"--methods: expected methods for pixels, got {name}; known are {', '.join(known)}"
                )
        return wanted

    def measured(
        self, path: Path, test: Path | None, choice: "Choice | None", progress: "Progress"
    ) -> "MeasuredMaps":
        """Measure all pixels of TEST before and after a repair, or those of VAL as they are.

        Without other images, what a repair changes is known of the sample alone.
        """
        from calibrant.pixels.measures import evaluate_pixels
        from calibrant.pixels.rows import RADIUS
        from calibrant.posthoc.calibrator import Identity
        from calibrant.posthoc.pixelwise import PixelCalibration

        base = Identity() if choice is None else choice.result.calibrator
        images, repair = self.open(test or path), PixelCalibration(base, radius=RADIUS)
        before, *after = (
            evaluate_pixels(images, intervals=len(images) > 1, calibrator=change, progress=progress)
            for change in ((None,) if test is None else (None, repair))
        )
        return MeasuredMaps(images, before, after[0] if after else None, repair)


@dataclass(frozen=True, eq=False)
class MeasuredMaps:
    """Score maps, their measures, and a repair with what they are after it, if that was measured."""

    images: "ImageSource"
    before: "PixelEvaluation"
    after: "PixelEvaluation | None"
    calibrator: "PixelCalibration"

    @property
    def whole(self) -> "WholeStream | None":
        """What the repair changes on all pixels."""
        from calibrant.evaluation.calibration import WholeStream

        if self.after is None:
            return None
        return WholeStream(self.before.n, dict(self.before.metrics), dict(self.after.metrics), "pixels")

    def on(self, page: "Page") -> "Page":
        """Return a page with the part about score maps."""
        from calibrant.report.pixels import with_pixels

        return with_pixels(page, self.images, self.before, after=self.after, calibrator=self.calibrator)
