"""Time and memory of the losses, forward and backward, as ratios to ``F.cross_entropy`` in the same run.

    python benchmarks/losses.py [--quick] [--only focal,seca] [--compile]

One thread; the losses take turns, so that all see the same machine, and the best of many turns counts. Times
are CPU time of the thread, which other programs disturb less. Each loss is measured alone, a term without
the loss it is added to, and with its memory filled by one update. Labels are right for most samples, as late
in training. Losses of embeddings are measured at (1024, 128). Memory is the growth of the peak resident set
of a process of its own. Peers are other libraries' losses, where they are installed. With ``--compile``, each
loss is compiled by ``torch.compile``, which needs a C++ compiler, and compared with compiled cross-entropy.
"""

import ctypes.util
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.names import LOSSES
from timing import benchmark_parser, extra_memory, print_head, print_row

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
# A forward and backward pass.
Pass: TypeAlias = Callable[[], float]
Sizes: TypeAlias = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Plan:
    """What is measured: shapes of logits and of embeddings, and how many turns each loss takes."""

    sizes: Sizes
    embedded: tuple[int, int]
    turns: int


FULL = Plan(((128, 10), (128, 100), (1024, 1000)), (1024, 128), 60)
QUICK = Plan(((32, 10), (32, 20), (64, 50)), (64, 16), 1)
FLOOR = "torch | F.cross_entropy"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every loss at every size and print Markdown tables."""
    parser = benchmark_parser(__doc__, "small batches, one turn")
    parser.add_argument("--only", default="", help="names separated by commas; all by default")
    parser.add_argument("--compile", action="store_true", help="compile each loss with torch.compile")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",") if options.only else list(LOSSES)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the peers' own
    plan = QUICK if options.quick else FULL
    if options.compile:
        print_compiled_table([name for name in wanted if LOSSES[name].reads == "logits"], plan)
        return
    print_logits_table([name for name in wanted if LOSSES[name].reads == "logits"], plan)
    embedded = [name for name in wanted if LOSSES[name].reads == "embeddings"]
    if embedded:
        print_embeddings_table(embedded, plan)


def print_logits_table(names: list[str], plan: Plan) -> None:
    """Print times at three sizes and the memory at the largest."""
    tables, floors = [], []
    runs: dict[str, Pass] = {}
    for n, k in plan.sizes:
        runs = cases(names, n, k)
        repeat = 2 if n * k >= 100_000 else min(20, plan.turns)
        times = best_times(runs, turns=plan.turns, repeat=repeat)
        floors.append(times[FLOOR])
        tables.append({name: seconds / floors[-1] for name, seconds in times.items()})
    memory = {name: fresh_memory(run) for name, run in runs.items()}
    print_head("library", "loss", *map(str, plan.sizes), f"extra MB at {plan.sizes[-1]}")
    print_row(FLOOR, *(f"{1e6 * floor:.0f} µs" for floor in floors), f"{memory[FLOOR]:.0f}")
    for name in list(tables[0])[1:]:
        print_row(name, *(f"{table[name]:.2f}x" for table in tables), f"{memory[name]:.0f}")


def print_compiled_table(names: list[str], plan: Plan) -> None:
    """Print times of compiled losses as multiples of compiled cross-entropy, and their numbers of graphs."""
    print_head("library", "loss, compiled", "graphs", *map(str, plan.sizes[1:]))
    for name in names:
        ratios = []
        for n, k in plan.sizes[1:]:
            torch._dynamo.reset()
            logits, labels = late_batch(n, k)
            floor = pass_of(torch.compile(F.cross_entropy), logits, labels)
            floor()
            torch._dynamo.utils.counters.clear()
            run = pass_of(torch.compile(ours(name, logits, labels)), logits, labels)
            run()
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            times = best_times({FLOOR: floor, name: run}, turns=plan.turns, repeat=5)
            ratios.append(f"{times[name] / times[FLOOR]:.2f}x")
        print_row(f"calibrant | {name}", str(graphs), *ratios)


def print_embeddings_table(names: list[str], plan: Plan) -> None:
    """Print times and memory of the losses of an encoder."""
    runs = embedding_cases(names, *plan.embedded)
    times = best_times(runs, turns=max(plan.turns // 4, 2), repeat=1)
    print()
    print_head("library", f"loss of embeddings {plan.embedded}", "milliseconds", "extra MB")
    for name, seconds in times.items():
        print_row(name, f"{1e3 * seconds:.1f}", f"{fresh_memory(runs[name]):.0f}")


def best_times(runs: Mapping[str, Pass], *, turns: int, repeat: int) -> dict[str, float]:
    """Return the best CPU time of a run of each, in seconds; they take turns."""
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(turns):
        for name, run in runs.items():
            start = time.thread_time()
            for _ in range(repeat):
                run()
            best[name] = min(best[name], (time.thread_time() - start) / repeat)
    return best


def fresh_memory(run: Pass) -> float:
    """Return the extra memory of a run in MB, without free memory left over from the runs before."""
    library = ctypes.util.find_library("c")
    if library is not None and sys.platform == "linux":
        ctypes.CDLL(library).malloc_trim(0)
    return extra_memory(run)


def cases(names: list[str], n: int, k: int) -> dict[str, Pass]:
    """Return a forward and backward pass of each loss on the same batch, cross-entropy's first."""
    logits, labels = late_batch(n, k)
    losses: dict[str, LossFunction] = {FLOOR: F.cross_entropy}
    for name in names:
        losses[f"calibrant | {name}"] = ours(name, logits, labels)
        if name in PEERS:
            losses |= peer(name)
    return {name: pass_of(loss, logits, labels) for name, loss in losses.items()}


def late_batch(n: int, k: int) -> tuple[Tensor, Tensor]:
    """Return a batch in which most samples are right, as late in training."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, k, (n,), generator=generator)
    logits = torch.randn(n, k, generator=generator)
    logits[torch.arange(n), labels] += 4
    return logits, labels


def ours(name: str, logits: Tensor, labels: Tensor) -> LossFunction:
    """Return a loss of ours that has lived through one epoch."""
    n, k = logits.shape
    sizes = {"n_classes": k, "n_samples": n}
    loss = LOSSES[name].make(**{size: sizes[size] for size in LOSSES[name].sizes})
    extra = {"indices": torch.arange(n)} if "indices" in loss.needs else {}
    loss(logits.clone().requires_grad_(), labels, **extra)
    loss.update(logits, labels)
    return lambda z, y: loss(z, y, **extra)


def embedding_cases(names: list[str], n: int, d: int) -> dict[str, Pass]:
    """Return a forward and backward pass of the losses of embeddings."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(n, d, generator=generator)
    labels = torch.randint(0, 10, (n,), generator=generator)
    losses: dict[str, LossFunction] = {}
    for name in names:
        losses[f"calibrant | {name}"] = LOSSES[name].make()
        if name in PEERS:
            losses |= peer(name)
    return {name: pass_of(loss, embeddings, labels) for name, loss in losses.items()}


def pass_of(loss: LossFunction, inputs: Tensor, labels: Tensor) -> Pass:
    """Return a function that computes the loss and its gradient."""
    leaf = inputs.clone().requires_grad_()

    def run() -> float:
        leaf.grad = None
        value = loss(leaf, labels)
        value.backward()
        return float(value.detach())

    return run


def peer(name: str) -> dict[str, LossFunction]:
    """Return another library's version by its title; nothing where it is not installed."""
    title, make = PEERS[name]
    try:
        return {title: make()}
    except ImportError:
        return {}


def torch_label_smoothing() -> LossFunction:
    """Return torch's own."""
    return torch.nn.CrossEntropyLoss(label_smoothing=0.05)


def netcal(name: str) -> Callable[[], LossFunction]:
    """Return a maker of a penalty that netcal adds to a loss; it reads logits."""

    def make() -> LossFunction:
        from netcal import regularization

        penalty: LossFunction = getattr(regularization, name)(weight=1.0)
        return penalty

    return make


def metric_learning_contrastive() -> LossFunction:
    """Return the same loss, without its options."""
    from pytorch_metric_learning.losses import SupConLoss

    loss: LossFunction = SupConLoss(temperature=0.1)
    return loss


PEERS = {
    "label_smoothing": ("torch | nn.CrossEntropyLoss(label_smoothing)", torch_label_smoothing),
    "confidence_penalty": ("netcal | ConfidencePenalty", netcal("ConfidencePenalty")),
    "mmce": ("netcal | MMCEPenalty, weighted form", netcal("MMCEPenalty")),
    "dca": ("netcal | DCAPenalty", netcal("DCAPenalty")),
    "supervised_contrastive": ("pytorch-metric-learning | SupConLoss", metric_learning_contrastive),
}


if __name__ == "__main__":
    main()
