"""Calibrate several labels at once: a map of the log-odds of each label, with what labels have in common."""

from collections.abc import Mapping, Sequence
from typing import Literal, Self, TypeAlias, Unpack, get_args

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import (
    ArrayLike,
    at_least_float32,
    check_choice,
    check_label_logits,
    check_label_matrix,
    check_units,
    check_weights,
    class_order,
    names_of_columns,
)
from calibrant.posthoc.by_group import ByGroup
from calibrant.posthoc.calibrator import Calibrator, GroupsLike, group_places
from calibrant.posthoc.fitting.stored import PLACES, Numbers, declare
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.posthoc.names import method_for_pairs

#: What the maps of the labels have in common.
Maps: TypeAlias = Literal["shrunk", "shared", "separate"]


class LabelCalibrator(Calibrator):
    """Calibrate the probability of each of several labels.

    Whether a sample has a label is a question with two classes, so every method for two classes can map the
    log-odds of a label. The maps are one for all labels (``"shared"``), one for each label
    (``"separate"``), or one for all that is corrected for each label as far as its samples show
    (``"shrunk"``, :class:`~calibrant.posthoc.ByGroup`): a rare label borrows strength from the others, and a
    frequent one gets its own map.

    Unlike in other calibrators, columns are labels: their probabilities do not sum to one.

    Attributes:
        names: The labels, in the order of the columns.
        places: The place of each label among the groups of ``base``; -1 for the common map.
    """

    options = ("names",)

    stored = declare(places=Numbers(("k",), PLACES, "place", optional=True))
    part_classes = 2

    names: list[str]
    places: Tensor

    def __init__(self, maps: Calibrator | Mapping[str, Calibrator], names: Sequence[str]) -> None:
        """Hold one map for all labels, which may have a correction for each, or a map for each label."""
        super().__init__(n_classes=len(names))
        self.names = list(names)
        if isinstance(maps, Calibrator):
            known = maps.group_names or ()
            self.add_module("base", maps)
            self.register_buffers(places=group_places(np.asarray(self.names), known, n=len(names)))
        else:
            for place, name in enumerate(names):
                self.add_module(f"label_{place}", maps[name])

    @property
    def sizes(self) -> dict[str, int]:
        """The number of labels."""
        return {"k": len(self.names)}

    @property
    def part_names(self) -> tuple[str, ...]:
        """One map for all labels, or one for each."""
        if "places" in self._buffers:
            return ("base",)
        return tuple(f"label_{place}" for place in range(len(self.names)))

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        method: str = "platt",
        maps: Maps = "shrunk",
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit to entries in long form; :meth:`fit_labels` takes one column for each label.

        Args:
            logits: Log-odds of the label of each entry, of shape ``(m,)`` or as two classes ``(m, 2)``.
            labels: 1 where the entry has its label, else 0.
            groups: The label of each entry.
            method: A method for confidences (``calibrant methods --pairs``), with options if wanted.
            maps: ``"shrunk"``, ``"shared"`` or ``"separate"``.
        """
        if groups is None:
            raise InputError("groups: expected the label of each entry, got none")
        data = cls.data(logits, labels, **rows)
        if data.n_classes != 2:
            raise InputError(f"logits: expected two classes, absent and present, got {data.n_classes}")
        names = np.unique(np.asarray(groups).astype(str)).tolist()
        places = group_places(data.names_of(groups), names, n=len(data)).to(data.labels.device)
        fit = method_for_pairs(method).fit
        if check_choice(maps, "maps", get_args(Maps)) == "separate":
            fitted = {name: fit(data.take(places == place)) for place, name in enumerate(names)}
            return cls(fitted, names)
        common = fit(data)
        if maps == "shrunk":
            log_probs = common.predict_log_proba(data.logits)
            common = ByGroup.of(
                common, log_probs, data.labels, names, places, weights=data.weights, units=data.units
            )
        return cls(common, names)

    @classmethod
    def fit_labels(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        label_names: Sequence[str] | None = None,
        method: str = "platt",
        maps: Maps = "shrunk",
        weights: ArrayLike | None = None,
        units: ArrayLike | None = None,
        seed: int = 0,
    ) -> Self:
        """Fit to held-out log-odds and labels, both of shape ``(n, l)``.

        :func:`calibrant.evaluation.compare` of :class:`~calibrant.data.LabelPredictions` compares methods,
        and corrects the best mixture of them for each label.

        Args:
            logits: Log-odds of the labels.
            labels: 1 or true where a sample has a label.
            label_names: One name for each label; by default their numbers.
            method: As for :meth:`fit`.
            maps: As for :meth:`fit`.
            weights: How much each sample counts, of shape ``(n,)``.
            units: What each sample belongs to, if samples depend on each other, of shape ``(n,)``.
            seed: Seed of the fit.

        Example:
            >>> logits = torch.tensor([[2.0, -1.0], [3.0, 1.0], [-2.0, -3.0], [2.0, 3.0]]).repeat(25, 1)
            >>> labels = torch.tensor([[1, 0], [0, 1], [0, 0], [1, 0]]).repeat(25, 1)
            >>> fitted = LabelCalibrator.fit_labels(logits, labels, label_names=["cat", "dog"])
            >>> fitted.predict_proba(logits[:1]).shape
            torch.Size([1, 2])
        """
        s = check_label_logits(logits)
        n, n_labels = s.shape
        y = check_label_matrix(labels, shape=(n, n_labels)).to(s.device)
        names = [str(place) for place in range(n_labels)] if label_names is None else list(label_names)
        if len(names) != n_labels or len(set(names)) < n_labels:
            raise InputError(f"label_names: expected {n_labels} different names, got {', '.join(names)}")
        data = FittingSet.of(
            logits_of_two(s.reshape(-1)),
            y.reshape(-1).long(),
            units=(torch.arange(n) if units is None else check_units(units, n=n)).repeat_interleave(n_labels),
            weights=None if weights is None else check_weights(weights, n=n).repeat_interleave(n_labels),
            seed=seed,
        )
        fitted = cls.fit(data, groups=np.tile(np.asarray(names), n), method=method, maps=maps)
        return cls(fitted.maps, names)

    @property
    def maps(self) -> Calibrator | dict[str, Calibrator]:
        """The map of all labels, or the maps by label."""
        parts = [part for part in self.children() if isinstance(part, Calibrator)]
        return dict(zip(self.names, parts, strict=True)) if "base" not in self._modules else parts[0]

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the calibrated log-probability of each label, shape ``(n, l)``."""
        s = at_least_float32(logits)
        maps = self.maps
        if isinstance(maps, dict):
            columns = [each(logits_of_two(s[:, place]))[:, 1] for place, each in enumerate(maps.values())]
            return torch.stack(columns, dim=1)
        entries = logits_of_two(s.reshape(-1))
        if maps.group_names is None:
            log_probs: Tensor = maps(entries)
        else:
            log_probs = maps(entries, None, self.places.expand(s.shape).reshape(-1))
        return log_probs[:, 1].reshape(s.shape)

    @torch.no_grad()
    def predict_log_proba(
        self,
        logits: ArrayLike,
        features: ArrayLike | None = None,
        groups: GroupsLike | None = None,
    ) -> Tensor:
        """Check log-odds of shape ``(n, l)`` and return the calibrated log-probability of each label."""
        order = class_order(self.names, names_of_columns(logits, "logits"), name="logits")
        s = check_label_logits(logits)
        if s.shape[1] != len(self.names):
            raise InputError(
                f"logits: expected the {len(self.names)} labels that were fitted, got {s.shape[1]}"
            )
        if order is None:
            return self._in_blocks(s)
        order = order.to(s.device)
        return self._in_blocks(s[:, order])[:, order.argsort()]


def logits_of_two(log_odds: Tensor) -> Tensor:
    """Return log-odds of shape ``(m,)`` as logits of two classes; the first has 0."""
    return torch.stack([torch.zeros_like(log_odds), log_odds], dim=1)
