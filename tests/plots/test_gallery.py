"""The gallery shows every figure, each beside what makes it, and no image is stale or heavy."""

import re
import shlex
from pathlib import Path

import pytest

import calibrant.plots
from calibrant.plots.kinds import KINDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "gallery.md").read_text(encoding="utf-8")
IMAGES = re.findall(r"!\[(.*?)\]\((.*?)\)", PAGE)
COMMANDS = [
    shlex.split(code.replace("\\\n", " ")) for code in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
]


@pytest.mark.parametrize(("words", "image"), IMAGES)
def test_every_image_is_there_small_and_has_words_for_those_who_cannot_see_it(words, image):
    content = (DOCS / image).read_bytes()
    assert b"<text" in content
    assert len(content) < 150_000
    assert len(words) > 10


def test_no_image_is_left_over():
    assert {Path(image).name for _, image in IMAGES} == {path.name for path in (DOCS / "gallery").iterdir()}


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[2])
def test_commands_name_kinds_files_and_the_image_that_follows(words):
    assert words[:2] == ["calibrant", "plot"]
    assert words[2] in KINDS
    assert (DOCS.parent / words[3]).is_file()
    out = words[words.index("--out") + 1]
    assert out.removeprefix("docs/") in [image for _, image in IMAGES]


def test_every_kind_and_every_display_has_its_place():
    assert {words[2] for words in COMMANDS} == set(KINDS)
    for name in (
        "LossShapeDisplay",
        "TrainingDynamicsDisplay",
        "AdaFocalGammasDisplay",
    ):
        assert f"display = {name}" in PAGE
        assert hasattr(calibrant.plots, name)
