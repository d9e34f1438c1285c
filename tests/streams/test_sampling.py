"""Samples of streams: whole units, the same however the stream is cut, and every row as likely as others."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from calibrant import load_predictions
from calibrant.streams import open_stream
from calibrant.streams.sampling import ranks_of, sample_stream

N = 3000


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    units = np.repeat(np.arange(N), rng.integers(1, 6, N))[:N]
    return pa.table(
        {"confidence": rng.random(N), "correct": rng.random(N) < 0.5, "question": units, "row": np.arange(N)}
    )


def write(table, folder, cuts, group):
    folder.mkdir()
    for start, stop in pairwise(cuts):
        pq.write_table(table[start:stop], folder / f"{start:05}.parquet", row_group_size=group)
    return folder


@pytest.mark.parametrize("unit", [(), ("question",)])
def test_a_sample_does_not_depend_on_batches_and_has_whole_units(table, tmp_path, unit):
    samples = [
        sample_stream(
            open_stream(write(table, tmp_path / str(group), cuts, group), columns_unit=unit), n_rows=500
        )
        for cuts, group in (([0, N], N), ([0, 700, 701, N], 97))
    ]
    drawn = [sample.predictions.confidence.numpy() for sample in samples]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert [sample.n for sample in samples] == [N, N]
    stated = table["confidence"].to_numpy()
    rows = np.flatnonzero(np.isin(stated, drawn[0]))
    np.testing.assert_array_equal(stated[rows], drawn[0])  # in their order
    if unit:
        units = table["question"].to_numpy()
        np.testing.assert_array_equal(rows, np.flatnonzero(np.isin(units, units[rows])))
        assert 490 < len(rows) <= 500
    else:
        assert len(rows) == 500


def test_features_are_those_of_their_rows_and_read_only_if_asked_for(table, tmp_path):
    stated = table["confidence"].to_numpy()
    features = pa.FixedSizeListArray.from_arrays(np.repeat(stated, 3), 3)
    folder = write(table.append_column("features", features), tmp_path / "one", [0, 700, N], 97)
    sample = sample_stream(open_stream(folder, features=True), n_rows=500).predictions
    assert torch.equal(sample.features, sample.confidence[:, None].expand(500, 3))
    assert sample_stream(open_stream(folder), n_rows=500).predictions.features is None


def test_another_seed_draws_other_rows_and_all_rows_fit_if_they_are_few(table, tmp_path):
    folder = write(table, tmp_path / "one", [0, N], N)
    first, second = (sample_stream(open_stream(folder), n_rows=500, seed=seed) for seed in (1, 2))
    shared = np.isin(first.predictions.confidence, second.predictions.confidence).sum()
    assert 40 < shared < 130  # 83 by chance
    whole = sample_stream(open_stream(folder)).predictions
    np.testing.assert_array_equal(whole.confidence, load_predictions(folder / "00000.parquet").confidence)


def test_ranks_are_as_if_drawn():
    ranks = ranks_of(np.arange(100_000), 0) / 2.0**64
    assert len(np.unique(ranks)) == 100_000
    np.testing.assert_allclose(np.histogram(ranks, 10)[0], 10_000, atol=400)
    assert abs(np.corrcoef(ranks[:-1], ranks[1:])[0, 1]) < 0.02
