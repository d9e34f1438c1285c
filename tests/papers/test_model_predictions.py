"""Sources: a name and a seed decide the predictions."""

import numpy as np
import pytest
import torch

from calibrant import Predictions, save_predictions
from calibrant.data import load_bundled
from calibrant.errors import InputError
from calibrant.papers.local_models import ARENA_DATA, ARENA_MODELS, arena_tasks
from calibrant.papers.model_predictions import load_model_predictions, split


def numbered(n, k=3, seed=0):
    """Predictions whose first logit is the number of the sample."""
    logits = np.random.default_rng(seed).normal(size=(n, k))
    logits[:, 0] = np.arange(n)
    return Predictions(logits=logits, labels=np.arange(n) % k)


@pytest.mark.parametrize("name", ["cifar10", "digits", "digits_noise", "wine/forest", "synthetic:5x40"])
def test_equal_seeds_give_equal_predictions_and_others_do_not(name):
    one, same, other = (load_model_predictions(name, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.validation.to_logits(), same.validation.to_logits())
    for part, predictions in one.tests.items():
        assert torch.equal(predictions.to_logits(), same.tests[part].to_logits())
    assert not torch.equal(one.validation.to_logits(), other.validation.to_logits())


def test_a_split_keeps_every_sample_once():
    validation, test = split(numbered(101), 5, n_validation=30)
    rows = torch.cat([validation.logits[:, 0], test.logits[:, 0]])
    assert validation.n == 30
    assert sorted(rows.tolist()) == list(range(101))


def test_the_bundled_images_are_divided_and_the_noisy_ones_left_whole():
    source = load_model_predictions("cifar10", seed=0)
    assert (source.validation.n, source.tests["test"].n) == (5000, 10000)
    assert torch.equal(source.tests["noise"].logits, load_bundled("cifar10_test_noise").logits)


def test_a_noisy_source_is_fitted_on_a_fifth_of_the_noisy_samples():
    source = load_model_predictions("cifar10_noise", seed=0)
    assert (source.validation.n, source.tests["noise"].n) == (2000, 8000)


def test_every_classifier_meets_every_data_set_of_the_arena():
    assert len(arena_tasks()) == len(ARENA_DATA) * len(ARENA_MODELS)


@pytest.mark.parametrize("name", [task for task in arena_tasks() if task.startswith("iris/")])
def test_a_classifier_of_the_arena_is_better_than_guessing_and_not_tested_on_what_is_fitted_on(name):
    source = load_model_predictions(name, seed=1)
    test = source.tests["test"]
    assert (source.validation.n, test.n) == (50, 50)
    assert float((test.to_logits().argmax(dim=1) == test.labels).double().mean()) > 0.8
    assert torch.bincount(test.labels).tolist() in ([16, 17, 17], [17, 16, 17], [17, 17, 16])


def test_synthetic_logits_are_twice_as_sure_as_they_should_be():
    from calibrant.posthoc import TemperatureScaling

    source = load_model_predictions("synthetic:10x4000", seed=0)
    fitted = TemperatureScaling.fit(source.validation.logits, source.validation.labels)
    assert float(fitted.temperature) == pytest.approx(2.0, rel=0.1)


def test_a_folder_of_a_training_run_gives_its_parts(tmp_path):
    for name in ("validation", "test", "shifted/fog-3"):
        path = tmp_path / "runs" / "0" / "predictions" / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_predictions(numbered(7 if name == "test" else 5), path)
    source = load_model_predictions("run:{data}/runs/{seed}", seed=0, data=tmp_path)
    assert source.validation.n == 5
    assert {name: part.n for name, part in source.tests.items()} == {"test": 7, "fog-3": 5}


def test_two_files_are_taken_as_they_are_and_one_is_divided(tmp_path):
    save_predictions(numbered(10), tmp_path / "a.npz")
    save_predictions(numbered(20), tmp_path / "b.npz")
    two = load_model_predictions("files:{data}/a.npz,{data}/b.npz", seed=0, data=tmp_path)
    assert (two.validation.n, two.tests["test"].n) == (10, 20)
    one = load_model_predictions("files:{data}/b.npz", seed=0, data=tmp_path)
    assert (one.validation.n, one.tests["test"].n) == (4, 16)


@pytest.mark.parametrize(
    "name",
    ["mnist", "clinc150", "iris/oracle", "run:nowhere", "files:nothing.npz", "synthetic:5", "web:cifar10"],
)
def test_an_unknown_source_is_refused_in_one_sentence(name):
    with pytest.raises(InputError, match="^source: expected"):
        load_model_predictions(name, seed=0)


def test_clinc150_without_its_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="minilm_embeddings.npz"):
        load_model_predictions("clinc150", seed=0, data=tmp_path)


def test_a_source_in_the_folder_of_data_sets_asks_for_it():
    with pytest.raises(InputError, match="^data: expected"):
        load_model_predictions("run:{data}/runs/0", seed=0)
