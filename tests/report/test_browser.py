"""The page in a real browser: it draws, its controls work, it is accessible, and it loads nothing."""

import pytest

from calibrant.report.page import page_from_json
from tests.conftest import serious_violations
from tests.report.conftest import FILE, HOSTILE, call

pytestmark = pytest.mark.slow

CHARTS = (
    "reliability-before",
    "reliability-after",
    "histogram-before",
    "histogram-after",
    "risk",
    "margins-after",
)


def drawing(page, name):
    return page.inner_html(f"#{name} svg")


def test_the_page_draws_without_a_complaint_or_a_request(look, full_page):
    seen = look(full_page)
    for name in (*CHARTS, "temperatures", "shift-before", "shift-after", "detection"):
        assert drawing(seen.page, name).count("<path") > 3, name
    assert seen.messages == []
    assert seen.requests == [full_page.as_uri()]
    # Each bin that has samples shows how many, above its bar.
    drawn = "JSON.parse(document.getElementById('data').textContent)"
    counts = seen.page.evaluate(f"{drawn}.candidates[0].bins[2].count")
    texts = seen.page.locator("#reliability-before svg .role-mark text").all_text_contents()
    assert [text for text in texts if "k" not in text] == [str(n) for n in counts if 0 < n < 1000]


def test_hostile_names_run_nothing_and_are_shown(look, written):
    seen = look(written.page)
    assert seen.messages == []
    assert seen.page.evaluate("window.hacked") is None
    assert seen.page.locator("img").count() == 0
    shown = seen.page.locator("#class-table tbody th").all_inner_texts()
    assert sorted(shown) == sorted(HOSTILE)
    assert FILE in seen.page.inner_text("header")


def test_groups_are_drawn_and_their_names_run_nothing(look, grouped):
    seen = look(grouped, width=400)
    assert seen.messages == []
    assert seen.page.evaluate("window.hacked") is None
    assert drawing(seen.page, "groups-chart").count("<path") > 6
    assert HOSTILE[1] in seen.page.locator("#group-table tbody th").all_inner_texts()
    assert "art: " in seen.page.get_attribute("#groups-chart", "aria-label")
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_slider_changes_the_bins_and_the_error(page, written):
    told = page_from_json(written.results["page"])
    drawn = {name: drawing(page, name) for name in CHARTS}
    page.focus("#bins")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("document.getElementById('bins-shown').textContent === '50'")
    page.wait_for_function("document.querySelectorAll('#reliability-before svg path').length > 60")
    for name in CHARTS[:4]:
        assert drawing(page, name) != drawn[name], name
    ece = told.candidates[0].figures.bins[-1].ece
    assert page.inner_text("#ece-before") == f"ECE {100 * ece:.2f}\N{NO-BREAK SPACE}%"


def test_the_picker_changes_what_is_compared(page, written):
    told = page_from_json(written.results["page"])
    other = next(each for each in told.candidates[1:] if each.name != told.chosen)
    before = {name: drawing(page, name) for name in CHARTS}
    page.select_option("#method", other.name)
    page.wait_for_function(f"document.querySelector('.picked').textContent === {other.title!r}")
    drawn = "([id, old]) => document.querySelector(`#${id} svg`)?.innerHTML !== old"
    for name in ("reliability-after", "histogram-after", "margins-after"):
        page.wait_for_function(drawn, arg=[name, before[name]])
    after = {name: drawing(page, name) for name in CHARTS}
    changed = {name for name in CHARTS if before[name] != after[name]}
    assert changed >= {"reliability-after", "histogram-after", "margins-after"}
    assert changed.isdisjoint({"reliability-before", "histogram-before"})
    ece = next(each.ece for each in other.figures.bins if each.n_bins == 15)
    assert page.inner_text("#ece-after") == f"ECE {100 * ece:.2f}\N{NO-BREAK SPACE}%"


def test_methods_with_options_can_be_picked_and_fit_a_narrow_screen(look, written):
    folder = written.folder.parent
    name, path = "isotonic(mode='top_label', smoothing=0.5)", folder / "options.html"
    told = ("--val", folder / "val.npz", "--methods", f"temperature(start=2),{name}", "--out", path)
    assert call("report", folder / FILE, *told) == 0
    seen = look(path, width=400)
    seen.page.select_option("#method", name)
    title = "isotonic (mode='top_label', smoothing=0.5)"
    seen.page.wait_for_function(
        "wanted => document.querySelector('.picked').textContent === wanted", arg=title
    )
    assert seen.messages == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 400


def test_headings_sort_the_rows_both_ways(page, written):
    methods = written.results["methods"]
    rising = sorted(methods, key=lambda name: methods[name]["test"]["nll"])
    heading = page.get_by_role("button", name="NLL")
    names = "[...document.querySelectorAll('#comparison-table tbody tr')].map(row => row.dataset.name)"
    heading.focus()
    page.keyboard.press("Enter")
    assert page.evaluate(names) == rising
    assert page.locator("#comparison-table th[aria-sort=ascending]").count() == 1
    heading.click()
    assert page.evaluate(names) == rising[::-1]
    page.get_by_role("button", name="method", exact=True).click()
    assert page.evaluate(names) == list(methods)


def check_readout(page, probs, labels):
    """The readout must be what a threshold on these probabilities gives."""
    said = page.evaluate("({...document.getElementById('readout').dataset})")
    confidence, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    answered = confidence >= float(said["threshold"]) - 1e-8
    coverage, risk = answered.mean(), 1 - right[answered].mean()
    assert float(said["coverage"]) == pytest.approx(coverage, abs=1e-8)
    assert float(said["risk"]) == pytest.approx(risk, abs=1e-8)
    text = page.inner_text("#readout").replace("\N{NO-BREAK SPACE}", " ")
    assert text.startswith(f"Answer {100 * coverage:.1f} % of samples at {100 * risk:.1f} % error")
    promised = float(said["guaranteed"])
    assert promised > risk
    assert f"at most {100 * promised:.1f} % error, with 95 % probability" in text
    return coverage


def test_the_threshold_readout_equals_python(page, written):
    page.select_option("#method", "temperature")
    page.wait_for_function("document.querySelector('.picked').textContent === 'temperature scaling'")
    from calibrant.posthoc import TemperatureScaling

    val = _load(written.folder.parent / "val.npz")
    probs = TemperatureScaling.fit(*val).predict_proba(written.logits)
    page.focus("#threshold")
    seen = []
    for key in ("End", "PageDown", "PageDown", "ArrowLeft", "Home", "ArrowRight"):
        page.keyboard.press(key)
        seen.append(check_readout(page, probs, written.labels))
    assert seen[0] == 1
    assert len(set(seen)) == len(seen)


def test_the_line_can_be_dragged(page):
    page.locator("#risk").scroll_into_view_if_needed()
    box = page.locator("#risk svg").bounding_box()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 100, steps=5)
    page.mouse.up()
    page.wait_for_function("Math.abs(document.getElementById('readout').dataset.coverage - 0.37) < 0.05")
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 100)
    assert abs(float(page.get_attribute("#readout", "data-coverage")) - 0.37) < 0.05


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_there_is_no_serious_accessibility_violation(look, full_page, scheme):
    page = look(full_page, scheme=scheme).page
    page.evaluate("document.getElementById('numbers').open = true")
    assert serious_violations(page) == []


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_overflows(look, written, full_page, width):
    for path in (written.page, full_page):
        page = look(path, width=width).page
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        outside = page.evaluate(
            """[...document.querySelectorAll("main *")]
                .filter((each) => !each.closest(".scroll, .unseen"))
                .filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)
                .map((each) => each.outerHTML.slice(0, 99))"""
        )
        assert outside == []


def test_paper_is_light_and_has_no_controls(look, written):
    page = look(written.page, width=700, scheme="dark", media="print").page
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.is_visible("#controls")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700


def _load(path):
    import numpy as np

    with np.load(path) as saved:
        return saved["logits"], saved["labels"]
