"""Folders of Parquet files with predictions, for tests of streams."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch


def draw(form, dtype, *, n=3000, k=7, seed=0):
    """Arrays by key, with ties, certain rows and probabilities of exactly zero among them."""
    rng = np.random.default_rng(seed)
    logits = (3 * rng.normal(size=(n, k))).astype(dtype)
    logits[:50] = 0
    logits[50:80, 2] = logits[50:80, 4] = 9
    probs = torch.softmax(torch.from_numpy(logits.astype(np.float64)), dim=1).numpy()
    labels = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    labels[60:70] = 4
    if form == "logits":
        return {"logits": logits, "labels": labels}
    if form == "probs":
        probs[100:140] = np.eye(k)[labels[100:140]]
        return {"probs": probs.astype(dtype), "labels": labels}
    return {"confidence": probs.max(axis=1).astype(dtype), "correct": probs.argmax(axis=1) == labels}


def to_table(arrays, rows=slice(None), *, spread=False, **others):
    columns = {}
    for key, array in arrays.items():
        part = np.ascontiguousarray(array[rows])
        if part.ndim == 1:
            columns[key] = pa.array(part)
        elif spread:
            columns |= {
                f"{key}_{c}": pa.array(np.ascontiguousarray(part[:, c])) for c in range(part.shape[1])
            }
        else:
            columns[key] = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1])
    return pa.table(columns | {key: pa.array(value[rows]) for key, value in others.items()})


def write(folder, arrays, *, cuts=(0, 700, 701, 3000), row_group=333, **options):
    """Write files of uneven length, in row groups that do not divide them."""
    folder.mkdir(exist_ok=True)
    for number, (start, end) in enumerate(pairwise(cuts)):
        table = to_table(arrays, slice(start, end), **options)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=row_group)
    return folder
