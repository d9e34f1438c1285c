"""Groups of several columns and segments that nobody named: what repair is worth on fresh data.

Simulated: five normal features, log-odds of a model that is calibrated but for three overlapping segments
(x0 > 0.5 is underconfident, x1 > 0 and x2 < 0 overconfident, x3 < -1 underconfident), or in no segment. The
error of a segment is the absolute mean of confidence minus the true probability; the worst of the three
segments and their complements counts. Fitted on some samples, measured on 20,000 others.

With ``--compas FILE`` (ProPublica's two_years.csv): decile scores divided by ten, by race and sex, repaired
on a random half and measured on the other.

Run: ``python benchmarks/segments.py`` (two minutes). With ``pip install mcgrad`` the same by that library, in
the last two columns.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrant import Predictions
from calibrant.evaluation import by_group, calibrated, compare
from calibrant.inputs import Floats
from calibrant.posthoc import SegmentCalibration
from timing import benchmark_parser, print_head, print_row

try:
    import pandas as pd
    from mcgrad.methods import MCGrad
except ModuleNotFoundError:  # the peer is optional
    MCGrad = None

_SHIFTS = (1.0, -1.0, 0.8)


def segments_of(x: Floats) -> list[np.ndarray]:
    """Return the samples of the three segments."""
    return [x[:, 0] > 0.5, (x[:, 1] > 0) & (x[:, 2] < 0), x[:, 3] < -1]


def drawn(n: int, seed: int, *, differ: bool) -> tuple[Floats, Floats, Floats]:
    """Return features, stated log-odds and true log-odds."""
    rng = np.random.default_rng(seed)
    x, s = rng.normal(size=(n, 5)), 1.5 * rng.normal(size=n)
    shift = sum(size * part for size, part in zip(_SHIFTS, segments_of(x), strict=True))
    return x, s, s + shift if differ else s


def simulated(n: int, runs: int, n_test: int, *, differ: bool) -> list[str]:
    """Return a row of the table: error of the worst segment and cross-entropy, before and after."""
    found = []
    for seed in range(runs):
        x, s, t = drawn(n, seed, differ=differ)
        y = (np.random.default_rng(500 + seed).random(n) < 1 / (1 + np.exp(-t))).astype(int)
        fitted = SegmentCalibration.fit(s, y, features=x)
        x, s, t = drawn(n_test, 1000 + seed, differ=differ)
        truth = 1 / (1 + np.exp(-t))
        parts = [part for each in segments_of(x) for part in (each, ~each)]
        row = [fitted.n_rounds]
        peer = () if MCGrad is None else (by_mcgrad(n, seed, x, s, differ=differ),)
        for p in (fitted.base.predict_proba(s)[:, 1], fitted.predict_proba(s, x)[:, 1], *peer):
            row.append(max(abs((p - truth)[part].mean()) for part in parts))
            row.append(-(truth * np.log(p) + (1 - truth) * np.log(1 - p)).mean())
        found.append(row)
    rounds, error, loss, error_after, loss_after, *of_peer = np.array(found).T
    change = loss_after - loss
    return [
        "differ" if differ else "do not differ",
        f"{n:,}",
        f"{(rounds > 0).mean():.0%}",
        f"{100 * error.mean():.2f}",
        f"{100 * error_after.mean():.2f}",
        f"{1 - error_after.mean() / error.mean():.0%}",
        f"{change.mean():+.4f}",
        f"{change.max():+.4f}",
        *(() if not of_peer else (f"{100 * of_peer[0].mean():.2f}", f"{(of_peer[1] - loss).mean():+.4f}")),
    ]


def by_mcgrad(n: int, seed: int, x: Floats, s: Floats, *, differ: bool) -> Floats:
    """Return the confidences of mcgrad's default, fitted on the same samples."""
    fit_x, fit_s, t = drawn(n, seed, differ=differ)
    y = np.random.default_rng(500 + seed).random(n) < 1 / (1 + np.exp(-t))
    names = [f"x{place}" for place in range(x.shape[1])]
    columns = {"categorical_feature_column_names": [], "numerical_feature_column_names": names}
    new = pd.DataFrame(x, columns=names).assign(score=1 / (1 + np.exp(-s)))
    fitting = pd.DataFrame(fit_x, columns=names).assign(score=1 / (1 + np.exp(-fit_s)), label=y.astype(int))
    fitted = MCGrad().fit(fitting, "score", "label", **columns)
    return np.clip(fitted.predict(new, "score", **columns), 1e-6, 1 - 1e-6)


def compas(path: Path) -> None:
    """Print the groups of the held-out half before and after repair."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    every = Predictions(
        confidence=[int(row["decile_score"]) / 10 for row in rows],
        correct=[row["two_year_recid"] == "1" for row in rows],
        groups={name: [row[name] for row in rows] for name in ("race", "sex")},
    )
    half = np.random.default_rng(0).random(every.n) < 0.5
    fitting, test = every.take(half), every.take(~half)
    comparison = compare(fitting, test=test)
    repaired = {name: calibrated(comparison[name].calibrator, test) for name in ("pool", "by_group")}
    tables = {"before": by_group(test), **{name: by_group(each) for name, each in repaired.items()}}
    print()
    print_head("group", "samples", *(f"{what}, {name}" for name in tables for what in ("gap", "smECE", "p")))
    of = {name: {row.name: row for row in table.rows} for name, table in tables.items()}
    for name, row in of["before"].items():
        cells = []
        for each in of.values():
            found = each[name]
            error = found.metrics.get("smece", np.nan)
            cells += [f"{100 * found.gap:+.1f}", f"{100 * error:.1f}", f"{found.p_corrected:.3f}"]
        print_row(name, f"{row.n:,}", *cells)
    print()
    for name, table in tables.items():
        nll = table.within
        print(f"- {name}: {table.sentence}; smECE within groups {100 * nll['smece']:.2f} %")
    for name in ("uncalibrated", "pool", "by_group"):
        metrics = comparison[name].test_metrics
        print(f"- {name}: NLL {metrics['nll']:.4f}, Brier {metrics['brier']:.4f} on the held-out half")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the simulation, and COMPAS if its file is named."""
    parser = benchmark_parser(__doc__, "few runs and samples")
    parser.add_argument("--compas", type=Path, help="ProPublica's file of two years")
    options = parser.parse_args(arguments)
    sizes, runs, n_test = ((500,), 2, 2000) if options.quick else ((1000, 2000, 4000, 8000), 20, 20_000)
    columns = ("corrected", "worst segment, %", "after, %", "lower by", "change of NLL", "largest change")
    peer = () if MCGrad is None else ("mcgrad: after, %", "mcgrad: change of NLL")
    print_head("segments", "samples", *columns, *peer)
    for differ in (True, False):
        for n in sizes:
            print_row(*simulated(n, runs, n_test, differ=differ))
    if options.compas is not None:
        compas(options.compas)


if __name__ == "__main__":
    main()
