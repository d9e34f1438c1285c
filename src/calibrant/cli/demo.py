"""The command ``calibrant demo``: the main job on real predictions that come with the package."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from calibrant.cli.terminal import show, tables
from calibrant.cli.terminal.command_line import command_line
from calibrant.cli.terminal.diagram import reliability_diagram
from calibrant.cli.terminal.progress import progress_bar
from calibrant.data import load_bundled
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.compare import choose, compare
from calibrant.evaluation.evaluate import evaluate
from calibrant.report.folder import REPORT
from calibrant.report.gather import Sources, describe_comparison
from calibrant.report.provenance import Origin
from calibrant.report.write import write_report


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the report.", metavar="DIR")] = Path(
        "calibrant-demo"
    ),
) -> None:
    """Measure and repair the confidence of a real network, with what comes with the package.

    A small convolutional network was trained on CIFAR-10. Post-hoc methods are cross-validated on its
    validation predictions and shown on its test predictions; the chosen one also under noise. The table is
    printed, and a report for the browser is written.

    Example: calibrant demo
    """
    console = Console()
    validation = load_bundled("cifar10_val")
    test, noisy = load_bundled("cifar10_test"), load_bundled("cifar10_test_noise")
    before = evaluate(test)
    console.print(f"A small network on {test.n:,} CIFAR-10 test images.", highlight=False)
    console.print(f"[bold]{show.verdict(before)}[/bold]\n", highlight=False)
    console.print(reliability_diagram(before.bins, title="before"))

    with progress_bar() as progress:
        comparison = compare(validation, test=test, progress=progress)
    chosen = choose(comparison)
    console.print(
        f"Methods fitted on {validation.n:,} validation images and chosen there by cross-validation:\n",
        highlight=False,
    )
    console.print(tables.methods(comparison, chosen))
    after = evaluate(calibrated(chosen.calibrator, test))
    console.print(f"\n[bold]After {chosen.name}: {show.verdict(after)}[/bold]\n", highlight=False)
    console.print(reliability_diagram(after.bins, title=f"after {chosen.name}"))

    console.print("The same images under noise, which no method has seen:\n", highlight=False)
    under_noise = evaluate(calibrated(chosen.calibrator, noisy))
    console.print(tables.measures({"before": evaluate(noisy), chosen.name: under_noise}))

    names = {"test": "CIFAR-10 test images", "shift": "The same images under noise"}
    page = describe_comparison(
        comparison,
        chosen,
        Sources(
            "CIFAR-10 network",
            validation=validation,
            test=test,
            shift=noisy,
            names=names | {"validation": "the validation images"},
            origin=Origin(command_line()),
        ),
    )
    out.mkdir(parents=True, exist_ok=True)
    write_report(page, out / REPORT)
    console.print(f"\nThe report, to open in a browser: [bold]{out / REPORT}[/bold]", highlight=False)
