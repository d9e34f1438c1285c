"""Finished rows of the arena of real predictions, made up."""

import json
import re

import numpy as np

from calibrant.papers.rows import Record, Row, RowFile

METHODS = ("calibrant", "temperature", "uncalibrated", "smart", "probmetrics SMS", "pool")
MEASURES = ("nll", "brier", "smece", "classwise_ece", "ece")
EXPERIMENT = (
    'title = "Mine"\nworker = "arena_real"\n[table]\nrows = ["method"]\nmeasures = ["nll"]\n'
    "[quick]\nseeds = 1\n[quick.grid]\nsamples = [200]\n"
)


def row(file, samples, seed, values, classes=2, *, version="", predictions="", kind="classes", **notes):
    """A finished row; without version and digest as an earlier version wrote it."""
    known = {"kind": kind, "predictions": predictions} if predictions else {}
    records = tuple(
        Record({"method": name, "classes": classes, **known, **notes.get(name, {})}, each)
        for name, each in values.items()
    )
    versions = {"calibrant": version} if version else {}
    return Row("arena_real", "quick", {"file": file, "samples": samples}, seed, records, 1.0, versions)


def values(score, behind=0.0, se=0.1, lead=0.0):
    """The numbers of a method whose measures are all the same."""
    scores = dict.fromkeys(("nll", "brier", "smece", "classwise_ece", "ece"), score)
    return {
        **scores,
        **{f"lead_{name}": lead for name in ("nll", "brier", "smece")},
        "fit_seconds": 1.0,
        "nll_behind_temperature": behind,
        "nll_behind_temperature_se": se,
    }


def drawn_rows(n_files=6, *, version="0.1.0", methods=METHODS, seed=0):
    """Rows of several files, sizes and numbers of classes with drawn numbers, two of them ties."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(n_files):
        for samples in (200, 1000)[: 1 + number % 2]:
            each = {}
            for name in methods:
                scores = {measure: float(rng.integers(1, 9)) / 10 for measure in MEASURES}
                leads = {
                    f"lead_{measure}": float(rng.normal(scale=3)) for measure in ("nll", "brier", "smece")
                }
                each[name] = values(0.0) | scores | leads | {"fit_seconds": float(rng.exponential(0.1))}
            name = f"{number}.npz"
            classes = (2, 5, 40)[number % 3]
            known = {"version": version, "predictions": f"digest of {number}"}
            found.append(row(name, samples, 0, each, classes, **known))
    return found


def folder_of(place, rows):
    """A folder as bench run writes it."""
    file = RowFile(place)
    for each in rows:
        file.add(each)
    (place / "arena_real.toml").write_text(EXPERIMENT)
    return place


def data_of(text):
    """The numbers in a page."""
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    )
