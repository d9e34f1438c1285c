"""The page of the arena: rows of several people become one page, which ranks what the reader picks."""

from dataclasses import replace

import pytest

from calibrant.errors import InputError
from calibrant.papers.arena_page import arena_page
from calibrant.papers.arena_tasks import MergedTasks, merge_tasks, read_arena_tasks
from calibrant.papers.leaderboard import make_board
from tests.conftest import serious_violations
from tests.hostile import NAMES
from tests.papers.arena_rows import MEASURES, METHODS, data_of, drawn_rows, row, values

# ---- merging


def test_a_task_is_known_by_its_digest_and_has_the_methods_of_all_its_sources():
    mine = row("a.npz", 200, 0, {"temperature": values(1.0), "smart": values(2.0)}, predictions="x")
    theirs = row(
        "other.npz", 200, 0, {"temperature": values(1.00001), "matrix": values(3.0)}, predictions="x"
    )
    another = row("a.npz", 200, 0, {"temperature": values(5.0)}, predictions="y")
    merged = merge_tasks(
        {"mine": read_arena_tasks([mine]), "theirs": read_arena_tasks([theirs, another], source="theirs")}
    )
    assert [(task.file, task.predictions) for task in merged.tasks] == [("a.npz", "x"), ("a.npz", "y")]
    assert set(merged.tasks[0].results) == {"temperature", "smart", "matrix"}
    assert merged.tasks[0].results["temperature"]["nll"] == 1.0
    assert (merged.n_repeated, merged.contradictions) == (1, ())


@pytest.mark.parametrize("change", [{"samples": 1000}, {"seed": 1}, {"version": "0.2.0"}, {"kind": "pairs"}])
def test_other_samples_seeds_versions_and_kinds_are_other_tasks(change):
    given = {"file": "a.npz", "samples": 200, "seed": 0, "version": "0.1.0", "predictions": "x"}
    rows = [row(values={"temperature": values(1.0)}, **each) for each in (given, given | change)]
    merged = merge_tasks({name: read_arena_tasks([each]) for name, each in zip("ab", rows, strict=True)})
    assert (len(merged.tasks), merged.n_repeated) == (2, 0)


def test_rows_without_a_digest_make_a_page_of_their_own_and_cannot_be_merged():
    old = read_arena_tasks([row("a.npz", 200, 0, {"temperature": values(1.0), "smart": values(2.0)})])
    assert len(merge_tasks({"old": old}).tasks) == 1
    with pytest.raises(InputError, match="theirs: expected a digest .* got none for a.npz; run it again"):
        merge_tasks({"mine": [], "theirs": old})


def test_what_is_no_row_of_the_arena_is_refused_with_its_source():
    whole = row("a.npz", 200, 0, {"temperature": values(1.0), "smart": values(2.0)}, predictions="x")
    key, labels = whole.key, whole.records[0].labels

    def changed(**others):
        first = replace(whole.records[0], **others)
        return replace(whole, records=(first, whole.records[1]))

    for bad in (
        replace(whole, key={"task": "digits"}),
        replace(whole, key={**key, "samples": "many"}),
        replace(whole, records=()),
        replace(whole, records=whole.records[1:]),  # without the reference
        changed(labels={**labels, "kind": "boxes"}),
        changed(labels={**labels, "classes": True}),
        changed(labels={**labels, "method": 3}),
        changed(values={**whole.records[0].values, "nll": None}),
        changed(values={**whole.records[0].values, "nll": float("inf")}),
    ):
        with pytest.raises(InputError, match="theirs: expected rows of the arena of real predictions"):
            read_arena_tasks([bad], source="theirs")
    assert len(read_arena_tasks([whole])) == 1


# ---- the page


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """A page of two versions, with names that attack."""
    rows = drawn_rows(6) + drawn_rows(2, version="0.2.0", methods=METHODS[:3])
    attack = {"temperature": values(1.0), "smart": values(2.0), NAMES["script"]: values(0.5)}
    rows += [
        row(name, 200, 0, attack, 3, version="evil", predictions=key)
        for key, name in NAMES.items()
        if "\udcff" not in name
    ]
    merged = MergedTasks(
        merge_tasks({"rows": read_arena_tasks(rows)}).tasks,
        0,
        tuple(f"{name} differs" for name in NAMES.values()),
    )
    path = tmp_path_factory.mktemp("page") / "arena.html"
    page = arena_page(merged, sources=list(NAMES.values()), left_out=dict.fromkeys(NAMES.values(), "why"))
    path.write_text(page, encoding="utf-8")
    return path


@pytest.fixture
def shown(look, page_file):
    """Return a function that shows all tasks of a version, ranked by NLL."""

    def show(version="0.1.0", **window):
        seen = look(page_file, **window)
        seen.page.select_option("#version", version)
        for name in ("measure", "classes", "samples"):
            if seen.page.is_enabled(f"#{name}"):
                seen.page.select_option(f"#{name}", index=0)
        return seen

    return show


def test_names_cannot_end_the_script_around_the_numbers(page_file):
    text = page_file.read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert not set("<>&") & set(text.partition('id="data">')[2].partition("</script>")[0])
    assert "<img" not in text
    assert NAMES["script"] in data_of(text)["methods"]


@pytest.mark.slow
def test_the_page_runs_no_name_and_loads_nothing(shown, page_file):
    seen = shown("evil")
    assert seen.page.locator("#board tbody tr").first.get_attribute("data-name") == NAMES["script"]
    assert (seen.messages, seen.requests) == ([], [page_file.as_uri()])


@pytest.mark.slow
def test_the_page_ranks_what_is_picked_as_python_does(shown):
    page = shown().page
    tasks = read_arena_tasks(drawn_rows(6))
    for samples, classes, chosen in (
        ("all", "all", tasks),
        ("200", "all", [task for task in tasks if task.samples == 200]),
        ("all", "1", [task for task in tasks if task.classes == 5]),
    ):
        page.select_option("#samples", samples)
        page.select_option("#classes", classes)
        board = make_board(chosen, only=lambda name: name != "pool")
        lines = page.locator("#board tbody tr").all()
        found = {line.get_attribute("data-name"): line.locator("td").all_inner_texts() for line in lines}
        assert found.keys() == {each.method for each in board.standings}
        for each in board.standings:
            *numbers, seconds = map(float, found[each.method])
            assert numbers[:5] == pytest.approx([each.ranks[name] for name in MEASURES], abs=0.0051)
            ratios = [each.ratios[name].mean for name in ("nll", "brier")]
            assert numbers[5:] == pytest.approx(ratios, abs=0.00051)
            assert seconds == pytest.approx(each.seconds, rel=0.05)
        assert f"critical difference is {board.critical_difference:.2f}" in page.inner_text("#answer")
        assert f"{board.n_tasks} tasks of {board.n_files} file" in page.inner_text("#answer")
    page.select_option("#samples", "200")
    page.select_option("#classes", "all")
    for measure in ("brier", "ece"):
        page.select_option("#measure", measure)
        counted = "smece" if measure == "ece" else measure
        own = [task for task in tasks if task.samples == 200]
        leads = [task.results["smart"][f"lead_{counted}"] for task in own]
        ahead, behind = sum(lead > 2 for lead in leads), sum(lead < -2 for lead in leads)
        label = page.get_attribute("#duel-chart svg", "aria-label")
        assert f"smart: better in {ahead}, worse in {behind} of {len(own)}" in label


@pytest.mark.slow
def test_a_filter_that_leaves_no_task_says_so_and_hides_the_charts(shown):
    page = shown(version="0.2.0").page
    page.select_option("#classes", "0")
    page.select_option("#samples", "1000")
    assert page.inner_text("#answer").startswith("No task")
    assert not page.is_visible("#rank-chart")
    page.select_option("#classes", "all")
    assert page.is_visible("#rank-chart")


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_overflows_and_the_charts_have_the_width_of_the_page(shown, width):
    page = shown(width=width).page
    fits = "(width) => document.querySelector('#rank-chart svg').clientWidth < width"
    page.wait_for_function(fits, arg=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("rank-chart", "duel-chart", "cost-chart"):
        assert page.locator(f"#{name} svg").bounding_box()["width"] > 0.6 * min(width, 1000), name
    assert page.locator("#rank-chart .row").count() == 5


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_there_is_no_serious_accessibility_violation(shown, scheme):
    page = shown(scheme=scheme).page
    assert serious_violations(page) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(244, 246, 248)", "dark": "rgb(14, 19, 24)"}[scheme]
