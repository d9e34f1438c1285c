"""What every post-hoc method promises, checked once for the whole catalogue."""

import warnings

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.errors import FitError, InputError
from calibrant.evaluation.calibrated import fit_method
from calibrant.metrics import negative_log_likelihood
from calibrant.posthoc import Calibrator, load_calibrator
from calibrant.posthoc.names import METHODS
from tests.conftest import softmax

# One method for each distinct graph: these differ from another only in how they are fitted.
SAME_GRAPH = {
    *("temperature_ece", "temperature_ece_equal_mass", "metacal_accuracy", "smart_paper"),
    *("class_temperature_paper", "proximity_paper"),
}
GRAPHS = [name for name in METHODS if name not in SAME_GRAPH]
# The paper's 100,000 steps take minutes; these are enough for what is promised here.
FEWER = {"parameterized_paper": {"steps": 2000, "learning_rate": 1e-3}}
PRESERVING = [name for name, method in METHODS.items() if method.preserves_accuracy]


def linear_model(n, k, *, seed=0, sharpen=3.0, dtype=np.float64):
    """Predictions of a linear head on Gaussian features, with logits that are too large."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 12))
    weight = np.random.default_rng(99).normal(size=(12, k)) * 0.6
    logits = features @ weight
    labels = (softmax(logits).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return Predictions(
        logits=(sharpen * logits).astype(dtype), labels=labels, features=features.astype(np.float32)
    )


def fit(name, predictions, **options):
    return fit_method(METHODS[name].with_options(FEWER.get(name, {})), predictions, **options)


def log_probabilities(calibrator, predictions):
    return calibrator.predict_log_proba(predictions.logits, predictions.features)


def check_distributions(log_probs, n, k):
    assert log_probs.shape == (n, k)
    assert torch.isfinite(log_probs).all()
    assert torch.allclose(log_probs.exp().sum(dim=1), torch.ones(n, dtype=log_probs.dtype), atol=1e-5)


@pytest.fixture(scope="module")
def fitting_set():
    return linear_model(1500, 4)


@pytest.fixture(scope="module")
def fitted(fitting_set):
    """Each method, fitted once."""
    return {name: fit(name, fitting_set) for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_a_fit_returns_distributions_for_any_number_of_samples(name, fitted):
    for n in (1, 7, 300):
        check_distributions(log_probabilities(fitted[name], linear_model(n, 4, seed=n)), n, 4)


@pytest.mark.parametrize("name", METHODS)
def test_a_fit_improves_an_overconfident_model_on_new_data(name, fitted):
    new = linear_model(4000, 4, seed=1)
    before = negative_log_likelihood(logits=new.logits, labels=new.labels)
    after = negative_log_likelihood(logits=log_probabilities(fitted[name], new), labels=new.labels)
    if name == "uncalibrated":
        assert after == pytest.approx(before, abs=1e-9)
    else:
        assert after < before


@pytest.mark.parametrize("name", METHODS)
def test_a_fit_is_the_same_for_the_same_seed(name, fitted, fitting_set):
    again = fit(name, fitting_set)
    for key, value in fitted[name].state_dict().items():
        assert torch.equal(value, again.state_dict()[key])


@pytest.mark.parametrize("name", METHODS)
def test_what_is_loaded_is_what_was_saved(name, fitted, tmp_path):
    path = tmp_path / "calibrator.safetensors"
    fitted[name].save(path)
    loaded = load_calibrator(path)
    assert loaded.n_classes == 4
    assert loaded.searched.items() <= fitted[name].searched.items()
    new = linear_model(50, 4, seed=2)
    assert torch.equal(log_probabilities(loaded, new), log_probabilities(fitted[name], new))


@pytest.mark.parametrize("name", METHODS)
def test_the_kind_and_type_of_array_are_kept(name, fitted):
    new = linear_model(5, 4, seed=3)
    logits, features = new.logits.numpy(), new.features.numpy()
    for kind in (np.float32, np.float64):
        probs = fitted[name].predict_proba(logits.astype(kind), features)
        assert isinstance(probs, np.ndarray)
        assert probs.dtype == kind
    assert isinstance(fitted[name].predict_proba(logits.tolist(), features.tolist()), list)
    half = fitted[name].predict_proba(torch.tensor(logits).half(), torch.tensor(features))
    assert half.dtype == torch.float16


@pytest.mark.parametrize("name", METHODS)
def test_other_classes_than_those_of_the_fit_are_refused(name, fitted):
    other = linear_model(5, 6)
    with pytest.raises(InputError, match="^logits: expected the 4 classes that .* was fitted on, got 6"):
        fitted[name].predict_proba(other.logits, other.features)


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_option_is_refused(name, fitting_set):
    p = fitting_set
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_option'"):
        METHODS[name].calibrator.fit(  # type: ignore[call-arg]
            p.logits, p.labels, features=p.features, seed=0, no_such_option=1
        )


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].calibrator.needs_features])
def test_a_method_of_features_asks_for_them(name, fitted, fitting_set):
    with pytest.raises(InputError, match="^features: expected"):
        fitted[name].predict_proba(fitting_set.logits)
    with pytest.raises(InputError, match="^features: expected"):
        fit(name, Predictions(logits=fitting_set.logits, labels=fitting_set.labels))


@pytest.mark.parametrize("name", PRESERVING)
def test_the_predicted_class_never_changes_where_that_is_promised(name, fitted):
    new = linear_model(3000, 4, seed=4)
    assert torch.equal(log_probabilities(fitted[name], new).argmax(dim=1), new.logits.argmax(dim=1))


@pytest.mark.parametrize("name", PRESERVING)
def test_the_first_of_equal_classes_stays_first_where_that_is_promised(name, fitted):
    new = linear_model(200, 4, seed=5)
    logits = torch.round(new.logits)
    tied = Predictions(logits=logits, features=new.features)
    assert (logits.sort(dim=1).values.diff(dim=1)[:, -1] == 0).any()
    assert torch.equal(log_probabilities(fitted[name], tied).argmax(dim=1), logits.argmax(dim=1))


def fit_or_refuse(name, predictions):
    """Fit, or accept a FitError of one sentence; anything else is a defect."""
    try:
        return fit(name, predictions)
    except FitError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert len(refusal) > 20
    return None


HARD = {
    "fifty samples": linear_model(50, 5),
    "two classes": linear_model(300, 2),
    "a hundred classes": linear_model(400, 100),
    "more classes than samples": linear_model(60, 300),
    "a thousand classes and few samples": linear_model(9, 1000),
    "a class without samples": linear_model(400, 6).take(
        np.flatnonzero(linear_model(400, 6).labels.numpy() != 3)
    ),
    "every row five times": linear_model(80, 4).take(np.repeat(np.arange(80), 5)),
    "logits of ten thousand": linear_model(300, 4, sharpen=1e4),
    "tiny logits": linear_model(300, 4, sharpen=1e-4),
    "constant logits": Predictions(
        logits=np.zeros((60, 3)),
        labels=np.arange(60) % 3,
        features=np.random.default_rng(0).normal(size=(60, 4)),
    ),
    "all right": Predictions(
        logits=np.eye(3)[np.arange(60) % 3] * 4,
        labels=np.arange(60) % 3,
        features=np.eye(3)[np.arange(60) % 3],
    ),
    "float16": linear_model(300, 4, dtype=np.float16),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("name", METHODS)
def test_hard_data_give_distributions_or_one_clear_sentence(name, case):
    data = HARD[case]
    calibrator = fit_or_refuse(name, data)
    if calibrator is not None:
        log_probs = log_probabilities(calibrator, data)
        check_distributions(log_probs, data.n, data.k)
        after = negative_log_likelihood(logits=log_probs, labels=data.labels)
        before = negative_log_likelihood(logits=data.logits, labels=data.labels)
        if not name.endswith("_paper"):  # papers do not check
            assert after <= before + 0.02, "worse than doing nothing on its own fitting set, in silence"
        if METHODS[name].preserves_accuracy:
            assert torch.equal(log_probs.argmax(dim=1), data.logits.argmax(dim=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_a_calibrator_can_be_exported_as_a_graph(name, fitted):
    class Plain(torch.nn.Module):
        def __init__(self, calibrator: Calibrator) -> None:
            super().__init__()
            self.calibrator = calibrator

        def forward(self, logits, features):
            return self.calibrator(logits, features)

    new = linear_model(16, 4, seed=6, dtype=np.float32)
    batch = torch.export.Dim("batch", min=1, max=1 << 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        graph = torch.export.export(
            Plain(fitted[name]).eval(),
            (new.logits, new.features),
            dynamic_shapes={"logits": {0: batch}, "features": {0: batch}},
        )
    other = linear_model(9, 4, seed=7, dtype=np.float32)
    assert torch.allclose(
        graph.module()(other.logits, other.features), fitted[name](other.logits, other.features), atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_a_calibrator_can_be_compiled_as_one_graph(name, fitted):
    new = linear_model(16, 4, seed=6, dtype=np.float32)
    torch._dynamo.reset()
    compiled = torch.compile(fitted[name], fullgraph=True, backend="eager")
    with torch.no_grad():
        assert torch.allclose(
            compiled(new.logits, new.features), fitted[name](new.logits, new.features), atol=1e-5
        )
