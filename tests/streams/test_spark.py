"""The recipe for Spark, as the documentation has it: partitions are measured where they are, and merged."""

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibrant import evaluate

pyspark = pytest.importorskip("pyspark.sql", reason="pyspark, which also needs Java, is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Spark's own


@pytest.fixture
def spark(monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    session = (
        pyspark.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
        .getOrCreate()
    )
    yield session
    session.stop()


def test_partitions_of_spark_give_the_measures_of_all_rows(spark, capsys):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"stated": rng.uniform(0.5, 1, 2_000)})
    rows["is_right"] = rng.random(2_000) < rows["stated"] - 0.1
    names = {"pd": pd, "frame": spark.createDataFrame(rows).repartition(4)}
    section = PAGE.read_text(encoding="utf-8").partition("## Dask and Spark")[2]
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]:
        exec(block, names)
    capsys.readouterr()
    found = names["whole"].compute()
    expected = evaluate(rows, confidence="stated", correct="is_right", measures=["accuracy", "ece", "brier"])
    assert found.n == 2_000
    for name, value in expected.metrics.items():
        assert found.metrics[name] == pytest.approx(value, abs=1e-12)
