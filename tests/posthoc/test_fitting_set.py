"""Fitting data is one value: checked once, handed on, and equal data give equal calibrators, whoever asks."""

import dataclasses
import inspect
import json
import threading

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from calibrant import Predictions, compare, load_calibrator, save_predictions
from calibrant.cli import app
from calibrant.errors import FitError, InputError
from calibrant.integrations.sklearn import CalibratedClassifier
from calibrant.posthoc import SMART, ByGroup, FittingSet, Pool, StructuredSMART, TemperatureScaling
from calibrant.posthoc.fitting_set import borrowed_seconds, remembered
from calibrant.posthoc.names import COMBINATION, METHODS, POOL
from tests.conftest import draw

LOGITS = torch.arange(12.0).reshape(6, 2)
LABELS = torch.tensor([0, 1, 0, 1, 0, 1])


@pytest.fixture
def data():
    return FittingSet.of(LOGITS, LABELS, seed=3).in_folds(3)


def test_nothing_is_written_onto_the_caller_s_tensors():
    logits, labels = (torch.tensor(each) for each in draw(60, 3, sharpen=2.0))
    before = logits.clone()
    StructuredSMART.fit(logits, labels)
    assert vars(logits) == {}
    assert torch.equal(logits, before)


def test_it_is_frozen(data):
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.seed = 1


def test_folds_are_even_random_and_those_of_the_seed():
    one, same, other = (FittingSet.of(LOGITS, LABELS, seed=seed).folds for seed in (1, 1, 2))
    assert one.tolist() == same.tolist() != other.tolist()
    assert one.bincount().tolist() == [2, 1, 1, 1, 1]


def test_units_are_never_split_between_folds():
    units = torch.tensor([9, 4, 9, 4, 7, 7])
    folds = FittingSet.of(LOGITS, LABELS, units=units).folds
    assert all(len(folds[units == unit].unique()) == 1 for unit in (4, 7, 9))
    assert len(folds.unique()) == 3
    # Rows as units are what rows alone are.
    alone = FittingSet.of(LOGITS, LABELS, seed=5)
    assert FittingSet.of(LOGITS, LABELS, units=torch.arange(6) * 3, seed=5).folds.equal(alone.folds)


def test_a_part_is_the_samples_outside_a_fold_in_the_other_folds(data):
    part = data.without(1)
    outside = data.folds != 1
    assert torch.equal(part.logits, LOGITS[outside])
    assert torch.equal(part.labels, LABELS[outside])
    assert torch.equal(part.folds, data.folds[outside])
    assert part.rows.tolist() == outside.nonzero().squeeze(1).tolist()


def test_a_rest_of_one_fold_is_dealt_anew(data):
    assert len(data.without(0).without(1).folds.unique()) == 2


def test_samples_that_teach_nothing_are_left_out():
    logits = LOGITS.clone()
    logits[2, 1] = -torch.inf
    data = FittingSet.of(logits, LABELS, features=LOGITS + 1, weights=[1, 2, 3, 4, 0, 1])
    assert data.rows.tolist() == [0, 1, 3, 5]
    assert torch.equal(data.features, (LOGITS + 1)[[0, 1, 3, 5]])
    assert (data.weights / data.weights[0]).tolist() == pytest.approx([1, 2, 4, 1])
    assert data.size == pytest.approx(8**2 / 22)
    assert (data.masked, data.rows_masked) == (False, True)
    with pytest.raises(FitError, match="^logits: expected two classes that are not masked in some row"):
        FittingSet.of([[0.0, -np.inf], [1.0, -np.inf]], [0, 0])


def test_groups_of_rows_that_are_left_out_are_too_and_too_few_are_refused():
    weights = [1, 0, 1, 1, 0, 1]
    fitted = ByGroup.fit(LOGITS, LABELS, groups=list("abcaba"), weights=weights)
    assert fitted.names == ["a", "b", "c"]
    assert FittingSet.of(LOGITS, LABELS, weights=weights).names_of(list("abcaba")).tolist() == list("acaa")
    with pytest.raises(
        InputError, match=r"^groups: expected a name for each row of logits, got shape \(3,\)$"
    ):
        ByGroup.fit(LOGITS, LABELS, groups=list("abc"), weights=weights)


def test_each_part_has_the_effective_number_of_its_own_samples():
    data = FittingSet.of(LOGITS, LABELS, weights=[1, 2, 3, 4, 5, 8]).in_folds(3)
    part = data.without(int(data.folds[5]))
    w = data.weights[data.folds != data.folds[5]]
    assert part.size == pytest.approx(float(w.sum() ** 2 / w.square().sum()))
    assert FittingSet.of(LOGITS, LABELS, weights=[2.0] * 6).weights is None


def test_arguments_beside_a_fitting_set_and_unknown_ones_are_refused(data):
    with pytest.raises(TypeError, match="^logits: expected no other arguments beside a FittingSet"):
        TemperatureScaling.fit(data, seed=1)
    misspelled = {"weigths": [1.0]}
    with pytest.raises(TypeError, match="unexpected keyword argument 'weigths'"):
        TemperatureScaling.fit(LOGITS, LABELS, **misspelled)
    with pytest.raises(InputError, match=r"^labels: expected integer classes of shape \(n,\), got none$"):
        TemperatureScaling.fit(LOGITS)


def test_help_shows_the_options_of_a_method_with_their_types():
    parameters = inspect.signature(SMART.fit).parameters
    assert list(parameters) == [
        *("logits", "labels", "objective", "indicator", "strength", "epochs", "settled", "rows")
    ]
    assert parameters["epochs"].annotation is int
    assert parameters["epochs"].default == 200


def counting():
    calls = []

    @remembered
    def mean(data, factor=1.0):
        calls.append(len(data))
        return factor * float(data.logits.mean())

    return mean, calls


def test_a_set_is_computed_once_for_each_set_of_options(data):
    mean, calls = counting()
    assert (mean(data), mean(data, factor=2.0), mean(data)) == (5.5, 11.0, 5.5)
    assert calls == [6, 6]
    mean(FittingSet.of(LOGITS, LABELS, seed=3))
    assert calls == [6, 6, 6]  # another set has a memory of its own


def test_two_ways_to_the_same_samples_are_one_part():
    data = FittingSet.of(LOGITS, LABELS)  # five folds
    mean, calls = counting()
    assert mean(data.without(0).without(2)) == mean(data.without(2).without(0))
    assert len(calls) == 1


def test_what_is_forgotten_is_computed_again(data):
    mean, calls = counting()
    part = data.without(1)
    mean(data), mean(part)
    part.forget()
    mean(data), mean(part)
    assert calls == [6, 4, 4]
    data.forget(1)
    mean(data), mean(part)
    assert calls == [6, 4, 4, 4]


def test_the_time_of_a_borrowed_result_is_known_to_the_borrower(data, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("calibrant.posthoc.fitting_set.time.perf_counter", lambda: next(clock))

    @remembered
    def slow(_data):
        return [next(clock) for _ in range(5)]

    with borrowed_seconds() as borrowed:
        slow(data)
        assert borrowed() == 0.0
        slow(data)
        assert borrowed() == 5.0  # six ticks, less the one that was spent waiting


def test_a_second_thread_waits_for_the_first_instead_of_computing_again(data):
    started, go_on, calls = threading.Event(), threading.Event(), []

    @remembered
    def slow(_data):
        calls.append(threading.current_thread().name)
        started.set()
        assert go_on.wait(timeout=60)
        return 1.0

    results = []
    threads = [threading.Thread(target=lambda: results.append(slow(data))) for _ in range(2)]
    threads[0].start()
    assert started.wait(timeout=60)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(timeout=60)
    assert results == [1.0, 1.0]
    assert len(calls) == 1


@pytest.fixture(scope="module")
def classifier():
    """A classifier, and features, logits and labels of new samples."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(500, 3))
    y = (x @ rng.normal(size=(3, 4)) + rng.gumbel(size=(500, 4))).argmax(axis=1)
    model = LogisticRegression(C=100.0).fit(x[:200] + rng.normal(size=(200, 3)) / 4, y[:200])
    return model, x[200:], 2 * model.decision_function(x[200:]), y[200:]


def same(one, other):
    """Whether two calibrators have the same numbers to the bit."""
    mine, theirs = one.state_dict(), other.state_dict()
    return (
        type(one) is type(other)
        and mine.keys() == theirs.keys()
        and all(torch.equal(mine[name], theirs[name]) for name in mine)
    )


# Feature clipping needs the features of a linear head; as printed, Meta-Cal cannot promise so much here.
NOT_HERE = (POOL, COMBINATION, "feature_clipping", "metacal_accuracy")
ALONE = [name for name, method in METHODS.items() if not method.slow and name not in NOT_HERE]


@pytest.fixture(scope="module")
def compared(classifier):
    _, features, logits, labels = classifier
    return compare(
        Predictions(logits=logits, labels=labels, features=features),
        methods=[*ALONE, POOL],
        n_resamples=20,
        seed=7,
    )


@pytest.mark.parametrize("name", ALONE)
def test_a_fit_alone_and_one_in_a_comparison_are_equal_to_the_bit(name, classifier, compared):
    _, features, logits, labels = classifier
    alone = METHODS[name].fit(logits, labels, features=features, seed=7)
    assert same(alone, compared[name].calibrator)
    copies = [torch.tensor(each) for each in (logits, labels, features)]
    assert same(alone, METHODS[name].fit(copies[0], copies[1], features=copies[2], seed=7))


def test_the_number_of_folds_of_a_comparison_does_not_change_the_calibrators(classifier):
    _, _, logits, labels = classifier
    given = Predictions(logits=logits, labels=labels)
    five, three = (compare(given, methods=["structured_smart"], n_resamples=20, n_folds=n) for n in (5, 3))
    assert same(five["structured_smart"].calibrator, three["structured_smart"].calibrator)


def test_members_of_a_pool_are_equal_to_fits_alone(classifier):
    _, _, logits, labels = classifier
    methods = ["temperature", "structured_smart", "beta", "smart"]
    pool = Pool.fit(logits, labels, methods=methods, seed=7)
    for name, member in pool.members.items():
        assert same(member, METHODS[name].fit(logits, labels, seed=7))
    compared = compare(
        Predictions(logits=logits, labels=labels), methods=[*methods, POOL], n_resamples=20, seed=7
    )
    assert same(pool, compared[POOL].calibrator)


@pytest.mark.parametrize("name", ["structured_smart", "intra_order"])
def test_scikit_learn_and_the_command_line_give_the_same_calibrator(name, classifier, tmp_path):
    model, features, _, labels = classifier
    fitted = CalibratedClassifier(model, method=name, cv="prefit", random_state=7).fit(features, labels)
    logits = model.decision_function(features)
    alone = METHODS[name].fit(logits, labels, seed=7)
    assert same(fitted.calibrator_, alone)
    save_predictions(Predictions(logits=logits, labels=labels), tmp_path / "val.npz")
    ran = CliRunner().invoke(
        app,
        [
            *("calibrate", str(tmp_path / "val.npz"), "--methods", name, "--seed", "7"),
            *("--out", str(tmp_path / "out"), "--json"),
        ],
    )
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["chosen"] == name
    assert same(load_calibrator(tmp_path / "out" / "calibrator.safetensors"), alone)
