"""``calibrant bench page``: one page, merged from the rows of several folders."""

from dataclasses import replace

from tests.papers.arena_rows import EXPERIMENT, data_of, drawn_rows, folder_of


def test_rows_of_two_folders_merged_give_the_page_of_both(run, tmp_path):
    rows = drawn_rows()
    mine, theirs = folder_of(tmp_path / "mine", rows[:5]), folder_of(tmp_path / "theirs", rows[3:])
    both = folder_of(tmp_path / "both", rows)
    add = ("--add", theirs / "rows.jsonl")
    code, told, _ = run("bench", "page", mine, *add, "--out", tmp_path / "merged.html")
    assert (code, "9 tasks, 2 of them in several sources" in told) == (0, True)
    assert run("bench", "page", both, "--out", tmp_path / "both.html")[0] == 0
    merged, whole = (data_of((tmp_path / name).read_text()) for name in ("merged.html", "both.html"))
    assert merged == whole
    assert len(merged["tasks"]) == len(rows)


def test_results_that_differ_beyond_rounding_are_named_in_one_sentence(run, tmp_path):
    rows = drawn_rows(2)
    wrong = rows[0].records[3]
    changed = replace(wrong, values={**wrong.values, "brier": wrong.values["brier"] + 0.01})
    theirs = replace(rows[0], records=(*rows[0].records[:3], changed, *rows[0].records[4:]))
    mine, theirs = folder_of(tmp_path / "mine", rows), folder_of(tmp_path / "theirs", [theirs])
    out = tmp_path / "page.html"
    _, told, _ = run("bench", "page", mine, "--add", theirs / "rows.jsonl", "--out", out)
    brier = wrong.values["brier"]
    expected = f"0.npz, 200 samples, seed 0, smart: Brier {brier:.4g} and {brier + 0.01:.4g} in {mine} and"
    assert [line for line in told.splitlines() if expected in line] == [told.splitlines()[0]]
    assert "1 differing result, the first source counts" in told
    assert "1 result differs beyond rounding" in out.read_text(encoding="utf-8")
    alone = tmp_path / "alone.html"
    assert run("bench", "page", mine, "--out", alone)[0] == 0
    assert data_of(out.read_text()) == data_of(alone.read_text())


def test_bad_input_of_the_page_is_one_sentence(run, tmp_path):
    mine, empty = folder_of(tmp_path / "mine", drawn_rows(2)), tmp_path / "empty"
    empty.mkdir()
    (empty / "arena_real.toml").write_text(EXPERIMENT)
    other = tmp_path / "other"
    other.mkdir()
    (other / "posthoc.toml").write_text(EXPERIMENT.replace("arena_real", "posthoc"))
    (tmp_path / "broken.jsonl").write_text("no row\n")
    for words, message in (
        ((mine, "--out", "page.pdf"), "--out: expected a file that ends in .html, got page.pdf"),
        ((tmp_path / "none",), "DIR: expected a folder that calibrant bench run wrote"),
        ((other,), "whose rows are of the worker posthoc"),
        ((empty,), "arena_real: expected finished rows, got none; run the experiment first"),
        (
            (mine, "--add", tmp_path / "broken.jsonl"),
            "broken.jsonl: expected finished rows, got another line 1",
        ),
    ):
        code, told, error = run("bench", "page", *words)
        assert (code, told, error.count("\n")) == (2, "", 1), error
        assert message in error
