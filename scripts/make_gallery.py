"""Make the images of docs/gallery.md by running what the page shows.

Commands write their own image, the last of a block if there are several; the run that they train is thrown
away. Lines of Python leave a variable ``display``, which is saved as the image that follows them::

    python scripts/make_gallery.py              # all images
    python scripts/make_gallery.py --png DIR    # the same as PNG, and in grey, to look at
"""

import argparse
import doctest
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gallery.md"
# What the page calls the folder of a training run.
RUN = "runs/gallery"

_PART = re.compile(r"```(?P<language>sh|python)\n(?P<code>.*?)```|!\[.*?\]\((?P<image>.*?)\)", re.DOTALL)


def parts(text: str) -> Iterator[tuple[str, str, Path]]:
    """Yield language, code and image of every figure on the page, in order."""
    language = code = ""
    for found in _PART.finditer(text):
        if found["image"]:
            yield language, code, PAGE.parent / found["image"]
        else:
            language, code = found["language"], found["code"]


def make(language: str, code: str, image: Path, names: dict[str, Any], folder: Path) -> None:
    """Run one part of the page and write its image."""
    if language == "sh":
        *before, last = (shlex.split(line) for line in code.replace("\\\n", " ").splitlines() if line)
        last[last.index("--out") + 1] = str(image.resolve())
        for words in (*before, last):
            placed = [str(folder / "run") if word == RUN else word for word in words[1:]]
            subprocess.run([sys.executable, "-m", "calibrant", *placed], check=True, cwd=ROOT)
        return
    for example in doctest.DocTestParser().get_examples(code):
        exec(compile(example.source, str(PAGE), "exec"), names)
    names["display"].save(image)
    print(image)


def to_grey(path: Path) -> None:
    """Write beside a picture what a black and white printer makes of it."""
    from PIL import Image

    with Image.open(path) as picture:
        picture.convert("L").save(path.with_name(f"{path.stem}_grey.png"))


def main() -> None:
    """Run the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--png", type=Path, help="folder for PNG images instead")
    parser.add_argument("--only", nargs="*", help="names of images, such as reliability")
    chosen = parser.parse_args()
    names: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        _make_all(chosen, names, Path(folder))


def _make_all(chosen: argparse.Namespace, names: dict[str, Any], folder: Path) -> None:
    for language, code, image in parts(PAGE.read_text(encoding="utf-8")):
        if language == "sh" and chosen.only and image.stem not in chosen.only:
            continue  # lines of Python build on one another, so these all run
        target = image if chosen.png is None else chosen.png / f"{image.stem}.png"
        make(language, code, target, names, folder)
        if chosen.png is not None:
            to_grey(target)


if __name__ == "__main__":
    main()
