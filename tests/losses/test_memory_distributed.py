"""Losses with memory remember the same on every process as one process with all the data would."""

import sys
from pathlib import Path

import pytest
import torch

from calibrant.losses.adafocal import AdaFocalLoss
from calibrant.losses.calfocal import CalFocalLoss
from calibrant.losses.crl import CRLLoss
from calibrant.losses.ols import OLSLoss
from tests.losses.two_processes import results_of_two, save_from_group

LOSSES = {
    "adafocal": lambda: AdaFocalLoss(n_bins=4),
    "calfocal": lambda: CalFocalLoss(n_bins=4),
    "ols": lambda: OLSLoss(4).double(),
    "crl": lambda: CRLLoss(30),
}
_BATCH = 10
_FIRST = 6  # samples of each batch on the first process; the second has four


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


def _work(rank: int) -> dict[str, dict[str, torch.Tensor]]:
    """Train on this process's part; runs in a process of its own."""
    own = slice(0, _FIRST) if rank == 0 else slice(_FIRST, _BATCH)
    return {name: _train(make(), own) for name, make in LOSSES.items()}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """What two real processes remember and computed."""
    return results_of_two("tests.losses.test_memory_distributed", tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("name", LOSSES)
def test_every_process_remembers_what_one_process_would(shards, name):
    loss = LOSSES[name]()
    alone = _train(loss, slice(None))
    for key in loss.state_dict():
        for shard in shards:
            torch.testing.assert_close(shard[name][key], alone[key], rtol=1e-6, atol=1e-9)


def test_correctness_ranking_pairs_the_samples_of_the_global_batch(shards):
    alone = _train(LOSSES["crl"](), slice(None))
    assert alone["value 1 0"] > 0
    for key in (key for key in alone if key.startswith("value")):
        for shard in shards:
            torch.testing.assert_close(shard["crl"][key], alone[key])
    for key in (key for key in alone if key.startswith("gradient")):
        found = torch.cat([shard["crl"][key] for shard in shards]) / 2
        torch.testing.assert_close(found, alone[key])


if __name__ == "__main__":
    save_from_group(int(sys.argv[1]), Path(sys.argv[2]), lambda: _work(int(sys.argv[1])))
