"""The command ``calibrant demo``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.options import command_line
from calibrant.files import make_folder, shown
from calibrant.progress import progress_bar
from calibrant.show.terminal import Console, line

if TYPE_CHECKING:
    from calibrant.evaluation.compare import MethodResult
    from calibrant.report.page import Page


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the report.", metavar="DIR")] = Path(
        "calibrant-demo"
    ),
) -> None:
    """Measure and calibrate a real network, with predictions that come with the package.

    A small convolutional network was trained on CIFAR-10. The demo cross-validates post-hoc methods on its
    validation predictions and shows them on its test predictions, the chosen one also under noise. It prints
    the table and writes a report for the browser.

    Example: calibrant demo
    """
    from calibrant.cli.printing import pages, print_calibration
    from calibrant.data.bundled import load_bundled
    from calibrant.evaluation import compare, effect_of, make_choice
    from calibrant.evaluation.calibration import Calibration
    from calibrant.evaluation.tables import measures_table
    from calibrant.report.describe import describe_comparison
    from calibrant.report.sources import Origin, Sources
    from calibrant.report.write import REPORT, write_report

    make_folder(out)
    written = pages(out)
    validation = load_bundled("cifar10_val")
    test, noisy = load_bundled("cifar10_test"), load_bundled("cifar10_test_noise")
    with progress_bar() as progress:
        comparison = compare(validation, test=test, progress=progress)
        choice = make_choice(comparison)
        chosen = choice.result
        progress("writing the report", 1, 1)
        sources = Sources(
            "CIFAR-10 network",
            validation=validation,
            test=test,
            shift=noisy,
            names={
                "validation": "the validation images",
                "test": "CIFAR-10 test images",
                "shift": "The same images under noise",
            },
            origin=Origin(command_line()),
        )
        page = describe_comparison(comparison, choice, sources)
        for name in written:
            write_report(page, out / name)

    console = Console()
    console.print(f"A small network on {test.n:,} CIFAR-10 test images.", highlight=False)
    _print_calibration(console, page, comparison["uncalibrated"], "before")
    console.print(
        f"Methods fitted on {validation.n:,} validation images and chosen there by cross-validation:\n",
        highlight=False,
    )
    print_calibration(console, Calibration(comparison, choice, effect_of(comparison, choice, test)))
    console.print()
    _print_calibration(console, page, chosen, f"after {chosen.name}")
    console.print("The same images under noise, which no method has seen:\n", highlight=False)
    shifted = {} if page.shift is None else {"before": page.shift.before, chosen.name: page.shift.after}
    console.show(measures_table({name: row.metrics for name, row in shifted.items() if row is not None}))
    console.print()
    if written:
        console.print(line("The report, to open in a browser: ", (shown(out / REPORT), "bold")))


def _print_calibration(console: Console, page: "Page", result: "MethodResult", title: str) -> None:
    """Print the verdict on a method, and its reliability diagram."""
    from calibrant.cli.printing import reliability_diagram
    from calibrant.evaluation.full import verdict_sentence

    figures = next(row.figures for row in page.drawn if row.name == result.name)
    assert figures is not None
    means = {"accuracy": figures.accuracy, "mean_confidence": figures.mean_confidence}
    verdict = verdict_sentence(dict(result.test_metrics or {}) | means)
    heading = verdict if title == "before" else f"{title.capitalize()}: {verdict}"
    console.print(f"[bold]{heading}[/bold]\n", highlight=False)
    bins = next(each for each in figures.bins if each.n_bins == 15)
    console.print(reliability_diagram(bins.accuracy, bins.confidence, bins.count, title=title))
