"""Runs the jobs of an experiment that are not done yet, several at a time, and yields each finished row."""

import multiprocessing
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from calibrant._version import __version__
from calibrant.bench.experiment import Experiment, Job, Preset
from calibrant.bench.rows import Row, RowFile, identity_of, read_rows, save_experiment
from calibrant.bench.workers import WORKERS
from calibrant.errors import InputError
from calibrant.inputs import check_count

# Called with what was done last, how many jobs are done, and how many there are.
Told = Callable[[str, int, int], None]


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    preset: Preset = "quick",
    seeds: int | None = None,
    jobs: int = 1,
    data: Path | None = None,
    told: Told | None = None,
) -> Iterator[Row]:
    """Yield the rows that are still missing in a folder, as they are finished and written there.

    Every job runs in a process of its own kind with one thread, so that its numbers do not depend on how many
    run beside it.

    Args:
        experiment: What to run.
        folder: Where finished rows are; those are not run again.
        preset: ``"quick"`` for two cores, ``"full"`` for the papers' settings.
        seeds: How many seeds; the preset's own number if not given.
        jobs: How many run at once.
        data: Folder of the data sets that are not bundled.
        told: Called after each job.
    """
    if experiment.worker not in WORKERS:
        raise InputError(
            f"worker: expected one of {', '.join(WORKERS)}, got {experiment.worker!r} in {experiment.name}"
        )
    check_data(experiment, preset, data)
    done = {row.identity for row in read_rows(folder)}
    every = list(experiment.jobs(preset, seeds=None if seeds is None else check_count(seeds, "--seeds")))
    missing = [job for job in every if identity_of(job) not in done]
    file = RowFile(folder)
    save_experiment(experiment, folder)
    finished = len(every) - len(missing)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(check_count(jobs, "--jobs"), mp_context=context, initializer=_prepare) as pool:
        waiting = [pool.submit(run_job, job, data) for job in missing]
        try:
            for future in as_completed(waiting):
                row = future.result()
                file.add(row)
                finished += 1
                if told is not None:
                    told(_named(row.key, row.seed), finished, len(every))
                yield row
        finally:
            for future in waiting:
                future.cancel()


def check_data(experiment: Experiment, preset: Preset, data: Path | None) -> None:
    """Refuse to begin what would end for want of data."""
    for name in experiment.needs(preset):
        if data is None or not (data / name).exists():
            raise InputError(
                f"--data: expected a folder that holds {name}, which {experiment.name} needs, got "
                f"{'none' if data is None else data}"
            )


def run_job(job: Job, data: Path | None) -> Row:
    """Do one job, in the process that calls it."""
    start = time.perf_counter()
    records = WORKERS[job.worker](job.key, job.settings, job.seed, data)
    return Row(
        job.experiment,
        job.preset,
        job.key,
        job.seed,
        tuple(records),
        time.perf_counter() - start,
        versions(),
    )


def versions() -> dict[str, str]:
    """Return the versions that a number depends on."""
    found = {"calibrant": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scipy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _prepare() -> None:
    """Make ready a process for jobs: one thread, and an end when whoever started it has ended."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    # A killed parent cannot tell its workers, which would wait for jobs for ever.
    parent.join()
    os._exit(1)


def _named(key: Mapping[str, Any], seed: int) -> str:
    return ", ".join([*(str(value) for value in key.values()), f"seed {seed}"])
