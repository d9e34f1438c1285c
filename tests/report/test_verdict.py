"""The verdict: words that follow from the numbers."""

import pytest

from calibrant.report.verdict import verdict


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
