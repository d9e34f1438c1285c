"""Calibrators around scikit-learn classifiers."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    StratifiedKFold,
    cross_val_predict,
    cross_validate,
    train_test_split,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant.errors import FitError, InputError
from calibrant.integrations.sklearn import CalibratedClassifier, UncalibratedWarning
from calibrant.metrics import expected_calibration_error
from calibrant.outcomes import LEAST_PROB
from calibrant.posthoc import (
    GroupCalibration,
    Identity,
    Pool,
    ProximityCalibration,
    TemperatureScaling,
    load_calibrator,
)


@pytest.mark.slow
@parametrize_with_checks(
    [
        CalibratedClassifier(method="temperature", ensemble=True, cv=3),
        CalibratedClassifier(GaussianNB(), method="platt", cv=3),
    ]
)
@pytest.mark.filterwarnings("ignore")  # the checks use data that any classifier separates
def test_scikit_learn_takes_it_for_one_of_its_own(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return train_test_split(x, np.array([f"digit {c}" for c in y]), random_state=0)


def test_an_overconfident_classifier_becomes_calibrated(digits):
    train, test, y_train, y_test = digits
    raw = GaussianNB().fit(train, y_train)
    calibrated = CalibratedClassifier(GaussianNB(), method="temperature").fit(train, y_train)
    assert (calibrated.classes_ == raw.classes_).all()
    labels = np.searchsorted(raw.classes_, y_test)
    before = expected_calibration_error(raw.predict_proba(test), labels)
    assert expected_calibration_error(calibrated.predict_proba(test), labels) < before / 2
    assert log_loss(y_test, calibrated.predict_proba(test)) < log_loss(y_test, raw.predict_proba(test)) / 2
    assert (calibrated.predict(test) == raw.predict(test)).mean() > 0.99


def test_the_calibrator_sees_only_samples_that_the_classifier_had_not_seen(digits):
    train, _, y_train, _ = digits
    calibrated = CalibratedClassifier(LogisticRegression(max_iter=5000), method="temperature", cv=4).fit(
        train, y_train
    )
    unseen = cross_val_predict(
        LogisticRegression(max_iter=5000), train, y_train, cv=4, method="decision_function"
    )
    expected = TemperatureScaling.fit(unseen, np.searchsorted(calibrated.classes_, y_train))
    assert float(calibrated.calibrator_.temperature) == pytest.approx(float(expected.temperature))


def test_a_fitted_classifier_is_left_as_it_is(digits):
    train, test, y_train, y_test = digits
    fitted = GaussianNB().fit(train, y_train)
    calibrated = CalibratedClassifier(fitted, method="temperature", cv="prefit").fit(test, y_test)
    assert calibrated.estimator_ is fitted
    logits = np.log(np.maximum(fitted.predict_proba(test), 1e-12))
    expected = TemperatureScaling.fit(logits, np.searchsorted(fitted.classes_, y_test))
    assert float(calibrated.calibrator_.temperature) == pytest.approx(float(expected.temperature), rel=1e-9)
    with pytest.raises(NotFittedError):
        CalibratedClassifier(GaussianNB(), method="temperature", cv="prefit").fit(test, y_test)


@pytest.mark.parametrize(
    "estimator", [LinearSVC(C=0.01), SVC(), RandomForestClassifier(n_estimators=20, random_state=0)]
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_any_classifier_with_scores_or_probabilities_will_do(estimator, n_classes):
    x, y = make_classification(400, n_informative=6, n_classes=n_classes, random_state=0)
    calibrated = CalibratedClassifier(estimator, method="temperature", cv=3).fit(x, y)
    probs = calibrated.predict_proba(x)
    assert probs.shape == (400, n_classes)
    assert probs.sum(axis=1) == pytest.approx(1)
    assert calibrated.score(x, y) > 0.6


@pytest.mark.parametrize("method", [ProximityCalibration, GroupCalibration])
def test_methods_that_need_features_get_the_samples(method):
    x, y = make_classification(300, n_informative=4, flip_y=0.3, random_state=0)
    calibrated = CalibratedClassifier(
        method=method, options={"n_neighbours": 5} if method is ProximityCalibration else {}
    )
    calibrated.fit(x, y)
    assert isinstance(calibrated.calibrator_, method)
    assert calibrated.predict_proba(x).shape == (300, 2)
    if method is ProximityCalibration:
        assert calibrated.calibrator_.n_neighbours == 5
        assert calibrated.calibrator_.n_features == x.shape[1]


def test_the_calibrator_can_be_saved(digits, tmp_path):
    train, _, y_train, _ = digits
    calibrated = CalibratedClassifier(GaussianNB(), method="temperature").fit(train, y_train)
    calibrated.calibrator_.save(tmp_path / "saved.safetensors")
    loaded = load_calibrator(tmp_path / "saved.safetensors")
    assert float(loaded.temperature) == float(calibrated.calibrator_.temperature)


def test_sample_weights_follow_the_folds():
    x, y = make_classification(300, flip_y=0.3, random_state=0)
    weights = np.random.default_rng(0).random(300)
    calibrated = CalibratedClassifier(method="temperature").fit(x, y, sample_weight=weights)
    expected = LogisticRegression().fit(x, y, sample_weight=weights)
    assert np.array_equal(calibrated.estimator_.coef_, expected.coef_)


def test_shuffled_rows_of_weight_zero_do_not_spoil_the_calibrator():
    x, y = make_classification(6000, n_informative=5, flip_y=0.1, random_state=0)
    train, rng = slice(0, 3000), np.random.default_rng(0)
    x_train, y_train, weights = x[train], y[train].copy(), np.ones(3000)
    shuffled = rng.permutation(3000)[:1500]
    y_train[shuffled], weights[shuffled] = rng.permutation(y_train[shuffled]), 0.0
    calibrated = CalibratedClassifier(method="temperature").fit(x_train, y_train, sample_weight=weights)
    clean = (
        CalibratedClassifier(method="temperature").fit(x_train[weights > 0], y_train[weights > 0]).calibrator_
    )
    wanted = pytest.approx(float(clean.temperature), rel=0.02)
    scores = cross_val_predict(
        LogisticRegression(), x_train, y_train, method="decision_function", params={"sample_weight": weights}
    )
    assert float(calibrated.calibrator_.temperature) == wanted
    assert float(TemperatureScaling.fit(scores, y_train).temperature) > 1.8
    theirs = CalibratedClassifierCV(LogisticRegression()).fit(x_train, y_train, sample_weight=weights)
    ece, other = (
        expected_calibration_error(each.predict_proba(x[3000:]), y[3000:]) for each in (calibrated, theirs)
    )
    assert ece < other + 0.01


@pytest.mark.parametrize("method", ["platt", "isotonic", "vector", "venn_abers"])
def test_whole_weights_are_counts_for_every_method(method):
    x, y = make_classification(240, n_informative=6, n_classes=3, flip_y=0.3, random_state=0)
    fitted, counts = LogisticRegression().fit(x[:120], y[:120]), np.arange(120) % 4
    again = np.repeat(np.arange(120, 240), counts)
    weighted = CalibratedClassifier(fitted, method=method, cv="prefit", on_fit_error="raise")
    repeated = CalibratedClassifier(fitted, method=method, cv="prefit", on_fit_error="raise")
    ours = weighted.fit(x[120:], y[120:], sample_weight=counts.astype(float)).predict_proba(x)
    theirs = repeated.fit(x[again], y[again]).predict_proba(x)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert not np.allclose(ours, repeated.fit(x[120:], y[120:]).predict_proba(x), atol=1e-4)


def test_a_fitted_classifier_takes_weights_and_no_other_keyword():
    x, y = make_classification(300, flip_y=0.3, random_state=0)
    weights = np.random.default_rng(0).random(300)
    prefit = CalibratedClassifier(LogisticRegression().fit(x, y), method="temperature", cv="prefit")
    weighted = float(prefit.fit(x, y, sample_weight=weights).calibrator_.temperature)
    scores = prefit.estimator_.decision_function(x)
    plain = TemperatureScaling.fit(scores, y, weights=weights)
    assert weighted == pytest.approx(float(plain.temperature), rel=1e-9)
    with pytest.raises(InputError, match="^sample_wieght: expected only sample_weight beside cv='prefit'"):
        prefit.fit(x, y, sample_wieght=weights)


def test_weights_reach_the_calibrator_whatever_the_classifier_takes():
    x, y = make_classification(300, flip_y=0.3, random_state=0)
    weights = np.random.default_rng(0).random(300)
    wanted = (
        CalibratedClassifier(method="temperature").fit(x, y, sample_weight=weights).calibrator_.temperature
    )
    pipeline = CalibratedClassifier(
        make_pipeline(FunctionTransformer(), LogisticRegression()), method="temperature"
    )
    pipeline.fit(x, y, logisticregression__sample_weight=weights)
    assert float(pipeline.calibrator_.temperature) == pytest.approx(float(wanted), rel=1e-9)
    neighbours = CalibratedClassifier(KNeighborsClassifier(), method="temperature")
    with pytest.warns(UserWarning, match="calibrator only, because KNeighborsClassifier does not take it"):
        weighted = neighbours.fit(x, y, sample_weight=weights).calibrator_.temperature
    assert float(weighted) != float(neighbours.fit(x, y).calibrator_.temperature)
    with pytest.raises(InputError, match="^weights: expected none"):
        CalibratedClassifier(method="venn_abers").fit(x, y, sample_weight=weights)
    with config_context(enable_metadata_routing=True):
        classifier = LogisticRegression().set_fit_request(sample_weight=True)
        routed = CalibratedClassifier(classifier, method="temperature").set_fit_request(sample_weight=True)
        routed.set_score_request(sample_weight=True)
        search = GridSearchCV(routed, {"cv": [3]}, cv=2).fit(x, y, sample_weight=weights)
    three_folds = (
        CalibratedClassifier(method="temperature", cv=3).fit(x, y, sample_weight=weights).calibrator_
    )
    assert float(search.best_estimator_.calibrator_.temperature) == pytest.approx(
        float(three_folds.temperature), rel=1e-9
    )


def separable():
    return np.r_[0.0:10, 100:110][:, None], np.arange(20) // 10


def test_a_calibrator_that_cannot_be_fitted_is_not_passed_over_in_silence():
    with pytest.warns(UncalibratedWarning, match="own scores are used uncalibrated; temperature scaling: no"):
        calibrated = CalibratedClassifier(method="temperature", options={"prior": 0}).fit(*separable())
    assert isinstance(calibrated.calibrator_, Identity)
    assert calibrated.predict_proba(separable()[0]) == pytest.approx(
        calibrated.estimator_.predict_proba(separable()[0])
    )
    with pytest.raises(FitError, match="no optimum"):
        CalibratedClassifier(method="temperature", options={"prior": 0}, on_fit_error="raise").fit(
            *separable()
        )


def test_an_ensemble_is_the_mean_over_folds_of_classifiers_with_their_calibrators(digits):
    train, test, y_train, _ = digits
    weights = np.arange(len(train)) % 3 + 0.5
    found = CalibratedClassifier(GaussianNB(), method="temperature", cv=3, ensemble=True)
    found.fit(train, y_train, sample_weight=weights)
    expected = np.zeros((len(test), 10))
    for inside, held in StratifiedKFold(3).split(train, y_train):
        model = GaussianNB().fit(train[inside], y_train[inside], sample_weight=weights[inside])
        scores = np.log(np.maximum(model.predict_proba(train[held]), LEAST_PROB))
        labels = np.searchsorted(model.classes_, y_train[held])
        scaled = TemperatureScaling.fit(scores, labels, weights=weights[held])
        expected += scaled.predict_proba(np.log(np.maximum(model.predict_proba(test), LEAST_PROB))) / 3
    np.testing.assert_allclose(found.predict_proba(test), expected, rtol=1e-6, atol=1e-12)
    assert len(found.members_) == 3
    assert not hasattr(found, "calibrator_")


def test_by_default_the_pool_makes_an_overconfident_classifier_likelier_than_one_temperature(digits):
    train, test, y_train, y_test = digits
    default = CalibratedClassifier(GaussianNB(), cv=3).fit(train, y_train)
    scaled = CalibratedClassifier(GaussianNB(), method="temperature", cv=3).fit(train, y_train)
    assert isinstance(default.calibrator_, Pool)
    assert log_loss(y_test, default.predict_proba(test)) < 0.95 * log_loss(y_test, scaled.predict_proba(test))


@pytest.mark.parametrize(("name", "most"), [("sigmoid", 0.01), ("isotonic", 0.06), ("temperature", 0.01)])
def test_the_names_of_scikit_learn_mean_the_same(name, most):
    """Scikit-learn averages the maps of five folds, so its probabilities differ a little."""
    x, y = make_classification(1500, n_informative=5, flip_y=0.1, random_state=0)
    svc = LinearSVC().fit(x[:500], y[:500])
    ours = CalibratedClassifier(svc, method=name, cv="prefit").fit(x[500:1000], y[500:1000])
    theirs = CalibratedClassifierCV(FrozenEstimator(svc), method=name).fit(x[500:1000], y[500:1000])
    np.testing.assert_allclose(ours.predict_proba(x[1000:]), theirs.predict_proba(x[1000:]), atol=most)


def test_auto_is_the_pool_and_names_take_options(digits):
    train, _, y_train, _ = digits
    raw = GaussianNB().fit(train[:600], y_train[:600])
    pooled = CalibratedClassifier(
        raw, method="auto", cv="prefit", options={"methods": ["temperature", "smart"]}
    )
    assert isinstance(pooled.fit(train[600:], y_train[600:]).calibrator_, Pool)
    warm = CalibratedClassifier(raw, method="temperature(objective='ece')", cv="prefit")
    likely = CalibratedClassifier(raw, method="temperature", cv="prefit")
    temperatures = [
        float(each.fit(train[600:], y_train[600:]).calibrator_.temperature) for each in (warm, likely)
    ]
    assert temperatures[0] != temperatures[1]


class Mute(ClassifierMixin, BaseEstimator):
    """Gives no scores."""

    def fit(self, x, y):  # noqa: ARG002  # scikit-learn's signature
        self.classes_ = np.unique(y)
        return self


@pytest.mark.parametrize(
    ("estimator", "options", "message"),
    [
        (
            None,
            {"method": "magic"},
            "^method: expected a calibrator class or the name of a method, got 'magic'; known are .*isotonic",
        ),
        (None, {"cv": "prefit", "ensemble": True}, "^ensemble: expected False beside cv=.prefit., got True"),
        (None, {"on_fit_error": "cry"}, "^on_fit_error: expected 'warn' or 'raise', got 'cry'"),
        (Mute(), {}, "^estimator: expected a classifier with decision_function or predict_proba, got Mute"),
        (
            SVC(decision_function_shape="ovo"),
            {},
            "^estimator: expected one score for each of 3 classes .* set decision_function_shape='ovr'",
        ),
    ],
)
def test_bad_arguments_are_refused(estimator, options, message):
    x, y = make_classification(60, n_informative=4, n_classes=3, random_state=0)
    with pytest.raises(InputError, match=message):
        CalibratedClassifier(estimator, **options).fit(x, y)


def test_folds_without_a_class_are_refused():
    x, y = make_classification(80, n_informative=4, n_classes=4, random_state=0)
    order = np.argsort(y)
    with (
        pytest.warns(RuntimeWarning, match="Number of classes in training fold"),
        pytest.raises(
            InputError, match="^cv: expected every class in every training fold, got a fold without"
        ),
    ):
        CalibratedClassifier(method="temperature", cv=KFold(4)).fit(x[order], y[order])


def test_classes_that_a_fitted_classifier_does_not_know_are_refused():
    x, y = make_classification(60, random_state=0)
    fitted = LogisticRegression().fit(x, y)
    with pytest.raises(InputError, match="^y: expected classes that the classifier knows, got"):
        CalibratedClassifier(fitted, method="temperature", cv="prefit").fit(x, y + 1)


@pytest.mark.slow
def test_importing_the_library_does_not_import_this():
    code = "import sys, calibrant; sys.exit('calibrant.integrations.sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.fixture(scope="module")
def visits():
    """Four visits of each of 60 patients, with numbers that name the patient."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(60), 4)
    sick = rng.random(60) < 0.5
    person = rng.normal(size=(60, 3))
    x = person[patient] + rng.normal(scale=0.02, size=(240, 3))
    return x, np.where(rng.random(240) < 0.95, sick[patient], ~sick[patient]), patient


@pytest.mark.parametrize("cv", [None, 4, GroupKFold(3)])
def test_no_fold_splits_a_group(visits, cv, monkeypatch):
    x, y, patient = visits
    fitted_on = []

    class Watched(KNeighborsClassifier):
        def fit(self, X, y):  # noqa: N803  # scikit-learn's names
            fitted_on.append({tuple(row) for row in X})
            return super().fit(X, y)

    given = {}
    monkeypatch.setattr(
        TemperatureScaling,
        "fit",
        classmethod(lambda _, z, y, **rows: given.update(rows) or Identity.fit(z, y)),
    )
    CalibratedClassifier(Watched(1), method="temperature", cv=cv, on_fit_error="raise").fit(
        x, y, groups=patient
    )
    assert len(fitted_on) == 1 + {None: 5, 4: 4}.get(cv, 3)
    for seen in fitted_on[1:]:
        shares = [sum(tuple(row) in seen for row in x[patient == each]) for each in range(60)]
        assert set(shares) <= {0, 4}
    assert np.array_equal(given["units"], patient)


@pytest.mark.parametrize("cv", [None, GroupKFold(3)])
def test_metadata_routing_brings_groups_to_the_folds(visits, cv):
    x, y, patient = visits
    with config_context(enable_metadata_routing=True):
        inner, options = (
            CalibratedClassifier(GaussianNB(), method="temperature", cv=cv),
            {"return_estimator": True},
        )
        routed = cross_validate(inner, x, y, cv=GroupKFold(2), params={"groups": patient}, **options)
    first, _ = next(GroupKFold(2).split(x, y, patient))
    alone = CalibratedClassifier(GaussianNB(), method="temperature", cv=cv).fit(
        x[first], y[first], groups=patient[first]
    )
    assert np.allclose(routed["estimator"][0].predict_proba(x), alone.predict_proba(x))
    rows = CalibratedClassifier(GaussianNB(), method="temperature").fit(x[first], y[first])
    assert not np.allclose(rows.predict_proba(x), alone.predict_proba(x))


def test_columns_of_samples_in_another_order_are_refused_as_by_the_classifier():
    pandas = pytest.importorskip("pandas")
    x, y = make_classification(200, n_features=4, random_state=0)
    frame = pandas.DataFrame(x, columns=list("abcd"))
    fitted = CalibratedClassifier(method="temperature", cv=2).fit(frame, y)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict_proba(frame[list("dcba")])


def test_a_pipeline_is_the_same_after_joblib(tmp_path):
    import joblib

    samples, y = load_digits(return_X_y=True)
    pipeline = make_pipeline(
        FunctionTransformer(), CalibratedClassifier(GaussianNB(), method="temperature", cv=2)
    )
    joblib.dump(pipeline.fit(samples[:300], y[:300]), tmp_path / "pipeline.joblib")
    again = joblib.load(tmp_path / "pipeline.joblib")
    np.testing.assert_array_equal(
        again.predict_proba(samples[300:350]), pipeline.predict_proba(samples[300:350])
    )
