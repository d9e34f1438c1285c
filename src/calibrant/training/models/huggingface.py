"""Sequence classifiers of the package ``transformers``: BERT and its relatives."""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from torch import Tensor, nn

from calibrant.errors import InputError, did_you_mean
from calibrant.extras import optional
from calibrant.inputs import check_count
from calibrant.training.models.classifier import Classifier, linear_modules


class HuggingFaceClassifier(Classifier):
    """A language model with a linear head, as a :class:`Classifier`.

    The features are the input of its last linear layer: the pooled text of an encoder, the last word of a
    decoder. Needs ``pip install 'calibrant[train]'``. Weights are read from safetensors files
    only, and code that comes with a checkpoint is never run.

    Args:
        n_classes: Number of classes.
        shape: ``(length,)`` of a text in tokens; other lengths work too.
        checkpoint: Name on the Hub, or a folder; without trained weights also an architecture, such as
            ``bert``, which needs no file.
        pretrained: Read the weights; otherwise only the configuration is read and the weights are random.
        **config: Changes to the configuration, such as ``hidden_dropout_prob``.

    References:
        Wolf et al., "Transformers: State-of-the-Art Natural Language Processing", EMNLP 2020.
    """

    def __init__(
        self,
        *,
        n_classes: int,
        shape: Sequence[int],
        checkpoint: str | Path,
        pretrained: bool = True,
        **config: object,
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        if len(shape) != 1:
            raise InputError(f"shape: expected (length,) of a text in tokens, got {tuple(shape)}")
        transformers = _transformers()
        try:
            trust = {"trust_remote_code": False}  # without this, transformers may ask at the terminal
            if not pretrained and str(checkpoint) in transformers.CONFIG_MAPPING:
                settings = transformers.AutoConfig.for_model(str(checkpoint), num_labels=n_classes)
            else:
                settings = transformers.AutoConfig.from_pretrained(checkpoint, num_labels=n_classes, **trust)
            _check_keys(config, vars(settings))
            settings.update(config)
            kind = transformers.AutoModelForSequenceClassification
            if pretrained:
                model = kind.from_pretrained(checkpoint, config=settings, use_safetensors=True, **trust)
            else:
                model = kind.from_config(settings, **trust)
        except InputError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"checkpoint: expected a sequence classifier of {n_classes} classes, or the body of one, "
                f"got {str(checkpoint)!r} ({reason})"
            ) from error
        self.head = _take_head(model, n_classes)
        self.model = model
        self.padding: int | None = settings.pad_token_id

    def features(self, inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return the input of the head, of shape ``(n, d)``.

        Args:
            inputs: The output of a tokenizer, or token ids of shape ``(n, length)``, whose padding is masked.
        """
        if isinstance(inputs, Tensor):
            inputs = {"input_ids": inputs}
            if self.padding is not None:
                inputs["attention_mask"] = (inputs["input_ids"] != self.padding).long()
        h: Tensor = self.model(**{name: value for name, value in inputs.items() if name != "labels"}).logits
        return h


def _transformers() -> ModuleType:
    with optional("huggingface"):
        return importlib.import_module("transformers")


def _check_keys(config: Mapping[str, object], known: Iterable[str]) -> None:
    """Refuse unknown keys, which transformers would ignore without a message."""
    for key in set(config) - set(known):
        hint = did_you_mean(key, known)
        raise InputError(f"model: expected a key of the checkpoint's configuration, got {key!r}{hint}")


def _take_head(model: nn.Module, n_classes: int) -> nn.Linear:
    """Remove the last linear layer and return it; the model then returns the features as its logits.

    A decoder applies its head to every word and picks the last word's logits; now it picks its features.
    """
    layers = linear_modules(model, n_classes)
    if not layers:
        raise InputError(f"checkpoint: expected a linear head, got {type(model).__name__}, which has none")
    name, head = layers[-1]
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity())
    return head
