"""Models by name: from logistic regression to the networks of the papers, each showing its features."""

from calibrant.training.models.by_name import MODELS, make_model
from calibrant.training.models.classifier import Classifier
from calibrant.training.models.densenet import DenseNet
from calibrant.training.models.huggingface import HuggingFaceClassifier
from calibrant.training.models.mlp import MLP
from calibrant.training.models.preresnet import PreResNet
from calibrant.training.models.resnet import ResNet
from calibrant.training.models.small_cnn import SmallCNN
from calibrant.training.models.text_cnn import TextCNN
from calibrant.training.models.vit import VisionTransformer
from calibrant.training.models.wide_resnet import WideResNet
from calibrant.training.models.wrapped import WrappedClassifier

__all__ = [
    "MLP",
    "MODELS",
    "Classifier",
    "DenseNet",
    "HuggingFaceClassifier",
    "PreResNet",
    "ResNet",
    "SmallCNN",
    "TextCNN",
    "VisionTransformer",
    "WideResNet",
    "WrappedClassifier",
    "make_model",
]
