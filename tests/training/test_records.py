"""Rows of epochs, as files that agree with the checkpoint."""

import csv
import json
import math
import re
import sys

import pytest

from calibrant.errors import CalibrantError, FormatError
from calibrant.training.checkpoint import Checkpoint
from calibrant.training.records import Records, read_rows

STAGES = ("encoder", "classifier")


def row(stage, epoch, **values):
    return {"stage": stage, "epoch": epoch, **values}


def filled(folder, *, tensorboard=False):
    records = Records(folder, STAGES, tensorboard=tensorboard)
    records.add(row("encoder", 1, val_nll=2.0), None)
    records.add(row("encoder", 2, val_nll=1.5), None)
    records.add(row("classifier", 1, val_nll=1.0, train_ece=0.1), row("classifier", 1, bins=[1, 2]))
    records.add(row("classifier", 2, val_nll=0.5, train_ece=0.2), row("classifier", 2, bins=[3, 4]))
    return records


def places(rows):
    return [(each["stage"], each["epoch"]) for each in rows]


def test_rows_read_as_they_were_added(tmp_path):
    records = filled(tmp_path)
    assert read_rows(tmp_path / "metrics.jsonl") == records.metrics
    assert read_rows(tmp_path / "dynamics.jsonl") == records.dynamics
    assert places(records.metrics) == [("encoder", 1), ("encoder", 2), ("classifier", 1), ("classifier", 2)]


def test_the_table_has_the_columns_of_every_stage_and_blanks_where_a_stage_has_none(tmp_path):
    filled(tmp_path)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [each["val_nll"] for each in rows] == ["2.0", "1.5", "1.0", "0.5"]
    assert [each["train_ece"] for each in rows] == ["", "", "0.1", "0.2"]


def test_what_is_not_finite_becomes_null_and_a_blank(tmp_path):
    records = Records(tmp_path, STAGES)
    bins = [1.0, math.nan, (math.inf, {"gap": -math.inf})]
    records.add(row("classifier", 1, val_auroc=math.nan, val_nll=1.0), row("classifier", 1, bins=bins))
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["val_auroc"] is None
    assert json.loads((tmp_path / "dynamics.jsonl").read_text())["bins"] == [1.0, None, [None, {"gap": None}]]
    assert (tmp_path / "metrics.csv").read_text() == "stage,epoch,val_auroc,val_nll\nclassifier,1,,1.0\n"


@pytest.mark.parametrize(
    ("stage", "epoch", "kept"),
    [("encoder", 1, 1), ("encoder", 2, 2), ("classifier", 1, 3), ("classifier", 2, 4)],
)
def test_a_resumed_run_keeps_the_rows_until_its_checkpoint(tmp_path, stage, epoch, kept):
    all_rows = filled(tmp_path).metrics
    records = Records(tmp_path, STAGES).resume(Checkpoint(stage, epoch, False, "w"))
    assert records.metrics == all_rows[:kept]
    assert places(records.dynamics) == places(all_rows[:kept])[2:]


def test_epochs_that_are_measured_again_replace_the_old_ones(tmp_path):
    filled(tmp_path)
    records = Records(tmp_path, STAGES).resume(Checkpoint("classifier", 1, False, "w"))
    records.add(row("classifier", 2, val_nll=9.0), None)
    found = read_rows(tmp_path / "metrics.jsonl")
    assert places(found) == [("encoder", 1), ("encoder", 2), ("classifier", 1), ("classifier", 2)]
    assert found[-1]["val_nll"] == 9.0


def test_a_run_that_died_before_its_first_row_has_none(tmp_path):
    assert Records(tmp_path, STAGES).resume(Checkpoint("encoder", 1, False, "w")).metrics == []


def test_what_is_no_row_is_named(tmp_path):
    good = {"stage": "encoder", "epoch": 1, "val_nll": 0.5}
    for change, message in (
        ({"stage": "head"}, "line 2.stage: expected 'encoder' or 'classifier', got 'head'"),
        ({"epoch": 1.5}, "line 2.epoch: expected a whole number, got 1.5"),
        ({"val_nll": [1]}, "line 2.val_nll: expected a whole number or a number or text"),
        ({"val_nll": math.nan}, "line 2.val_nll: expected a finite number, got nan"),
        (None, "line 2: expected a table, got 3"),
        ("{", "expected one JSON object per line"),
        ("[" * 100_000, "expected one JSON object per line"),
    ):
        line = change if isinstance(change, str) else json.dumps(good | change if change else 3)
        (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(good)}\n{line}\n")
        with pytest.raises(FormatError, match=f"metrics.jsonl: {re.escape(message)}"):
            read_rows(tmp_path / "metrics.jsonl")


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_tensorboard_shows_what_the_rows_say(tmp_path):
    pytest.importorskip("tensorboard")
    filled(tmp_path, tensorboard=True).close()
    found = scalars(tmp_path)
    assert found["encoder/val_nll"] == [(1, 2.0), (2, 1.5)]
    assert found["classifier/val_nll"] == [(3, 1.0), (4, 0.5)]
    assert "classifier/stage" not in found


def test_tensorboard_forgets_what_a_killed_run_measured_after_its_checkpoint(tmp_path):
    pytest.importorskip("tensorboard")
    filled(tmp_path, tensorboard=True).close()
    records = Records(tmp_path, STAGES, tensorboard=True).resume(Checkpoint("classifier", 1, False, "w"))
    records.add(row("classifier", 2, val_nll=9.0), None)
    records.close()
    assert scalars(tmp_path)["classifier/val_nll"] == [(3, 1.0), (4, 9.0)]


def test_without_tensorboard_the_other_files_are_written_all_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    filled(tmp_path, tensorboard=True).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dynamics.jsonl",
        "metrics.csv",
        "metrics.jsonl",
    ]
    assert capsys.readouterr() == ("", "")


def test_no_files_of_tensorboard_unless_they_are_wanted(tmp_path):
    filled(tmp_path).close()
    assert not (tmp_path / "tensorboard").exists()


def test_a_disk_that_is_full_for_tensorboard_is_named(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    with pytest.raises(CalibrantError, match=r"tensorboard: expected room .* output\.tensorboard=false"):
        filled(tmp_path, tensorboard=True)
