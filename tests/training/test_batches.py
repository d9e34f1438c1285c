"""The order of samples: every one once, the same for any number of processes."""

import pytest
import torch

from calibrant.errors import InputError
from calibrant.training.batches import epoch_batches, n_batches
from calibrant.training.processes import ProcessShare


def steps(n, batch_size, *, rank=0, of=1, seed=3):
    return list(epoch_batches(n, batch_size, seed=seed, share=ProcessShare(rank, of)))


def together(n, batch_size, of):
    """The batches of all processes put together, in the order of their ranks."""
    parts = [steps(n, batch_size, rank=rank, of=of) for rank in range(of)]
    return [torch.cat([batch.rows for batch in step]).tolist() for step in zip(*parts, strict=True)]


@pytest.mark.parametrize(("n", "batch_size"), [(100, 10), (103, 10), (7, 10), (96, 12), (2, 1)])
def test_every_sample_comes_once_in_an_epoch(n, batch_size):
    rows = [row for batch in steps(n, batch_size) for row in batch.rows.tolist()]
    assert sorted(rows) == list(range(n))


@pytest.mark.parametrize("of", [2, 3])
@pytest.mark.parametrize(("n", "batch_size"), [(120, 12), (126, 12), (6, 12)])
def test_processes_together_have_the_batches_of_one(n, batch_size, of):
    assert together(n, batch_size, of) == [batch.rows.tolist() for batch in steps(n, batch_size)]


@pytest.mark.parametrize("of", [2, 3, 4])
@pytest.mark.parametrize("n", range(8, 40))
def test_all_processes_have_equally_many_samples_of_a_step_and_none_has_a_single_one(n, of):
    parts = [steps(n, 9, rank=rank, of=of) for rank in range(of)]
    for batches in zip(*parts, strict=True):
        sizes = {len(batch.rows) for batch in batches}
        assert len(sizes) == 1
        assert sizes.pop() >= 2
        assert {batch.size for batch in batches} == {sum(len(batch.rows) for batch in batches)}


@pytest.mark.parametrize("of", [2, 3, 4])
def test_no_sample_comes_twice_and_fewer_are_left_out_than_make_two_for_each_process(of):
    for n in range(2 * of, 60):
        rows = [row for step in together(n, 9, of) for row in step]
        assert len(set(rows)) == len(rows)
        assert n - len(rows) < 2 * of


def test_a_batch_says_where_its_samples_stand_among_all():
    whole = steps(50, 10)
    for rank in range(2):
        for batch, all_of_it in zip(steps(50, 10, rank=rank, of=2), whole, strict=True):
            assert torch.equal(all_of_it.rows[batch.place], batch.rows)


def test_a_single_sample_at_the_end_is_left_out_and_two_are_not():
    assert [len(batch.rows) for batch in steps(21, 10)] == [10, 10]
    assert [len(batch.rows) for batch in steps(22, 10)] == [10, 10, 2]


def test_the_number_of_steps_is_known_before():
    for n in range(1, 40):
        for of in (1, 2, 3):
            if n >= of:
                assert n_batches(n, 7, ProcessShare(0, of)) == len(steps(n, 7, of=of))


def test_each_seed_has_its_own_order_and_keeps_it():
    first, again, other = (
        torch.cat([batch.rows for batch in steps(60, 10, seed=seed)]).tolist() for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert sorted(first) == sorted(other)


@pytest.mark.parametrize("of", [1, 2, 3, 5])
def test_shares_divide_rows_without_gap_or_overlap(of):
    for n in range(12):
        parts = [list(range(n))[ProcessShare(rank, of).rows(n)] for rank in range(of)]
        assert [row for part in parts for row in part] == list(range(n))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_fewer_samples_than_processes_are_refused():
    with pytest.raises(InputError, match="data: expected at least as many training samples as processes"):
        n_batches(1, 4, ProcessShare(0, 2))
