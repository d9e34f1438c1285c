"""What a network says about data: batch by batch, in evaluation mode, divided over processes."""

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from calibrant.losses.parts.global_batch import global_rows
from calibrant.training.batches import Share
from calibrant.training.datasets.dataset import LabelledData
from calibrant.training.network import Network

# The activations of larger ones would be fetched from the system anew each time, which takes longer.
_BATCH = 128


def own_logits(fabric: Fabric, network: Network, data: LabelledData) -> Tensor:
    """Return the logits of this process's share of the data, on its device."""
    return _collect(fabric, network, data)[0]


def all_logits(fabric: Fabric, network: Network, data: LabelledData) -> Tensor:
    """Return the logits of all the data, on every process, in main memory."""
    return global_rows(own_logits(fabric, network, data)).cpu()


def all_logits_and_features(
    fabric: Fabric, network: Network, data: LabelledData
) -> tuple[Tensor, Tensor | None]:
    """Return logits and features of all the data, on every process, in main memory."""
    logits, features = _collect(fabric, network, data, features=True)
    return global_rows(logits).cpu(), None if features is None else global_rows(features).cpu()


def share_of(fabric: Fabric) -> Share:
    """Return which of the processes this is."""
    return Share(fabric.global_rank, fabric.world_size)


@torch.no_grad()
def agree_on_buffers(module: nn.Module) -> None:
    """Give every process the running statistics of the first, which are those that are saved."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, src=0)


@torch.no_grad()
def _collect(
    fabric: Fabric, network: Network, data: LabelledData, *, features: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Run the network over this process's rows; its mode is restored afterwards."""
    was_training = network.training
    network.eval()
    inputs = data.inputs[share_of(fabric).rows(len(data))]
    logits: list[Tensor] = []
    seen: list[Tensor] = []
    try:
        for batch in inputs.split(_BATCH):
            with fabric.autocast():
                said, h = network.logits_and_features(batch.to(fabric.device))
            logits.append(said.float())
            if features and h is not None:
                seen.append(h.float())
    finally:
        network.train(was_training)
    return torch.cat(logits), torch.cat(seen) if seen else None
