"""Hooks of MkDocs: pages made from the source, Markdown as GitHub reads it, formulas without scripts."""

import html
import logging
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
# Characters of a formula in a line that may be wider than a narrow screen.
_LONG = 40
# What the converter does not know.
_SIGNS = {
    r"(\\[bB]igg?[lr]?\s*)?\\([lr]?Vert(?![a-zA-Z])|\|)": "‖",
    r"\\[lr]?vert(?![a-zA-Z])": "|",
    r"\\arg(?![a-zA-Z])": r"\\mathrm{arg}\\,",
}
# MkDocs counts warnings of this logger, so that a strict build fails.
_LOG = logging.getLogger("mkdocs.formulas")
# Browsers set no space around the name of a function.
_FUNCTION = r"<mi>(?:log|ln|exp)</mi>"
_SPACE_AFTER = re.compile(rf"(?<!<msub>)(?<!<msup>){_FUNCTION}(?!<mo|</)")
_SPACE_BEFORE = re.compile(
    rf"(?:&#x00029;</mo>|</mi>|</mn>|</msub>|</msup>|</mfrac>|</msubsup>)(?={_FUNCTION})"
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
    for command, sign in _SIGNS.items():
        formula = re.sub(command, sign, formula)
    block = match["open"] == "["
    drawn = convert(formula, display="block" if block else "inline")
    drawn = _SPACE_AFTER.sub(r'\g<0><mspace width="0.17em"/>', drawn)
    drawn = _SPACE_BEFORE.sub(r'\g<0><mspace width="0.17em"/>', drawn)
    if "\\" in drawn:
        _LOG.warning("formula %s: no MathML for a part of it", formula)
    if block:
        return f'<div class="formula">{drawn}</div>'
    return f'<span class="formula">{drawn}</span>' if len(formula) > _LONG else drawn
