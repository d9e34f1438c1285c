"""What every post-hoc method promises, checked once for the whole catalogue."""

import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.errors import FitError, InputError
from calibrant.evaluation.calibrated import fit_method
from calibrant.metrics import negative_log_likelihood
from calibrant.posthoc import Calibrator, load_calibrator
from calibrant.posthoc.names import METHODS
from tests.conftest import at_length, placed, softmax
from tests.contracts import Contract
from tests.posthoc.mutations import check_mutations
from tests.rounding import assert_equal_up_to_rounding

# One method for each distinct graph: these differ from another only in how they are fitted.
SAME_GRAPH = {
    *("temperature_ece", "temperature_ece_equal_mass", "metacal_accuracy", "smart_paper"),
    *("class_temperature_paper", "proximity_paper"),
}
GRAPHS = [name for name in METHODS if name not in SAME_GRAPH]
# The paper's 100,000 steps take minutes; these are enough for what is promised here.
FEWER = {"parameterized_paper": {"steps": 2000, "learning_rate": 1e-3}}
# Their fits take long.
LONG = {name for name, method in METHODS.items() if method.slow or name.startswith(("logistic", "pool"))}
# One entry for each class of calibrators; the others differ in their options.
CLASSES = {method.calibrator: name for name, method in reversed(METHODS.items())}.values()


@cache
def linear_model(n, k, *, seed=0, sharpen=3.0, dtype=np.float64):
    """Predictions of a linear head on Gaussian features, with logits that are too large."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 12))
    weight = np.random.default_rng(99).normal(size=(12, k)) * 0.6
    logits = features @ weight
    labels = (softmax(logits).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return Predictions(
        logits=placed((sharpen * logits).astype(dtype)),
        labels=labels,
        features=placed(features.astype(np.float32)),
    )


def fit(name, predictions, **options):
    return fit_method(METHODS[name].with_options(FEWER.get(name, {})), predictions, **options)


def log_probabilities(calibrator, predictions):
    return calibrator.predict_log_proba(predictions.logits, predictions.features)


def check_distributions(log_probs, n, k):
    assert log_probs.shape == (n, k)
    assert torch.isfinite(log_probs).all()
    assert torch.allclose(log_probs.exp().sum(dim=1), torch.ones(n, dtype=log_probs.dtype), atol=1e-5)


@dataclass(frozen=True)
class Entry:
    """An entry of the catalogue, its fit, and an empty folder."""

    name: str
    fitted: Calibrator
    folder: Path

    @property
    def method(self):
        return METHODS[self.name]


@cache
def fitted(name):
    """Each method, fitted once."""
    return fit(name, linear_model(1500, 4))


contract = Contract()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in METHODS]
)
def test_a_method_keeps_every_promise(name, tmp_path, subtests):
    contract.check(subtests, Entry(name, fitted(name), tmp_path))


@contract.promise
def a_fit_returns_distributions_for_any_number_of_samples(entry):
    for n in (1, 7, 300):
        check_distributions(log_probabilities(entry.fitted, linear_model(n, 4, seed=n)), n, 4)


@contract.promise
def a_fit_improves_an_overconfident_model_on_new_data(entry):
    new = linear_model(4000, 4, seed=1)
    before = negative_log_likelihood(logits=new.logits, labels=new.labels)
    after = negative_log_likelihood(logits=log_probabilities(entry.fitted, new), labels=new.labels)
    if entry.name == "uncalibrated":
        assert after == pytest.approx(before, abs=1e-9)
    else:
        assert after < before


@contract.promise
def a_fit_is_the_same_for_the_same_seed_however_the_data_lie_in_memory(entry):
    p = linear_model(1500, 4)
    by_columns = Predictions(
        logits=p.logits.T.contiguous().T, labels=p.labels, features=p.features.T.contiguous().T
    )
    assert by_columns.logits.stride() != p.logits.stride()
    again = fit(entry.name, by_columns).state_dict()
    for key, value in entry.fitted.state_dict().items():
        assert torch.equal(value, again[key]), key


@contract.promise
def what_is_loaded_is_what_was_saved(entry):
    path = entry.folder / "calibrator.safetensors"
    entry.fitted.save(path)
    loaded = load_calibrator(path)
    assert loaded.n_classes == 4
    assert loaded.for_folds.items() <= entry.fitted.for_folds.items()
    for key, value in entry.fitted.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[key]), key
    new = linear_model(50, 4, seed=2)
    assert_equal_up_to_rounding(log_probabilities(loaded, new), log_probabilities(entry.fitted, new))


@contract.promise
def the_kind_and_type_of_array_are_kept(entry):
    new = linear_model(5, 4, seed=3)
    logits, features = new.logits.numpy(), new.features.numpy()
    for kind in (np.float32, np.float64):
        probs = entry.fitted.predict_proba(logits.astype(kind), features)
        assert isinstance(probs, np.ndarray)
        assert probs.dtype == kind
    assert isinstance(entry.fitted.predict_proba(logits.tolist(), features.tolist()), list)


@contract.promise
def half_precision_is_answered_in_float32(entry):
    p = linear_model(200, 4, seed=3)
    worst = p.logits.argmin(dim=1)  # whose probability is 0 in float16 where the model is sure
    expected = entry.fitted.predict_proba(p.logits, p.features).gather(1, worst[:, None]).log().mean()
    for dtype in (torch.float16, torch.bfloat16):
        z, h = p.logits.to(dtype), p.features.to(dtype)
        probs = entry.fitted.predict_proba(z, h)
        assert probs.dtype == entry.fitted(z, h).dtype == torch.float32
        found = probs.gather(1, worst[:, None]).log().mean()
        assert found == pytest.approx(float(expected), rel=0.02 if dtype == torch.float16 else 0.1)
    assert entry.fitted.predict_proba(p.logits.half().numpy(), p.features.numpy()).dtype == np.float32


@contract.promise
def other_classes_than_those_of_the_fit_are_refused(entry):
    other = linear_model(5, 6)
    with pytest.raises(InputError, match="^logits: expected the 4 classes that .* was fitted on, got 6"):
        entry.fitted.predict_proba(other.logits, other.features)


@contract.promise
def an_unknown_option_is_refused(entry):
    p = linear_model(1500, 4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_option'"):
        entry.method.calibrator.fit(p.logits, p.labels, features=p.features, seed=0, no_such_option=1)


@contract.promise(only=lambda entry: entry.method.calibrator.needs_features)
def a_method_of_features_asks_for_them(entry):
    p = linear_model(1500, 4)
    with pytest.raises(InputError, match="^features: expected"):
        entry.fitted.predict_proba(p.logits)
    with pytest.raises(InputError, match="^features: expected"):
        fit(entry.name, Predictions(logits=p.logits, labels=p.labels))


@pytest.mark.parametrize("name", GRAPHS)
def test_changed_numbers_in_a_file_are_refused_or_give_probabilities(name, tmp_path):
    new = linear_model(5, 4, seed=2)
    check_mutations(fitted(name), tmp_path / "calibrator.safetensors", new.logits, new.features)


def check_predicted_class(calibrator, logits, features):
    """The class with the largest logit, the first of equals, keeps the largest probability in any type."""
    for dtype in (logits.dtype, torch.float16, torch.bfloat16):
        z = logits.to(dtype)
        assert torch.equal(calibrator.predict_log_proba(z, features).argmax(dim=1), z.argmax(dim=1))
        assert torch.equal(calibrator.predict_proba(z, features).argmax(dim=1), z.argmax(dim=1))


@contract.promise(only=lambda entry: entry.method.preserves_accuracy)
def the_predicted_class_never_changes(entry):
    new = linear_model(3000, 4, seed=4)
    check_predicted_class(entry.fitted, new.logits, new.features)


@contract.promise(only=lambda entry: entry.method.preserves_accuracy)
def the_first_of_equal_classes_stays_first(entry):
    new = linear_model(200, 4, seed=5)
    logits = torch.round(new.logits)
    assert (logits.sort(dim=1).values.diff(dim=1)[:, -1] == 0).any()
    check_predicted_class(entry.fitted, logits, new.features)


def fit_or_refuse(name, predictions):
    """Fit, or accept a FitError of one sentence; anything else is a defect."""
    try:
        return fit(name, predictions)
    except FitError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert len(refusal) > 20
    return None


def masked(predictions, low):
    """Predictions in which some classes that are not the label have a logit that stands for -inf."""
    absent = torch.rand(predictions.logits.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    absent[:5] = True  # rows with a single class
    absent[torch.arange(predictions.n), predictions.labels] = False
    logits = predictions.logits.masked_fill(absent, low)
    return Predictions(logits=logits, labels=predictions.labels, features=predictions.features)


# Their searches take seconds for such logits.
SLOW_AT_TEN_MILLION = ("logistic_spline", "logistic_spline_top", "parameterized_paper", "pool")


@contract.promise(only=lambda entry: entry.name not in SLOW_AT_TEN_MILLION)
def logits_of_ten_million_give_distributions_or_one_clear_sentence(entry):
    data = linear_model(60, 4, sharpen=1e7)
    calibrator = fit_or_refuse(entry.name, data)
    if calibrator is not None:
        probs = calibrator.predict_proba(data.logits, data.features)
        assert torch.allclose(probs.sum(dim=1), torch.ones(60, dtype=probs.dtype))


@contract.promise
def large_negative_logits_give_finite_probabilities(entry):
    for dtype in (np.float32, np.float64):
        for low in (-1e20, float(np.finfo(dtype).min)):
            data = masked(linear_model(100, 4, dtype=dtype), low)
            probs = entry.fitted.predict_proba(data.logits, data.features)
            assert torch.isfinite(probs).all()
            assert torch.allclose(probs.sum(dim=1), torch.ones(100, dtype=probs.dtype), atol=1e-5)


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
    "classes masked by a large negative number": masked(linear_model(300, 4, dtype=np.float32), -1e20),
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


# Of the options of a class that is tried with all, and of fits that take long, `make test` tries these only.
HARDEST = ("fifty samples", "constant logits", "logits of ten thousand")


def cases_of(name):
    """Return the cases that ``make test`` tries a method with."""
    if name in LONG:
        return HARDEST[:2]
    return tuple(HARD) if name in CLASSES else HARDEST


@pytest.mark.slow
@pytest.mark.parametrize("name", at_length(list(METHODS), CLASSES))
def test_hard_data_give_distributions_or_one_clear_sentence(name, subtests):
    for case in cases_of(name):
        with subtests.test(case):
            check_hard_data(name, case)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in METHODS if len(cases_of(name)) < len(HARD)])
def test_all_hard_data_give_distributions_or_one_clear_sentence(name, subtests):
    for case in HARD.keys() - set(cases_of(name)):
        with subtests.test(case):
            check_hard_data(name, case)


def check_hard_data(name, case):
    data = HARD[case]
    calibrator = fit_or_refuse(name, data)
    if calibrator is not None:
        log_probs = log_probabilities(calibrator, data)
        check_distributions(log_probs, data.n, data.k)
        after = negative_log_likelihood(logits=log_probs, labels=data.labels)
        before = negative_log_likelihood(logits=data.logits, labels=data.labels)
        if not name.endswith("_paper"):  # papers do not check
            assert after <= before + 0.02, "worse than doing nothing on its own fitting set, in silence"
        # The paper's network reads raw logits, so huge ones give temperatures at which float32 has only ties.
        if METHODS[name].preserves_accuracy and not (name == "parameterized_paper" and "masked" in case):
            assert torch.equal(log_probs.argmax(dim=1), data.logits.argmax(dim=1))


# The tests of ONNX export methods without options in the same way.
EXPORTED = [name for name in GRAPHS if METHODS[name].options]


@pytest.mark.slow
@pytest.mark.parametrize("name", at_length(EXPORTED, EXPORTED[::4]))
def test_a_calibrator_can_be_exported_as_a_graph(name):
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
            Plain(fitted(name)).eval(),
            (new.logits, new.features),
            dynamic_shapes={"logits": {0: batch}, "features": {0: batch}},
        )
    other = linear_model(9, 4, seed=7, dtype=np.float32)
    assert torch.allclose(
        graph.module()(other.logits, other.features), fitted(name)(other.logits, other.features), atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
@pytest.mark.parametrize("name", at_length(GRAPHS, CLASSES))
def test_a_calibrator_can_be_compiled_as_one_graph(name):
    new = linear_model(16, 4, seed=6, dtype=np.float32)
    torch._dynamo.reset()
    compiled = torch.compile(fitted(name), fullgraph=True, backend="eager")
    with torch.no_grad():
        assert torch.allclose(
            compiled(new.logits, new.features), fitted(name)(new.logits, new.features), atol=1e-5
        )
