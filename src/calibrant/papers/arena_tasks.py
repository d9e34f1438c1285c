"""Tasks of the arena of real predictions: read from finished rows, and merged from several sources."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from calibrant.errors import InputError
from calibrant.papers.arena_real import CLASSES, KINDS, RANKED, REFERENCE_METHOD
from calibrant.papers.quantities import quantity
from calibrant.papers.rows import Record, Row

# Two runs agree if their measures differ by no more than this: another machine computes in another order.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4


@dataclass(frozen=True)
class ArenaTask:
    """One file, number of fitting samples and seed.

    Attributes:
        file: Name of the file.
        samples: Number of fitting samples.
        seed: The seed that drew them.
        classes: Number of classes, or of labels; 2 for confidences with outcomes.
        results: The numbers of each method.
        notes: The labels of each method, such as the reason of a failure.
        kind: What the file contains, one of :data:`calibrant.papers.arena_real.KINDS`.
        predictions: Digest of the predictions; empty in rows of earlier versions.
        version: The version of Calibrant that fitted the methods.
    """

    file: str
    samples: int
    seed: int
    classes: int
    results: Mapping[str, Mapping[str, Any]]
    notes: Mapping[str, Mapping[str, Any]]
    kind: str = CLASSES
    predictions: str = ""
    version: str = ""

    @property
    def same_file(self) -> str:
        """What tasks of the same predictions have in common, whatever their file is called."""
        return self.predictions or self.file


@dataclass(frozen=True)
class MergedTasks:
    """The tasks of several sources, each once.

    Attributes:
        tasks: The tasks, with the numbers of the first source, and of the latest row in it.
        n_repeated: Number of tasks that were run more than once.
        contradictions: For each result that differs beyond rounding from the one that counts, a sentence.
    """

    tasks: tuple[ArenaTask, ...]
    n_repeated: int = 0
    contradictions: tuple[str, ...] = ()


def read_arena_tasks(rows: Iterable[Row], *, source: str = "rows") -> list[ArenaTask]:
    """Return a task for each finished row, by files, sizes and seeds; of equal ones, the latest comes first.

    Args:
        rows: The rows of an experiment whose worker is ``arena_real``.
        source: What the rows are called in messages.
    """
    tasks = (_read(row, source) for row in reversed(list(rows)))
    return sorted(
        tasks, key=lambda task: (task.file, task.samples, task.seed, task.version, task.predictions)
    )


def merge_tasks(sources: Mapping[str, Sequence[ArenaTask]]) -> MergedTasks:
    """Return the tasks of one or several sources; a task that was run more than once counts once.

    Tasks are the same if the digest of their predictions, their number of fitting samples, their seed and the
    version of Calibrant are; they then have the methods of all their runs.

    Args:
        sources: Tasks by the name of their source, the one whose numbers count first.
    """
    if len(sources) > 1:
        _check_digests(sources)
    merged: dict[tuple[str, str, int, int, str], ArenaTask] = {}
    owners: dict[tuple[tuple[str, str, int, int, str], str], str] = {}
    repeated, contradictions = set(), []
    for source, tasks in sources.items():
        for task in tasks:
            key = (task.kind, task.same_file, task.samples, task.seed, task.version)
            first = merged.get(key)
            if first is not None:
                repeated.add(key)
                contradictions += [
                    f"{task.file}, {task.samples:,} samples, seed {task.seed}, {method}: {found} in "
                    f"{' and '.join(dict.fromkeys((owners[key, method], source)))}"
                    for method in task.results.keys() & first.results.keys()
                    if (found := _difference(first, task, method))
                ]
                task = replace(
                    first, results={**task.results, **first.results}, notes={**task.notes, **first.notes}
                )
            merged[key] = task
            for method in task.results:
                owners.setdefault((key, method), source)
    return MergedTasks(tuple(merged.values()), len(repeated), tuple(sorted(contradictions)))


def versions_of(tasks: Iterable[ArenaTask]) -> list[str]:
    """Return the versions of Calibrant that made tasks, the one with most tasks first."""
    return [version for version, _ in Counter(task.version for task in tasks).most_common()]


def _read(row: Row, source: str) -> ArenaTask:
    file, samples = row.key.get("file"), row.key.get("samples")
    first = row.records[0].labels if row.records else {}
    kind, classes = first.get("kind", CLASSES), first.get("classes")
    whole = isinstance(file, str) and _is_count(samples) and kind in KINDS and _is_count(classes)
    whole = whole and all(_is_measured(record, RANKED[str(kind)]) for record in row.records)
    if not whole or REFERENCE_METHOD not in [record.labels["method"] for record in row.records]:
        raise InputError(
            f"{source}: expected rows of the arena of real predictions, got one of {row.experiment} without "
            "the measures of each method on a file; name rows.jsonl of a folder of bench run arena_real"
        )
    return ArenaTask(
        file=str(file),
        samples=int(samples),  # type: ignore[arg-type]  # checked above
        seed=row.seed,
        classes=int(classes),  # type: ignore[arg-type]  # checked above
        results={record.labels["method"]: record.values for record in row.records},
        notes={record.labels["method"]: record.labels for record in row.records},
        kind=str(kind),
        predictions=str(first.get("predictions", "")),
        version=row.versions.get("calibrant", ""),
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_measured(record: Record, measures: Sequence[str]) -> bool:
    return isinstance(record.labels.get("method"), str) and all(
        math.isfinite(record.values.get(name) or 0.0) and record.values.get(name) is not None
        for name in (*measures, "fit_seconds")
    )


def _check_digests(sources: Mapping[str, Sequence[ArenaTask]]) -> None:
    for source, tasks in sources.items():
        unknown = next((task.file for task in tasks if not task.predictions), None)
        if unknown is not None:
            raise InputError(
                f"{source}: expected a digest of the predictions in every row, by which equal tasks are "
                f"recognised, got none for {unknown}; run it again into a new folder"
            )


def _difference(first: ArenaTask, second: ArenaTask, method: str) -> str:
    """Return the first measure by which two results of a method differ beyond rounding, with its values."""
    for measure in RANKED[first.kind]:
        values = [float(task.results[method][measure]) for task in (first, second)]
        if not math.isclose(*values, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
            return f"{quantity(measure).short} {values[0]:.4g} and {values[1]:.4g}"
    return ""
