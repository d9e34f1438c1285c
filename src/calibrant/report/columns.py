"""Columns of the comparison: which candidate is best, and which are not significantly worse."""

import math
from collections.abc import Mapping, Sequence

from calibrant.metrics.names import MEASURES
from calibrant.report.page import ComparedMeasure
from calibrant.report.significance import Samples, can_test, significantly_worse

# With more samples, binned errors are not tested: they are computed again for each resample.
_BINNED_UP_TO = 200_000


def columns(
    names: Sequence[str],
    metrics: Mapping[str, Mapping[str, float | None]],
    samples: Mapping[str, Samples],
    *,
    seed: int = 0,
) -> tuple[ComparedMeasure, ...]:
    """Mark the best of each measure, and those that a paired bootstrap finds not significantly worse.

    Args:
        names: Measures from :data:`calibrant.metrics.names.MEASURES`.
        metrics: Measures of each candidate.
        samples: What the tests need of each candidate, for the same samples; if any is missing, nothing is
            tested.
        seed: Seed of the resamples.
    """
    best, tests = {}, {}
    for name in names:
        values = {who: value for who, each in metrics.items() if (value := each.get(name)) is not None}
        top = MEASURES[name].best(list(values.values())) if len(values) > 1 else math.nan
        best[name] = tuple(who for who, value in values.items() if value == top)
        others = [who for who in values if who not in best[name]]
        if best[name] and others and _can_test(name, samples, metrics):
            tests[name] = [(name, who, best[name][0]) for who in others]
    worse = significantly_worse([test for each in tests.values() for test in each], samples, seed=seed)
    compared = []
    for name in names:
        measure = MEASURES[name]
        near = tuple(test[1] for test in tests.get(name, ()) if test not in worse)
        look = (measure.short, measure.title, measure.better, measure.percent)
        compared.append(ComparedMeasure(name, *look, best[name], near, name in tests))
    return tuple(compared)


def _can_test(name: str, samples: Mapping[str, Samples], candidates: Mapping[str, object]) -> bool:
    if any(who not in samples for who in candidates) or not can_test(MEASURES[name]):
        return False
    total = sum(len(each.outcomes) for each in samples.values())
    return MEASURES[name].terms is not None or total <= _BINNED_UP_TO
