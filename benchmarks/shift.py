"""Repair under shift without labels: what is left of the calibration error, and by which estimate.

    python benchmarks/shift_networks.py CIFAR10_FOLDER SETS
    python benchmarks/shift_texts.py CLINC150_FOLDER SETS --encoder FOLDER
    python benchmarks/shift.py SETS --rows ROWS.jsonl [--networks NAME ...]    # measure what has no row yet
    python benchmarks/shift.py SETS --rows ROWS.jsonl --page docs/results/shift.md

For each network, the calibrator that `compare` chooses on its validation predictions is applied to changed
data, as it is and adapted. `KEPT` names the kinds of change that no choice was made on, `KEPT_NETWORK` the
network. `--picture FILE` draws ECE against severity.
"""

import argparse
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy
import torch
from torch import Tensor

from calibrant import Predictions, evaluate
from calibrant.data import load_bundled
from calibrant.decisions import AdaptedCalibrator
from calibrant.decisions.shift import temperature_for
from calibrant.decisions.unlabelled_accuracy import thresholded_accuracy, transport_costs
from calibrant.evaluation import choose, compare
from calibrant.posthoc import Calibrator, TemperatureScaling
from calibrant.posthoc.pool import pool_of

KEPT = {
    "brightness", "contrast", "elastic_transform", "fog", "frost", "jpeg", "pixelate",
    "typos", "words_dropped", "words_replaced",
}  # fmt: skip
KEPT_NETWORK = "smoothed"
SEVERITIES = "12345"
N_TEST = 5_000
# How unequal classes become where frequencies change: the concentration of a Dirichlet distribution.
CONCENTRATION = 3.0
N_HEADS, N_BINS = 5, 15

Function: TypeAlias = Callable[[np.ndarray], np.ndarray]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, or print the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", type=Path, nargs="?")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--quick", action="store_true", help="the bundled predictions only")
    given = parser.parse_args(argv)
    if given.quick:
        with tempfile.TemporaryDirectory() as folder:
            sets = bundled_sets(Path(folder))
            print_page([row for path in sets.iterdir() for row in rows_of(path, set())])
        return
    if given.sets is None or given.rows is None:
        parser.error("SETS and --rows are needed")
    if given.page is not None or given.picture is not None:
        rows = [json.loads(line) for line in given.rows.read_text().splitlines()]
        if given.page is not None:
            with given.page.open("w") as page, redirect_stdout(page):
                print_page(rows)
        if given.picture is not None:
            draw(rows, given.picture)
        return
    known = given.rows.read_text().splitlines() if given.rows.exists() else []
    done = {(row["network"], row["change"], row["frequencies"]) for row in map(json.loads, known)}
    names = given.networks or sorted(path.parent.name for path in given.sets.glob("*/val.npz"))
    with given.rows.open("a") as out:
        for name in names:
            for row in rows_of(given.sets / name, done):
                out.write(json.dumps(row) + "\n")
                out.flush()
                print(name, row["change"], row["frequencies"], f"{row['alone']['ece']:.3f}", file=sys.stderr)


def bundled_sets(folder: Path) -> Path:
    """Write the bundled predictions in the format of the networks, and return their folder."""
    network = folder / "bundled"
    network.mkdir()
    files = {"val": "cifar10_val", "test": "cifar10_test", "noise-3": "cifar10_test_noise"}
    for name, bundled in files.items():
        rows = load_bundled(bundled).take(np.arange(1500))
        arrays = {key: getattr(rows, key).numpy() for key in ("logits", "labels", "features")}
        np.savez(network / f"{name}.npz", **arrays)
    return folder


def read(path: Path, rows: np.ndarray | None = None) -> tuple[Predictions, np.ndarray]:
    """Return predictions without labels, and the labels."""
    stored = np.load(path)
    chosen = np.arange(min(N_TEST, len(stored["labels"]))) if rows is None else rows
    predictions = Predictions(
        logits=torch.tensor(stored["logits"][chosen]),
        features=torch.tensor(stored["features"][chosen].astype(np.float32)),
    )
    return predictions, stored["labels"][chosen]


def rows_of(folder: Path, done: set[tuple[str, str, str]]) -> Iterator[dict[str, Any]]:
    """Yield what is measured of each change of a network's data."""
    stored = np.load(folder / "val.npz")
    source = Predictions(
        logits=torch.tensor(stored["logits"]),
        labels=torch.tensor(stored["labels"]),
        features=torch.tensor(stored["features"].astype(np.float32)),
    )
    plain = Predictions(logits=source.logits, labels=source.labels)
    calibrator = None
    rng = np.random.default_rng(0)
    for path in sorted(folder.glob("*.npz")):
        kind, _, severity = path.stem.rpartition("-")
        if path.stem == "val" or (kind and severity not in SEVERITIES):
            continue
        labels = np.load(path)["labels"][:N_TEST]
        parts = {"same": np.arange(len(labels))}
        if severity == "3" or not kind:
            parts["changed"] = with_other_frequencies(labels, rng)
        if kind and kind not in KEPT:
            parts.pop("changed", None)
        for frequencies, rows in parts.items():
            if (folder.name, path.stem, frequencies) in done:
                continue
            calibrator = calibrator or choose(compare(plain)).calibrator
            unlabelled, truth = read(path, rows)
            found = {"network": folder.name, "change": path.stem, "frequencies": frequencies}
            yield found | measured(calibrator, source, unlabelled, truth)


def with_other_frequencies(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return rows in which classes are more or less frequent."""
    k = labels.max() + 1
    shares = rng.dirichlet(np.full(k, CONCENTRATION))
    chance = shares[labels.clip(0)] / shares.max()
    return np.flatnonzero(rng.random(len(labels)) < chance * min(1.0, 0.5 / chance.mean()))


def measured(
    calibrator: Calibrator, source: Predictions, unlabelled: Predictions, labels: np.ndarray
) -> dict[str, Any]:
    """Return ECE and NLL of the calibrator alone, adapted, and by other estimates of the accuracy."""
    before = calibrator.predict_log_proba(source.logits.double()).numpy()
    after = calibrator.predict_log_proba(unlabelled.logits.double()).numpy()
    right = after.argmax(axis=1) == labels
    found: dict[str, Any] = {"accuracy": float(right.mean()), "alone": scores(after, labels)}
    with_features = AdaptedCalibrator.fit(calibrator, source, unlabelled)
    bare = [Predictions(logits=each.logits, labels=each.labels) for each in (source, unlabelled)]
    adapted = {"neighbours": with_features, "model": AdaptedCalibrator.fit(calibrator, *bare)}
    for name, one in adapted.items():
        found[name] = scores(after / one.temperature, labels) | {
            "accuracy": one.accuracy, "remaining": one.remaining, "verdict": one.verdict,
            "temperature": one.temperature,
        }  # fmt: skip
    for name, estimate in CANDIDATES.items():
        accuracy = estimate(before, source, after, unlabelled)
        found[name] = scores(after / temperature_for(after, accuracy), labels) | {"accuracy": accuracy}
    agree = [members_agree(calibrator, each.logits.double()) for each in (source, unlabelled)]
    accuracy = moved_alike(right_before(before, source).mean(), *agree)
    found["members"] = scores(after / temperature_for(after, accuracy), labels) | {
        "accuracy": accuracy, "differ": [1 - each for each in agree],
    }  # fmt: skip
    for name, inputs in DISCRIMINATED.items():
        found[name] = scores(after / weighted_temperature(before, source, inputs, unlabelled), labels)
    found["truth"] = scores(after / temperature_for(after, float(right.mean())), labels)
    return found


def scores(log_probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return ECE and NLL; samples of no class count as wrong, and their NLL is that of being wrong."""
    log_probs = scipy.special.log_softmax(log_probs, axis=1)
    confidence, right = np.exp(log_probs.max(axis=1)), log_probs.argmax(axis=1) == labels
    pairs = Predictions(confidence=confidence.clip(0, 1), correct=right)
    losses = -log_probs[np.arange(len(labels)), labels.clip(0)]
    losses[labels < 0] = -np.log1p(-confidence[labels < 0].clip(max=1 - 1e-9))
    return {"ece": evaluate(pairs, measures=["ece"]).metrics["ece"], "nll": float(losses.mean())}


def sureness(log_probs: np.ndarray) -> np.ndarray:
    """Return the negative entropy."""
    return np.asarray((np.exp(log_probs) * log_probs).sum(axis=1))


def right_before(before: np.ndarray, source: Predictions) -> np.ndarray:
    """Return which labelled samples are right."""
    return before.argmax(axis=1) == source.labels.numpy()


def thresholds(before: np.ndarray, source: Predictions, after: np.ndarray, _: Predictions) -> float:
    """Average thresholded confidence."""
    return thresholded_accuracy(sureness(before), sureness(after), right_before(before, source).mean())


def class_thresholds(before: np.ndarray, source: Predictions, after: np.ndarray, _: Predictions) -> float:
    """Average thresholded confidence with a threshold for each predicted class."""
    right, total = right_before(before, source), 0.0
    one, two = before.argmax(axis=1), after.argmax(axis=1)
    sure, sure_after = sureness(before), sureness(after)
    for each in np.unique(two):
        mine = one == each
        mine = mine if mine.sum() >= 20 else np.ones_like(mine)
        estimate = thresholded_accuracy(sure[mine], sure_after[two == each], right[mine].mean())
        total += estimate * (two == each).sum()
    return total / len(two)


def transport(before: np.ndarray, source: Predictions, after: np.ndarray, _: Predictions) -> float:
    """Mean cost of transport (COT), moved by its error on the labelled samples."""
    k = before.shape[1]
    frequencies = np.bincount(source.labels.numpy(), minlength=k) / source.n
    known = 1 - transport_costs(np.exp(before), frequencies).mean()
    moved = right_before(before, source).mean() - known
    return float(1 - transport_costs(np.exp(after), frequencies).mean() + moved)


def features_of(predictions: Predictions) -> np.ndarray:
    """Return the features."""
    return np.asarray(predictions.features.double().numpy())


def logistic(
    rows: np.ndarray, true: np.ndarray, *, ridge: float = 0.02, weights: np.ndarray | float = 1.0
) -> Function:
    """Fit a logistic regression, and return the function that gives the log-odds of rows."""
    centre, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    weights = np.broadcast_to(weights, len(rows)) / np.broadcast_to(weights, len(rows)).sum()

    def scaled(each: np.ndarray) -> np.ndarray:
        return np.column_stack([np.clip((each - centre) / scale, -10, 10), np.ones(len(each))])

    x = scaled(rows)
    pull = np.append(np.full(x.shape[1] - 1, ridge), 0)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        odds = x @ theta
        slope = x.T @ (weights * (scipy.special.expit(odds) - true)) + pull * theta
        return float(weights @ (np.logaddexp(0, odds) - true * odds) + pull @ theta**2 / 2), slope

    theta = scipy.optimize.minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x
    return lambda each: np.asarray(scaled(each) @ theta)


@functools.cache
def gaussians(source: Predictions, k: int, rows: bytes) -> tuple[Function, Function]:
    """Return log-densities in each class of those rows, up to one number, and that number; one covariance."""
    drawn = np.frombuffer(rows, dtype=np.int64)
    x, y = features_of(source)[drawn], source.labels.numpy()[drawn]
    member = np.eye(k)[y]
    centres = member.T @ x / np.maximum(member.sum(axis=0), 1)[:, None]
    spread = x - centres[y]
    covariance = spread.T @ spread / len(x)
    covariance += 0.1 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    precision = np.linalg.inv(covariance)
    weights = precision @ centres.T
    offset = -(centres * weights.T).sum(axis=1) / 2
    return lambda each: each @ weights + offset, lambda each: -((each @ precision) * each).sum(axis=1) / 2


def moved_alike(accuracy: float, known: float, found: float) -> float:
    """Return the accuracy if its log-odds move as those of an agreement do (as GDE has it)."""
    own, one, two = (scipy.special.logit(np.clip(each, 1e-3, 1 - 1e-3)) for each in (accuracy, known, found))
    return float(scipy.special.expit(own + two - one))


def members_agree(calibrator: Calibrator, logits: Tensor) -> float:
    """Return how often a member of a pool predicts the class that the pool predicts."""
    pool, classes = pool_of(calibrator), calibrator.predict_proba(logits).argmax(dim=1)
    members = [] if pool is None else pool.members.values()
    each = [(one.predict_proba(logits).argmax(dim=1) == classes).double().mean() for one in members]
    return float(np.mean(each)) if each else 1.0


def disagreement(
    before: np.ndarray, source: Predictions, after: np.ndarray, unlabelled: Predictions
) -> float:
    """Agreement with heads that are fitted on resampled features; labelled samples are asked out of bag."""
    rng, k = np.random.default_rng(0), before.shape[1]
    x, new = features_of(source), features_of(unlabelled)
    agree = []
    for _ in range(N_HEADS):
        drawn = rng.integers(len(x), size=len(x))
        head, out = gaussians(source, k, drawn.tobytes())[0], np.setdiff1d(np.arange(len(x)), drawn)
        pairs = (x[out], before[out]), (new, after)
        agree.append([(head(one).argmax(axis=1) == two.argmax(axis=1)).mean() for one, two in pairs])
    return moved_alike(right_before(before, source).mean(), *np.mean(agree, axis=0))


def consistency(before: np.ndarray, source: Predictions, after: np.ndarray, unlabelled: Predictions) -> float:
    """Accuracy by bin of confidence, moved by what a head on the features expects there (ECL)."""
    right, confidence = right_before(before, source), before.max(axis=1)
    head = logistic(features_of(source), right)
    one, two = (scipy.special.expit(head(features_of(each))) for each in (source, unlabelled))
    edges = np.quantile(confidence, np.arange(1, N_BINS) / N_BINS)
    bins, new = (np.searchsorted(edges, each, side="right") for each in (confidence, after.max(axis=1)))
    known = [(right - one)[bins == each].mean() if (bins == each).any() else 0.0 for each in range(N_BINS)]
    return float((two + np.take(known, new)).mean())


def density(before: np.ndarray, source: Predictions, after: np.ndarray, unlabelled: Predictions) -> float:
    """Density of features and confidence, regressed on being right; densities are of the other half."""
    x, right = features_of(source), right_before(before, source)
    other = np.arange(len(x)) % 2 == 0
    classes, common = gaussians(source, before.shape[1], np.flatnonzero(other).tobytes())

    def rows(features: np.ndarray, log_probs: np.ndarray) -> np.ndarray:
        top = np.exp(log_probs.max(axis=1)).clip(1e-6, 1 - 1e-6)
        log_density = scipy.special.logsumexp(classes(features), axis=1) + common(features)
        return np.column_stack([log_density, scipy.special.logit(top)])

    odds = logistic(rows(x[~other], before[~other]), right[~other], ridge=1e-4)
    return float(scipy.special.expit(odds(rows(features_of(unlabelled), after))).mean())


CANDIDATES: dict[str, Callable[[np.ndarray, Predictions, np.ndarray, Predictions], float]] = {
    "thresholds": thresholds,
    "class_thresholds": class_thresholds,
    "cot": transport,
    "disagreement": disagreement,
    "consistency": consistency,
    "density": density,
}


DISCRIMINATED: dict[str, Callable[[Predictions], Tensor]] = {
    "logit_weights": lambda each: each.logits.sort(dim=1).values,
    "weights": lambda each: each.features,
}


def weighted_temperature(
    before: np.ndarray, source: Predictions, inputs: Callable[[Predictions], Tensor], unlabelled: Predictions
) -> float:
    """Return the temperature of labelled samples, weighted by how much they look like the unlabelled ones.

    A logistic regression tells both sets apart; its odds are the weights (as in TransCal).
    """
    one, two = (inputs(each).double().numpy() for each in (source, unlabelled))
    new = np.arange(len(one) + len(two)) >= len(one)
    odds = logistic(np.concatenate([one, two]), new, weights=np.where(new, 1 / len(two), 1 / len(one)))
    ratio = np.exp(np.clip(odds(one), -4, 4))
    fitted = TemperatureScaling.fit(before, source.labels, weights=ratio / ratio.mean())
    return float(fitted.temperature)


TABLES = {
    "of the model's outputs": {
        "alone": "calibrator alone",
        "thresholds": "ATC",
        "class_thresholds": "ATC by class",
        "cot": "COT",
        "members": "members",
        "logit_weights": "weights",
        "model": "adapted, no features",
        "truth": "true accuracy",
    },
    "of the features": {
        "alone": "calibrator alone",
        "disagreement": "heads",
        "consistency": "ECL",
        "density": "density",
        "weights": "weights",
        "neighbours": "adapted",
        "truth": "true accuracy",
    },
}


TEXTS = ("texts", "overconfident_texts", "smoothed_texts")


def groups(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each line of the table."""

    def kind(row: dict[str, Any]) -> str:
        return str(row["change"].rpartition("-")[0])

    same = [row for row in rows if row["frequencies"] == "same"]
    images = [row for row in same if row["network"] not in TEXTS and kind(row)]
    texts = [row for row in same if row["network"] in TEXTS and kind(row)]
    kept = [row for row in images + texts if kind(row) in KEPT or row["network"] == KEPT_NETWORK]
    return {
        "all that was kept": kept,
        "images, kept kinds": [row for row in images if kind(row) in KEPT and row["network"] != KEPT_NETWORK],
        "images, kept network": [row for row in images if row["network"] == KEPT_NETWORK],
        "images, kinds of the choice": [
            row for row in images if kind(row) not in KEPT and row["network"] != KEPT_NETWORK
        ],
        "texts, kept kinds": [row for row in texts if kind(row) in KEPT],
        "texts, kinds of the choice": [row for row in texts if kind(row) not in KEPT | {"no_class"}],
        "texts, sentences of no class": [row for row in texts if kind(row) == "no_class"],
        "frequencies too, kept kinds": [
            row for row in rows if row["frequencies"] == "changed" and kind(row) in KEPT
        ],
        "frequencies alone": [row for row in rows if row["frequencies"] == "changed" and not kind(row)],
        "nothing changed": [row for row in same if not kind(row)],
    }


def mean(rows: list[dict[str, Any]], name: str, key: str) -> float:
    """Return the mean of a value of a method."""
    return float(np.mean([row[name][key] for row in rows]))


def print_differing(lines: dict[str, list[dict[str, Any]]]) -> None:
    """Print how often members of pools differ in the predicted class."""
    print("\nHow often members of a pool predict another class than the pool, in % of the samples:\n")
    print("| data | labelled | new |\n|---|---|---|")
    for name, found in lines.items():
        known, new = 100 * np.mean([row["members"]["differ"] for row in found], axis=0)
        print(f"| {name} | {known:.1f} | {new:.1f} |")


def print_page(rows: list[dict[str, Any]]) -> None:
    """Print the page of results."""
    lines = {name: found for name, found in groups(rows).items() if found}
    print(HEAD.strip())
    for key, title in (("ece", "ECE, %"), ("nll", "Negative log-likelihood")):
        scale, digits = (100, 1) if key == "ece" else (1, 3)
        for inputs, methods in TABLES.items():
            print(f"\n## {title}: estimates {inputs}\n")
            print("| data | sets | " + " | ".join(methods.values()) + " |")
            print("|---|---|" + "---|" * len(methods))
            for name, found in lines.items():
                values = " | ".join(f"{scale * mean(found, each, key):.{digits}f}" for each in methods)
                print(f"| {name} | {len(found)} | {values} |")
    print_differing(lines)
    print(OF_ITSELF.rstrip())
    for name, found in lines.items():
        one = [row["neighbours"] for row in found]
        not_worse = np.mean([row["neighbours"]["nll"] <= row["alone"]["nll"] + NO_WORSE for row in found])
        error = np.mean([abs(row["neighbours"]["accuracy"] - row["accuracy"]) for row in found])
        said, true = (np.array([each[key] for each in one]) for key in ("remaining", "ece"))
        far = np.array([each["verdict"] == "cannot tell" for each in one])
        cells = [
            f"{not_worse:.0%}", f"{100 * error:.1f}", f"{100 * said.mean():.1f}", f"{100 * true.mean():.1f}",
            f"{(np.abs(said - true) <= 0.03).mean():.0%}", f"{far.mean():.0%}",
            *(f"{100 * true[part].mean():.1f}" if part.any() else "" for part in (far, ~far)),
        ]  # fmt: skip
        print(f"| {name} | {len(found)} | " + " | ".join(cells) + " |")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw ECE against severity, on the kinds of change that no choice was made on."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    kept, names = groups(rows), {name: title for each in TABLES.values() for name, title in each.items()}
    images = kept["images, kept kinds"] + [
        row for row in kept["images, kept network"] if row["change"].rpartition("-")[0] in KEPT
    ]
    shown = ("alone", "thresholds", "disagreement", "density", "neighbours", "truth")
    for ax, found, title in (
        (axes[0], images, "images, kept kinds"),
        (axes[1], kept["texts, kept kinds"], "texts, kept kinds"),
    ):
        for name in shown:
            line = [
                100 * mean([row for row in found if row["change"].endswith(severity)], name, "ece")
                for severity in SEVERITIES
            ]
            ax.plot(range(1, 6), line, marker="o", label=names[name])
        ax.set(title=title, xlabel="severity", xticks=range(1, 6))
    axes[0].set(ylabel="ECE, %", ylim=(0, None))
    axes[0].legend(frameon=False)
    plt.rcParams["svg.hashsalt"] = "calibrant"
    figure.savefig(path, metadata={"Date": None})


#: A rise of the NLL that nobody would notice.
NO_WORSE = 1e-3

OF_ITSELF = """
## What the result says of itself

Not worse is an NLL that rises by less than 0.001. *Said* is the ECE that the result expects to remain, *true* the one that remains.

| data | sets | NLL not worse | error of the accuracy, points | ECE said | true | within 3 points | cannot tell | ECE there | ECE elsewhere |
|---|---|---|---|---|---|---|---|---|---|
"""  # noqa: E501  # a line of the page

HEAD = """
# Repair under shift, without labels

A calibrator is fitted on clean data and applied to harder ones. How much of the calibration error does
`calibrant apply --adapt shift` take away, what does each estimate add, and does it know its limits?

```sh
python benchmarks/shift_networks.py CIFAR10_FOLDER SETS
python benchmarks/shift_texts.py CLINC150_FOLDER SETS --encoder FOLDER
python benchmarks/shift.py SETS --rows rows.jsonl
python benchmarks/shift.py SETS --rows rows.jsonl --picture docs/results/shift.svg --page shift.md
```

**Images**: four small networks on CIFAR-10 (plain, residual and mixing layers, and one with label
smoothing), the 15 corruptions of CIFAR-10-C at five severities, 5,000 images each, and the bundled noisy
images. **Texts**: three heads on embeddings of CLINC150 (150 classes), whose sentences lose words, get typing
errors or strange words and are encoded again, or whose embeddings are changed. For each, `compare` chooses a
calibrator on the validation predictions.

**Kept from every choice**: the kinds brightness, contrast, elastic transform, fog, frost, JPEG and
pixelate, the network with label smoothing on all kinds, and all changes of words. The rule (both estimates,
their mean, the number of neighbours and the weight of their votes, how far a change of predicted classes
counts as one of frequencies, what remains) was chosen on the other eight kinds of three networks and on
changes of embeddings. Single numbers of *no class* and of the bundled noisy images were seen before it was
fixed. **One part is younger than the first look at what was kept**: that a calibrator which is more often
right than its model stays so by as many points, not by as many log-odds, on harder data. On the sets of the
choice that changes little; on the kept texts it lowers the error.

**The columns.** Each estimates the accuracy on the new data, and one temperature makes the mean confidence
equal to it. Of the model's outputs:

- *ATC*: average thresholded confidence (Garg et al. 2022) of the entropy, and by predicted class.
- *COT*: the cost of optimal transport, moved by its error on labelled samples (Lu et al. 2023).
- *Members*: how often the pool's members predict the class that the pool predicts. The log-odds of being
  right move by as much as those of agreeing (after the disagreement equality of Jiang et al. 2022).
- *Adapted, no features*: the threshold on the cost of transport, as `--adapt shift` does without features.

Of the features:

- *Heads*: the same as members, with five linear heads on resampled features of the labelled samples, which
  are asked about samples that they were not fitted on.
- *ECL*: expectation consistency (Dong et al. 2026) trains a network until, in each bin of confidence, a head
  expects as many right predictions on both sets. Here nothing is trained but the head, a logistic regression
  of being right on the features: what it expects more or less in a bin than on labelled samples is added to
  their accuracy there.
- *Density*: the log-density of the features under Gaussians of the classes with one covariance, and the
  confidence; a logistic regression of both gives the chance of being right.
- *Adapted*: `--adapt shift` with features, which also asks neighbours.

*Weights* fit the temperature on labelled samples that look like the new ones by their sorted logits, or by
their features (as TransCal does). *True accuracy* is the best that one temperature can do with any estimate.

**What it shows.** On images the repair leaves well under half of the error, costs nothing where nothing
changed, and nearly always knows what remains. COT and ATC come next. Members, heads, ECL, density and both
weights leave about as much error as there was, or more: they see too little of the change. Where members
never predict another class than their pool, as on two of the networks, their column promises the accuracy of
the labelled samples.

On texts whose words change the repair leaves more than half, more than ATC does, and does not know it: such a
sentence looks like another valid one. Sentences of no class are the same. There, label some samples. Of the
new columns (members, heads, ECL, density, weights by logits), only heads lower the error there, and by less
than the repair does.

A warning was tried, with an earlier pool: *cannot tell* where the density promises at least eight points less
than the result. Of the changed embeddings it warns of seven sets more, and four of these leave more than 6 %;
on images, changed sentences and sentences of no class it never warns. So it is not in the rule.

![ECE against severity](shift.svg)
"""


if __name__ == "__main__":
    main()
