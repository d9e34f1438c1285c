"""Options for the boxes of a detector."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.options import COLUMNS
from calibrant.errors import InputError

#: The overlap from which a box is right, by default.
IOU = 0.5

if TYPE_CHECKING:
    from calibrant.data.columns import Columns


def box_columns(
    columns: "Columns",
    by: Sequence[str],
    *,
    ground_truth: Annotated[
        Path | None,
        typer.Option(
            "--ground-truth",
            help="The objects that are really there: the source is then the boxes of a detector. COCO's JSON "
            "for both, or folders of YOLO's text or Pascal VOC's XML. --by then names class, size and "
            "position, and --confidence which of score, cx, cy, w and h a repair reads.",
            metavar="FILE|FOLDER",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
    iou: Annotated[
        float,
        typer.Option(
            "--iou",
            help="Overlap (intersection over union) from which a box is right.",
            rich_help_panel=COLUMNS,
        ),
    ] = IOU,
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            help="Names of the classes of boxes, or a file of them: YOLO's files have only numbers.",
            metavar="NAMES|FILE",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images",
            help="Folder of the pictures: for sizes that YOLO's files lack, and the worst boxes of report.",
            metavar="DIR",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
    only: Annotated[
        Path | None,
        typer.Option(
            "--only",
            help="Images of the ground truth that count: another ground truth of COCO, or a text file with "
            "the number or file of an image per line. Boxes in others are left out.",
            metavar="FILE",
            rich_help_panel=COLUMNS,
        ),
    ] = None,
) -> "Columns":
    """Return how boxes are read, or the columns as they are if there is no ground truth.

    Args:
        columns: What the command line says about columns.
        by: What makes groups unless the command line says.
        ground_truth: The objects.
        iou: The overlap from which a box is right.
        classes: Names of the classes, or their file.
        images: The folder of the pictures.
        only: The images that count.
    """
    if ground_truth is None:
        given = {"--iou": iou != IOU, "--classes": classes is not None, "--images": images is not None}
        given["--only"] = only is not None
        for option in (name for name, value in given.items() if value):
            raise InputError(f"{option}: expected together with --ground-truth, which boxes have, got none")
        return columns
    from calibrant.boxes.columns import BoxColumns

    return BoxColumns.of(
        columns, by=by, ground_truth=ground_truth, iou=iou, classes=classes, pictures=images, only=only
    )
