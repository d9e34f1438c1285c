"""The documentation site: built strictly, complete, without a network, and usable in a real browser."""

import dataclasses
import importlib
import re

import pytest
from scripts.website import reference
from scripts.website.checks import check_site
from scripts.website.names import PACKAGES, public_names
from scripts.website.navigation import navigation
from scripts.website.outputs import SHOWN, SLOW, is_same, kept, printed

from tests.conftest import at_length

pytestmark = pytest.mark.slow

# A page of each room, and those with wide formulas, tables and figures.
PAGES = (
    "index.html",
    "why-confidence-lies.html",
    "howto/calibrate.html",
    "tutorials/repair-a-network.html",
    "measures.html",
    "losses.html",
    "reference/commands/calibrate.html",
    "reference/api/calibrant.posthoc.html",
    "reference/configuration.html",
    "gallery.html",
    "results/llm.html",
    "results/arena.html",
    "papers.html",
    "architecture.html",
)
# For each kind of user: what to click from the front page on; heading and anchor of the page for the job.
USERS = {
    "a trained model with outputs": (
        ["Evaluate and calibrate"],
        "Evaluate and calibrate saved predictions",
        "",
    ),
    "training a model": (
        ["Losses", "Which loss when"],
        "Losses that train for calibration",
        "which-loss-when",
    ),
    "training with one command": (["one command"], "Training", ""),
    "whether to trust a model": (["Measures"], "Measures", ""),
    "a black box": (["Black boxes"], "Black boxes", ""),
    "deploying": (["Shipping"], "Post-hoc calibration", "shipping"),
    "a model in use": (["monitoring"], "Monitoring", ""),
    "publishing": (["The benchmark"], "The benchmark", ""),
}

# The first page of each room.
FIRST = {
    "How-to": "Evaluate and calibrate saved predictions",
    "Concepts": "Concepts",
    "Reference": "Reference",
    "Gallery": "Gallery",
    "Results": "Results",
    "Papers": "The papers, item by item",
    "For contributors": "Working on Calibrant",
}


def test_the_strict_build_succeeds_and_counts_what_it_checked(site):
    assert site.code == 0, site.errors
    pages, links, documented, names = map(
        int,
        re.search(r"(\d+) pages, ([\d,]+) links checked .* (\d+) of (\d+) public names", site.printed)
        .expand(r"\1 \2 \3 \4")
        .replace(",", "")
        .split(),
    )
    assert pages > 80
    assert links > 10_000
    assert documented == names == sum(len(public_names(package)) for package in PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_exactly_the_names_that_can_be_imported(package):
    module = importlib.import_module(package)
    names = {each.name for each in public_names(package)}
    if hasattr(module, "__all__"):
        assert names == set(module.__all__)
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == package and callable(value)
    }
    assert own <= names


def test_every_field_of_the_settings_has_a_row_with_its_default():
    from calibrant.training.config.settings import Config, EncoderSettings

    page = reference.configuration_page()
    tables = dict(
        re.findall(r"^## (?:`\[(.*?)\]`|Top level)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    )

    def check(settings, prefix):
        for field in dataclasses.fields(settings):
            value = getattr(settings, field.name)
            if field.name == "encoder":
                value = EncoderSettings()
            if dataclasses.is_dataclass(value):
                check(value, f"{prefix}.{field.name}".lstrip("."))
                continue
            row = next(line for line in tables[prefix].splitlines() if line.startswith(f"| `{field.name}` |"))
            default, meaning = (cell.strip() for cell in re.split(r" \| ", row.strip("| "))[-2:])
            assert len(meaning) > 3, row
            if default:
                assert eval(default.strip("`")) == value, row  # a literal of our own source

    check(Config(), "")


def test_every_option_of_every_command_is_on_its_page():
    for name, command in reference.commands().items():
        page = reference.command_page(name, command)
        for each in (command, *getattr(command, "commands", {}).values()):
            for option in (
                option for param in each.params for option in param.opts if option.startswith("--")
            ):
                assert option in page, (name, option)
        assert f"$ calibrant {name} " in page or f"$ calibrant {name}\n" in page


def test_outputs_in_the_reference_are_what_the_commands_print():
    assert set(SHOWN) == set(reference.commands())
    fresh = dict(printed(name for name in SHOWN if name not in SLOW))
    assert [name for name, text in fresh.items() if not is_same(text, kept(name))] == []


def test_tutorials_have_a_place_as_soon_as_there_are_some():
    before, after = ({"index.md"}, {"index.md", "tutorials/first.md", "tutorials/index.md"})
    assert "Tutorials" not in [title for room in navigation(before) for title in room]
    assert {"Tutorials": ["tutorials/index.md", "tutorials/first.md"]} in navigation(after)


def test_broken_links_lost_pages_and_foreign_scripts_are_problems(tmp_path):
    (tmp_path / "index.html").write_text(
        '<a href="page.html#there">.</a><a href="page.html#gone">.</a><a href="no.html">.</a>'
        '<a href="https://elsewhere.org">.</a><script src="https://elsewhere.org/a.js"></script>'
    )
    (tmp_path / "page.html").write_text('<h2 id="there">.</h2><a href="index.html">.</a>')
    (tmp_path / "lost.html").write_text('<img src="//elsewhere.org/a.png">')
    report = check_site(tmp_path)
    assert [each for each in report.problems if ".html" in each] == [
        "index.html: a link to page.html#gone, which does not exist",
        "index.html: a link to no.html, which does not exist",
        "index.html: loads https://elsewhere.org/a.js from elsewhere",
        "lost.html: loads //elsewhere.org/a.png from elsewhere",
        "lost.html: no page leads to it",
    ]
    assert (report.pages, report.links, report.outside, report.documented) == (3, 4, 1, 0)


@pytest.mark.parametrize("user", at_length(USERS, ["training a model"]))
def test_each_user_reaches_the_page_for_the_job_in_three_clicks(visit, user):
    words, heading, anchor = USERS[user]
    assert len(words) <= 3
    page = visit().page
    for each in words:
        page.locator("article").get_by_role("link", name=each, exact=True).first.click()
        page.wait_for_load_state()
    assert page.locator("h1").inner_text().removesuffix("¶").strip() == heading
    assert page.url.partition("#")[2] == anchor


@pytest.mark.long
def test_rooms_are_reached_by_the_tabs(visit):
    page = visit().page
    for room, heading in FIRST.items():
        page.locator(".md-tabs").get_by_role("link", name=room, exact=True).click()
        page.wait_for_load_state()
        assert page.locator(".md-tabs__item--active").inner_text().strip() == room
        assert page.locator("h1").inner_text().removesuffix("¶").strip() == heading


@pytest.mark.parametrize(
    ("path", "from_disk"),
    [
        ("reference/commands/calibrate.html", True),
        pytest.param("reference/commands/calibrate.html", False, marks=pytest.mark.long),
        pytest.param("index.html", True, marks=pytest.mark.long),
        pytest.param("index.html", False, marks=pytest.mark.long),
    ],
)
def test_the_search_finds_a_name_without_a_network(visit, path, from_disk):
    seen = visit(path, from_disk=from_disk)
    query = seen.page.locator("input[name=query]")
    query.click()
    seen.page.locator(".md-search-result__meta", has_text="Type to start searching").wait_for()
    query.press_sequentially("kuiper_error")
    seen.page.locator(".md-search-result__item a").first.click()
    seen.page.wait_for_url("**/reference/api/calibrant.metrics.html*")
    seen.page.locator("article mark", has_text="kuiper_error").first.wait_for()
    assert (seen.messages, seen.requests) == ([], [])


def test_colours_follow_the_system_and_the_button(visit):
    def scheme(page):
        return page.evaluate("document.body.getAttribute('data-md-color-scheme')")

    page = visit(scheme="dark").page
    assert scheme(page) == "slate"
    page.locator("header label[title='Use light colours']").click()
    assert scheme(page) == "default"
    assert scheme(visit(scheme="light").page) == "default"


@pytest.mark.parametrize(
    "paths", at_length([list(PAGES[:4]), list(PAGES[4:])], [list(PAGES[:4])]), ids=["some", "others"]
)
def test_pages_fit_a_narrow_screen_and_load_nothing_from_elsewhere(visit, paths):
    seen = visit(width=400)
    for path in paths:
        seen.page.goto(f"{seen.page.url.partition('://')[0]}://{seen.page.url.split('/')[2]}/{path}")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 400, path
    assert (seen.messages, seen.requests) == ([], [])


def test_formulas_are_drawn_by_the_browser_itself(visit):
    page = visit("reference/api/calibrant.metrics.html").page
    box = page.locator("math").first.bounding_box()
    assert box["width"] > 5
    assert box["height"] > 5
    assert "arithmatex" not in page.content()
    assert ".. math::" not in page.locator("article").inner_text()
