"""The command ``calibrant predict``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.printing import say
from calibrant.errors import InputError
from calibrant.files import shown
from calibrant.outputs import check_targets
from calibrant.progress import progress_bar

if TYPE_CHECKING:
    from calibrant.training.image_predictions import FoundPictures, ImageNetwork

_OWN = "A network of your own"


def predict(
    images: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGES",
            help="A folder of .png and .jpg files, or of folders of them, each named after its class.",
        ),
    ],
    network: Annotated[
        str,
        typer.Option(
            "--network",
            help="The folder of a run of calibrant train, or a function that makes a network of your own.",
            metavar="RUN|MODULE:NAME",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="File for the predictions.", metavar="FILE")],
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Pictures that are in memory at a time.", metavar="N")
    ] = 64,
    features: Annotated[
        bool, typer.Option("--features", help="Also write the inputs of the last linear layer.")
    ] = False,
    factory: Annotated[
        str | None,
        typer.Option(
            "--factory",
            help="Function that makes the network of a run. Code named only in its folder is never run.",
            metavar="MODULE:NAME",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            help="Its weights: safetensors, or a state_dict of PyTorch. Only tensors are unpickled.",
            metavar="FILE",
            rich_help_panel=_OWN,
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size",
            help="Side of its images in pixels.",
            metavar="N",
            show_default="224",
            rich_help_panel=_OWN,
        ),
    ] = None,
    crop: Annotated[
        float | None,
        typer.Option(
            "--crop",
            help="Share of the largest centred square that it sees.",
            metavar="SHARE",
            show_default="0.875",
            rich_help_panel=_OWN,
        ),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            "--mean",
            help="Mean of each channel in its training, for pixels between 0 and 1: 0.485,0.456,0.406 for "
            "most networks of ImageNet.",
            metavar="R,G,B",
            show_default="0,0,0",
            rich_help_panel=_OWN,
        ),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(
            "--std",
            help="Standard deviation of each channel: 0.229,0.224,0.225 for most networks of ImageNet.",
            metavar="R,G,B",
            show_default="1,1,1",
            rich_help_panel=_OWN,
        ),
    ] = None,
) -> None:
    """Write the predictions of a network for a folder of images, ready for evaluate and calibrate.

    Pictures in folders get the classes of their folders, in alphabetical order; those that are directly in
    IMAGES have no labels. Each row has the path of its picture as its id. The function of a network of your
    own is imported and called: it gets n_classes and shape if it has such arguments, and its network takes
    colour images as floats of shape (n, 3, size, size) and returns logits.

    Example: calibrant predict photos --network runs/mine --out photos.npz

    Example: calibrant predict val --network torchvision.models:resnet50 --weights resnet50.pt --out val.npz
    """
    from calibrant.data.files import save_predictions
    from calibrant.training.image_predictions import find_pictures, predict_images

    check_targets([out], [images, *([] if weights is None else [weights])])
    sys.path.insert(0, str(Path.cwd()))  # a module of one's own may be in the current folder
    given: dict[str, Any] = {"weights": weights, "size": size, "crop": crop, "mean": mean, "std": std}
    options = {name: value for name, value in given.items() if value is not None}
    if Path(network).is_dir():
        seeing = _of_run(Path(network), factory, options)
        pictures = find_pictures(images, seeing.class_names)
    else:
        pictures = find_pictures(images)
        seeing = _own(network, factory, options, pictures)
    with progress_bar() as progress:
        found = predict_images(pictures, seeing, batch_size=batch_size, features=features, progress=progress)
    save_predictions(found, out)
    labelled = "without labels" if found.labels is None else "with labels"
    say(f"{shown(out)}: {found.n:,} predictions of {seeing.n_classes:,} classes, {labelled}")


def _of_run(folder: Path, factory: str | None, options: dict[str, Any]) -> "ImageNetwork":
    from calibrant.training.image_predictions import network_of_run
    from calibrant.training.own_code import imported

    for name in options:
        raise InputError(
            f"{name}: expected none for the run in {folder}, which stores it, got one; leave it out"
        )
    return network_of_run(folder, factory=None if factory is None else imported(factory, "factory"))


def _own(
    network: str, factory: str | None, options: dict[str, Any], pictures: "FoundPictures"
) -> "ImageNetwork":
    from calibrant.training.image_predictions import own_network
    from calibrant.training.own_code import imported, is_code

    if not is_code(network):
        raise InputError(
            f"network: expected the folder of a run or module:function, got {network!r}, which is neither"
        )
    if factory is not None:
        raise InputError("factory: expected none beside a network of your own, got one; leave it out")
    for name in {"mean", "std"} & options.keys():
        options[name] = _numbers(name, options[name])
    names = pictures.class_names
    n_classes = None if names is None else len(names)
    return own_network(imported(network, "network"), n_classes=n_classes, **options)


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(
            f"{name}: expected three numbers with commas, as in 0.5,0.5,0.5, got {text!r}"
        ) from None
