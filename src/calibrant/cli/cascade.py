"""The command ``calibrant cascade``."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import read, tell_dropped, with_columns
from calibrant.cli.options import OUTPUT, AsJson, Seed, split_list
from calibrant.cli.printing import say
from calibrant.errors import InputError, did_you_mean
from calibrant.files import shown
from calibrant.outputs import check_targets
from calibrant.show.terminal import Console

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.data.predictions import Predictions
    from calibrant.decisions.cascades import Cascade


@partial(with_columns, without=("by",))
def cascade(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Answers of each model to the same questions, in the order in which they are asked.",
        ),
    ],
    cost: Annotated[
        str | None,
        typer.Option(
            "--cost",
            help="What asking each model costs, in their order: 1,20. With --models also their names: "
            "small=1,large=20.",
            metavar="COSTS",
        ),
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option("--risk", help="Accepted share of wrong answers among all answers.", metavar="SHARE"),
    ] = None,
    person: Annotated[
        float | None,
        typer.Option("--person", help="What asking a person costs, who comes last and is right."),
    ] = None,
    level: Annotated[
        float, typer.Option("--level", help="Probability of the guarantee and of intervals.")
    ] = 0.95,
    models: Annotated[
        str | None,
        typer.Option(
            "--models",
            help="Column with the model of each row, if one file has all models.",
            metavar="COLUMN",
        ),
    ] = None,
    rule: Annotated[
        Path | None,
        typer.Option(
            "--apply",
            help="A cascade that was saved by --out: write to --out which model answers each question. "
            "Later models may lack questions, or be left out.",
            metavar="RULE",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="File for the rule, which --apply and export read; with --apply for its decisions.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="The frontier of cost against accuracy: .pdf, .svg or .png.",
            metavar="FIGURE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    *,
    columns: "Columns",
) -> None:
    """Find which questions a cheap model may answer, and which to pass on to a dearer one or a person.

    The first model is asked about every question. If its confidence is below a threshold, the next model
    is asked, and so on. The thresholds are the cheapest with which at most --risk of all answers are wrong on
    new questions, with a probability of 95 % (--level). The table shows what each model alone would give, and
    the frontier of cost against accuracy.

    --id names the column by which questions are matched; without it, rows are matched in their order. If
    questions have several answers of each model, name the question with --unit too.

    Example: calibrant cascade cheap.parquet dear.parquet --id question --cost 1,20 --risk 0.05

    Example: calibrant cascade cheap.csv dear.csv --id question --cost 1,20 --person 300 --risk 0.02

    Example: calibrant cascade answers.csv --models model --id question --cost small=1,large=20 --risk 0.1

    Example: calibrant cascade cheap.csv dear.csv --id question --apply rule.safetensors --out decided.csv
    """
    from calibrant.decisions.cascades import cascade_for_risk

    if rule is not None:
        _apply(rule, paths, out, {"--cost": cost, "--risk": risk, "--models": models}, columns)
        return
    if cost is None:
        raise InputError("--cost: expected the cost of each model, got none; or name a rule with --apply")
    if risk is None:
        raise InputError("--risk: expected a share of wrong answers, got none; or name a rule with --apply")
    _check_written(out, figure, paths)
    names, prices = _prices(cost)
    given = _files(paths, names, columns) if models is None else _one_file(paths, models, names, columns)
    found = cascade_for_risk(given, prices, risk, person=person, level=level, seed=seed)
    if as_json:
        typer.echo(found.to_json())
    else:
        console = Console()
        first, *others = found.sentences
        console.say(first, style="bold")
        console.say(*others, "")
        console.show(found.to_table())
        console.print()
        console.show(found.tables[0])
    _save(found, out, figure, visible=not as_json)


def _check_written(out: Path | None, figure: Path | None, paths: list[Path]) -> None:
    check_targets([each for each in (out, figure) if each is not None], paths)
    if figure is not None:
        from calibrant.plots.display import check_format

        check_format(figure)


def _save(found: "Cascade", out: Path | None, figure: Path | None, *, visible: bool) -> None:
    """Write the figure and the rule, and say so."""
    lines = []
    if figure is not None:
        from calibrant.plots.decided import CascadeDisplay

        CascadeDisplay(found).save(figure)
        lines.append(f"{shown(figure)}: cost against accuracy")
    if out is not None:
        if found.rule is None:
            raise InputError(
                "--out: expected thresholds that keep the guarantee, got none; nothing was saved"
            )
        found.rule.save(out)
        lines.append(
            f"{shown(out)}: CascadeRule saved; --apply decides with it, export makes an ONNX graph of it"
        )
    for line in lines if visible else ():
        say(line)


def _prices(cost: str) -> tuple[list[str], list[float]]:
    """Return the names of the models, if they are given, and their costs."""
    pairs = [each.rpartition("=") for each in split_list(cost)]
    names = [name.strip() for name, equals, _ in pairs if equals]
    if names and len(names) < len(pairs):
        raise InputError(f"--cost: expected a name for each cost or for none, got {cost!r}")
    try:
        return names, [float(value) for _, _, value in pairs]
    except ValueError:
        raise InputError(f"--cost: expected numbers separated by commas, as in 1,20, got {cost!r}") from None


def _files(paths: list[Path], names: list[str], columns: "Columns") -> "dict[str, Predictions]":
    """Return the answers of each file, under the name of the file."""
    if names:
        raise InputError("--cost: expected names only together with --models, got some; give numbers alone")
    stems = [path.stem for path in paths]
    given = [path.stem if stems.count(path.stem) == 1 else str(path) for path in paths]
    if len(set(given)) < len(given):
        raise InputError("FILE: expected a different file for each model, got one twice")
    return {name: read(path, columns) for name, path in zip(given, paths, strict=True)}


def _one_file(paths: list[Path], by: str, names: list[str], columns: "Columns") -> "dict[str, Predictions]":
    """Return the answers of the named models of one file."""
    from calibrant.evaluation.models import split_by_group

    if not columns.ids:
        raise InputError("--models: expected together with --id, which names the questions, got none")
    if len(paths) > 1:
        raise InputError(f"FILE: expected one file with --models, got {len(paths)}")
    if not names:
        raise InputError("--cost: expected the names of the models, as in small=1,large=20, got none")
    every = split_by_group(read(paths[0], replace(columns, groups=by), judged=False))
    for name in (each for each in names if each not in every):
        raise InputError(
            f"--cost: expected models of {paths[0].name}, got {name!r}{did_you_mean(name, every)}"
        )
    return {name: every[name] for name in names}


def _apply(
    rule: Path, paths: list[Path], out: Path | None, others: "dict[str, object]", columns: "Columns"
) -> None:
    from calibrant.streams.applying import apply_cascade

    for option in (name for name, value in others.items() if value is not None):
        raise InputError(f"{option}: expected none with --apply, whose rule has its own, got one")
    if out is None:
        raise InputError("--out: expected a file for the decisions of --apply, got none")
    decided = apply_cascade(rule, paths, out, columns, tell_dropped)
    say(f"{shown(out)}: {decided.n:,} decisions by the rule of {rule.name}")
