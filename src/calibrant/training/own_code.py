"""Code of the user's own in a configuration, ``module:name``: networks, losses and data.

It is imported and called, so take such text only from those who may run code. What the folder of a run names
is never run (:func:`calibrant.training.folder.check_code`).
"""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from calibrant.errors import CalibrantError, InputError, did_you_mean
from calibrant.expressions import parse_expression
from calibrant.losses.loss import Loss
from calibrant.losses.names import make_loss
from calibrant.training.config.settings import Config

_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")


def is_code(name: str) -> bool:
    """Return whether a name stands for code to import, ``"module:name"``, instead of one of ours."""
    return ":" in name


def named_code(config: Config) -> dict[str, str]:
    """Return the settings of a configuration that name code, by their keys."""
    named = {"model.name": config.model.name, "data.name": config.data.name}
    named["training.loss"] = config.training.loss
    if config.encoder is not None:
        named["encoder.loss"] = config.encoder.loss
    return {key: name for key, name in named.items() if is_code(name)}


def imported(name: str, what: str) -> Callable[..., Any]:
    """Import the function or class that ``"module:name"`` names; ``what`` begins the message of an error."""
    module_name, _, path = name.partition(":")
    if not module_name or module_name.startswith(".") or not path:
        raise InputError(f"{what}: expected 'module:factory', got {name!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its own imports does not
        raise InputError(
            f"{what}: expected a module that can be imported, got {module_name!r}; "
            "is it installed, or its folder in PYTHONPATH?"
        ) from None
    found = getattr(module, path, None)
    if not callable(found):
        hint = did_you_mean(path, vars(module))
        raise InputError(f"{what}: expected a factory in {module_name}, got {path!r}, which is none{hint}")
    factory: Callable[..., Any] = found
    return factory


def source_files(text: str) -> list[Path]:
    """Return the files of the modules that a text names as ``module:name``, as far as there are such."""
    files = []
    for match in _NAME.finditer(text):
        try:
            found = find_spec(match[1])
        except (ImportError, ValueError):  # no such package
            continue
        if found is not None and found.origin is not None and Path(found.origin).is_file():
            files.append(Path(found.origin))
    return files


def make_any_loss(text: str, *, n_classes: int, n_samples: int) -> Loss:
    """Make a loss as :func:`~calibrant.losses.names.make_loss` does, importing what ``module:Class`` names.

    The class takes its options and, if it has arguments of these names, ``n_classes`` and ``n_samples``. It
    is a :class:`Loss`, or any module that takes logits and labels; a method ``update(logits, labels)`` gets
    the validation set after each epoch.
    """
    sizes = {"n_classes": n_classes, "n_samples": n_samples}
    if not is_code(text) or parse_expression(text) is not None:
        return make_loss(text, n_classes=n_classes, n_samples=n_samples)
    own = {match[0]: match[0].replace(":", "__").replace(".", "_") for match in _NAME.finditer(text)}
    makers = {short: _loss_maker(name, sizes) for name, short in own.items()}
    try:
        short_text = _NAME.sub(lambda match: own[match[0]], text)
        return make_loss(short_text, n_classes=n_classes, n_samples=n_samples, others=makers)
    except CalibrantError as error:
        message = str(error)
        for name, short in own.items():
            message = message.replace(short, name)
        raise type(error)(message) from None


def _loss_maker(name: str, sizes: Mapping[str, int]) -> Callable[..., Loss]:
    factory = imported(name, "loss")

    def make(**options: Any) -> Loss:  # noqa: ANN401  # each loss has its own
        takes = inspect.signature(factory).parameters
        made = factory(**{size: sizes[size] for size in sizes if size in takes}, **options)
        if not isinstance(made, nn.Module):
            raise InputError(f"loss: expected {name} to return an nn.Module, got {type(made).__name__}")
        return made if isinstance(made, Loss) else OwnLoss(made)

    return make


class OwnLoss(Loss):
    """A module of logits and labels, as one of our losses."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    @property
    def validates(self) -> bool:  # type: ignore[override]  # by whether the module learns from validation
        """Whether the module has an ``update``, which gets the validation set."""
        return hasattr(self.module, "update")

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        value: Tensor = self.module(logits, labels)
        return value

    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Pass the validation set on, if the module takes it."""
        if self.validates:
            self.module.update(logits, labels)  # type: ignore[operator]  # checked above

    def extra_repr(self) -> str:
        """Return what the module says about itself."""
        return repr(self.module)
