"""Commands on streams: which sources are one, and what is done with them batch by batch."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import typer

from calibrant.cli.terminal import show
from calibrant.cli.terminal.progress import progress_bar
from calibrant.errors import InputError
from calibrant.metrics.names import MEASURES, resolve_measures
from calibrant.posthoc.calibrator import Calibrator
from calibrant.streams.evaluate import evaluate_stream
from calibrant.streams.measures import STREAMED, StreamEvaluation
from calibrant.streams.prediction_stream import open_stream
from calibrant.streams.rewriting import rewrite_stream
from calibrant.streams.sources import is_many

StreamEngine: TypeAlias = Callable[..., StreamEvaluation]

# A larger Parquet file is read as a stream, unless something is asked that a stream cannot give.
_LARGE = 200_000_000


def is_streamed(source: str, *, asked: bool, needs_all: Sequence[str] = ()) -> bool:
    """Say whether a source is read as a stream.

    Args:
        source: What was named on the command line.
        asked: Whether an option asks for a stream.
        needs_all: Options that were given and need all samples at once.
    """
    if asked or is_many(source):
        if needs_all:
            raise InputError(
                f"{needs_all[0]}: expected a file that is loaded as a whole, got a stream, which is read "
                "only once; leave the option out or name one file"
            )
        return True
    path = Path(source)
    large = path.suffix.lower() == ".parquet" and path.is_file() and path.stat().st_size > _LARGE
    return large and not needs_all


def unserved(measures: str) -> list[str]:
    """Return the measures named that a stream cannot give, as options."""
    if measures in ("core", "all"):
        return []
    names = resolve_measures([name.strip() for name in measures.split(",")])
    return [f"--measures {name}" for name in names if name not in STREAMED]


def engine_named(engine: str, *, address: str | None) -> StreamEngine | None:
    """Return what evaluates streams, none if it was left to the source whether it is one."""
    if engine == "ray":
        from calibrant.streams.ray import evaluate_stream_on_ray

        return partial(evaluate_stream_on_ray, address=address)
    if engine != "local":
        raise InputError(f"--engine: expected local or ray, got {engine}; name one of these")
    if address is not None:
        raise InputError(f"--address: expected --engine ray beside it, got {engine}; name the engine too")
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
    """Print the measures of a stream, and how fast it was read."""
    wanted = measures if measures in ("core", "all") else [name.strip() for name in measures.split(",")]
    stream = open_stream(source, columns_by=by)
    clock = _Clock()
    measured = engine or evaluate_stream
    # Ray tells of workers that died on standard output, which belongs to the result.
    with progress_bar(visible=not as_json) as progress, redirect_stdout(sys.stderr):
        result = measured(stream, n_bins=n_bins, progress=clock.timed(progress), skip_bad=skip_bad)
    seconds = clock.seconds
    names = [name for name in MEASURES if name in resolve_measures(wanted) and name in result.metrics]
    if as_json:
        show.stream_json(result, names, seconds=seconds)
    else:
        show.stream(result, names, title=source, seconds=seconds, by=by)


def apply(calibrator: Calibrator, source: str, out: Path) -> None:
    """Write each file of a stream with calibrated log-probabilities."""
    clock = _Clock()
    with progress_bar() as progress:
        written = rewrite_stream(
            open_stream(source, need_labels=False),
            lambda predictions: calibrator.predict_log_proba(predictions.to_logits(), predictions.features),
            out,
            progress=clock.timed(progress),
        )
    typer.echo(
        f"{out}: {written.rows:,} predictions in {written.files:,} files calibrated by "
        f"{type(calibrator).__name__}, {written.rows / clock.seconds:,.0f} rows/s"
    )


@dataclass
class _Clock:
    """How long work has taken so far."""

    start: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return max(1e-9, time.perf_counter() - self.start)

    def timed(self, progress: Callable[[str, int, int], None]) -> Callable[[str, int, int], None]:
        """Let a progress bar also tell the rows per second."""
        return lambda what, done, total: progress(f"{what}, {done / self.seconds:,.0f} rows/s", done, total)
