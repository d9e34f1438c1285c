"""Measure predictions that are spread over the partitions of a Dask frame, in two processes.

Each partition becomes an accumulator, which is small whatever the number of rows; accumulators are merged.
"""

from functools import reduce

import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.base import compute
from dask.delayed import delayed

from calibrant import load_predictions
from calibrant.streams import StreamMeasures


def measured(part: pd.DataFrame) -> StreamMeasures:
    """Measure one partition; an empty one adds nothing."""
    measures = StreamMeasures()
    if len(part):
        measures.update(load_predictions(part, confidence="stated", correct="is_right"))
    return measures


def merged(first: StreamMeasures, second: StreamMeasures) -> StreamMeasures:
    """Add the measures of further partitions."""
    first.merge(second)
    return first


def main() -> None:
    """Make a frame of four partitions and print its measures."""
    rng = np.random.default_rng(0)
    stated = rng.uniform(0.5, 1, 10_000)
    rows = pd.DataFrame({"stated": stated, "is_right": rng.random(10_000) < stated - 0.1})
    frame = dd.from_pandas(rows, npartitions=4)
    parts = [delayed(measured)(part) for part in frame.to_delayed()]
    done = compute(*parts, scheduler="processes", num_workers=2)
    print(reduce(merged, done, StreamMeasures()).compute().to_table().to_markdown())


if __name__ == "__main__":
    main()
