"""The command ``calibrant decide``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.columns import read, with_columns
from calibrant.cli.options import METHODS, OUTPUT, AsJson, CalibratorBefore, Seed, fast_or, refuse_both
from calibrant.cli.terminal.text import Console, line, say
from calibrant.errors import InputError
from calibrant.outputs import check_targets
from calibrant.progress import progress_bar

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.data.predictions import Predictions
    from calibrant.decisions.costs import Costs
    from calibrant.decisions.rule import Rule
    from calibrant.inputs import Progress
    from calibrant.posthoc.calibrator import Calibrator


@with_columns
def decide(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="VAL",
            help="Predictions with labels, on which neither the model nor the calibrator was fitted.",
        ),
    ],
    risk: Annotated[
        float | None,
        typer.Option("--risk", help="Accepted share of wrong answers.", metavar="SHARE"),
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option("--coverage", help="Share of the samples to answer.", metavar="SHARE"),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(
            "--costs",
            help="CSV file of costs: a row for each true class, a column for each action.",
            metavar="COSTS.csv",
        ),
    ] = None,
    ask: Annotated[
        float | None,
        typer.Option("--ask", help="With --costs: the cost of a further action, asking a person."),
    ] = None,
    level: Annotated[
        float, typer.Option("--level", help="Probability of the guarantee and of intervals.")
    ] = 0.95,
    calibrator: CalibratorBefore = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            help="Method to fit on a random half of VAL; the other half finds the threshold. With --costs: "
            "methods to compare out of fold on all of VAL: auto (the default), fast, names, or none.",
            metavar="NAMES",
            rich_help_panel=METHODS,
        ),
    ] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="File for the rule; apply and export read it.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
    *,
    columns: "Columns",
) -> None:
    """Find when to answer and when to abstain, with a guarantee; or which action costs least.

    --risk 0.02 finds the confidence threshold that answers most samples, with at most 2 % wrong answers on
    new data. This holds with a probability of 95 % (--level). --coverage 0.9
    answers 90 % of the samples, and bounds the share of wrong answers.

    Both guarantees hold for new samples drawn like those of VAL. They do not hold if the model or the
    calibrator was fitted on VAL: use a calibrator fitted on other samples, or let --calibrate fit one on
    half of VAL.

    --costs finds the action that costs least by a matrix of costs, and shows what calibration saves.

    Example: calibrant decide val.npz --risk 0.02 --out rule.safetensors

    Example: calibrant decide val.npz --coverage 0.9 --calibrator calibrated/calibrator.safetensors

    Example: calibrant decide answers.csv --risk 0.1 --confidence stated --level 0.9

    Example: calibrant decide val.npz --costs costs.csv --ask 2

    Example: calibrant apply rule.safetensors new.npz --out decisions.csv
    """
    _check_asked(risk, coverage, costs, ask)
    refuse_both(calibrate=calibrate, calibrator=calibrator)
    if out is not None:
        check_targets([out], [each for each in (path, costs, calibrator) if each is not None])
    given, fitted = read(path, columns), _loaded(calibrator)
    console = None if as_json else Console()
    rule: Rule | None
    with progress_bar(visible=not as_json) as progress:
        if costs is not None:
            matrix, (methods, fast) = _costs(costs, ask), _methods(calibrate)
            rule, answer = _by_costs(
                given, matrix, console, fitted, methods, fast=fast, level=level, seed=seed, progress=progress
            )
        else:
            if calibrate is not None:
                fitted, given = _fit_part(given, calibrate, seed, progress)
            rule, answer = _by_threshold(given, risk, coverage, console, fitted, level)
    if console is None:
        typer.echo(json.dumps(answer, allow_nan=False))
    elif calibrator is not None:
        note = f"{calibrator.name} must have been fitted on other samples than {path.name}."
        console.print(line((note, "dim")))
    _save(rule, out, console)


def _check_asked(risk: float | None, coverage: float | None, costs: Path | None, ask: float | None) -> None:
    given = {"--risk": risk, "--coverage": coverage, "--costs": costs}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        got = " and ".join(named) or "none"
        raise InputError(f"--risk: expected exactly one of {', '.join(given)}, got {got}")
    if ask is not None and costs is None:
        raise InputError("--ask: expected together with --costs, got no costs; name their file")


def _loaded(calibrator: Path | None) -> "Calibrator | None":
    from calibrant.evaluation.folder import load_bound_calibrator

    return None if calibrator is None else load_bound_calibrator(calibrator)


def _fit_part(
    given: "Predictions", method: str, seed: int, progress: "Progress"
) -> "tuple[Calibrator, Predictions]":
    """Fit a method on half of the samples; return the calibrator and the other samples."""
    from calibrant.decisions.sets import calibrate_part

    return calibrate_part(given, method=method, seed=seed, progress=progress)


def _by_threshold(
    given: "Predictions",
    risk: float | None,
    coverage: float | None,
    console: Console | None,
    calibrator: "Calibrator | None",
    level: float,
) -> "tuple[Rule | None, dict[str, Any]]":
    from calibrant.cli.terminal.decide import print_threshold
    from calibrant.decisions.thresholds import (
        RISKS,
        threshold_for_coverage,
        threshold_for_risk,
        thresholds_for_risks,
    )

    if risk is not None:
        found = threshold_for_risk(given, risk, level=level, calibrator=calibrator)
    else:
        assert coverage is not None
        found = threshold_for_coverage(given, coverage, level=level, calibrator=calibrator)
    risks = sorted({*RISKS, *([] if risk is None else [risk])})
    table = thresholds_for_risks(given, risks, level=level, calibrator=calibrator)
    if console is not None:
        print_threshold(console, found, table)
    return found.rule, {**found.to_dict(), "risks": [each.to_dict() for each in table]}


def _by_costs(
    given: "Predictions",
    costs: "Costs",
    console: Console | None,
    calibrator: "Calibrator | None",
    methods: str | list[str] | None,
    **options: Any,  # noqa: ANN401  # those of act_on_costs
) -> "tuple[Rule, dict[str, Any]]":
    from calibrant.cli.terminal.decide import print_costs
    from calibrant.decisions.costs import act_on_costs

    found = act_on_costs(given, costs, calibrator=calibrator, methods=methods, **options)
    if console is not None:
        print_costs(console, found)
    return found.rule, found.to_dict()


def _costs(path: Path, ask: float | None) -> "Costs":
    from calibrant.decisions.costs import read_costs

    costs = read_costs(path)
    return costs if ask is None else costs.with_ask(ask)


def _methods(calibrate: str | None) -> tuple[str | list[str] | None, bool]:
    """Return the methods to compare out of fold, None for no calibration; and whether only quick ones."""
    return (None, False) if calibrate == "none" else fast_or(calibrate or "auto")


def _save(rule: "Rule | None", out: Path | None, console: Console | None) -> None:
    if out is None:
        return
    if rule is None:
        raise InputError("--out: expected a threshold that has the guarantee, got none; nothing was saved")
    rule.save(out)
    if console is not None:
        say(f"{out}: {type(rule).__name__} saved; apply decides with it, export makes an ONNX graph of it")
