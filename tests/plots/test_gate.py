"""The figure of a gate: on which side of its bound an interval is drawn."""

import numpy as np
import pytest

from calibrant.decisions.gate import Gate, Verdict
from calibrant.plots import GateDisplay


@pytest.mark.parametrize(
    ("requirement", "low", "high", "bound", "side"),
    [
        ("ece < 0.05", 0.01, 0.03, 0.05, 1),
        ("ece < 0.05", 0.1, 0.2, 0.05, -1),
        ("accuracy >= 0.8", 0.85, 0.95, 0.8, 1),
        ("accuracy >= 0.8", 0.5, 0.7, 0.8, -1),
    ],
)
def test_what_meets_its_requirement_is_right_of_the_line(requirement, low, high, bound, side):
    verdict = Verdict(
        requirement, "ece", "unknown", (low + high) / 2, low, high, 0.95, bound, None, "a sentence", low, high
    )
    display = GateDisplay(Gate(100, 0.95, (verdict,))).plot()
    ends = np.asarray(display.ax_.collections[0].get_paths()[0].vertices)[:, 0]
    assert all(side * end > 0 for end in ends)
    assert max(abs(ends)) == pytest.approx(1)
