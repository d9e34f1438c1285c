"""The arena as one HTML file: ranks, duels and costs of all methods on the tasks that a reader picks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.errors import InputError
from calibrant.extras import why_missing
from calibrant.papers.arena_real import CALIBRANT, CLASSES, DUELS, LABELS, PAIRS, RANKED, REFERENCE_METHOD
from calibrant.papers.arena_tasks import ArenaTask, MergedTasks, versions_of
from calibrant.papers.quantities import quantity
from calibrant.papers.rankings import SCORE_DIGITS, critical_difference
from calibrant.papers.writers import number_of
from calibrant.posthoc.names import POOL
from calibrant.report.single_file import asset, render_file

_KINDS = {CLASSES: "scores of classes", PAIRS: "confidences with outcomes", LABELS: "several labels"}
_DIGITS_OF_LEADS = 6
_MOST_CONTRADICTIONS = 20


@dataclass(frozen=True)
class _File:
    """A line of the table of files."""

    name: str
    kind: str
    classes: int
    digest: str
    n_tasks: int


def arena_page(
    merged: MergedTasks, *, sources: Sequence[str], left_out: Mapping[str, str] | None = None
) -> str:
    """Return the page of the arena as HTML.

    Args:
        merged: The tasks.
        sources: Where their rows are from.
        left_out: Why files were left out, by their names.
    """
    if missing := why_missing("report", "jinja2"):
        raise missing
    tasks = merged.tasks
    if not tasks:
        raise InputError("arena_real: expected finished rows, got none; run the experiment first")
    return render_file(
        "arena.html.j2",
        package="calibrant.papers",
        scripts={"page": asset("calibrant.papers", "arena.js")},
        data=_drawn(tasks),
        summary=f"{number_of(len(tasks), 'task')}, {number_of(len(_files(tasks)), 'file')}",
        default=CALIBRANT,
        reference=REFERENCE_METHOD,
        pool=POOL,
        sources=sources,
        versions=_versions(tasks),
        repeated=number_of(merged.n_repeated, "task") if merged.n_repeated else "",
        n_contradictions=len(merged.contradictions),
        contradictions=merged.contradictions[:_MOST_CONTRADICTIONS],
        files=_files(tasks),
        left_out=dict(left_out or {}),
    )


def _drawn(tasks: Sequence[ArenaTask]) -> dict[str, Any]:
    """Return what the script of the page ranks: a row of numbers for each task and method."""
    methods = sorted({name for task in tasks for name in task.results if name != POOL})
    places = {name: place for place, name in enumerate(dict.fromkeys(task.same_file for task in tasks))}
    columns = [*RANKED[CLASSES], "fit_seconds", *map(_lead, DUELS)]
    return {
        "default": CALIBRANT,
        "reference": REFERENCE_METHOD,
        "methods": methods,
        "columns": columns,
        "measures": {kind: list(RANKED[kind]) for kind in _KINDS},
        "titles": {name: quantity(name).short for name in RANKED[CLASSES]},
        "duels": {name: _lead(name) for name in DUELS},
        "kinds": _KINDS,
        "versions": versions_of(tasks),
        # For one file; for n files they are sqrt(n) times smaller.
        "differences": [0.0, 0.0, *(critical_difference(k, 1) for k in range(2, len(methods) + 1))],
        "tasks": [
            {
                "file": places[task.same_file],
                "kind": task.kind,
                "classes": task.classes,
                "samples": task.samples,
                "version": task.version,
                "numbers": [_numbers(task.results.get(name), columns) for name in methods],
            }
            for task in tasks
        ],
    }


def _lead(measure: str) -> str:
    return f"lead_{measure}"


def _numbers(values: Mapping[str, float | None] | None, columns: Sequence[str]) -> list[float | None] | None:
    """Return the numbers of a method on a task, rounded as for ranks; None if it took no part."""
    if values is None:
        return None
    digits = [_DIGITS_OF_LEADS if name.startswith("lead_") else SCORE_DIGITS for name in columns]
    found = [values.get(name) for name in columns]
    return [None if each is None else round(each, n) for each, n in zip(found, digits, strict=True)]


def _versions(tasks: Sequence[ArenaTask]) -> list[str]:
    counts = Counter(task.version for task in tasks)
    return [
        f"{version or 'unknown'} ({number_of(counts[version], 'task')})" for version in versions_of(tasks)
    ]


def _files(tasks: Sequence[ArenaTask]) -> list[_File]:
    """Return a line for each file, under the name that it has in the first source."""
    counts = Counter(task.same_file for task in tasks)
    firsts = {task.same_file: task for task in reversed(tasks)}
    lines = [
        _File(task.file, _KINDS[task.kind], task.classes, task.predictions[:12], counts[name])
        for name, task in firsts.items()
    ]
    return sorted(lines, key=lambda line: (line.name, line.digest))
