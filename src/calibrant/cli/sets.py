"""The command ``calibrant sets``."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import read, with_columns
from calibrant.cli.options import METHODS, AsJson, CalibratorBefore, RuleFile, refuse_both, split_list
from calibrant.errors import InputError
from calibrant.files import shown
from calibrant.outputs import check_targets
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.data.predictions import Predictions
    from calibrant.inputs import Progress
    from calibrant.posthoc.calibrator import Calibrator


@partial(with_columns, without=("identity", "score", "outcome"))
def sets(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="VAL",
            help="Predictions with labels, on which neither the model nor a calibrator was fitted.",
        ),
    ],
    alpha: Annotated[
        float, typer.Option("--alpha", help="Share of sets that may miss the true class.", metavar="SHARE")
    ] = 0.1,
    test: Annotated[
        Path | None, typer.Option("--test", help="Predictions with labels to measure on.", metavar="TEST")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="Method of the sets to save; ordered is for classes in an order: no holes.",
            metavar="lac|aps|raps|ordered",
        ),
    ] = "lac",
    randomised: Annotated[
        bool,
        typer.Option("--randomised", help="Include the last class of aps and raps at random."),
    ] = False,
    by_class: Annotated[
        bool, typer.Option("--by-class", help="Guarantee the coverage of each true class.")
    ] = False,
    calibrator: CalibratorBefore = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            help="Methods to fit on a random half of VAL, names separated by commas or auto; the sets are "
            "fitted on the other half.",
            metavar="NAMES",
            rich_help_panel=METHODS,
        ),
    ] = None,
    include_small: Annotated[
        bool,
        typer.Option(
            "--include-small",
            help="With --by-class: put classes with too few samples into every set. With --by: put all "
            "classes into the sets of groups with too few samples.",
        ),
    ] = False,
    out: RuleFile = None,
    as_json: AsJson = False,
    *,
    columns: "Columns",
) -> None:
    """Fit prediction sets that contain the true class with a guaranteed probability, and compare sizes.

    The probability is at least 1 - alpha for new samples drawn like those of VAL: over all samples, for each
    class (--by-class), or in each group (--by). This does not hold if the model or the calibrator was fitted
    on VAL: use a calibrator fitted on other samples, or let --calibrate fit one on half of VAL. With --unit
    the guarantee holds for the rows of new units, such as new patients. The table shows the sets of all
    methods, before and after calibration; --out saves one.

    Example: calibrant sets val.npz --alpha 0.1 --test test.npz --out sets.safetensors

    Example: calibrant sets val.npz --test test.npz --calibrate temperature --method aps --randomised

    Example: calibrant apply sets.safetensors new.npz --out sets.jsonl
    """
    from calibrant.decisions.conformal import ANY_ORDER, NEVER_DRAWN, SET_METHODS, check_alpha
    from calibrant.decisions.sets import compare_sets
    from calibrant.inputs import check_choice

    refuse_both(by_class=by_class, by=columns.by)
    refuse_both(calibrate=calibrate, calibrator=calibrator)
    wanted = check_choice(method, "--method", SET_METHODS)
    if randomised and wanted in NEVER_DRAWN:
        raise InputError(
            f"--randomised: expected none for {wanted}, got one; add --method aps or --method raps"
        )
    check_alpha(alpha)
    if out is not None:
        given = (path, test, calibrator)
        check_targets([out], [each for each in given if each is not None])
    fitting = read(path, columns)
    held_out = None if test is None else read(test, columns)
    with progress_bar(visible=not as_json) as progress:
        calibrators, rest = _calibrators(fitting, calibrator, calibrate, progress)
        found = compare_sets(
            rest,
            held_out,
            alpha=alpha,
            methods=(*ANY_ORDER, *([] if wanted in ANY_ORDER else [wanted])),
            by="class" if by_class else "group" if columns.by else None,
            calibrators=calibrators,
            small="include" if include_small else "refuse",
            progress=progress,
        )
    choice = found.choose(wanted, randomised=randomised)
    chosen = choice.chosen
    if out is not None:
        chosen.rule.save(out)
    if as_json:
        typer.echo(choice.to_json())
        return
    console = Console()
    console.say(chosen.rule.guarantee, choice.observed((test or path).name), "")
    console.show(choice.to_table())
    console.print()
    console.show(choice.parts_table(columns.by))
    if out is not None:
        console.say(f"Saved in {shown(out)}: {chosen.name} sets of {chosen.scores} scores")


def _calibrators(
    fitting: "Predictions",
    saved: Path | None,
    names: str | None,
    progress: "Progress",
) -> "tuple[dict[str, Calibrator], Predictions]":
    """Return the calibrators to compare by name, and the samples that none of them was fitted on."""
    from calibrant.decisions.sets import calibrate_part
    from calibrant.evaluation.folder import load_bound_calibrator

    made = {} if saved is None else {saved.stem: load_bound_calibrator(saved)}
    rest = fitting
    for name in [] if names is None else split_list(names):
        made[name], rest = calibrate_part(fitting, method=name, progress=progress)
    return made, rest
