"""The command ``calibrant decide``."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import read, with_columns
from calibrant.cli.options import METHODS, AsJson, CalibratorBefore, RuleFile, fast_or, refuse_both
from calibrant.cli.printing import say
from calibrant.errors import InputError
from calibrant.files import shown
from calibrant.outputs import check_targets
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.decisions.costs import Costs
    from calibrant.decisions.rule import Rule
    from calibrant.posthoc.calibrator import Calibrator


@partial(with_columns, boxes_by=("class",))
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
    out: RuleFile = None,
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
    half of VAL. If rows depend on each other, such as several answers to one question, name the column of
    the question with --unit: the guarantee then holds for the rows of new questions.

    --by subject finds a threshold for each subject, with a guarantee that holds in all of them at once.
    Groups in which no threshold shows it are never answered.

    --costs finds the action that costs least by a matrix of costs, and shows what calibration saves.

    Example: calibrant decide val.npz --risk 0.02 --out rule.safetensors

    Example: calibrant decide val.npz --coverage 0.9 --calibrator calibrated/calibrator.safetensors

    Example: calibrant decide answers.csv --risk 0.1 --confidence stated --level 0.9

    Example: calibrant decide answers.csv --risk 0.1 --confidence stated --unit question_id

    Example: calibrant decide answers.csv --risk 0.3 --by race,sex --out rule.safetensors

    Example: calibrant decide detections.json --ground-truth instances.json --risk 0.2

    Example: calibrant decide val.npz --costs costs.csv --ask 2

    Example: calibrant apply rule.safetensors new.npz --out decisions.csv
    """
    from calibrant.decisions.costs import CostResult, act_on_costs
    from calibrant.decisions.group_thresholds import GroupThresholds, find_group_thresholds
    from calibrant.decisions.sets import calibrate_part
    from calibrant.decisions.thresholds import ThresholdTable, find_threshold

    _check_asked(risk, coverage, costs, ask)
    refuse_both(calibrate=calibrate, calibrator=calibrator)
    if out is not None:
        check_targets([out], [each for each in (path, costs, calibrator) if each is not None])
    given, fitted = read(path, columns), _loaded(calibrator)
    compared = calibrate == "auto" if costs is None else fitted is None and calibrate != "none"
    if costs is not None:
        _check_groups(columns.by, fitted, compared=compared)
    with progress_bar(visible=not as_json) as progress:
        if costs is not None:
            matrix, (methods, fast) = _costs(costs, ask), _methods(calibrate)
            found: CostResult | ThresholdTable | GroupThresholds = act_on_costs(
                given,
                matrix,
                calibrator=fitted,
                methods=methods,
                fast=fast,
                level=level,
                progress=progress,
            )
        else:
            if calibrate is not None:
                fitted, given = calibrate_part(given, method=calibrate, progress=progress)
            find = find_threshold if columns.by is None else find_group_thresholds
            found = find(given, risk=risk, coverage=coverage, level=level, calibrator=fitted)
    rule = found.chosen.rule if isinstance(found, ThresholdTable) else found.rule
    if as_json:
        typer.echo(found.to_json())
    else:
        console = Console()
        first, *others = (
            found.to_table().title,
            *(() if isinstance(found, CostResult) else found.sentences[1:]),
        )
        console.say(first, style="bold")
        console.say(*others, "")
        console.show(found.to_table())
        if calibrator is not None:
            note = f"{calibrator.name} must have been fitted on other samples than {path.name}."
            console.say(note, style="dim")
    _save(rule, out, visible=not as_json)


def _check_asked(risk: float | None, coverage: float | None, costs: Path | None, ask: float | None) -> None:
    given = {"--risk": risk, "--coverage": coverage, "--costs": costs}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        got = " and ".join(named) or "none"
        raise InputError(f"--risk: expected exactly one of {', '.join(given)}, got {got}")
    if ask is not None and costs is None:
        raise InputError("--ask: expected together with --costs, got no costs; name their file")


def _check_groups(by: str | None, fitted: "Calibrator | None", *, compared: bool) -> None:
    """Refuse groups beside costs that no calibrator would read; a comparison of methods has one that does."""
    if by is not None and not compared and (fitted is None or fitted.group_names is None):
        raise InputError(
            f"--by: expected a calibrator with a map for each group, as calibrate --by makes one, got "
            f"{'none' if fitted is None else 'one without'}; for actions in each group, run decide on the "
            "rows of that group"
        )


def _loaded(calibrator: Path | None) -> "Calibrator | None":
    from calibrant.evaluation.folder import load_bound_calibrator

    return None if calibrator is None else load_bound_calibrator(calibrator)


def _costs(path: Path, ask: float | None) -> "Costs":
    from calibrant.decisions.costs import read_costs

    costs = read_costs(path)
    return costs if ask is None else costs.with_ask(ask)


def _methods(calibrate: str | None) -> tuple[str | list[str] | None, bool]:
    """Return the methods to compare out of fold, None for no calibration; and whether only quick ones."""
    return (None, False) if calibrate == "none" else fast_or(calibrate or "auto")


def _save(rule: "Rule | None", out: Path | None, *, visible: bool) -> None:
    if out is None:
        return
    if rule is None:
        raise InputError("--out: expected a threshold that has the guarantee, got none; nothing was saved")
    rule.save(out)
    if visible:
        kind = type(rule).__name__
        say(f"{shown(out)}: {kind} saved; apply decides with it, export makes an ONNX graph of it")
