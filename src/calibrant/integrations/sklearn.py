"""Any calibrator around any scikit-learn classifier."""

import warnings
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from calibrant.errors import FitError, InputError
from calibrant.extras import optional
from calibrant.inputs import ArrayLike, Floats, check_choice
from calibrant.outcomes import LEAST_PROB
from calibrant.posthoc.calibrator import Calibrator, Identity
from calibrant.posthoc.names import POOL, Method, method_named

with optional("scikit-learn"):
    from sklearn import get_config
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, check_cv, cross_val_predict
    from sklearn.utils import _safe_indexing, check_random_state, indexable
    from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter

# Rows that samples with whole numbers as weights are repeated to; with more, the ratios of the weights count.
_MOST_COUNTED = 1_000_000
# Scikit-learn's name of Platt scaling, and the word for "choose for me".
_OTHER_NAMES = {"sigmoid": "platt", "auto": POOL}


class UncalibratedWarning(UserWarning):
    """The calibrator could not be fitted, and the classifier's own scores are used."""


class CalibratedClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn's names and untyped values
    """A classifier whose probabilities are calibrated by any of Calibrant's methods.

    Scores come from ``decision_function`` if the classifier has one, else from the logarithm of
    ``predict_proba``. Unless it is fitted already, the classifier is trained on all samples, and the
    calibrator on the scores of samples that the classifier had not seen, by cross-validation. With
    ``ensemble=True`` there is a classifier and a calibrator for each fold instead.

    Args:
        estimator: The classifier; logistic regression if None.
        method: Name of a method in :data:`calibrant.posthoc.names.METHODS`, with options as in
            ``"smart(settled=0)"``, or a calibrator class. Scikit-learn's names ``"sigmoid"``, ``"isotonic"``
            and ``"temperature"`` work too. The default ``"auto"`` is the pool of the methods that suit the
            number of classes, as the command line chooses it; it fits several methods. Methods that need
            features get the samples themselves.
        cv: ``"prefit"`` for a fitted classifier and samples that it was not trained on; otherwise what
            scikit-learn takes: a number of stratified folds, a splitter, or None for five folds. If ``fit``
            gets groups, a number of folds means stratified folds of whole groups.
        ensemble: Whether there is one classifier and one calibrator for each fold, trained on the other
            folds and fitted on this one, whose probabilities are averaged, as scikit-learn does. This takes
            as many predictions for each sample as there are folds.
        options: Keyword arguments for the method's ``fit``.
        random_state: Seed of the method.
        on_fit_error: What to do when the calibrator cannot be fitted, for instance because every sample is
            classified correctly: ``"warn"`` and use the classifier's own scores, or ``"raise"``.

    Attributes:
        estimator_: The fitted classifier; not with ``ensemble=True``.
        calibrator_: The fitted calibrator, which can be saved and exported; not with ``ensemble=True``.
        members_: Pairs of a fitted classifier and its calibrator: one, or one for each fold.
        classes_: The class labels.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_digits(return_X_y=True)
        >>> classifier = CalibratedClassifier(GaussianNB(), method="temperature").fit(X, y)
        >>> print(f"{float(classifier.calibrator_.temperature):.1f}")
        6.5
    """

    # As of scikit-learn's group splitters: with metadata routing, groups are requested by default.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True}

    def __init__(
        self,
        estimator: BaseEstimator | None = None,
        *,
        method: str | type[Calibrator] = "auto",
        cv: Any = None,  # noqa: ANN401 - what scikit-learn takes
        ensemble: bool = False,
        options: dict[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = 0,
        on_fit_error: Literal["warn", "raise"] = "warn",
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.ensemble = ensemble
        self.options = options
        self.random_state = random_state
        self.on_fit_error = on_fit_error

    def fit(
        self,
        X: Any,  # noqa: ANN401, N803 - scikit-learn's names
        y: Any,  # noqa: ANN401 - scikit-learn's names
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        **fit_params: Any,  # noqa: ANN401 - scikit-learn's names
    ) -> Self:
        """Train the classifier, unless it is fitted already, and then the calibrator.

        Args:
            X: Samples, as the classifier takes them.
            y: Class labels.
            sample_weight: How much each sample counts, for the classifier and for the calibrator. Whole
                numbers are counts, as everywhere in scikit-learn: weight 2 is the same as the sample twice. A
                pipeline takes them under the name of a step, as in ``model__sample_weight``, and so does the
                calibrator.
            groups: What each sample belongs to, if samples depend on each other, such as a patient or a
                question; elsewhere in Calibrant these are units. No fold of the classifier or of the
                calibrator splits one. With metadata routing, groups are requested by default.
            fit_params: Passed to the classifier's ``fit``; those with one entry per sample follow the folds.
                A classifier that is fitted already takes none.
        """
        check_choice(self.on_fit_error, "on_fit_error", ("warn", "raise"))
        method = _method(self.method)
        check_classification_targets(y)
        sample_weight = None if sample_weight is None else np.asarray(sample_weight)
        X, y, groups = indexable(X, column_or_1d(y, warn=True), groups)  # noqa: N806  # scikit-learn's names and untyped values
        units = None if groups is None else np.unique(column_or_1d(groups), return_inverse=True)[1]
        estimator = self._given_estimator()
        if self._is_prefit:
            _refuse_unused(fit_params, ensemble=self.ensemble)
        fit_params, weights = self._weights(estimator, sample_weight, groups, fit_params)
        data = _Data(X, y, None if weights is None else np.asarray(weights), units, fit_params)
        if self.ensemble:
            folds = self._splitter(y, grouped=groups is not None).split(X, y, groups)
            self.members_ = [self._member(method, data, *fold) for fold in folds]
        else:
            self.members_ = [self._only_member(method, data, groups)]
            self.estimator_, self.calibrator_ = self.members_[0]
        first = self.members_[0][0]
        self.classes_ = first.classes_
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(first, name):
                setattr(self, name, getattr(first, name))
        return self

    def _only_member(
        self, method: Method, data: "_Data", groups: ArrayLike | None
    ) -> tuple[BaseEstimator, Calibrator]:
        """Train the classifier on all samples; fit the calibrator to scores of samples that are new to it."""
        estimator = self._given_estimator()
        if self._is_prefit:
            check_is_fitted(estimator)
            return estimator, self._fit_calibrator(method, estimator, _scores(estimator, data.X), data)
        fitted = clone(estimator).fit(data.X, data.y, **data.params)
        folds = self._splitter(data.y, grouped=groups is not None).split(data.X, data.y, groups)
        scores = cross_val_predict(
            estimator, data.X, data.y, cv=list(folds), method=_response(estimator), params=data.params
        )
        return fitted, self._fit_calibrator(method, fitted, scores, data)

    def _member(
        self, method: Method, data: "_Data", train: npt.NDArray[np.intp], held: npt.NDArray[np.intp]
    ) -> tuple[BaseEstimator, Calibrator]:
        """Train a classifier on some folds, and fit its calibrator on the one that it has not seen."""
        part = data.take(train)
        fitted = clone(self._given_estimator()).fit(part.X, part.y, **part.params)
        if len(fitted.classes_) < len(np.unique(data.y)):
            raise _lacks_a_class()
        part = data.take(held)
        return fitted, self._fit_calibrator(method, fitted, _scores(fitted, part.X), part)

    def predict_proba(self, X: Any) -> Floats:  # noqa: ANN401, N803 - scikit-learn's names
        """Return calibrated probabilities of shape ``(n, k)``, in the order of ``classes_``."""
        check_is_fitted(self)
        each = []
        for estimator, calibrator in self.members_:
            features = _features(X) if calibrator.needs_features else None
            probs = calibrator.predict_proba(_logits(estimator, _scores(estimator, X)), features)
            each.append(np.asarray(probs))
        mean: Floats = np.mean(each, axis=0)
        return mean

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: ANN401, N803 - scikit-learn's names
        """Return the most probable class of each sample."""
        check_is_fitted(self)
        predicted: npt.NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return predicted

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - a private class of scikit-learn
        """Accept what the classifier accepts."""
        from sklearn.utils import get_tags  # new in scikit-learn 1.6, and so is the call

        tags = super().__sklearn_tags__()
        inner = get_tags(self._given_estimator())
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        return tags

    def get_metadata_routing(self) -> MetadataRouter:
        """Return what ``fit`` takes for itself, and what it passes on to the classifier."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=type(self).__name__).add_self_request(self)
        router = router.add(estimator=self._given_estimator(), method_mapping=mapping)
        if self._is_prefit or not hasattr(self.cv, "split"):
            return router
        splits = MethodMapping().add(caller="fit", callee="split")
        return router.add(splitter=self.cv, method_mapping=splits)

    def _splitter(self, y: Any, *, grouped: bool) -> Any:  # noqa: ANN401  # scikit-learn's untyped values
        """Return what makes folds: by default stratified ones, which split no group if there are groups."""
        if grouped and (self.cv is None or isinstance(self.cv, Integral)):
            return StratifiedGroupKFold(5 if self.cv is None else int(self.cv))
        return check_cv(self.cv, y, classifier=True)

    def _weights(
        self,
        estimator: BaseEstimator,
        sample_weight: ArrayLike | None,
        groups: ArrayLike | None,
        fit_params: dict[str, Any],
    ) -> tuple[dict[str, Any], ArrayLike | None]:
        """Return the parameters of the classifier's ``fit``, and the weights of the calibrator."""
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", sample_weight=sample_weight, groups=groups, **fit_params)
            return dict(routed.estimator.fit), sample_weight
        in_steps = [value for name, value in fit_params.items() if name.endswith("__sample_weight")]
        if sample_weight is None:
            return fit_params, in_steps[-1] if in_steps else None
        if has_fit_parameter(estimator, "sample_weight"):
            return {**fit_params, "sample_weight": sample_weight}, sample_weight
        if not in_steps and not self._is_prefit:
            warnings.warn(
                f"sample_weight counts for the calibrator only, because {type(estimator).__name__} does not "
                "take it",
                UserWarning,
                stacklevel=3,
            )
        return fit_params, sample_weight

    @property
    def _is_prefit(self) -> bool:
        return isinstance(self.cv, str) and self.cv == "prefit"

    def _given_estimator(self) -> BaseEstimator:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _fit_calibrator(
        self,
        method: Method,
        estimator: BaseEstimator,
        scores: Any,  # noqa: ANN401  # scikit-learn's names and untyped values
        data: "_Data",
    ) -> Calibrator:
        logits, classes, y = _logits(estimator, scores), estimator.classes_, data.y
        labels = np.searchsorted(classes, y).clip(max=len(classes) - 1)
        unknown = np.asarray(y)[classes[labels] != y]
        if len(unknown):
            raise InputError(f"y: expected classes that the classifier knows, got {unknown[0]!r}")
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(2**31)
        features = _features(data.X) if method.calibrator.needs_features else None
        units, weights = data.units, data.weights
        rows = None if weights is None else _counted(weights, n=len(labels))
        weights = None if rows is not None else weights
        if rows is not None:
            logits, labels = logits[rows], labels[rows]
            features = None if features is None else features[rows]
            units = None if units is None else units[rows]
        try:
            return method.fit(
                logits,
                labels,
                features=features,
                weights=weights,
                seed=int(seed),
                options=self.options,
                **({} if units is None else {"units": units}),
            )
        except FitError as error:
            if self.on_fit_error == "raise":
                raise
            warnings.warn(
                f"the classifier's own scores are used uncalibrated; {error}",
                UncalibratedWarning,
                stacklevel=3,
            )
            return Identity.fit(logits, labels)


def _method(method: str | type[Calibrator]) -> Method:
    if isinstance(method, type) and issubclass(method, Calibrator):
        return Method(method, "given as a class")
    if not isinstance(method, str):
        raise InputError(f"method: expected a calibrator class or the name of a method, got {method!r}")
    try:
        return method_named(_OTHER_NAMES.get(method, method))
    except InputError as error:
        rest = str(error).removeprefix("methods: expected ")
        raise InputError(f"method: expected a calibrator class or {rest}") from None


@dataclass(frozen=True)
class _Data:
    """The samples of a fit, what counts with each, and what goes to the ``fit`` of the classifier."""

    X: Any
    y: Any
    weights: npt.NDArray[Any] | None
    units: npt.NDArray[np.int64] | None
    params: dict[str, Any]

    def take(self, rows: npt.NDArray[np.intp]) -> "_Data":
        """Return some of the samples, with the parameters that have an entry for each of them."""
        return _Data(
            _safe_indexing(self.X, rows),
            _safe_indexing(self.y, rows),
            None if self.weights is None else self.weights[rows],
            None if self.units is None else self.units[rows],
            {name: _rows_of(value, rows, n=len(self.y)) for name, value in self.params.items()},
        )


def _rows_of(value: Any, rows: npt.NDArray[np.intp], *, n: int) -> Any:  # noqa: ANN401  # any parameter
    """Return the entries of some samples if a parameter has one for each, else the parameter."""
    of_samples = not isinstance(value, str) and getattr(value, "__len__", lambda: None)() == n
    return _safe_indexing(value, rows) if of_samples else value


def _refuse_unused(fit_params: dict[str, Any], *, ensemble: bool) -> None:
    """With ``cv="prefit"``, reject every fit argument except ``sample_weight``, and an ensemble."""
    if ensemble:
        raise InputError(
            "ensemble: expected False beside cv='prefit', got True; there is only one classifier"
        )
    unused = [name for name in fit_params if not name.endswith("__sample_weight")]
    if unused:
        raise InputError(
            f"{unused[0]}: expected only sample_weight beside cv='prefit', got another keyword of fit; the "
            "classifier is fitted already, leave it out"
        )


def _counted(weights: ArrayLike, *, n: int) -> npt.NDArray[np.intp] | None:
    """Return the rows, each as often as its weight; None if weights are no counts or too many."""
    w = np.asarray(weights)
    if w.shape != (n,) or w.dtype.kind not in "biuf" or not np.isfinite(w).all():
        return None  # refused by the fit
    if (w < 0).any() or (w % 1).any() or not 0 < w.sum() <= max(_MOST_COUNTED, 4 * n):
        return None
    return np.repeat(np.arange(n), w.astype(np.intp))


def _response(estimator: BaseEstimator) -> str:
    for name in ("decision_function", "predict_proba"):
        if hasattr(estimator, name):
            return name
    raise InputError(
        "estimator: expected a classifier with decision_function or predict_proba, got "
        f"{type(estimator).__name__}"
    )


def _scores(estimator: BaseEstimator, X: Any) -> Any:  # noqa: ANN401, N803  # scikit-learn's names and untyped values
    return getattr(estimator, _response(estimator))(X)


def _lacks_a_class() -> InputError:
    return InputError(
        "cv: expected every class in every training fold, got a fold without one; use stratified folds "
        "and at least two samples of each class"
    )


def _logits(estimator: BaseEstimator, scores: Any) -> Floats:  # noqa: ANN401  # scikit-learn's names and untyped values
    """Return scores as logits: ``(n, k)``, or ``(n,)`` for two classes."""
    values = np.asarray(scores, dtype=np.float64)
    k = len(estimator.classes_)
    if _response(estimator) == "predict_proba":
        return np.log(np.maximum(values, LEAST_PROB))
    if (
        values.shape[1:] != (() if k == 2 else (k,))
        or getattr(estimator, "decision_function_shape", "") == "ovo"
    ):
        raise InputError(
            f"estimator: expected one score for each of {k} classes from decision_function, got shape "
            f"{values.shape}; if the classifier compares pairs, set decision_function_shape='ovr'"
        )
    if len(values) and values.min() <= np.finfo(np.float64).min / 2:
        raise _lacks_a_class()
    return values


def _features(X: Any) -> Floats:  # noqa: ANN401, N803  # scikit-learn's names and untyped values
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)
