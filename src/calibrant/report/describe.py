"""From predictions and comparisons to a page; what a comparison has computed is not computed again.

A page about files shows the core measures, a page about a comparison those that were compared; ``measures``
names further ones.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.evaluate import Evaluation, evaluate, fitting_measures, why_not
from calibrant.evaluation.paired import all_matched, paired_comparison
from calibrant.evaluation.slices import ClassRow, by_class
from calibrant.files import without_nan
from calibrant.inference.memory import remembering
from calibrant.inference.paired import Measured
from calibrant.metrics.names import MEASURES, resolve_measures
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.names import BY_GROUP, POOL, method_named
from calibrant.report.columns import compared_measures, to_test
from calibrant.report.figures import (
    POINTS,
    TESTED_UP_TO,
    chance_lines,
    class_lines,
    compared_temperatures,
    figures,
    group_panel,
    model_pairs,
    ood_panel,
)
from calibrant.report.page import Candidate, ComparedMeasure, Fact, Figures, Page, Shift
from calibrant.report.sources import Sources, count
from calibrant.report.verdict import verdict, verdict_on_models
from calibrant.threads import few_threads, one_thread_each

if TYPE_CHECKING:
    from calibrant.evaluation.choose import Choice
    from calibrant.evaluation.compare import Comparison, MethodResult


_BY_GROUP = "the pool, corrected for each group by empirical Bayes"
# What a method is called in a sentence, if that needs an article.
_THE = {POOL: "the pool", BY_GROUP: "the repair by group"}


def describe(predictions: Predictions, sources: Sources, *, measures: str | Sequence[str] = ()) -> Page:
    """Describe one uncalibrated model."""
    return compare_files({sources.title: predictions}, sources, measures=measures)


def compare_files(
    models: Mapping[str, Predictions], sources: Sources, *, measures: str | Sequence[str] = ()
) -> Page:
    """Put models side by side; the page is about the first.

    Args:
        models: Predictions of each model for the same samples: in the same order, or with ids.
        sources: What the page is about.
        measures: Measures beside the core ones: ``"all"``, or names.
    """
    models = all_matched(models)
    first, *others = models.values()
    for each in others:
        paired_comparison(first, each, measures=())  # refuses other samples
    with few_threads(_size(first)):
        return _about_labels(_page_of_files(models, sources, measures), next(iter(models.values())))


@remembering()
def _page_of_files(
    models: Mapping[str, Predictions], sources: Sources, measures: str | Sequence[str]
) -> Page:
    first, seed = next(iter(models.values())), sources.origin.seed
    core = fitting_measures("core", first)
    extra, left_out = _further(measures, core, first)
    wanted = [*core, *extra]
    quick = first.n <= TESTED_UP_TO
    measured = {
        name: evaluate(each, measures=wanted, intervals=quick, seed=seed, chance=True)
        for name, each in models.items()
    }
    metrics = {name: each.metrics for name, each in measured.items()}
    drawn = {name: _draw(each, metrics[name]) for name, each in models.items()}
    candidates = tuple(
        Candidate(
            name,
            name,
            "",
            without_nan(metrics[name]),
            each.figures,
            intervals={what: (span.low, span.high) for what, span in measured[name].intervals.items()},
        )
        for name, each in drawn.items()
    )
    other = candidates[1].name if len(candidates) > 1 else None
    shown = [name for name in wanted if all(name in row.metrics for row in candidates)]
    pairs = model_pairs(models, shown, seed=seed)
    return Page(
        title=sources.title,
        measured_on=f"{sources.title}: {count(first)}",
        verdict=verdict_on_models(metrics, pairs) if pairs else verdict(next(iter(metrics.values()))),
        columns=_columns(shown, candidates, drawn, first, seed=seed),
        candidates=candidates,
        chosen=other,
        own=first.own_name,
        pairs=pairs,
        chance=chance_lines(measured),
        groups=group_panel(first, None if other is None else models[other]),
        classes=class_lines(_classes(first), None if other is None else _classes(models[other])),
        shift=_shift(sources.shift, None, sources.name("shift")),
        foreign=ood_panel(first, sources.foreign, sources.name("foreign")),
        notes=(*_notes(first), *left_out),
        facts=sources.facts(dict(models) | sources.by_role, {}),
    )


def describe_comparison(
    comparison: "Comparison",
    choice: "Choice",
    sources: Sources,
    *,
    measures: str | Sequence[str] = (),
) -> Page:
    """Describe a model before and after calibration by each method that was compared; nothing is fitted.

    Without a test set the predictions shown are out of fold, and only those of the chosen method. The chart
    of temperatures by margin is shown if ``smart`` and ``temperature`` were compared.

    Args:
        comparison: The methods, fitted and measured.
        choice: One of its results, and why it was chosen.
        sources: What the page is about; the validation set is required.
        measures: Measures beside those of the comparison: ``"core"``, ``"all"``, or names.
    """
    if sources.validation is None:
        raise InputError("sources: expected the validation set that methods were fitted on, got none")
    with one_thread_each():  # most of it is work on a few numbers for each sample
        page = _page_of_comparison(comparison, choice, sources, sources.validation, measures)
    return _about_labels(page, sources.validation)


@remembering()
def _page_of_comparison(
    comparison: "Comparison",
    choice: "Choice",
    sources: Sources,
    validation: Predictions,
    measures: str | Sequence[str],
) -> Page:
    chosen, parts = choice.result, comparison.parts
    seed, is_identity = sources.origin.seed, chosen.name == "uncalibrated"
    out_of_fold = sources.test is None
    before = validation if sources.test is None else sources.test
    extra, left_out = _further(measures, tuple(chosen.metrics), before)
    shown = {each.name for each in comparison.results} if not out_of_fold else {chosen.name}
    rows, drawn = _candidates(comparison, before, shown | {"uncalibrated"}, extra)
    method = method_title(chosen.name)
    measured_on = f"{sources.name('validation' if out_of_fold else 'test')}: {count(before)}"
    return Page(
        title=sources.title,
        measured_on=measured_on + (", out of fold" if out_of_fold else ""),
        verdict=verdict(
            _key(rows[0]),
            _key(next(row for row in rows if row.name == chosen.name)),
            method=_THE.get(chosen.name, method),
            is_identity=is_identity,
            own=before.own_name,
        ),
        columns=_columns((*chosen.metrics, *extra), rows, drawn, before, seed=seed),
        candidates=rows,
        chosen=None if is_identity else chosen.name,
        is_choice=True,
        own=before.own_name,
        chance=chance_lines(_errors(before, chosen, rows, seed=seed)),
        groups=group_panel(before, None if is_identity else chosen.measured),
        classes=class_lines(_classes(before), None if is_identity else _classes(chosen.measured)),
        temperatures=compared_temperatures(
            validation if parts is None else validation.counted().take(parts.fitting),
            sources.name("validation"),
            {each.name: each.calibrator for each in comparison.results},
        ),
        shift=_shift(
            sources.shift, None if is_identity else chosen.calibrator, sources.name("shift"), method=method
        ),
        foreign=ood_panel(before, sources.foreign, sources.name("foreign")),
        skipped=dict(comparison.skipped),
        notes=(
            *_notes(before, out_of_fold=out_of_fold),
            *left_out,
            *([] if parts is None else [parts.sentence]),
        ),
        facts=sources.facts(sources.by_role, _choices(comparison, choice)),
    )


def _errors(
    before: Predictions, chosen: "MethodResult", rows: Sequence[Candidate], *, seed: int
) -> dict[str, Evaluation]:
    """Return the calibration errors in the table, before calibration and after, beside what chance shows."""
    shown = {row.name: row.title for row in rows}
    models = {shown["uncalibrated"]: before} | {shown[chosen.name]: chosen.measured}
    names = [name for name in chosen.metrics if MEASURES[name].noise_floor]
    return {title: evaluate(each, measures=names, seed=seed, chance=True) for title, each in models.items()}


def with_shift(page: Page, calibrator: Calibrator | None, shifted: Predictions, name: str) -> Page:
    """Add samples under distribution shift to a page.

    Args:
        page: A page about the same model.
        calibrator: The calibrator of the chosen method, if one was chosen.
        shifted: Labelled predictions.
        name: What they are called on the page.
    """
    method = next((each.title for each in page.candidates if each.name == page.chosen), "")
    added = Fact("Added", (f"shift: {name}, {shifted.n:,} predictions",))
    with few_threads(_size(shifted)):
        panel = _shift(shifted, calibrator, name, method=method)
    return replace(page, shift=panel, facts=(*page.facts, added))


def _about_labels(page: Page, predictions: Predictions) -> Page:
    """Return a page that says what confidence and accuracy are if there are several labels at once."""
    if predictions.n_rows == predictions.n:
        return page
    detail = (
        f"{page.verdict.detail} Each entry is a label of a row: its confidence is the probability of the "
        "label, and accuracy is the share of entries that have their label. The groups are the labels."
    )
    columns = tuple(
        replace(each, title="with label", meaning="entries that have their label")
        if each.name == "accuracy"
        else each
        for each in page.columns
    )
    return replace(page, verdict=replace(page.verdict, detail=detail), columns=columns)


def method_title(name: str) -> str:
    """Return what a method is called in a sentence, with its options if it has any.

    Example:
        >>> method_title("structured_smart"), method_title("temperature(n_bins=5)")
        ('structured SMART', 'temperature scaling (n_bins=5)')
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
    if name == BY_GROUP:
        return "repair by group"
    method, bracket, options = name.partition("(")
    words = [capitals.get(word, word) for word in method.split("_")]
    if words[-1] in ("temperature", "vector", "matrix", "Platt"):
        words.append("scaling")
    return " ".join([*words, bracket + options] if options else words)


def _further(
    measures: str | Sequence[str], known: Sequence[str], predictions: Predictions
) -> tuple[list[str], list[str]]:
    """Return the measures beside the known ones, and a note on each that the predictions do not allow."""
    names = [name for name in resolve_measures(measures) if name not in known] if measures else []
    named = not isinstance(measures, str)
    reasons = {name: why_not(MEASURES[name], predictions, asked_for=named) for name in names}
    notes = [f"{MEASURES[name].title} is left out: {reason}." for name, reason in reasons.items() if reason]
    return [name for name, reason in reasons.items() if not reason], notes


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What remains of a candidate's predictions, which can be as large as memory allows."""

    figures: Figures
    tested: Mapping[str, Measured]


def _draw(predictions: Predictions, metrics: Mapping[str, float]) -> _Drawn:
    outcomes = predictions.outcomes()
    return _Drawn(figures(predictions, outcomes, metrics), to_test(predictions, outcomes, metrics))


def _columns(
    names: Sequence[str],
    rows: Sequence[Candidate],
    drawn: Mapping[str, _Drawn],
    predictions: Predictions,
    *,
    seed: int = 0,
) -> tuple[ComparedMeasure, ...]:
    models, units = {name: each.tested for name, each in drawn.items()}, predictions.units
    return compared_measures(names, {row.name: row.metrics for row in rows}, models, units=units, seed=seed)


def _candidates(
    comparison: "Comparison", before: Predictions, shown: Container[str], extra: Sequence[str]
) -> tuple[tuple[Candidate, ...], dict[str, _Drawn]]:
    """Return a row for each method, the uncalibrated model first, and the figures of those in ``shown``."""
    rows, drawn = [], {}
    shares = {} if comparison.pool is None else comparison.pool.weights
    for each in comparison.results:
        known = each.measured_metrics
        metrics = {**known, **evaluate(each.measured, measures=extra).metrics} if extra else known
        if each.name in shown:
            predictions = before if each.name == "uncalibrated" else each.measured
            drawn[each.name] = _draw(predictions, metrics)
        rows.append(
            Candidate(
                name=each.name,
                title=before.own_name if each.name == "uncalibrated" else method_title(each.name),
                note=_BY_GROUP if each.name == BY_GROUP else method_named(each.name).paper,
                metrics=without_nan(metrics),
                figures=drawn[each.name].figures if each.name in shown else None,
                fit_seconds=each.fit_seconds,
                parameters=each.calibrator.n_parameters,
                share=shares.get(each.name),
            )
        )
    if all(row.name != "uncalibrated" for row in rows):
        paper = method_named("uncalibrated").paper
        metrics = evaluate(before, measures=(*comparison.results[0].metrics, *extra)).metrics
        first = drawn["uncalibrated"] = _draw(before, metrics)
        own = Candidate("uncalibrated", before.own_name, paper, without_nan(metrics), first.figures)
        rows.insert(0, own)
    return tuple(rows), drawn


def _classes(predictions: Predictions) -> tuple[ClassRow, ...]:
    return () if predictions.confidence is not None else by_class(predictions)


def _size(predictions: Predictions) -> int:
    """Return the number of probabilities."""
    return predictions.n * (predictions.k or 1)


def _shift(
    shifted: Predictions | None, calibrator: Calibrator | None, name: str, *, method: str = ""
) -> Shift | None:
    """Measure a model under distribution shift, uncalibrated and by the chosen method if there is one."""
    if shifted is None:
        return None
    shown = {shifted.own_name: shifted}
    if calibrator is not None:
        shown[f"after {method}"] = calibrated(calibrator, shifted)
    rows, drawn = [], {}
    for title, each in shown.items():
        metrics = evaluate(each).metrics
        drawn[title] = _draw(each, metrics)
        rows.append(Candidate(title, title, "", without_nan(metrics), drawn[title].figures))
    return Shift(
        name=name,
        n=shifted.n,
        columns=_columns(tuple(rows[0].metrics), rows, drawn, shifted),
        before=rows[0],
        after=rows[1] if len(rows) > 1 else None,
    )


def _key(row: Candidate) -> dict[str, float]:
    """Return the measures that the verdict is about."""
    accuracy, ece = row.metrics["accuracy"], row.metrics["ece"]
    assert row.figures is not None
    assert accuracy is not None
    assert ece is not None
    return {"accuracy": accuracy, "ece": ece, "mean_confidence": row.figures.mean_confidence}


def _choices(comparison: "Comparison", choice: "Choice") -> dict[str, str]:
    gain, pool = choice.result.improvement, comparison.pool
    facts = {
        "Choice": choice.sentence,
        "Gain": (
            f"it changes the negative log-likelihood by {gain.difference:+.4f} "
            f"({gain.level:.0%} interval {gain.low:+.4f} to {gain.high:+.4f}, {gain.n_resamples:,} resamples)"
        ),
        "Folds": f"{comparison.n_folds}, of the validation set"
        + ("" if comparison.n_units is None else f"; none splits any of {comparison.n_units:,} units"),
    }
    if pool is not None:
        facts["Pool"] = (
            f"temperature {float(pool.temperature):.3f}, uniform share {float(pool.smoothing):.2g}"
            f"{', then temperatures of each sample' if pool.has_curve else ''}"
        )
    return facts


def _notes(predictions: Predictions, *, out_of_fold: bool = False) -> tuple[str, ...]:
    notes = [
        f"Charts are drawn from summaries: bins contain all {predictions.n:,} samples, and curves through "
        f"all of them are thinned to at most {POINTS} points."
    ]
    if predictions.weights is not None:
        notes.append(
            "Samples count by their weights; measures that take none, such as AURC, are left out. The number "
            "of samples in a bin is a sum of weights; all of them add up to the effective number of samples."
        )
    if predictions.n_units is not None:
        notes.append(
            f"Samples belong to {predictions.n_units:,} units, within which they depend on each other. So "
            "units are drawn in intervals and tests, no fold splits one, and guarantees are for new units."
        )
    if (predictions.k or 0) > 1000:
        notes.append(f"Of {predictions.class_count} the table lists the 1,000 least calibrated.")
    if out_of_fold:
        notes.append(
            "Without a test set every sample is calibrated by a fit that has not seen it; "
            "only the chosen method is drawn."
        )
    return tuple(notes)
