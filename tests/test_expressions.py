"""Names with options, read from text."""

import subprocess
import sys

import pytest

from calibrant.expressions import parse_term


@pytest.mark.parametrize(
    ("text", "name", "options", "canonical"),
    [
        ("smart", "smart", {}, "smart"),
        (" smart( ) ", "smart", {}, "smart"),
        ("smart( settled = 0 )", "smart", {"settled": 0}, "smart(settled=0)"),
        ("f(b=-1.50,a=True)", "f", {"b": -1.5, "a": True}, "f(b=-1.5, a=True)"),
        ('f(mode="top_label")', "f", {"mode": "top_label"}, "f(mode='top_label')"),
        ("f(x=(4,2), y=[1], z=None)", "f", {"x": (4, 2), "y": [1], "z": None}, "f(x=(4, 2), y=[1], z=None)"),
        ("f(x=1e999)", "f", {"x": float("inf")}, "f(x=1e309)"),
    ],
)
def test_a_term_is_a_name_with_literal_options(text, name, options, canonical):
    term = parse_term(text)
    assert (term.name, dict(term.options), term.text) == (name, options, canonical)
    assert list(term.options) == list(options)
    assert parse_term(term.text) == term


@pytest.mark.parametrize(
    "text",
    [
        "",
        "smart(",
        "smart(0)",
        "smart(settled=x)",
        "smart(settled=1, settled=2)",
        "smart(**{'settled': 0})",
        "smart()()",
        "os.getcwd()",
        "__import__('os')",
        "smart + vector",
        "smart, vector",
        "\0",
        "(" * 500 + "smart" + ")" * 500,
    ],
)
def test_anything_else_is_no_term(text):
    assert parse_term(text) is None


@pytest.mark.slow
def test_reading_terms_does_not_import_torch():
    code = "import calibrant.expressions, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
