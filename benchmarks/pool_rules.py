"""Rules that make a pool of calibrators, compared on the same out-of-fold predictions of real models.

Every file of predictions in a folder is a task for each number of fitting samples and each seed, drawn as in
the arena. One comparison fits the members; each rule then mixes them. The table shows ratios to temperature
scaling (geometric means over tasks), and the tasks in which a rule is behind or ahead of it by more than two
standard errors of the test set.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from calibrant import Predictions, evaluate
from calibrant.data.files import FORMATS
from calibrant.evaluation import compare
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.compare import Comparison
from calibrant.metrics.proper import log_losses
from calibrant.outcomes import LEAST_PROB
from calibrant.papers.arena_real import draw_samples, needed_to_test
from calibrant.papers.local_models import cifar10
from calibrant.papers.model_predictions import load_unweighed
from calibrant.papers.peers import PEERS, fit_peer
from calibrant.posthoc import SMART, Calibrator, Identity
from calibrant.posthoc.fitting.folds import each_fold, random_folds
from calibrant.posthoc.mean_temperature import MeanTemperature
from calibrant.posthoc.pool import Mixture, likeliest_mixture
from timing import benchmark_parser, print_head, print_row

TEMPERATURE, RIVAL = "temperature", "probmetrics SMS"

# From here on a gain counts as real, as in the pool of the library.
_ALMOST_CERTAIN = NormalDist().inv_cdf(0.98)

# Returns the share of the pool in what is used, from its out-of-fold gain in standard errors.
Trust = Callable[[float], float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of all rules."""
    parser = benchmark_parser(__doc__, "500 predictions of the bundled network")
    parser.add_argument("sets", type=Path, nargs="?", help="folder of files of predictions")
    parser.add_argument("--samples", default="200,1000,5000", help="numbers of fitting samples")
    parser.add_argument("--seeds", default="1", help="seeds that draw them; the arena uses 0 and more")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if args.quick or args.sets is None:
        files = {"bundled": cifar10().predictions}
        sizes, seeds = [300], [1]
    else:
        paths = (path for path in sorted(args.sets.rglob("*")) if path.suffix.lower() in FORMATS)
        files = {path.name: load_unweighed(path) for path in paths}
        sizes, seeds = ([int(each) for each in text.split(",")] for text in (args.samples, args.seeds))
    columns = (
        "classes",
        "samples",
        "rule",
        "tasks",
        "NLL",
        "Brier",
        "smECE",
        "> 2 SE behind",
        "> 2 SE ahead",
    )
    rivals = ("beats SMS % by NLL", "by smECE") if PEERS[RIVAL].is_installed else ()
    print_head(*columns, *rivals)
    for kind, two in (("several", False), ("two", True)):
        for size in sizes:
            tasks = [
                measured(predictions, size, seed)
                for predictions in files.values()
                for seed in seeds
                if (predictions.k == 2) == two and predictions.n >= size + needed_to_test(size)
            ]
            for rule in RULES if tasks else ():
                print_row(kind, f"{size:,}", rule, len(tasks), *cells(tasks, rule))


@dataclass(frozen=True, eq=False)
class Task:
    """The members of a pool on one task, and the samples to measure it on."""

    comparison: Comparison
    test: Predictions
    seed: int

    @cached_property
    def names(self) -> list[str]:
        """The names of the members."""
        return [each.name for each in self.comparison.results if each.name != "pool"]

    @cached_property
    def labels(self) -> Tensor:
        """The labels of the fitting samples."""
        return self.comparison.results[0].held_out.labels

    @cached_property
    def held_out(self) -> list[Tensor]:
        """The out-of-fold log-probabilities of each member."""
        found = (self.comparison[name].held_out.to_logits() for name in self.names)
        return [torch.log_softmax(each.double(), dim=1) for each in found]

    @cached_property
    def final(self) -> list[Tensor]:
        """Those of the test samples by the fits on all samples."""
        return [self.predicted(name) for name in self.names]

    def predicted(self, name: str) -> Tensor:
        """Return the log-probabilities of the test samples by one of the methods."""
        scores = calibrated(self.comparison[name].calibrator, self.test).to_logits()
        return torch.log_softmax(scores.double(), dim=1)

    @cached_property
    def folds(self) -> list[tuple[Tensor, Tensor, Mixture]]:
        """The rows outside each fold, those inside it, and the mixture that the former give."""
        folds = random_folds(len(self.labels), self.comparison.n_folds, seed=self.seed)
        return [
            (rest, inside, likeliest_mixture(self.held_out, self.labels, rest))
            for rest, inside in each_fold(folds)
        ]

    @cached_property
    def gains(self) -> Tensor:
        """By how much each sample is likelier out of fold under the mixture than by temperature scaling."""
        mixed = torch.empty_like(self.held_out[0])
        for _, inside, mixture in self.folds:
            mixed[inside] = mixture(self.held_out, inside)
        rows, safe = torch.arange(len(self.labels)), self.held_out[self.names.index(TEMPERATURE)]
        return (mixed - safe)[rows, self.labels]

    def mixed(self, trust: Trust, *, then: type[Calibrator] = Identity) -> Tensor:
        """Return the mixture of the test samples, drawn back by a rule, and then repaired by a method."""
        place, rows = self.names.index(TEMPERATURE), torch.arange(self.test.n)
        share = trust(errors(self.gains))
        if share == 0 and then is Identity:
            return self.final[place]
        whole = likeliest_mixture(self.held_out, self.labels).drawn_back(place, share)(self.final, rows)
        held_out = torch.empty_like(self.held_out[0])
        for rest, inside, mixture in self.folds:
            drawn_back = mixture.drawn_back(place, trust(errors(self.gains[rest])))
            held_out[inside] = drawn_back(self.held_out, inside)
        return then.fit(held_out, self.labels)(whole)


def errors(gains: Tensor) -> float:
    """Return the mean of gains in standard errors."""
    error = float(gains.std(correction=0)) / math.sqrt(len(gains))
    return float(gains.mean()) / error if error > 0 else 0.0


def by_chance(least: float) -> Trust:
    """Return the probability that a gain is real, and 0 for gains below ``least`` standard errors."""
    return lambda z: 0.0 if z < least else 1.0 if z > _ALMOST_CERTAIN else NormalDist().cdf(z)


RULES: dict[str, Callable[[Task], Tensor]] = {
    "the default": lambda task: default(task),
    "without temperatures": lambda task: task.mixed(by_chance(-1)),
    "SMART instead of them": lambda task: task.mixed(by_chance(-1), then=SMART),
    "never drawn back": lambda task: task.mixed(lambda _: 1.0),
    "never drawn back, then temperatures": lambda task: task.mixed(lambda _: 1.0, then=MeanTemperature),
    "only if likelier": lambda task: task.mixed(by_chance(0)),
    "only if 1 SE likelier": lambda task: task.mixed(by_chance(1)),
    "only if 2 SE likelier": lambda task: task.mixed(by_chance(2)),
    "only if 2.5 SE likelier": lambda task: task.mixed(by_chance(2.5)),
    "structured_smart alone": lambda task: task.predicted("structured_smart"),
}


def default(task: Task) -> Tensor:
    """Return what the pool of the library predicts; temperature scaling alone has no uniform share."""
    pool = task.comparison.pool
    alone = pool is not None and pool.names == [TEMPERATURE] and not pool.has_curve
    return task.predicted(TEMPERATURE if alone else "pool")


@dataclass(frozen=True, eq=False)
class Scores:
    """The measures of one rule on one task, and its log-losses."""

    values: dict[str, float]
    losses: Tensor


def measured(predictions: Predictions, size: int, seed: int) -> dict[str, Scores]:
    """Return the measures of all rules, of temperature scaling and of the rival, if it is installed."""
    fitting, test = draw_samples(predictions, size, seed=seed)
    task = Task(compare(fitting, n_resamples=10, seed=seed), test, seed)
    found = {name: rule(task) for name, rule in RULES.items()}
    found[TEMPERATURE] = task.predicted(TEMPERATURE)
    if PEERS[RIVAL].is_installed:
        predict = fit_peer(RIVAL, fitting.to_logits().double().numpy(), fitting.labels.numpy())
        found[RIVAL] = torch.from_numpy(predict(test.to_logits().double().numpy())).log()
    return {name: scores(log_probs, test) for name, log_probs in found.items()}


def scores(log_probs: Tensor, test: Predictions) -> Scores:
    """Measure log-probabilities, none below the smallest that counts."""
    least = torch.log_softmax(log_probs, dim=1).clamp_min(math.log(LEAST_PROB))
    values = evaluate(
        Predictions(logits=least, labels=test.labels), measures=["nll", "brier", "smece"]
    ).metrics
    return Scores(dict(values), log_losses(test.labels, logits=least))


def cells(tasks: Sequence[dict[str, Scores]], rule: str) -> Iterator[str]:
    """Yield the cells of a rule: ratios, tasks behind and ahead, and wins against the rival."""
    for measure in ("nll", "brier", "smece"):
        ratios = [task[rule].values[measure] / task[TEMPERATURE].values[measure] for task in tasks]
        yield f"{math.exp(np.log(ratios).mean()):.4f}"
    behind = [errors(task[rule].losses - task[TEMPERATURE].losses) for task in tasks]
    yield str(sum(each > 2 for each in behind))
    yield str(sum(each < -2 for each in behind))
    for measure in ("nll", "smece") if RIVAL in tasks[0] else ():
        wins = [task[rule].values[measure] < task[RIVAL].values[measure] for task in tasks]
        yield f"{100 * np.mean(wins):.0f}"


if __name__ == "__main__":
    main()
