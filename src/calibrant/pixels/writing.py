"""Calibrated score maps, written image by image in the layout of the files that are read."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import torch

from calibrant.errors import InputError
from calibrant.files import atomic_path, reading
from calibrant.inputs import Progress, check_choice
from calibrant.pixels.files import form_in_name, open_images
from calibrant.pixels.headers import FORMS, opened_array
from calibrant.pixels.images import MapForm
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.pixelwise import PixelCalibration


def write_calibrated(
    calibrator: Calibrator,
    source: Path,
    target: Path,
    *,
    write: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Write calibrated score maps; return the number of images. One image at a time is in memory.

    Probabilities stay probabilities and logits become log-probabilities. Archives keep their other arrays.

    Args:
        calibrator: A calibrator of score maps.
        source: What is read: a ``.npz`` or ``.npy`` file, or a folder of them.
        target: What is written: a file of the same kind, or a folder.
        write: ``"probs"`` or ``"logits"``, if it is not what the source holds.
        progress: Called with the name of the image, the number that are done, and the total.
    """
    if not isinstance(calibrator, PixelCalibration):
        raise InputError(
            f"calibrator: expected one of score maps, got {type(calibrator).__name__}; fit one with "
            "calibrant calibrate on score maps"
        )
    form = None if write is None else check_choice(write, "write", FORMS)
    images = open_images(source, labelled=False)
    files = {source: target}
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        every = sorted(each for each in source.iterdir() if each.suffix in (".npz", ".npy"))
        files = {each: target / each.name for each in every}
    done, total = 0, len(images)
    for path, written in files.items():
        write_file = _write_archive if path.suffix == ".npz" else _write_array
        for name in write_file(calibrator, path, written, form):
            done += 1
            if progress is not None:
                progress(name, done, max(total, done))
    return done


def _write_array(
    calibrator: PixelCalibration, source: Path, target: Path, form: MapForm | None
) -> Iterator[str]:
    """Write a ``.npy`` file, whose name or that of its folder says what it holds."""
    held = form_in_name(source)
    wanted = form or held
    if target.suffix != ".npy" or form_in_name(target) != wanted:
        raise InputError(
            f"out: expected a .npy file with {wanted!r} in its name or in that of its folder, got "
            f"{target.name}; name it such as new_{wanted}.npy"
        )
    with reading(source.name, "a .npy file"):
        shape, kind = (lambda each: (each.shape, each.dtype))(np.load(source, mmap_mode="r"))
    with atomic_path(target) as temporary, temporary.open("wb") as file:
        yield from _write_maps(calibrator, source, file, shape, kind, wanted)


def _write_archive(
    calibrator: PixelCalibration, source: Path, target: Path, form: MapForm | None
) -> Iterator[str]:
    """Write a ``.npz`` file with calibrated scores and the other arrays as they were."""
    if target.suffix != ".npz":
        raise InputError(f"out: expected a .npz file, as {source.name} is, got {target.name}")
    with ZipFile(source) as archive, atomic_path(target) as temporary, ZipFile(temporary, "w") as written:
        held = next(each for each in FORMS if f"{each}.npy" in archive.namelist())
        wanted = form or held
        stream, shape, kind = opened_array(archive, f"{held}.npy")
        stream.close()
        with written.open(f"{wanted}.npy", "w", force_zip64=True) as file:
            yield from _write_maps(calibrator, source, file, shape, kind, wanted)
        for name in archive.namelist():
            if name.removesuffix(".npy") not in FORMS:
                with archive.open(name) as old, written.open(name, "w", force_zip64=True) as new:
                    shutil.copyfileobj(old, new)


def _write_maps(
    calibrator: PixelCalibration,
    source: Path,
    file: IO[bytes],
    shape: tuple[int, ...],
    kind: np.dtype[Any],
    form: MapForm,
) -> Iterator[str]:
    """Write the maps of a file, calibrated, and yield the name of each image that is written."""
    wide = np.dtype(np.float64 if kind == np.float64 else np.float32)
    header = {"descr": np.lib.format.dtype_to_descr(wide), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    for image in open_images(source, labelled=False):
        try:
            maps = calibrator.predict_log_proba(image.logits[None])[0]
        except InputError as error:
            raise InputError(f"{image.name}: {error}") from None
        scores = torch.exp(maps) if form == "probs" else maps
        file.write(np.ascontiguousarray(scores.numpy(), dtype=wide).tobytes())
        yield image.name
