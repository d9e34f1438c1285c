"""Calibrators around scikit-learn classifiers."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, cross_val_predict, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant.errors import FitError, InputError
from calibrant.integrations.sklearn import CalibratedClassifier, UncalibratedWarning
from calibrant.metrics import expected_calibration_error
from calibrant.posthoc import (
    GroupCalibration,
    Identity,
    ProximityCalibration,
    TemperatureScaling,
    load_calibrator,
)


@pytest.mark.slow
@parametrize_with_checks([CalibratedClassifier(), CalibratedClassifier(GaussianNB(), cv=3)])
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
    calibrated = CalibratedClassifier(GaussianNB()).fit(train, y_train)
    assert (calibrated.classes_ == raw.classes_).all()
    labels = np.searchsorted(raw.classes_, y_test)
    before = expected_calibration_error(raw.predict_proba(test), labels)
    assert expected_calibration_error(calibrated.predict_proba(test), labels) < before / 2
    assert log_loss(y_test, calibrated.predict_proba(test)) < log_loss(y_test, raw.predict_proba(test)) / 2
    assert (calibrated.predict(test) == raw.predict(test)).mean() > 0.99


def test_the_calibrator_sees_only_samples_that_the_classifier_had_not_seen(digits):
    train, _, y_train, _ = digits
    calibrated = CalibratedClassifier(LogisticRegression(max_iter=5000), cv=4).fit(train, y_train)
    unseen = cross_val_predict(
        LogisticRegression(max_iter=5000), train, y_train, cv=4, method="decision_function"
    )
    expected = TemperatureScaling.fit(unseen, np.searchsorted(calibrated.classes_, y_train))
    assert float(calibrated.calibrator_.temperature) == pytest.approx(float(expected.temperature))


def test_a_fitted_classifier_is_left_as_it_is(digits):
    train, test, y_train, y_test = digits
    fitted = GaussianNB().fit(train, y_train)
    calibrated = CalibratedClassifier(fitted, cv="prefit").fit(test, y_test)
    assert calibrated.estimator_ is fitted
    logits = np.log(np.maximum(fitted.predict_proba(test), 1e-12))
    expected = TemperatureScaling.fit(logits, np.searchsorted(fitted.classes_, y_test))
    assert float(calibrated.calibrator_.temperature) == float(expected.temperature)
    with pytest.raises(NotFittedError):
        CalibratedClassifier(GaussianNB(), cv="prefit").fit(test, y_test)


@pytest.mark.parametrize(
    "estimator", [LinearSVC(C=0.01), SVC(), RandomForestClassifier(n_estimators=20, random_state=0)]
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_any_classifier_with_scores_or_probabilities_will_do(estimator, n_classes):
    x, y = make_classification(400, n_informative=6, n_classes=n_classes, random_state=0)
    calibrated = CalibratedClassifier(estimator, cv=3).fit(x, y)
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
    calibrated = CalibratedClassifier(GaussianNB()).fit(train, y_train)
    calibrated.calibrator_.save(tmp_path / "saved.safetensors")
    loaded = load_calibrator(tmp_path / "saved.safetensors")
    assert float(loaded.temperature) == float(calibrated.calibrator_.temperature)


def test_sample_weights_follow_the_folds():
    x, y = make_classification(300, flip_y=0.3, random_state=0)
    weights = np.random.default_rng(0).random(300)
    calibrated = CalibratedClassifier().fit(x, y, sample_weight=weights)
    expected = LogisticRegression().fit(x, y, sample_weight=weights)
    assert np.array_equal(calibrated.estimator_.coef_, expected.coef_)


def separable():
    return np.r_[0.0:10, 100:110][:, None], np.arange(20) // 10


def test_a_calibrator_that_cannot_be_fitted_is_not_passed_over_in_silence():
    with pytest.warns(UncalibratedWarning, match="own scores are used uncalibrated; temperature scaling: no"):
        calibrated = CalibratedClassifier(options={"prior": 0}).fit(*separable())
    assert isinstance(calibrated.calibrator_, Identity)
    assert calibrated.predict_proba(separable()[0]) == pytest.approx(
        calibrated.estimator_.predict_proba(separable()[0])
    )
    with pytest.raises(FitError, match="no optimum"):
        CalibratedClassifier(options={"prior": 0}, on_fit_error="raise").fit(*separable())


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
            "^method: expected a calibrator class or one of .*temperature.* got 'magic'",
        ),
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
        CalibratedClassifier(cv=KFold(4)).fit(x[order], y[order])


def test_classes_that_a_fitted_classifier_does_not_know_are_refused():
    x, y = make_classification(60, random_state=0)
    fitted = LogisticRegression().fit(x, y)
    with pytest.raises(InputError, match="^y: expected classes that the classifier knows, got"):
        CalibratedClassifier(fitted, cv="prefit").fit(x, y + 1)


@pytest.mark.slow
def test_importing_the_library_does_not_import_this():
    code = "import sys, calibrant; sys.exit('calibrant.integrations.sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
