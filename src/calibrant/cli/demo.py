"""The command ``calibrant demo``: the main job on real predictions that come with the package."""

from rich.console import Console

from calibrant.cli import show, tables
from calibrant.cli.diagram import reliability_diagram
from calibrant.data import Predictions, load_bundled
from calibrant.evaluation import evaluate
from calibrant.posthoc import Calibrator, TemperatureScaling


def demo() -> None:
    """Measure and repair the confidence of a real network, with what comes with the package.

    A small convolutional network was trained on CIFAR-10; temperature scaling is fitted on its
    validation predictions and shown on its test predictions, clean and under noise.

    Example: calibrant demo
    """
    console = Console()
    validation = load_bundled("cifar10_val")
    assert validation.logits is not None
    assert validation.labels is not None
    calibrator = TemperatureScaling.fit(validation.logits, validation.labels)
    console.print(
        f"A small network on CIFAR-10; temperature scaling fitted on {validation.n:,} validation images: "
        f"T = {float(calibrator.temperature):.3f}\n",
        highlight=False,
    )
    for name, title in (("cifar10_test", "test images"), ("cifar10_test_noise", "test images under noise")):
        test = load_bundled(name)
        before, after = evaluate(test), evaluate(_calibrated(calibrator, test))
        console.print(f"[bold]{test.n:,} {title}[/bold]. {show.verdict(before)}", highlight=False)
        console.print(tables.measures({"before": before, "temperature": after}))
        console.print()
        if name == "cifar10_test":
            console.print(reliability_diagram(before.bins, title="before"))
            console.print(reliability_diagram(after.bins, title="after temperature scaling"))


def _calibrated(calibrator: Calibrator, predictions: Predictions) -> Predictions:
    """Replace logits by calibrated log-probabilities, which are logits too."""
    assert predictions.logits is not None
    return Predictions(logits=calibrator(predictions.logits), labels=predictions.labels)
