"""The worker ``llm``: how honest the confidences of language models are, and what repairs them.

The data are a Parquet file of answers with the columns ``model``, ``category`` (the subject of the question),
``correct``, and one or more columns of confidences, such as the one that the model states and the one of its
tokens. A job is a model, one of its confidences, a number of fitting ``samples`` and a seed; the confidence
``combined`` stands for all of them together. Missing confidences and impossible ones (below 0 or above 1) are
dropped and counted.

The seed draws the answers. All confidences of a model are tested on the same part of its answers, at least
300 and a fifth of the fitting samples. Settings:

- ``files``: where the answers may be in the folder of data sets; the first one that exists is read.
- ``methods``: names of methods for confidences; those that are compared by default if left out.

The records of a job are the uncalibrated confidence, every method, ``calibrant`` (what ``calibrant
calibrate`` returns) and ``calibrant by group`` (what it returns if it knows the subjects). A method that
cannot be fitted counts as the uncalibrated confidence, and the label ``reason`` says why.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation import choose, compare
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.compare import Comparison
from calibrant.evaluation.evaluate import evaluate
from calibrant.extras import optional
from calibrant.inputs import Floats
from calibrant.metrics.binned import expected_calibration_error
from calibrant.papers.arena_real import CALIBRANT, needed_to_test
from calibrant.papers.experiment import Job
from calibrant.papers.rows import Record
from calibrant.posthoc.names import BY_GROUP, COMBINATION, POOL

if TYPE_CHECKING:
    import pyarrow as pa

#: The key of jobs that use all confidences of a model.
COMBINED = "combined"

#: What a comparison returns if it knows the subjects.
CALIBRANT_BY_GROUP = f"{CALIBRANT} by group"

UNCALIBRATED = "uncalibrated"

_MODEL, _SUBJECT, _CORRECT = _COLUMNS = ("model", "category", "correct")
_MEASURES = ("nll", "brier", "ece", "smece", "auroc_correct")
_MEANS = ("accuracy", "mean_confidence")
_COMPLETE_MEASURES = ("brier", "auroc_correct")

# Intervals of the comparison are not used here.
_RESAMPLES = 2

# Enough for every table, and much shorter rows.
_DIGITS = 5


@dataclass(frozen=True, eq=False)
class ModelAnswers:
    """The answers of one model.

    Attributes:
        correct: Whether each answer was right.
        subjects: The subject of each question.
        confidences: By name, the confidence of each answer; NaN where it is missing or impossible.
        missing: By name, how many are missing.
        impossible: By name, how many are below 0 or above 1.
    """

    correct: npt.NDArray[Any]
    subjects: npt.NDArray[np.str_]
    confidences: Mapping[str, Floats]
    missing: Mapping[str, int]
    impossible: Mapping[str, int]

    def usable(self, samples: int) -> list[str]:
        """Return the confidences that leave enough answers to test if this many are fitted."""
        least = samples + needed_to_test(samples)
        return [name for name, each in self.confidences.items() if np.isfinite(each).sum() >= least]


@dataclass(frozen=True, eq=False)
class Draw:
    """The answers of a job.

    Attributes:
        fitting: Answers to fit.
        test: Other answers.
        complete: Which of the test answers have all confidences of the model.
    """

    fitting: Predictions
    test: Predictions
    complete: npt.NDArray[np.bool_]


def answers_file(settings: Mapping[str, Any], data: Path | None) -> Path:
    """Return the file of answers in the folder of data sets."""
    names: Sequence[str] = settings.get("files", ("answers.parquet",))
    if data is not None:
        for path in (data / name for name in names):
            if path.is_file():
                return path
    got = "none" if data is None else data
    raise InputError(f"data: expected a folder that holds {' or '.join(names)}, got {got}")


def read_model(path: Path, model: str) -> ModelAnswers:
    """Read the answers of one model."""
    confidences = confidence_columns(path)
    with optional("llm"):
        import pyarrow.parquet as pq

    table = pq.read_table(path, columns=[*_COLUMNS, *confidences], filters=[(_MODEL, "=", model)])
    if not table.num_rows:
        raise InputError(f"{path.name}: expected answers of {model}, got none")
    if table[_CORRECT].null_count:
        raise InputError(f"{path.name}: expected {_CORRECT} for every answer, got none for some of {model}")
    stated = {name: _numbers(table, name) for name in confidences}
    return ModelAnswers(
        correct=table[_CORRECT].to_numpy(),
        subjects=np.array([str(each) for each in table[_SUBJECT].to_pylist()]),
        confidences={name: np.where(_possible(each), each, np.nan) for name, each in stated.items()},
        missing={name: int(np.isnan(each).sum()) for name, each in stated.items()},
        impossible={name: int((~np.isnan(each) & ~_possible(each)).sum()) for name, each in stated.items()},
    )


def confidence_columns(path: Path) -> list[str]:
    """Return the columns of a file of answers that hold confidences: all that hold fractions."""
    with optional("llm"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    schema = pq.read_schema(path)
    for name in _COLUMNS:
        if name not in schema.names:
            raise InputError(
                f"{path.name}: expected the columns {', '.join(_COLUMNS)} and confidences, got no {name!r}"
            )
    names = [
        field.name for field in schema if pa.types.is_floating(field.type) and field.name not in _COLUMNS
    ]
    if not names or COMBINED in names:
        got = f"one called {COMBINED!r}" if names else "none"
        raise InputError(f"{path.name}: expected columns of confidences with names of their own, got {got}")
    return names


def expand_models(jobs: Sequence[Job], data: Path | None) -> tuple[list[Job], dict[str, str]]:
    """Return each job for each model and confidence, and why some confidences are left out.

    Args:
        jobs: Jobs that name a number of ``samples``.
        data: Folder of the file of answers.
    """
    path = answers_file(jobs[0].settings, data)
    smallest = min(job.key["samples"] for job in jobs)
    least = smallest + needed_to_test(smallest)
    models = {name: read_model(path, name) for name in _model_names(path)}
    left_out = {
        f"{model}, {name}": f"expected at least {least} answers, {smallest} of them to fit, "
        f"got {np.isfinite(answers.confidences[name]).sum()}"
        for model, answers in models.items()
        for name in answers.confidences
        if name not in answers.usable(smallest)
    }
    expanded = [
        replace(job, key={"model": model, "confidence": confidence, **job.key})
        for job in jobs
        for model, answers in models.items()
        for confidence in _with_combined(answers.usable(job.key["samples"]))
    ]
    if not expanded:
        raise InputError(
            f"{path.name}: expected a model with at least {least} answers and their confidence, got none"
        )
    return expanded, left_out


def run_llm(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield a record for each way to repair the confidence that the key names."""
    answers = read_model(answers_file(settings, data), key["model"])
    confidence = key["confidence"]
    drawn = draw_answers(answers, confidence, key["samples"], seed=seed)
    methods = settings.get("methods", "auto")
    comparison = compare(drawn.fitting, methods=methods, n_resamples=_RESAMPLES, seed=seed)
    chosen = (COMBINATION, CALIBRANT, CALIBRANT_BY_GROUP)
    for name, repaired in _repaired(comparison, drawn.test).items():
        if confidence == COMBINED and name not in chosen:  # those of the first confidence alone
            continue
        measures = (*_MEANS, *_MEASURES) if name in (UNCALIBRATED, *chosen) else _MEASURES
        values = dict(evaluate(repaired, measures=measures).metrics)
        values["group_ece"] = _within_groups(repaired)
        if name in chosen and drawn.complete.any():
            complete = evaluate(repaired.take(drawn.complete), measures=_COMPLETE_MEASURES).metrics
            values |= {f"complete_{measure}": value for measure, value in complete.items()}
        if name == CALIBRANT_BY_GROUP:
            values["group_ece_of_perfect"] = _within_groups(_as_if_perfect(repaired, seed))
        if name == UNCALIBRATED:
            values["n_test"] = repaired.n
            values["n_missing"] = answers.missing[confidence]
            values["n_impossible"] = answers.impossible[confidence]
        labels = {"method": name}
        if name in comparison.skipped:
            labels["reason"] = comparison.skipped[name]
        yield Record(labels, {measure: _rounded(value) for measure, value in values.items()})


def draw_answers(answers: ModelAnswers, confidence: str, samples: int, *, seed: int) -> Draw:
    """Draw answers to fit one confidence, and the answers after those that any confidence needs to be fitted.

    Args:
        answers: The answers of a model.
        confidence: One of its confidences, or ``combined``: the first one, and all of them as signals.
        samples: Number of answers to fit.
        seed: Equal seeds give equal draws.
    """
    names = answers.usable(samples)
    order = np.random.default_rng(seed).permutation(len(answers.correct))
    places = {name: np.flatnonzero(np.isfinite(answers.confidences[name][order])) for name in names}
    end = max(each[samples - 1] for each in places.values()) + 1
    main = names[0] if confidence == COMBINED else confidence
    signals = names if confidence == COMBINED else []

    def chosen(rows: npt.NDArray[np.int_]) -> Predictions:
        return Predictions(
            confidence=answers.confidences[main][rows],
            correct=answers.correct[rows],
            signals={name: answers.confidences[name][rows] for name in signals},
            groups=answers.subjects[rows],
        )

    test = order[places[main][places[main] >= end]]
    complete = np.all([np.isfinite(answers.confidences[name][test]) for name in names], axis=0)
    return Draw(chosen(order[places[main][:samples]]), chosen(test), complete)


def _with_combined(names: list[str]) -> list[str]:
    return [*names, COMBINED] if len(names) > 1 else names


def _model_names(path: Path) -> list[str]:
    with optional("llm"):
        import pyarrow.parquet as pq

    names = pq.read_table(path, columns=[_MODEL])[_MODEL].unique().to_pylist()
    return sorted(name for name in names if name is not None)


def _numbers(table: "pa.Table", name: str) -> Floats:
    return np.asarray(table[name].to_numpy(), dtype=np.float64)


def _possible(confidence: Floats) -> npt.NDArray[np.bool_]:
    possible: npt.NDArray[np.bool_] = (confidence >= 0) & (confidence <= 1)
    return possible


def _repaired(comparison: Comparison, test: Predictions) -> dict[str, Predictions]:
    """Return the test answers with the confidence that each method gives them."""
    common = replace(comparison, results=tuple(each for each in comparison.results if each.name != BY_GROUP))
    calibrators = {each.name: each.calibrator for each in common.results if each.name != POOL}
    calibrators |= {
        CALIBRANT: choose(common).calibrator,
        CALIBRANT_BY_GROUP: choose(comparison).calibrator,
    }
    failed = [name for name in comparison.skipped if name != POOL]
    unchanged = dict.fromkeys([UNCALIBRATED, *failed], test)
    repaired = {name: calibrated(each, test) for name, each in calibrators.items() if name not in unchanged}
    return {**unchanged, **repaired}


def _within_groups(predictions: Predictions) -> float:
    """Return the mean ECE of the groups, weighted by their numbers of answers."""
    assert predictions.groups is not None
    codes, outcomes = predictions.groups.codes, predictions.outcomes()
    errors = [
        int((codes == code).sum())
        * expected_calibration_error(
            confidence=outcomes.confidence[codes == code], correct=outcomes.correct[codes == code]
        )
        for code in range(len(predictions.groups.names))
    ]
    return sum(errors) / predictions.n


def _as_if_perfect(predictions: Predictions, seed: int) -> Predictions:
    """Return the same confidences with answers that are right as often as they say, up to chance."""
    confidence = predictions.outcomes().confidence
    drawn = np.random.default_rng(seed).random(predictions.n) < confidence.numpy()
    return Predictions(confidence=confidence, correct=drawn, groups=predictions.groups)


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.{_DIGITS}g}")
