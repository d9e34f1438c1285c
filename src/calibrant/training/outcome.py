"""What a run came to: the model as trained and as repaired, on its test part, under shift, abroad."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.compare import Comparison, MethodResult, choose, compare
from calibrant.evaluation.detection import detect_ood
from calibrant.evaluation.evaluate import evaluate
from calibrant.inputs import Progress
from calibrant.metrics.ood import OODScores
from calibrant.posthoc.names import resolve_methods
from calibrant.training.config.settings import PosthocSettings
from calibrant.training.measure import VALIDATION
from calibrant.training.run import Run

MEASURES = (*VALIDATION, "aurc", "auroc_ovo")
AS_TRAINED = "uncalibrated"


@dataclass(frozen=True, eq=False)
class MethodOutcome:
    """How the model does when repaired by one post-hoc method, or as it was trained.

    Attributes:
        measures: By set, ``test`` first, then the shifted ones as ``shifted/NAME``.
        detection: By foreign set, how well the largest probability tells its samples from those of the test.
    """

    measures: Mapping[str, Mapping[str, float]]
    detection: Mapping[str, OODScores]


@dataclass(frozen=True, eq=False)
class Outcome:
    """All that a run came to.

    Attributes:
        comparison: Post-hoc methods, fitted on the validation part and measured on the test part.
        chosen: The one to use.
        methods: What each method that could be fitted does; the model as trained comes first.
    """

    comparison: Comparison
    chosen: MethodResult
    methods: Mapping[str, MethodOutcome]

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        return {
            name: {
                "measures": {part: dict(values) for part, values in each.measures.items()},
                "detection": {
                    part: {"auroc": found.auroc, "aupr_in": found.aupr_in, "fpr95": found.fpr95}
                    for part, found in each.detection.items()
                },
            }
            for name, each in self.methods.items()
        }


def check_posthoc(settings: PosthocSettings) -> tuple[str, ...]:
    """Return the methods to try, the model as it is among them; names that do not exist are refused."""
    try:
        named = tuple(resolve_methods((AS_TRAINED, *settings.methods)))
    except InputError as error:
        raise InputError(f"posthoc.{error}") from None
    if settings.choose not in ("auto", *named):
        raise InputError(
            f"posthoc.choose: expected auto or one of {', '.join(named)}, got {settings.choose!r}; "
            "add it to posthoc.methods"
        )
    return named


def assess(run: Run, *, progress: Progress | None = None) -> Outcome:
    """Fit post-hoc methods on the validation part and measure everything with each of them."""
    settings = run.config.posthoc
    comparison = compare(
        run.predictions["validation"],
        test=run.predictions["test"],
        methods=check_posthoc(settings),
        n_folds=settings.folds,
        seed=run.config.seed,
        progress=progress,
    )
    if settings.choose in comparison.skipped:
        raise InputError(
            f"posthoc.choose: expected a method that can be fitted, got {settings.choose}: "
            f"{comparison.skipped[settings.choose]}"
        )
    chosen = choose(comparison) if settings.choose == "auto" else comparison[settings.choose]
    methods = {}
    for done, result in enumerate(comparison.results):
        if progress is not None:
            progress(f"measuring {result.name}", done, len(comparison.results))
        methods[result.name] = _measured(run.predictions, result)
    return Outcome(comparison, chosen, methods)


def _measured(predictions: Mapping[str, Predictions], result: MethodResult) -> MethodOutcome:
    def repaired(part: Predictions) -> Predictions:
        return part if result.name == AS_TRAINED else calibrated(result.calibrator, part)

    test = repaired(predictions["test"])
    known = {name: each for name, each in predictions.items() if name.startswith("shifted/")}
    foreign = {name: each for name, each in predictions.items() if name.startswith("foreign/")}
    return MethodOutcome(
        {
            "test": evaluate(test, measures=MEASURES).metrics,
            **{name: evaluate(repaired(each), measures=MEASURES).metrics for name, each in known.items()},
        },
        {name: detect_ood(test, repaired(each))["msp"] for name, each in foreign.items()},
    )
