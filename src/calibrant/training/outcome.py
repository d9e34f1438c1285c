"""The results of a run: each post-hoc method on the test, shifted and out-of-distribution sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant._version import __version__
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.choose import Choice, make_choice
from calibrant.evaluation.compare import Comparison, MethodResult, compare
from calibrant.evaluation.detection import detect_ood
from calibrant.evaluation.effect import effect_of
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.tables import title_of
from calibrant.expressions import parse_term
from calibrant.files import without_nan
from calibrant.inputs import Progress
from calibrant.metrics.names import MEASURES
from calibrant.metrics.ood import OODScores
from calibrant.posthoc.names import resolve_methods
from calibrant.show.numbers import measured, percent
from calibrant.show.table import Table
from calibrant.training.config.settings import Config, PosthocSettings
from calibrant.training.epoch_measures import VALIDATION
from calibrant.training.run import Run

_MEASURES = (*VALIDATION, "aurc", "auroc_ovo", "adaptive_ece", "sce_true_class", "smece")
#: Scores that detect out-of-distribution samples.
DETECTORS = ("msp", "negative_entropy")
_UNCALIBRATED = "uncalibrated"


@dataclass(frozen=True, eq=False)
class MethodOutcome:
    """The measures of the model with one post-hoc method, or uncalibrated.

    Attributes:
        measures: By set, ``test`` first, then the shifted ones as ``shifted/NAME``.
        detection: By set, shifted (``shifted/NAME``) and out-of-distribution (``foreign/NAME``), then by
            score, ``msp`` and ``negative_entropy``: how well the score separates the set from the test part.
    """

    measures: Mapping[str, Mapping[str, float]]
    detection: Mapping[str, Mapping[str, OODScores]]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The results of a run.

    Attributes:
        comparison: Post-hoc methods, fitted on the validation part and measured on the test part.
        choice: The method to use, and the reason.
        methods: The measures of each fitted method; the uncalibrated model comes first.
    """

    comparison: Comparison
    choice: Choice
    methods: Mapping[str, MethodOutcome]

    @property
    def chosen(self) -> MethodResult:
        """The method to use."""
        return self.choice.result

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        return {
            name: {
                "measures": {part: dict(values) for part, values in each.measures.items()},
                "detection": {
                    part: {
                        score: {"auroc": found.auroc, "aupr_in": found.aupr_in, "fpr95": found.fpr95}
                        for score, found in scores.items()
                    }
                    for part, scores in each.detection.items()
                },
            }
            for name, each in self.methods.items()
        }

    def to_dict(self, run: Run) -> dict[str, Any]:
        """Return plain values for JSON, as ``train --json`` prints them; undefined numbers are None."""
        test = run.predictions["test"]
        answer = {
            "folder": str(run.folder),
            "chosen": self.chosen.name,
            "choice": self.choice.reason,
            "effect": effect_of(self.comparison, self.choice, test).to_dict(),
            "score": run.config.posthoc.score,
            "n_validation": run.predictions["validation"].n,
            "n_test": test.n,
            "seed": run.config.seed,
            "calibrant": __version__,
            "stages": {name: dict(values) for name, values in run.refinement.items()},
            "methods": {
                name: {**numbers, **self.comparison[name].pool_numbers}
                for name, numbers in self.as_json().items()
            },
            "skipped": dict(self.comparison.skipped),
        }
        values: dict[str, Any] = without_nan(answer)
        return values


def check_posthoc(settings: PosthocSettings) -> tuple[str, ...]:
    """Return the methods to fit, with the uncalibrated model; unknown names are refused."""
    try:
        named = tuple(resolve_methods((_UNCALIBRATED, *settings.methods)))
    except InputError as error:
        raise InputError(f"posthoc.{error}") from None
    if _choice(settings) not in ("auto", *named):
        raise InputError(
            f"posthoc.choose: expected auto or one of {', '.join(named)}, got {settings.choose!r}; "
            "add it to posthoc.methods"
        )
    return named


def assess(run: Run, *, progress: Progress | None = None) -> Outcome:
    """Fit post-hoc methods on the validation part and measure each of them on all sets."""
    settings = run.config.posthoc
    comparison = compare(
        run.predictions["validation"],
        test=run.predictions["test"],
        methods=check_posthoc(settings),
        n_folds=settings.folds,
        seed=run.config.seed,
        progress=progress,
    )
    wanted = _choice(settings)
    if wanted in comparison.skipped:
        raise InputError(
            f"posthoc.choose: expected a method that can be fitted, got {wanted}: "
            f"{comparison.skipped[wanted]}"
        )
    if wanted == "auto":
        choice = make_choice(comparison, score=settings.score, simple=settings.simple)
    else:
        choice = Choice(comparison[wanted], "named by posthoc.choose")
    methods = {}
    for done, result in enumerate(comparison.results):
        if progress is not None:
            progress(f"measuring {result.name}", done, len(comparison.results))
        methods[result.name] = _outcome(run.predictions, result)
    return Outcome(comparison, choice, methods)


def _choice(settings: PosthocSettings) -> str:
    """Return the method to save, as results name it, or ``"auto"``."""
    term = parse_term(settings.choose)
    return settings.choose if term is None else term.text


def _outcome(predictions: Mapping[str, Predictions], result: MethodResult) -> MethodOutcome:
    """Measure a method on all sets; what the comparison knows about the test set is used."""
    parts = {
        name: part if result.name == _UNCALIBRATED else calibrated(result.calibrator, part)
        for name, part in predictions.items()
        if name not in ("validation", "test")
    }
    test = predictions["test"] if result.name == _UNCALIBRATED or result.test is None else result.test
    compared = result.test_metrics or {}
    missing = [name for name in _MEASURES if name not in compared]
    of_test = {**compared, **evaluate(test, measures=missing).metrics}
    measures = {"test": {name: of_test[name] for name in _MEASURES if name in of_test}}
    for name in (name for name in parts if not name.startswith("foreign/")):
        measures[name] = dict(evaluate(parts[name], measures=_MEASURES).metrics)
    found = {name: detect_ood(test, part) for name, part in parts.items()}
    return MethodOutcome(
        measures, {name: {score: each[score] for score in DETECTORS} for name, each in found.items()}
    )


def stages_table(refinement: Mapping[str, Mapping[str, float]]) -> Table:
    """Lay out the refinement of a model after each stage of training."""
    measures = [MEASURES[name] for name in next(iter(refinement.values()))]
    rows = [
        [
            stage,
            *(
                measured(value, in_percent=each.percent)
                for value, each in zip(values.values(), measures, strict=True)
            ),
        ]
        for stage, values in refinement.items()
    ]
    return Table.of(["after", *map(title_of, measures)], rows)


def elsewhere_table(methods: Mapping[str, Any]) -> Table:
    """Lay out shifted and out-of-distribution sets, one a row, uncalibrated and calibrated by each method."""
    first, rows = next(iter(methods.values())), []
    for part in list(first["measures"])[1:]:
        for name in ("accuracy", "ece"):
            values = [each["measures"][part][name] for each in methods.values()]
            rows.append([part, title_of(MEASURES[name]), *map(percent, values)])
    for part in (name for name in first["detection"] if name not in first["measures"]):
        for score in first["detection"][part]:
            values = [each["detection"][part][score]["auroc"] for each in methods.values()]
            rows.append([part, f"↑ AUROC, {score}", *map(percent, values)])
    return Table.of(["set", "measure", *methods], rows)


def title_of_run(config: Config) -> str:
    """Return the model, the data and the losses of a run in words."""
    loss, encoder = config.training.loss, config.encoder
    if encoder is not None:
        first = encoder.joint is None
        loss = f"{encoder.loss}, then {loss}" if first else f"{loss} + {encoder.joint:g} * {encoder.loss}"
    facts = [] if config.data.limit is None else [f"{config.data.limit:,} samples"]
    facts += [f"{100 * config.data.label_noise:.0f} % wrong labels"] if config.data.label_noise else []
    spoiled = f" ({', '.join(facts)})" if facts else ""
    return f"{config.model.name} on {config.data.name}{spoiled}, {loss}"


def _units_of(predictions: Predictions) -> Tensor:
    return torch.arange(predictions.n) if predictions.units is None else predictions.units


def joined_sets(predictions: Mapping[str, Predictions], prefix: str) -> tuple[Predictions | None, str]:
    """Join all shifted, or all out-of-distribution sets; return the joined set and its name."""
    parts = {name.removeprefix(prefix): each for name, each in predictions.items() if name.startswith(prefix)}
    if not parts:
        return None, ""
    labels = [each.labels for each in parts.values() if each.labels is not None]
    joined = Predictions(
        logits=torch.cat([each.to_logits() for each in parts.values()]),
        labels=torch.cat(labels) if labels else None,
        # Shifted sets are the same samples in several forms.
        units=torch.cat([_units_of(each) for each in parts.values()]) if labels and len(parts) > 1 else None,
        class_names=next(iter(parts.values())).class_names,
    )
    names = list(parts)
    return joined, ", ".join(names) if len(names) < 4 else f"{len(names)} sets, {names[0]} to {names[-1]}"
