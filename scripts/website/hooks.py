"""Hooks of MkDocs: pages made from the source, Markdown as GitHub reads it, formulas without scripts."""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from scripts.website import reference, repository
from scripts.website.gallery import pictures_first
from scripts.website.names import ROOT
from scripts.website.navigation import navigation
from scripts.website.overview import result_pages

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<formula>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
_LIST_AFTER_TEXT = re.compile(r"^(?![-*|>#\s]|\d+\. )(.+)\n(?=- )", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files in docs/, and build the navigation of all of them."""
    made = [*reference.pages(), *repository.pages(), ("results/index.md", result_pages())]
    for address, text in made:
        files.append(File.generated(config, address, content=text))
    for asset in repository.assets():
        files.append(File.generated(config, asset, abs_src_path=str(ROOT / asset)))
    config.nav = navigation(file.src_uri for file in files.documentation_pages())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401  # MkDocs' own objects
    """Change what GitHub and Python-Markdown read differently, and where links lead."""
    address = page.file.src_uri
    text = repository.rewrite_links(markdown, address)
    if address == "gallery.md":
        text = pictures_first(text)
    text = text.replace("```python\n>>> ", "```pycon\n>>> ")
    return repository.outside_code(text, lambda part: _LIST_AFTER_TEXT.sub(r"\1\n\n", part))


def on_page_content(content: str, **_: Any) -> str:  # noqa: ANN401  # MkDocs' own objects
    """Turn formulas into MathML, which browsers draw themselves."""
    return _FORMULA.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    formula = html.unescape(match["formula"]).strip()
    block = match["open"] == "["
    drawn = convert(formula, display="block" if block else "inline")
    return f'<div class="formula">{drawn}</div>' if block else drawn
