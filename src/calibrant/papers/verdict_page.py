"""The verdicts on the papers' claims as text: a page of Markdown, or plain values for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from calibrant.papers.quantities import quantity
from calibrant.papers.verdicts import Finding, Judged, Results, outcome_counts

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

**Where the papers speak.** The papers about training speak of networks that have learned their training set
by heart and are overconfident. So a task counts only if cross-entropy there has at least 99 % training
accuracy and a mean test confidence at least 5 points above its accuracy. The table below shows both numbers
for every task; comparisons on other tasks are illustrations and count for nothing. So are those of earlier
rows whose training accuracy was not recorded.

**The rule.** A claim names what it is about and its opponents. On each task, by each measure and with each
opponent, the gain is compared in pairs, run by run and on the same draws of the test samples; its interval
(95 %) has the variance of both, over test samples and over seeds. There are four outcomes: *better*, *worse*,
*equal* within a margin below which nobody cares, or one *cannot tell*. The margins: 0.5 points of ECE and
other top-label errors and of AUROC between classes, 1 point of accuracy and of AUROC for mistakes and for
out-of-distribution samples, a tenth of classwise errors, 0.01 nats of entropy and divergence and 0.001 of
cosine on training samples; other measures have none. The p-values of all comparisons of a claim are corrected
by Holm; five per cent is the level. A claim of being better is contradicted by *worse* and by *equal*.
If more than half of the comparisons cannot tell, the claim *is open*; otherwise it *holds* if all decided
comparisons agree, *is contradicted* if none does, and else *holds in k of m* decided ones. Experiments that
keep no draws of test samples, such as those on theory, have the variance over seeds alone.

*As printed* is the procedure of the paper, *our default* is what Calibrant does unless told otherwise, where
the two differ. In brackets: comparisons that are better, worse, equal, and that cannot tell.
"""


def to_page(judged: Sequence[Judged], results: Sequence[Results]) -> str:
    """Return the page: the tasks, then for each paper a table of verdicts, and every comparison."""
    return "\n".join(
        [_HEAD, _tasks(results), _summary(judged)]
        + [_section(paper, own) for paper, own in _by_paper(judged).items()]
    )


def verdict_values(judged: Iterable[Judged]) -> list[dict[str, Any]]:
    """Return the verdicts and findings as plain values, one mapping per claim."""
    return [
        {
            "paper": each.paper,
            "number": each.number,
            "claim": each.claim.text,
            "where": each.claim.where,
            "headline": each.claim.headline,
            "verdict": each.verdict,
            "our_default": each.own_verdict,
            "tested": list(each.claim.tested),
            "comment": each.claim.comment,
            "findings": [asdict(finding) | {"counts": finding.counts} for finding in each.printed],
            "our_findings": [asdict(finding) | {"counts": finding.counts} for finding in each.ours],
        }
        for each in judged
    ]


def with_count(verdict: str | None, findings: Sequence[Finding]) -> str:
    """Return a verdict with the numbers of outcomes: better, worse, equal, cannot tell."""
    if verdict is None:
        return ""
    count = outcome_counts(findings)
    if not count:
        return verdict
    return (
        f"{verdict} ({', '.join(str(count[name]) for name in ('better', 'worse', 'equal', 'cannot tell'))})"
    )


def undecided_share(judged: Iterable[Judged]) -> tuple[int, int]:
    """Return how many comparisons of trained networks that count cannot tell, and how many there are."""
    outcomes = [
        finding.outcome
        for each in judged
        for finding in (*each.printed, *each.ours)
        if finding.regime is not None and finding.counts
    ]
    return outcomes.count("cannot tell"), len(outcomes)


def _by_paper(judged: Iterable[Judged]) -> dict[str, list[Judged]]:
    papers: dict[str, list[Judged]] = {}
    for each in judged:
        papers.setdefault(each.paper, []).append(each)
    return papers


def _tasks(results: Iterable[Results]) -> str:
    lines = [
        "## Tasks on which networks are trained\n",
        "| experiment | task | training accuracy % | confidence - accuracy, points | counts |",
        "|---|---|---|---|---|",
    ]
    hours = 0.0
    for each in results:
        hours += each.hours if each.trains else 0.0
        for task, regime in each.regimes().items():
            learned = (
                "not recorded" if regime.train_accuracy is None else f"{100 * regime.train_accuracy:.2f}"
            )
            cells = [f"`bench run {each.name}`", task, learned, f"{100 * regime.overconfidence:.1f}"]
            lines.append(f"| {' | '.join([*cells, 'yes' if regime.counts else 'no'])} |")
    lines += ["", f"All runs of these experiments together took {hours:.1f} hours of one core.\n"]
    return "\n".join(lines)


def _summary(judged: Sequence[Judged]) -> str:
    unsure, every = undecided_share(judged)
    share = f" ({100 * unsure / every:.0f} %)" if every else ""
    return f"Of {every} comparisons of trained networks that count, {unsure}{share} cannot tell.\n"


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
        text = f"**{claim.text}**" if claim.headline else claim.text
        cells = [text, claim.where, printed, with_count(each.own_verdict, each.ours), claim.comment]
        lines.append(f"| {each.number} | {' | '.join(cells)} |")
    lines += ["", *_evidence("The comparisons that count:\n", judged, counts=True)]
    return "\n".join([*lines, *_evidence("Illustrations:\n", judged, counts=False)])


def _evidence(title: str, judged: Sequence[Judged], *, counts: bool) -> list[str]:
    """Return a table of all comparisons that count, or of all others."""
    lines = []
    for each in judged:
        for variant, findings in (("as printed", each.printed), ("our default", each.ours)):
            lines += [
                f"| {each.number} | {variant} | {' | '.join(_cells(finding))} |"
                for finding in findings
                if finding.counts is counts
            ]
    if not lines:
        return []
    head = [
        "claim",
        "variant",
        "experiment",
        "task",
        "measure",
        "value",
        "against",
        "runs",
        "gain",
        "outcome",
    ]
    return [title, f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines, ""]


def _cells(finding: Finding) -> list[str]:
    unit = quantity(finding.measure)
    # Adding 0 turns the -0 of a difference into 0.
    gain = " to ".join(unit.text(each + 0.0) for each in (finding.low, finding.high))
    other = (
        f"{unit.text(finding.other_mean)} of {finding.other}"
        if finding.other
        else unit.text(finding.other_mean)
    )
    place = [f"`bench run {finding.experiment}`", finding.task, unit.heading]
    return [*place, unit.text(finding.mean), other, str(finding.runs), gain, finding.outcome]
