"""Threads: one for small problems unless the user chose, jobs side by side, no waiting after an error."""

import threading
from functools import partial

import pytest
import torch

from calibrant import threads
from calibrant.threads import SideBySide, chosen_by_user, few_threads


@pytest.fixture
def nothing_chosen(monkeypatch):
    """As if neither the environment nor the program had set the number of threads, which is two."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "_AT_IMPORT", 2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("nothing_chosen")
def test_small_problems_run_on_one_thread_and_large_ones_on_all():
    with few_threads(1000):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with few_threads(1 << 30):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("nothing_chosen")
@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_a_number_in_the_environment_is_respected(monkeypatch, name):
    assert not chosen_by_user()
    monkeypatch.setenv(name, "2")
    assert chosen_by_user()
    with few_threads(1000):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("nothing_chosen")
def test_a_number_that_the_program_set_is_respected():
    torch.set_num_threads(3)
    assert chosen_by_user()
    with few_threads(1000):
        assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("nothing_chosen")
def test_the_number_comes_back_after_an_error():
    with pytest.raises(ZeroDivisionError), few_threads(10):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("nothing_chosen")
def test_jobs_run_side_by_side_and_may_be_followed_by_others():
    both_run = threading.Barrier(2, timeout=300)

    def work(number):
        if number < 2:
            both_run.wait()  # breaks unless two jobs run at the same time
        return number, torch.get_num_threads()

    results = []
    with SideBySide(1 << 30) as jobs:
        for number in range(2):
            jobs.add(number, partial(work, number))
        for name, ended in jobs.ended():
            results.append((name, *ended.result()))
            if name < 2:
                jobs.add(name + 2, partial(work, name + 2))
    assert sorted(results) == [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 3, 1)]
    assert torch.get_num_threads() == 2


def test_after_an_error_nobody_waits_for_what_still_runs(monkeypatch):
    monkeypatch.setattr(threads, "_abandoned", threading.Event())
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()

    def endless():
        begun.set()
        release.wait(timeout=600)
        ended.set()

    def interrupted():
        with SideBySide(1 << 30) as jobs:
            jobs.add("endless", endless)
            assert begun.wait(timeout=300)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not ended.is_set()
    assert threads.work_was_abandoned()
    release.set()


def test_ended_work_is_not_abandoned(monkeypatch):
    monkeypatch.setattr(threads, "_abandoned", threading.Event())
    with SideBySide(1 << 30) as jobs:
        jobs.add("short", lambda: 1)
        assert [ended.result() for _, ended in jobs.ended()] == [1]
    assert not threads.work_was_abandoned()


@pytest.mark.usefixtures("nothing_chosen")
def test_jobs_on_few_numbers_run_one_after_another():
    assert SideBySide(1000).n_workers == 1
    assert SideBySide(1 << 30).n_workers == 2
