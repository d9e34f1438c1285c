"""Sequence classifiers of the package ``transformers``: BERT and its relatives."""

import difflib
import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from torch import Tensor, nn

from calibrant.errors import InputError, MissingPackageError
from calibrant.inputs import check_count
from calibrant.training.models.classifier import Classifier


class HuggingFaceClassifier(Classifier):
    """A language model with a linear head for classes, in the form that every other model here has.

    Features are what its last linear layer sees: the pooled text of an encoder, the last word of a decoder.
    Needs ``pip install 'calibrant[train]'``. Weights are read from safetensors files only, and code that
    comes with a checkpoint is not run.

    Args:
        n_classes: Number of classes.
        shape: ``(length,)`` of a text in tokens; other lengths work too.
        checkpoint: Name on the Hub, or a folder.
        pretrained: Read the weights too; else only the configuration, and the weights are random.
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
            settings = transformers.AutoConfig.from_pretrained(checkpoint, num_labels=n_classes)
            _check_keys(config, vars(settings))
            settings.update(config)
            kind = transformers.AutoModelForSequenceClassification
            if pretrained:
                model = kind.from_pretrained(checkpoint, config=settings, use_safetensors=True)
            else:
                model = kind.from_config(settings)
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
        """Return what the head sees, of shape ``(n, d)``.

        Args:
            inputs: What a tokenizer returns, or token numbers alone of shape ``(n, length)``, of which those
                that are padding are not looked at.
        """
        if isinstance(inputs, Tensor):
            inputs = {"input_ids": inputs}
            if self.padding is not None:
                inputs["attention_mask"] = (inputs["input_ids"] != self.padding).long()
        h: Tensor = self.model(**{name: value for name, value in inputs.items() if name != "labels"}).logits
        return h

    def forward(self, inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return logits of shape ``(n, k)``."""
        logits: Tensor = self.head(self.features(inputs))
        return logits

    def logits_and_features(self, inputs: Tensor | Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return both from one pass, of shapes ``(n, k)`` and ``(n, d)``."""
        h = self.features(inputs)
        return self.head(h), h


def _transformers() -> ModuleType:
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingPackageError("huggingface", "transformers", "train") from None


def _check_keys(config: Mapping[str, object], known: Iterable[str]) -> None:
    """Refuse what the configuration does not know; transformers would pass over it in silence."""
    for key in set(config) - set(known):
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"model: expected a key of the checkpoint's configuration, got {key!r}{hint}")


def _take_head(model: nn.Module, n_classes: int) -> nn.Linear:
    """Take the last linear layer out, so that what the model returns as logits are the features.

    A decoder has a head on every word and picks the last word's logits; now it picks its features.
    """
    found = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == n_classes
    ]
    if not found:
        raise InputError(f"checkpoint: expected a linear head, got {type(model).__name__}, which has none")
    name, head = found[-1]
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity())
    return head
