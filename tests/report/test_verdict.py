"""The verdict: words that follow from the numbers."""

import pytest

from calibrant.report.page import Difference, ModelPair
from calibrant.report.verdict import verdict, verdict_on_models


def measures(confidence, accuracy, ece):
    return {"mean_confidence": confidence, "accuracy": accuracy, "ece": ece}


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (measures(0.93, 0.85, 0.08), "Overconfident: confidence 93.0 %, accuracy 85.0 %."),
        (measures(0.70, 0.85, 0.15), "Underconfident: confidence 70.0 %, accuracy 85.0 %."),
        (measures(0.851, 0.85, 0.01), "Well calibrated: confidence 85.1 %, accuracy 85.0 %."),
        (
            measures(0.851, 0.85, 0.06),
            "Calibrated on average, but not at each confidence: confidence 85.1 %, accuracy 85.0 %.",
        ),
    ],
)
def test_the_uncalibrated_model(before, words):
    assert verdict(before).headline == words


@pytest.mark.parametrize(
    ("ece", "words"),
    [
        (0.005, "SMART removes nearly all of the calibration error."),
        (0.02, "SMART removes most of the calibration error."),
        (0.05, "SMART removes part of the calibration error."),
        (0.09, "SMART removes a little of the calibration error."),
        (0.10, "SMART hardly changes the calibration error."),
        (0.12, "SMART hardly changes the calibration error."),
    ],
)
def test_how_much_a_method_improves(ece, words):
    told = verdict(measures(0.95, 0.85, 0.1), measures(0.85, 0.85, ece), method="SMART")
    assert told.headline.endswith(words)


def test_the_uncalibrated_model_can_be_best():
    same = measures(0.85, 0.85, 0.004)
    told = verdict(same, same, method="uncalibrated", is_identity=True)
    assert told.headline.endswith("no method tested is better than the uncalibrated model.")
    assert told.confidence_after is None


def test_a_model_without_error_is_no_division_by_zero():
    perfect = measures(1.0, 1.0, 0.0)
    assert verdict(perfect, perfect, method="SMART").headline.startswith("Well calibrated")


def difference(name, first, other, low, high, *, percent=True):
    better = "higher" if name == "accuracy" else "lower"
    return Difference(name, better, percent, first, other, first - other, low, high, 0.2, name)


def against(other, *, ece, span, nll=0.6):
    """The first model, whose ECE is 10 %, against another one."""
    lines = (
        difference("accuracy", 0.85, 0.84, -0.01, 0.03),
        difference("nll", 0.7, nll, 0.05, 0.15, percent=False),
        difference("ece", 0.1, ece, *span),
    )
    return ModelPair(other, lines)


CLEAR, UNCLEAR, WORSE = (0.03, 0.07), (-0.01, 0.03), (-0.07, -0.03)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (
            {"b": (0.05, CLEAR)},
            "b is better calibrated than a: ECE 5.0 % against 10.0 %, more than chance explains.",
        ),
        (
            {"b": (0.15, WORSE)},
            "a is better calibrated than b: ECE 10.0 % against 15.0 %, more than chance explains.",
        ),
        (
            {"b": (0.09, UNCLEAR)},
            "Neither b nor a is clearly better calibrated: ECE 9.0 % against 10.0 %, a difference that "
            "chance can explain.",
        ),
        (
            {"b": (0.09, UNCLEAR), "c": (0.05, CLEAR)},
            "c is better calibrated than a, and the best of 3 models: ECE 5.0 % against 10.0 %, more than "
            "chance explains.",
        ),
        (
            {"b": (0.2, WORSE), "c": (0.15, WORSE)},
            "a is better calibrated than c, and the best of 3 models: ECE 10.0 % against 15.0 %, more than "
            "chance explains.",
        ),
    ],
)
def test_which_model_is_better_and_whether_chance_explains_it(others, words):
    metrics = {"a": measures(0.9, 0.85, 0.1)} | {
        name: measures(0.9, 0.84, ece) for name, (ece, _) in others.items()
    }
    pairs = [against(name, ece=ece, span=span) for name, (ece, span) in others.items()]
    told = verdict_on_models(metrics, pairs)
    assert told.headline == words
    assert "is better, more than chance explains (p = 0.200)." in told.detail
    assert "84.0 %, which chance can explain (p = 0.200)." in told.detail


def test_where_the_ece_is_not_tested_the_brier_score_decides():
    metrics = {name: measures(0.9, 0.85, 0.1) | {"brier": b} for name, b in (("a", 0.3), ("b", 0.2))}
    pair = ModelPair("b", (difference("brier", 0.3, 0.2, 0.05, 0.15, percent=False),))
    told = verdict_on_models(metrics, [pair])
    assert told.headline == "b is better than a: Brier 0.2000 against 0.3000, more than chance explains."
