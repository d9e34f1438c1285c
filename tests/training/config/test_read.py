import dataclasses
import re
from pathlib import Path

import pytest

from calibrant.errors import InputError
from calibrant.papers.experiment import load_experiment
from calibrant.papers.training import configurations
from calibrant.training import config as package
from calibrant.training.config import config_from_table
from calibrant.training.config.settings import Config, EncoderSettings
from calibrant.training.config.toml import load_config, load_first_run


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_public_names_exist() -> None:
    assert all(hasattr(package, name) for name in package.__all__)


def test_without_a_file_the_configuration_is_the_default_one() -> None:
    assert load_config() == Config()
    assert load_config().data.name == "digits"


def test_a_file_says_what_differs_from_the_defaults(tmp_path) -> None:
    path = write(tmp_path, "a.toml", "seed = 3\n[training.optimizer]\nlr = 0.5\n")
    training = dataclasses.replace(
        Config().training, optimizer=dataclasses.replace(Config().training.optimizer, lr=0.5)
    )
    assert load_config(path) == dataclasses.replace(Config(), seed=3, training=training)


def test_the_encoder_is_there_only_if_its_table_is() -> None:
    assert config_from_table({}).encoder is None
    assert config_from_table({"encoder": {}}).encoder == EncoderSettings()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"trainig": {}}, "trainig: expected a table or a key (seed, data, "),
        ({"trainig": {}}, "got 'trainig'; did you mean 'training'?"),
        ({"training": {"epoch": 3}}, "training.epoch: expected a key of [training] (loss, epochs, "),
        ({"training": {"epoch": 3}}, "got 'epoch'; did you mean 'epochs'?"),
        (
            {"training": {"optimizer": {"momentun": 0.5}}},
            "got 'momentun'; did you mean 'momentum'?",
        ),
        ({"encoder": {"keep": "nll"}}, "encoder.keep: expected a key of [encoder]"),
    ],
)
def test_an_unknown_key_names_the_place_and_the_nearest_known_one(table, message) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        config_from_table(table)


def test_a_key_that_is_near_to_none_gets_no_guess() -> None:
    with pytest.raises(InputError, match=r"got 'xyzzy'$"):
        config_from_table({"xyzzy": 1})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"seed": "1"}, "seed: expected a whole number, got '1'"),
        ({"seed": 1.0}, "seed: expected a whole number, got 1.0"),
        ({"training": 3}, "training: expected a table, got 3"),
        ({"encoder": [1]}, "encoder: expected a table, got [1]"),
        ({"data": {"path": 3}}, "data.path: expected text, got 3"),
        ({"data": {"options": 3}}, "data.options: expected a table, got 3"),
        ({"data": {"foreign": {"svhn": 3}}}, "data.foreign.svhn: expected text, got 3"),
        ({"data": {"limit": 10.5}}, "data.limit: expected a whole number, got 10.5"),
        ({"data": {"corruptions": "blur"}}, "data.corruptions: expected a list, got 'blur'; write it as"),
        ({"data": {"corruptions": [3]}}, "data.corruptions: expected text, got 3"),
        (
            {"data": {"foreign_classes": [0.5]}},
            "data.foreign_classes: expected text or a whole number, got 0.5",
        ),
        ({"training": {"flip": 1}}, "training.flip: expected true or false, got 1"),
        ({"training": {"clip_gradient": "no"}}, "training.clip_gradient: expected a number, got 'no'"),
        ({"training": {"optimizer": {"lr": "0.1"}}}, "training.optimizer.lr: expected a number, got '0.1'"),
        (
            {"training": {"optimizer": {"betas": [0.9]}}},
            "training.optimizer.betas: expected a list of 2, got [0.9]",
        ),
        ({"hardware": {"devices": 1.5}}, "hardware.devices: expected a whole number or text, got 1.5"),
    ],
)
def test_a_wrong_type_is_one_sentence_that_names_the_key(table, message) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        config_from_table(table)


@pytest.mark.parametrize(
    "table",
    [
        {"seed": True},
        {"data": {"validation": True}},
        {"data": {"limit": True}},
        {"data": {"foreign_classes": [True]}},
        {"hardware": {"devices": True}},
        {"training": {"schedule": {"milestones": [True]}}},
    ],
)
def test_true_is_no_number(table) -> None:
    with pytest.raises(InputError, match=r"expected .*number.*, got True$"):
        config_from_table(table)


def test_a_whole_number_is_taken_where_any_number_is_wanted() -> None:
    config = config_from_table({"training": {"clip_gradient": 1, "optimizer": {"lr": 1, "weight_decay": 0}}})
    optimizer = config.training.optimizer
    numbers = (config.training.clip_gradient, optimizer.lr, optimizer.weight_decay)
    assert numbers == (1.0, 1.0, 0.0)
    assert all(type(number) is float for number in numbers)


def test_lists_become_tuples_of_the_right_kind() -> None:
    schedule = {"name": "multistep", "milestones": [1, 2.5]}
    table = {
        "data": {"corruptions": ["blur"], "foreign_classes": ["cat", 3]},
        "training": {"schedule": schedule, "optimizer": {"betas": [0, 0.5]}},
    }
    config = config_from_table(table)
    assert config.data.corruptions == ("blur",)
    assert config.data.foreign_classes == ("cat", 3)
    assert config.training.schedule.milestones == (1.0, 2.5)
    assert config.training.optimizer.betas == (0.0, 0.5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"training": {"optimizer": {"name": "adamv"}}},
            "training.optimizer.name: expected 'sgd' or 'adam' or 'adamw', got 'adamv'; did you mean 'adam",
        ),
        (
            {"training": {"keep": "acuracy"}},
            "training.keep: expected 'last' or 'nll' or 'nll_after_temperature' or 'brier' or 'accuracy'",
        ),
        ({"training": {"keep": "acuracy"}}, "did you mean 'accuracy'?"),
        (
            {"posthoc": {"score": "auroc"}},
            "posthoc.score: expected 'nll' or 'brier' or 'ece' or 'classwise_ece', got 'auroc'",
        ),
        ({"training": {"keep": 3}}, "training.keep: expected 'last' or"),
        ({"training": {"schedule": {"name": ["cosine"]}}}, "got ['cosine']"),
    ],
)
def test_a_word_that_is_none_of_the_known_ones_names_the_nearest(table, message) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        config_from_table(table)


@pytest.mark.parametrize(
    ("change", "read", "value"),
    [
        ("seed=5", lambda c: c.seed, 5),
        ("training.optimizer.lr=5e-2", lambda c: c.training.optimizer.lr, 0.05),
        ("training.augment=false", lambda c: c.training.augment, False),
        ("data.path=a/b.npz", lambda c: c.data.path, "a/b.npz"),
        (" data.path = a b ", lambda c: c.data.path, "a b"),
        ('data.path="2024"', lambda c: c.data.path, "2024"),
        ("training.loss=focal(gamma=3) + mdca", lambda c: c.training.loss, "focal(gamma=3) + mdca"),
        ('data.corruptions=["blur", "jpeg-2"]', lambda c: c.data.corruptions, ("blur", "jpeg-2")),
        ("model.options.hidden=[8, 8]", lambda c: c.model.options, {"hidden": [8, 8]}),
        ("data.foreign.svhn=image_folder:svhn", lambda c: c.data.foreign, {"svhn": "image_folder:svhn"}),
        ("training.optimizer={lr = 1, momentum = 0}", lambda c: c.training.optimizer.momentum, 0.0),
    ],
)
def test_a_change_is_read_as_toml_or_else_as_text(change, read, value) -> None:
    assert read(load_config(changes=[change])) == value


@pytest.mark.parametrize("change", ["seed", "=5", "training.=5", ".seed=5", "", "training..epochs=5"])
def test_a_change_without_a_key_and_a_value_is_refused(change) -> None:
    expected = f"changes: expected key=value, as in training.epochs=5, got {change!r}"
    with pytest.raises(InputError, match=f"^{re.escape(expected)}$"):
        load_config(changes=[change])


def test_changes_stand_above_the_file_and_the_last_one_counts(tmp_path) -> None:
    path = write(tmp_path, "a.toml", "seed = 1\n[training]\nepochs = 7\nbatch_size = 9\n")
    config = load_config(path, ["training.epochs=2", "training.epochs=3"])
    assert (config.seed, config.training.epochs, config.training.batch_size) == (1, 3, 9)


def test_a_file_extends_another_that_extends_another(tmp_path) -> None:
    (tmp_path / "deep").mkdir()
    write(
        tmp_path, "a.toml", "seed = 1\n[training]\nepochs = 7\nloss = 'brier'\n[training.optimizer]\nlr = 1\n"
    )
    write(tmp_path / "deep", "b.toml", "extends = '../a.toml'\n[training]\nepochs = 8\n")
    last = write(tmp_path, "c.toml", "extends = 'deep/b.toml'\n[training.optimizer]\nmomentum = 0\n")
    config = load_config(last)
    assert (config.seed, config.training.loss, config.training.epochs) == (1, "brier", 8)
    assert (config.training.optimizer.lr, config.training.optimizer.momentum) == (1.0, 0.0)


def test_a_list_of_an_extending_file_replaces_the_old_one(tmp_path) -> None:
    write(tmp_path, "a.toml", "[data]\ncorruptions = ['blur', 'jpeg']\n")
    config = load_config(
        write(tmp_path, "b.toml", "extends = 'a.toml'\n[data]\ncorruptions = ['contrast']\n")
    )
    assert config.data.corruptions == ("contrast",)


@pytest.mark.parametrize("chain", [("a",), ("a", "b"), ("a", "b", "c")])
def test_files_that_extend_each_other_in_a_circle_are_refused(tmp_path, chain) -> None:
    for name, base in zip(chain, (*chain[1:], chain[0]), strict=True):
        write(tmp_path, f"{name}.toml", f"extends = '{base}.toml'\n")
    with pytest.raises(InputError, match=r"^extends: expected no cycle of files, got a\.toml twice$"):
        load_config(tmp_path / "a.toml")


def test_a_base_may_be_reached_by_two_files_in_turn(tmp_path) -> None:
    write(tmp_path, "a.toml", "seed = 4\n")
    for name in ("b", "c"):
        assert load_config(write(tmp_path, f"{name}.toml", "extends = 'a.toml'\n")).seed == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"extends = 'absent.toml'",
            r"CONFIG: expected a TOML file, got .*absent\.toml, which does not exist",
        ),
        (b"extends = 3", "extends: expected the name of a file, got 3"),
        (b"extends = ''", "CONFIG: expected a TOML file, got .*: Is a directory"),
        (b"seed = \n", r"CONFIG: expected TOML, got .*a\.toml with: .*line 1"),
        (b"\xff\xfe", r"CONFIG: expected a TOML file, got .*a\.toml: it is no text"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path, content, message) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{message}"):
        load_config(path)


def test_a_file_that_does_not_exist_is_named(tmp_path) -> None:
    with pytest.raises(InputError, match=r"got .*b\.toml, which does not exist$"):
        load_config(tmp_path / "b.toml")


def test_options_are_left_behind_when_the_name_changes(tmp_path) -> None:
    text = "[model]\nname = 'vit_small'\n[model.options]\npatch = 16\n[data]\nname = 'text'\npath = 'x'\n"
    path = write(tmp_path, "a.toml", text + "[data.options]\nlength = 3\n")
    other = load_config(path, ["model.name=mlp", "data.name=embeddings"])
    assert (other.model.options, other.data.options) == ({}, {})
    assert other.data.path == "x"
    same = load_config(path, ["model.name=vit_small", "model.options.depth=2"])
    assert same.model.options == {"patch": 16, "depth": 2}


def test_options_may_come_before_or_after_the_name_they_belong_to(tmp_path) -> None:
    path = write(tmp_path, "a.toml", "[model]\nname = 'vit_small'\n[model.options]\npatch = 16\n")
    changes = ["model.name=mlp", "model.options.hidden=[8]"]
    for order in (changes, changes[::-1]):
        assert load_config(path, order).model.options == {"hidden": [8]}


def test_milestones_are_left_behind_when_the_schedule_changes(tmp_path) -> None:
    path = write(
        tmp_path, "a.toml", "[training.schedule]\nname = 'multistep'\nmilestones = [3]\nfactor = 0.5\n"
    )
    schedule = load_config(path, ["training.schedule.name=cosine"]).training.schedule
    assert (schedule.name, schedule.milestones, schedule.factor) == ("cosine", (), 0.5)


def test_the_experiment_behind_the_table_of_the_first_run_has_its_settings():
    experiment = load_experiment(str(Path(__file__).parents[3] / "benchmarks" / "first_run.toml"))
    for job in experiment.jobs("quick", seeds=1):
        (table,) = configurations(job.key, job.settings, seed=0, data=None)
        assert config_from_table(table) == load_first_run([f"training.loss={job.key['method']}"])
