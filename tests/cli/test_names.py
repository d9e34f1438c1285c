"""Names that attack, through every command that shows names: shown literally, and nothing obeys them."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from rich.cells import cell_len

from calibrant.data import Predictions, load_answers, load_predictions, save_predictions
from calibrant.data.rewriting import write_answers
from calibrant.errors import InputError
from calibrant.papers.rows import Record, Row
from calibrant.papers.table import make_tables
from calibrant.papers.writers import to_csv
from calibrant.plots.risk_coverage import RiskCoverageDisplay
from calibrant.text import guarded, unguarded, visible
from tests import hostile
from tests.papers.small import small_experiment

PER_NAME = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Predictions whose classes and groups have the names, in every format, and a calibrator for them."""
    made = tmp_path_factory.mktemp("[red]names")
    names = hostile.texts()
    rng = np.random.default_rng(0)
    labels = np.arange(PER_NAME * len(names)) % len(names)
    for name in ("val", "test"):
        logits = rng.normal(size=(len(labels), len(names)))
        logits[np.arange(len(labels)), labels] += 4 * (rng.random(len(labels)) < 0.7)
        groups = [names[place] for place in rng.permutation(labels)]
        notes = {"class_names": names, "groups": groups, "metadata": {names[0]: names[1]}}
        predictions = Predictions(logits=3 * logits, labels=labels, **notes)
        for suffix in ("npz", "parquet", "csv", "safetensors"):
            save_predictions(predictions, made / f"{name}.{suffix}")
    return made


@pytest.fixture(scope="module")
def saved(folder, run_once):
    """What ``calibrate --out`` wrote, below a folder whose name is an attack."""
    out = folder / "[" / "x]\x1b[31m"  # the path contains [/x]
    methods = ("--methods", "temperature,vector", "--test", folder / "test.npz")
    code, printed, errors = run_once("calibrate", folder / "val.npz", *methods, "--out", out)
    assert (code, hostile.raw_characters(printed + errors)) == (0, [])
    assert re.search(r"Saved in .*\[red\]names.*/\[/x\]\\x1b\[31m: ", printed)
    return out


def check(result, *, code=0):
    """Check the exit code and that nothing raw reached the terminal; return the output."""
    found, out, err = result
    assert found == code, err
    assert hostile.raw_characters(out + err) == []
    assert "Traceback" not in err
    return out if code == 0 else err


def test_tables_of_classes_and_groups_show_the_names_as_they_are(run, folder):
    measured = ("--measures", "accuracy", "--by", "groups", "--per-class")
    for columns, suffix in ((80, "csv"), (200, "parquet")):
        out = check(run("evaluate", folder / f"val.{suffix}", *measured, columns=columns))
        lines = out.splitlines()
        assert max(map(cell_len, lines)) <= columns
        numbers = rf"^.+ {PER_NAME} +2\.63 %( +\d+\.\d\d %){{3}}$"
        assert len(re.findall(numbers, out, re.MULTILINE)) == 38
    for name in (visible(each) for each in hostile.texts() if len(visible(each)) <= 40):
        assert sum(line.startswith(f"{name} ") for line in lines) == 2, name
    assert sum(line.startswith("long long long long \N{HORIZONTAL ELLIPSIS} long") for line in lines) == 2
    answer = json.loads(check(run("evaluate", folder / "val.safetensors", *measured, "--json")))
    assert [row["name"] for row in answer["classes"]] == hostile.texts()
    assert set(answer["groups"]) == set(hostile.texts())


def test_every_name_of_a_file_is_shown_in_headings_and_errors(run, tmp_path):
    small = tmp_path / "small.npz"
    np.savez(small, confidence=[0.9, 0.8, 0.6], correct=[True, True, False])
    names = [f"{name}.npz" for name in hostile.file_names()]
    assert len(names) > 30
    for name in names:
        path = tmp_path / name
        path.write_bytes(small.read_bytes())
        assert visible(name) in check(run("evaluate", path, "--measures", "nll"))
        path.write_bytes(b"no archive")
        assert visible(" ".join(name.split())) in check(run("evaluate", path), code=2)
    for name in hostile.NAMES.values():
        check(run("evaluate", small, "--by", name), code=2)
        check(run("calibrate", small, "--methods", f"platt({name})"), code=2)


def test_other_commands_on_such_files(run, folder, saved, tmp_path):
    other, val = folder / "_$x$ \u202e[red].npz", folder / "val.npz"
    other.write_bytes(val.read_bytes())
    check(run("evaluate", val, "--compare", other, "--measures", "nll"))
    check(run("evaluate", folder, "--skip-bad", "--by", "groups", "--measures", "ece"))
    out = tmp_path / "\x1b]0;x\x07[red].npz"
    assert visible(out.name) in check(run("apply", saved / "calibrator.safetensors", other, "--out", out))
    assert load_predictions(out).class_names == tuple(hostile.texts())
    check(run("monitor", val, other, "--window", 100, "--json", "--events", tmp_path / "[red]\x1b"))
    check(run("monitor", val, other, "--window", 100))


def test_a_page_has_no_element_of_a_name_and_the_whole_of_a_long_one(run, folder, saved, tmp_path):
    plain = tmp_path / "plain.npz"
    read = load_predictions(folder / "test.npz")
    save_predictions(Predictions(logits=read.logits, labels=read.labels, groups=read.groups.codes), plain)
    attack = tmp_path / f"{'long ' * 20}\x1b[31m\u202e<img src=x>[red].npz"
    attack.write_bytes((folder / "test.npz").read_bytes())
    pages = []
    for source in (plain, attack):
        check(run("report", source, "--measures", "nll", "--out", tmp_path / "page.html"))
        pages.append((tmp_path / "page.html").read_text(encoding="utf-8"))
    ours, theirs = map(hostile.Tags, pages)
    spans = theirs.counts.pop("span") - ours.counts.pop("span")
    assert theirs.counts == ours.counts
    assert theirs.attributes <= ours.attributes
    assert spans > 0  # each has the whole name as its title
    assert {visible(name) for name in hostile.texts()} <= theirs.texts | theirs.titles
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', pages[1])
    assert data is not None
    drawn = json.loads(data[1])
    assert {line["name"] for line in drawn["groups"]} <= {visible(name) for name in hostile.texts()}
    raw = hostile.raw_characters(re.sub("<script>.*?</script>", "", pages[1], flags=re.DOTALL))
    assert raw == []
    folder_page = (saved / "report.html").read_text(encoding="utf-8")
    assert hostile.raw_characters(re.sub("<script>.*?</script>", "", folder_page, flags=re.DOTALL)) == []


def test_a_figure_is_xml_in_which_dollars_and_underscores_are_letters(run, tmp_path):
    predictions, names = Predictions(confidence=[0.9, 0.4], correct=[True, False]), [*hostile.NAMES.values()]
    figure = RiskCoverageDisplay.from_predictions(
        dict.fromkeys(names, predictions), title="$\\frac$ \x1b[31m"
    )
    figure.save(tmp_path / "risk.svg")
    text = "".join(ET.parse(tmp_path / "risk.svg").getroot().itertext())
    assert hostile.raw_characters(text) == []
    for name in (visible(each) for each in names if len(visible(each)) < 20):
        assert f"{name}, AURC" in text, name
    few = hostile.NAMES["mathtext"], hostile.NAMES["ANSI colour"], hostile.NAMES["very long"]
    named = Predictions(logits=np.eye(3).repeat(5, 0), labels=[0, 1, 2] * 5, class_names=few)
    save_predictions(named, tmp_path / "few.npz")
    check(run("plot", "classes", tmp_path / "few.npz", "--out", tmp_path / "\x1b[red].svg"))
    text = "".join(ET.parse(tmp_path / "\x1b[red].svg").getroot().itertext())
    assert visible(few[0]) in text
    assert visible(few[1]) in text
    assert hostile.raw_characters(text) == []


def test_tables_of_the_benchmark_have_a_cell_for_each_name():
    record = Record({"set": "test"}, {"ece": 0.1, "nll": 0.2})
    rows = [
        Row("small", "quick", {"source": name, "method": name}, 0, (record,), 1.0, {})
        for name in hostile.texts()
    ]
    table = make_tables(small_experiment(), rows)[0]
    written = [table.to_table().to_markdown(), to_csv(table), table.to_table().to_latex()]
    head, _, *lines = written[0].rstrip("\n").split("\n")
    assert len(lines) == len(hostile.texts())
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in (head, *lines)}) == 1
    assert hostile.raw_characters(written[0] + written[2]) == []
    assert not re.search(r"<\w|(?<!\\)\]\(", written[0])
    read = list(csv.reader(io.StringIO(written[1])))[1:]
    assert [unguarded(line[0]) for line in read] == hostile.texts()
    assert not [line[0] for line in read if line[0].startswith(("=", "+", "-", "@"))]
    assert not re.search(r"(?<!\\)[%#]", written[2])


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_no_cell_of_text_is_a_formula_and_reading_gives_the_names_back(folder, tmp_path, suffix):
    for path in (folder / "val.csv", tmp_path / f"again{suffix}"):
        predictions = load_predictions(folder / "val.npz")
        if suffix == path.suffix != ".csv" or path.name.startswith("again"):
            save_predictions(predictions, path)
        read = load_predictions(path)
        assert read.class_names == tuple(hostile.texts())
        assert list(read.groups.values) == list(predictions.groups.values)
        delimiter = "\t" if path.suffix == ".tsv" else ","
        with path.open(encoding="utf-8", newline="") as file:
            cells = [row[-1] for row in csv.reader(file, delimiter=delimiter)]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    records = [
        {"confidence": 0.9, "correct": True, "subject": name, "=key": "-1"} for name in hostile.texts()
    ]
    source, table, back = tmp_path / "a.jsonl", tmp_path / f"b{suffix}", tmp_path / "c.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    write_answers(source, table, [0.5] * len(records))
    write_answers(table, back, [0.5] * len(records))
    again = [json.loads(line) for line in back.read_text(encoding="utf-8").rstrip("\n").split("\n")]
    assert [(each["subject"], each["=key"]) for each in again] == [(name, "-1") for name in hostile.texts()]
    assert load_answers(table).kept.all()


def test_a_guard_is_undone_whatever_the_text():
    texts = [*hostile.NAMES.values(), "", "'", "''=x", "-0.5", "+1e3", "-", "=", "''", "'5"]
    assert [unguarded(guarded(text)) for text in texts] == texts
    assert [guarded(text) for text in ("-0.5", "+1e3", "'5", "a=b")] == ["-0.5", "+1e3", "'5", "a=b"]


def test_half_a_character_is_no_name():
    with pytest.raises(InputError, match=r"^class_names: expected text, got 'b\\udcff' with half"):
        Predictions(logits=np.eye(2), labels=[0, 1], class_names=["a", "b\udcff"])
    with pytest.raises(InputError, match="^groups: expected text"):
        Predictions(confidence=[0.5], correct=[True], groups=["b\udcff"])
    with pytest.raises(InputError, match="^metadata: expected text"):
        Predictions(confidence=[0.5], correct=[True], metadata={"a": "b\udcff"})
