"""Studies of losses by themselves, not of the networks that they train.

Figure 3 (a) of AdaFocal, and figure 1 and appendix figures 1 and 2 of the selective-risk (AU) paper, show
losses and their gradients along the probability of the true class. Appendix figure 5 of the latter shows the
smoothed distribution of confidence scores; its appendix figure 3 shows gradients as a network learns. SECA's
table 2 has the time that training takes with each loss.
"""

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss
from calibrant.losses.names import make_loss
from calibrant.papers.rows import Record


def shape_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, _data: Path | None
) -> Iterator[Record]:
    """Yield the value and the gradient of the key's ``loss`` at probabilities of the true class.

    The batch has one sample for each probability. The strongest other class has the share ``rival`` of the
    rest, and the remaining classes the same share each. ``weight`` is the value divided by that of
    cross-entropy, ``gradient`` the derivative by the probability when the others change in proportion.
    """
    p = torch.tensor(settings["probabilities"], dtype=torch.float64)
    probs = distribution(p.requires_grad_(), rival=float(key["rival"]), n_classes=settings["classes"])
    labels = torch.zeros(len(p), dtype=torch.long)
    loss = _sample_loss(key["loss"], settings["classes"])
    _settle(loss, settings, seed)
    values = loss(probs.log(), labels)
    [gradient] = torch.autograd.grad(values.sum(), p)
    for place, probability in enumerate(settings["probabilities"]):
        value = float(values[place].detach())
        entropy = -float(p[place].detach().log())
        yield Record(
            {"probability": probability},
            {"value": value, "weight": value / entropy, "gradient": float(gradient[place])},
        )


def distribution(p: Tensor, *, rival: float, n_classes: int) -> Tensor:
    """Return distributions with probability ``p`` of class 0; a rival has a share of the rest.

    Example:
        >>> distribution(torch.tensor([0.4]), rival=0.5, n_classes=4)
        tensor([[0.4000, 0.3000, 0.1500, 0.1500]])
    """
    rest = (1 - p)[:, None]
    shares = torch.full((n_classes - 1,), (1 - rival) / (n_classes - 2), dtype=p.dtype)
    shares[0] = rival
    return torch.cat([p[:, None], rest * shares], dim=1)


def _sample_loss(name: str, n_classes: int) -> SampleLoss:
    """Make a loss that returns its value for each sample."""
    loss = make_loss(name, n_classes=n_classes)
    if not isinstance(loss, SampleLoss):
        raise InputError(f"loss: expected one that has a value for each sample, got {name!r}")
    loss.reduction = "none"
    return loss


def _settle(loss: SampleLoss, settings: Mapping[str, Any], seed: int) -> None:
    """Update a loss that reads validation predictions with ones of a known accuracy in every bin."""
    accuracy = settings.get("accuracy")
    if accuracy is None:
        return
    generator = torch.Generator().manual_seed(seed)
    k, n = settings["classes"], 20_000
    p = 1 / k + (1 - 1 / k) * torch.rand(n, generator=generator, dtype=torch.float64)
    wrong = torch.rand(n, generator=generator, dtype=torch.float64) > accuracy
    loss.update(distribution(p, rival=1 / (k - 1), n_classes=k).log(), wrong.long())


def gradient_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, _data: Path | None
) -> Iterator[Record]:
    """Yield the median gradient of the key's ``loss`` in bins of the true class's probability, over epochs.

    A small network learns the bundled digits by cross-entropy. After each of the ``epochs`` that the settings
    name, the gradients of all training samples are taken by :func:`gradients_by_probability`. Bins without a
    sample have no record.
    """
    from calibrant.training.datasets.load import load_digits
    from calibrant.training.models.by_name import make_model

    data = load_digits(seed=seed).train
    images, labels = data.inputs.float() / 255, data.labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model("mlp", n_classes=10, shape=images.shape[1:], hidden=(128, 128))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in range(1, max(settings["epochs"]) + 1):
            for batch in torch.randperm(len(images)).split(32):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
            if epoch in settings["epochs"]:
                with torch.no_grad():
                    probs = model(images).double().softmax(dim=1)
                found, bins = gradients_by_probability(probs, labels, key["loss"], settings["bins"])
                for place in bins.unique().tolist():
                    yield Record(
                        {"epoch": epoch, "probability": (place + 0.5) / settings["bins"]},
                        {
                            "gradient": float(found[bins == place].median()),
                            "share": float((bins == place).double().mean()),
                        },
                    )


def gradients_by_probability(probs: Tensor, labels: Tensor, loss: str, n_bins: int) -> tuple[Tensor, Tensor]:
    """Return the gradient of a loss by each sample's true-class probability, and that probability's bin.

    All samples are one batch, and the other probabilities of a sample change in proportion.
    """
    true = torch.nn.functional.one_hot(labels, probs.shape[1]).bool()
    p = probs[true].clamp(1e-6, 1 - 1e-6).requires_grad_()
    others = probs.masked_fill(true, 0)
    others = (1 - p)[:, None] * others / others.sum(dim=1, keepdim=True)
    values = _sample_loss(loss, probs.shape[1])(torch.where(true, p[:, None], others).log(), labels)
    [gradient] = torch.autograd.grad(values.sum(), p)
    return gradient, (p.detach() * n_bins).long()


def cost_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, _data: Path | None
) -> Iterator[Record]:
    """Yield the CPU time of a training step with the key's ``loss`` over that with cross-entropy.

    Both train the same small network on random images, a step of one after a step of the other, so that other
    work on the machine slows both. ``log_cost`` is the logarithm of the ratio of the total times.
    """
    from calibrant.training.models.by_name import make_model

    k, n = key["classes"], settings["batch_size"]
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, 32, 32, generator=generator)
    labels = torch.randint(k, (n,), generator=generator)
    model = make_model("conv_mlp", n_classes=k, shape=(3, 32, 32))
    losses = [make_loss(name, n_classes=k, n_samples=n) for name in (key["loss"], "cross_entropy")]
    extra = [{"indices": torch.arange(n)} if "indices" in loss.needs else {} for loss in losses]
    seconds = [0.0, 0.0]
    for step in range(settings["steps"]):
        for place, loss in enumerate(losses):
            start = time.process_time()
            model.zero_grad()
            loss(model(images), labels, **extra[place]).backward()
            seconds[place] += time.process_time() - start if step else 0.0  # the first step warms up
    yield Record({}, {"log_cost": math.log(seconds[0] / seconds[1])})


def smoothed_distribution_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, _data: Path | None
) -> Iterator[Record]:
    r"""Yield how far the smoothed distribution of scores is from their empirical one, for the key's ``nu``.

    ``largest`` and ``mean`` are distances between :math:`\hat G_\nu` (Eq. 21) and the share of scores that
    are not larger, over all scores; ``steepest`` is the largest slope of :math:`\hat G_\nu`.
    """
    n, n_bins, nu = settings["samples"], settings["bins"], float(key["nu"])
    a, b = settings["beta"]
    generator = torch.distributions.Beta(a, b)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scores = generator.sample((n,)).double().sort().values
    empirical = torch.arange(1, n + 1, dtype=torch.float64) / n
    smoothed, slope = smoothed_distribution(scores, nu=nu, n_bins=n_bins)
    gap = (smoothed - empirical).abs()
    yield Record({}, {"largest": float(gap.max()), "mean": float(gap.mean()), "steepest": float(slope.max())})


def smoothed_distribution(scores: Tensor, *, nu: float, n_bins: int) -> tuple[Tensor, Tensor]:
    r"""Return the smoothed distribution function at each score (AU, Eq. 21) and its slope there.

    .. math:: \hat G_\nu(s) = \frac{1}{n} \sum_m h_m\, \sigma\!\left(\frac{s - c_m}{\nu}\right)

    Example:
        >>> smoothed_distribution(torch.tensor([0.25, 0.75]), nu=1e-6, n_bins=2)[0]
        tensor([0.2500, 0.7500])
    """
    held = torch.histc(scores, bins=n_bins, min=0.0, max=1.0) / len(scores)
    centers = (torch.arange(n_bins, dtype=scores.dtype) + 0.5) / n_bins
    steps = torch.sigmoid((scores[:, None] - centers) / nu)
    return (steps * held).sum(dim=1), (steps * (1 - steps) * held).sum(dim=1) / nu
