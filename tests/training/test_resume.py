"""A run that was broken off anywhere ends, when it goes on, with the weights of one that was not."""

import json

import pytest

from calibrant.errors import FormatError
from calibrant.training import train
from calibrant.training.checkpoint import read_checkpoint
from tests.training.small import (
    ENCODER,
    BrokenOffError,
    CrashAfter,
    differing,
    final_weights,
    small_config,
    untimed,
)

pytestmark = pytest.mark.slow

ADAFOCAL = (
    "training.loss=adafocal(n_bins=5)",
    "model.options.dropout=0.3",
    "training.epochs=4",
    "training.schedule.warmup=0.2",
    "training.keep=nll",
)
KINDS = {
    "adafocal, dropout": ADAFOCAL,
    "ols": ("training.loss=ols",),
    "crl": ("training.loss=crl", "training.optimizer.name=adam", "training.optimizer.lr=0.01"),
    "batch normalisation": ("model.name=small_cnn", "model.options.widths=[4, 8]"),
    "refcal": (*ENCODER, "model.options.dropout=0.3"),
    "refcal on cached features": (*ENCODER, "training.augment=false"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that nothing broke off, each made once."""
    made = {}

    def find(kind):
        if kind not in made:
            made[kind] = train(small_config(*KINDS[kind]), tmp_path_factory.mktemp("whole") / "run")
        return made[kind]

    return find


def assert_same(resumed, expected):
    assert differing(final_weights(resumed.folder), final_weights(expected.folder)) == []
    assert untimed(resumed.metrics) == untimed(expected.metrics)
    assert resumed.dynamics == expected.dynamics
    assert resumed.refinement == expected.refinement
    assert [path.name for path in (resumed.folder / "checkpoints").iterdir()] == [
        "classifier-kept.safetensors"
    ]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *(
            (kind, place)
            for kind in ("adafocal, dropout", "ols", "crl", "batch normalisation")
            for place in (("classifier", 1), ("classifier", 3), ("classifier", 2, 3))
        ),
        *(
            (kind, place)
            for kind in ("refcal", "refcal on cached features")
            for place in (
                ("encoder", 2),
                ("encoder", 2, 3),
                ("encoder", 3),
                ("classifier", 1, 1),
                ("classifier", 2),
                ("classifier", 3, 2),
            )
        ),
    ],
    ids=str,
)
def test_a_run_that_crashed_ends_as_one_that_did_not(tmp_path, whole, kind, place):
    config = small_config(*KINDS[kind])
    with pytest.raises(BrokenOffError):
        train(config, tmp_path / "run", watcher=CrashAfter(*place))
    assert_same(train(config, tmp_path / "run", resume=True), whole(kind))


@pytest.mark.parametrize("function", ["save_weights", "save_state", "write_checkpoint"])
@pytest.mark.parametrize("call", [1, 2, 4])
def test_a_crash_while_a_checkpoint_is_written_loses_no_more_than_an_epoch(
    tmp_path, monkeypatch, whole, function, call
):
    config = small_config(*KINDS["refcal"])
    import calibrant.training.stage as stage_module

    original, calls = getattr(stage_module, function), []

    def crash(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise BrokenOffError
        return original(*arguments)

    monkeypatch.setattr(stage_module, function, crash)
    with pytest.raises(BrokenOffError):
        train(config, tmp_path / "run")
    monkeypatch.undo()
    found = read_checkpoint(tmp_path / "run")
    if found is not None:  # whatever it names is there
        for name in (found.weights, found.state):
            assert name is None or (tmp_path / "run" / name).exists()
    assert_same(train(config, tmp_path / "run", resume=True), whole("refcal"))


def test_a_run_may_crash_again_and_again(tmp_path, whole):
    config = small_config(*ADAFOCAL)
    for number, place in enumerate(
        (("classifier", 1, 2), ("classifier", 2), ("classifier", 2, 4), ("classifier", 4))
    ):
        with pytest.raises(BrokenOffError):
            train(config, tmp_path / "run", resume=number > 0, watcher=CrashAfter(*place))
    assert_same(train(config, tmp_path / "run", resume=True), whole("adafocal, dropout"))


def test_checkpoints_can_be_rarer(tmp_path, whole):
    config = small_config(*ADAFOCAL, "output.checkpoint_every=3", "training.keep=last")
    with pytest.raises(BrokenOffError):
        train(config, tmp_path / "run", watcher=CrashAfter("classifier", 2))
    assert read_checkpoint(tmp_path / "run") is None
    with pytest.raises(BrokenOffError):
        train(config, tmp_path / "run", resume=True, watcher=CrashAfter("classifier", 4))
    assert read_checkpoint(tmp_path / "run").epoch == 3
    again = train(config, tmp_path / "run", resume=True)
    assert untimed(again.metrics) == untimed(whole("adafocal, dropout").metrics)


def test_the_best_epoch_survives_a_crash(tmp_path):
    options = ("training.epochs=6", "training.optimizer.lr=1.0", "training.schedule.name=constant")
    config = small_config(*options, "training.keep=nll", "output.checkpoint_every=5")
    expected = train(config, tmp_path / "whole")
    best = json.loads((expected.folder / "checkpoint.json").read_text())["best"]["epoch"]
    assert best < 6
    for place in ((best + 1, None), (best + 1, 2), (6, None)):
        folder = tmp_path / str(place)
        with pytest.raises(BrokenOffError):
            train(config, folder, watcher=CrashAfter("classifier", *place))
        resumed = train(config, folder, resume=True)
        assert differing(final_weights(folder), final_weights(expected.folder)) == []
        assert json.loads((folder / "checkpoint.json").read_text())["best"]["epoch"] == best
        assert untimed(resumed.metrics) == untimed(expected.metrics)


def test_a_finished_run_goes_on_to_the_same_end_without_training(tmp_path, whole):
    config = small_config(*KINDS["refcal"])
    first = train(config, tmp_path / "run")
    again = train(config, tmp_path / "run", resume=True, watcher=CrashAfter("classifier", 1, 1))
    assert_same(again, first)
    assert_same(again, whole("refcal"))


def test_hardware_and_output_may_change_when_a_run_goes_on(tmp_path, whole):
    with pytest.raises(BrokenOffError):
        train(small_config("training.loss=ols"), tmp_path / "run", watcher=CrashAfter("classifier", 2))
    config = small_config("training.loss=ols", "output.checkpoint_every=2", "hardware.threads=1")
    resumed = train(config, tmp_path / "run", resume=True)
    assert differing(final_weights(resumed.folder), final_weights(whole("ols").folder)) == []


def test_the_remains_of_a_killed_run_are_removed(tmp_path):
    with pytest.raises(BrokenOffError):
        train(small_config(), tmp_path / "run", watcher=CrashAfter("classifier", 2))
    (tmp_path / "run" / "checkpoints" / ".calibrant-1.safetensors").write_text("half")
    (tmp_path / "run" / ".calibrant-2.json").write_text("half")
    train(small_config(), tmp_path / "run", resume=True)
    assert list((tmp_path / "run").rglob(".calibrant-*")) == []


def test_a_checkpoint_of_another_model_is_named(tmp_path):
    for name, hidden in (("a", 16), ("b", 8)):
        with pytest.raises(BrokenOffError):
            train(
                small_config(f"model.options.hidden=[{hidden}]"),
                tmp_path / name,
                watcher=CrashAfter("classifier", 3),
            )
    foreign = tmp_path / "b" / "checkpoints"
    for path in foreign.iterdir():
        (tmp_path / "a" / "checkpoints" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(FormatError, match=r"0002\.safetensors: expected the weights of this model"):
        train(small_config(), tmp_path / "a", resume=True)
