"""RefCal's joint training: one stage, the classifier's loss on logits and the encoder's on unit features."""

import re

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from calibrant.errors import InputError
from calibrant.losses import CRLLoss, CrossEntropyLoss, SupervisedContrastiveLoss
from calibrant.papers.experiment import load_experiment
from calibrant.papers.training import configurations
from calibrant.training import load_network, train
from calibrant.training.config import config_from_table
from calibrant.training.config.settings import EncoderSettings, ModelSettings, TrainingSettings
from calibrant.training.datasets import LabelledData, load_dataset
from calibrant.training.encoder import JointEncoder
from calibrant.training.joint_loss import JointLoss
from calibrant.training.models.classifier import WrappedClassifier
from calibrant.training.network import Network, make_network
from calibrant.training.outcome import title_of_run
from calibrant.training.session import Watcher
from calibrant.training.views import Views, encoder_views, joint_views
from tests.training.small import BrokenOffError, CrashAfter, differing, final_weights, small_config, untimed

JOINT = ("encoder.joint=0.5", "encoder.projection=8")


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits", limit=100)


class Stages(Watcher):
    def __init__(self):
        self.seen = []

    def started(self, stage, **_):
        self.seen.append(stage)


def test_a_joint_run_has_one_stage_and_its_network_loads_without_the_projection(tmp_path, digits):
    stages = Stages()
    run = train(small_config(*JOINT), tmp_path, watcher=stages)
    assert stages.seen == ["classifier"]
    assert list(run.refinement) == ["classifier"]
    assert [row["stage"] for row in run.metrics] == ["classifier"] * 3
    weights = final_weights(tmp_path)
    assert not any("projection" in name for name in weights)
    images = digits.test.inputs[:20]
    torch.testing.assert_close(load_network(tmp_path)(images), run.network(images))
    assert run.predictions["test"].metadata["encoder"] == "0.5 * supervised_contrastive(temperature=0.1)"


def test_the_contrastive_term_brings_samples_of_one_class_together(tmp_path, digits):
    def likeness(network):
        """Return the mean cosine of pairs of one class minus that of others."""
        h, labels = network.features(digits.test.inputs), digits.test.labels
        cosines = cosine_similarity(h[:, None], h[None], dim=2)
        same = labels[:, None] == labels
        return float(cosines[same].mean() - cosines[~same].mean())

    long = ["training.epochs=25", "training.optimizer.name=adam", "training.optimizer.lr=0.01"]
    long += ["training.augment=false", "output.dynamics=0"]
    plain = train(small_config(*long), tmp_path / "plain")
    joint = train(small_config(*long, "encoder.joint=2.0", "encoder.hidden=0"), tmp_path / "joint")
    with torch.no_grad():
        assert likeness(joint.network) > likeness(plain.network) + 0.05


def test_the_loss_is_the_sum_of_what_each_loss_says_of_its_own_outputs():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 3, generator=generator)
    embeddings = torch.randn(8, 4, generator=generator)
    labels = torch.arange(8) % 3
    loss = JointLoss(CrossEntropyLoss(), SupervisedContrastiveLoss(temperature=0.2), weight=0.25)
    expected = cross_entropy(logits, labels) + 0.25 * SupervisedContrastiveLoss(temperature=0.2)(
        embeddings, labels
    )
    torch.testing.assert_close(loss((logits, embeddings), labels), expected)
    assert repr(loss) == "JointLoss(CrossEntropyLoss(), 0.25 * SupervisedContrastiveLoss(temperature=0.2))"


def test_classes_that_are_alone_in_the_batch_give_the_classifiers_loss_and_finite_gradients():
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    embeddings = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    labels = torch.arange(4)
    value = JointLoss(CrossEntropyLoss(), SupervisedContrastiveLoss(), weight=0.5)(
        (logits, embeddings), labels
    )
    torch.testing.assert_close(value, cross_entropy(logits, labels))
    value.backward()
    assert logits.grad.isfinite().all()
    assert embeddings.grad.isfinite().all()


def test_the_memory_of_the_classifiers_loss_is_that_of_the_sum():
    loss = JointLoss(CRLLoss(n_samples=4), SupervisedContrastiveLoss(), weight=0.5)
    assert loss.needs == ("indices",)
    assert not loss.validates
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]], requires_grad=True)
    # Two views of the samples 1 and 3.
    outputs = (torch.cat([logits, logits]), torch.ones(4, 2))
    loss(outputs, torch.tensor([0, 1, 0, 1]), indices=torch.tensor([1, 3, 1, 3]))
    loss.update()
    assert loss.classifier.seen.tolist() == [0, 2, 0, 2]
    assert len(loss.history) == 1


@pytest.mark.parametrize("hidden", [None, 0, 7])
def test_a_joint_encoder_gives_the_networks_logits_and_unit_vectors(digits, hidden):
    network = make_network(ModelSettings("mlp", {"hidden": [16]}), digits).eval()
    joint = JointEncoder(network, projection=5, hidden=hidden).eval()
    images = digits.train.inputs[:9]
    logits, vectors = joint(images)
    torch.testing.assert_close(logits, network(images))
    assert vectors.shape == (9, 5)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(9))
    (logits.sum() + vectors.square().sum()).backward()
    assert all(parameter.grad is not None for parameter in joint.parameters())


def test_a_network_without_a_linear_head_is_refused():
    network = Network(WrappedClassifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU()), n_classes=3))
    with pytest.raises(InputError, match="expected a model with a linear head"):
        JointEncoder(network, projection=4, hidden=0)


KINDS = {
    "two views": ("model.options.dropout=0.3",),
    "one view as it is": ("encoder.views=1", "training.augment=false"),
    "adafocal": ("training.loss=adafocal(n_bins=5)", "training.keep=nll"),
    "crl": ("training.loss=crl",),
    "batch normalisation, colours": (
        "model.name=small_cnn",
        "model.options.widths=[4, 8]",
        "encoder.views_by=colour",
    ),
    "bfloat16": ("hardware.precision=bf16-mixed", "training.augment=false"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_joint_run_that_was_broken_off_ends_as_one_that_was_not(tmp_path, kind):
    config = small_config(*JOINT, *KINDS[kind])
    whole = train(config, tmp_path / "whole")
    assert all(row["train_loss"] > 0 for row in whole.metrics)
    for place in ((2,), (3, 2)):
        folder = tmp_path / f"broken-{len(place)}"
        with pytest.raises(BrokenOffError):
            train(config, folder, watcher=CrashAfter("classifier", *place))
        resumed = train(config, folder, resume=True)
        assert differing(final_weights(folder), final_weights(whole.folder)) == []
        assert untimed(resumed.metrics) == untimed(whole.metrics)
        again = train(config, folder, resume=True)
        assert differing(final_weights(again.folder), final_weights(whole.folder)) == []


def test_a_run_of_two_stages_is_not_continued_jointly(tmp_path):
    config = small_config("encoder.projection=8")
    with pytest.raises(BrokenOffError):
        train(config, tmp_path, watcher=CrashAfter("encoder", 2))
    with pytest.raises(InputError, match=r"^resume: expected .* got another encoder\.joint"):
        train(small_config(*JOINT), tmp_path, resume=True)


@pytest.mark.parametrize(
    ("training", "encoder", "kind", "expected"),
    [
        ({}, {}, "image", Views(2, "shift", None, True)),
        ({}, {}, "embedding", Views(1)),
        ({}, {"views": 3}, "embedding", Views(3)),
        ({"augment": False}, {}, "image", Views(1)),
        ({}, {"augment": False}, "image", Views(1)),
        ({"augment": False}, {"views": 2}, "image", Views(2)),
        ({}, {"views": 1}, "image", Views(1, "shift", None, True)),
        ({"padding": 3, "flip": False}, {}, "image", Views(2, "shift", 3, False)),
        ({"padding": 3, "flip": False}, {"padding": 1, "flip": True}, "image", Views(2, "shift", 1, True)),
        ({}, {"views_by": "colour"}, "image", Views(2, "colour", None, True)),
        ({"augment": False}, {"views_by": "crop"}, "image", Views(1)),
    ],
)
def test_both_tables_decide_what_joint_training_sees(training, encoder, kind, expected):
    views = joint_views(
        TrainingSettings(**training), EncoderSettings(joint=1.0, **encoder), kind, mirrored=True
    )
    assert views == expected


def test_an_encoder_of_its_own_stage_has_two_views_even_without_augmentation():
    assert encoder_views(EncoderSettings(augment=False), "image", mirrored=True) == Views(2)
    crops = encoder_views(EncoderSettings(views_by="crop"), "image", mirrored=False)
    assert crops == Views(2, "crop", None, False)


def test_views_by_colour_are_crops_with_other_colours():
    images = torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    data = LabelledData(images, torch.arange(6), None, "image")

    def seen(by):
        generator = torch.Generator().manual_seed(3)
        return Views(2, by, None, True).of(
            data, torch.arange(6), generator=generator, part=(6, slice(None)), device=torch.device("cpu")
        )

    crops, colours = seen("crop"), seen("colour")
    assert not torch.equal(crops[0], crops[1])
    assert not torch.equal(crops[0], colours[0])
    assert not torch.equal(crops[0], images)
    assert all(torch.equal(a, b) for a, b in zip(seen("colour"), colours, strict=True))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"joint": 0.0}, "encoder.joint: expected a positive number, got 0.0"),
        ({"joint": -1.0}, "encoder.joint: expected a positive number, got -1.0"),
        (
            {"joint": 0.5, "epochs": 7},
            "encoder.epochs: expected none beside joint, which has no stage of its own, got 7; set "
            "training.epochs instead",
        ),
        ({"joint": 0.5, "batch_size": 7}, "encoder.batch_size: expected none beside joint"),
        ({"joint": 0.5, "clip_gradient": 1.0}, "encoder.clip_gradient: expected none beside joint"),
        (
            {"joint": 0.5, "optimizer": {"name": "adam"}},
            "encoder.optimizer: expected none beside joint, which has no stage of its own, got one; set "
            "training.optimizer instead",
        ),
        ({"joint": 0.5, "schedule": {"warmup": 0.1}}, "encoder.schedule: expected none beside joint"),
        ({"views_by": "tilt"}, "encoder.views_by: expected 'shift' or 'crop' or 'colour'"),
    ],
)
def test_settings_of_a_stage_of_its_own_are_refused_beside_joint(table, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        config_from_table({"encoder": table})


def test_a_loss_of_logits_is_refused_as_the_contrastive_term(tmp_path):
    with pytest.raises(InputError, match="^encoder.loss: expected a loss of embeddings"):
        train(small_config(*JOINT, "encoder.loss=brier"), tmp_path / "a")
    with pytest.raises(InputError, match="^training.loss: expected a loss of logits"):
        train(small_config(*JOINT, "training.loss=supervised_contrastive"), tmp_path / "b")


def test_the_title_of_a_run_says_whether_the_encoder_was_first_or_beside():
    joint = title_of_run(small_config("encoder.joint=0.5", "training.loss=seca"))
    assert joint.endswith("seca + 0.5 * supervised_contrastive(temperature=0.1)")
    stages = title_of_run(small_config("encoder.projection=8", "training.loss=seca"))
    assert stages.endswith("supervised_contrastive(temperature=0.1), then seca")


@pytest.mark.parametrize("name", ["memorised_images", "memorised_embeddings"])
def test_the_joint_recipes_of_the_experiments_are_configurations(name):
    jobs = [job for job in load_experiment(name).jobs("quick", seeds=1) if "joint" in job.key["method"]]
    assert jobs
    for job in jobs:
        (table,) = configurations(job.key, job.settings, seed=0, data=None)
        config = config_from_table(table)
        assert config.first_stage is None
        assert config.encoder.joint == 0.5
