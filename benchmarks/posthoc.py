"""Time and memory of post-hoc fits beside other libraries, as ratios to one ``log_softmax`` pass.

    python benchmarks/posthoc.py [--quick]

Logits are drawn from a model that is overconfident by a factor that grows with the margin; half of them are
fitted on. Times are the best of several runs on one core, memory is the growth of the peak resident set of
a process of its own, and quality is measured on the other half. Peers that are not installed are left out.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant import Predictions, evaluate
from calibrant.posthoc.names import METHODS
from calibrant.surrogates import charbonnier_soft_ece
from timing import benchmark_parser, best_time, extra_memory, print_head, print_row

Fit: TypeAlias = Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Case:
    """A fit by one library; the fit returns a function from logits to log-probabilities."""

    work: str
    library: str
    fit: Fit


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every fit and print a Markdown table."""
    parser = benchmark_parser(__doc__, "few samples, each fit once")
    quick = parser.parse_args(arguments).quick
    warnings.simplefilter("ignore")  # the peers' own
    torch.set_num_threads(1)
    shrink, most = (100, 1) if quick else (1, 7)
    print_head("fit", "library", "seconds", "times log_softmax", "extra MB", "test NLL", "test ECE %")
    for n, k in ((10_000, 100), (50_000, 1000), (10_000, 1000)):
        fitting, test = draw(n // shrink, k, seed=0), draw(10_000 // shrink, k, seed=1)
        z, y = fitting.to_logits(), fitting.labels
        assert y is not None
        floor = best_time(partial(torch.log_softmax, z, dim=1), most=most)
        for case in cases(n, k):
            label = f"{case.work}, {n // shrink:,} x {k}"
            try:
                seconds, memory, probs = measure(case, z, y, test.to_logits(), most=most)
                predictions = Predictions(probs=probs, labels=test.labels)
                found = evaluate(predictions, measures=["nll", "ece"]).metrics
            except Exception as error:  # a peer that fails is a result, too
                print_row(label, case.library, f"fails: {type(error).__name__}", "", "", "", "")
                continue
            cells = (f"{seconds:.4f}", f"{seconds / floor:.1f}", f"{memory:.0f}")
            print_row(label, case.library, *cells, f"{found['nll']:.4f}", f"{100 * found['ece']:.2f}")


def measure(case: Case, z: Tensor, y: Tensor, test: Tensor, *, most: int) -> tuple[float, float, Tensor]:
    """Return the seconds and the extra MB of a fit, and the calibrated probabilities of the test logits."""

    def run() -> Tensor:
        return case.fit(z, y)(z[:1])

    seconds, memory = best_time(run, most=most), extra_memory(run)
    return seconds, memory, case.fit(z, y)(test).exp()


def draw(n: int, k: int, *, seed: int) -> Predictions:
    """Draw predictions of a model whose overconfidence grows with the margin."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)).astype(np.float32) * 2
    labels = (logits + rng.gumbel(size=(n, k))).argmax(axis=1)
    top = np.sort(logits, axis=1)[:, -2:]
    factor = 1.5 + 0.3 * (top[:, 1] - top[:, 0])
    return Predictions(logits=(logits * factor[:, None]).astype(np.float32), labels=labels)


def cases(n: int, k: int) -> Iterator[Case]:
    """Yield what is fitted to logits of one shape."""
    if (n, k) == (10_000, 1000):
        yield Case("smart, 80 epochs", "calibrant", ours("smart", epochs=80, settled=0))
        yield Case("smart, 80 epochs", "written plainly", smart_written_plainly)
        yield Case("class_temperature", "calibrant", ours("class_temperature"))
        return
    yield Case("temperature", "calibrant", ours("temperature"))
    yield Case("temperature", "scikit-learn", scikit_learn_temperature)
    yield from peers(small=k <= 100)
    if k <= 100:
        for name in ("ensemble", "spline", "smart", "parameterized", "vector", "structured_vector"):
            yield Case(name, "calibrant", ours(name))


def ours(name: str, **options: Any) -> Fit:
    """Return the fit of a registered method."""

    def fit(z: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        return METHODS[name].calibrator.fit(z, y, **METHODS[name].options, **options)

    return fit


def smart_written_plainly(z: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """Train SMART as the paper writes it: a softmax over all classes in every epoch."""
    torch.manual_seed(0)

    def margins(z: Tensor) -> Tensor:
        top = z.topk(2, dim=1).values
        return top[:, :1] - top[:, 1:]

    m = margins(z)
    mean, deviation = m.mean(), m.std(correction=0)
    network = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    adam = torch.optim.Adam(network.parameters(), lr=5e-3)

    def calibrated(z: Tensor) -> Tensor:
        temperature = F.softplus(network((margins(z) - mean) / deviation)) + 0.1
        return torch.log_softmax(z / temperature, dim=1)

    for _ in range(80):
        top = calibrated(z).max(dim=1)
        loss = charbonnier_soft_ece(top.values.exp(), top.indices == y)
        adam.zero_grad()
        loss.backward()
        adam.step()
    return torch.no_grad()(calibrated)


def scikit_learn_temperature(z: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """Fit temperature scaling by scikit-learn, on the logits as decisions."""
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Logits(ClassifierMixin, BaseEstimator):
        def __init__(self) -> None:
            self.classes_ = np.arange(z.shape[1])

        def fit(self, x: np.ndarray, y: np.ndarray) -> "Logits":  # noqa: ARG002  # there is nothing to fit
            return self

        def decision_function(self, x: np.ndarray) -> np.ndarray:
            return x

        def predict(self, x: np.ndarray) -> np.ndarray:
            return np.asarray(x.argmax(axis=1))

    found = CalibratedClassifierCV(FrozenEstimator(Logits()), method="temperature", ensemble=False)
    # A class that no sample has is unknown to scikit-learn, so one row of each is added.
    k = z.shape[1]
    rows = np.concatenate([z.numpy(), 50 * np.eye(k, dtype=np.float32)]), np.concatenate([y, np.arange(k)])
    found.fit(*rows)
    return lambda z: torch.from_numpy(found.predict_proba(z.numpy())).clamp_min(1e-38).log()


def peers(*, small: bool) -> Iterator[Case]:
    """Yield temperature scaling by the libraries that are installed."""
    try:
        from probmetrics.calibrators import get_calibrator

        def by_probmetrics(z: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
            found = get_calibrator("temp-scaling")
            found.fit(torch.softmax(z, dim=1).numpy(), y.numpy())
            return lambda z: torch.from_numpy(found.predict_proba(torch.softmax(z, dim=1).numpy())).log()

        yield Case("temperature", "probmetrics", by_probmetrics)
    except ImportError:
        pass
    try:
        from netcal.scaling import TemperatureScaling

        def by_netcal(z: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
            found = TemperatureScaling()
            found.fit(torch.softmax(z.double(), dim=1).numpy(), y.numpy())
            return lambda z: torch.from_numpy(found.transform(torch.softmax(z.double(), dim=1).numpy())).log()

        if small:  # it takes minutes otherwise
            yield Case("temperature", "netcal", by_netcal)
    except ImportError:
        pass
    try:
        from torch.utils.data import DataLoader, TensorDataset
        from torch_uncertainty.post_processing import TemperatureScaler

        def by_torch_uncertainty(z: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
            found = TemperatureScaler(model=nn.Identity())
            found.fit(DataLoader(TensorDataset(z, y), batch_size=len(z)), progress=False)
            return lambda z: torch.log_softmax(found(z).detach(), dim=1)

        yield Case("temperature", "torch-uncertainty", by_torch_uncertainty)
    except ImportError:
        pass


if __name__ == "__main__":
    main()
