"""Processes that a launcher has started train together, whatever the configuration leaves open."""

import pytest
from lightning_fabric.utilities.rank_zero import rank_zero_only

from calibrant.errors import InputError
from calibrant.training.config.settings import HardwareSettings
from calibrant.training.processes import Launched, launched, make_fabric

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}
SRUN = {"SLURM_STEP_NUM_TASKS": "6", "SLURM_NTASKS": "6", "SLURM_NTASKS_PER_NODE": "3", "SLURM_NNODES": "2"}
RANKS = {
    "RANK": "4",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


@pytest.fixture(autouse=True)
def _first_process(monkeypatch):
    """Fabric notes for the whole program which process it is; that is forgotten after each test."""
    monkeypatch.setattr(rank_zero_only, "rank", 0)


@pytest.fixture(params=["torchrun", "srun"])
def launcher(request, monkeypatch):
    """What a launcher tells its processes, of which this is the second on the second machine."""
    for name, value in {**(TORCHRUN if request.param == "torchrun" else SRUN), **RANKS}.items():
        monkeypatch.setenv(name, value)
    return request.param


def test_devices_that_are_left_open_are_the_processes_of_the_launcher(launcher):
    assert launched() == Launched(launcher, per_machine=3, machines=2)
    fabric = make_fabric(HardwareSettings(accelerator="cpu"))
    assert (fabric.world_size, fabric.global_rank, fabric.local_rank) == (6, 4, 1)
    assert not fabric.is_global_zero


@pytest.mark.usefixtures("launcher")
def test_devices_as_they_were_launched_may_be_said():
    fabric = make_fabric(HardwareSettings(accelerator="cpu", devices=3, num_nodes=2, strategy="ddp"))
    assert (fabric.world_size, fabric.global_rank) == (6, 4)


@pytest.mark.parametrize("said", [{"devices": 1}, {"devices": 3}, {"devices": 2, "num_nodes": 3}])
def test_processes_that_would_train_alone_or_wait_for_others_are_refused(launcher, said):
    with pytest.raises(
        InputError, match=f"expected the 3 devices and 2 num_nodes that {launcher} has started"
    ):
        make_fabric(HardwareSettings(accelerator="cpu", **said))


def test_one_process_on_each_machine_is_not_alone(monkeypatch):
    for name, value in {**TORCHRUN, **RANKS, "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    fabric = make_fabric(HardwareSettings(accelerator="cpu"))
    assert (fabric.world_size, fabric.is_global_zero) == (6, False)


def test_a_script_of_sbatch_outside_srun_is_one_process(monkeypatch):
    for name, value in {"SLURM_NTASKS": "6", "SLURM_NTASKS_PER_NODE": "3", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert launched() is None
    assert make_fabric(HardwareSettings(accelerator="cpu", devices=1)).world_size == 1


@pytest.mark.parametrize("strategy", ["fsdp", "ddp_spawn", "ddp_fork", "dp"])
def test_a_strategy_that_cannot_run_the_command_again_or_divides_weights_is_refused(strategy):
    with pytest.raises(InputError, match=r"hardware\.strategy: expected auto or ddp"):
        make_fabric(HardwareSettings(accelerator="cpu", devices=2, strategy=strategy))
