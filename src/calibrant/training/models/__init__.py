"""Networks by name, from logistic regression to those of the papers, each with its features."""

from calibrant.training.models.by_name import MODELS, make_model
from calibrant.training.models.classifier import Classifier, WrappedClassifier
from calibrant.training.models.densenet import DenseNet
from calibrant.training.models.huggingface import HuggingFaceClassifier
from calibrant.training.models.resnet import BottleneckResNet, PreResNet, ResNet, WideResNet
from calibrant.training.models.small import MLP, SmallCNN, TextCNN
from calibrant.training.models.vision_transformers import SwinTransformer, VisionTransformer

__all__ = [
    "MLP",
    "MODELS",
    "BottleneckResNet",
    "Classifier",
    "DenseNet",
    "HuggingFaceClassifier",
    "PreResNet",
    "ResNet",
    "SmallCNN",
    "SwinTransformer",
    "TextCNN",
    "VisionTransformer",
    "WideResNet",
    "WrappedClassifier",
    "make_model",
]
