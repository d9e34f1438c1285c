"""The verdicts on the papers' claims as text: a page of Markdown, or plain values for programs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from calibrant.papers.quantities import quantity
from calibrant.papers.verdicts import ClaimVerdict, Finding, Judged

_TITLES = {
    "smart": "SMART (post-hoc, margin-aware temperature)",
    "seca": "SECA (loss)",
    "adafocal": "AdaFocal (loss)",
    "selective_risk": "Selective risk (AU loss)",
    "refcal": "RefCal (framework)",
    "calarena": "Post-hoc calibration at large (CalArena)",
}

_HEAD = """# What reproduces

Which claims of the papers hold in our experiments?

```sh
calibrant bench verdicts docs/results/rows                                    # the verdicts
calibrant bench verdicts docs/results/rows --format markdown > docs/results/reproduces.md
```

This page is the output of the second command. Every verdict is computed from the rows in [rows/](rows/),
which `calibrant bench run` wrote, by one rule; only the remarks are written by hand. The networks and data
are small: a claim that does not hold here may hold in the papers' settings, and vice versa. The `full`
presets have the papers' own settings and have **not** been run.

**The rule.** On each task and for each measure, the gain is how much better the method of the claim is than
what it is compared with, seed by seed. Its interval is the paired 95 % t-interval over the seeds. The claim
*holds* there if the interval is above 0, *does not hold* if it is below 0, and else one *cannot tell*; of
several opponents the strongest decides. Claims of equality or of "no worse" name the margin that takes the
place of 0. A claim holds if it holds in every comparison, and does not hold if it does not in some and holds
in none; if it holds in some, it holds *partly*; if none is decided, one cannot tell. Three seeds, and
on all of CIFAR-10 two, decide little: only large and even gains.

*As printed* is the procedure of the paper, *our default* is what Calibrant does unless told otherwise, where
the two differ. The counts are comparisons that hold, do not hold, and are undecided.
"""


def to_page(judged: Sequence[Judged]) -> str:
    """Return the page: for each paper a table of verdicts, and the comparisons behind them."""
    return "\n".join([_HEAD, *(_section(paper, own) for paper, own in _by_paper(judged).items())])


def verdict_values(judged: Iterable[Judged]) -> list[dict[str, Any]]:
    """Return the verdicts and findings as plain values, one mapping per claim."""
    return [
        {
            "paper": each.paper,
            "number": each.number,
            "claim": each.claim.text,
            "where": each.claim.where,
            "verdict": each.verdict,
            "our_default": each.own_verdict,
            "tested": list(each.claim.tested),
            "comment": each.claim.comment,
            "findings": [asdict(finding) for finding in each.printed],
            "our_findings": [asdict(finding) for finding in each.ours],
        }
        for each in judged
    ]


def with_count(verdict: ClaimVerdict | None, findings: Sequence[Finding]) -> str:
    """Return a verdict with the number of comparisons that hold, do not hold, and are undecided."""
    if verdict is None:
        return ""
    if not findings:
        return verdict
    count = Counter(finding.verdict for finding in findings)
    return f"{verdict} ({count['holds']}, {count['does not hold']}, {count['cannot tell']})"


def _by_paper(judged: Iterable[Judged]) -> dict[str, list[Judged]]:
    papers: dict[str, list[Judged]] = {}
    for each in judged:
        papers.setdefault(each.paper, []).append(each)
    return papers


def _section(paper: str, judged: Sequence[Judged]) -> str:
    lines = [
        f"## {_TITLES[paper]}\n",
        "| | claim | where | as printed | our default | remark |",
        "|---|---|---|---|---|---|",
    ]
    for each in judged:
        claim = each.claim
        files = dict.fromkeys(name.partition("::")[0] for name in claim.tested)
        tests = ", ".join(f"`{file}`" for file in files)
        printed = f"tested in {tests}" if tests else f"**{with_count(each.verdict, each.printed)}**"
        cells = [claim.text, claim.where, printed, with_count(each.own_verdict, each.ours), claim.comment]
        lines.append(f"| {each.number} | {' | '.join(cells)} |")
    lines += ["", "The comparisons:\n", *_evidence(judged)]
    return "\n".join(lines) + "\n"


def _evidence(judged: Sequence[Judged]) -> list[str]:
    lines = [
        "| claim | experiment | task | measure | as printed: value, gain | our default: value, gain |",
        "|---|---|---|---|---|---|",
    ]
    for each in judged:
        printed = {_place(finding): finding for finding in each.printed}
        ours = {_place(finding): finding for finding in each.ours}
        for place in dict.fromkeys([*printed, *ours]):
            experiment, task, measure = place
            shown = [_shown(found[place]) if place in found else "" for found in (printed, ours)]
            cells = [f"`bench run {experiment}`", task, quantity(measure).heading, *shown]
            lines.append(f"| {each.number} | {' | '.join(cells)} |")
    return lines


def _place(finding: Finding) -> tuple[str, str, str]:
    return finding.experiment, finding.task, finding.measure


def _shown(finding: Finding) -> str:
    unit = quantity(finding.measure)
    values = f"{unit.text(finding.mean)} against {unit.text(finding.other_mean)}"
    # Adding 0 turns the -0 of a difference into 0.
    gain = " to ".join(unit.text(each + 0.0) for each in (finding.low, finding.high))
    values += f" of {finding.other}, {gain}" if finding.other else f", {gain}"
    return f"{values}: {finding.verdict}"
