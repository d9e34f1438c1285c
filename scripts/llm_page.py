"""The page of language models: how honest they are, what repairs them, and what subjects and signals add."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from calibrant.errors import InputError
from calibrant.papers.arena_real import CALIBRANT
from calibrant.papers.llm import CALIBRANT_BY_GROUP, COMBINED, UNCALIBRATED
from calibrant.papers.quantities import quantity
from calibrant.papers.rankings import share_of_wins
from calibrant.papers.rows import Row
from calibrant.papers.writers import markdown_list, markdown_table, number_of
from calibrant.plots.model_honesty import ModelHonesty, ModelHonestyDisplay
from calibrant.posthoc.names import COMBINATION
from calibrant.show.numbers import points
from calibrant.text import markdown

_REPAIRED = ("ece", "smece", "nll", "brier")

# The method that the default is measured against.
RIVAL = "platt"


@dataclass(frozen=True)
class Honesty:
    """The results of all models.

    Attributes:
        values: The numbers of each model, confidence, number of fitting samples and method: means over seeds.
        seeds: Number of seeds.
        reasons: Why a method could not be fitted, with the number of times.
    """

    values: Mapping[tuple[str, str, int, str], Mapping[str, float]]
    seeds: int
    reasons: Mapping[str, int]

    @cached_property
    def confidences(self) -> list[str]:
        """The confidences, without their combination."""
        return [name for name in dict.fromkeys(key[1] for key in self.values) if name != COMBINED]

    @cached_property
    def sizes(self) -> list[int]:
        """Numbers of fitting samples, from small to large."""
        return sorted({key[2] for key in self.values})

    @property
    def size(self) -> int:
        """The number of fitting samples of single models' results: the middle one."""
        return self.sizes[len(self.sizes) // 2]

    def methods(self, confidence: str) -> list[str]:
        """Return the methods that repaired a confidence, in the order of the catalogue."""
        return list(dict.fromkeys(key[3] for key in self.values if key[1] == confidence))

    def models(self, confidence: str, size: int) -> list[str]:
        """Return the models with results for a confidence and a number of fitting samples."""
        return self._models.get((confidence, size), [])

    @cached_property
    def _models(self) -> dict[tuple[str, int], list[str]]:
        found: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
        for model, confidence, size, _ in self.values:
            found[confidence, size][model] = None
        return {key: list(models) for key, models in found.items()}

    def of(self, model: str, confidence: str, size: int, method: str) -> Mapping[str, float]:
        """Return the numbers of one model."""
        return self.values[model, confidence, size, method]

    def mean(self, measure: str, confidence: str, size: int, method: str) -> float:
        """Return the mean of a measure over the models."""
        return fmean(
            self.of(model, confidence, size, method)[measure] for model in self.models(confidence, size)
        )

    def share_better(self, measure: str, confidence: str, size: int, first: str, second: str) -> float:
        """Return the share of models for which one method has a smaller value than another; a tie is half."""
        scores = [
            {name: self.of(model, confidence, size, name)[measure] for name in (first, second)}
            for model in self.models(confidence, size)
        ]
        return share_of_wins(scores, first, second)

    def best_single(self, measure: str, model: str, size: int, *, highest: bool = False) -> float:
        """Return the best value of the model's single confidences, each repaired by the default.

        It is measured on the answers that have all confidences, as the combination is.
        """
        found = [
            self.of(model, confidence, size, CALIBRANT)[measure]
            for confidence in self.confidences
            if (model, confidence, size, CALIBRANT) in self.values
        ]
        return max(found) if highest else min(found)


def read_honesty(rows: Iterable[Row]) -> Honesty:
    """Return the results of finished rows, means over seeds."""
    found: dict[tuple[str, str, int, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    seeds, reasons = set(), Counter[str]()
    for row in rows:
        seeds.add(row.seed)
        for record in row.records:
            method = record.labels["method"]
            key = (row.key["model"], row.key["confidence"], row.key["samples"], method)
            for measure, value in record.values.items():
                if value is not None:
                    found[key][measure].append(value)
            if "reason" in record.labels:
                reasons[f"{method}: {record.labels['reason']}"] += 1
    if not found:
        raise InputError("llm: expected finished rows, got none; run the experiment first")
    means = {
        key: {measure: fmean(values) for measure, values in measures.items()}
        for key, measures in found.items()
    }
    return Honesty(means, len(seeds), reasons)


def honesty_page(rows: Iterable[Row], *, left_out: Mapping[str, str] | None = None) -> str:
    """Return the page of finished rows.

    Args:
        rows: The rows of an experiment whose worker is ``llm``.
        left_out: Why confidences were left out, by model and confidence.
    """
    results = read_honesty(rows)
    parts = [_introduction(results), _summary(results)]
    parts += [_repairs(results), _groups(results), _combining(results)]
    parts += [_models(results, confidence) for confidence in results.confidences]
    parts.append(markdown_list("Left out", left_out or {}))
    parts.append(markdown_list("Not fitted", {what: f"{n} times" for what, n in results.reasons.items()}))
    return "\n".join(part for part in parts if part)


def honesty_figure(rows: Iterable[Row]) -> ModelHonestyDisplay:
    """Return the figure of finished rows: the first confidence of all models, before and after repair."""
    results = read_honesty(rows)
    confidence, size = results.confidences[0], results.size
    models = []
    for model in results.models(confidence, size):
        before = results.of(model, confidence, size, UNCALIBRATED)
        after = results.of(model, confidence, size, CALIBRANT)
        models.append(
            ModelHonesty(
                model,
                accuracy=before["accuracy"],
                before=before["mean_confidence"],
                after=after["mean_confidence"],
                error_before=before["ece"],
                error_after=after["ece"],
            )
        )
    title = f"What {number_of(len(models), 'model')} claim to know, and how often they are right"
    return ModelHonestyDisplay(models, confidence, f"repaired with {size:,} answers").plot(title=title)


def _introduction(results: Honesty) -> str:
    sizes = ", ".join(f"{size:,}" for size in results.sizes)
    models = {key[0] for key in results.values}
    counts = f"{number_of(len(models), 'model')}, {number_of(results.seeds, 'seed')}"
    return f"""{counts}, {sizes} fitting samples. All measures are those of
other answers of the same model: as many as there are, at least 300 and a fifth of the fitting samples. Tables
show means over models.

- **{CALIBRANT}** is what `calibrant calibrate` returns, **{CALIBRANT_BY_GROUP}** the same if it knows the
  subjects of the questions (`--by category`).
- **AUROC**: how well the confidence separates right answers from wrong ones; 50 is chance.
- **ECE within subjects**: the mean ECE of the subjects, weighted by their numbers of answers. Part of it is
  chance: on so few answers even a perfect confidence has an ECE above 0, which a column shows.
"""


def _summary(results: Honesty) -> str:
    """Return what the models state, and what is right, over all models."""
    size = results.sizes[0]
    lines = []
    for confidence in results.confidences:
        models = results.models(confidence, size)
        own = [results.of(model, confidence, size, UNCALIBRATED) for model in models]
        over = sum(each["mean_confidence"] > each["accuracy"] for each in own)
        means = [
            _points(fmean(each[name] for each in own))
            for name in ("mean_confidence", "accuracy", "ece", "smece", "auroc_correct")
        ]
        dropped = [f"{sum(each[name] for each in own):,.0f}" for name in ("n_missing", "n_impossible")]
        lines.append([confidence, f"{len(models)}", *means, f"{over} of {len(models)}", *dropped])
    heads = ["confidence", "models", "states %", "right %", "ECE %", "smECE %", "AUROC %", "overconfident"]
    table = markdown_table([*heads, "missing", "impossible"], lines)
    return (
        f"## How honest the models are\n\n{table}\nMissing and impossible (below 0 or above 1) confidences "
        "are dropped; their numbers are those of all models together.\n"
    )


def _repairs(results: Honesty) -> str:
    parts = ["## What repairs them\n"]
    for confidence in results.confidences:
        methods = [name for name in results.methods(confidence) if name != CALIBRANT_BY_GROUP]
        columns = [
            (size, measure)
            for size in results.sizes
            for measure in _REPAIRED
            if results.models(confidence, size)
        ]
        values = [
            [results.mean(measure, confidence, size, method) for size, measure in columns]
            for method in methods
        ]
        best = [min(column) for column in zip(*values, strict=True)]
        heads = [f"{size:,}: {quantity(measure).heading}" for size, measure in columns]
        lines = [
            [method, *_marked(each, best, [measure for _, measure in columns])]
            for method, each in zip(methods, values, strict=True)
        ]
        parts.append(f"**{markdown(confidence)}**\n\n{markdown_table(['method', *heads], lines)}")
        if RIVAL in methods:
            parts.append(_against_rival(results, confidence))
    return "\n".join(parts)


def _against_rival(results: Honesty, confidence: str) -> str:
    shares = ", ".join(
        f"{100 * results.share_better('nll', confidence, size, CALIBRANT, RIVAL):.0f} % with {size:,}"
        for size in results.sizes
        if results.models(confidence, size)
    )
    return f"Models for which {CALIBRANT} has a smaller NLL than {RIVAL} (a tie is half): {shares} answers.\n"


def _groups(results: Honesty) -> str:
    lines = []
    for confidence in results.confidences:
        for size in (size for size in results.sizes if results.models(confidence, size)):
            means = [
                results.mean("group_ece", confidence, size, method)
                for method in (UNCALIBRATED, CALIBRANT, CALIBRANT_BY_GROUP)
            ]
            perfect = results.mean("group_ece_of_perfect", confidence, size, CALIBRANT_BY_GROUP)
            better = results.share_better("group_ece", confidence, size, CALIBRANT_BY_GROUP, CALIBRANT)
            nll = [results.mean("nll", confidence, size, name) for name in (CALIBRANT, CALIBRANT_BY_GROUP)]
            lines.append(
                [
                    confidence,
                    f"{size:,}",
                    *map(_points, means),
                    f"{100 * (means[2] / means[1] - 1):+.0f}",
                    f"{100 * better:.0f}",
                    _points(perfect),
                    *(quantity("nll").text(each) for each in nll),
                ]
            )
    heads = ["confidence", "answers", UNCALIBRATED, CALIBRANT, CALIBRANT_BY_GROUP, "change %"]
    more = [
        "better for % of models",
        "a perfect confidence",
        f"NLL, {CALIBRANT}",
        f"NLL, {CALIBRANT_BY_GROUP}",
    ]
    return (
        f"## What subjects add\n\nECE within subjects in percent.\n\n{markdown_table([*heads, *more], lines)}"
    )


def _combining(results: Honesty) -> str:
    methods = [COMBINATION, CALIBRANT, CALIBRANT_BY_GROUP]
    methods = [name for name in methods if name in results.methods(COMBINED)]
    if not methods:
        return ""
    lines = [line for size in results.sizes for line in _combined_lines(results, size, methods)]
    heads = ["answers", "repaired", "AUROC % ↑", "Brier ↓"]
    more = ["better AUROC for % of models", "smaller Brier for % of models"]
    return (
        f"## What combining adds\n\n{markdown_table([*heads, *more], lines)}\n"
        "On answers that have all confidences of their model. The best single confidence is the one that is "
        f"best for each model on these very answers, repaired by {CALIBRANT}. `{COMBINATION}` is the method "
        f"of this name alone; all, {CALIBRANT}: what `calibrant calibrate` returns for all confidences.\n"
    )


def _combined_lines(results: Honesty, size: int, methods: Sequence[str]) -> Iterator[list[str]]:
    auroc, brier = "complete_auroc_correct", "complete_brier"
    models = [
        model
        for model in results.models(COMBINED, size)
        if brier in results.of(model, COMBINED, size, CALIBRANT)
    ]
    if not models:
        return
    single = [
        (results.best_single(auroc, model, size, highest=True), results.best_single(brier, model, size))
        for model in models
    ]
    means = [fmean(column) for column in zip(*single, strict=True)]
    yield [f"{size:,}", "best single confidence", _points(means[0]), f"{means[1]:.4f}", "", ""]
    for method in methods:
        own = [results.of(model, COMBINED, size, method) for model in models]
        wins = [
            fmean(each[auroc] > best for each, (best, _) in zip(own, single, strict=True)),
            fmean(each[brier] < best for each, (_, best) in zip(own, single, strict=True)),
        ]
        name = method if method == COMBINATION else f"all, {method}"
        mean_brier = fmean(each[brier] for each in own)
        yield [
            f"{size:,}",
            name,
            _points(fmean(each[auroc] for each in own)),
            f"{mean_brier:.4f}",
            *(f"{100 * share:.0f}" for share in wins),
        ]


def _models(results: Honesty, confidence: str) -> str:
    first, size = results.sizes[0], results.size
    lines = []
    for model in results.models(confidence, first):
        own = results.of(model, confidence, first, UNCALIBRATED)
        after = results.values.get((model, confidence, size, CALIBRANT), {}).get("ece")
        gap = own["mean_confidence"] - own["accuracy"]
        values = [own[name] for name in ("mean_confidence", "accuracy")]
        errors = [own[name] for name in ("ece", "smece", "auroc_correct")]
        shown = [*map(_points, values), f"{100 * gap:+.1f}", *map(_points, errors)]
        lines.append((own["ece"], [model, *shown, "" if after is None else _points(after)]))
    heads = [
        "model",
        "states %",
        "right %",
        "gap",
        "ECE %",
        "smECE %",
        "AUROC %",
        f"ECE %, repaired with {size:,}",
    ]
    ordered = [line for _, line in sorted(lines, key=lambda each: each[0])]
    table = markdown_table(heads, ordered)
    return f"## Each model: {markdown(confidence)}\n\nThe most honest first.\n\n{table}"


def _marked(values: Sequence[float], best: Sequence[float], measures: Sequence[str]) -> list[str]:
    """Return numbers as text, the best of each column in bold."""
    texts = [
        (f"{value:.4f}" if measure in ("nll", "brier") else _points(value))
        for value, measure in zip(values, measures, strict=True)
    ]
    return [
        f"**{text}**" if value == least else text
        for text, value, least in zip(texts, values, best, strict=True)
    ]


def _points(share: float) -> str:
    return str(points(share, 1))
