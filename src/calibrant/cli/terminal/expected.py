"""What to expect without labels, in the terminal: estimates with intervals, and whether to trust them."""

from rich.table import Table

from calibrant.cli.terminal.tables import p_value
from calibrant.cli.terminal.text import Console, line
from calibrant.decisions.expected import Estimate, ExpectedQuality

_COVERAGES = (0.5, 0.8, 0.9)


def print_expected(console: Console, found: ExpectedQuality, *, title: str) -> None:
    """Print the estimates, and whether they can be trusted."""
    console.print(line((title, "bold"), f": {found.n_unlabelled:,} predictions without labels"))
    table = Table(box=None, pad_edge=False)
    table.add_column("after calibration")
    for heading in ("estimate", f"{found.level:.0%} interval", f"on {found.n_labelled:,} labelled"):
        table.add_column(heading, justify="right")
    table.add_row("accuracy", *_percent(found.accuracy), f"{found.labelled_accuracy:.2%}")
    brier = found.brier
    table.add_row(
        "Brier score",
        f"{brier.value:.4f}",
        f"{brier.low:.4f} to {brier.high:.4f}",
        f"{found.labelled_brier:.4f}",
    )
    for coverage in _COVERAGES:
        share = f"error rate of the surest {coverage:.0%}"
        table.add_row(share, *_percent(found.risk.at(coverage)), "")
    console.print(table)
    console.print(line((verdict(found), "" if found.trusted else "bold red")))


def verdict(found: ExpectedQuality) -> str:
    """Say whether the estimates can be trusted, and why not."""
    change = found.change
    if found.trusted:
        return (
            f"Confidences are distributed as on the labelled samples (distance {change.distance:.3f}, p = "
            f"{p_value(change.p_value)}); nothing speaks against the estimate."
        )
    reasons = []
    if change.confidence_p_value <= found.alpha / (1 if change.class_p_value is None else 2):
        reasons.append(f"confidences have changed (distance {change.distance:.3f})")
    if change.class_p_value is not None and change.class_p_value <= found.alpha / 2:
        reasons.append(
            f"predicted classes have changed ({change.class_distance:.1%} of them; more {change.grown})"
        )
    return (
        f"Warning: {' and '.join(reasons)}, so the estimate cannot be trusted; label some of these samples."
    )


def _percent(estimate: Estimate) -> tuple[str, str]:
    return f"{estimate.value:.2%}", f"{estimate.low:.2%} to {estimate.high:.2%}"
