"""Which epoch to keep: by the accuracy, the NLL, or the NLL after a fitted temperature of the validation set.

    python benchmarks/early_stopping.py [--clinc FOLDER] [--seeds 5] [--quick]

A network is trained once per task and seed; after each epoch the validation and the test set are predicted,
so that all rules choose among the same epochs. Then a temperature is fitted on the validation set. Of
equally good epochs the first is kept, as ``calibrant train`` does. Tasks: 3,000 sentence embeddings of
CLINC150 with the network of ``loss_training.py``, which memorises them; and the digits, 600 to train on, with
their labels and with a fifth of the training labels drawn at random.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.evaluation import nll_after_temperature
from calibrant.metrics import expected_calibration_error, negative_log_likelihood
from calibrant.posthoc import TemperatureScaling
from loss_training import Network, Task, load
from timing import benchmark_parser, table_head, table_row

EPOCHS = 60

# The score of an epoch from validation logits and labels; the highest is best.
RULES: Mapping[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": lambda z, y: float((z.argmax(dim=1) == y).double().mean()),
    "nll": lambda z, y: -negative_log_likelihood(logits=z, labels=y),
    "nll_after_temperature": lambda z, y: -nll_after_temperature(z, y),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, choose epochs by each rule, and print one Markdown table per task."""
    parser = benchmark_parser(__doc__, "three epochs of one seed of the digits")
    parser.add_argument("--clinc", type=Path, help="folder with minilm_embeddings.npz")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    seeds, epochs = (1, 3) if args.quick else (args.seeds, EPOCHS)
    for title, task in tasks(None if args.quick else args.clinc):
        runs = [chosen(task, epochs, seed) for seed in range(seeds)]
        print(f"\n### {title}\n")
        print(table_head("epoch kept by", "epoch", "accuracy %", "NLL", "NLL after T", "ECE % after T"))
        for rule in ("last", *RULES):
            print(table_row(rule, *_cells([run[rule] for run in runs])), flush=True)
        if seeds > 1:
            print(f"\n{_differences(runs)}", flush=True)


def tasks(clinc: Path | None) -> Iterator[tuple[str, Task]]:
    """Yield a title and the samples of each task."""
    digits = load(None, "quick")
    yield "digits, 600 to train on", digits
    rng = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(digits.y), generator=rng) < 0.2
    other = torch.randint(10, (len(digits.y),), generator=rng)
    yield (
        "digits, a fifth of the training labels random",
        replace(digits, y=torch.where(wrong, other, digits.y)),
    )
    if clinc is not None:
        yield "CLINC150, 3,000 to train on", load(clinc, "overconfident")


def chosen(task: Task, epochs: int, seed: int) -> dict[str, tuple[float, ...]]:
    """Return for each rule the epoch and what the network of that epoch does on the test set."""
    predicted = list(_epochs(task, epochs, seed))
    kept = {"last": epochs - 1}
    for rule, score in RULES.items():
        kept[rule] = int(np.argmax([score(val, task.y_val) for val, _ in predicted]))
    return {rule: (epoch + 1.0, *measured(*predicted[epoch], task)) for rule, epoch in kept.items()}


def _epochs(task: Task, epochs: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Train with cross-entropy and yield the logits of the validation and the test set after each epoch."""
    torch.manual_seed(seed)
    n_classes = int(task.y.max()) + 1
    network = Network(task.x.shape[1], 512 if n_classes > 10 else 64, n_classes)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(task.y), generator=generator).split(task.batch_size):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(task.x[rows]), task.y[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            yield network(task.x_val), network(task.x_test)


def measured(val: Tensor, test: Tensor, task: Task) -> tuple[float, ...]:
    """Return accuracy and NLL on the test set, and its NLL and ECE after a temperature from validation."""
    after = TemperatureScaling.fit(val, task.y_val).predict_log_proba(test)
    return (
        RULES["accuracy"](test, task.y_test),
        negative_log_likelihood(logits=test, labels=task.y_test),
        negative_log_likelihood(logits=after, labels=task.y_test),
        expected_calibration_error(after.exp(), task.y_test),
    )


def _cells(rows: Sequence[tuple[float, ...]]) -> Iterator[str]:
    for place, (scale, digits) in enumerate(((1, 0), (100, 2), (1, 3), (1, 4), (100, 2))):
        values = np.array([row[place] for row in rows]) * scale
        spread = f" ± {values.std(ddof=1):.{digits}f}" if len(rows) > 1 and place in (1, 3) else ""
        yield f"{values.mean():.{digits}f}{spread}"


def _differences(runs: Sequence[Mapping[str, tuple[float, ...]]]) -> str:
    """Return the mean paired differences of the new rule to the others, with their standard errors."""
    parts = []
    for rule in ("nll", "accuracy"):
        away = np.array([run["nll_after_temperature"] for run in runs]) - [run[rule] for run in runs]
        mean, error = away.mean(axis=0), away.std(axis=0, ddof=1) / np.sqrt(len(runs))
        parts.append(
            f"against {rule}: accuracy {100 * mean[1]:+.2f} ± {100 * error[1]:.2f} points, "
            f"NLL after T {mean[3]:+.4f} ± {error[3]:.4f}"
        )
    return f"Paired by seed, {'; '.join(parts)}."


if __name__ == "__main__":
    main()
