"""What a reader sees at every width: no text cut off, no two over each other, no legend on data."""

from itertools import combinations

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from calibrant import Predictions
from calibrant.decisions.gate import Gate, Verdict
from calibrant.plots import GateDisplay, LossShapeDisplay, ModelHonestyDisplay
from calibrant.plots.kinds import KINDS, RUN_KINDS, Request, draw, draw_run
from calibrant.plots.model_honesty import ModelHonesty
from tests.conftest import at_length
from tests.conftest import draw as sampled
from tests.plots.conftest import dynamics_rows, metric_rows

WIDTHS = (3.3, 5.0, 7.0)
TITLE = (
    "Predictions of a large model that was fine-tuned on several data sets, calibrated on held-out samples "
    "and measured on others"
)
CLASSES = (
    "a class with a very long name of its own",
    "Internationalisation_and_localisation",
    "$5 or more",
    "dog",
    "animals that are neither cats nor dogs",
    "B",
)
#: Texts may share this many pixels, of 100 in an inch: the box of a text is larger than its letters.
TOUCHING = 1.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parts():
    """Return validation, test and out-of-distribution predictions that every kind can be drawn of."""
    made = []
    for seed in (1, 2):
        logits, labels = sampled(400, len(CLASSES), seed=seed, sharpen=2.5)
        made.append(Predictions(logits=logits, labels=labels, class_names=CLASSES))
    return *made, Predictions(logits=logits / 4)


METHODS = ("temperature", "isotonic(mode='top_label')")


def of_predictions(kind, parts):
    """Draw a kind with everything that it takes."""
    validation, test, foreign = parts
    takes = KINDS[kind].takes
    several = kind in ("methods", "validation-size", "margins", "risk-coverage", "sets")
    one = ("smart",) if kind == "temperature" else METHODS[:1]
    return draw(
        kind,
        Request(
            test,
            validation=validation if "validation" in takes else None,
            methods=(METHODS if several else one) if "methods" in takes else (),
            foreign=foreign if "foreign" in takes else None,
        ),
    )


VERDICTS = (
    Verdict("ece < 0.05", "ece", "failed", 0.12, 0.1, 0.14, 0.95, 0.05, None, "failed", 0.1, 0.14),
    Verdict("accuracy >= 0.8", "accuracy", "passed", 0.9, 0.85, 0.95, 0.95, 0.8, None, "passed", 0.85, 0.95),
    Verdict(
        f"ece <= {60 * 'base'} + 0.01",
        "ece",
        "unknown",
        0.0,
        -0.1,
        0.1,
        0.95,
        0.01,
        4000,
        "unknown",
        -0.1,
        0.1,
    ),
)

OTHERS = {
    "gate": lambda: GateDisplay(Gate(100, 0.95, VERDICTS)),
    "losses": lambda: LossShapeDisplay.from_functions(
        {"cross-entropy": lambda nll: nll, "a loss with a long name, gamma = 3": lambda nll: nll**3 / 9}
    ),
    "honesty": lambda: ModelHonestyDisplay(
        [ModelHonesty(f"{i}-{name}", 0.2 + 0.1 * i, 0.9, 0.5, 0.4, 0.01) for i, name in enumerate(CLASSES)]
    ),
}


@pytest.fixture(scope="module", params=[*KINDS, *RUN_KINDS, *OTHERS])
def display(request, parts):
    return made(request.param, parts)


def made(kind, parts):
    """Draw any kind."""
    if kind in KINDS:
        return of_predictions(kind, parts)
    if kind in RUN_KINDS:
        return draw_run(kind, metric_rows(12), dynamics_rows(12, 15, gammas=True))
    return OTHERS[kind]()


def seen(figure, monkeypatch):
    """Render a figure; return each text that was really drawn, with its box in pixels."""
    boxes = []
    original = Text.draw

    def recorded(self, renderer, *args, **kwargs):
        original(self, renderer, *args, **kwargs)
        if self.get_visible() and self.get_text().strip():
            boxes.append((self, self.get_window_extent(renderer)))

    with monkeypatch.context() as patched:
        patched.setattr(Text, "draw", recorded)
        # The renderer measures as it would for a file; painting as well would only take longer.
        FigureCanvasAgg(figure).figure.draw_without_rendering()
    return boxes


def shared(one, other):
    """Return the smaller side of what two boxes share, or 0."""
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else min(both.width, both.height)


@pytest.mark.parametrize("width", at_length(WIDTHS, WIDTHS[:1]))
def test_texts_stay_inside_and_apart_and_legends_beside_the_data(display, width, monkeypatch):
    figure = display.plot(width=width, title=TITLE).figure_
    boxes = seen(figure, monkeypatch)
    assert figure.get_size_inches()[0] == width
    assert len(boxes) > 5
    assert flaws(figure, boxes) == ([], [], [])


KINDS_NOW = ("reliability", "classes", "risk-coverage", "gammas", "gate")


@pytest.mark.parametrize("layout", at_length((None, "constrained"), (None,)))
@pytest.mark.parametrize("kind", at_length([*KINDS, *RUN_KINDS, *OTHERS], KINDS_NOW))
def test_axes_of_the_user_keep_everything_inside_them_with_any_layout(kind, layout, parts, monkeypatch):
    figure = Figure(figsize=(8, 9), layout=layout)
    made(kind, parts).plot(figure.subplots(), title="A title")
    boxes = seen(figure, monkeypatch)
    assert len(boxes) > 5
    assert flaws(figure, boxes) == ([], [], [])


def flaws(figure, boxes):
    """Return texts that are cut off, pairs that overlap, and what covers data."""
    whole = figure.bbox
    cut = [text for text, box in boxes if not (whole.x0 <= box.x0 and box.x1 <= whole.x1)]
    cut += [text for text, box in boxes if not (whole.y0 <= box.y0 and box.y1 <= whole.y1)]
    over = [(a, b) for (a, box), (b, other) in combinations(boxes, 2) if shared(box, other) > TOUCHING]
    areas = {each: each.patch.get_window_extent() for each in figure.findobj(Axes) if each.axison}
    legends = [each.get_window_extent() for each in figure.findobj(Legend)]
    covered = [area for area in areas.values() for legend in legends if shared(area, legend) > TOUCHING]
    # A text may stand in the area of its own axes, as the names of sides do, but not in that of others.
    covered += [
        text
        for text, box in boxes
        for ax, area in areas.items()
        if text.axes is not ax and shared(area, box) > TOUCHING
    ]
    return cut, over, covered
