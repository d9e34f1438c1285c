"""Run the jobs of an experiment that are not finished yet, several at a time, and yield each finished row."""

import json
import multiprocessing
import os
import pickle
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

import torch

from calibrant._version import __version__
from calibrant.errors import CalibrantError, InputError
from calibrant.extras import optional
from calibrant.inputs import Progress, check_choice, check_count
from calibrant.papers.arena_real import expand_files, run_arena_real
from calibrant.papers.attacks import attack_study
from calibrant.papers.calarena import run_arena, run_calarena
from calibrant.papers.experiment import Experiment, Job, Preset, is_wanted
from calibrant.papers.inputs import inputs_digest
from calibrant.papers.llm import expand_models, run_llm
from calibrant.papers.loss_studies import (
    cost_study,
    gradient_study,
    shape_study,
    smoothed_distribution_study,
)
from calibrant.papers.posthoc import run_posthoc
from calibrant.papers.rows import (
    Record,
    Row,
    RowFile,
    finished_rows,
    identity,
    save_experiment,
    save_left_out,
)
from calibrant.papers.smart_ablations import indicator_study, sensitivity_study
from calibrant.papers.smart_convergence import convergence_study
from calibrant.papers.smart_margins import interval_study, margin_study
from calibrant.papers.smart_theory import bound_study, mismatch_study
from calibrant.papers.training import run_training

with optional("bench"):
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

# More processes than these no machine has cores for, and more seeds nobody waits for.
_MOST_JOBS, _MOST_SEEDS = 1000, 10_000

# Takes the point of the grid, the settings of the preset, the seed, and the folder of data sets.
Worker: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any], int, Path | None], Iterable[Record]]

# Takes the jobs of the grid and the folder of data sets; returns the jobs for the files in it, and why other
# files are left out.
Expand: TypeAlias = Callable[[Sequence[Job], Path | None], tuple[list[Job], dict[str, str]]]

STUDIES: Mapping[str, Worker] = {
    "indicators": indicator_study,
    "bound": bound_study,
    "mismatch": mismatch_study,
    "sensitivity": sensitivity_study,
    "attacks": attack_study,
    "convergence": convergence_study,
    "shapes": shape_study,
    "gradients": gradient_study,
    "smoothed_distribution": smoothed_distribution_study,
    "margins": margin_study,
    "intervals": interval_study,
    "loss_cost": cost_study,
}


def run_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield the records of the study that ``study`` names, in the key or in the settings."""
    name = check_choice(key.get("study", settings.get("study")), "study", STUDIES)
    yield from STUDIES[name](key, settings, seed, data)


#: Workers by the name that experiment files use.
WORKERS: Mapping[str, Worker] = {
    "posthoc": run_posthoc,
    "training": run_training,
    "studies": run_study,
    "arena": run_arena,
    "calarena": run_calarena,
    "arena_real": run_arena_real,
    "llm": run_llm,
}

#: Workers whose jobs depend on the files in the folder of data sets.
EXPANSIONS: Mapping[str, Expand] = {"arena_real": expand_files, "llm": expand_models}


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    preset: Preset = "quick",
    seeds: int | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
    jobs: int = 1,
    data: Path | None = None,
    runs: Path | None = None,
    progress: Progress | None = None,
) -> Iterator[Row]:
    """Run the jobs whose rows are missing in a folder; yield each row after it is written there.

    Every job runs with one thread in a worker process, so that its numbers do not depend on the number of
    jobs that run at the same time.

    Args:
        experiment: The experiment to run.
        folder: Folder of the finished rows; finished jobs are not run again.
        preset: ``"quick"`` for two cores, ``"full"`` for the papers' settings.
        seeds: Number of seeds; by default that of the preset.
        only: For each name of the grid, and for ``seed``, the values to run; ``*`` stands for any text. All
            by default.
        jobs: Number of jobs that run at the same time.
        data: Folder of the data sets that are not bundled.
        runs: Folder that keeps trained networks, so that a job that runs again does not train again.
        progress: Called after each job with its name, the number of finished jobs and their total.
    """
    if experiment.worker not in WORKERS:
        raise InputError(
            f"worker: expected one of {', '.join(WORKERS)}, got {experiment.worker!r} in {experiment.name}"
        )
    n_seeds = None if seeds is None else check_count(seeds, "seeds", at_most=_MOST_SEEDS)
    expand = EXPANSIONS.get(experiment.worker)
    left_out: dict[str, str] = {}
    if expand is None:
        every = list(experiment.jobs(preset, seeds=n_seeds, only=only))
    else:
        expanded, left_out = expand(list(experiment.jobs(preset, seeds=n_seeds)), data)
        every = [job for job in expanded if is_wanted({**job.key, "seed": job.seed}, only or {})]
    if not every:
        wanted = ", ".join(f"{name}={','.join(values)}" for name, values in (only or {}).items())
        raise InputError(f"only: expected names and values of the grid of {experiment.name}, got {wanted}")
    check_data(experiment, preset, data, jobs=every)
    done = {identity(row): row.inputs for row in finished_rows(folder)}
    digests = {identity(job): inputs_digest(job, data, _unnamed(experiment, preset)) for job in every}
    # Rows of earlier versions do not say what they read; they are kept.
    missing = [job for job in every if done.get(identity(job)) not in ("", digests[identity(job)])]
    file = RowFile(folder)
    save_experiment(experiment, folder)
    save_left_out(left_out, folder)
    finished = len(every) - len(missing)
    with _workers(check_count(jobs, "jobs", at_most=_MOST_JOBS)) as pool:
        ended: SimpleQueue[Future[Row]] = SimpleQueue()
        with _interrupts_blocked():
            for job in missing:
                inputs = digests[identity(job)]
                pool.submit(run_job, job, data, inputs=inputs, runs=runs).add_done_callback(ended.put)
        for _ in missing:
            # An interrupt in `as_completed` can leave a future locked, for which the pool would wait forever.
            row = ended.get().result()
            file.add(row)
            finished += 1
            if progress is not None:
                name = ", ".join([*map(str, row.key.values()), f"seed {row.seed}"])
                progress(name, finished, len(every))
            yield row


@contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Yield worker processes; end them at once if the block fails, is interrupted, or is left early."""
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_prepare) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise CalibrantError(
                "jobs: expected worker processes that run to their end, got one that was killed, perhaps "
                "because memory was full; finished jobs are kept, so run again with fewer jobs at once"
            ) from error
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that never see Ctrl-C, which goes to all processes of a terminal; the parent ends them.

    They inherit the signals that are blocked. The parent gets what has come in the meantime at the end: an
    interrupt between the start of a process and the note of it would leave a process that nobody ends.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # starts once, and then unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _interrupts_delayed():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interrupts_delayed() -> Iterator[None]:
    """Handle Ctrl-C after the block: what the main thread blocks, another thread gets for it."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        handler(came[0], None)


def check_data(
    experiment: Experiment, preset: Preset, data: Path | None, *, jobs: Iterable[Job] | None = None
) -> None:
    """Raise an error if a data set that the preset needs is missing.

    Args:
        experiment: The experiment.
        preset: Name of the preset.
        data: Folder of the data sets.
        jobs: The jobs to run, if not all; what only others name as ``{data}/NAME`` is not needed.
    """
    every = [_places(job) for job in experiment.jobs(preset, seeds=1)]
    chosen = every if jobs is None else [_places(job) for job in jobs]
    for name in experiment.needs(preset):
        placed = f"{{data}}/{name}"
        needed = any(placed in text for text in chosen) or not any(placed in text for text in every)
        if needed and (data is None or not (data / name).exists()):
            raise InputError(
                f"data: expected a folder that holds {name}, which {experiment.name} needs, got "
                f"{'none' if data is None else data}"
            )


def _places(job: Job) -> str:
    """Return the part of a job that names places in the folder of data sets."""
    task = job.settings.get("tasks", {}).get(job.key.get("task"))
    return json.dumps([dict(job.key), task])


def _unnamed(experiment: Experiment, preset: Preset) -> list[str]:
    """Return the data sets that a preset needs and that no job names, so any job may read them."""
    texts = [_places(job) for job in experiment.jobs(preset, seeds=1)]
    return [
        name for name in experiment.needs(preset) if not any(f"{{data}}/{name}" in each for each in texts)
    ]


def run_job(job: Job, data: Path | None, *, inputs: str = "", runs: Path | None = None) -> Row:
    """Run one job in this process; ``inputs`` is the digest of what it reads, ``runs`` keeps networks."""
    worker = WORKERS[job.worker]
    if worker is run_training:
        worker = partial(run_training, runs=runs)
    start = time.perf_counter()
    try:
        records = tuple(worker(job.key, job.settings, job.seed, data))
    except Exception as error:
        if _can_be_sent(error):
            raise
        raise CalibrantError(f"{type(error).__name__}: {error}") from None
    seconds = time.perf_counter() - start
    return Row(job.experiment, job.preset, job.key, job.seed, records, seconds, versions(), inputs)


def _can_be_sent(error: Exception) -> bool:
    """Return whether the process that waits for the job can read the error; if not, its pool would break."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever the error's own code raises
        return False
    return True


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute the numbers."""
    found = {"calibrant": __version__, "python": platform.python_version()}
    found |= {name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")}
    for name in ("probmetrics", "netcal"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _prepare() -> None:
    """Prepare a worker process: use one thread, and end when the parent process ends."""
    torch.set_num_threads(1)
    threadpool_limits(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    # A killed parent cannot stop its workers, which would wait for jobs forever.
    parent.join()
    os._exit(1)
