"""The command ``calibrant evaluate``."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.columns import read, with_columns
from calibrant.cli.options import AsJson, Ood, Stream, split_list, word_or_list
from calibrant.errors import InputError
from calibrant.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calibrant.data.columns import Columns
    from calibrant.data.predictions import Predictions
    from calibrant.decisions.gate import Gate
    from calibrant.decisions.requirement import Requirement
    from calibrant.inputs import Progress

# There are many groups, and a resample of the smooth error takes some milliseconds.
_RESAMPLES_BY_GROUP = 200


@with_columns
def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Predictions: a .npz, .parquet, .csv, .tsv, .safetensors or .jsonl file, or a log of "
            "another tool; a folder or pattern of such files; or an address of Parquet files. Parquet "
            "files may be larger than memory.",
        ),
    ],
    as_json: AsJson = False,
    bins: Annotated[int, typer.Option("--bins", help="Number of bins of the binned measures.")] = 15,
    measures: Annotated[
        str, typer.Option("--measures", help="core, all, or names separated by commas.", metavar="NAMES")
    ] = "core",
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Bootstrap a 95 % interval for each measure.")
    ] = False,
    resamples: Annotated[int, typer.Option("--resamples", help="Number of bootstrap resamples.")] = 1000,
    per_class: Annotated[bool, typer.Option("--per-class", help="Also show each class.")] = False,
    per_margin: Annotated[
        int, typer.Option("--per-margin", help="Also show this many groups by logit margin.", metavar="N")
    ] = 0,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", help="Another model's predictions of the same samples.", metavar="OTHER"),
    ] = None,
    ood: Ood = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            help="A bound that must hold beyond chance, such as 'ece < 0.05'; may be repeated.",
            metavar="BOUND",
        ),
    ] = None,
    no_worse_than: Annotated[
        Path | None,
        typer.Option(
            "--no-worse-than",
            help="A baseline's predictions of the same samples; the model must not be worse.",
            metavar="BASELINE",
        ),
    ] = None,
    margin: Annotated[
        str | None,
        typer.Option(
            "--margin",
            help="How much worse the model may be: a number, or 'nll=0.02,ece=0.01'. By default 0.01, and "
            "0.02 for nll.",
            metavar="MARGIN",
        ),
    ] = None,
    unpaired: Annotated[
        bool,
        typer.Option("--unpaired", help="The baseline's samples are others, from the same population."),
    ] = False,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", help="Write the verdicts as JUnit XML.", metavar="FILE"),
    ] = None,
    correction: Annotated[
        str,
        typer.Option(
            "--correction",
            help="Correction for testing many groups (--by).",
            metavar="holm|benjamini_hochberg",
        ),
    ] = "holm",
    stream: Stream = False,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Skip bad files and row groups of a stream, and count them."),
    ] = False,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", help="Read a stream in this process or on a Ray cluster.", metavar="local|ray"
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="Address of a running Ray cluster; by default one is started.",
            metavar="HOST:PORT",
        ),
    ] = None,
    *,
    columns: "Columns",
) -> None:
    """Print the calibration measures of saved predictions.

    The file contains logits or probs with labels, or confidence with correct.

    Exit code with --require or --no-worse-than: 0 if all bounds hold, 3 if one fails, 4 if the samples cannot
    tell.

    Example: calibrant evaluate test.npz --measures all --intervals

    Example: calibrant evaluate answers.csv --by subject

    Example: calibrant evaluate predictions/ --by model_version

    Example: calibrant evaluate test.npz --require 'ece < 0.05' --no-worse-than baseline.npz --junit gate.xml

    Example: calibrant evaluate answers.jsonl --confidence stated --correct is_right --percent

    Example: calibrant evaluate s3://bucket/predictions --engine ray --address auto
    """
    from calibrant.cli import streams
    from calibrant.cli.terminal import show
    from calibrant.data.labels import LabelPredictions, entries_per_row
    from calibrant.evaluation.detection import detect_ood
    from calibrant.evaluation.evaluate import evaluate as evaluate_predictions
    from calibrant.evaluation.groups import by_group
    from calibrant.evaluation.paired import paired_comparison
    from calibrant.evaluation.slices import by_class, by_margin
    from calibrant.inference.corrections import CORRECTIONS
    from calibrant.inputs import check_choice

    chosen = check_choice(correction, "--correction", CORRECTIONS)
    reader = streams.engine_named(engine, address=address)
    gate = _GateOptions.of(require or [], no_worse_than, margin, unpaired, junit)
    whole = {
        "--require": require,
        "--no-worse-than": no_worse_than,
        "--intervals": intervals,
        "--per-class": per_class,
        "--per-margin": per_margin,
        "--compare": compare,
        "--ood": ood,
    }
    needs_all = [name for name, value in whole.items() if value] + streams.unserved(measures)
    needs_all += ["columns under other names"] if columns.needs_whole_files else []
    asked = stream or skip_bad or reader is not None
    if streams.is_streamed(source, asked=asked, needs_all=needs_all):
        streams.evaluate(
            source,
            measures=measures,
            n_bins=bins,
            by=columns.groups,
            correction=chosen,
            skip_bad=skip_bad,
            as_json=as_json,
            engine=reader,
        )
        return
    predictions = read(source, columns)
    several = isinstance(predictions, LabelPredictions)
    ungrouped = replace(columns, groups=None)
    other = None if compare is None else read(compare, ungrouped)
    foreign = None if ood is None else read(ood, ungrouped, need_labels=False)
    wanted = word_or_list(measures, "core", "all")
    with progress_bar(visible=not as_json) as progress:
        result = evaluate_predictions(
            predictions,
            measures=wanted,
            n_bins=bins,
            intervals=intervals,
            n_resamples=resamples,
            chance=True,
            progress=progress,
        )
        parts = show.Parts(
            classes=by_class(predictions, n_bins=bins) if per_class else None,
            margins=by_margin(predictions, n_groups=per_margin) if per_margin else None,
            comparison=None
            if other is None
            else paired_comparison(
                predictions, other, measures=wanted, n_bins=bins, n_resamples=resamples, progress=progress
            ),
            detection=None if foreign is None else detect_ood(predictions, foreign),
            groups=by_group(
                predictions,
                measures=("ece", "smece") if wanted == "core" else wanted,
                n_bins=bins,
                intervals=intervals,
                n_resamples=min(resamples, _RESAMPLES_BY_GROUP),
                correction=chosen,
                progress=progress,
            )
            if columns.makes_groups or several
            else None,
            by=show.LABEL if several else columns.groups or "group",
            n_labels=entries_per_row(predictions) if several else None,
            gate=gate.decide(predictions, ungrouped, n_bins=bins, n_resamples=resamples, progress=progress),
        )
    if as_json:
        show.evaluation_json(result, parts)
    else:
        show.evaluation(result, parts, title=Path(source).name if Path(source).is_file() else source)
    gate.finish(parts.gate, name=Path(source).name)


@dataclass(frozen=True)
class _GateOptions:
    """The options of a gate: what must hold, and where the verdicts are written."""

    requirements: "Sequence[Requirement]"
    baseline: Path | None
    margin: "float | dict[str, float] | None"
    paired: bool
    junit: Path | None

    @classmethod
    def of(
        cls,
        require: "Sequence[str]",
        baseline: Path | None,
        margin: str | None,
        unpaired: bool,
        junit: Path | None,
    ) -> "_GateOptions":
        """Check the options before anything is read."""
        needs_baseline = {"--margin": margin is not None, "--unpaired": unpaired}
        for name in (name for name, given in needs_baseline.items() if given and baseline is None):
            raise InputError(f"{name}: expected together with --no-worse-than, got no baseline; name one")
        if junit is not None and not require and baseline is None:
            raise InputError("--junit: expected together with --require or --no-worse-than, got neither")
        return cls(_requirements(require), baseline, _margin(margin), not unpaired, junit)

    def decide(
        self,
        predictions: "Predictions",
        columns: "Columns",
        *,
        n_bins: int,
        n_resamples: int,
        progress: "Progress",
    ) -> "Gate | None":
        """Return the verdicts; None if nothing is required."""
        if not self.requirements and self.baseline is None:
            return None
        from calibrant.decisions.gate import check_requirements

        return check_requirements(
            predictions,
            self.requirements,
            baseline=None if self.baseline is None else read(self.baseline, columns),
            margin=self.margin,
            paired=self.paired,
            n_bins=n_bins,
            n_resamples=n_resamples,
            progress=progress,
        )

    def finish(self, gate: "Gate | None", *, name: str) -> None:
        """Write the verdicts, and end with the exit code of the gate."""
        if gate is None:
            return
        if self.junit is not None:
            from calibrant.decisions.junit import write_junit

            write_junit(gate, self.junit, name)
        raise typer.Exit(gate.exit_code)


def _requirements(texts: "Sequence[str]") -> "Sequence[Requirement]":
    if not texts:
        return ()
    from calibrant.decisions.requirement import Requirement

    return [Requirement.parse(text) for text in texts]


def _margin(text: str | None) -> "float | dict[str, float] | None":
    """Return one number, or numbers by name of the measure."""
    if text is None:
        return None
    parts = [part.rpartition("=") for part in split_list(text)]
    try:
        numbers = {name.strip(): float(number) for name, _, number in parts}
    except ValueError:
        numbers = {}
    if not numbers or ("" in numbers and len(parts) > 1):
        raise InputError(f"--margin: expected a number or 'nll=0.02,ece=0.01', got {text!r}")
    return numbers.get("", numbers)
