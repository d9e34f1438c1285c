"""The processes that train together: started by torchrun, by srun or by Fabric."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.utilities.rank_zero import rank_zero_only
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.training.config.settings import HardwareSettings

_STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")


@dataclass(frozen=True)
class ProcessShare:
    """The rank of this process, from 0, and the number of processes, which divide rows among them."""

    rank: int = 0
    of: int = 1

    def rows(self, n: int) -> slice:
        """Return the part of ``n`` rows that belongs to this process; parts differ by at most one row.

        Example:
            >>> [ProcessShare(rank, 3).rows(8) for rank in range(3)]
            [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
        """
        return slice(n * self.rank // self.of, n * (self.rank + 1) // self.of)


@dataclass(frozen=True)
class Launched:
    """The processes that a launcher has started on each machine, and the number of machines."""

    by: str
    per_machine: int
    machines: int


def launched() -> Launched | None:
    """Return the processes that torchrun or srun has started; None if there is only this one."""
    if TorchElasticEnvironment.detect():
        by, processes, own = "torchrun", "WORLD_SIZE", "LOCAL_WORLD_SIZE"
    else:
        # A script of sbatch has the other variables of SLURM too, but outside of srun it is a single process.
        by, processes, own = "srun", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE"
    world, per_machine = (int(os.environ.get(name, 1)) for name in (processes, own))
    return None if world == 1 else Launched(by, per_machine, world // per_machine)


def make_fabric(hardware: HardwareSettings) -> Fabric:
    """Return Fabric for these settings; ``"auto"`` devices are the processes that a launcher has started."""
    if hardware.strategy not in _STRATEGIES:
        raise InputError(
            "hardware.strategy: expected auto or ddp, which start one process per device, each with all "
            f"weights, got {hardware.strategy!r}"
        )
    if hardware.threads is not None:
        torch.set_num_threads(hardware.threads)
    running = launched()
    if running is not None:
        hardware = _as_launched(hardware, running)
    try:
        return Fabric(
            accelerator=hardware.accelerator,
            devices=hardware.devices,
            num_nodes=hardware.num_nodes,
            strategy=hardware.strategy,
            precision=hardware.precision,  # type: ignore[arg-type]  # Fabric checks the value
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"hardware: expected what Lightning Fabric takes, got {hardware} ({error})"
        ) from error


def _as_launched(hardware: HardwareSettings, running: Launched) -> HardwareSettings:
    """Return hardware that uses every process of the launcher; otherwise each would train alone."""
    if hardware.devices == "auto":
        hardware = replace(hardware, devices=running.per_machine, num_nodes=running.machines)
    if (hardware.devices, hardware.num_nodes) != (running.per_machine, running.machines):
        raise InputError(
            f"hardware: expected the {running.per_machine} devices and {running.machines} num_nodes that "
            f"{running.by} has started, got {hardware.devices} and {hardware.num_nodes}; "
            "set hardware.devices=auto"
        )
    # With one device per machine, Fabric's "auto" would not join the processes.
    return replace(hardware, strategy="ddp") if hardware.strategy == "auto" else hardware


def is_first_process() -> bool:
    """Return whether this process writes and prints; known before the others have been started."""
    return bool(rank_zero_only.rank == 0)  # type: ignore[attr-defined]  # Fabric sets it when it is imported


def share_of(fabric: Fabric) -> ProcessShare:
    """Return the rank of this process and the number of processes."""
    return ProcessShare(fabric.global_rank, fabric.world_size)


def check_common_folder(fabric: Fabric, path: Path) -> None:
    """Refuse a folder that some processes do not see: one process writes to it, all resume from it."""
    seen = torch.tensor(float(path.exists()), device=fabric.device)
    share = float(cast("Tensor", fabric.all_reduce(seen, reduce_op="mean")))
    if share < 1:
        raise InputError(
            f"folder: expected a folder that all processes see, got {path.parent}, which "
            f"{round(share * fabric.world_size)} of {fabric.world_size} do; name one on a shared file system"
        )


@torch.no_grad()
def agree_on_buffers(module: nn.Module) -> None:
    """Give every process the running statistics of the first, which are those that are saved."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, src=0)
