"""The recipe for Dask: partitions in two processes give the measures of all rows."""

import os
import runpy
from functools import reduce
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibrant import evaluate
from calibrant.streams import StreamMeasures

dask = pytest.importorskip("dask", reason="dask is not installed; it is in the extra dev")
dd = pytest.importorskip("dask.dataframe", reason="dask is not installed; it is in the extra dev")

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "dask_measures.py"))
measured, merged = EXAMPLE["measured"], EXAMPLE["merged"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


def test_partitions_in_two_processes_give_the_measures_of_all_rows():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"stated": rng.uniform(0.5, 1, 3_000)})
    rows["is_right"] = rng.random(3_000) < rows["stated"] - 0.1
    parts = dd.from_pandas(rows, npartitions=5).to_delayed()
    empty = rows.iloc[:0]
    jobs = [dask.delayed(lambda part: (os.getpid(), measured(part)))(part) for part in (*parts, empty)]
    done = dask.compute(*jobs, scheduler="processes", num_workers=2)
    assert os.getpid() not in {process for process, _ in done}
    found = reduce(merged, (part for _, part in done), StreamMeasures()).compute()
    expected = evaluate(rows, confidence="stated", correct="is_right", measures=["accuracy", "ece", "brier"])
    assert found.n == 3_000
    for name, value in expected.metrics.items():
        assert found.metrics[name] == pytest.approx(value, abs=1e-12)


def test_measures_travel_as_text_as_the_recipe_for_spark_sends_them():
    rows = pd.DataFrame({"stated": [0.9, 0.8, 0.6, 0.7], "is_right": [True, True, False, True]})
    texts = [measured(part).state() for part in (rows.iloc[:3], rows.iloc[3:])]
    found = reduce(merged, map(StreamMeasures.from_state, texts)).compute()
    expected = evaluate(rows, confidence="stated", correct="is_right", measures=["ece"])
    assert found.metrics["ece"] == pytest.approx(expected.metrics["ece"], abs=1e-12)
