"""Two real processes that meet over loopback, for tests of what is global to a batch."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]


def results_of_two(module: str, folder: Path) -> list[Any]:
    """Run a module twice, with its rank and the folder as arguments, and return what each saved."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    workers = [
        subprocess.Popen([sys.executable, "-m", module, str(rank), str(folder)], env=environment, cwd=ROOT)
        for rank in (0, 1)
    ]
    try:
        assert [worker.wait(timeout=600) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def save_from_group(rank: int, folder: Path, work: Callable[[], Any]) -> None:
    """Join the group, do the work, and save its result under this process's rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(seconds=300)
    )
    torch.save(work(), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
