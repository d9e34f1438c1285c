"""The gallery shows every figure, each beside what makes it, and no image is stale or heavy."""

import re
import shlex
from pathlib import Path

import pytest

import calibrant.plots
from calibrant.plots.kinds import KINDS, RUN_KINDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "gallery.md").read_text(encoding="utf-8")
IMAGES = re.findall(r"!\[(.*?)\]\((.*?)\)", PAGE)
COMMANDS = [
    shlex.split(line)
    for code in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in code.replace("\\\n", " ").splitlines()
]
FIGURES = [words for words in COMMANDS if words[1] == "plot"]


@pytest.mark.parametrize(("words", "image"), IMAGES)
def test_every_image_is_there_small_and_has_words_for_those_who_cannot_see_it(words, image):
    content = (DOCS / image).read_bytes()
    assert b"<text" in content
    assert len(content) < 150_000
    assert len(words) > 10


def test_no_image_is_left_over():
    assert {Path(image).name for _, image in IMAGES} == {path.name for path in (DOCS / "gallery").iterdir()}


@pytest.mark.parametrize("words", FIGURES, ids=lambda words: words[2])
def test_commands_name_kinds_files_and_the_image_that_follows(words):
    trained = [other[other.index("--out") + 1] for other in COMMANDS if other[1] == "train"]
    if words[2] in RUN_KINDS:
        assert words[3] in trained
    else:
        assert words[2] in KINDS
        assert (DOCS.parent / words[3]).is_file()
    out = words[words.index("--out") + 1]
    assert out.removeprefix("docs/") in [image for _, image in IMAGES]


def test_every_kind_and_every_display_has_its_place():
    assert {words[2] for words in FIGURES} | {"gammas"} == set(KINDS) | set(RUN_KINDS)
    for name in (
        "LossShapeDisplay",
        "TrainingDynamicsDisplay",
        "AdaFocalGammasDisplay",
    ):
        assert f"display = {name}" in PAGE
        assert hasattr(calibrant.plots, name)
