"""Compare two models on the same samples: which differences are more than chance?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.evaluate import MAX_WORK, during, fitting_measures, inputs_of, why_not
from calibrant.evaluation.given import PredictionsLike, given_predictions
from calibrant.evaluation.tables import paired_table, remarks_on
from calibrant.inference.draws import RESAMPLES
from calibrant.inference.memory import remembering
from calibrant.inference.paired import Measured, PairedDifference, differences_from
from calibrant.inputs import Progress
from calibrant.metrics.measure import Measure, Reads
from calibrant.metrics.names import MEASURES
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import rows_of_units
from calibrant.show.table import Table


@dataclass(frozen=True, eq=False)
class PairedComparison(Result):
    """Differences between two models on the same samples, by measure.

    Attributes:
        n: Number of samples.
        differences: The difference of each measure.
        skipped: Why each other measure was left out, by name.
        n_units: Number of units that samples belong to; None if none were given.
        left_out: Number of samples of each model that the other one does not have.
    """

    n: int
    differences: Mapping[str, PairedDifference]
    skipped: Mapping[str, str]
    n_units: int | None = None
    left_out: tuple[int, int] = (0, 0)

    def to_table(self) -> Table:
        """Return each measure of both models, and the difference with its interval and test."""
        title = f"Two models on the same {rows_of_units(self.n, self.n_units)}"
        notes = remarks_on(self.skipped)
        if any(self.left_out):
            ours, theirs = self.left_out
            notes.append(
                f"left out, because only one model has them: {ours:,} of this, {theirs:,} of the other"
            )
        return paired_table(self.differences, title=title, notes=notes)


@remembering()
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

    Samples with ids are matched by them, see :func:`matched`. Otherwise the rows of both must be the same
    samples in the same order. Labels, groups, units or weights that differ are refused; weights and units of
    one of them count for both.

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
    given = given_predictions(a, name="a"), given_predictions(b, name="b")
    a, b = (each.split() for each in matched(*given))
    check_pair(a, b)
    w = a.weights if a.weights is not None else b.weights
    named_units = a if a.units is not None else b
    of_a, of_b = (inputs_of(each, each.outcomes(), w) for each in (a, b))
    differences, skipped = {}, {}
    named = fitting_measures(measures, min(a, b, key=lambda each: each.k or 0))
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
                units=named_units.units,
                n_resamples=n_resamples,
                level=level,
                seed=seed,
                max_work=MAX_WORK,
                progress=during(progress, measure, done, len(named)),
            )["a"]
        except InputError as error:
            skipped[name] = str(error)
    return PairedComparison(
        a.n,
        FrozenDict(differences),
        FrozenDict(skipped),
        named_units.n_units,
        (given[0].n - a.n, given[1].n - b.n),
    )


def matched(a: Predictions, b: Predictions) -> tuple[Predictions, Predictions]:
    """Return the samples that both have, in the order of the first; without ids, both as they are.

    Several samples may have the same id only if they belong to units: the answers of one model to a question
    are then matched with those of the other in their order, and the rest is left out.

    Example:
        >>> a = Predictions(confidence=[0.9, 0.8, 0.7], correct=[1, 1, 0], ids=["x", "y", "z"])
        >>> b = Predictions(confidence=[0.5, 0.6], correct=[1, 0], ids=["z", "x"])
        >>> [each.confidence.tolist() for each in matched(a, b)]
        [[0.9, 0.7], [0.6, 0.5]]
    """
    if a.ids is None and b.ids is None:
        return a, b
    places = places_of(a, b)
    shared = np.flatnonzero(places >= 0)
    if len(shared) < 2:
        raise InputError(f"ids: expected at least two samples that both models have, got {len(shared)}")
    return a.take(shared), b.take(places[shared])


def places_of(a: Predictions, b: Predictions) -> npt.NDArray[np.int64]:
    """Return the row of the second with the id of each row of the first, -1 where there is none.

    Equal ids are matched in their order, see :func:`matched`.

    Example:
        >>> a = Predictions(confidence=[0.9, 0.8, 0.7], ids=["x", "y", "z"])
        >>> places_of(a, Predictions(confidence=[0.5, 0.6], ids=["z", "x"]))
        array([ 1, -1,  0])
    """
    if a.ids is None or b.ids is None:
        raise InputError(
            "ids: expected names of the samples of both models, got those of one; name them with ids="
        )
    repeats = [_occurrence(each) for each in (a, b)]
    most = 1 + int(max(each.max() for each in repeats))
    _, codes = np.unique(np.concatenate([a.ids.cpu().numpy(), b.ids.cpu().numpy()]), return_inverse=True)
    ours, theirs = codes[: a.n] * most + repeats[0], codes[a.n :] * most + repeats[1]
    _, of_a, of_b = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    places = np.full(a.n, -1)
    places[of_a] = of_b
    return places


def all_matched(models: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """Return the samples that all models have, in the order of the first; without ids, all as they are."""
    (_, first), *others = models.items()
    for _, other in others:
        first, _ = matched(first, other)
    return {name: matched(first, each)[1] for name, each in models.items()}


def _occurrence(predictions: Predictions) -> npt.NDArray[np.int64]:
    """Return how many samples before each one have its id; repeated ids need units."""
    assert predictions.ids is not None
    _, place, counts = np.unique(predictions.ids.cpu().numpy(), return_inverse=True, return_counts=True)
    order = np.argsort(place, kind="stable")
    number = np.empty(len(place), dtype=np.int64)
    number[order] = np.arange(len(place)) - np.repeat(counts.cumsum() - counts, counts)
    if counts.max() > 1 and predictions.units is None:
        second = int(np.argmax(number > 0))
        first = int(np.argmax(place == place[second]))
        raise InputError(
            f"ids: expected a different one in each row, got the same in rows {first} and {second}; say "
            "what such rows belong to with units="
        )
    return number


def check_pair(a: Predictions, b: Predictions) -> None:
    """Refuse predictions of two models that are not about the same samples in the same order."""
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
    if a.units is not None and b.units is not None and not torch.equal(a.units.cpu(), b.units.cpu()):
        row = int((a.units.cpu() != b.units.cpu()).nonzero()[0])
        raise InputError(f"units: expected the same samples in the same order, got other units in row {row}")
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
