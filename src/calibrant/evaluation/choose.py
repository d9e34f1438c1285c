"""Choose a method: the simplest that is as good as the best, as far as the samples can tell."""

from calibrant.errors import InputError
from calibrant.evaluation.compare import Comparison, MethodResult, ProperScore


def choose(comparison: Comparison, *, score: ProperScore = "nll") -> MethodResult:
    """Return the simplest method that is within one standard error of the best by a proper score.

    The standard error is that of the mean difference to the best method on the same out-of-fold samples, so
    what makes a sample hard for all methods does not blur the choice. Methods are ordered from simple to
    complex as :data:`calibrant.posthoc.names.METHODS` lists them.
    """
    if score not in ("nll", "brier"):
        raise InputError(f"score: expected 'nll' or 'brier', got {score!r}")
    if not comparison.results:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in comparison.skipped.items())
        raise InputError(
            f"comparison: expected at least one method that could be fitted, got none ({reasons})"
        )
    best = min(comparison.results, key=lambda result: float(result.losses[score].mean()))
    for result in comparison.results:
        behind = result.losses[score] - best.losses[score]
        if float(behind.mean()) <= float(behind.std()) / len(behind) ** 0.5:
            return result
    return best
