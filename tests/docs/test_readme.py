"""README and the other files at the root: links lead somewhere, and the comparison is what its data say."""

import re
from pathlib import Path

import pytest
from scripts.peers import FACTS, LIBRARIES, Fact, outcome, table

ROOT = Path(__file__).parents[2]
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
HOME = "https://github.com/calibrant/calibrant"


@pytest.mark.parametrize("file", FILES)
def test_links_of_files_at_the_root_lead_to_files(file):
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", (ROOT / file).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("file", ["README.md", "docs/comparison.md"])
def test_the_comparison_is_the_table_of_the_facts(file):
    assert f"<!-- scripts/peers.py --table -->\n{table()}\n" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_facts_about_libraries_that_are_installed_hold(library):
    outcomes = {fact.question: outcome(fact, library) for fact in FACTS}
    assert [question for question, state in outcomes.items() if state == "wrong"] == []
    if "missing" not in outcomes.values():
        assert "checked" in outcomes.values()


def test_a_wrong_fact_is_noticed():
    answers = ("no", *["no"] * (len(LIBRARIES) - 1))
    assert outcome(Fact("can it?", answers, {"Calibrant": lambda: "yes"}), "Calibrant") == "wrong"
    assert outcome(Fact("can it?", answers, {"Calibrant": lambda: "no"}), "Calibrant") == "checked"
    assert outcome(Fact("can it?", answers), "Calibrant") == "read"


def test_the_readme_has_a_picture_two_commands_and_code_for_each_of_six_users():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "docs/gallery/reliability.svg" in text.split("## ")[0]
    assert "make demo" in text.split("## ")[0]
    parts = text.split("## ")[1].split("\n**I ")
    assert len(parts) == 7
    assert [part for part in parts[1:] if "```" not in part] == []
