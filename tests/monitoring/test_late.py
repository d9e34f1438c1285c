"""Labels that come later: rows wait for them, count once, and give the evidence of the labelled rows."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from calibrant import InputError, Predictions, save_predictions
from calibrant.data.columns import Columns
from calibrant.files import write_file
from calibrant.monitoring import Monitoring, follow
from calibrant.monitoring.files import follow_labels
from calibrant.monitoring.run import read_steps

DAY = 86_400.0
N = 150
COLUMNS = Columns(ids="id")


def outcomes(n, rng, factor=1.0):
    """Confidences, which are too high from a factor above 1 on, and whether answers were right."""
    honest = rng.uniform(0.5, 0.95, n)
    return np.minimum(honest ** (1 / factor), 1.0), rng.random(n) < honest


@pytest.fixture(scope="module")
def reference():
    confidence, correct = outcomes(3000, np.random.default_rng(0))
    return Predictions(confidence=confidence, correct=correct)


def month(folder, days=8, *, seed=1):
    """Yield the day after its files have come: a quarter late, some labels first, some twice, 5 % never."""
    rng = np.random.default_rng(seed)
    for name in ("rows", "labels"):
        (folder / name).mkdir(parents=True)
    comes = {day: [] for day in range(days + 6)}
    for day in range(days):
        confidence, correct = outcomes(N, rng, 1.0 if day < 3 else 3.0)
        ids = np.array([f"{day}-{row}" for row in range(N)])
        again = rng.integers(N, size=5)
        both = np.concatenate([np.arange(N), again])
        rows = pa.table({"id": ids[both], "confidence": confidence[both]})
        comes[day + int(rng.choice([0, 0, 0, 2]))].append(("rows", day, rows))
        labelled = rng.permutation(N)[: int(0.95 * N)]
        for part, some in enumerate(np.array_split(labelled, 2)):
            some = np.concatenate([some, labelled[:4]])  # again, with the same label
            labels = pa.table({"id": ids[some], "correct": correct[some]})
            comes[day + int(rng.integers(0, 5))].append(("labels", f"{day:02}-{part}", labels))
    for day, files in comes.items():
        for kind, name, table in files:
            pq.write_table(table, folder / kind / f"{name}.parquet", row_group_size=64)
        yield day


def run(folder, reference, day, state):
    """Read what is new, and save after every step."""
    monitoring = Monitoring.load(state, reference) if state.exists() else Monitoring(reference, window=200)
    options = {"columns": COLUMNS, "now": lambda: 1e9 + day * DAY}
    rows = str(folder / "rows")
    for _ in follow_labels(monitoring, folder / "labels", [rows], patience=4.5 * DAY, **options):
        monitoring.save(state)
    for _ in follow(monitoring, rows, **options):
        monitoring.save(state)
    monitoring.save(state)
    return monitoring


def by_a_plain_loop(folder, seen, rows, known, tested, used):
    """Test rows in the defined order: labels that are new by file, then rows that have theirs."""

    def test(ready):
        for name, confidence in ready:
            tested.append((confidence, known[name]))
            del rows[name]

    for kind in ("labels", "rows"):
        for file in sorted(set((folder / kind).iterdir()) - seen):
            seen.add(file)
            for record in pq.read_table(file).to_pylist():
                if kind == "labels":
                    known[record["id"]] = record["correct"]
                elif record["id"] not in used:
                    used.add(record["id"])
                    rows[record["id"]] = record["confidence"]
            test([(name, c) for name, c in rows.items() if name in known])


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def killed_at_random(monkeypatch):
    """Let one write in five be the last of its process, before or after it happened."""
    rng = np.random.default_rng(3)

    def write_or_die(path, content):
        fate = rng.random()
        if fate < 0.1:
            raise Killed
        write_file(path, content)
        if fate > 0.9:
            raise Killed

    def until_done(work):
        deaths = 0
        with monkeypatch.context() as patched:
            patched.setattr("calibrant.monitoring.monitor.write_file", write_or_die)
            patched.setattr("os.fsync", lambda _: None)  # nobody pulls the plug
            while True:
                try:
                    return work(), deaths
                except Killed:
                    deaths += 1

    return until_done


@pytest.mark.slow
def test_a_month_of_late_labels_and_kills_gives_the_alarm_of_the_labelled_rows(
    reference, tmp_path, killed_at_random
):
    """Also the same bytes as without kills, each row once, and tables that do not grow with the month."""
    calm, rough = tmp_path / "calm.json", tmp_path / "rough.json"
    seen, rows, known, tested, used, deaths, sizes = set(), {}, {}, [], set(), 0, []
    for day in month(tmp_path):
        run(tmp_path, reference, day, calm)
        monitoring, died = killed_at_random(lambda day=day: run(tmp_path, reference, day, rough))
        by_a_plain_loop(tmp_path, seen, rows, known, tested, used)
        files = [sorted(tmp_path.glob(f"{state.name}*")) for state in (calm, rough)]
        assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
        assert len(files[0]) == 2  # the state, and the rows that wait
        deaths += died
        sizes.append(files[0][1].stat().st_size)
    expected = Monitoring(reference, window=200)
    expected.update(Predictions(confidence=[c for c, _ in tested], correct=[hit for _, hit in tested]))
    assert monitoring.monitor.state() == expected.monitor.state()
    assert (monitoring.alarm.row, monitoring.alarm.since) == (expected.alarm.row, expected.alarm.since)
    assert monitoring.latest == expected.latest
    assert deaths > 5
    late = monitoring.late
    assert monitoring.n + len(late) + late.never == 8 * N
    assert late.never > 0
    assert late.repeated == 8 * 5
    assert max(sizes) < 6 * N * (17 + 36)  # of 8 days, those within the patience


def test_labels_meet_their_rows_in_either_order_and_by_name_of_class(tmp_path):
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(400, 3))
    names = ["cat", "dog", "owl"]
    truth = rng.integers(3, size=400)
    whole = Predictions(logits=logits, labels=truth, class_names=names)
    reference = whole.take(np.arange(200))
    (tmp_path / "rows").mkdir()
    (tmp_path / "labels").mkdir()
    ids = np.arange(200)
    for part in (ids[:100], ids[100:]):
        some = Predictions(logits=logits[200 + part], ids=part, class_names=names)
        save_predictions(some, tmp_path / "rows" / f"{part[0]}.csv")
    text = "".join(f'{{"ids": {row}, "label": "{names[truth[200 + row]]}"}}\n' for row in ids[::-1])
    (tmp_path / "labels" / "all.jsonl").write_text(text)
    columns = Columns(ids="ids")
    monitoring = Monitoring(reference, window=50)
    list(follow_labels(monitoring, tmp_path / "labels", [str(tmp_path / "rows")], columns=columns))
    list(follow(monitoring, tmp_path / "rows", columns=columns))
    direct = Monitoring(reference, window=50)
    direct.update(whole.take(np.arange(200, 400)))
    assert monitoring.n == 200
    assert monitoring.monitor.log_e_value == pytest.approx(direct.monitor.log_e_value)
    (tmp_path / "labels" / "other.jsonl").write_text(
        text.replace('"ids": 7, "label": "', '"ids": 7, "label": "x')
    )
    with pytest.raises(InputError, match=r"^other.jsonl: labels: expected one of the classes cat, dog, owl"):
        list(follow_labels(monitoring, tmp_path / "labels", [], columns=columns))
    (tmp_path / "labels" / "other.jsonl").write_text(
        f'{{"ids": 7, "label": "{names[(truth[207] + 1) % 3]}"}}\n'
    )
    with pytest.raises(
        InputError, match=r"^other.jsonl: expected one label for each id, got .* for the id 7;"
    ):
        list(follow_labels(monitoring, tmp_path / "labels", [], columns=columns))


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_missing_labels_are_counted_and_never_block_the_files_after_them(tmp_path, reference, suffix):
    rng = np.random.default_rng(6)
    logits, labels = rng.normal(size=(90, 3)), rng.integers(3, size=90).astype(float)
    missing = rng.random(90) < 0.3
    for part in range(3):
        some = slice(30 * part, 30 * part + 30)
        columns: dict[str, list[float | None]] = {f"logits_{k}": list(logits[some, k]) for k in range(3)}
        columns["labels"] = [None if gone else y for y, gone in zip(labels[some], missing[some], strict=True)]
        table = pa.table(columns)
        path = tmp_path / f"{part}.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path)
        elif suffix == "csv":
            pa.csv.write_csv(table, path)
        else:
            path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    monitoring, direct = (Monitoring(reference, window=20) for _ in range(2))
    list(follow(monitoring, tmp_path))
    direct.update(Predictions(logits=logits[~missing], labels=labels[~missing]))
    assert (monitoring.n, monitoring.unlabelled) == ((~missing).sum(), missing.sum())
    assert monitoring.monitor.state() == direct.monitor.state()
    assert monitoring.latest == direct.latest
    monitoring.save(tmp_path / "state")
    assert Monitoring.load(tmp_path / "state", reference).unlabelled == missing.sum()


def test_a_unit_waits_until_all_its_labels_have_come_or_patience_is_over(tmp_path):
    rng = np.random.default_rng(7)
    confidence, correct = outcomes(400, rng)
    units = np.repeat(np.arange(100), 4)
    reference = Predictions(confidence=confidence, correct=correct, units=units)
    for name in ("rows", "labels"):
        (tmp_path / name).mkdir()
    ids = np.arange(400)
    rows = pa.table({"id": ids, "confidence": confidence, "units": units})
    pq.write_table(rows, tmp_path / "rows" / "a.parquet")
    gone = ids % 40 == 3  # the last row of every tenth unit
    for part, some in (("a", ids % 2 == 0), ("b", (ids % 2 == 1) & ~gone)):
        pq.write_table(
            pa.table({"id": ids[some], "correct": correct[some]}), tmp_path / "labels" / f"{part}.parquet"
        )
    monitoring = Monitoring(reference, window=100)

    def read(day):
        options = {"columns": COLUMNS, "now": lambda: day * DAY}
        rows = str(tmp_path / "rows")
        list(follow_labels(monitoring, tmp_path / "labels", [rows], patience=5 * DAY, **options))
        list(follow(monitoring, rows, **options))
        return monitoring.n

    assert read(1) == 4 * 89  # without the last unit, which may have more rows
    assert read(7) == 4 * 89 + 3 * 10
    whole = ~np.isin(units, units[gone]) & (units < 99)
    order = np.concatenate([ids[whole], ids[np.isin(units, units[gone]) & ~gone]])
    direct = Monitoring(reference, window=100)
    direct.update(reference.take(order))
    assert monitoring.monitor.state() == direct.monitor.state()


def test_rows_that_wait_are_limited_with_a_sentence(tmp_path, reference, monkeypatch):
    monkeypatch.setattr("calibrant.monitoring.waiting.MOST_IDS", 100)
    for name in ("rows", "labels"):
        (tmp_path / name).mkdir()
    confidence, correct = outcomes(90, np.random.default_rng(8))

    def add(first, *, labelled):
        ids = np.arange(first, first + 90)
        pq.write_table(
            pa.table({"id": ids, "confidence": confidence}), tmp_path / "rows" / f"{first}.parquet"
        )
        if labelled:
            pq.write_table(
                pa.table({"id": ids, "correct": correct}), tmp_path / "labels" / f"{first}.parquet"
            )
        sources = [str(tmp_path / "rows")]
        list(
            read_steps(
                monitoring,
                sources,
                is_stream=lambda _: True,
                tell=print,
                columns=COLUMNS,
                labels=str(tmp_path / "labels"),
            )
        )

    monitoring = Monitoring(reference)
    add(1000, labelled=True)
    add(2000, labelled=True)  # the ids of rows that were tested are forgotten
    assert monitoring.n == 180
    add(3000, labelled=False)
    with pytest.raises(InputError, match="expected at most 100 rows and labels that wait for each other"):
        add(4000, labelled=False)
