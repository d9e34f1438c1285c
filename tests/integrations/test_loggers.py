"""Measures and reports in TensorBoard, MLflow and Weights & Biases, read back from their own files."""

import json
import math
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from calibrant.errors import InputError, MissingPackageError
from calibrant.integrations.loggers import (
    REPORT_NAME,
    MLflowLogger,
    TensorBoardLogger,
    WandbLogger,
    find_logger,
)
from calibrant.losses import CrossEntropyLoss
from calibrant.training.records import read_rows
from tests.offline import no_network
from tests.training.small import ENCODER, arguments

pytestmark = [
    pytest.mark.slow,
    # Lightning looks at batches in a way that this version of torch will give up.
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated"),
    # Loaders here have no workers.
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]

PLACES = {"tensorboard": "tensorboard=board", "mlflow": "mlflow=mlruns", "wandb": "wandb=honest"}


@pytest.fixture(autouse=True)
def _local(monkeypatch, tmp_path):
    """Keep all that trackers write in the folder of the test; nothing is sent, and no process stays."""
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_DIR", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")  # the package reads it once
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    before = set(psutil.Process().children(recursive=True))
    with no_network() as attempts:
        yield
        if "wandb" in sys.modules:
            sys.modules["wandb"].finish()  # a run that a failed test left
            sys.modules["wandb"].teardown()  # it remembers its folder
        if "mlflow" in sys.modules:
            sys.modules["mlflow"].set_tracking_uri(None)
    assert attempts == []
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.fixture(params=PLACES)
def kind(request):
    return request.param


def made(kind):
    """A logger that writes below the current folder."""
    return find_logger(PLACES[kind], folder=Path("runs", "one"))()


def stored(kind):
    """Return the measures by name, each with its values by step, and the report, of the only run."""
    return {"tensorboard": _in_tensorboard, "mlflow": _in_mlflow, "wandb": _in_wandb}[kind]()


def _in_tensorboard(folder="board"):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder)
    events.Reload()
    names = events.Tags()["scalars"]
    values = {name: {each.step: each.value for each in events.Scalars(name)} for name in names}
    report = None
    if (text := f"{REPORT_NAME}/text_summary") in events.Tags()["tensors"]:
        (path,) = events.Tensors(text)[0].tensor_proto.string_val
        report = Path(path.decode().strip("`")).read_text()
    return values, report


def _in_mlflow(where="mlruns"):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=Path(where).absolute().as_uri())
    (run,) = [run for e in client.search_experiments() for run in client.search_runs([e.experiment_id])]
    number = run.info.run_id
    values = {
        name: {each.step: each.value for each in client.get_metric_history(number, name)}
        for name in run.data.metrics
    }
    pages = [each.path for each in client.list_artifacts(number)]
    report = Path(client.download_artifacts(number, pages[0], str(Path.cwd()))).read_text() if pages else None
    return values, report


def _in_wandb():
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # waits until its process has written everything
    (file,) = Path("wandb").glob("offline-run-*/*.wandb")
    values, report = {}, None
    for data in _wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        row = {
            ".".join([item.key] if item.key else item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for name, value in row.items():
            if name in (REPORT_NAME, f"{REPORT_NAME}.path"):
                path = value if name.endswith("path") else value["path"]
                report = (file.parent / "files" / path).read_text()
            elif not name.startswith(("_", REPORT_NAME)):
                values.setdefault(name, {})[row.get("_step", record.history.step.num)] = value
    return values, report


def _wandb_records(data):
    """Yield the records of a file: blocks of 32 KiB with parts of records, after a header of 7 bytes."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if (room := 32768 - place % 32768) < 7:
            place += room
            continue
        _, length, part = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if part in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def test_measures_and_the_report_come_back_as_they_were_logged(kind, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<title>\N{SNOWMAN} a report</title>")
    logger = made(kind)
    for step, ece in ((1, 0.25), (2, 0.125)):
        logger.log_measures(step, {"classifier/ece": ece, "nll": 2.0})
    logger.log_report(page)
    logger.close()
    values, report = stored(kind)
    assert values == {"classifier/ece": {1: 0.25, 2: 0.125}, "nll": {1: 2.0, 2: 2.0}}
    assert report == page.read_text()


def test_a_measure_that_is_not_defined_breaks_no_run(kind):
    logger = made(kind)
    logger.log_measures(1, {"ece": math.nan, "nll": 0.5})
    logger.close()
    values, _ = stored(kind)
    assert values["nll"] == {1: 0.5}


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    for kind, package in {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}.items():
        with pytest.raises(
            MissingPackageError, match=f"expected the package {package}, .*: pip install {package}$"
        ):
            find_logger(kind, folder=Path("run"))
    for make in (TensorBoardLogger, MLflowLogger, WandbLogger):
        with pytest.raises(MissingPackageError):
            make()


def test_a_new_run_of_wandb_is_offline_unless_the_user_chose_a_mode(monkeypatch):
    asked = []
    fake = SimpleNamespace(run=None, init=lambda **options: asked.append(options["mode"]))
    monkeypatch.setattr("importlib.import_module", lambda _: fake)
    monkeypatch.delenv("WANDB_MODE")
    WandbLogger()
    monkeypatch.setenv("WANDB_MODE", "online")
    WandbLogger()
    assert asked == ["offline", "online"]


def test_an_unknown_tracker_is_refused_with_the_nearest_one():
    with pytest.raises(InputError, match="log: expected mlflow, tensorboard, wandb, .*did you mean 'wandb'"):
        find_logger("wandbb=project", folder=Path("run"))


@pytest.fixture
def train(run_once, tmp_path):
    """Return a function that calls ``calibrant train`` with all trackers."""
    log = [word for place in PLACES.values() for word in ("--log", place)]

    def call(*changes, more=()):
        words = arguments(*changes, 'posthoc.methods=["temperature"]')
        code, _, err = run_once("train", *words, "--out", tmp_path / "run", "--json", *log, *more)
        assert code == 0, err
        return tmp_path / "run"

    return call


def test_train_logs_every_epoch_the_results_and_the_report(train):
    folder = train(*ENCODER)
    rows = read_rows(folder / "metrics.jsonl")
    results = json.loads((folder / "results.json").read_text())
    for kind in PLACES:
        values, report = stored(kind)
        for step, row in enumerate(rows, 1):
            for name in ("train_loss", "val_ece"):
                if row.get(name) is not None:
                    found = values[f"{row['stage']}/{name}"][step]
                    assert found == pytest.approx(row[name], rel=1e-6), (kind, name)
        for title, method in (("uncalibrated", "uncalibrated"), ("calibrated", results["chosen"])):
            expected = results["methods"][method]["measures"]["test"]["ece"]
            assert values[f"test/{title}/ece"] == {len(rows): pytest.approx(expected, rel=1e-6)}
        assert report == (folder / "report.html").read_text()


def test_a_finished_run_that_is_resumed_is_logged_with_all_epochs(run_once, train):
    folder = train("training.epochs=2")
    again = ("--resume", "--log", "tensorboard=other", "--json")
    code, _, err = run_once("train", "--out", folder, *again)
    assert code == 0, err
    values, report = _in_tensorboard("other")
    rows = read_rows(folder / "metrics.jsonl")
    expected = {row["epoch"]: pytest.approx(row["val_ece"], rel=1e-6) for row in rows}
    assert values["classifier/val_ece"] == expected
    assert len(expected) == 2
    assert report is not None


def test_a_tracker_that_fails_does_not_end_the_training(run_once, tmp_path, monkeypatch):
    def fails(*_):
        raise InputError("tensorboard: expected a tracker that takes the results, got an error")

    monkeypatch.setattr(TensorBoardLogger, "log_measures", fails)
    words = arguments('posthoc.methods=["temperature"]')
    log = ("--log", "tensorboard=board")
    code, _, err = run_once("train", *words, "--out", tmp_path / "run", "--json", *log)
    assert code == 0
    assert err.count("the run continues without it") == 1
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("words", [("--log", "nothing"), ("--log", "tensorboard", "--log", "tensorboard")])
def test_wrong_trackers_are_refused_before_training(run_once, tmp_path, words):
    code, out, err = run_once("train", *arguments(), "--out", tmp_path / "run", *words)
    assert (code, out) == (2, "")
    assert "--log: expected" in err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_lightning_callback_adds_its_report_to_the_trainers_logger(kind, tmp_path):
    pl = pytest.importorskip("lightning.pytorch")
    from calibrant.integrations.lightning import CalibrationCallback
    from tests.integrations.small_lightning import Module, loaders

    theirs = {
        "tensorboard": lambda: pl.loggers.TensorBoardLogger(".", name="board", version=""),
        "mlflow": lambda: pl.loggers.MLFlowLogger("x", tracking_uri=Path("mlruns").absolute().as_uri()),
        "wandb": lambda: pl.loggers.WandbLogger(project="x", offline=True, save_dir="."),
    }[kind]()
    callback = CalibrationCallback(report=tmp_path / "calibration.html")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        default_root_dir=tmp_path,
        logger=theirs,
        log_every_n_steps=1,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(CrossEntropyLoss()), *loaders())
    if kind == "wandb":
        theirs.experiment.finish()
    values, report = stored(kind)
    assert len(values["val_ece"]) == 2
    assert max(values["val_ece"].items())[1] == pytest.approx(
        float(trainer.callback_metrics["val_ece"]), rel=1e-6
    )
    assert report == (tmp_path / "calibration.html").read_text()
    assert "45" in report  # the samples of the validation set


def test_the_trainer_adds_its_report_to_the_run_that_it_reports_to(kind, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from calibrant.integrations.transformers import CalibratedTrainer
    from tests.integrations.small_transformers import TRAIN, VAL, classifier

    monkeypatch.setenv("MLFLOW_TRACKING_URI", Path("mlruns").absolute().as_uri())
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "board")
    trainer = CalibratedTrainer(
        model=classifier(),
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"),
            num_train_epochs=1,
            eval_strategy="epoch",
            save_strategy="no",
            logging_strategy="no",
            report_to=[kind],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=TRAIN,
        eval_dataset=VAL,
        calibration_report=tmp_path / "calibration.html",
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    expected = next(row["eval_ece"] for row in trainer.state.log_history if "eval_ece" in row)
    if kind == "wandb":
        import wandb

        wandb.finish()
    values, report = stored(kind)
    name = "eval_ece" if kind == "mlflow" else "eval/ece"
    assert list(values[name].values()) == [pytest.approx(expected, rel=1e-6)]
    assert report == (tmp_path / "calibration.html").read_text()


def test_a_report_that_cannot_be_written_is_refused_before_training(tmp_path):
    pytest.importorskip("lightning.pytorch")
    from calibrant.integrations.lightning import CalibrationCallback

    for name in ("report", "none/report.html"):
        with pytest.raises(InputError, match="report: expected"):
            CalibrationCallback(report=tmp_path / name)


def test_without_an_evaluation_set_the_trainer_refuses_a_report(tmp_path):
    pytest.importorskip("transformers")
    from tests.integrations.small_transformers import trainer_of

    with pytest.raises(
        InputError, match="eval_dataset: expected one set for the calibration_report, got none"
    ):
        trainer_of(
            tmp_path,
            "cross_entropy",
            val=None,
            eval_strategy="no",
            extra={"calibration_report": tmp_path / "page.html"},
        )


def test_the_trainer_predicts_for_a_report_if_it_never_evaluated(tmp_path):
    pytest.importorskip("transformers")
    from tests.integrations.small_transformers import trainer_of

    page = tmp_path / "page.html"
    extra = {"calibration_report": page}
    trainer = trainer_of(tmp_path, "cross_entropy", eval_strategy="no", num_train_epochs=1, extra=extra)
    trainer.train()
    assert "<title>page: calibration report</title>" in page.read_text()


def test_undefined_predictions_have_no_report():
    from calibrant.integrations.validation import validation_predictions

    assert (
        validation_predictions(torch.tensor([[math.nan, 0.0]] * 3), torch.zeros(3, dtype=torch.long)) is None
    )
