"""Integrations with other libraries: one module each, named after the library, which has to be installed."""

import importlib as _importlib
import typing as _typing

_MODULES = ("lightning", "mlflow", "onnx", "sklearn", "torchmetrics", "transformers")

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return _importlib.import_module(f"calibrant.integrations.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_MODULES, *(name for name in globals() if name.startswith("__"))})
