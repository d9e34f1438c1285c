"""``calibrant bench page``: one page, merged from the rows of several folders."""

from collections import Counter
from dataclasses import replace

from tests.papers.arena_rows import EXPERIMENT, METHODS, data_of, drawn_rows, folder_of


def test_rows_of_two_folders_merged_give_the_page_of_both(run, tmp_path):
    rows = drawn_rows()
    mine, theirs = folder_of(tmp_path / "mine", rows[:5]), folder_of(tmp_path / "theirs", rows[3:])
    both = folder_of(tmp_path / "both", rows)
    add = ("--add", theirs / "rows.jsonl")
    code, told, _ = run("bench", "page", mine, *add, "--out", tmp_path / "merged.html")
    assert (code, "9 tasks, 2 of them run more than once" in told) == (0, True)
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
    assert "1 differing result, the first number counts" in told
    assert "1 result differs beyond rounding" in out.read_text(encoding="utf-8")
    alone = tmp_path / "alone.html"
    assert run("bench", "page", mine, "--out", alone)[0] == 0
    assert data_of(out.read_text()) == data_of(alone.read_text())


def test_one_file_with_the_rows_of_two_people_counts_as_two_files_do(run, tmp_path):
    mine = folder_of(tmp_path / "mine", drawn_rows(3))
    ours = drawn_rows(2, methods=METHODS[:4])
    others = drawn_rows(2, methods=METHODS[1:])  # the same tasks, with other methods
    others += drawn_rows(2, version="0.2.0") + of_other_predictions(drawn_rows(2, seed=1))
    texts = [folder_of(tmp_path / str(n), rows) / "rows.jsonl" for n, rows in enumerate((others, ours))]
    both = tmp_path / "both.jsonl"
    both.write_text("".join(each.read_text() for each in texts))
    pages = {"both": ("--add", both), "two": ("--add", texts[1], "--add", texts[0])}
    for name, add in pages.items():
        code, told, _ = run("bench", "page", mine, *add, "--out", tmp_path / f"{name}.html")
        assert (code, told.splitlines()[-1].endswith("10 tasks, 3 of them run more than once")) == (0, True)
    assert data_of((tmp_path / "both.html").read_text()) == data_of((tmp_path / "two.html").read_text())
    tasks = data_of((tmp_path / "both.html").read_text())["tasks"]
    assert Counter(each["version"] for each in tasks) == {"0.1.0": 7, "0.2.0": 3}
    # Other predictions in a file of the same name are another file.
    assert len({each["file"] for each in tasks}) == 5


def of_other_predictions(rows):
    """The same jobs on other predictions in files of the same names."""

    def changed(record):
        return replace(record, labels=record.labels | {"predictions": f"not {record.labels['predictions']}"})

    return [replace(each, records=tuple(map(changed, each.records))) for each in rows]


def test_of_a_task_that_a_file_has_twice_the_latest_numbers_count_and_others_are_named(run, tmp_path):
    mine, theirs = drawn_rows(1), drawn_rows(1, seed=3)
    both = folder_of(tmp_path / "theirs", [*theirs, *mine]) / "rows.jsonl"
    folder = folder_of(tmp_path / "mine", drawn_rows(2)[1:])
    code, told, _ = run("bench", "page", folder, "--add", both, "--out", tmp_path / "both.html")
    assert (code, told.count(" in "), f" in {both}\n" in told) == (0, 1, True)
    latest = folder_of(tmp_path / "latest", mine) / "rows.jsonl"
    assert run("bench", "page", folder, "--add", latest, "--out", tmp_path / "latest.html")[0] == 0
    assert data_of((tmp_path / "both.html").read_text()) == data_of((tmp_path / "latest.html").read_text())


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
        ((mine, "--add", "/dev/zero"), "/dev/zero: expected finished rows, got a file that cannot be read"),
    ):
        code, told, error = run("bench", "page", *words)
        assert (code, told, error.count("\n")) == (2, "", 1), error
        assert message in error
