"""A network with its calibrator: inputs in, calibrated log-probabilities out."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.pixelwise import PixelCalibration
from calibrant.posthoc.temperature import TemperatureScaling

Out = TypeVar("Out")

FeatureSource: TypeAlias = str | Callable[..., Tensor]

# How the pixels of score maps are sampled.
_SAMPLING = ("pixels_per_image", "ignore_index", "radius")


class CalibratedModel(nn.Module):
    """A network followed by its calibrator, as one module.

    Args:
        model: Maps inputs to logits of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1, or
            ``(n, k, h, w)`` for segmentation; an output with an attribute or key ``logits``, as Transformers
            models have, or a key ``out``, as torchvision's have, is accepted too.
        calibrator: A fitted calibrator; for segmentation a :class:`~calibrant.posthoc.PixelCalibration`.
        features: Where penultimate features come from, for methods that use them: the name of the submodule
            whose input they are (the head, such as ``"fc"``), or a function of the model's inputs.
    """

    def __init__(
        self, model: nn.Module, calibrator: Calibrator, *, features: FeatureSource | None = None
    ) -> None:
        super().__init__()
        if isinstance(features, str):
            _submodule(model, features)
        self.model = model
        self.calibrator = calibrator
        self.features = features

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        loader: Iterable[object],
        method: type[Calibrator] = TemperatureScaling,
        *,
        features: FeatureSource | None = None,
        seed: int = 0,
        **options: Any,  # noqa: ANN401 - each method has its own
    ) -> Self:
        """Run the model over held-out data in evaluation mode, and fit a calibrator to its logits.

        Dropout is off, because it would make the model less confident than it is when deployed; afterwards
        every submodule is in its former mode. If the model returns score maps, the method is fitted on a
        sample of the pixels of each image, as :class:`~calibrant.posthoc.PixelCalibration` does; only the
        sample is held in memory.

        Args:
            model: The trained network.
            loader: Yields batches: pairs of inputs and labels, or mappings with a key ``labels``, whose other
                entries are passed to the model by name. Weights of the samples stand third in a batch, or
                under the key ``weights``.
            method: Which calibrator to fit.
            features: Where penultimate features come from, see the class.
            seed: Seed of the fit.
            options: Options of the method; for score maps also ``pixels_per_image``, ``ignore_index`` and
                ``radius``.
        """
        sampling = {name: options.pop(name) for name in _SAMPLING if name in options}
        sample = PixelCalibration.sample(method, seed=seed, **sampling)
        logits, labels, rows, counts = [], [], [], []
        place = _device(model)
        with evaluating(model), torch.inference_mode():
            for batch in loader:
                inputs, target, weights = _parted(batch)
                z, h = _run(model, _moved(inputs, place), features)
                if z.ndim == 4:
                    sample.add(z, target)
                    continue
                logits.append(z)
                labels.append(torch.as_tensor(target).to(z.device))
                rows.append(h)
                if weights is not None:
                    counts.append(torch.as_tensor(weights).to(z.device))
        if sample.n_images:
            base = method.fit(sample.fitting_set(), **options).to(place)
            return cls(model, PixelCalibration(base, radius=sample.radius or 0))
        for name in sampling:
            raise InputError(f"{name}: expected a model that returns maps of shape (n, k, h, w), got rows")
        calibrator = _fit_rows(method, logits, labels, rows, counts, seed=seed, **options)
        return cls(model, calibrator.to(logits[0].device), features=features)

    def forward(self, inputs: object) -> Tensor:
        """Return calibrated log-probabilities in the shape of the logits; a mapping is passed on by name."""
        z, h = _run(self.model, inputs, self.features)
        calibrated: Tensor = self.calibrator(z, h)
        return calibrated

    @torch.no_grad()
    def predict_proba(self, inputs: object) -> Tensor:
        """Return calibrated probabilities in the shape of the logits, with the model in evaluation mode."""
        with evaluating(self):
            probs: Tensor = self(_moved(inputs, _device(self.model))).exp()
        return probs


def _fit_rows(
    method: type[Calibrator],
    logits: list[Tensor],
    labels: list[Tensor],
    rows: list[Tensor | None],
    counts: list[Tensor],
    **options: Any,  # noqa: ANN401 - each method has its own
) -> Calibrator:
    """Fit a method to the logits, labels, features and weights of batches."""
    if not logits:
        raise InputError("loader: expected at least one batch, got none")
    if counts and len(counts) < len(logits):
        raise InputError("loader: expected weights in all batches or in none, got some in a part of them")
    if counts:
        options["weights"] = torch.cat(counts)
    given = [h for h in rows if h is not None]
    features = torch.cat(given) if given else None
    return method.fit(torch.cat(logits), torch.cat(labels), features=features, **options)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode, and every part of it back into its own mode afterwards.

    Example:
        >>> network = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with evaluating(network):
        ...     [part.training for part in network.modules()]
        [False, False, False]
        >>> [part.training for part in network.modules()]
        [True, True, False]
    """
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def _run(
    model: nn.Module,
    inputs: object,
    features: FeatureSource | None,
) -> tuple[Tensor, Tensor | None]:
    """Return logits of shape ``(n, k)`` and features of shape ``(n, d)``."""
    if not isinstance(features, str):
        z = logits_of(_called(model, inputs))
        return z, None if features is None else _called(features, inputs)
    seen: list[Tensor] = []
    hook = _submodule(model, features).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        z = logits_of(_called(model, inputs))
    finally:
        hook.remove()
    if len(seen) != 1:
        raise InputError(
            f"features: expected a submodule that runs once, but {features!r} ran {len(seen)} times; "
            "name the model's last layer"
        )
    return z, seen[0].flatten(start_dim=1)


def _called(function: Callable[..., Out], inputs: object) -> Out:
    return function(**inputs) if isinstance(inputs, Mapping) else function(inputs)


def logits_of(output: object) -> Tensor:
    """Return the logits in the output of a network, shape ``(n, k)`` or ``(n, k, h, w)``."""
    if isinstance(output, Mapping):
        z = output.get("logits", output.get("out"))
    else:
        z = getattr(output, "logits", output)
    if not isinstance(z, Tensor) or z.ndim not in (1, 2, 4):
        raise InputError(
            "model: expected logits of shape (n, k), (n,) for a binary problem, or (n, k, h, w), got "
            + (f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(output).__name__)
        )
    if z.ndim == 4 or (z.ndim == 2 and z.shape[1] > 1):
        return z
    return torch.stack([torch.zeros_like(z.flatten()), z.flatten()], dim=1)


def _submodule(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        known = ", ".join(child for child, _ in model.named_children())
        raise InputError(
            f"features: expected the name of a submodule, got {name!r}; there are {known}"
        ) from None


def _parted(batch: object) -> tuple[object, ArrayLike, ArrayLike | None]:
    """Return the inputs, the labels, and the weights if there are any."""
    if isinstance(batch, Mapping) and "labels" in batch:
        inputs = {name: value for name, value in batch.items() if name not in ("labels", "weights")}
        return inputs, batch["labels"], batch.get("weights")
    if isinstance(batch, (tuple, list)) and len(batch) in (2, 3):
        return batch[0], batch[1], batch[2] if len(batch) == 3 else None
    raise InputError(
        "loader: expected pairs of inputs and labels, or mappings with a key 'labels', got "
        f"{type(batch).__name__}"
    )


def _moved(inputs: object, device: torch.device) -> object:
    if isinstance(inputs, Mapping):
        return {name: _moved(value, device) for name, value in inputs.items()}
    return inputs.to(device) if isinstance(inputs, Tensor) else inputs


def _device(model: nn.Module) -> torch.device:
    first = next(iter(model.parameters()), None)
    return torch.device("cpu") if first is None else first.device
