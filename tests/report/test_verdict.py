"""The verdict: plain words that follow from the numbers."""

import pytest

from calibrant.report.verdict import verdict


def measures(confidence, accuracy, ece):
    return {"mean_confidence": confidence, "accuracy": accuracy, "ece": ece}


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (measures(0.93, 0.85, 0.08), "Overconfident: says 93.0 %, is right 85.0 %."),
        (measures(0.70, 0.85, 0.15), "Underconfident: says 70.0 %, is right 85.0 %."),
        (measures(0.851, 0.85, 0.01), "About right: says 85.1 %, is right 85.0 %."),
        (measures(0.851, 0.85, 0.06), "Right on average, but not in detail: says 85.1 %, is right 85.0 %."),
    ],
)
def test_the_model_as_it_is(before, words):
    assert verdict(before).headline == words


@pytest.mark.parametrize(
    ("ece", "words"),
    [
        (0.005, "SMART repairs nearly all of it."),
        (0.02, "SMART repairs most of it."),
        (0.05, "SMART repairs part of it."),
        (0.09, "SMART repairs a little of it."),
        (0.10, "SMART hardly changes that."),
        (0.12, "SMART hardly changes that."),
    ],
)
def test_how_much_a_repair_helps(ece, words):
    told = verdict(measures(0.95, 0.85, 0.1), measures(0.85, 0.85, ece), method="SMART")
    assert told.headline.endswith(words)


def test_leaving_it_as_it_is_can_be_best():
    same = measures(0.85, 0.85, 0.004)
    told = verdict(same, same, method="uncalibrated", is_identity=True)
    assert told.headline.endswith("no method that was tried does better than leaving it as it is.")
    assert told.confidence_after is None


def test_a_model_without_error_is_no_division_by_zero():
    perfect = measures(1.0, 1.0, 0.0)
    assert verdict(perfect, perfect, method="SMART").headline.startswith("About right")
