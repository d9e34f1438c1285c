"""Prediction sets in the terminal: the guarantee, what was observed, and a table of methods."""

import json
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from calibrant.cli.terminal.text import Console, cell, line
from calibrant.decisions.conformal import Method
from calibrant.decisions.set_measures import SetRow
from calibrant.decisions.sets import RAW, SetComparison, SetResult

# Rows of classes or groups: all that have a guarantee of their own up to a screen or two, else the worst.
_MOST_ROWS, _WORST = 50, 5


def chosen_of(found: SetComparison, method: Method, *, randomised: bool) -> SetResult:
    """Return the sets that were asked for, from the scores of the last calibrator if there is one."""
    last = found.results[-1].scores
    return next(
        each
        for each in found.results
        if (each.scores, each.method, each.randomised) == (last, method, randomised)
    )


def sets_json(found: SetComparison, chosen: SetResult) -> str:
    """Return one JSON object."""
    law = None if found.by or found.n_test is None else chosen.rule.law(found.n_test).to_dict()
    named = {"scores": chosen.scores, "method": chosen.method, "randomised": chosen.randomised}
    answer = {"guarantee": chosen.rule.guarantee, "chosen": named, "law": law, **found.to_dict()}
    return json.dumps(answer, allow_nan=False)


def print_sets(
    console: Console, found: SetComparison, chosen: SetResult, *, title: str, by: str | None
) -> None:
    """Print the guarantee, what was observed, a table of all sets, and the classes or groups."""
    console.print(line(chosen.rule.guarantee))
    console.print(line(_observed(found, chosen, title)))
    console.print()
    console.print(_methods(found, chosen))
    change = _change(found, chosen)
    if change:
        console.print(line(change))
    console.print()
    groups = found.by == "group"
    rows = chosen.measures.groups if groups else chosen.measures.classes
    most = _WORST if found.by is None and len(rows) > _WORST else _MOST_ROWS
    name = (by or "group") if groups else "class"
    console.print(_parts(rows[:most], name))
    if len(rows) > most:
        more = "" if found.by else "; --by-class guarantees the coverage of each"
        console.print(line((f"the lowest {most} of {len(rows):,}; all of them: --json{more}", "dim")))
    if found.n_test is None:
        console.print(
            line(
                ("The coverage is that of the samples of the fit, about right by construction: ", "dim"),
                ("--test measures it.", "dim"),
            )
        )


def _observed(found: SetComparison, chosen: SetResult, title: str) -> str:
    measured = chosen.measures
    text = (
        f"On {title} {_percent(measured.coverage)} % of {measured.n:,} sets ({chosen.name}, {chosen.scores} "
        f"scores) hold it, with {measured.mean_size:.2f} classes on average."
    )
    if found.by is None and found.n_test is not None:
        law = chosen.rule.law(found.n_test)
        text += (
            f" Of fits on {law.n:,} samples, 99 % have a coverage of {_percent(law.low)} to "
            f"{_percent(law.high)} %."
        )
    if measured.empty > 0 and not chosen.rule.allow_empty:
        text += (
            f" {_percent(measured.empty)} % of the sets would be empty and hold the most probable class, "
            "which adds to the coverage."
        )
    return text


def _methods(found: SetComparison, chosen: SetResult) -> Table:
    table = _table("  scores", "method", "coverage\n%", "mean\nsize", "one class\n%", "empty\n%")
    for each in found.results:
        measured = each.measures
        mark = "→ " if each is chosen else "  "
        table.add_row(
            line(mark, each.scores),
            each.name,
            _percent(measured.coverage),
            f"{measured.mean_size:.2f}",
            _percent(measured.single),
            _percent(measured.empty),
        )
    table.columns[1].justify = "left"
    return table


def _change(found: SetComparison, chosen: SetResult) -> str:
    """Say how calibration and randomisation change the size of the sets of the chosen method."""
    sizes = {(each.scores, each.method, each.randomised): each.measures.mean_size for each in found.results}
    size, text = chosen.measures.mean_size, ""
    if chosen.scores != RAW:
        before = sizes[RAW, chosen.method, chosen.randomised]
        how = "wider" if size > before else "narrower"
        text = (
            f"After {chosen.scores} {chosen.name} sets are {how}: {size:.2f} classes, {before:.2f} before. "
        )
    drawn = sizes.get((chosen.scores, chosen.method, True), size)
    if drawn < size:
        text += f"--randomised gives {drawn:.2f} classes on average."
    return text.strip()


def _parts(rows: Sequence[SetRow], name: str) -> Table:
    table = _table(name, "samples", "coverage\n%", "95 %\ninterval", "mean\nsize")
    for row in rows:
        table.add_row(
            cell(row.name),
            f"{row.n:,}",
            _percent(row.coverage),
            f"{_percent(row.low)} to {_percent(row.high)}",
            f"{row.mean_size:.2f}",
        )
    return table


def _table(first: str, *others: str) -> Table:
    """Return a table whose first column gives way to the numbers if a line is too short."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(line(first), overflow="ellipsis")
    for heading in others:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
