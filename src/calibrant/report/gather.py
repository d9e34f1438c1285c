"""From predictions and comparisons to a page: all that is shown is asked of evaluation and selection."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.compare import SHOWN, Comparison, MethodResult
from calibrant.evaluation.evaluate import evaluate
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.names import METHODS
from calibrant.report.columns import columns
from calibrant.report.figures import POINTS, class_lines, figures, number
from calibrant.report.page import Candidate, Page
from calibrant.report.panels import foreign_panel, shift_panel, temperatures
from calibrant.report.provenance import Origin, facts
from calibrant.report.verdict import verdict

_MEASURES = ("accuracy", "mean_confidence", "nll", "brier", "ece", "ece_equal_mass", "classwise_ece", "aurc")
_KEY = ("accuracy", "mean_confidence", "ece")


@dataclass(frozen=True, eq=False)
class Sources:
    """Predictions that a report is made of.

    Attributes:
        title: What the page is about.
        validation: What methods were fitted on.
        test: What they are measured on, if not out of fold.
        shift: Labelled samples from elsewhere.
        foreign: Out-of-distribution samples; labels are not needed.
        names: What each of them is called on the page, by role; by default its file's name.
        origin: Command, files and seed.
    """

    title: str
    validation: Predictions | None = None
    test: Predictions | None = None
    shift: Predictions | None = None
    foreign: Predictions | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)

    @property
    def named(self) -> dict[str, Predictions]:
        """What was given, by its role."""
        every = {
            "validation": self.validation,
            "test": self.test,
            "shift": self.shift,
            "foreign": self.foreign,
        }
        return {role: each for role, each in every.items() if each is not None}


def describe(predictions: Predictions, sources: Sources) -> Page:
    """Describe one model as it is."""
    return compare_files({sources.title: predictions}, sources)


def compare_files(models: Mapping[str, Predictions], sources: Sources) -> Page:
    """Put models side by side; the first is the one that the page is about."""
    first, seed = next(iter(models.values())), sources.origin.seed
    metrics = {name: _numbers(evaluate(each).metrics) for name, each in models.items()}
    candidates = tuple(
        Candidate(name, name, "", metrics[name], figures(each, seed=seed)) for name, each in models.items()
    )
    other = candidates[1].name if len(candidates) > 1 else None
    shown = [name for name in _MEASURES if name in candidates[0].metrics]
    return Page(
        title=sources.title,
        measured_on=_samples(first, sources.title),
        verdict=verdict(_key(first)),
        columns=columns(shown, metrics, models, seed=seed),
        candidates=candidates,
        chosen=other,
        classes=class_lines(first, None if other is None else models[other]),
        temperatures=temperatures(first, None, "these predictions themselves", seed),
        shift=shift_panel(sources.shift, None, _name(sources, "shift")),
        foreign=foreign_panel(first, sources.foreign, _name(sources, "foreign")),
        notes=_notes(first),
        facts=facts(sources.origin, dict(models) | sources.named, {}),
    )


def describe_comparison(comparison: Comparison, chosen: MethodResult, sources: Sources) -> Page:
    """Describe a model before and after repair by each method that was compared.

    Without a test set the predictions shown are out of fold, and only those of the chosen method.
    """
    if sources.validation is None:
        raise InputError("sources: expected the validation set that methods were fitted on, got none")
    before = sources.validation if sources.test is None else sources.test
    after = _repaired(comparison, chosen, sources)
    seed, is_identity = sources.origin.seed, chosen.name == "uncalibrated"
    repaired = after.get(chosen.name, before)
    rows = _candidates(comparison, {"uncalibrated": before} | after, seed)
    measured, where = ("validation", ", out of fold") if sources.test is None else ("test", "")
    return Page(
        title=sources.title,
        measured_on=_samples(before, _name(sources, measured)) + where,
        verdict=verdict(
            _key(before), _key(repaired), method=method_title(chosen.name), is_identity=is_identity
        ),
        columns=columns(
            SHOWN, {row.name: row.metrics for row in rows}, {"uncalibrated": before} | after, seed=seed
        ),
        candidates=rows,
        chosen=None if is_identity else chosen.name,
        is_choice=True,
        classes=class_lines(before, None if is_identity else repaired),
        temperatures=temperatures(sources.validation, _smart(comparison), _name(sources, "validation"), seed),
        shift=shift_panel(
            sources.shift,
            None if is_identity else chosen.calibrator,
            _name(sources, "shift"),
            method=method_title(chosen.name),
        ),
        foreign=foreign_panel(before, sources.foreign, _name(sources, "foreign")),
        skipped=dict(comparison.skipped),
        notes=_notes(before, out_of_fold=sources.test is None),
        facts=facts(sources.origin, sources.named, _choices(comparison, chosen)),
    )


def method_title(name: str) -> str:
    """Return what a method is called in a sentence.

    Example:
        >>> method_title("structured_smart")
        'structured SMART'
    """
    capitals = {
        "smart": "SMART",
        "bbq": "BBQ",
        "ece": "ECE",
        "metacal": "MetaCal",
        "platt": "Platt",
        "venn": "Venn",
        "abers": "Abers",
    }
    words = [capitals.get(word, word) for word in name.split("_")]
    return " ".join(
        [*words, "scaling"] if words[-1] in ("temperature", "vector", "matrix", "Platt") else words
    )


def _repaired(comparison: Comparison, chosen: MethodResult, sources: Sources) -> dict[str, Predictions]:
    """Return the predictions of each method that are drawn; the uncalibrated model is left out."""
    drawn = comparison.results if sources.test is not None else (chosen,)
    return {each.name: each.measured for each in drawn if each.name != "uncalibrated"}


def _candidates(comparison: Comparison, drawn: Mapping[str, Predictions], seed: int) -> tuple[Candidate, ...]:
    rows = [
        Candidate(
            name=each.name,
            title=method_title(each.name),
            note=METHODS[each.name].paper,
            metrics=_numbers(each.metrics if each.test_metrics is None else each.test_metrics),
            figures=figures(drawn[each.name], seed=seed) if each.name in drawn else None,
            fit_seconds=each.fit_seconds,
            parameters=each.calibrator.n_parameters,
        )
        for each in comparison.results
    ]
    if all(row.name != "uncalibrated" for row in rows):
        before = drawn["uncalibrated"]
        shown = _numbers(evaluate(before, measures=SHOWN).metrics)
        paper = METHODS["uncalibrated"].paper
        rows.insert(0, Candidate("uncalibrated", "uncalibrated", paper, shown, figures(before, seed=seed)))
    return tuple(rows)


def _choices(comparison: Comparison, chosen: MethodResult) -> dict[str, str]:
    gain = chosen.improvement
    return {
        "Choice": (
            f"{chosen.name}: the simplest method within one standard error of the best negative "
            f"log-likelihood, by {comparison.n_folds}-fold cross-validation on the validation set"
        ),
        "Gain": (
            f"it changes the negative log-likelihood by {gain.difference:+.4f} "
            f"({gain.level:.0%} interval {gain.low:+.4f} to {gain.high:+.4f}, {gain.n_resamples:,} resamples)"
        ),
    }


def _smart(comparison: Comparison) -> Calibrator | None:
    return next((each.calibrator for each in comparison.results if each.name == "smart"), None)


def _key(predictions: Predictions) -> Mapping[str, float]:
    return evaluate(predictions, measures=_KEY).metrics


def _numbers(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: number(value) for name, value in metrics.items()}


def _name(sources: Sources, role: str) -> str:
    path = sources.origin.files.get(role)
    return sources.names.get(role, f"the {role} set" if path is None else path.name)


def _samples(predictions: Predictions, name: str) -> str:
    classes = "" if predictions.k is None else f", {predictions.k:,} classes"
    return f"{name}: {predictions.n:,} predictions{classes}"


def _notes(predictions: Predictions, *, out_of_fold: bool = False) -> tuple[str, ...]:
    told = [
        f"Charts are drawn from summaries: bins hold all {predictions.n:,} samples, and curves through all "
        f"of them are thinned to at most {POINTS} points."
    ]
    if predictions.k is not None and predictions.k > 1000:
        told.append(f"Of {predictions.k:,} classes the table lists the 1,000 least calibrated.")
    if out_of_fold:
        told.append(
            "Without a test set every sample is repaired by a fit that has not seen it; "
            "of the methods only the chosen one is drawn."
        )
    return tuple(told)
