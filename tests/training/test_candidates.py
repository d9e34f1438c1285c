"""The best of several configurations, by the validation part."""

import pytest
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.training.candidates import train_best
from calibrant.training.config.toml import load_config
from calibrant.training.folder import CONFIG
from tests.training.small import small_config


def test_the_run_of_lowest_validation_nll_is_returned_and_all_are_written(tmp_path):
    gammas = ("30", "0", "10")
    configs = [small_config(f"training.loss=focal(gamma={gamma})") for gamma in gammas]
    best = train_best(configs, tmp_path)
    nll = {}
    for place, config in enumerate(configs):
        assert load_config(tmp_path / str(place) / CONFIG) == config
        alone = train_best([config], tmp_path / f"alone{place}").predictions["validation"]
        nll[config.training.loss] = float(F.cross_entropy(alone.logits, alone.labels))
    assert best.config.training.loss == min(nll, key=nll.get)
    assert len(set(nll.values())) == 3


def test_no_configuration_is_refused(tmp_path):
    with pytest.raises(InputError, match="^configs: expected at least one configuration, got none$"):
        train_best([], tmp_path)
