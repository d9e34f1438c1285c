"""The processes that train together: those that torchrun or srun started, or as many as are asked for."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch import Tensor

from calibrant.errors import InputError
from calibrant.training.config.settings import HardwareSettings

_STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true")


@dataclass(frozen=True)
class Launched:
    """How many processes a launcher has started.

    Attributes:
        by: Its name.
        per_machine: Processes on each machine.
        machines: Number of machines.
    """

    by: str
    per_machine: int
    machines: int


def launched() -> Launched | None:
    """Return what started several processes of this command, if anything did."""
    if TorchElasticEnvironment.detect():
        by, processes, own = "torchrun", "WORLD_SIZE", "LOCAL_WORLD_SIZE"
    else:
        # A script of sbatch has the other variables of SLURM, too, but is a single process outside srun.
        by, processes, own = "srun", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE"
    world, per_machine = (int(os.environ.get(name, 1)) for name in (processes, own))
    return None if world == 1 else Launched(by, per_machine, world // per_machine)


def make_fabric(hardware: HardwareSettings) -> Fabric:
    """Return Fabric for the hardware of a configuration; ``"auto"`` devices are the processes there are."""
    if hardware.strategy not in _STRATEGIES:
        raise InputError(
            "hardware.strategy: expected auto or ddp, which give every process a command of its own and all "
            f"weights, got {hardware.strategy!r}"
        )
    if hardware.threads is not None:
        torch.set_num_threads(hardware.threads)
    found = launched()
    if found is not None:
        hardware = _as_launched(hardware, found)
    try:
        return Fabric(
            accelerator=hardware.accelerator,
            devices=hardware.devices,
            num_nodes=hardware.num_nodes,
            strategy=hardware.strategy,
            precision=hardware.precision,  # type: ignore[arg-type]  # Fabric itself says what it takes
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"hardware: expected what Lightning Fabric takes, got {hardware} ({error})"
        ) from error


def check_common_folder(fabric: Fabric, path: Path) -> None:
    """Refuse a folder that not every process sees: one writes there, all go on from it."""
    seen = torch.tensor(float(path.exists()), device=fabric.device)
    share = float(cast("Tensor", fabric.all_reduce(seen, reduce_op="mean")))
    if share < 1:
        raise InputError(
            f"--out: expected a folder that all processes see, got {path.parent}, which "
            f"{round(share * fabric.world_size)} of {fabric.world_size} do; name one on a shared file system"
        )


def _as_launched(hardware: HardwareSettings, found: Launched) -> HardwareSettings:
    """Return hardware that takes every process of the launcher; each would train alone otherwise."""
    if hardware.devices == "auto":
        hardware = replace(hardware, devices=found.per_machine, num_nodes=found.machines)
    if (hardware.devices, hardware.num_nodes) != (found.per_machine, found.machines):
        raise InputError(
            f"hardware: expected the {found.per_machine} devices and {found.machines} num_nodes that "
            f"{found.by} has started, got {hardware.devices} and {hardware.num_nodes}; "
            "set hardware.devices=auto"
        )
    # A process of one device would otherwise be on its own, also where every machine has one.
    return replace(hardware, strategy="ddp") if hardware.strategy == "auto" else hardware
