"""Give Calibrant hostile input of every kind, and count how each case ends."""

import sys
import time
import tomllib
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import torch
from packaging.requirements import Requirement

from timing import benchmark_parser, table_head, table_row

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the fuzzers are tests

from tests.fuzz.every import FUZZERS  # noqa: E402
from tests.fuzz.fuzzer import Fuzzer, Tally  # noqa: E402

_ENDS = ("refused", "right", "other", "wrong", "traceback")
_COLUMNS = ("hostile input", "tried", "refused in one sentence", "right", "other", "wrong", "traceback")


@dataclass(frozen=True)
class Result:
    """A fuzzer and how its cases ended."""

    fuzzer: Fuzzer
    tally: Tally

    def cells(self) -> list[str]:
        """Return the row of the table."""
        return [f"{self.fuzzer.part} {self.fuzzer.kind}", *numbers([self.tally])]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every fuzzer, print the table, and say what was wrong."""
    parser = benchmark_parser(__doc__, "two cases of every fifth kind")
    parser.add_argument("--cases", type=int, default=200, help="cases of a cheap kind; others in proportion")
    parser.add_argument("--seed", type=int, default=0, help="which cases")
    parser.add_argument("--only", default="", help="only kinds that contain this text")
    parser.add_argument("--out", type=Path, help="also write the page")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    began = time.perf_counter()
    print(table_head(*_COLUMNS), flush=True)
    results = []
    for fuzzer in FUZZERS[::5] if args.quick else FUZZERS:
        if args.only not in f"{fuzzer.part} {fuzzer.kind}":
            continue
        results.append(Result(fuzzer, fuzzer.count(2 if args.quick else args.cases, at=args.seed)))
        print(table_row(*results[-1].cells()), flush=True)
    print(table_row("all", *numbers(result.tally for result in results)))
    for result in results:
        for case, error in result.tally.failures:
            print(f"{result.fuzzer.part} {result.fuzzer.kind}: {case!r}", file=sys.stderr)
            traceback.print_exception(error, limit=-3)
    if args.out is not None:
        minutes = (time.perf_counter() - began) / 60
        args.out.write_text(page(results, args.cases, args.seed, minutes), encoding="utf-8")


def numbers(tallies: Iterable[Tally]) -> list[str]:
    """Return how many cases were tried and how many ended in each way."""
    known = list(tallies)
    counts = [sum(tally.counts[end] for tally in known) for end in _ENDS]
    return [f"{count:,}" for count in (sum(counts), *counts)]


def page(results: Sequence[Result], cases: int, seed: int, minutes: float) -> str:
    """Return the page with the tables and what they mean."""
    parts = dict.fromkeys(result.fuzzer.part for result in results)
    tables = []
    for part in parts:
        chosen = [result for result in results if result.fuzzer.part == part]
        rows = [table_row(result.fuzzer.kind, *numbers([result.tally])) for result in chosen]
        head = table_head(f"{part} ...", *_COLUMNS[1:])
        tables.append("\n".join([head, *rows]))
    total = table_row("all", *numbers(result.tally for result in results))
    command = f"python benchmarks/hardening.py --cases {cases} --seed {seed} --out docs/results/hardening.md"
    notes = [
        fill(f"- {note}", 110, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        for note in (*_NOTES, dependencies())
    ]
    return "\n".join(
        [
            _HEAD.format(command=command, minutes=minutes),
            table_head("hostile input", *_COLUMNS[1:]),
            total,
            "",
            *notes,
            "",
            "\n\n".join(tables),
            "",
        ]
    )


def dependencies() -> str:
    """Say which packages are pinned, and which are not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    named = {each.name.lower().replace("_", "-") for each in wanted} - {"calibrant"}
    bounded = {each.name.lower() for each in wanted if any(rule.operator != ">=" for rule in each.specifier)}
    locks = [ROOT / "constraints.txt", *sorted((ROOT / "locks").glob("*.txt"))]
    pinned = {
        line.partition("==")[0].strip().lower().replace("_", "-")
        for lock in locks
        for line in lock.read_text(encoding="utf-8").splitlines()
        if "==" in line and not line.startswith("#")
    }
    loose = ", ".join(sorted(named - pinned))
    unpinned = f"these are not: {loose}" if loose else "none is missing"
    upper = ", ".join(sorted(bounded)) or "none of them"
    return (
        f"**Dependencies.** `make demo` and `make test` install the versions that `constraints.txt` and the "
        f"files in `locks/` pin: {len(pinned)} packages. Of the {len(named)} that Calibrant "
        f"names itself, {unpinned}. For users of the library all of them float: `pyproject.toml` has a lower "
        f"bound for each and an upper one for {upper}, because a library that pins cannot be installed "
        "beside another one that does. `make lowest` and `make newest` try both ends. "
        "Known vulnerabilities are not looked up here: that takes a network."
    )


_HEAD = """# Hostile input

Can anything that is given to Calibrant end in a traceback, a wrong number, much memory or a broken file?

```sh
{command}
make fuzz              # the same fuzzers as tests, which stop at the first failure and make it small
```

Run in {minutes:.1f} minutes with one thread. Cases are drawn by Hypothesis; another seed draws others.
"""
_NOTES = (
    "**Refused** is an error of Calibrant with one sentence of one line. **Right** is a result that equals "
    "a slow reference in double precision where there is one (nineteen measures as loops over samples, with "
    "weights), and otherwise one that is finite, or NaN where its documentation says so, and a distribution; "
    "of a damaged file, what the whole one says.",
    "**Other** is a valid result of a file that says something else: where a format has no checksum (CSV, "
    "TSV, JSON Lines, weights of networks, other JSON, TOML), a changed digit is a number "
    "like any other. **Wrong** is all else that comes without an exception: another number, a sentence of "
    "several lines, more memory than ten times the file plus 32 MiB, no end within four minutes, half a "
    "file.",
    "**Changed bytes**: one to three changes of a valid file: a bit is flipped, a byte set, bytes are "
    "deleted, inserted, replaced, repeated or exchanged, or the end is missing. **Changed values**: one "
    "value of a JSON file, or one tensor of a calibrator, is another one or is missing; digests are made "
    "anew, as someone who means harm would.",
    "**A write that fails**: a command that replaces its earlier output is killed (SIGKILL), or its disk is "
    "full, at the k-th of its writes. Afterwards every file is whole, old or new; a folder with files of two "
    "runs is refused; the same command runs again and leaves no temporary files.",
)


if __name__ == "__main__":
    main()
