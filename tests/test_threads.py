"""Threads: one for small problems whatever others do, jobs side by side, no waiting after an error."""

import threading
from functools import partial

import numpy as np
import pytest
import torch

from calibrant import Predictions, evaluate, threads
from calibrant.posthoc import TemperatureScaling
from calibrant.threads import SideBySide, few_threads


@pytest.fixture
def two_threads():
    """Torch may use two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_small_problems_run_on_one_thread_and_large_ones_on_all():
    with few_threads(1000):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with few_threads(1 << 30):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_number_that_somebody_chose_is_the_most_and_small_work_uses_one(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    torch.set_num_threads(3)
    with few_threads(1000):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("two_threads")
def test_threads_that_come_and_go_in_any_order_have_their_number_again():
    seen = {}
    events = {name: threading.Event() for name in ("a in", "b in", "a out", "c in", "b out")}

    def work(name, begins, leaves):
        if begins:
            assert events[begins].wait(60)
        with few_threads(1000), few_threads(10):  # one within the other
            seen[f"{name} in"] = torch.get_num_threads()
            events[f"{name} in"].set()
            if leaves:
                assert events[leaves].wait(60)
            seen[f"{name} still in"] = torch.get_num_threads()
        seen[f"{name} out"] = torch.get_num_threads()
        events.get(f"{name} out", threading.Event()).set()

    orders = {"a": ("", "b in"), "b": ("a in", "c in"), "c": ("a out", "b out")}
    running = [threading.Thread(target=work, args=(name, *order)) for name, order in orders.items()]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    after = []
    new = threading.Thread(target=lambda: after.append(torch.get_num_threads()))
    new.start()
    new.join()
    assert {number for name, number in seen.items() if name.endswith("in")} == {1}
    assert [seen[f"{name} out"] for name in "abc"] == [2, 2, 2]
    assert (after, torch.get_num_threads()) == ([2], 2)


@pytest.mark.usefixtures("two_threads")
def test_evaluating_and_fitting_in_many_threads_at_once_leaves_their_numbers_alone():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(300, 3)), rng.integers(3, size=300)
    begin, numbers = threading.Barrier(8, timeout=300), []

    def work(number):
        begin.wait()
        for _ in range(5):
            if number % 2:
                evaluate(Predictions(logits=logits, labels=labels))
            else:
                TemperatureScaling.fit(logits, labels)
        numbers.append(torch.get_num_threads())

    running = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert numbers == [2] * 8
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_the_number_comes_back_after_an_error():
    with pytest.raises(ZeroDivisionError), few_threads(10):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_while_another_caller_is_inside_changes_neither_number():
    inside, failed, seen = threading.Event(), threading.Event(), []

    def waits():
        with few_threads(10):
            inside.set()
            assert failed.wait(60)
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())

    waiting = threading.Thread(target=waits)
    waiting.start()
    assert inside.wait(60)
    with pytest.raises(ZeroDivisionError), few_threads(10):
        raise ZeroDivisionError
    here, new = torch.get_num_threads(), []

    def begins():
        new.append(torch.get_num_threads())

    for wait in (lambda: None, lambda: failed.set() or waiting.join(60)):
        wait()
        beginning = threading.Thread(target=begins)
        beginning.start()
        beginning.join()
    assert (here, seen, torch.get_num_threads()) == (2, [1, 2], 2)
    assert new == [1, 2]  # of a thread that begins while somebody is inside, and of one after all have left


@pytest.mark.usefixtures("two_threads")
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


@pytest.mark.usefixtures("two_threads")
def test_jobs_on_few_numbers_run_one_after_another():
    assert SideBySide(1000).n_workers == 1
    assert SideBySide(1 << 30).n_workers == 2


def test_ctrl_c_between_the_start_of_a_job_and_its_entry_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(threads, "_abandoned", threading.Event())
    go_on, ended = threading.Event(), []
    jobs = SideBySide(0)

    def interrupted(_, work):
        jobs._pool.submit(work)  # begun, but not entered as a job
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "add", interrupted)
    with pytest.raises(KeyboardInterrupt), jobs:
        jobs.add("job", lambda: ended.append(go_on.wait(20)))
    assert ended == []
    assert threads.work_was_abandoned()
    go_on.set()
