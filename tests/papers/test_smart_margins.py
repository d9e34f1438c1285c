"""What the SMART paper says about margins, as studies."""

import math

import numpy as np
import pytest
import torch

from calibrant.data import Predictions, save_predictions
from calibrant.errors import InputError
from calibrant.outcomes import Outcomes, margin
from calibrant.papers.draws import unpacked
from calibrant.papers.smart_margins import interval_study, logits_of_margin, margin_study, margin_thirds

EQUAL = {"method": "uncalibrated", "thirds": "at equal confidence"}


def logits_at(confidence, m):
    """Logits of five classes with this confidence and margin: the last two classes share what is left."""
    second = confidence * np.exp(-m)
    rest = (1 - confidence - second) / 3
    assert 0 < rest < second
    return np.log([confidence, second, rest, rest, rest])


@pytest.fixture
def source(tmp_path):
    """Samples of confidence 0.6 and 0.8; of each, those with the larger margin are right more often."""
    rng = np.random.default_rng(0)
    logits, labels = [], []
    for _ in range(4000):
        p, large = rng.choice([0.6, 0.8]), rng.random() < 0.5
        m = {(0.6, False): 0.8, (0.6, True): 1.2, (0.8, False): 1.7, (0.8, True): 2.4}[float(p), bool(large)]
        logits.append(logits_at(p, m))
        labels.append(0 if rng.random() < p + (0.1 if large else -0.1) else 4)
    path = tmp_path / "margins.npz"
    save_predictions(Predictions(logits=np.array(logits), labels=np.array(labels)), path)
    return f"files:{path}"


def found(key, **settings):
    return {record.labels["margin"]: record for record in margin_study(key, settings, 0, None)}


def test_at_equal_confidence_large_margins_show_that_they_are_underconfident(source):
    records = found({**EQUAL, "source": source}, bins=2)
    assert list(records) == ["small", "middle", "large"]
    assert records["small"].values["overconfident_by"] == pytest.approx(0.1, abs=0.04)
    assert records["large"].values["overconfident_by"] == pytest.approx(-0.1, abs=0.04)
    for record in records.values():
        assert record.values["underconfident_by"] == -record.values["overconfident_by"]


def test_thirds_of_all_samples_mix_margins_with_confidence(source):
    # The smallest margins of all are those of confidence 0.6, right and wrong together.
    records = found({**EQUAL, "source": source, "thirds": "of all samples"})
    gaps = {name: record.values["overconfident_by"] for name, record in records.items()}
    assert gaps["small"] < 0.08
    assert gaps["large"] > -0.08


def test_the_three_thirds_hold_all_samples_and_their_gaps_are_that_of_the_model(source):
    records = found({**EQUAL, "source": source})
    gaps = [record.values["overconfident_by"] for record in records.values()]
    assert np.mean(gaps) == pytest.approx(0.0, abs=0.03)


def test_draws_of_the_samples_vary_as_a_mean_of_so_many_does(source):
    record = found({**EQUAL, "source": source}, bins=2)["large"]
    spread = unpacked(record.draws["overconfident_by"]).std()
    assert spread == pytest.approx(math.sqrt(0.16 / (3200 / 3)), rel=0.4)


def test_one_temperature_moves_all_thirds_but_not_their_order(source):
    plain = found({**EQUAL, "source": source}, bins=2)
    repaired = found({**EQUAL, "source": source, "method": "temperature"}, bins=2)
    for records in (plain, repaired):
        gaps = [record.values["overconfident_by"] for record in records.values()]
        assert gaps[0] > gaps[2] + 0.1
    assert plain["small"].values != repaired["small"].values


def test_thirds_divide_every_bin_of_confidence():
    rng = np.random.default_rng(1)
    confidence, margins = torch.from_numpy(rng.random(300)), torch.from_numpy(rng.random(300))
    groups = margin_thirds(margins, Outcomes(confidence, confidence > 0.5), n_bins=10)
    place = (confidence.argsort().argsort() // 30).numpy()
    for bin_ in range(10):
        own = margins.numpy()[place == bin_]
        chosen = groups[place == bin_]
        assert np.bincount(chosen).tolist() == [10, 10, 10]
        assert own[chosen == 0].max() <= own[chosen == 1].min()
        assert own[chosen == 1].max() <= own[chosen == 2].min()


def test_other_thirds_are_refused(source):
    with pytest.raises(InputError, match="^thirds: expected"):
        found({**EQUAL, "source": source, "thirds": "of none"})


def test_the_width_of_the_interval_is_proportional_to_the_margin_not_falling():
    key = {"classes": 10, "confidence": 0.8}
    widths = {}
    for m in (1.0, 2.0, 5.0):
        [record] = interval_study({**key, "margin": m}, {"draws": 200}, 0, None)
        widths[m] = record.values["width"]
        assert 0 < record.values["observed_width"] <= record.values["width"]
    rest = 1 / 0.8 - 1
    assert widths[1.0] == pytest.approx(-1 / math.log(rest) + 1 / math.log(rest / 9))
    assert widths[2.0] == pytest.approx(2 * widths[1.0])
    assert widths[5.0] == pytest.approx(5 * widths[1.0])


def test_random_logits_have_the_wanted_margin():
    z = logits_of_margin(3.5, 7, 50, np.random.default_rng(2))
    assert z.shape == (50, 7)
    assert margin(z).numpy() == pytest.approx(np.full(50, 3.5))
