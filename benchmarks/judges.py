"""Mean outcomes from a judge's scores: how often the intervals hold, and how the labels needed turn out.

    python benchmarks/judges.py [--runs 400] [--only SECTION ...] [--data FOLDER] [--seed 0] [--quick]

Populations with a known truth: four policies answer the same prompts. A score is the sum of a part of the
prompt, a part of the answer and a shift of the policy; the outcome depends on the score alone, so the judge
carries over from one policy to another, except where a cell says otherwise. ``--data`` names the folder with
``judge_scores/answers.parquet``.

The direct method is that of cje-eval, written from its description: isotonic regression of the labelled
outcomes on the score, its mean over all rows of a policy, and a variance that adds that of this mean over
prompts to a jackknife over five folds of labelled prompts; normal quantiles.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import isotonic_regression

from calibrant.data.judged import load_judged
from calibrant.decisions import estimate_outcomes
from calibrant.decisions.judges import PolicyDifference
from timing import benchmark_parser, print_head, print_row

POLICIES = ("base", "same", "better", "worse")
SHIFTS = np.array([0.0, 0.0, 0.3, -0.8])
FOLDS, Z = 5, 1.959964


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sections and print their tables."""
    parser = benchmark_parser(__doc__, "two runs of each cell")
    parser.add_argument("--runs", type=int, default=400, help="runs of each cell")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="sections to run, instead of all")
    parser.add_argument("--data", type=Path, help="folder with judge_scores/")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other samples")
    options = parser.parse_args(arguments)
    options.runs = 2 if options.quick else options.runs
    for name in options.only or SECTIONS:
        SECTIONS[name](options)


# --- populations ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """What is drawn.

    Attributes:
        kind: ``"yes/no"`` or ``"continuous"`` outcomes.
        slope: How much the outcome depends on the score.
        n_labelled: Number of labelled prompts.
        labels: ``"all"`` policies on the same prompts, ``"base"`` only, or ``"base, chosen"``: base only, and
            low scores four times as often.
        level: The log-odds of an outcome at score zero.
        n_prompts: Number of prompts.
        n_answers: Answers of each policy to a prompt.
        rounded: Whether scores have few values.
        bias: Log-odds by which outcomes of the last policy are lower at the same score.
        note: What is special.
    """

    kind: str
    slope: float
    n_labelled: int
    labels: str
    level: float = 0.0
    n_prompts: int = 1000
    n_answers: int = 1
    rounded: bool = False
    bias: float = 0.0
    note: str = ""

    def draw(self, n_prompts: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return scores, outcomes, policies, prompts and expected outcomes."""
        policy, prompt = (
            each.ravel() for each in np.indices((n_prompts, len(POLICIES), self.n_answers))[[1, 0]]
        )
        own, shared = rng.normal(size=len(policy)), rng.normal(size=n_prompts)
        score = SHIFTS[policy] + np.sqrt(0.5) * (shared[prompt] + own)
        odds = self.level + self.slope * score - self.bias * (policy == len(POLICIES) - 1)
        mean = 1 / (1 + np.exp(-odds))
        if self.kind == "yes/no":
            outcome = (rng.random(len(mean)) < mean).astype(float)
        else:
            outcome = rng.beta(6 * mean, 6 * (1 - mean))
        return (np.round(2 * score) / 2 if self.rounded else score), outcome, policy, prompt, mean

    def labelled(
        self, score: np.ndarray, policy: np.ndarray, prompt: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return which rows are labelled."""
        if self.labels == "all":
            return np.isin(prompt, rng.choice(self.n_prompts, self.n_labelled, replace=False))
        base = np.flatnonzero(policy == 0)
        chance = np.where(score[base] < 0, 4.0, 1.0) if "chosen" in self.labels else np.ones(len(base))
        found = np.zeros(len(score), dtype=bool)
        found[rng.choice(base, self.n_labelled, replace=False, p=chance / chance.sum())] = True
        return found


# --- the direct method ------------------------------------------------------------------------------------


def isotonic(score: np.ndarray, outcome: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Fit a rising step function and return it at other scores, linear in between."""
    knots, place, n = np.unique(score, return_inverse=True, return_counts=True)
    return np.interp(where, knots, isotonic_regression(np.bincount(place, weights=outcome) / n, weights=n).x)


def direct(
    score: np.ndarray,
    outcome: np.ndarray,
    policy: np.ndarray,
    prompt: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the means, their covariance over prompts, and that of the jackknife, for all policies."""
    known = ~np.isnan(outcome)
    k, n_prompts = policy.max() + 1, prompt.max() + 1
    counts = np.bincount(policy)
    fold = np.full(n_prompts, -1)
    labelled = rng.permutation(np.unique(prompt[known]))
    fold[labelled] = np.arange(len(labelled)) % FOLDS

    def fitted(some: np.ndarray) -> np.ndarray:
        return isotonic(score[some], outcome[some], score)

    values = fitted(known)
    means = np.bincount(policy, weights=values) / counts
    terms = np.zeros((n_prompts, k))
    np.add.at(terms, (prompt, policy), (values - means[policy]) / counts[policy])
    left_out = np.array(
        [
            np.bincount(policy, weights=fitted(known & (fold[prompt] != each))) / counts
            for each in range(FOLDS)
        ]
    )
    apart = left_out - left_out.mean(axis=0)
    return means, terms.T @ terms, (FOLDS - 1) / FOLDS * apart.T @ apart


# --- sections ---------------------------------------------------------------------------------------------


def coverage(options: argparse.Namespace) -> None:
    """Print how often intervals contain the truth, beside those of the direct method."""
    print_head(
        "outcomes",
        "correlation",
        "labelled",
        "labels of",
        "cell",
        "means covered",
        "difference covered",
        "length",
        "direct: means covered",
        "direct: difference covered",
        "direct: length",
        "warned",
    )
    grid = [
        Cell(kind, slope, n, labels)
        for kind in ("yes/no", "continuous")
        for labels in ("all", "base")
        for n in (50, 100, 480)
        for slope in (0.0, 1.0, 2.5)
    ]
    special = [
        Cell("yes/no", 2.5, 100, "base", n_prompts=400, n_answers=2, note="two answers to 400 prompts"),
        Cell("continuous", 2.5, 100, "base", rounded=True, note="scores of few values"),
        Cell("yes/no", 2.5, 100, "base, chosen", note="low scores labelled more often"),
        Cell("yes/no", 1.0, 50, "all", level=4.0, note="outcomes almost all yes"),
        Cell("continuous", 2.5, 100, "base", bias=1.0, note="judge does not carry over to the last policy"),
        Cell("continuous", 2.5, 100, "all", bias=1.0, note="the same, with labels of all"),
    ]
    for cell in [*grid, *special]:
        print_row(*coverage_of(cell, options.runs, options.seed))


def coverage_of(cell: Cell, runs: int, seed: int) -> list[str]:
    """Return the row of a cell: shares over policies, and lengths of intervals."""
    score, outcome, policy, _, mean = cell.draw(100_000, np.random.default_rng(99))
    truth = np.bincount(policy, weights=mean) / np.bincount(policy)
    correlation = np.corrcoef(score, outcome)[0, 1]
    rng = np.random.default_rng(seed)
    hits, other, lengths, warned = [], [], [], 0
    for _ in range(runs):
        score, outcome, policy, prompt, _ = cell.draw(cell.n_prompts, rng)
        seen = np.where(cell.labelled(score, policy, prompt, rng), outcome, np.nan)
        found = estimate_outcomes(score, seen, policies=policy, units=prompt)
        last = next(each for each in found.differences if (each.first, each.second) == ("0", "3"))
        ends = np.array([[each.low, each.high] for each in found.policies] + [[last.low, last.high]])
        target = np.append(truth, truth[0] - truth[3])
        hits.append((ends[:, 0] <= target) & (target <= ends[:, 1]))
        warned += not found.trusted
        means, *parts = direct(score, seen, policy, prompt, rng)
        covariance = np.sum(parts, axis=0)
        variance = np.append(np.diag(covariance), covariance[0, 0] + covariance[3, 3] - 2 * covariance[0, 3])
        value = np.append(means, means[0] - means[3])
        other.append(np.abs(value - target) <= Z * np.sqrt(variance))
        lengths.append((np.diff(ends, axis=1)[:-1].mean(), 2 * Z * np.sqrt(variance[:-1]).mean()))
    shares, shares_direct = (100 * np.mean(each, axis=0) for each in (hits, other))
    ours, theirs = np.mean(lengths, axis=0)
    return [
        cell.kind,
        f"{correlation:.2f}",
        str(cell.n_labelled),
        cell.labels,
        cell.note,
        " ".join(f"{each:.1f}" for each in shares[:-1]),
        f"{shares[-1]:.1f}",
        f"{ours:.3f}",
        " ".join(f"{each:.1f}" for each in shares_direct[:-1]),
        f"{shares_direct[-1]:.1f}",
        f"{theirs:.3f}",
        f"{100 * warned / runs:.0f} %",
    ]


def needed(options: argparse.Namespace) -> None:
    """Print how often a difference is decided with as many more labels as the estimate asks for."""
    print()
    print_head(
        "outcomes",
        "correlation",
        "labelled",
        "decided",
        "more prompts",
        "more labels, median",
        "then decided",
    )
    for kind in ("yes/no", "continuous"):
        for slope, before in ((1.0, 20), (1.0, 100), (2.5, 20), (2.5, 100)):
            print_row(*needed_in(Cell(kind, slope, before, "all"), options.runs, options.seed))


def needed_in(cell: Cell, runs: int, seed: int) -> list[object]:
    """Return the row of a cell: each run gets the labels that it asks for."""
    rng = np.random.default_rng(seed)
    score, outcome, *_ = cell.draw(100_000, rng)
    correlation = np.corrcoef(score, outcome)[0, 1]
    decided, more_prompts, asked, then = 0, 0, [], []
    for _ in range(runs):
        rows, order = cell.draw(cell.n_prompts, rng), rng.permutation(cell.n_prompts)
        pair = better_pair(rows, order[: cell.n_labelled])
        if pair.decided:
            decided += 1
        elif pair.more_labels is None:
            more_prompts += 1
        else:
            asked.append(pair.more_labels)
            then.append(better_pair(rows, order[: cell.n_labelled + pair.more_labels]).decided)
    return [
        cell.kind,
        f"{correlation:.2f}",
        cell.n_labelled,
        f"{100 * decided / runs:.0f} %",
        f"{100 * more_prompts / runs:.0f} %",
        int(np.median(asked)) if asked else "",
        f"{100 * np.mean(then):.0f} %" if asked else "",
    ]


def better_pair(rows: tuple[np.ndarray, ...], labelled: np.ndarray) -> PolicyDifference:
    """Return the difference between the first policy and the better one, with labels of some prompts."""
    score, outcome, policy, prompt, _ = rows
    known = np.isin(prompt, labelled)
    found = estimate_outcomes(score, np.where(known, outcome, np.nan), policies=policy, units=prompt)
    return next(each for each in found.differences if (each.first, each.second) == ("0", "2"))


def real(options: argparse.Namespace) -> None:
    """Print the estimates for the real scores of a judge, beside those of the direct method."""
    if options.data is None:
        return
    rows = load_judged(
        options.data / "judge_scores" / "answers.parquet",
        score="judge_score",
        outcome="oracle",
        policy="policy",
        units=["prompt_id"],
    )
    found = estimate_outcomes(rows.score, rows.outcome, policies=rows.policies, units=rows.units)
    names = [each.name for each in found.policies]
    policy = np.array([names.index(each) for each in rows.policies])
    prompt = np.unique(rows.units, return_inverse=True)[1]
    means, of_prompts, of_labels = direct(rows.score, rows.outcome, policy, prompt, np.random.default_rng(0))
    covariance = of_prompts + of_labels
    known = ~np.isnan(rows.outcome)
    print(f"\ncorrelation {np.corrcoef(rows.score[known], rows.outcome[known])[0, 1]:.2f}\n")
    print_head("policy", "mean", "95 % interval", "direct", "direct, interval", "outside", "labels needed")
    for each in found.policies:
        place = names.index(each.name)
        half = Z * np.sqrt(covariance[place, place])
        value = means[place]
        print_row(
            f"`{each.name}`",
            f"{each.value:.3f}",
            f"{each.low:.3f} to {each.high:.3f}",
            f"{value:.3f}",
            f"{value - half:.3f} to {value + half:.3f}",
            f"{100 * each.outside:.1f} %",
            "",
        )
    for pair in found.differences:
        a, b = names.index(pair.first), names.index(pair.second)
        half = Z * np.sqrt(covariance[a, a] + covariance[b, b] - 2 * covariance[a, b])
        value = means[a] - means[b]
        print_row(
            f"`{pair.first}` - `{pair.second}`",
            f"{pair.value:+.3f}",
            f"{pair.low:+.3f} to {pair.high:+.3f}",
            f"{value:+.3f}",
            f"{value - half:+.3f} to {value + half:+.3f}",
            "",
            "more prompts" if pair.more_labels is None else pair.more_labels,
        )


SECTIONS = {"coverage": coverage, "needed": needed, "real": real}


if __name__ == "__main__":
    main()
