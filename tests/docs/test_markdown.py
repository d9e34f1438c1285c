"""Markdown as the site reads it: docstrings, links, lists and the gallery."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripts.website.docstrings import to_markdown
from scripts.website.gallery import pictures_first
from scripts.website.hooks import on_page_content, on_page_markdown
from scripts.website.overview import title_and_question
from scripts.website.repository import address_of, rewrite_links

ROOT = Path(__file__).parents[2]


def page(address):
    return SimpleNamespace(file=SimpleNamespace(src_uri=address))


@pytest.mark.parametrize(
    ("source", "address"),
    [
        ("docs/measures.md", "measures.md"),
        ("README.md", "index.md"),
        ("CHANGELOG.md", "changelog.md"),
        ("docs/results/rows/", "results/rows/index.md"),
        ("docs/results/rows/losses", "results/rows/index.md"),
        ("configs/seca/cifar10_resnet32.toml", "configs/seca/cifar10_resnet32.toml"),
    ],
)
def test_files_of_the_repository_have_an_address_on_the_site(source, address):
    assert address_of(source) == address


def test_links_lead_from_page_to_page_and_code_stays():
    text = "[a](../README.md#x) `[b](../README.md)` [c](https://a.org/b.md) [d](#e)\n```\n[f](../a.md)\n```\n"
    expected = text.replace("[a](../README.md#x)", "[a](index.md#x)")
    assert rewrite_links(text, "measures.md") == expected
    assert rewrite_links("[a](docs/posthoc.md)", "contributing.md") == "[a](posthoc.md)"
    assert rewrite_links("[a](../posthoc.md)", "howto/calibrate.md") == "[a](../posthoc.md)"


def test_a_list_directly_below_a_line_is_a_list_as_on_github():
    text = "Text:\n- one\n- two\n\n```\nText:\n- code\n```\n"
    changed = on_page_markdown(text, page("measures.md"))
    assert changed == "Text:\n\n- one\n- two\n\n```\nText:\n- code\n```\n"


def test_formulas_become_mathml():
    drawn = on_page_content('<p><span class="arithmatex">\\(\\frac{a}{b} &lt; \\log c\\)</span></p>')
    assert drawn.startswith("<p><math")
    assert "<mfrac>" in drawn
    assert "&lt;" in drawn or "&#x0003C;" in drawn
    assert "\\" not in drawn


def test_docstrings_keep_their_indent_and_their_code():
    text = "One.\n\n    .. math:: a\n        + b\n\nArgs:\n    x: See :func:`~calibrant.evaluate`.\n"
    changed = to_markdown(text + "\nExample:\n    >>> 1\n")
    assert "    $$\n    a + b\n    $$\n" in changed
    assert '<autoref optional identifier="calibrant.evaluate"><code>evaluate</code></autoref>' in changed
    assert "\nExamples:\n    >>> 1\n" in changed


def test_the_gallery_shows_each_picture_before_its_code():
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    changed = pictures_first(text)
    assert changed.index("![") < changed.index("```")
    pictured = [section for section in changed.split("\n## ")[1:] if "![" in section]
    assert len(pictured) > 15
    assert [part[:30] for part in pictured if "```" in part and part.index("![") > part.index("```")] == []
    images = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert set(re.findall(r"!\[.*?\]\((.*?)\)", changed)) == set(images)


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "results").glob("*.md")), ids=lambda file: file.stem)
def test_every_result_page_begins_with_what_it_answers(file):
    title, question = title_and_question(file.read_text(encoding="utf-8"))
    assert title
    assert len(question) > 20
