"""What is lost where large sets are calibrated on a part: NLL, ECE and choice beside those of all samples.

    python benchmarks/large_sets.py [--data DIR] [--seeds 3] [--quick]

A fifth of each set, at most 25,000 samples, is fresh data; ``compare`` is fitted on the others, once on the
part that ``calibrant.evaluation.large_sets`` draws and once with ``all_samples=True``. Differences are given
in standard errors of the measure on the fresh data. The folder has ``predictions/*.npz``,
``imagenet_confidences/*.parquet``, ``llm_mmlu_pro/answers.parquet`` and ``cifar10/*.parquet``, of which small
classifiers are trained on 8,000 images and judged on the other 52,000; without it there are the bundled
predictions and drawn sets.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from arena_sets import small_images
from calibrant import Predictions
from calibrant.data.bundled import load_bundled
from calibrant.data.columns import Columns
from calibrant.data.files import load_predictions
from calibrant.evaluation import choose, compare
from calibrant.evaluation.compare import MethodResult
from calibrant.metrics.proper import log_losses
from calibrant.posthoc.fitting.folds import shuffled
from commands import draw
from timing import benchmark_parser, print_head, print_row

_SHARE, _MOST_FRESH = 5, 25_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each set, the mean over seeds, and the mean over the sets of which a part was used."""
    parser = benchmark_parser(__doc__, "the bundled predictions and one small drawn set, one seed")
    parser.add_argument("--data", type=Path, help="folder of real sets")
    parser.add_argument("--seeds", type=int, default=3, help="number of random splits of each set")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print_head(
        *("set", "samples", "used", "NLL of all", "of the part", "SE", "ECE %, all", "part", "SE"),
        *("choice of all", "of the part"),
    )
    losses: list[tuple[float, float]] = []
    for name, predictions in sets(args.data, quick=args.quick):
        found = [row(predictions, seed) for seed in range(1 if args.quick else args.seeds)]
        numbers = [fmean(column) for column in zip(*(each for each, _ in found), strict=True)]
        nll, part, behind, ece, ece_part, ece_behind = numbers
        used, *choices = (
            " / ".join(dict.fromkeys(texts)) for texts in zip(*(e for _, e in found), strict=True)
        )
        cells = (f"{nll:.5f}", f"{part:.5f}", f"{behind:+.3f}", f"{100 * ece:.3f}", f"{100 * ece_part:.3f}")
        print_row(name, f"{predictions.n:,}", used, *cells, f"{ece_behind:+.3f}", *choices)
        if used != "all":
            losses.append((behind, ece_behind))
    if losses:
        nll, ece = (fmean(column) for column in zip(*losses, strict=True))
        print(f"\nMean over the {len(losses)} sets that were not used whole: {nll:+.3f} and {ece:+.3f} SE.")


def row(predictions: Predictions, seed: int) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Return the measures by all samples and by the part, how far apart they are, and what was chosen."""
    order = shuffled(predictions.n, seed=seed)
    n_fresh = most_fresh(predictions.n)
    fresh, rest = predictions.take(order[:n_fresh]), predictions.take(order[n_fresh:])
    whole, part = (
        compare(rest, test=fresh, all_samples=every, n_resamples=20, seed=seed) for every in (True, False)
    )
    one, other = (choose(each) for each in (whole, part))
    measured = [value for name in ("nll", "ece") for value in in_errors(name, one, other)]
    parts = part.parts
    used = "all" if parts is None else f"{len(parts.fitting):,} and {len(parts.choice):,}"
    return tuple(measured), (used, one.name, other.name)


def most_fresh(n: int) -> int:
    """Return how many of so many samples are fresh data."""
    return min(n // _SHARE, _MOST_FRESH)


def in_errors(name: str, whole: MethodResult, part: MethodResult) -> tuple[float, float, float]:
    """Return a measure of both on fresh data, and how much worse the second is in standard errors."""
    assert whole.test is not None
    assert whole.test_metrics is not None
    assert part.test_metrics is not None
    outcomes = whole.test.outcomes()
    if name == "nll" and whole.test.confidence is None:
        terms = log_losses(whole.test.labels, logits=whole.test.to_logits())
    elif name == "nll":
        terms = log_losses(confidence=outcomes.confidence, correct=outcomes.correct)
    else:
        terms = outcomes.correct.double() - outcomes.confidence.double()
    error = float(terms.std()) / math.sqrt(len(terms))
    values = whole.test_metrics[name], part.test_metrics[name]
    return *values, (values[1] - values[0]) / error


def sets(folder: Path | None, *, quick: bool) -> Iterator[tuple[str, Predictions]]:
    """Yield sets by name: the bundled one, drawn ones, and those of a folder."""
    yield "bundled CIFAR-10 network", load_bundled("cifar10_val")
    for n, k in ((30_000, 4),) if quick else ((500_000, 4), (250_000, 10), (50_000, 100), (30_000, 1000)):
        logits, labels = draw(n, k, seed=0)
        yield f"drawn, {k:,} classes", Predictions(logits=logits, labels=labels)
    if not quick:
        yield "drawn confidences", confidences(1_000_000)
    if folder is not None:
        yield from real_sets(folder)


def real_sets(folder: Path) -> Iterator[tuple[str, Predictions]]:
    """Yield the sets of a folder by name."""
    for path in sorted((folder / "predictions").glob("*.npz")):
        yield path.stem, load_predictions(path)
    for path in sorted((folder / "imagenet_confidences").glob("*.parquet")):
        columns = Columns(confidence="confidence", correct="correct")
        yield path.stem, load_predictions(path, columns=columns)
    for signal in ("stated", "logprob", "wording"):
        columns = Columns(confidence=signal, correct="correct", missing="drop")
        answers = load_predictions(folder / "llm_mmlu_pro/answers.parquet", columns=columns)
        yield f"MMLU-Pro, {signal}", answers
    yield from images(sorted((folder / "cifar10").glob("*.parquet")))


def images(paths: Sequence[Path]) -> Iterator[tuple[str, Predictions]]:
    """Train three small classifiers on 8,000 images of CIFAR-10 and predict the 52,000 others."""
    x, y = small_images(paths)
    order = np.random.default_rng(0).permutation(len(y))
    few, others = order[:8000], order[8000:]
    models = {
        "logistic regression": LogisticRegression(max_iter=200),
        "a network of one layer": MLPClassifier((128,), max_iter=60, random_state=0),
        "a forest": RandomForestClassifier(100, random_state=0),
    }
    for name, model in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(x[few], y[few])
        probs = model.predict_proba(x[others])
        yield f"CIFAR-10, {name}", Predictions(probs=probs, labels=y[others])


def confidences(n: int) -> Predictions:
    """Draw overconfident predictions of which only the confidence and the outcome are known."""
    rng = np.random.default_rng(0)
    confidence = rng.beta(5, 2, size=n)
    correct = rng.random(n) < confidence**1.5 - 0.05 * np.sin(6 * confidence) * (1 - confidence)
    return Predictions(confidence=confidence, correct=correct)


if __name__ == "__main__":
    main()
