"""The panels that depend on what was given: temperatures, shifted samples, foreign samples."""

from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.detection import detect_ood
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.temperature_curve import temperature_curve
from calibrant.metrics.ood import ood_curve
from calibrant.metrics.scores import confidence_score
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.smart import SMART
from calibrant.report.columns import columns
from calibrant.report.figures import POINTS, figures, number, numbers, round_digits
from calibrant.report.page import (
    Candidate,
    Detection,
    Foreign,
    Shift,
    Temperatures,
    WantedTemperature,
)

_SHIFTED = ("accuracy", "mean_confidence", "nll", "brier", "ece")


def temperatures(
    predictions: Predictions, calibrator: Calibrator | None, fitted_on: str, seed: int
) -> Temperatures | None:
    """Return the margin -> temperature curve, or none where no temperature can be fitted."""
    smart = calibrator if isinstance(calibrator, SMART) and calibrator.indicator == "margin" else None
    try:
        curve = temperature_curve(predictions, calibrator=smart, seed=seed)
    except CalibrantError:
        return None
    return Temperatures(
        fitted_on=fitted_on,
        margins=tuple(map(round_digits, curve.margins.tolist())),
        temperature=tuple(map(round_digits, curve.temperature.tolist())),
        single=curve.single,
        wanted=tuple(
            WantedTemperature(
                margins=tuple(map(round_digits, group.margins.tolist())),
                lowest=tuple(map(round_digits, group.lowest.tolist())),
                highest=numbers(group.highest),
            )
            for group in curve.feasible
        ),
    )


def shift_panel(
    shifted: Predictions | None, calibrator: Calibrator | None, name: str, *, method: str = ""
) -> Shift | None:
    """Measure a model, and its repair if there is one, on samples from elsewhere."""
    if shifted is None:
        return None
    shown = {"as it is": shifted}
    if calibrator is not None:
        shown[f"after {method}"] = calibrated(calibrator, shifted)
    metrics = {
        title: {key: number(value) for key, value in evaluate(each, measures="core").metrics.items()}
        for title, each in shown.items()
    }
    rows = [Candidate(title, title, "", metrics[title], figures(each)) for title, each in shown.items()]
    measured = [key for key in _SHIFTED if key in rows[0].metrics]
    return Shift(
        name=name,
        n=shifted.n,
        columns=columns(measured, metrics, shown),
        before=rows[0],
        after=rows[1] if len(rows) > 1 else None,
    )


def foreign_panel(known: Predictions, foreign: Predictions | None, name: str) -> Foreign | None:
    """Rate every score that both sets of predictions allow."""
    if foreign is None:
        return None
    rated = detect_ood(known, foreign)
    found = []
    for score, scores in rated.items():
        curve = ood_curve(*_pair(score, known, foreign), max_points=POINTS)
        found.append(
            Detection(
                score,
                scores.auroc,
                scores.aupr_in,
                scores.aupr_out,
                scores.fpr95,
                tuple(map(round_digits, curve.passed.tolist())),
                tuple(map(round_digits, curve.kept.tolist())),
            )
        )
    return Foreign(name, foreign.n, tuple(found))


def _pair(score: str, known: Predictions, foreign: Predictions) -> list[Tensor]:
    if known.confidence is not None and foreign.confidence is not None:
        return [known.confidence, foreign.confidence]
    if known.logits is not None and foreign.logits is not None:
        return [confidence_score(score, logits=each.logits) for each in (known, foreign)]
    return [confidence_score(score, probs=each.to_probs()) for each in (known, foreign)]
