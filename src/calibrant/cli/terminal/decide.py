"""Thresholds and actions in the terminal."""

from collections.abc import Sequence

from rich.table import Table

from calibrant.cli.terminal.text import Console, cell, line
from calibrant.decisions.costs import BreakEven, CostResult
from calibrant.decisions.thresholds import Threshold


def print_threshold(console: Console, chosen: Threshold, others: Sequence[Threshold]) -> None:
    """Print the threshold in a sentence, and what other risks would answer in a table."""
    console.print(line((f"{chosen.sentence}.", "bold")))
    if chosen.rule is not None:
        console.print(
            line(
                f"At least {_percent(chosen.coverage_low)} of new cases are answered, with "
                f"{_percent(chosen.level)} probability, if they are drawn like these {chosen.n:,}."
            )
        )
    if others:
        console.print()
        console.print(_thresholds(others), highlight=False)
        console.print(line(("Each row has its guarantee for a risk that is chosen in advance.", "dim")))


def _thresholds(found: Sequence[Threshold]) -> Table:
    table = _table("at most wrong", "confidence at least", "answered", "observed wrong")
    for each in found:
        if each.rule is None:
            cells = ["none", "", ""]
        else:
            observed = f"{_percent(each.observed)} of {each.answered:,}"
            cells = [f"{each.threshold:.14g}", _percent(each.coverage), observed]
        table.add_row(_percent(each.risk), *cells)
    return table


def print_costs(console: Console, found: CostResult) -> None:
    """Print what acting costs in a sentence, then before and after calibration in a table."""
    console.print(line((f"{found.sentence}.", "bold")))
    saved = found.difference
    if saved is not None:
        console.print(
            line(
                f"Calibration changes the cost by {saved.value:+.4g} a sample, "
                f"{_percent(found.level)} interval {saved.low:+.4g} to {saved.high:+.4g}."
            )
        )
    console.print()
    console.print(_costs(found), highlight=False)
    if found.break_even is not None:
        console.print()
        console.print(line(_break_even(found.break_even)))


def _costs(found: CostResult) -> Table:
    sides = {"as it is": found.before} | ({} if found.after is None else {str(found.method): found.after})
    table = _table("", *sides)
    for name, shown in {
        "predicted cost": [f"{side.predicted:.4g}" for side in sides.values()],
        "observed cost": [f"{side.observed:.4g}" for side in sides.values()],
        f"{_percent(found.level)} interval": [
            f"{side.low:.4g} to {side.high:.4g}" for side in sides.values()
        ],
    }.items():
        table.add_row(name, *shown)
    for action in found.actions:
        table.add_row(cell(action), *(_percent(side.shares[action]) for side in sides.values()))
    return table


def _break_even(found: BreakEven) -> str:
    asked = "" if found.asked is None else f"; here {_percent(found.asked)} are asked"
    return (
        f"Asking a person pays for every sample at a cost of up to {found.always:.4g}, for half of them up "
        f"to {found.shares[0.5]:.4g}, for a tenth up to {found.shares[0.1]:.4g}, and for none from "
        f"{found.never:.4g} on{asked}."
    )


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
