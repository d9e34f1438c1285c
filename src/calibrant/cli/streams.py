"""Commands on streams: decide which sources are streams, evaluate them and rewrite them."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TypeAlias

import typer
from torch import Tensor

from calibrant.cli.options import split_list, word_or_list
from calibrant.cli.printing import diagram_of, print_heading, say
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated, check_form
from calibrant.evaluation.full import group_to_dict, heading_of, verdict
from calibrant.evaluation.groups import summary
from calibrant.evaluation.tables import stream_groups_table
from calibrant.files import without_nan
from calibrant.inputs import Progress
from calibrant.metrics.names import MEASURES, resolve_measures
from calibrant.outcomes import weighted_like
from calibrant.posthoc.calibrator import Calibrator
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console
from calibrant.streams.evaluate import evaluate_stream, stream_group_tests
from calibrant.streams.files import find_files, is_many, is_url
from calibrant.streams.measures import StreamEvaluation, streamed_measures
from calibrant.streams.prediction_stream import open_stream
from calibrant.streams.rewriting import rewrite_stream

StreamEngine: TypeAlias = Callable[..., StreamEvaluation]

# Bytes above which a Parquet file is read as a stream, unless an option needs all samples at once.
_LARGE = 200_000_000


def is_streamed(source: str, *, asked: bool, needs_all: Sequence[str] = ()) -> bool:
    """Return whether a source is read as a stream; otherwise its files are loaded as a whole.

    Args:
        source: A path, pattern or address from the command line.
        asked: Whether an option asks for a stream.
        needs_all: The given options that need all samples at once.
    """
    if not asked and not is_followed(source):
        return False
    files = () if is_url(source) or asked else find_files(source)
    whole = not all(file.is_parquet for file in files)
    small = bool(files) and sum(Path(file.path).stat().st_size for file in files) <= _LARGE
    if needs_all and not whole and not small and (asked or is_many(source)):
        raise InputError(
            f"{needs_all[0]}: expected a file that is loaded as a whole, got a stream, which is read only "
            "once; leave the option out or name one file"
        )
    return not whole and not needs_all


def is_followed(source: str) -> bool:
    """Return whether a source is several files or a large one, so that a monitor remembers what it read."""
    path = Path(source)
    large = path.suffix.lower() == ".parquet" and path.is_file() and path.stat().st_size > _LARGE
    return large or is_many(source)


def unserved(measures: str) -> list[str]:
    """Return the options that name measures which a stream cannot give."""
    if measures in ("core", "all"):
        return []
    names = resolve_measures(split_list(measures))
    return [f"--measures {name}" for name in names if name not in streamed_measures()]


def engine_named(engine: str) -> StreamEngine | None:
    """Return the function that evaluates streams on an engine; none for the local one."""
    if engine == "ray":
        from calibrant.streams.ray import evaluate_stream_on_ray

        return evaluate_stream_on_ray
    if engine != "local":
        raise InputError(f"--engine: expected local or ray, got {engine}; name one of these")
    return None


def evaluate(
    source: str,
    *,
    measures: str,
    n_bins: int,
    by: str | None,
    skip_bad: bool,
    as_json: bool,
    engine: StreamEngine | None = None,
) -> None:
    """Print the measures of a stream, and the rows per second."""
    wanted = word_or_list(measures, "core", "all")
    stream = open_stream(source, columns_by=by)
    run, start = engine or evaluate_stream, time.perf_counter()
    # Ray reports dead workers on standard output, which is reserved for the result.
    with progress_bar(visible=not as_json) as progress, redirect_stdout(sys.stderr):
        result = run(stream, n_bins=n_bins, progress=_timed(progress, start), skip_bad=skip_bad)
    seconds = _since(start)
    resolved = resolve_measures(wanted)
    result = result.only([name for name in MEASURES if name in resolved])
    tests = stream_group_tests(result)
    if as_json:
        answer = result.to_dict()
        answer["groups"] = {
            name: answer["groups"][name] | without_nan(group_to_dict(test)) for name, test in tests.items()
        }
        answer |= {"seconds": seconds, "rows_per_second": result.n / seconds}
        typer.echo(json.dumps(answer, allow_nan=False))
        return
    console = Console()
    counted = heading_of(result.n, result.k)
    counted += f", {weighted_like(result.n_effective)}" if result.is_weighted else ""
    print_heading(console, source, counted, verdict(result.metrics))
    console.show(result.to_table())
    console.print()
    console.print(diagram_of(result.bins))
    if tests:
        found = summary(list(tests.values()), correction="holm", level=0.95)
        groups = {name: each.metrics for name, each in result.groups.items()}
        console.show(stream_groups_table(groups, tests, by or "", found, level=0.95))
    speed = f"{result.n:,} rows in {seconds:.1f} s, {result.n / seconds:,.0f} rows/s"
    bad = f"; {len(result.left_out)} bad files or row groups left out" if result.left_out else ""
    console.say(speed + bad, style="dim")


def apply(calibrator: Calibrator, source: str, out: Path, *, by: str | None = None) -> None:
    """Write each file of a stream with calibrated log-probabilities, or with repaired confidences."""

    def new(predictions: Predictions) -> Tensor:
        result = calibrated(calibrator, predictions)
        changed = result.logits if result.confidence is None else result.confidence
        assert changed is not None
        return changed

    start = time.perf_counter()
    with progress_bar() as progress:
        written = rewrite_stream(
            open_stream(source, columns_by=by, need_labels=False),
            new,
            out,
            check=partial(check_form, calibrator),
            progress=_timed(progress, start),
        )
    say(
        f"{out}: {written.rows:,} predictions in {written.files:,} files calibrated by "
        f"{type(calibrator).__name__}, {written.rows / _since(start):,.0f} rows/s"
    )


def _timed(progress: Progress, start: float) -> Progress:
    """Add the rows per second since the start to a progress bar."""
    return lambda what, done, total: progress(f"{what}, {done / _since(start):,.0f} rows/s", done, total)


def _since(start: float) -> float:
    return max(1e-9, time.perf_counter() - start)
