"""The stages that a configuration can ask for: an encoder first, if it is RefCal, and a classifier."""

from dataclasses import replace

from torch import nn

from calibrant.errors import InputError
from calibrant.losses.loss import Loss
from calibrant.losses.names import make_loss, reads_embeddings
from calibrant.training.config.settings import EncoderSettings
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.encoder import FrozenEncoder, ProjectedEncoder, freeze_all_but_head
from calibrant.training.epochs import run_stage
from calibrant.training.measure import ClassifierMeasure, EncoderMeasure, refinement
from calibrant.training.models.classifier import Classifier
from calibrant.training.network import Network
from calibrant.training.predict import all_logits_and_features
from calibrant.training.session import CLASSIFIER, ENCODER, Session
from calibrant.training.stage import Stage


def train_encoder(
    session: Session, settings: EncoderSettings, network: Network, splits: Splits
) -> dict[str, float]:
    """Train the encoder, unless that is done, and return how refined it is on the test part."""
    config = session.config
    measure = EncoderMeasure(
        session.fabric, network, splits, samples=config.output.dynamics, seed=config.seed
    )
    if not session.is_over(ENCODER):
        loss = _loss(settings.loss, splits)
        if not reads_embeddings(loss):
            raise InputError(
                "encoder.loss: expected a loss of embeddings, such as supervised_contrastive, "
                f"got {settings.loss!r}; losses of logits go into [training]"
            )
        module = ProjectedEncoder(network, projection=settings.projection, hidden=settings.hidden)
        stage = Stage(
            name=ENCODER,
            number=0,
            settings=settings,
            module=module,
            network=network,
            whole=module,
            loss=loss,
            data=splits.train,
            views=settings.views or (2 if splits.train.kind == "image" else 1),
            flip=_flips(session),
        )
        run_stage(session, stage, measure)
    session.watcher.doing("measuring the encoder")
    return refinement(measure.logits(splits.test), splits.test.labels)


def train_classifier(session: Session, network: Network, splits: Splits) -> None:
    """Train the classifier, unless that is done: all of it, or its head on a frozen encoder."""
    if session.is_over(CLASSIFIER):
        return
    config, settings = session.config, session.config.training
    loss = _loss(settings.loss, splits)
    if reads_embeddings(loss):
        raise InputError(
            f"training.loss: expected a loss of logits, got {settings.loss!r}, which reads embeddings; "
            "put it into [encoder]"
        )
    module, data = _trained_part(session, network, splits)
    measure = ClassifierMeasure(
        session.fabric,
        network,
        splits,
        samples=config.output.dynamics,
        batch_size=settings.batch_size,
        seed=config.seed,
    )
    stage = Stage(
        name=CLASSIFIER,
        number=1,
        settings=settings,
        module=module,
        network=network,
        whole=network,
        loss=loss,
        data=data,
        flip=_flips(session),
    )
    run_stage(session, stage, measure)


def _trained_part(session: Session, network: Network, splits: Splits) -> tuple[nn.Module, LabelledData]:
    """Return what is trained, and on what inputs."""
    if session.config.encoder is None:
        return network, splits.train
    changing = session.config.training.augment and splits.train.kind == "image"
    if changing or not isinstance(network.model, Classifier):
        return FrozenEncoder(network), splits.train
    # Nothing before the head changes, neither weights nor inputs, so its features are computed once.
    session.watcher.doing("computing the features")
    head = freeze_all_but_head(network)
    features = all_logits_and_features(session.fabric, network, splits.train)[1]
    assert features is not None
    return head, replace(splits.train, inputs=features, kind="embedding")


def _loss(text: str, splits: Splits) -> Loss:
    return make_loss(text, n_classes=splits.n_classes, n_samples=len(splits.train))


def _flips(session: Session) -> bool:
    """Whether a mirror image still shows the same thing."""
    return session.config.data.name != "digits"
