"""Compare several models pairwise, each pair on the samples that both have, with a correction."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.evaluate import Evaluation, evaluate
from calibrant.evaluation.paired import PairedComparison, paired_comparison
from calibrant.evaluation.tables import measures_table, models_table, remarks_on
from calibrant.files import without_nan
from calibrant.inference.corrections import corrected
from calibrant.inference.draws import RESAMPLES
from calibrant.inputs import Progress
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import rows_of_units
from calibrant.show.table import Table


@dataclass(frozen=True, eq=False)
class ModelComparison(Result):
    """Several models, and the differences between each two of them.

    Attributes:
        models: The measures of each model on all its samples.
        pairs: The comparison of each two models, on the samples that both have.
        p_corrected: The p-values of all pairs by measure, corrected for the number of pairs by Holm's method.
    """

    models: Mapping[str, Evaluation]
    pairs: Mapping[tuple[str, str], PairedComparison]
    p_corrected: Mapping[str, Mapping[tuple[str, str], float]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        pairs = [
            {
                "models": list(names),
                "n": pair.n,
                **({} if pair.n_units is None else {"n_units": pair.n_units}),
                "left_out": list(pair.left_out),
                "differences": {
                    measure: {**asdict(found), "p_corrected": self.p_corrected[measure][names]}
                    for measure, found in pair.differences.items()
                },
            }
            for names, pair in self.pairs.items()
        ]
        models = {name: each.to_dict() for name, each in self.models.items()}
        plain: dict[str, Any] = without_nan({"models": models, "pairs": pairs})
        return plain

    def to_table(self) -> Table:
        """Return the measures of each model."""
        columns = {name: each.metrics for name, each in self.models.items()}
        sizes = [
            f"{name}: {rows_of_units(each.n, each.n_units, 'predictions')}"
            for name, each in self.models.items()
        ]
        return measures_table(columns, title=f"{len(columns)} models", notes=sizes)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The differences between each two models."""
        first = next(iter(self.pairs.values()))
        return (
            models_table(
                self.pairs,
                self.p_corrected,
                notes=[*map(_extent, self.pairs.items()), *remarks_on(first.skipped)],
            ),
        )


def compare_models(
    models: Mapping[str, Predictions],
    *,
    measures: str | Sequence[str] = "core",
    n_bins: int = 15,
    n_resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> ModelComparison:
    """Compare each two of several models on the samples that both have, by a paired bootstrap.

    The p-values of a measure are corrected for the number of pairs by Holm's method.

    Args:
        models: Predictions of each model by name, with ids by which samples are matched; see
            :func:`~calibrant.evaluation.paired.matched`.
        measures: ``"core"``, ``"all"``, or names from :data:`calibrant.metrics.names.MEASURES`.
        n_bins: Number of bins of the binned measures.
        n_resamples: Number of bootstrap resamples.
        level: Level of the intervals, which are not corrected.
        seed: Equal seeds give equal results.
        progress: Called with what is being compared, the number done, and the total.

    Example:
        >>> a = Predictions(confidence=[0.9, 0.8, 0.7] * 9, correct=[1, 1, 0] * 9, ids=range(27))
        >>> b = Predictions(confidence=[0.9, 0.4, 0.7] * 9, correct=[1, 0, 0] * 9, ids=range(27))
        >>> found = compare_models({"a": a, "b": b}, measures=["accuracy"])
        >>> round(found.pairs["a", "b"].differences["accuracy"].difference, 3)
        0.333
    """
    if len(models) < 2:
        raise InputError(f"models: expected at least two, got {len(models)}")
    named, found = list(combinations(models, 2)), {}
    options: dict[str, Any] = {"measures": measures, "n_bins": n_bins}
    for done, (a, b) in enumerate(named):
        if progress is not None:
            progress(f"{a} and {b}", done, len(named))
        try:
            found[a, b] = paired_comparison(
                models[a], models[b], **options, n_resamples=n_resamples, level=level, seed=seed
            )
        except InputError as error:
            raise InputError(f"{a} and {b}: {error}") from None
    shared = [
        name for name in found[named[0]].differences if all(name in p.differences for p in found.values())
    ]
    p_corrected = {
        name: FrozenDict(
            zip(
                named,
                corrected(np.array([p.differences[name].p_value for p in found.values()]), "holm").tolist(),
                strict=True,
            )
        )
        for name in shared
    }
    return ModelComparison(
        FrozenDict({name: evaluate(each, **options) for name, each in models.items()}),
        FrozenDict(found),
        FrozenDict(p_corrected),
    )


def split_by_group(predictions: Predictions) -> dict[str, Predictions]:
    """Return the samples of each group, such as those of each model of a file, by its name."""
    if predictions.groups is None:
        raise InputError("predictions: expected groups, got none; pass groups=")
    codes = predictions.groups.codes
    return {
        name: predictions.take(codes == place).replaced(groups=None)
        for place, name in enumerate(predictions.groups.names)
    }


def _extent(both: tuple[tuple[str, str], PairedComparison]) -> str:
    (a, b), pair = both
    (of_a, of_b), on = pair.left_out, rows_of_units(pair.n, pair.n_units)
    alone = f"; left out: {of_a:,} of {a}, {of_b:,} of {b}" if of_a or of_b else ""
    return f"{a} - {b}: on the same {on}{alone}"
