import builtins
import dataclasses
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.errors import CalibrantError
from calibrant.training.config import config_from_table, config_to_toml, differences
from calibrant.training.config.settings import (
    Config,
    DataSettings,
    EncoderSettings,
    HardwareSettings,
    ModelSettings,
    OptimizerSettings,
    OutputSettings,
    PosthocSettings,
    ScheduleSettings,
    TrainingSettings,
)
from calibrant.training.config.toml import config_to_table, load_config

# What text a TOML file can hold; lone surrogates are no text.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SHARE = st.floats(0, 1, exclude_max=True)
POSITIVE = st.floats(1e-9, 1e9)
COUNT = st.integers(1, 10**6)
OPTIONS = st.dictionaries(
    TEXT, st.recursive(TEXT | st.booleans() | st.integers() | SHARE, st.lists, max_leaves=4), max_size=3
)
SCHEDULES = st.builds(
    ScheduleSettings,
    name=st.sampled_from(["constant", "cosine", "linear"]),
    warmup=SHARE,
    factor=POSITIVE,
    final=SHARE,
) | st.sets(st.floats(0.1, 1e6), min_size=1, max_size=4).map(
    lambda epochs: ScheduleSettings("multistep", milestones=tuple(sorted(epochs)))
)
OPTIMIZERS = st.builds(
    OptimizerSettings,
    name=st.sampled_from(["sgd", "adam", "adamw"]),
    lr=POSITIVE,
    momentum=SHARE,
    nesterov=st.just(False),
    betas=st.tuples(SHARE, SHARE),
    weight_decay=SHARE,
    decay=st.sampled_from(["all", "matrices"]),
)
STAGE = {
    "loss": TEXT,
    "epochs": st.integers(2, 10**6),
    "batch_size": COUNT,
    "clip_gradient": st.none() | POSITIVE,
    "augment": st.booleans(),
    "padding": st.none() | st.integers(0, 9),
    "flip": st.none() | st.booleans(),
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
CONFIGS = st.builds(
    Config,
    seed=st.integers(0, 2**62),
    data=st.builds(
        DataSettings,
        name=TEXT,
        path=st.none() | TEXT,
        limit=st.none() | COUNT,
        imbalance=st.none() | SHARE,
        corruptions=st.lists(TEXT, max_size=2).map(tuple),
        foreign=st.dictionaries(TEXT, TEXT, max_size=2),
        foreign_classes=st.lists(TEXT | st.integers(0, 99), max_size=3).map(tuple),
        options=OPTIONS,
    ),
    model=st.builds(ModelSettings, name=TEXT, options=OPTIONS),
    encoder=st.none() | st.builds(EncoderSettings, **STAGE, views=st.none() | COUNT),
    training=st.builds(
        TrainingSettings, **STAGE, keep=st.sampled_from(["last", "nll"]), keep_after=st.integers(0, 1)
    ),
    posthoc=st.builds(PosthocSettings, methods=st.lists(TEXT, max_size=2).map(tuple), choose=TEXT),
    hardware=st.builds(HardwareSettings, devices=st.integers(1, 64) | TEXT, threads=st.none() | COUNT),
    output=st.builds(
        OutputSettings,
        dynamics=st.integers(0, 9),
        features=st.booleans(),
        fgsm=st.lists(st.integers(1, 255), max_size=2).map(tuple),
    ),
)


@pytest.mark.slow
@given(CONFIGS)
def test_what_was_written_reads_back_as_the_same_configuration(config) -> None:
    again = config_from_table(tomllib.loads(config_to_toml(config)))
    assert again == config
    assert differences(again, config) == []


def test_a_written_file_reads_back_as_the_same_configuration(tmp_path) -> None:
    config = load_config(
        changes=["seed=4", "encoder.epochs=3", "model.options.widths=[8, 8]", "data.path=é b"]
    )
    path = tmp_path / "config.toml"
    path.write_text(config_to_toml(config), encoding="utf-8")
    assert load_config(path) == config


def test_every_setting_is_written_also_a_default_but_nothing_that_is_not_given() -> None:
    table = config_to_table(Config())
    assert table["training"]["optimizer"]["betas"] == [0.9, 0.999]
    assert set(table["training"]) == {field.name for field in dataclasses.fields(TrainingSettings)} - {
        "clip_gradient",
        "padding",
        "flip",
    }
    assert "encoder" not in table
    assert "path" not in table["data"]


def test_a_missing_writer_says_what_to_install(monkeypatch) -> None:
    def without(name, *rest, **keywords):
        if name == "tomli_w":
            raise ModuleNotFoundError(name=name)
        return original(name, *rest, **keywords)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CalibrantError, match=r"^configuration: expected the package tomli-w.*pip install"):
        config_to_toml(Config())


def test_equal_configurations_do_not_differ() -> None:
    assert differences(Config(), Config()) == []


def test_differences_name_each_key_that_differs_and_no_other() -> None:
    other = load_config(
        changes=[
            "seed=1",
            "training.optimizer.lr=1",
            "data.path=x",
            "model.options.hidden=[8]",
            "training.loss=brier",
        ]
    )
    assert sorted(differences(Config(), other)) == [
        "data.path",
        "model.options.hidden",
        "seed",
        "training.loss",
        "training.optimizer.lr",
    ]
    assert sorted(differences(other, Config())) == sorted(differences(Config(), other))


def test_a_stage_that_one_of_them_lacks_is_a_difference() -> None:
    other = load_config(changes=["encoder.epochs=3"])
    found = differences(Config(), other)
    assert "encoder.epochs" in found
    assert "encoder.optimizer.lr" in found
    assert all(key.startswith("encoder.") for key in found)


def test_a_list_and_a_tuple_of_the_same_options_do_not_differ() -> None:
    first, second = (Config(model=ModelSettings(options={"hidden": kind((8, 8))})) for kind in (list, tuple))
    assert differences(first, second) == []
