"""Answers of a black box on the command line: from any columns to a repaired confidence beside them."""

import json

import numpy as np
import pytest


@pytest.fixture
def answers(tmp_path):
    rng = np.random.default_rng(0)
    said = rng.choice([60, 80, 95, 99], 300)
    right = rng.random(300) < said / 100 - 0.2
    rows = [
        {"id": row, "said": f"{percent} %", "ok": bool(hit), "about": {"topic": "art" if row % 2 else "law"}}
        for row, (percent, hit) in enumerate(zip(said.tolist(), right.tolist(), strict=True))
    ]
    rows[7]["said"], rows[8]["said"] = None, "362880"
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


NAMED = ("--confidence", "said", "--correct", "ok", "--read", "percent")


def test_answers_are_measured_repaired_and_written_with_all_their_columns(run, answers, tmp_path):
    left_out = "answers.jsonl: left out 2 of 300 answers: 1 without said, 1 impossible in said\n"
    code, out, err = run("evaluate", answers, *NAMED, "--read", "missing=drop", "--json")
    assert (code, err) == (0, left_out)
    assert json.loads(out)["n"] == 298
    folder = tmp_path / "repaired"
    code, _, err = run(
        "calibrate", answers, *NAMED, "--read", "missing=drop", "--methods", "platt", "--out", folder
    )
    assert (code, left_out in err) == (0, True)
    own = [json.loads(line) for line in (folder / "repaired.jsonl").read_text().splitlines()]
    assert [row["id"] for row in own if row["confidence"] is None] == [7, 8]
    for name in ("new.jsonl", "new.csv"):
        saved = folder / "calibrator.safetensors"
        code, _, err = run(
            "apply", saved, answers, *NAMED, "--read", "missing=drop", "--out", tmp_path / name
        )
        assert (code, err) == (0, left_out)
    new = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    old = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [{**row, "confidence": None} for row in new] == [{**row, "confidence": None} for row in old]
    assert [row["id"] for row in new if row["confidence"] is None] == [7, 8]
    for rows in (new, own):
        gap = np.mean([row["confidence"] - row["ok"] for row in rows if row["confidence"] is not None])
        assert abs(gap) < 0.02
    assert [row["confidence"] for row in own] != [row["confidence"] for row in new]  # out of fold
    assert (tmp_path / "new.csv").read_text().startswith("id,said,ok,about,confidence\n")


def test_answers_of_weight_zero_are_repaired_but_nothing_is_learned_from_them(run, answers, tmp_path):
    rows = [row for row in map(json.loads, answers.read_text().splitlines()) if row["id"] not in (7, 8)]
    weighted, kept = tmp_path / "weighted.jsonl", tmp_path / "kept.jsonl"
    weighted.write_text("".join(f"{json.dumps({**row, 'weights': row['id'] % 2})}\n" for row in rows))
    kept.write_text("".join(f"{json.dumps(row)}\n" for row in rows if row["id"] % 2))
    found = []
    for path in (weighted, kept):
        code, out, _ = run(
            "calibrate", path, *NAMED, "--methods", "platt,isotonic", "--out", tmp_path / path.stem, "--json"
        )
        assert code == 0
        found.append({key: json.loads(out)[key] for key in ("n_validation", "chosen", "answer_when")})
    assert found[0] == found[1]
    lines = (tmp_path / "weighted" / "repaired.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [row["id"] for row in rows]
    assert all(0 < json.loads(line)["confidence"] < 1 for line in lines)


def test_a_log_with_several_rows_for_an_answer_is_repaired_but_not_written_again(run, tmp_path):
    rows = [
        {
            "doc_id": number,
            "doc": {},
            "target": str(number % 3 % 2),
            "resps": [],
            "filtered_resps": [["-0.5", "False"], ["-2.0", "False"], ["-3.0", "False"]][: 2 + number % 2],
            "filter": name,
        }
        for name in ("none", "other")
        for number in range(40)
    ]
    log = tmp_path / "samples_x.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    code, _, err = run("calibrate", log, "--methods", "platt", "--out", tmp_path / "out")
    assert code == 0
    assert "repaired.jsonl is not written: confidence: expected one for each of 80 rows, got 40" in err
    saved = {path.name for path in (tmp_path / "out").iterdir()}
    assert saved == {"calibrator.safetensors", "results.json", "report.html"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (NAMED[:4], "said: expected a number between 0 and 1, got '99 %' in line 1; if the confidence is"),
        (NAMED, "said: expected percent between 0 and 100, got 362880 in line 9; leave such answers out"),
        (
            (*NAMED, "--read", "missing=drop", "--read", "missing=group"),
            "--read: expected missing once, got it",
        ),
        (("--confidence", "sayd"), "expected a column 'sayd', got id, said, ok, about; did you mean 'said'?"),
        (("--read", "layout=helm"), "--read layout: expected one of lm-eval, inspect, openai, got 'helm'"),
        ((*NAMED, "--read", "words=words.json"), "words.json: expected a JSON object of words and numbers"),
        ((*NAMED, "--skip-bad"), "columns under other names: expected a file that is loaded as a whole"),
    ],
)
def test_options_that_do_not_fit_get_a_sentence(run, answers, options, message):
    code, out, err = run("evaluate", answers, *options)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(("named", "got"), [("said", "none"), ("length,said", "length, said")])
def test_signals_that_are_missing_or_swapped_are_refused(run, answers, tmp_path, named, got):
    rows = [row for row in map(json.loads, answers.read_text().splitlines()) if row["id"] not in (7, 8)]
    path = tmp_path / "signals.jsonl"
    path.write_text("".join(f"{json.dumps({**row, 'length': row['id'] % 7})}\n" for row in rows))
    given = (*NAMED[2:], "--methods", "combination", "--out", tmp_path / "signals")
    assert run("calibrate", path, "--confidence", "said,length", *given)[0] == 0
    saved = tmp_path / "signals" / "calibrator.safetensors"
    new = tmp_path / "new.jsonl"
    assert run("apply", saved, path, "--confidence", "said,length", *NAMED[2:], "--out", new)[0] == 0
    code, out, err = run(
        "apply", saved, path, "--confidence", named, *NAMED[2:], "--out", tmp_path / "other.jsonl"
    )
    assert (code, out) == (2, "")
    assert (
        f"signals: expected said, length in this order, which the calibrator was fitted on, got {got}" in err
    )
    assert not (tmp_path / "other.jsonl").exists()


def test_what_words_stand_for_is_learned_and_new_words_get_the_common_rate(run, tmp_path):
    rng = np.random.default_rng(0)
    rates = {"almost certain": 0.9, "likely": 0.7, "unsure": 0.4}
    said = rng.choice(list(rates), 600)
    right = rng.random(600) < [rates[word] for word in said]
    said[:3], right[:3] = "once", False  # a word that is rare
    rows = [f"{word.upper() if y else word},{int(y)}" for word, y in zip(said, right, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["said,correct", *rows, ""]))
    how = ("--confidence", "said", "--read", "words")
    code, _, err = run("calibrate", tmp_path / "a.csv", *how, "--methods", "platt", "--out", tmp_path / "c")
    assert (code, "calibrate learns how often answers with each word are right" in err) == (0, True)
    (tmp_path / "new.csv").write_text("id,said\n1,Almost  certain\n2,likely\n3,unsure\n4,once\n5,who knows\n")
    saved = tmp_path / "c" / "calibrator.safetensors"
    assert run("apply", saved, tmp_path / "new.csv", *how, "--out", tmp_path / "out.csv")[0] == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert [line.rpartition(",")[0] for line in lines] == (tmp_path / "new.csv").read_text().splitlines()
    found = [float(line.rpartition(",")[2]) for line in lines[1:]]
    seen = [right[said == word].mean() for word in rates]
    assert found[:3] == pytest.approx(seen, abs=0.02)
    assert 0.05 < found[3] < found[4]  # shrunk: three answers do not prove that none is right
    assert found[4] == pytest.approx(right.mean(), abs=0.02)
    code, _, err = run("evaluate", tmp_path / "a.csv", *how, "--by", "said")
    assert (code, "--read words: expected none to learn beside groups" in err) == (2, True)


def test_apply_adds_labels_that_are_in_other_files(run, tmp_path):
    confidences = [0.55, 0.6, 0.7, 0.8, 0.9, 0.95] * 20
    rows = "".join(f"{c},{int(place % 3 > 0)}\n" for place, c in enumerate(confidences))
    (tmp_path / "val.csv").write_text(f"confidence,correct\n{rows}")
    (tmp_path / "new.csv").write_text("request,confidence,note\na,0.9,x\nb,0.6,y\nc,0.7,z\n")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "monday.csv").write_text("request,correct\nc,yes\nz,no\n")
    (tmp_path / "labels" / "tuesday.csv").write_text("request,correct\na,no\nc,yes\n")
    run("calibrate", tmp_path / "val.csv", "--methods", "platt", "--out", tmp_path / "out")
    command = ("apply", tmp_path / "out" / "calibrator.safetensors", tmp_path / "new.csv")
    joined = ("--labels", tmp_path / "labels", "--out", tmp_path / "b.jsonl")
    assert run(*command, *joined)[2].startswith("calibrant: --labels: expected together with the column that")
    code, _, _ = run(*command, *joined, "--id", "request")
    found = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert code == 0
    assert [(row["request"], row["correct"], row["note"]) for row in found] == [
        ("a", False, "x"),
        ("b", None, "y"),
        ("c", True, "z"),
    ]
    (tmp_path / "labels" / "friday.csv").write_text("request,correct\na,yes\n")
    code, _, complaint = run(*command, *joined, "--id", "request")
    assert (code, "for the id a" in complaint) == (2, True)
