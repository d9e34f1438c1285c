"""Score maps in files, read image by image: ``.npz``, pairs of ``.npy``, folders of one file per image."""

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from calibrant.errors import FormatError, InputError
from calibrant.files import reading
from calibrant.pixels.headers import FORMS, opened_array
from calibrant.pixels.images import ImageSource, MapForm, PixelImage
from calibrant.posthoc.score_maps import IGNORED_PIXEL

_MASKS = (".npy", ".png")

Array = npt.NDArray[Any]


def open_images(
    source: str | os.PathLike[str],
    labels: str | os.PathLike[str] | None = None,
    *,
    ignore_index: int = IGNORED_PIXEL,
    labelled: bool = True,
) -> ImageSource:
    """Open score maps with their labels; only one image at a time is in memory.

    Args:
        source: A ``.npz`` file with ``logits`` or ``probs`` of shape ``(n, k, h, w)`` and ``labels`` of shape
            ``(n, h, w)``; a ``.npy`` file of scores, which is memory-mapped, with ``logits`` or ``probs`` in
            its name; or a folder with one such file per image, of shapes ``(k, h, w)`` and ``(h, w)``, whose
            sizes may differ.
        labels: The labels beside ``.npy`` files: a ``.npy`` file, or a folder of ``.npy`` or ``.png`` masks
            with the names of the images. By default the file or folder of the same name with ``labels`` in
            place of ``logits`` or ``probs``.
        ignore_index: The label of pixels that do not count.
        labelled: Whether labels are read; without, images have none.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/val.npz", logits=np.zeros((2, 3, 4, 4)), labels=np.zeros((2, 4, 4), int))
        ...     [(image.name, tuple(image.scores.shape)) for image in open_images(f"{folder}/val.npz")]
        [('val.npz, image 0', (3, 4, 4)), ('val.npz, image 1', (3, 4, 4))]
    """
    path, masks = Path(source), None if labels is None else Path(labels)
    for each in (path, masks):
        if each is not None and not each.exists():
            raise FormatError(f"{each}: expected score maps or masks, got no such file; check the path")
    how = _Reading(_labels_beside(path) if masks is None else masks, ignore_index, labelled)
    if path.is_dir():
        return _Folder(path, how)
    if path.suffix == ".npz":
        if masks is not None:
            raise InputError(
                f"--labels: expected none beside {path.name}, which has labels of its own, got {masks.name}"
            )
        return _Archive(path, how)
    if path.suffix == ".npy":
        return _Pair(path, how)
    raise FormatError(
        f"{path.name}: expected score maps in a .npz or .npy file or a folder of them, got another"
    )


def form_in_name(path: Path) -> MapForm:
    """Return whether a file holds logits or probabilities, as its name or that of its folder says."""
    found = [form for form in FORMS if form in path.name.lower()]
    found = found or [form for form in FORMS if form in path.resolve().parent.name.lower()]
    if len(found) != 1:
        raise FormatError(
            f"{path.name}: expected 'logits' or 'probs' in the name of the file or of its folder, which says "
            "what the scores are, got neither or both; rename it, as in val_logits.npy"
        )
    return found[0]


def _labels_beside(path: Path) -> Path | None:
    """Return the file or folder that is named as the scores but for what it holds, if there is one."""
    found = [path.with_name(path.name.replace(form, "labels")) for form in FORMS if form in path.name]
    return next((each for each in found if each.exists()), None)


@dataclass(frozen=True)
class _Reading:
    """How images are read: the labels beside them, the label that does not count, whether labels are read."""

    labels: Path | None
    ignore_index: int
    labelled: bool

    def image(self, name: str, form: MapForm, scores: Array, mask: Array | None) -> PixelImage:
        return PixelImage.of(name, form, scores, mask, ignore_index=self.ignore_index)


@dataclass(frozen=True)
class _Pair:
    """A memory-mapped file of scores and one of labels."""

    scores: Path
    how: _Reading

    def __len__(self) -> int:
        return len(self._maps)

    def __iter__(self) -> Iterator[PixelImage]:
        form, maps = form_in_name(self.scores), self._maps
        masks = self._masks(len(maps)) if self.how.labelled else [None] * len(maps)
        for number, (scores, mask) in enumerate(zip(maps, masks, strict=True)):
            name = f"{self.scores.name}, image {number}" if self._is_many else self.scores.name
            yield self.how.image(name, form, _copied(scores), None if mask is None else _copied(mask))

    @property
    def _maps(self) -> Array:
        maps = _mapped(self.scores)
        _check_rank(maps.shape, 4 if self._is_many else 3, self.scores.name, form_in_name(self.scores))
        return maps if self._is_many else maps[None]

    @property
    def _is_many(self) -> bool:
        return _mapped(self.scores).ndim != 3

    def _masks(self, n: int) -> Array:
        labels = self.how.labels
        if labels is None or labels.suffix != ".npy":
            raise FormatError(
                f"{self.scores.name}: expected a .npy file of labels of shape (n, h, w) beside it, got "
                f"{'none' if labels is None else labels.name}; name it with --labels"
            )
        masks = _mapped(labels) if self._is_many else _mapped(labels)[None]
        if len(masks) != n:
            raise InputError(
                f"{labels.name}: expected labels of {n} images, as many as in {self.scores.name}, got "
                f"{len(masks)}"
            )
        return masks


@dataclass(frozen=True)
class _Archive:
    """A .npz file with all images, of which each is read after the other."""

    path: Path
    how: _Reading

    def __len__(self) -> int:
        with reading(self.path.name, "a .npz file"), ZipFile(self.path) as archive:
            shape = opened_array(archive, f"{_form_of(archive, self.path)}.npy")[1]
        return shape[0] if len(shape) == 4 else 1

    def __iter__(self) -> Iterator[PixelImage]:
        with reading(self.path.name, "a .npz file"), ZipFile(self.path) as archive:
            form = _form_of(archive, self.path)
            if self.how.labelled and "labels.npy" not in archive.namelist():
                raise FormatError(
                    f"expected labels beside {form}, got none; save them as labels of shape (n, h, w)"
                )
            masks: Iterator[Array | None] = repeat(None)
            with ExitStack() as files:
                scores, shape, _ = opened = opened_array(archive, f"{form}.npy")
                files.enter_context(scores)
                single = len(shape) == 3
                _check_rank(shape, 3 if single else 4, "", form)
                n = 1 if single else shape[0]
                if self.how.labelled:
                    file, mask_shape, _ = labels = opened_array(archive, "labels.npy")
                    files.enter_context(file)
                    if not single and mask_shape[:1] != (n,):
                        raise InputError(f"labels: expected masks of {n} images, got shape {mask_shape}")
                    masks = _each(labels, single=single)
                for number, (array, mask) in enumerate(
                    zip(_each(opened, single=single), masks, strict=False)
                ):
                    name = self.path.name if single else f"{self.path.name}, image {number}"
                    yield self.how.image(name, form, array, mask)


@dataclass(frozen=True)
class _Folder:
    """A folder with one file per image."""

    folder: Path
    how: _Reading

    @property
    def files(self) -> list[Path]:
        files = sorted(each for each in self.folder.iterdir() if each.suffix in (".npz", ".npy"))
        if not files:
            raise FormatError(f"{self.folder}: expected one .npz or .npy file per image, got none")
        return files

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[PixelImage]:
        for file in self.files:
            if file.suffix == ".npz":
                yield from _Archive(file, self.how)
                continue
            mask = _mask(self.how.labels, file) if self.how.labelled else None
            yield self.how.image(file.name, form_in_name(file), _copied(_mapped(file)), mask)


def _mask(folder: Path | None, file: Path) -> Array:
    """Return the mask of an image: a file of the same name, but for its ending, in the folder of labels."""
    if folder is None or not folder.is_dir():
        raise FormatError(
            f"{file.name}: expected a folder of masks for .npy files, got none; name it with --labels"
        )
    found = next(
        (folder / f"{file.stem}{end}" for end in _MASKS if (folder / f"{file.stem}{end}").exists()), None
    )
    if found is None:
        raise FormatError(
            f"{file.name}: expected its mask {file.stem}.npy or {file.stem}.png in {folder.name}, got an "
            "image without ground truth; add the mask, or leave the image out"
        )
    if found.suffix == ".npy":
        return _copied(_mapped(found))
    from PIL import Image

    with reading(found.name, "a .png mask"), Image.open(found) as picture:
        if picture.mode not in ("L", "P", "I", "I;16", "1"):
            raise FormatError(f"expected a mask with one number per pixel, got colours ({picture.mode})")
        return np.array(picture)


def _mapped(path: Path) -> Array:
    with reading(path.name, "a .npy file"):
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim == 0:
        raise FormatError(f"{path.name}: expected an array of images, got a single number")
    return array


def _copied(array: Array) -> Array:
    """Return a part of a memory-mapped file in memory, in the byte order of this machine."""
    return np.array(array, dtype=array.dtype.newbyteorder("="))


def _each(opened: tuple[IO[bytes], tuple[int, ...], np.dtype[Any]], *, single: bool) -> Iterator[Array]:
    """Yield the array of each image of a stream; if there is a single one, the stream is its array."""
    file, shape, kind = opened
    for _ in range(1 if single else shape[0]):
        yield _next(file, shape if single else shape[1:], kind)


def _next(file: IO[bytes], shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
    """Return the next array of a stream."""
    size = math.prod(shape) * kind.itemsize
    data = file.read(size)
    if len(data) < size:
        raise FormatError("expected a whole file, got one that ends early; write it again")
    array = np.frombuffer(bytearray(data), dtype=kind).reshape(shape)
    return array.astype(kind.newbyteorder("="), copy=False)


def _form_of(archive: ZipFile, path: Path) -> MapForm:
    found = [form for form in FORMS if f"{form}.npy" in archive.namelist()]
    if len(found) != 1:
        raise FormatError(
            f"{path.name}: expected either logits or probs, got {' and '.join(found) or 'neither'}"
        )
    return found[0]


def _check_rank(shape: tuple[int, ...], rank: int, name: str, form: MapForm) -> None:
    if len(shape) != rank:
        start = f"{name}: " if name else ""
        raise InputError(f"{start}{form}: expected shape (n, k, h, w), got {shape}")
