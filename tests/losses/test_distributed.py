"""Two processes with a part of each batch train, and remember, as one process with whole batches does."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from calibrant.losses.adafocal import AdaFocalLoss, CalFocalLoss
from calibrant.losses.crl import CRLLoss
from calibrant.losses.dca import DCALoss, MDCALoss
from calibrant.losses.kde import KDELoss
from calibrant.losses.mmce import MMCELoss
from calibrant.losses.ols import OLSLoss
from calibrant.losses.refinement import RefinementLoss
from calibrant.losses.seca import SECALoss
from calibrant.losses.selective_risk import AURCLoss, SelectiveRiskLoss
from calibrant.losses.soft_ece import CharbonnierLoss, SoftECELoss
from calibrant.losses.supervised_contrastive import SupervisedContrastiveLoss
from tests.losses.two_processes import results_of_two, save_from_group

pytestmark = pytest.mark.slow

CLASS_WEIGHT = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
LOSSES = {
    "seca": SECALoss(),
    "seca weighted": SECALoss(weight=CLASS_WEIGHT),
    "selective risk, msp": SelectiveRiskLoss(score="msp", weight_gradient=1.0),
    "selective risk, margin": SelectiveRiskLoss(score="softmax_margin", weight_gradient=0.3, coverage=0.5),
    "selective risk, entropy": SelectiveRiskLoss(score="negative_entropy", weight_gradient=1.0),
    "selective risk, weighted": SelectiveRiskLoss(weight_gradient=1.0, weight=CLASS_WEIGHT),
    "aurc": AURCLoss(),
    "aurc, entropy": AURCLoss(score="negative_entropy"),
    "mmce": MMCELoss(),
    "mmce weighted": MMCELoss(weighted=True),
    "dca": DCALoss(),
    "mdca": MDCALoss(),
    "kde": KDELoss(),
    "kde canonical": KDELoss(mode="canonical", p=2.0, bandwidth=0.2),
    "soft ece": SoftECELoss(),
    "charbonnier": CharbonnierLoss(),
    "refinement": RefinementLoss(),
    "supervised contrastive": SupervisedContrastiveLoss(),
}
# How many samples the first process has of eight; the last case has an ignored label on either side.
SPLITS = {"equal": 4, "unequal": 5, "all but one": 7, "ignored": 5}

WITH_MEMORY = {
    "adafocal": lambda: AdaFocalLoss(n_bins=4),
    "calfocal": lambda: CalFocalLoss(n_bins=4),
    "ols": lambda: OLSLoss(4).double(),
    "crl": lambda: CRLLoss(30),
}
_BATCH = 10
_FIRST = 6  # samples of each batch on the first process; the second has four


def _batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(8, 4, dtype=torch.float64, generator=generator)
    labels = torch.tensor([0, 1, 0, 2, 1, 3, 0, 2])
    if split == "ignored":
        labels[torch.tensor([1, 6])] = -100
    return logits, labels


def _value_and_gradient(loss: torch.nn.Module, logits: torch.Tensor, labels: torch.Tensor):
    logits = logits.clone().requires_grad_()
    value = loss(logits, labels)
    value.backward()
    return value.detach(), logits.grad


def _epoch(epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(epoch)
    logits = 2 * torch.randn(30, 4, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, 4, (30,), generator=generator)


def _train(loss, own: slice) -> dict[str, torch.Tensor]:
    """Two epochs of three batches, of which this process has a part."""
    result = {}
    for epoch in range(2):
        logits, labels = _epoch(epoch)
        for step, part in enumerate(torch.arange(30).split(_BATCH)):
            rows = part[own]
            leaf = logits[rows].requires_grad_()
            extra = {"indices": rows} if loss.needs else {}
            value = loss(leaf, labels[rows], **extra)
            value.backward()
            result[f"value {epoch} {step}"] = value.detach()
            result[f"gradient {epoch} {step}"] = leaf.grad
        mine = torch.cat([part[own] for part in torch.arange(30).split(_BATCH)])
        loss.update(logits[mine], labels[mine])
    return result | loss.state_dict()


def _work(rank: int) -> dict[str, Any]:
    """Compute every loss on this process's part of the batches; runs in a process of its own."""
    part = slice(0, _FIRST) if rank == 0 else slice(_FIRST, _BATCH)
    found: dict[str, Any] = {name: _train(make(), part) for name, make in WITH_MEMORY.items()}
    for split, first in SPLITS.items():
        logits, labels = _batch(split)
        own = slice(0, first) if rank == 0 else slice(first, 8)
        for name, loss in LOSSES.items():
            found[f"{split} {name}"] = _value_and_gradient(loss, logits[own], labels[own])
    return found


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """What two real processes computed and remember, by rank."""
    return results_of_two("tests.losses.test_distributed", tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", LOSSES)
def test_the_mean_over_processes_is_the_loss_of_the_whole_batch(shards, name, split):
    expected, _ = _value_and_gradient(LOSSES[name], *_batch(split))
    values = [shard[f"{split} {name}"][0] for shard in shards]
    assert float(sum(values)) / 2 == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", LOSSES)
def test_averaged_gradients_are_those_of_the_whole_batch(shards, name, split):
    _, expected = _value_and_gradient(LOSSES[name], *_batch(split))
    # Averaging over two processes, as data-parallel training does, halves what each process found.
    found = torch.cat([shard[f"{split} {name}"][1] for shard in shards]) / 2
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)


def test_a_local_part_of_the_batch_alone_would_be_another_loss():
    logits, labels = _batch("equal")
    for name in ("seca", "mmce", "mdca", "supervised contrastive"):
        whole = LOSSES[name](logits, labels)
        parts = (LOSSES[name](logits[:4], labels[:4]) + LOSSES[name](logits[4:], labels[4:])) / 2
        assert abs(float(whole - parts)) > 1e-3


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_every_process_remembers_what_one_process_would(shards, name):
    loss = WITH_MEMORY[name]()
    alone = _train(loss, slice(None))
    for key in loss.state_dict():
        for shard in shards:
            torch.testing.assert_close(shard[name][key], alone[key], rtol=1e-5, atol=1e-9)


def test_correctness_ranking_pairs_the_samples_of_the_global_batch(shards):
    alone = _train(WITH_MEMORY["crl"](), slice(None))
    assert alone["value 1 0"] > 0
    for key in (key for key in alone if key.startswith("value")):
        for shard in shards:
            torch.testing.assert_close(shard["crl"][key], alone[key])
    for key in (key for key in alone if key.startswith("gradient")):
        found = torch.cat([shard["crl"][key] for shard in shards]) / 2
        torch.testing.assert_close(found, alone[key])


if __name__ == "__main__":
    save_from_group(int(sys.argv[1]), Path(sys.argv[2]), lambda: _work(int(sys.argv[1])))
