"""The arena of real predictions: a folder of files becomes tasks, and tasks become a leaderboard."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.data.files import save_predictions
from calibrant.data.labels import LabelPredictions
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated, fit_named
from calibrant.papers.arena_real import (
    OutOfTimeError,
    _attempt,
    _cpu_limit,
    digest_of,
    draw_samples,
    expand_files,
    run_arena_real,
)
from calibrant.papers.arena_tasks import read_arena_tasks
from calibrant.papers.experiment import parse_experiment
from calibrant.papers.leaderboard import (
    keeps_accuracy,
    leaderboard_page,
    make_board,
    share_won,
)
from calibrant.papers.model_predictions import load_unweighed
from calibrant.papers.peers import PEERS, Peer, fit_peer, installed_peers
from calibrant.papers.rankings import (
    critical_difference,
    mean_ranks,
    ratios_to,
    share_of_wins,
    win_rates,
)
from calibrant.papers.rows import finished_rows
from calibrant.papers.runner import run_experiment
from tests.papers.arena_rows import row, values

TEXT = """
title = "My leaderboard"
worker = "arena_real"
[table]
rows = ["method"]
measures = ["nll", "brier"]
[quick]
seeds = 1
[quick.grid]
samples = [60, 700]
[quick.settings]
methods = ["platt", "calibrant"]
"""


def predictions(n, k, seed=0, *, as_probs=False):
    rng = np.random.default_rng(seed)
    true = rng.normal(scale=2.0, size=(n, k))
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    drawn = Predictions(logits=2.5 * true, labels=labels)
    return Predictions(probs=drawn.to_probs(), labels=labels) if as_probs else drawn


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "more").mkdir()
    save_predictions(predictions(1100, 2), folder / "two.npz")
    save_predictions(predictions(400, 5, as_probs=True), folder / "more" / "five.parquet")
    save_predictions(predictions(100, 3), folder / "small.csv")
    save_predictions(Predictions(confidence=[0.9, 0.8], correct=[1, 0]), folder / "pairs.npz")
    save_predictions(Predictions(score=[3.0, -1.0], outcome=[1, 0]), folder / "score.npz")
    np.savez(folder / "training.npz", x_train=np.zeros((5, 3)), y_train=np.zeros(5))
    (folder / "broken.npz").write_bytes(b"not an archive")
    (folder / "notes.txt").write_text("about the data")
    return folder


def jobs(text=TEXT):
    return list(parse_experiment("mine", text).jobs("quick"))


# ---- from files to jobs


def test_files_become_jobs_where_they_are_large_enough_and_others_are_named_with_a_reason(data):
    expanded, left_out = expand_files(jobs(), data)
    assert [job.key for job in expanded] == [
        {"file": "more/five.parquet", "samples": 60},
        {"file": "two.npz", "samples": 60},
        {"file": "two.npz", "samples": 700},
    ]
    assert set(left_out) == {"small.csv", "pairs.npz", "score.npz", "training.npz", "broken.npz"}
    assert "at least 360 samples, 60 of them to fit, got 100" in left_out["small.csv"]
    assert "at least 360 samples, 60 of them to fit, got 2" in left_out["pairs.npz"]
    assert "expected confidences between 0 and 1, got scores that only rank" in left_out["score.npz"]
    assert "x_train" in left_out["training.npz"]
    assert "expected a .npz file" in left_out["broken.npz"]


def test_a_folder_without_predictions_is_refused_with_reasons(tmp_path):
    with pytest.raises(InputError, match="data: expected a folder of predictions, got none"):
        expand_files(jobs(), None)
    (tmp_path / "broken.npz").write_bytes(b"x")
    with pytest.raises(InputError, match=r"got none in .*broken.npz: expected a .npz file"):
        expand_files(jobs(), tmp_path)


def test_fitting_and_test_samples_are_disjoint_and_drawn_by_the_seed():
    n = 6000
    whole = Predictions(logits=np.stack([np.arange(n), np.zeros(n)], axis=1), labels=np.zeros(n, int))
    fitting, test = draw_samples(whole, 200, seed=1)
    drawn = [set(part.logits[:, 0].tolist()) for part in (fitting, test)]
    assert [len(each) for each in drawn] == [200, 5000]
    assert not drawn[0] & drawn[1]
    again, _ = draw_samples(whole, 200, seed=1)
    other, _ = draw_samples(whole, 200, seed=2)
    assert fitting.logits.equal(again.logits)
    assert not fitting.logits.equal(other.logits)


# ---- a task


def test_a_task_has_a_record_for_every_method_and_measures_it_against_temperature(data):
    settings = {"methods": ["uncalibrated", "platt", "calibrant", "calibrant (keep accuracy)", "pool"]}
    found = {
        record.labels["method"]: record
        for record in run_arena_real({"file": "two.npz", "samples": 300}, settings, 0, data)
    }
    assert {"temperature", "uncalibrated", "platt", "calibrant", "calibrant (keep accuracy)"} <= set(found)
    assert set(found) <= {"temperature", *settings["methods"]}
    _, test = draw_samples(predictions(1100, 2), 300, seed=0)
    losses = -np.log(test.to_probs().numpy()[np.arange(test.n), test.labels.numpy()])
    assert found["uncalibrated"].values["nll"] == pytest.approx(losses.mean(), rel=1e-6)
    temperature, plain = found["temperature"].values, found["uncalibrated"].values
    assert temperature["nll_behind_temperature"] == 0
    assert plain["nll_behind_temperature"] == pytest.approx(plain["nll"] - temperature["nll"])
    assert 0 < plain["nll_behind_temperature_se"] < plain["nll_behind_temperature"]
    assert found["calibrant"].values["lead_smece"] == 0
    ahead = {name: plain[name] - found["calibrant"].values[name] for name in ("nll", "brier", "smece")}
    assert all(plain[f"lead_{name}"] > 2 for name in ahead)
    assert all(value > 0 for value in ahead.values())
    assert found["calibrant"].labels["chosen"]
    assert found["calibrant"].labels["classes"] == 2
    assert found["calibrant (keep accuracy)"].values["accuracy"] == plain["accuracy"]
    assert all(record.values["fit_seconds"] >= 0 for record in found.values())


def answers(n, seed=0):
    """Overconfident answers of a black box: right less often than they say."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.3, 1.0, n)
    return Predictions(confidence=confidence, correct=rng.random(n) < confidence**2)


def several(n, seed=0):
    """Probabilities of three labels whose log-odds are twice too large."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 3))
    return LabelPredictions(logits=2 * logits, labels=rng.random((n, 3)) < 1 / (1 + np.exp(-logits)))


def records_of(folder, predictions, settings=None, samples=200):
    save_predictions(predictions, folder / "own.npz")
    wanted = settings or {
        "methods": ["platt", "isotonic", "matrix", "calibrant", "calibrant (keep accuracy)"]
    }
    key = {"file": "own.npz", "samples": samples}
    return {record.labels["method"]: record for record in run_arena_real(key, wanted, 0, folder)}


def test_confidences_with_outcomes_are_a_task_of_the_methods_that_repair_them(tmp_path):
    found = records_of(tmp_path, answers(800))
    assert found.keys() == {"temperature", "uncalibrated", "platt", "isotonic", "calibrant"}
    order = np.random.default_rng(0).permutation(800)[200:]
    whole = answers(800)
    p, right = whole.confidence.numpy()[order], whole.correct.numpy()[order]
    losses = [-np.log(own if good else 1 - own) for own, good in zip(p, right, strict=True)]
    plain = found["uncalibrated"]
    assert plain.values["nll"] == pytest.approx(sum(losses) / 600, rel=1e-5)
    assert plain.values["brier"] == pytest.approx(np.mean((p - right) ** 2))
    assert "classwise_ece" not in plain.values
    assert (plain.labels["kind"], plain.labels["classes"], plain.labels["n_test"]) == ("pairs", 2, 600)
    assert found["platt"].values["nll"] < plain.values["nll"]
    assert plain.values["lead_nll"] > 2
    assert all(record.values["fitted"] == 1 for record in found.values())


def test_several_labels_are_a_task_whose_rows_stay_together(tmp_path):
    found = records_of(tmp_path, several(700))
    assert found.keys() == {"temperature", "uncalibrated", "platt", "isotonic", "calibrant"}
    rows = np.random.default_rng(0).permutation(700)[200:]
    whole = several(700)
    p, has = whole.matrix.numpy()[rows], whole.label_matrix.numpy()[rows]
    plain = found["uncalibrated"]
    assert plain.values["brier"] == pytest.approx(np.mean((p - has) ** 2))
    assert (plain.labels["kind"], plain.labels["classes"], plain.labels["n_test"]) == ("labels", 3, 500)
    assert plain.values["lead_brier"] > 2
    assert all(record.values["fitted"] == 1 for record in found.values())
    # The error of a difference is that of rows: their labels are not independent.
    losses = -np.log(np.where(has, p, 1 - p)).mean(axis=1)
    fitting, test = draw_samples(whole, 200, seed=0)
    repaired = calibrated(fit_named("temperature", fitting), test)
    assert isinstance(repaired, LabelPredictions)
    q = repaired.matrix.numpy()
    behind = losses + np.log(np.where(has, q, 1 - q)).mean(axis=1)
    assert plain.values["nll_behind_temperature"] == pytest.approx(behind.mean(), rel=1e-3)
    error = behind.std(ddof=1) / math.sqrt(500)
    assert plain.values["nll_behind_temperature_se"] == pytest.approx(error, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [answers, several])
def test_other_libraries_see_confidences_as_two_classes(tmp_path, kind):
    peers = installed_peers(2)
    found = records_of(tmp_path, kind(700), {"methods": peers})
    assert set(peers) <= found.keys()
    name = "scikit-learn temperature"
    assert found[name].values["nll"] == pytest.approx(found["temperature"].values["nll"], rel=0.01)


def test_the_digest_of_predictions_is_that_of_their_numbers(tmp_path):
    made = [
        predictions(400, 3),
        predictions(400, 3, as_probs=True),
        predictions(400, 3, seed=1),
        answers(400),
    ]
    digests = []
    for each in [*made, several(400)]:
        save_predictions(each, tmp_path / "x.npz")
        save_predictions(each, tmp_path / "x.safetensors")
        first, second = (digest_of(load_unweighed(tmp_path / name)) for name in ("x.npz", "x.safetensors"))
        assert first == second
        digests.append(first)
    assert len(set(digests)) == 5
    assert digest_of(made[0].take(np.arange(399, -1, -1))) != digests[0]
    named = made[0].replaced(features=np.zeros((400, 2)))
    assert digest_of(named) == digests[0]


def test_a_page_has_a_table_for_each_kind_of_predictions():
    both = {"temperature": values(2.0), "uncalibrated": values(1.0)}
    known = {"version": "1", "predictions": "x"}
    rows = [row("x", 200, 0, both), row("y", 200, 0, both, kind="pairs", **known)]
    page = leaderboard_page(rows)
    assert ("## All tasks" in page, "## Confidences with outcomes" in page) == (True, True)
    assert "## Several labels" not in page
    alone = leaderboard_page(rows[1:])
    assert "## All tasks" not in alone
    assert "cwECE" not in alone


def failing(*_):
    raise ZeroDivisionError("no luck")


def test_a_method_that_fails_counts_as_the_uncalibrated_model_with_its_reason(data, monkeypatch):
    monkeypatch.setitem(PEERS, "broken peer", Peer(failing, ()))
    monkeypatch.setattr("calibrant.papers.arena_real._MEMORY", 60 * 5 * 33)
    settings = {"methods": ["matrix", "broken peer"]}
    found = {
        record.labels["method"]: record
        for record in run_arena_real({"file": "more/five.parquet", "samples": 60}, settings, 0, data)
    }
    for name, reason in (("broken peer", "ZeroDivisionError: no luck"), ("matrix", "memory")):
        assert reason in found[name].labels["reason"]
        assert found[name].values["fitted"] == 0
        assert found[name].values["brier"] == found["uncalibrated"].values["brier"]
    assert found["temperature"].values["fitted"] == 1


def endless():
    while True:
        try:
            math.sqrt(2)
        except Exception:  # which a library may well do
            continue


def test_a_fit_that_takes_too_long_is_stopped():
    attempt = _attempt("slow", endless, predictions(10, 2), 0.05)
    assert attempt.test is None
    assert attempt.reason == "takes more than 0.05 seconds"
    with pytest.raises(OutOfTimeError), _cpu_limit(0.01):
        endless()


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 5])
def test_peers_return_distributions_that_are_better_than_none(k):
    whole = predictions(900, k)
    z, y = whole.logits.numpy(), whole.labels.numpy()
    uncalibrated = -np.log(whole.to_probs().numpy()[500:][np.arange(400), y[500:]]).mean()
    for name in installed_peers(k):
        if name == "probmetrics isotonic":  # its zeros cost a lot
            continue
        p = fit_peer(name, z[:500], y[:500])(z[500:])
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
        assert -np.log(p[np.arange(400), y[500:]]).mean() < uncalibrated, name
        if PEERS[name].keeps_accuracy:
            np.testing.assert_array_equal(p.argmax(axis=1), z[500:].argmax(axis=1))


def test_peers_for_two_classes_take_part_in_no_others():
    assert not [name for name in installed_peers(3) if PEERS[name].two_classes]
    assert "scikit-learn temperature" in installed_peers(3)


# ---- ranks, intervals and wins


def random_tasks(n_files=6, seed=0):
    """Return scores and files, with two or three tasks for each file and ties among the scores."""
    rng = np.random.default_rng(seed)
    files = [f"file{i}" for i in range(n_files) for _ in range(2 + i % 2)]
    return [dict(zip("abcd", rng.integers(1, 6, size=4).tolist(), strict=True)) for _ in files], files


def test_mean_ranks_are_averaged_within_files_first():
    tasks, files = random_tasks()
    for name in "abcd":
        of_files = []
        for file in sorted(set(files)):
            ranks = []
            for task, own in zip(tasks, files, strict=True):
                if own == file:
                    smaller = sum(task[other] < task[name] for other in "abcd")
                    equal = sum(task[other] == task[name] for other in "abcd")
                    ranks.append(smaller + (equal + 1) / 2)
            of_files.append(sum(ranks) / len(ranks))
        assert mean_ranks(tasks, files)[name] == pytest.approx(sum(of_files) / len(of_files))


@pytest.mark.parametrize(("k", "q"), [(3, 2.343), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_has_the_published_quantiles(k, q):
    assert critical_difference(k, 30) == pytest.approx(q * math.sqrt(k * (k + 1) / (6 * 30)), rel=3e-4)


def test_ratios_are_geometric_means_over_files_with_an_interval_of_resampled_files():
    tasks, files = random_tasks()
    found = ratios_to("b", tasks, files)
    logs = {}
    for task, file in zip(tasks, files, strict=True):
        logs.setdefault(file, []).append(math.log(task["a"] / task["b"]))
    means = [sum(each) / len(each) for _, each in sorted(logs.items())]
    assert found["a"].mean == pytest.approx(math.exp(sum(means) / len(means)))
    rng = np.random.default_rng(0)
    resampled = [
        np.mean([means[i] for i in drawn]) for drawn in rng.integers(len(means), size=(1000, len(means)))
    ]
    assert found["a"].low == pytest.approx(math.exp(np.quantile(resampled, 0.025)))
    assert found["a"].high == pytest.approx(math.exp(np.quantile(resampled, 0.975)))
    assert (found["b"].low, found["b"].mean, found["b"].high) == (1, 1, 1)
    assert ratios_to("b", tasks, files) == found
    assert ratios_to("b", tasks, files, seed=1) != found


def test_a_tie_is_half_a_win():
    tasks, _ = random_tasks()
    for name in "abcd":
        won = [
            1.0 if task[name] < task[other] else 0.5 if task[name] == task[other] else 0.0
            for task in tasks
            for other in "abcd"
            if other != name
        ]
        assert win_rates(tasks)[name] == pytest.approx(np.mean(won))
    assert share_of_wins([{"a": 0.1 + 0.2, "b": 0.3}], "a", "b") == 0.5


def test_files_must_be_as_many_as_tasks():
    with pytest.raises(InputError, match="files: expected one for each of 2 tasks, got 1"):
        mean_ranks([{"a": 1, "b": 2}] * 2, ["x"])


# ---- the page


def test_only_methods_of_all_tasks_are_ranked_and_the_others_are_named():
    both = {"temperature": values(2.0), "uncalibrated": values(3.0)}
    rows = [
        row("x", 200, 0, {**both, "probmetrics affine": values(1.0)}),
        row("y", 200, 0, both, classes=5),
    ]
    board = make_board(read_arena_tasks(rows))
    assert [each.method for each in board.standings] == ["temperature", "uncalibrated"]
    assert board.partial == {"probmetrics affine": 1}
    page = leaderboard_page(rows, left_out={"z.npz": "too small"})
    assert "some of these tasks only: probmetrics affine (1)" in page
    assert "| probmetrics affine | **1.00** |" in page  # among tasks with two classes
    assert "- `z.npz`: too small" in page


def test_the_page_shows_duels_worst_cases_choices_and_failures():
    def task(file, ours, peer, behind, classes, lead, **notes):
        found = {
            "temperature": values(2.0),
            "uncalibrated": values(3.0),
            "calibrant": values(ours, behind),
            "probmetrics SMS": values(peer, lead=lead),
        }
        return row(file, 200, 0, found, classes, **notes)

    rows = [
        task("x", 1.0, 1.5, -1.0, 5, 2.1, calibrant={"chosen": "smart"}),
        task("y", 1.5, 1.5, 0.25, 5, 1.9, calibrant={"chosen": "smart"}),
        task("z", 1.5, 1.0, 0.05, 2, -2.1, **{"probmetrics SMS": {"reason": "no\nluck"}}),
    ]
    page = leaderboard_page(rows)
    assert (
        "| several classes | calibrant | probmetrics SMS | 2 | 75.0 (1 : 0) | 75.0 (1 : 0) | 75.0 (1 : 0) |"
        in page
    )
    assert (
        "| two classes | calibrant | probmetrics SMS | 1 | 0.0 (0 : 1) | 0.0 (0 : 1) | 0.0 (0 : 1) |" in page
    )
    assert "| calibrant | 1 | 1 | 2.5 | +0.2500 | y, 200 samples, seed 0 |" in page
    assert "- `calibrant`: smart (2)" in page
    assert "- `probmetrics SMS`: 1 task, most often: no luck" in page
    assert share_won(read_arena_tasks(rows), "calibrant", "temperature", "nll") == 1
    assert leaderboard_page(rows[::-1]) == page
    for each in rows:  # as an earlier version wrote them
        for record in each.records:
            for name in ("nll", "brier", "smece"):
                del record.values[f"lead_{name}"]
    assert "| several classes | calibrant | probmetrics SMS | 2 | 75.0 | 75.0 | 75.0 |" in leaderboard_page(
        rows
    )


def test_a_duel_of_two_classes_is_also_with_the_best_of_the_library_of_the_rival():
    found = {
        "temperature": values(2.0),
        "uncalibrated": values(3.0),
        "calibrant": values(1.5),
        "netcal beta": values(1.0),
        "probmetrics SMS": values(1.9),
        "probmetrics quadratic": values(1.8),
    }
    page = leaderboard_page([row("x", 200, 0, found)])
    assert "| two classes | calibrant | netcal beta | 1 | 0.0 (0 : 0) |" in page
    assert "| two classes | calibrant | probmetrics quadratic | 1 | 100.0 (0 : 0) |" in page
    assert "| two classes | calibrant | probmetrics SMS |" not in page


def test_methods_that_keep_accuracy():
    kept = ["temperature", "smart(settled=0)", "isotonic_top", "calibrant (keep accuracy)"]
    assert all(map(keeps_accuracy, kept))
    assert not any(map(keeps_accuracy, ["calibrant", "pool", "vector", "probmetrics SMS"]))


def test_no_rows_make_no_page():
    with pytest.raises(InputError, match="expected finished rows, got none"):
        leaderboard_page([])
    with pytest.raises(InputError, match="at least one task"):
        make_board([])


# ---- all of it


@pytest.mark.usefixtures("jobs_in_this_process")
def test_only_the_seeds_that_are_named_run_on_each_file(data, tmp_path):
    only = {"seed": ["1"], "file": ["two.npz"], "samples": ["60"]}
    rows = list(run_experiment(parse_experiment("mine", TEXT), tmp_path, seeds=3, only=only, data=data))
    assert [row.seed for row in rows] == [1]


@pytest.mark.slow
@pytest.mark.usefixtures("jobs_in_this_process")
def test_the_command_writes_a_leaderboard_and_resumes_when_files_were_added(data, tmp_path):
    experiment = tmp_path / "mine.toml"
    experiment.write_text(TEXT)
    out = tmp_path / "out"
    command = ["bench", "run", str(experiment), "--data", str(data), "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    for heading in ("## All tasks", "## Two classes", "## Several classes", "## Methods that keep accuracy"):
        assert heading in result.output
    assert "- `pairs.npz`: expected at least 360 samples" in result.output
    assert {record.labels["method"] for record in finished_rows(out)[0].records} == {
        "temperature",
        "uncalibrated",
        "platt",
        "calibrant",
    }
    lines = (out / "rows.jsonl").read_bytes().split(b"\n")
    assert len(lines) == 4  # three rows, and nothing after the last line end

    # A kill cuts the last row off; a file is added; what is finished is not computed again.
    (out / "rows.jsonl").write_bytes(b"\n".join(lines[:2]) + b"\n" + lines[2][:50])
    save_predictions(predictions(500, 2, seed=1), data / "more" / "added.safetensors")
    new = list(run_experiment(parse_experiment("mine", TEXT), out, data=data))
    kept = [json.loads(line)["key"] for line in lines[:2]]
    assert len(new) == 2
    assert not [each for each in new if each.key in kept]
    assert (out / "rows.jsonl").read_bytes().startswith(b"\n".join(lines[:2]) + b"\n")
    shown = CliRunner().invoke(app, ["bench", "table", str(out)])
    assert "4 tasks: 3 files" in shown.output
