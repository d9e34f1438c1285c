"""The stages of a run: an encoder first, if the configuration asks for it, and a classifier."""

from dataclasses import replace

from torch import nn

from calibrant.errors import InputError
from calibrant.losses.loss import Loss
from calibrant.losses.names import reads_embeddings
from calibrant.training.config.settings import EncoderSettings, TrainingSettings
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.encoder import FrozenEncoder, JointEncoder, ProjectedEncoder, freeze_all_but_head
from calibrant.training.epoch_measures import ClassifierEvaluator, EncoderEvaluator, refinement
from calibrant.training.joint_loss import JointLoss
from calibrant.training.models.classifier import Classifier
from calibrant.training.network import Network, all_logits_and_features
from calibrant.training.own_code import make_any_loss
from calibrant.training.session import CLASSIFIER, ENCODER, Session
from calibrant.training.stage import Stage, run_stage
from calibrant.training.views import encoder_views, joint_views, training_views


def train_encoder(
    session: Session, settings: EncoderSettings, network: Network, splits: Splits
) -> dict[str, float]:
    """Train the encoder, unless it is finished, and return its refinement on the test part."""
    evaluator = EncoderEvaluator(session, network, splits)
    if not session.is_over(ENCODER):
        loss = _encoder_loss(settings, splits)
        module = ProjectedEncoder(network, projection=settings.projection, hidden=settings.hidden)
        views = encoder_views(settings, splits.train.kind, mirrored=_flips(session))
        stage = Stage(ENCODER, 0, settings, module, network, module, loss, splits.train, views)
        run_stage(session, stage, evaluator)
    session.watcher.doing("measuring the encoder")
    return refinement(evaluator.logits(splits.test), splits.test.labels)


def train_classifier(session: Session, network: Network, splits: Splits) -> None:
    """Train the classifier, unless it is finished: the whole network, or its head on a frozen encoder."""
    if session.is_over(CLASSIFIER):
        return
    make_stage = _classifier_stage if session.config.encoder is session.config.first_stage else _joint_stage
    stage = make_stage(session, network, splits)
    run_stage(session, stage, ClassifierEvaluator(session, network, splits))


def _classifier_stage(session: Session, network: Network, splits: Splits) -> Stage:
    settings = session.config.training
    loss = _classifier_loss(settings, splits)
    module, data = _trained_part(session, network, splits)
    views = training_views(settings, data.kind, mirrored=_flips(session))
    return Stage(CLASSIFIER, 1, settings, module, network, network, loss, data, views)


def _joint_stage(session: Session, network: Network, splits: Splits) -> Stage:
    """Return the stage that trains the whole network with the classifier's and the encoder's loss."""
    settings, encoder = session.config.training, session.config.encoder
    assert encoder is not None
    assert encoder.joint is not None
    loss = JointLoss(_classifier_loss(settings, splits), _encoder_loss(encoder, splits), weight=encoder.joint)
    module = JointEncoder(network, projection=encoder.projection, hidden=encoder.hidden)
    views = joint_views(settings, encoder, splits.train.kind, mirrored=_flips(session))
    return Stage(CLASSIFIER, 1, settings, module, network, module, loss, splits.train, views)


def _classifier_loss(settings: TrainingSettings, splits: Splits) -> Loss:
    loss = make_any_loss(settings.loss, n_classes=splits.n_classes, n_samples=len(splits.train))
    if reads_embeddings(loss):
        raise InputError(
            f"training.loss: expected a loss of logits, got {settings.loss!r}, which reads embeddings; "
            "put it into [encoder]"
        )
    return loss


def _encoder_loss(settings: EncoderSettings, splits: Splits) -> Loss:
    loss = make_any_loss(settings.loss, n_classes=splits.n_classes, n_samples=len(splits.train))
    if not reads_embeddings(loss):
        raise InputError(
            "encoder.loss: expected a loss of embeddings, such as supervised_contrastive, "
            f"got {settings.loss!r}; losses of logits go into [training]"
        )
    return loss


def _trained_part(session: Session, network: Network, splits: Splits) -> tuple[nn.Module, LabelledData]:
    """Return the module to train and its training data."""
    if session.config.first_stage is None:
        return network, splits.train
    changing = session.config.training.augment and splits.train.kind == "image"
    if changing or not isinstance(network.model, Classifier):
        return FrozenEncoder(network), splits.train
    # Neither the weights before the head nor the inputs change, so the features are computed once.
    session.watcher.doing("computing the features")
    head = freeze_all_but_head(network)
    features = all_logits_and_features(session.fabric, network, splits.train)[1]
    assert features is not None
    return head, replace(splits.train, inputs=features, kind="embedding", stored=None)


def _flips(session: Session) -> bool:
    """Return whether a mirror image still belongs to the same class."""
    return session.config.data.name not in ("digits", "svhn")
