"""Progress of training and its tables: what is shown, and where."""

import io
from contextlib import redirect_stderr

from rich.console import Console
from rich.progress import Progress, TextColumn

from calibrant.cli.training_watchers import Bars, Lines, watching
from calibrant.training.outcome import elsewhere_table, stages_table
from calibrant.training.session import Watcher

ROW = {
    "stage": "classifier",
    "epoch": 2,
    "train_loss": 0.51234,
    "val_accuracy": 0.9,
    "val_nll": 0.31,
    "val_ece": 0.0456,
    "seconds": 1.5,
}


def test_bars_show_the_epoch_the_step_the_loss_and_the_calibration_error():
    console = Console(force_terminal=True, record=True, width=140, file=io.StringIO())
    progress = Progress(
        TextColumn("{task.description}"),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[detail]}"),
        console=console,
    )
    bars = Bars(progress)
    bars.doing("reading the data")
    assert "reading the data" in shown(progress, console)[0]
    bars.started("classifier", epochs=5, steps=8, done=1)
    bars.stepped(2, 3, 0.7654321)
    assert shown(progress, console) == ["classifier, epoch 1/5", "step 3/8 loss 0.7654"]
    bars.epoch_ended(ROW)
    first, _ = shown(progress, console)
    assert first == "classifier, epoch 2/5 validation accuracy 90.00 %, NLL 0.3100, ECE 4.56 %"


def test_a_new_stage_starts_its_bars_anew():
    console = Console(force_terminal=True, record=True, width=140, file=io.StringIO())
    progress = Progress(TextColumn("{task.description} {task.completed}/{task.total}"), console=console)
    bars = Bars(progress)
    bars.started("encoder", epochs=2, steps=8, done=0)
    bars.stepped(2, 8, 0.5)
    bars.epoch_ended(ROW)
    bars.started("classifier", epochs=7, steps=4, done=0)
    assert shown(progress, console) == ["classifier, epoch 0/7", "step 0/4"]


def test_lines_show_the_epoch_the_loss_and_the_calibration_error(capsys):
    lines = Lines()
    lines.started("classifier", epochs=5, steps=8, done=1)
    lines.stepped(2, 3, 0.7)
    lines.epoch_ended(ROW)
    assert capsys.readouterr().err.splitlines() == [
        "classifier: resuming after epoch 1 of 5, 8 steps each",
        "classifier epoch 2/5: loss 0.5123, validation accuracy 90.00 %, NLL 0.3100, ECE 4.56 %, 1.5 s",
    ]


def test_bars_are_for_terminals_lines_for_files_and_nothing_if_it_is_not_to_be_seen(monkeypatch):
    with watching(visible=True) as watcher:
        assert isinstance(watcher, Lines)
    with watching(visible=False) as watcher:
        assert type(watcher) is Watcher
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(io.StringIO()), watching(visible=True) as watcher:
        assert isinstance(watcher, Bars)


def shown(progress, console):
    """The lines of the bars, with single blanks."""
    console.print(progress.get_renderable())
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def rendered(table):
    return str(table).splitlines()


def test_the_table_of_stages_has_a_row_for_each():
    values = {"accuracy": 0.9, "auroc_correct": float("nan"), "nll": 0.5}
    lines = rendered(stages_table({"encoder": values, "classifier": {**values, "nll": 0.25}}))
    assert len(lines) == 3
    assert lines[1].split() == ["encoder", "90.00", "%", "undefined", "0.5000"]
    assert lines[2].split()[-1] == "0.2500"


def test_the_table_of_sets_from_elsewhere_shows_all_but_the_test_part_for_each_method():
    def method(ece):
        measures = {"accuracy": 0.8, "ece": ece}
        return {
            "measures": {"test": measures, "shifted/blur-1": measures},
            "detection": {
                "shifted/blur-1": {"msp": {"auroc": 0.5}},
                "foreign/held_out": {"msp": {"auroc": 0.75 + ece}, "negative_entropy": {"auroc": 0.5}},
            },
        }

    lines = rendered(elsewhere_table({"uncalibrated": method(0.1), "temperature": method(0.05)}))
    assert not any(line.startswith("test") for line in lines)
    assert lines[1].split() == ["shifted/blur-1", "↑", "accuracy", "80.00", "%", "80.00", "%"]
    assert lines[2].split()[-4:] == ["10.00", "%", "5.00", "%"]
    assert lines[3].split() == ["foreign/held_out", "↑", "AUROC,", "msp", "85.00", "%", "80.00", "%"]
    assert lines[4].split()[3:] == ["negative_entropy", "50.00", "%", "50.00", "%"]
    assert len(lines) == 5
