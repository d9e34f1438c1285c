"""The stages of a run: an encoder first, if the configuration asks for RefCal, and a classifier."""

from dataclasses import replace

from torch import nn

from calibrant.errors import InputError
from calibrant.losses.names import reads_embeddings
from calibrant.training.config.settings import EncoderSettings
from calibrant.training.datasets.dataset import LabelledData, Splits
from calibrant.training.encoder import FrozenEncoder, ProjectedEncoder, freeze_all_but_head
from calibrant.training.epoch_measures import ClassifierEvaluator, EncoderEvaluator, refinement
from calibrant.training.models.classifier import Classifier
from calibrant.training.network import Network, all_logits_and_features
from calibrant.training.own_code import make_any_loss
from calibrant.training.session import CLASSIFIER, ENCODER, Session
from calibrant.training.stage import Stage, run_stage


def train_encoder(
    session: Session, settings: EncoderSettings, network: Network, splits: Splits
) -> dict[str, float]:
    """Train the encoder, unless it is finished, and return its refinement on the test part."""
    evaluator = EncoderEvaluator(session, network, splits)
    if not session.is_over(ENCODER):
        loss = make_any_loss(settings.loss, n_classes=splits.n_classes, n_samples=len(splits.train))
        if not reads_embeddings(loss):
            raise InputError(
                "encoder.loss: expected a loss of embeddings, such as supervised_contrastive, "
                f"got {settings.loss!r}; losses of logits go into [training]"
            )
        module = ProjectedEncoder(network, projection=settings.projection, hidden=settings.hidden)
        views = settings.views or (2 if splits.train.kind == "image" else 1)
        data, flip = splits.train, _flips(session)
        stage = Stage(ENCODER, 0, settings, module, network, module, loss, data, views=views, flip=flip)
        run_stage(session, stage, evaluator)
    session.watcher.doing("measuring the encoder")
    return refinement(evaluator.logits(splits.test), splits.test.labels)


def train_classifier(session: Session, network: Network, splits: Splits) -> None:
    """Train the classifier, unless it is finished: the whole network, or its head on a frozen encoder."""
    if session.is_over(CLASSIFIER):
        return
    settings = session.config.training
    loss = make_any_loss(settings.loss, n_classes=splits.n_classes, n_samples=len(splits.train))
    if reads_embeddings(loss):
        raise InputError(
            f"training.loss: expected a loss of logits, got {settings.loss!r}, which reads embeddings; "
            "put it into [encoder]"
        )
    module, data = _trained_part(session, network, splits)
    stage = Stage(CLASSIFIER, 1, settings, module, network, network, loss, data, flip=_flips(session))
    run_stage(session, stage, ClassifierEvaluator(session, network, splits))


def _trained_part(session: Session, network: Network, splits: Splits) -> tuple[nn.Module, LabelledData]:
    """Return the module to train and its training data."""
    if session.config.encoder is None:
        return network, splits.train
    changing = session.config.training.augment and splits.train.kind == "image"
    if changing or not isinstance(network.model, Classifier):
        return FrozenEncoder(network), splits.train
    # Neither the weights before the head nor the inputs change, so the features are computed once.
    session.watcher.doing("computing the features")
    head = freeze_all_but_head(network)
    features = all_logits_and_features(session.fabric, network, splits.train)[1]
    assert features is not None
    return head, replace(splits.train, inputs=features, kind="embedding")


def _flips(session: Session) -> bool:
    """Return whether a mirror image still belongs to the same class."""
    return session.config.data.name not in ("digits", "svhn")
