"""Compare two models on the same samples: which differences are more than chance?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.evaluate import MAX_WORK, during, inputs_of, why_not
from calibrant.evaluation.given import PredictionsLike, given_predictions
from calibrant.evaluation.tables import paired_table, remarks_on
from calibrant.inference.draws import RESAMPLES
from calibrant.inference.paired import Measured, PairedDifference, differences_from
from calibrant.inputs import Progress
from calibrant.metrics.measure import Measure, Reads
from calibrant.metrics.names import MEASURES, resolve_measures
from calibrant.results import FrozenDict, Result
from calibrant.show.table import Table


@dataclass(frozen=True, eq=False)
class PairedComparison(Result):
    """Differences between two models on the same samples, by measure."""

    n: int
    differences: Mapping[str, PairedDifference]
    skipped: Mapping[str, str]

    def to_table(self) -> Table:
        """Return each measure of both models, and the difference with its interval and test."""
        title = f"Two models on the same {self.n:,} samples"
        return paired_table(self.differences, title=title, notes=remarks_on(self.skipped))


def paired_comparison(
    a: PredictionsLike,
    b: PredictionsLike,
    *,
    measures: str | Sequence[str] = "core",
    n_bins: int = 15,
    n_resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> PairedComparison:
    """Compare two models on the same samples by a paired bootstrap of each measure.

    The rows of both must be the same samples in the same order; labels, groups or weights that differ are
    refused. Weights of one of them count for both.

    Args:
        a: Predictions of the first model, or the path of a file of them.
        b: Predictions of the second model.
        measures: ``"core"``, ``"all"``, or names from :data:`calibrant.metrics.names.MEASURES`.
        n_bins: Number of bins of the binned measures.
        n_resamples: Number of bootstrap resamples; fewer for measures that would take too long, as in
            :func:`~calibrant.evaluation.evaluate`.
        level: Share of repeated samples whose interval should cover the true difference.
        seed: Equal seeds give equal results.
        progress: Called with the title of the current measure, the number done, and the total; during its
            resamples also with their number.
    """
    a, b = given_predictions(a, name="a"), given_predictions(b, name="b")
    _check_pair(a, b)
    w = a.weights if a.weights is not None else b.weights
    of_a, of_b = (inputs_of(each, each.outcomes(), w) for each in (a, b))
    differences, skipped = {}, {}
    named = resolve_measures(measures)
    for done, name in enumerate(named):
        measure = MEASURES[name]
        if progress is not None:
            progress(measure.title, done, len(named))
        fewer = min(a, b, key=lambda each: each.k or 0)
        reason = why_not(measure, fewer, asked_for=not isinstance(measures, str))
        if not reason and measure.max_samples is not None:
            reason = "resampling a measure with quadratic cost takes too long"
        if reason:
            skipped[name] = reason
            continue
        form = _form(measure, a, b)
        try:
            models = {
                who: Measured.of(measure.function, inputs[form], measure.arguments(n_bins))
                for who, inputs in (("a", of_a), ("b", of_b))
            }
            differences[name] = differences_from(
                models,
                "b",
                units=a.units,
                n_resamples=n_resamples,
                level=level,
                seed=seed,
                max_work=MAX_WORK,
                progress=during(progress, measure, done, len(named)),
            )["a"]
        except InputError as error:
            skipped[name] = str(error)
    return PairedComparison(a.n, FrozenDict(differences), FrozenDict(skipped))


def _check_pair(a: Predictions, b: Predictions) -> None:
    if a.n != b.n:
        raise InputError(f"predictions: expected the same samples twice, got {a.n} and {b.n} samples")
    if a.labels is not None and b.labels is not None and not torch.equal(a.labels.cpu(), b.labels.cpu()):
        row = int((a.labels.cpu() != b.labels.cpu()).nonzero()[0])
        raise InputError(
            f"labels: expected the same samples in the same order, got {int(a.labels[row])} and "
            f"{int(b.labels[row])} in row {row}"
        )
    # Entries of several labels are questions about the data, not about the answers of a model.
    truths = [each.correct for each in (a, b) if each.n_rows < each.n and each.correct is not None]
    if len(truths) == 2 and not torch.equal(truths[0].cpu(), truths[1].cpu()):
        raise InputError("labels: expected the same samples in the same order, got other labels")
    if a.groups is not None and b.groups is not None and a.groups.values != b.groups.values:
        pairs = zip(a.groups.values, b.groups.values, strict=True)
        row, (ours, theirs) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        raise InputError(
            f"groups: expected the same samples in the same order, got {ours!r} and {theirs!r} in row {row}"
        )
    if a.weights is not None and b.weights is not None and not torch.equal(a.weights.cpu(), b.weights.cpu()):
        row = int((a.weights.cpu() != b.weights.cpu()).nonzero()[0])
        raise InputError(
            f"weights: expected the same samples in the same order, got {float(a.weights[row]):.6g} and "
            f"{float(b.weights[row]):.6g} in row {row}"
        )


def _form(measure: Measure, a: Predictions, b: Predictions) -> Reads:
    """Return what a measure reads of both: pairs if one has nothing else, logits only if both have them."""
    if None in (a.k, b.k):
        return "outcomes"
    without_logits = a.logits is None or b.logits is None
    return "probs" if measure.reads == "logits" and without_logits else measure.reads
