"""What does harm on its own fitting set is switched off."""

import pytest
import torch

from calibrant.posthoc.fitting.fallback import both_answers, unless_worse
from calibrant.posthoc.platt import PlattScaling
from tests.conftest import draw


def platt(slope):
    ones = torch.ones(3, dtype=torch.float64)
    return PlattScaling(slope * ones, 0 * ones, torch.tensor(True), n_classes=3)


@pytest.mark.parametrize("score", ["nll", "brier"])
def test_a_harmful_map_is_switched_off_and_a_helpful_one_stays(score):
    logits, labels = (torch.from_numpy(each) for each in draw(500, 3, sharpen=3.0))
    assert unless_worse(platt(0.5), logits, labels, score=score).active
    harmful = unless_worse(platt(4.0), logits, labels, score=score)
    assert not harmful.active
    assert torch.allclose(harmful(logits), torch.log_softmax(logits, dim=1), atol=1e-9)


def test_columns_of_one_answer_teach_nothing():
    answers = torch.tensor([[True, True, False], [True, False, False]])
    assert both_answers(answers).tolist() == [False, True, False]
