"""``calibrant train``: from a configuration to a model, a table and a report."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from PIL import Image

from calibrant.cli import main
from calibrant.data import load_predictions
from calibrant.evaluation import evaluate
from calibrant.training import load_network
from calibrant.training.config.toml import load_config, load_first_run
from tests.training import users_models
from tests.training.small import ENCODER, arguments

pytestmark = pytest.mark.slow

QUICK = 'posthoc.methods=["temperature"]'
OTHER_SETS = ('data.corruptions=["contrast-3"]', "data.foreign_classes=[8, 9]")


def call(monkeypatch, *words):
    """Call ``calibrant``; return exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, words)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "120")
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code or 0, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    """A run without a configuration: its folder and what was printed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("default")
        monkeypatch.chdir(folder)
        return folder / "runs" / "digits", call(monkeypatch, "train", "--set", "training.epochs=2")


@pytest.fixture(scope="module")
def refcal(tmp_path_factory):
    """A run of two stages with other sets, as JSON: its folder and what was printed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("refcal") / "run"
        words = arguments(*ENCODER, *OTHER_SETS, QUICK)
        return folder, call(monkeypatch, "train", *words, "--out", folder, "--json")


def strict(text):
    """Read JSON as it is defined: there is no NaN in it."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def one_line(code, out, err):
    """The answer to what cannot be done."""
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if line.startswith("calibrant: ")]
    assert len(lines) == 1
    assert "Traceback" not in err
    assert err.splitlines()[-1] == lines[0]
    return lines[0]


@pytest.mark.slow
def test_without_a_configuration_a_network_learns_digits_and_the_table_says_how_well(default):
    folder, (code, out, err) = default
    assert code == 0
    assert out.startswith("mlp on digits (300 samples, 30 % wrong labels), cross_entropy\n")
    for word in ("uncalibrated", "temperature", "smart", "AdaECE", "NLL", "Chosen: "):
        assert word in out
    assert err.count("classifier epoch ") == 2
    for name in ("model.safetensors", "report.html", "results.json", "calibrator.safetensors", "config.toml"):
        assert (folder / name).stat().st_size > 0
    assert list((folder / "tensorboard").glob("events*"))


def test_results_equal_the_evaluation_of_the_saved_predictions(default):
    folder, (_, out, _) = default
    results = strict((folder / "results.json").read_text())
    test = load_predictions(folder / "predictions" / "test.npz")
    found = results["methods"]["uncalibrated"]["measures"]["test"]
    expected = evaluate(test, measures=tuple(found)).metrics
    assert found == pytest.approx(expected, nan_ok=True)
    assert results["n_test"] == test.n
    row = next(line for line in out.splitlines() if "uncalibrated" in line)
    assert f"{100 * expected['accuracy']:.2f}" in row
    assert f"{expected['nll']:.3f}" in row


@pytest.mark.slow
def test_json_is_one_object_and_nothing_else_is_printed(refcal):
    folder, (code, out, err) = refcal
    assert (code, err) == (0, "")
    answer = strict(out)
    assert out.count("\n") == 1
    assert list(answer["stages"]) == ["encoder", "classifier"]
    assert answer["score"] == "nll"
    assert "negative log-likelihood" in answer["choice"]
    assert list(answer["methods"]["uncalibrated"]["detection"]["foreign/held_out"]) == [
        "msp",
        "negative_entropy",
    ]
    saved = strict((folder / "results.json").read_text())
    assert {key: saved[key] for key in answer} == answer


@pytest.mark.slow
def test_the_run_without_a_configuration_shows_overconfidence_and_its_repair(monkeypatch, tmp_path):
    """Forty of its epochs are enough for cross-entropy to learn wrong labels by heart."""
    code, out, _ = call(
        monkeypatch, "train", "--set", "training.epochs=40", "--out", tmp_path / "run", "--json"
    )
    assert code == 0
    answer = strict(out)
    assert answer["chosen"] != "uncalibrated"
    before, after = (answer["effect"][when]["ece"] for when in ("before", "after"))
    assert before > 0.1
    assert after < before / 2


def test_another_data_set_is_not_spoiled_by_the_settings_of_the_first_run():
    noisy, other = load_first_run(["training.epochs=3"]), load_first_run(["data.name=svhn", "data.path=x"])
    assert (noisy.data.label_noise, noisy.data.limit, noisy.training.epochs) == (0.3, 300, 3)
    assert other == load_config(changes=["data.name=svhn", "data.path=x"])


@pytest.mark.slow
def test_measures_that_are_not_defined_are_null(monkeypatch, tmp_path):
    """With two easy classes every prediction is correct, so the AUROC of correctness is undefined."""
    clean = ("data.label_noise=0", "data.validation=0.2", "training.optimizer.weight_decay=5e-4")
    easy = ("data.foreign_classes=[2, 3, 4, 5, 6, 7, 8, 9]", "training.epochs=30", *clean)
    code, out, _ = call(monkeypatch, "train", *arguments(*easy, QUICK), "--out", tmp_path / "run", "--json")
    assert code == 0
    measures = strict(out)["methods"]["uncalibrated"]["measures"]["test"]
    assert measures["accuracy"] == 1.0
    assert measures["auroc_correct"] is None


@pytest.mark.slow
def test_two_stages_and_shifted_and_out_of_distribution_sets_are_shown(monkeypatch, refcal):
    folder, _ = refcal
    code, out, _ = call(monkeypatch, "train", "--resume", "--out", folder)
    assert code == 0
    for word in (
        "Refinement, stage by stage:",
        "encoder",
        "Shifted and out-of-distribution sets:",
        "shifted/contrast-3",
        "foreign/held_out",
    ):
        assert word in out


def test_the_other_commands_read_what_was_written(monkeypatch, default, tmp_path):
    folder, _ = default
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(monkeypatch, "report", folder, "--out", tmp_path / "page.html")
    assert code == 0
    assert (tmp_path / "page.html").stat().st_size > 10_000
    code, out, _ = call(monkeypatch, "evaluate", folder / "predictions" / "test.npz", "--json")
    assert code == 0
    results = strict((folder / "results.json").read_text())
    found = strict(out)
    ece = found["metrics"]["ece"] if "metrics" in found else found["ece"]
    assert ece == pytest.approx(results["methods"]["uncalibrated"]["measures"]["test"]["ece"])
    parts = [folder / "predictions" / f"{name}.npz" for name in ("validation", "test")]
    code, out, err = call(monkeypatch, "calibrate", parts[0], "--test", parts[1], "--methods", "temperature")
    assert code == 0, err
    assert "temperature" in out


def test_the_network_of_a_run_reads_raw_images(refcal):
    folder, _ = refcal
    assert load_network(folder).n_features == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.epoch=3", "training.epoch: expected a key of [training]"),
        ("training.epochs=0", "training.epochs: expected at least 1, got 0"),
        ("epochs", "--set: expected key=value"),
        ("training.loss=fokal", "fokal"),
        ("model.name=mpl", "did you mean 'mlp'?"),
        ("data.name=digit", "did you mean 'digits'?"),
        ("hardware.strategy=fsdp", "hardware.strategy: expected auto or ddp"),
        ("hardware.precision=half", "hardware: expected what Lightning Fabric takes"),
        ('posthoc.methods=["temprature"]', "posthoc.methods: "),
        ('posthoc.methods=["smart(setled=0)"]', "for smart, got 'setled'; did you mean 'settled'?"),
        ("posthoc.choose=vector", "posthoc.choose: expected auto or one of"),
        ("training.loss=supervised_contrastive", "training.loss: expected a loss of logits"),
    ],
)
def test_a_wrong_setting_is_answered_by_one_line_before_any_epoch(monkeypatch, tmp_path, change, message):
    words = arguments("training.epochs=1", QUICK)
    answer = call(monkeypatch, "train", *words, "--set", change, "--out", tmp_path / "run")
    assert message in one_line(*answer)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_what_failed_before_its_first_epoch_can_be_corrected_in_the_same_folder(monkeypatch, tmp_path):
    words = (*arguments("training.epochs=1", QUICK), "--out", tmp_path / "run")
    one_line(*call(monkeypatch, "train", *words, "--set", "training.loss=fokal"))
    code, _, err = call(monkeypatch, "train", *words, "--set", "training.loss=focal")
    assert code == 0, err


def test_a_configuration_that_is_not_there_is_named(monkeypatch, tmp_path):
    assert "none.toml, which does not exist" in one_line(*call(monkeypatch, "train", tmp_path / "none.toml"))


def test_a_file_names_the_folder_of_the_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        "[training]\nepochs = 1\n[data]\nlimit = 100\n[output]\ntensorboard = false\n"
        "[posthoc]\nmethods = ['temperature']\n"
    )
    code, out, _ = call(monkeypatch, "train", "mine.toml")
    assert code == 0
    assert (tmp_path / "runs" / "mine" / "report.html").exists()
    assert "Saved in runs/mine" in out


def test_going_on_where_there_is_no_run_is_refused(monkeypatch, tmp_path):
    answer = call(monkeypatch, "train", "--resume", "--out", tmp_path / "none")
    assert "none: expected the folder of a run" in one_line(*answer)
    assert not (tmp_path / "none").exists()


def test_a_folder_with_a_run_is_refused_and_going_on_with_another_setting_names_it(monkeypatch, default):
    folder, _ = default
    answer = call(monkeypatch, "train", "--out", folder)
    assert "which contains a run; continue it with --resume" in one_line(*answer)
    answer = call(monkeypatch, "train", "--resume", "--set", "seed=5", "--out", folder)
    assert "got another " in one_line(*answer)


def test_a_loss_that_is_not_finite_is_one_line_with_the_way_back(monkeypatch, tmp_path):
    monkeypatch.setitem(users_models.SPOILED_FROM, "training", 6)
    words = arguments("model.name=tests.training.users_models:Fragile", QUICK)
    message = one_line(*call(monkeypatch, "train", *words, "--out", tmp_path / "run"))
    assert "epoch 2, step 2 of 4" in message
    assert "classifier-0001.safetensors" in message
    monkeypatch.setitem(users_models.SPOILED_FROM, "training", None)
    answer = call(monkeypatch, "train", "--resume", "--out", tmp_path / "run")
    assert "--factory: expected tests.training.users_models:Fragile" in one_line(*answer)
    factory = ("--factory", "tests.training.users_models:Fragile")
    code, out, err = call(monkeypatch, "train", "--resume", *factory, "--out", tmp_path / "run")
    assert code == 0
    assert "classifier: resuming after epoch 1 of 3" in err
    assert "Chosen: " in out


def test_a_full_disk_is_one_line(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("calibrant.files.os.fsync", full)
    message = one_line(*call(monkeypatch, "train", *arguments(), "--out", tmp_path / "run"))
    assert "config.toml: expected room for" in message
    assert "No space left on device" in message


def test_a_picture_that_cannot_be_read_is_one_line_with_its_name(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(10):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    (tmp_path / "pictures" / "dog" / "7.png").write_bytes(b"no picture")
    changes = ("data.name=image_folder", f"data.path={tmp_path / 'pictures'}", "data.options.size=8")
    words = [word for change in changes for word in ("--set", change)]
    message = one_line(*call(monkeypatch, "train", *words, "--out", tmp_path / "run"))
    assert "7.png" in message


def test_a_model_of_the_user_s_own_is_found_where_the_command_was_typed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_network.py").write_text(
        "import math\nfrom torch import nn\n\n\n"
        "def make(*, n_classes, shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), n_classes))\n"
    )
    words = arguments("model.name=my_own_network:make", "training.epochs=1", QUICK)
    code, _, err = call(monkeypatch, "train", *words, "--out", tmp_path / "run")
    monkeypatch.delitem(sys.modules, "my_own_network", raising=False)
    assert code == 0, err


def test_without_lightning_fabric_one_sentence_says_what_to_install(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.startswith(("calibrant.training", "lightning_fabric"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "calibrant.cli.training_watchers", raising=False)
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    message = one_line(*call(monkeypatch, "train", "--out", tmp_path / "run"))
    assert message == (
        "calibrant: training: expected the package lightning-fabric, got none; "
        "install it with: pip install 'calibrant[train]'"
    )


def test_ctrl_c_names_the_command_that_continues_and_a_second_run_gets_a_folder_of_its_own(
    monkeypatch, tmp_path
):
    def interrupted(_, folder, **__):
        (folder / "metrics.csv").touch()
        (folder / "config.toml").write_text("")
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBRANT_RUN_FOLDER", raising=False)
    monkeypatch.setattr("calibrant.training.run.train", interrupted)
    stopped = "calibrant: stopped; continue from the last checkpoint with: "
    stopped += "calibrant train --resume --out {}\n"
    code, _, err = call(monkeypatch, "train")
    assert (code, err) == (130, stopped.format("runs/digits"))
    code, _, err = call(monkeypatch, "train")
    note = "calibrant: note: runs/digits contains another run, so this one is in runs/digits-2\n"
    assert (code, err) == (130, note + stopped.format("runs/digits-2"))
    message = one_line(*call(monkeypatch, "train", "--resume"))
    assert message.startswith("calibrant: --out: expected the folder of one run to continue, got several: ")
    code, _, err = call(monkeypatch, "train", "--resume", "--out", "runs/digits-2")
    assert (code, err) == (130, stopped.format("runs/digits-2"))


def test_code_that_only_the_folder_of_a_run_names_is_not_imported(monkeypatch, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    (tmp_path / "run" / "config.toml").write_text('[training]\nloss = "evil:Loss"\n')
    monkeypatch.chdir(tmp_path)
    message = one_line(*call(monkeypatch, "train", "--resume", "--out", "run"))
    assert "training.loss: expected no code in the configuration of a run, got evil:Loss" in message
    assert "evil" not in sys.modules
