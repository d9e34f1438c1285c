"""Class frequencies in the terminal: the old ones, the new ones, and how sure they are."""

import numpy as np
from rich.table import Table

from calibrant.cli.terminal.tables import p_value
from calibrant.cli.terminal.text import Console, cell, line
from calibrant.decisions.frequencies import FrequencyShift

# Classes that fit on a screen.
_MOST_CLASSES = 20


def print_shift(console: Console, found: FrequencyShift) -> None:
    """Print the frequencies of the classes that changed most, and what the tests say."""
    table = Table(box=None, pad_edge=False)
    headings = (
        "old\n%",
        "new (EM)\n%",
        f"{found.level:.0%}\ninterval",
        "second opinion\n(BBSE) %",
        "applied\n%",
    )
    table.add_column("class")
    for heading in headings:
        table.add_column(heading, justify="right")
    order = np.argsort(-np.abs(found.frequencies - found.old), kind="stable")
    for place in sorted(order[:_MOST_CLASSES].tolist()):
        table.add_row(
            cell(found.classes[place]),
            *(f"{100 * each[place]:.1f}" for each in (found.old, found.frequencies)),
            f"{100 * found.low[place]:.1f} to {100 * found.high[place]:.1f}",
            *(f"{100 * each[place]:.1f}" for each in (found.second_opinion, found.applied)),
        )
    console.print(table)
    hidden = len(found.classes) - _MOST_CLASSES
    if hidden > 0:
        console.print(line((f"{hidden} more classes, which changed less, are not shown.", "dim")))
    for sentence in sentences(found):
        console.print(line(sentence))


def sentences(found: FrequencyShift) -> list[str]:
    """Say whether the frequencies have changed, and whether the change explains the predictions."""
    shift = (
        f"The class frequencies have changed: {found.distance:.1%} of the samples belong to other classes "
        f"than before (p {_p(found.p_value)})."
        if found.has_shift()
        else f"There is no evidence that class frequencies have changed (p {_p(found.p_value)}); the "
        "correction is drawn back towards the old ones."
    )
    warning = (
        f"Warning: other frequencies do not explain the new confidences (p {_p(found.fit_p_value)}). Samples "
        "of the same class look different now, so the frequencies and the correction cannot be trusted."
    )
    return [shift] if found.is_explained() else [shift, warning]


def _p(value: float) -> str:
    shown = p_value(value)
    return shown.replace("<", "< ") if shown.startswith("<") else f"= {shown}"
