"""The validation set in a training loop of another library: which samples count, and what is logged."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.after_temperature import nll_after_temperature
from calibrant.evaluation.evaluate import evaluate
from calibrant.losses.loss import Loss
from calibrant.losses.parts.batch import IGNORED, rows
from calibrant.losses.parts.global_batch import global_sum, world_size
from calibrant.metrics.names import resolve_measures
from calibrant.pixels.images import images_of_batches
from calibrant.pixels.measures import PixelMeasures, empty_sums
from calibrant.posthoc.score_maps import IGNORED_PIXEL

#: The name of the NLL after a fitted temperature, by which epochs are chosen; the catalogue has all others.
AFTER_TEMPERATURE = "nll_after_temperature"

#: The measures that are logged by default.
DEFAULT_MEASURES = ("accuracy", "nll", AFTER_TEMPERATURE, "brier", "ece", "ece_equal_mass")


def logged_measures(measures: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the measures that a callback logs, in their order; others are refused."""
    named = resolve_measures(measures) if measures in ("core", "all") else measures
    named = [named] if isinstance(named, str) else list(named)
    resolve_measures([name for name in named if name != AFTER_TEMPERATURE])
    return tuple(named)


def validation_rows(logits: Tensor, labels: Tensor, loss: Loss | None) -> tuple[Tensor, Tensor]:
    """Return logits and labels on the CPU, without the samples that the loss, or a term of it, ignores."""
    z, y, _ = rows(logits.detach(), labels, ignore_index=_ignored(loss))
    return z.cpu(), y.cpu()


def validation_weights(weights: Tensor, labels: Tensor, loss: Loss | None) -> Tensor:
    """Return the weights of the samples of :func:`validation_rows`, on the CPU."""
    if weights.shape != labels.shape:
        raise InputError(
            f"weights: expected one for each label, shape {tuple(labels.shape)}, got {tuple(weights.shape)}"
        )
    return weights.detach()[labels != _ignored(loss)].cpu().double()


def _ignored(loss: Loss | None) -> int:
    labels_to_ignore = [getattr(part, "ignore_index", None) for part in loss.modules()] if loss else []
    return next((label for label in labels_to_ignore if label is not None), IGNORED)


class ValidationPixels:
    """The score maps of a validation, as sums: no pixel is held in memory.

    Args:
        n_bins: Number of bins of the binned measures.
        ignore_index: The label of pixels that do not count; by default that of the loss, or 255 without one.
    """

    def __init__(self, *, n_bins: int, ignore_index: int | None = None) -> None:
        self.measures, self._ignore_index, self._k = PixelMeasures(n_bins=n_bins), ignore_index, 2

    def add(self, logits: Tensor, labels: Tensor, loss: Loss | None) -> None:
        """Sum the pixels of a batch of maps ``(n, k, h, w)``."""
        ignored = self._ignore_index
        if ignored is None:
            ignored = IGNORED_PIXEL if loss is None else _ignored(loss)
        self._k = logits.shape[1]
        batch = logits.detach().cpu().float(), labels.cpu()
        for image in images_of_batches([batch], ignore_index=ignored):
            self.measures.add(image)

    def results(self, names: Sequence[str], device: torch.device) -> Mapping[str, float]:
        """Return the measures that follow from sums over all processes, and mean IoU."""
        if world_size() > 1:
            sums = self.measures.sums or empty_sums(self._k, self.measures.n_bins)
            summed = {key: global_sum(torch.from_numpy(each).to(device)) for key, each in sums.items()}
            whole = {key: each.cpu().numpy() for key, each in summed.items()}
            measures = PixelMeasures.of(whole, n_bins=self.measures.n_bins)
        else:
            measures = self.measures
        if not measures.n_images:
            return dict.fromkeys(names, math.nan)
        found = measures.compute()
        return {name: found.metrics[name] for name in names if name in found.metrics} | {
            "mean_iou": found.mean_iou
        }


def validation_predictions(
    logits: Tensor, labels: Tensor, *, of_labels: bool = False, weights: Tensor | None = None
) -> Predictions | None:
    """Return predictions for a report, on the CPU; None if their measures are undefined."""
    count = len(labels) if weights is None else int((weights > 0).sum())
    if count < 2 or not bool(torch.isfinite(logits).all()):
        return None
    weights = None if weights is None else weights.cpu()
    classes = Predictions(logits=logits.cpu(), labels=labels.cpu(), weights=weights)
    if not of_labels:
        return classes
    return Predictions(confidence=classes.to_probs()[:, 1], correct=labels.cpu() == 1, weights=weights)


def validation_measures(
    logits: Tensor,
    labels: Tensor,
    *,
    measures: Sequence[str],
    n_bins: int,
    of_labels: bool = False,
    weights: Tensor | None = None,
) -> Mapping[str, float]:
    """Return the measures by name; all are NaN for fewer than two predictions, or if one is not finite.

    With ``of_labels`` each sample is an entry of a label matrix: measures are those of the probability of the
    label, class 1, and accuracy is the share of entries that are right at a probability of one half. Samples
    count by their weights if there are any; measures that take no weights are NaN then.
    """
    undefined = dict.fromkeys(measures, math.nan)
    count = len(labels) if weights is None else int((weights > 0).sum())
    if count < 2 or not bool(torch.isfinite(logits).all()):
        return undefined
    classes = Predictions(logits=logits, labels=labels, weights=weights)
    named = [name for name in measures if name != AFTER_TEMPERATURE]
    if of_labels:
        entries = Predictions(confidence=classes.to_probs()[:, 1], correct=labels == 1, weights=weights)
        measured = undefined | dict(evaluate(entries, measures=named, n_bins=n_bins).metrics)
        if "accuracy" in named:
            measured |= evaluate(classes, measures=["accuracy"]).metrics
    else:
        measured = undefined | dict(evaluate(classes, measures=named, n_bins=n_bins).metrics)
    if AFTER_TEMPERATURE in measures:
        measured[AFTER_TEMPERATURE] = nll_after_temperature(logits, labels, weights=weights)
    return measured
