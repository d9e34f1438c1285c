"""The files in ``configs/`` say what the papers' tables say, and each can be run as it stands."""

import inspect
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import torch

from calibrant.losses.names import LOSSES, make_loss
from calibrant.posthoc.names import METHODS, method_named
from calibrant.training.config.settings import Config
from calibrant.training.config.toml import load_config
from calibrant.training.datasets import DATASETS
from calibrant.training.models import MODELS, make_model

ROOT = Path(__file__).parents[2] / "configs"
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.toml"))
PAPERS = [name for name in FILES if not name.endswith(".quick.toml")]
QUICK = [name for name in FILES if name.endswith(".quick.toml")]

# What a loader gives to a model: the shape of an input, and the number of classes.
SHAPES = {"cifar10": ((3, 32, 32), 10), "cifar100": ((3, 32, 32), 100), "embeddings": ((384,), 150)}


@cache
def load(name: str) -> Config:
    return load_config(ROOT / name)


def test_there_are_files_of_every_paper() -> None:
    assert {name.split("/")[0] for name in PAPERS} == {"seca", "au", "smart", "adafocal", "refcal"}


def test_every_file_has_a_quick_twin_and_every_twin_a_file() -> None:
    assert [name.removesuffix(".toml") for name in PAPERS] == [
        name.removesuffix(".quick.toml") for name in QUICK
    ]


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_twin_extends_its_file_and_says_only_what_differs(name) -> None:
    table = tomllib.loads((ROOT / name).read_text(encoding="utf-8"))
    base = name.replace(".quick", "")
    assert table.pop("extends") == Path(base).name
    twin, paper = load(name), load(base)
    for section, key, value in leaves(table):
        own = getattr(part(twin, section), key)
        assert own == (tuple(value) if isinstance(own, tuple) else value)
        assert own != getattr(part(paper, section), key), f"{section} {key} is the same in {base}"


def leaves(table, section=()):
    """Yield each key with its value; options are one value."""
    for key, value in table.items():
        if isinstance(value, dict) and key != "options":
            yield from leaves(value, (*section, key))
        elif key != "options":
            yield section, key, value


def part(config, section):
    for key in section:
        config = getattr(config, key)
    return config


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_twin_keeps_the_loss_and_the_kind_of_schedule_of_its_file(name) -> None:
    twin, paper = load(name), load(name.replace(".quick", ""))
    assert twin.training.loss == paper.training.loss
    assert twin.training.keep == paper.training.keep
    assert twin.training.schedule.name == paper.training.schedule.name
    assert twin.data.imbalance == paper.data.imbalance
    assert (twin.encoder is None) == (paper.encoder is None)


@pytest.mark.parametrize("name", FILES)
def test_all_that_a_file_names_is_known(name) -> None:
    config = load(name)
    assert config.data.name in DATASETS
    assert config.model.name in MODELS
    assert set(config.data.options) <= set(inspect.signature(DATASETS[config.data.name]).parameters)
    for method in config.posthoc.methods:
        method_named(method)
    assert config.posthoc.choose in ("auto", *config.posthoc.methods)
    make_loss(config.training.loss, n_classes=10, n_samples=100)
    if config.encoder is not None:
        make_loss(config.encoder.loss)
        assert LOSSES[re.match(r"\w+", config.encoder.loss)[0]].reads == "embeddings"


@pytest.mark.parametrize("name", FILES)
def test_milestones_lie_within_training(name) -> None:
    training = load(name).training
    assert all(epoch < training.epochs for epoch in training.schedule.milestones)


def built(config: Config) -> tuple[str, ...]:
    """Return a model and its input; the two CIFARs differ in the number of classes only."""
    return config.model.name, str(config.model.options), config.data.name.replace("100", "10")


BUILT = {built(load(name)): name for name in FILES}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for (model, *_), name in BUILT.items() if model != "huggingface"])
def test_the_model_of_a_file_takes_its_options_and_the_shape_of_its_data(name) -> None:
    config = load(name)
    options = dict(config.model.options)
    shape: tuple[int, ...]
    if config.data.name == "image_folder":
        shape, n_classes = (3, config.data.options["size"], config.data.options["size"]), 200
    elif config.data.name == "text":
        shape, n_classes, options["n_words"] = (config.data.options["length"],), 20, 100
    else:
        shape, n_classes = SHAPES[config.data.name]
    with torch.device("meta"):  # shapes without numbers, or the largest would take seconds
        model = make_model(config.model.name, n_classes=n_classes, shape=shape, **options)
        inputs = torch.zeros(2, *shape, dtype=torch.long if config.data.name == "text" else torch.float)
        assert model(inputs).shape == (2, n_classes)


@pytest.mark.parametrize("name", [name for name in FILES if load(name).model.name == "huggingface"])
def test_the_tokens_of_a_language_model_are_its_own(name) -> None:
    config = load(name)
    assert config.data.options["model"] == config.model.options["checkpoint"]


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_twin_is_small_and_uses_data_that_are_easy_to_come_by(name) -> None:
    config = load(name)
    assert config.data.path in (
        "data/cifar10",
        "data/clinc150/minilm_embeddings.npz",
        "data/clinc150/data_full.json",
    )
    assert seconds(config) < 180


def seconds(config: Config) -> float:
    """Estimate a run on one core from the time that a sample takes, there and back and there only."""
    both, there = {  # milliseconds, the best of 15 batches of 128
        "small_cnn": (1.87, 0.82),
        "vit_small": (2.52, 0.81),
        "mlp": (0.12, 0.04),
        "text_cnn": (0.59, 0.18),
    }[config.model.name]
    validation, test = (5_000, 10_000) if config.data.name == "cifar10" else (3_000, 4_500)
    samples = config.data.limit * (1.0 if config.data.imbalance is None else 0.41)  # ten classes, 1 to 0.1
    watched = (validation + config.output.dynamics) * there
    if config.first_stage is None:  # with two views if there is an encoder
        views = 1 if config.encoder is None else 2
        epochs = config.training.epochs * (views * samples * both + watched)
    else:  # two views, then a head on an encoder that does not learn
        epochs = config.first_stage.epochs * 2 * samples * both + config.training.epochs * (
            samples * there + watched
        )
    return (epochs + test * there) / 1000


@pytest.mark.parametrize("name", FILES)
def test_a_file_opens_by_saying_where_it_comes_from(name) -> None:
    first = (ROOT / name).read_text(encoding="utf-8").splitlines()[0]
    if name in QUICK:
        assert first.startswith("# The same in ")
    else:
        assert first.casefold().startswith(f"# {name.split('/')[0]}")
        assert re.search("Table|Section|Appendix|table", first)


@pytest.mark.parametrize("name", QUICK)
def test_a_twin_with_other_data_says_so(name) -> None:
    other = load(name).data.path != load(name.replace(".quick", "")).data.path
    comment = " ".join(re.findall(r"^# (.*)$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
    assert ("stands in for" in comment) == other


def test_the_readme_lists_every_file_and_no_other() -> None:
    links = re.findall(r"\]\(([^)]*\.toml)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert sorted(links) == FILES


# SECA, Table 4, as printed: data, model, step size, schedule, warm-up, batch size, epochs.
SECA = {
    "cifar10_resnet32": ("resnet32", 0.1, "multistep", 0, 128, 160),
    "cifar10_resnet56": ("resnet56", 0.1, "multistep", 0, 128, 160),
    "cifar100_resnet32": ("resnet32", 0.1, "multistep", 0, 128, 200),
    "cifar100_resnet56": ("resnet56", 0.1, "multistep", 0, 128, 200),
    "imagenet_vit_small": ("vit_small", 5e-4, "cosine", 0.02, 1024, 300),
    "dbpedia_bert_small": ("huggingface", 3e-5, "linear", 0.1, 256, 5),
    "dbpedia_bert_base": ("huggingface", 2e-5, "linear", 0.1, 128, 5),
    "newsgroups_bert_small": ("huggingface", 3e-5, "linear", 0.1, 256, 20),
    "newsgroups_bert_base": ("huggingface", 2e-5, "linear", 0.1, 128, 20),
}


def test_the_files_of_seca_are_its_table_4() -> None:
    found = {}
    for name in SECA:
        config = load(f"seca/{name}.toml")
        training, schedule = config.training, config.training.schedule
        rate, size = training.optimizer.lr, training.batch_size
        found[name] = (config.model.name, rate, schedule.name, schedule.warmup, size, training.epochs)
        assert training.loss == "seca"
        assert name.split("_")[0] in config.data.path
    assert found == SECA
    assert {f"seca/{name}.toml" for name in SECA} == {name for name in PAPERS if name.startswith("seca/")}


def test_seca_uses_the_two_sizes_of_bert() -> None:
    for data in ("dbpedia", "newsgroups"):
        for size, title in (("small", "L-4_H-512"), ("base", "bert-base")):
            options = load(f"seca/{data}_bert_{size}.toml").model.options
            assert title in options["checkpoint"]
            assert options["pretrained"] is False  # "All models are trained from scratch", Section 4


def test_adafocal_tunes_trained_weights_of_bert() -> None:
    assert load("adafocal/newsgroups_bert.toml").model.options["pretrained"] is True


def test_adafocal_has_the_larger_sets_of_its_table_1() -> None:
    for name, data, network, size in (
        ("tiny_imagenet_resnet50", "tiny-imagenet", "resnet50", 64),
        ("tiny_imagenet_resnet110", "tiny-imagenet", "resnet110", 64),
        ("imagenet_resnet50", "imagenet", "resnet50", 224),
    ):
        config = load(f"adafocal/{name}.toml")
        assert (config.data.path, config.model.name) == (f"data/{data}", network)
        assert (config.data.options["size"], config.training.loss) == (size, "adafocal")


@pytest.mark.parametrize("name", [name for name in PAPERS if name.startswith("adafocal/")])
def test_the_temperature_of_adafocal_is_that_of_lowest_equal_mass_ece(name) -> None:
    assert load(name).posthoc.methods == ("temperature_ece_equal_mass", "ensemble", "spline", "smart")


# AU, Table 3 (coverage) and Appendix E.2 (nu).
AU = {
    "cifar10_resnet50": ("resnet50", 0.88, 0.1),
    "cifar10_resnet110": ("resnet110", 0.75, 0.1),
    "cifar10_wide_resnet": ("wide_resnet28_10", 0.8, 0.1),
    "cifar10_preresnet56": ("preresnet56", 0.75, 0.1),
    "cifar100_resnet50": ("resnet50", 0.75, 0.005),
    "cifar100_resnet110": ("resnet110", 0.8, 0.005),
    "cifar100_wide_resnet": ("wide_resnet28_10", 0.8, 0.1),
    "cifar100_preresnet56": ("preresnet56", 0.92, 0.01),
    "tiny_imagenet_vit_small": ("vit_small", 0.4, 0.05),
    "tiny_imagenet_swin_tiny": ("swin_tiny", 0.6, 0.05),
}


def test_the_losses_of_au_are_its_table_3() -> None:
    found = {}
    for name in AU:
        config = load(f"au/{name}.toml")
        loss = make_loss(config.training.loss)
        found[name] = (config.model.name, loss.coverage, loss.nu)
        # As printed: the gradient of Eq. 36, and nu in the units of the score.
        assert (loss.weight_gradient, loss.raw_scale) == (1.0, True)
    assert found == AU
    assert {f"au/{name}.toml" for name in AU} == {name for name in PAPERS if name.startswith("au/")}


@pytest.mark.parametrize("name", AU)
def test_the_training_of_au_is_its_appendix_d1(name) -> None:
    training = load(f"au/{name}.toml").training
    optimizer, schedule = training.optimizer, training.schedule
    assert (optimizer.name, optimizer.momentum, optimizer.weight_decay) == ("sgd", 0.9, 0.0005)
    assert training.keep == "nll"
    if name.startswith("cifar"):
        assert (optimizer.lr, training.batch_size, training.keep_after) == (0.1, 128, 40)
        assert (schedule.name, schedule.milestones, schedule.factor) == ("multistep", (60, 120, 160), 0.2)
        assert training.epochs == (200 if name.startswith("cifar10_") else 250)
    else:
        assert (optimizer.lr, training.batch_size, training.keep_after) == (1e-4, 256, 20)
        assert (schedule.name, training.epochs) == ("cosine", 90)


@pytest.mark.parametrize("name", [name for name in PAPERS if re.match("(smart|adafocal)/cifar", name)])
def test_smart_and_adafocal_train_350_epochs_in_three_steps(name) -> None:
    config = load(name)
    optimizer, schedule = config.training.optimizer, config.training.schedule
    assert (optimizer.name, optimizer.momentum, optimizer.weight_decay) == ("sgd", 0.9, 5e-4)
    assert (config.training.epochs, schedule.milestones) == (350, (150, 250))
    steps = [optimizer.lr * schedule.factor**passed for passed in range(3)]
    assert steps == pytest.approx([0.1, 0.01, 0.001])
    assert config.data.validation == 0.1  # 5,000 of 50,000
    smart = name.startswith("smart/")
    assert config.training.batch_size == (1024 if smart else 128)
    assert config.training.loss == ("cross_entropy" if smart else "adafocal")
    assert config.data.name == name.split("/")[1].split("_")[0]


@pytest.mark.parametrize("paper", ["smart", "adafocal"])
def test_smart_and_adafocal_have_the_same_networks_on_both_sets(paper) -> None:
    networks = {"resnet110": "resnet110", "wide_resnet": "wide_resnet28_10", "densenet121": "densenet121"}
    if paper == "adafocal":
        networks["resnet50"] = "resnet50"
    for data in ("cifar10", "cifar100"):
        for title, network in networks.items():
            assert load(f"{paper}/{data}_{title}.toml").model.name == network


def test_smart_compares_the_methods_of_its_table_1() -> None:
    # TS, PTS, CTS, Spline, GC, ProCal, FC and its own.
    table = {
        "temperature",
        "parameterized_paper",
        "class_temperature_paper",
        "spline",
        "group_paper",
        "proximity_paper",
        "feature_clipping(objective='ece')",
    }
    for name in PAPERS:
        if name.startswith("smart/"):
            assert set(load(name).posthoc.methods) == table | {"smart_paper"}
            assert load(name).posthoc.choose == "smart_paper"


def test_refcal_has_both_readings_of_jointly() -> None:
    joint, stages = load("refcal/cifar10_lt_joint.toml"), load("refcal/cifar10_lt.toml")
    assert joint.first_stage is None
    assert stages.first_stage is not None
    assert (joint.seed, joint.data, joint.model) == (stages.seed, stages.data, stages.model)
    assert (joint.encoder.loss, joint.encoder.joint) == (stages.encoder.loss, 0.5)


@pytest.mark.parametrize(
    "name", [name for name in PAPERS if name.startswith("refcal/") and load(name).first_stage]
)
def test_refcal_has_an_encoder_before_the_head_and_a_long_tail(name) -> None:
    config = load(name)
    assert (config.seed, config.data.imbalance) == (1234, 0.1)
    assert make_loss(config.encoder.loss).temperature == 0.1
    encoder, head = config.encoder, config.training
    assert (encoder.views, encoder.projection, encoder.epochs, encoder.batch_size) == (2, 128, 1000, 1024)
    optimizer = encoder.optimizer
    assert (optimizer.lr, optimizer.momentum, optimizer.weight_decay) == (0.5, 0.9, 1e-4)
    assert (encoder.schedule.name, encoder.schedule.final) == ("cosine", 0.001)
    assert encoder.schedule.warmup * encoder.epochs == 10
    assert (head.epochs, head.batch_size, head.optimizer.weight_decay) == (100, 512, 0)
    assert (head.schedule.milestones, head.schedule.factor) == ((60, 75, 90), 0.2)
    expected = "FocalLoss(gamma=1.0) + MDCALoss()" if "mdca" in name else "CrossEntropyLoss()"
    assert str(make_loss(head.loss)) == expected


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("smart/")])
def test_the_files_of_smart_fit_every_method_as_printed_where_ours_differs(name) -> None:
    posthoc = load(name).posthoc
    assert "smart_paper" in posthoc.methods
    assert [each for each in posthoc.methods if f"{each}_paper" in METHODS] == []
    assert f"{posthoc.choose}_paper" not in METHODS
