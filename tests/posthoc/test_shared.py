"""Work that several fits share is done once per part of the samples, whoever asks for it."""

import threading
import time

import torch

from calibrant.posthoc.fitting.shared import borrowed_seconds, in_folds, once_per_part, part_of, without_fold

LOGITS = torch.arange(12.0).reshape(6, 2)
LABELS = torch.tensor([0, 1, 0, 1, 0, 1])
FOLDS = torch.tensor([0, 0, 1, 1, 2, 2])


def counting():
    calls = []

    @once_per_part
    def mean(logits, _labels, factor=1.0):
        calls.append(len(logits))
        return factor * float(logits.mean())

    return mean, calls


def test_unmarked_logits_are_computed_every_time():
    mean, calls = counting()
    assert mean(LOGITS, LABELS) == mean(LOGITS, LABELS)
    assert calls == [6, 6]
    assert part_of(LOGITS) is None


def test_a_part_is_computed_once_for_each_set_of_options():
    mean, calls = counting()
    z = in_folds(LOGITS, FOLDS)
    assert mean(z, LABELS) == 5.5
    assert mean(z, LABELS, factor=2.0) == 11.0
    assert mean(z, LABELS) == 5.5
    assert calls == [6, 6]
    assert part_of(LOGITS) is None


def test_parts_keep_the_weights_of_their_samples():
    calls = []

    @once_per_part
    def mean(logits, _labels, weights=None):
        calls.append(len(logits))
        return float(logits.mean() if weights is None else (weights @ logits[:, 0]) / weights.sum())

    w = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 8.0])
    z = in_folds(LOGITS, FOLDS, w)
    smaller, labels = without_fold(z, LABELS, 1)
    weights = part_of(smaller).weights
    assert weights.tolist() == [1.0, 2.0, 5.0, 8.0]
    assert mean(smaller, labels, weights=weights) == mean(smaller, labels, weights=weights.clone()) == 7.75
    assert mean(smaller, labels) == 5.5
    assert calls == [4, 4]
    assert part_of(in_folds(LOGITS, FOLDS)).weights is None


def test_two_ways_to_the_same_samples_are_one_part():
    mean, calls = counting()
    z = in_folds(LOGITS, FOLDS)
    one = without_fold(*without_fold(z, LABELS, 0), 2)
    other = without_fold(*without_fold(z, LABELS, 2), 0)
    assert torch.equal(one[0], LOGITS[2:4])
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], LABELS[2:4])
    assert mean(*one) == mean(*other) == 5.5
    assert calls == [2]


def test_what_is_forgotten_is_computed_again():
    mean, calls = counting()
    z = in_folds(LOGITS, FOLDS)
    part, rest = without_fold(z, LABELS, 1)
    mean(z, LABELS), mean(part, rest)
    part_of(part).forget()
    mean(z, LABELS), mean(part, rest)
    assert calls == [6, 4, 4]
    part_of(z).forget(1)
    mean(z, LABELS), mean(part, rest)
    assert calls == [6, 4, 4, 4]
    part_of(z).forget()
    mean(z, LABELS), mean(part, rest)
    assert calls == [6, 4, 4, 4, 6]


def test_the_time_of_a_borrowed_result_is_known_to_the_borrower():
    @once_per_part
    def slow(_logits, _labels):
        time.sleep(0.05)

    z = in_folds(LOGITS, FOLDS)
    with borrowed_seconds() as borrowed:
        slow(z, LABELS)
        assert borrowed() == 0.0
        slow(z, LABELS)
        assert 0.04 < borrowed() < 5.0


def test_a_second_thread_waits_for_the_first_instead_of_computing_again():
    started, go_on, calls = threading.Event(), threading.Event(), []

    @once_per_part
    def slow(_logits, _labels):
        calls.append(threading.current_thread().name)
        started.set()
        assert go_on.wait(timeout=10)
        return 1.0

    z, results = in_folds(LOGITS, FOLDS), []
    threads = [threading.Thread(target=lambda: results.append(slow(z, LABELS))) for _ in range(2)]
    threads[0].start()
    assert started.wait(timeout=10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(timeout=10)
    assert results == [1.0, 1.0]
    assert len(calls) == 1
