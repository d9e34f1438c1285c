"""What the report shows: frozen values of numbers and text only, which can be saved and drawn again.

An undefined number is None. All shares are fractions of one.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from calibrant.errors import FormatError
from calibrant.files import read_dataclass

NumberList = tuple[float | None, ...]


@dataclass(frozen=True)
class Binned:
    """A reliability diagram at one number of bins of equal width; the band is Wilson's 95 % interval.

    The counts of weighted samples are sums of weights.
    """

    n_bins: int
    ece: float
    count: tuple[int | float, ...]
    confidence: NumberList
    accuracy: NumberList
    band_low: NumberList
    band_high: NumberList


@dataclass(frozen=True)
class MarginGroup:
    """Samples with similar margins between the two largest logits."""

    low: float
    high: float
    n: int
    accuracy: float
    confidence: float


@dataclass(frozen=True)
class Risk:
    """A thinned risk-coverage curve: error rate and share of the samples above each threshold.

    Attributes:
        coverage: Share of the samples that are answered.
        risk: Error rate among them.
        threshold: The lowest confidence that is answered.
        guaranteed: The error rate that is not exceeded on new data with a probability of 95 %; empty if
            samples have weights or are not independent.
    """

    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    threshold: tuple[float, ...]
    guaranteed: NumberList = ()


@dataclass(frozen=True)
class AnswerRule:
    """Answer when the confidence is at least a threshold: what that answers, and what of it is wrong.

    Attributes:
        at_most_wrong: The share of wrong answers that the threshold was chosen for; None if the threshold was
            given.
        threshold: None if every threshold leaves more wrong.
        n: Number of samples that are answered.
        answered: Their share.
        wrong: Share of wrong ones among them; None if there are none.
        low: Lower end of Wilson's 95 % interval of that share.
        high: Upper end.
    """

    at_most_wrong: float | None
    threshold: float | None
    n: int
    answered: float
    wrong: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Figures:
    """What the charts draw of one set of predictions."""

    accuracy: float
    mean_confidence: float
    bins: tuple[Binned, ...]
    risk: Risk
    margins: tuple[MarginGroup, ...]
    answers: tuple[AnswerRule, ...] = ()
    positive: Binned | None = None


@dataclass(frozen=True)
class Candidate:
    """A row of the comparison: a method, or another model.

    Attributes:
        name: Its name on the command line.
        title: Its name in a sentence.
        note: Where it comes from.
        metrics: The measures by name.
        figures: None if it is not drawn.
        fit_seconds: Time of the fit, if there was one.
        parameters: Number of fitted parameters, if there was a fit.
        share: Share in the pool, if it has one.
        intervals: Ends of the 95 % interval of each measure that has one.
    """

    name: str
    title: str
    note: str
    metrics: dict[str, float | None]
    figures: Figures | None = None
    fit_seconds: float | None = None
    parameters: int | None = None
    share: float | None = None
    intervals: dict[str, NumberList] = field(default_factory=dict)


@dataclass(frozen=True)
class ComparedMeasure:
    """A measure in the comparison: a column of its table.

    Attributes:
        name: Its name in ``metrics``.
        title: Its heading.
        meaning: Its full name.
        better: ``"lower"``, ``"higher"`` or ``"neither"``.
        percent: Whether it is shown times 100.
        best: Names of the candidates with the best value.
        near: Names of those that are not significantly worse.
        tested: Whether the differences were tested.
        p_values: Two-sided p-value of the difference of each other candidate from the first of the best.
    """

    name: str
    title: str
    meaning: str
    better: str
    percent: bool
    best: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    tested: bool = False
    p_values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ClassLine:
    """One class against all others, before calibration and after."""

    name: str
    n: int
    frequency: float
    recall: float | None
    mean_probability: float
    ece: float
    mean_probability_after: float | None = None
    ece_after: float | None = None


@dataclass(frozen=True)
class GroupGap:
    """Mean confidence minus accuracy of a group, its interval, and the test that is corrected for all groups.

    Attributes:
        gap: Positive is overconfident.
        low: Lower end of its 95 % interval.
        high: Upper end.
        ece: Binned error of the group.
        p_value: Corrected p-value of the Kuiper test; None with fewer than ten samples.
    """

    gap: float
    low: float
    high: float
    ece: float | None
    p_value: float | None


@dataclass(frozen=True)
class GroupLine:
    """One group of samples, before calibration and after."""

    name: str
    n: int
    accuracy: float
    confidence: float
    before: GroupGap
    after: GroupGap | None


@dataclass(frozen=True)
class GroupPanel:
    """The groups, the worst first.

    Attributes:
        n_groups: Number of groups; lines beyond the first thousand are left out.
        test: What was found before calibration, by which test and correction.
        test_after: What was found after it.
        within: Mean of the binned error over the groups, weighted by their samples.
        within_after: The same after calibration.
        lines: A line for each group.
    """

    n_groups: int
    test: str
    test_after: str | None
    within: float | None
    within_after: float | None
    lines: tuple[GroupLine, ...]


@dataclass(frozen=True)
class WantedTemperature:
    """A group of margins, and the temperatures at either end at which its confidence can equal its accuracy.

    A highest temperature of None means that there is no upper bound.
    """

    margins: tuple[float, ...]
    lowest: tuple[float, ...]
    highest: NumberList


@dataclass(frozen=True)
class Temperatures:
    """Temperature by margin: SMART's curve, the single temperature, and what each group of margins needs."""

    fitted_on: str
    margins: tuple[float, ...]
    temperature: tuple[float, ...]
    single: float
    wanted: tuple[WantedTemperature, ...]


@dataclass(frozen=True)
class Shift:
    """The same model under distribution shift, before calibration and after."""

    name: str
    n: int
    columns: tuple[ComparedMeasure, ...]
    before: Candidate
    after: Candidate | None


@dataclass(frozen=True)
class Detection:
    """How well one score detects out-of-distribution samples."""

    score: str
    auroc: float
    aupr_in: float
    aupr_out: float
    fpr95: float
    passed: tuple[float, ...]
    kept: tuple[float, ...]


@dataclass(frozen=True)
class OutOfDistribution:
    """Out-of-distribution samples against known ones."""

    name: str
    n: int
    scores: tuple[Detection, ...]


@dataclass(frozen=True)
class Difference:
    """A measure of two models on the same samples, and a paired test of its difference.

    Attributes:
        title: Its full name.
        better: ``"lower"``, ``"higher"`` or ``"neither"``.
        percent: Whether it is shown times 100.
        first: The measure of the first model.
        other: That of the other model.
        difference: The first minus the other.
        low: Lower end of the 95 % interval of the difference.
        high: Upper end.
        p_value: Two-sided, of a paired bootstrap; not corrected for the number of measures.
        name: Its name in ``metrics``.
    """

    title: str
    better: str
    percent: bool
    first: float
    other: float
    difference: float
    low: float
    high: float
    p_value: float
    name: str = ""

    @property
    def is_clear(self) -> bool:
        """Whether the interval of the difference excludes 0: chance does not explain it."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class ChanceLine:
    """A calibration error of a candidate, and what a perfectly calibrated model would show by chance.

    Attributes:
        candidate: Title of the candidate.
        title: Full name of the measure.
        percent: Whether it is shown times 100.
        value: The measure.
        mean: Mean of the measure of a calibrated model with the same predictions.
        high: Its 95th percentile.
        p_value: Share of the samples of a calibrated model that show at least as much.
    """

    candidate: str
    title: str
    percent: bool
    value: float
    mean: float
    high: float
    p_value: float


@dataclass(frozen=True)
class ModelPair:
    """The first model against another one, on the same samples."""

    other: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class PageVerdict:
    """The whole report in a sentence or two, and the numbers behind it."""

    headline: str
    detail: str
    tone: str
    confidence: float
    accuracy: float
    confidence_after: float | None = None
    accuracy_after: float | None = None


@dataclass(frozen=True)
class Fact:
    """A line about how the report was made."""

    label: str
    values: tuple[str, ...]
    is_code: bool = False


@dataclass(frozen=True)
class ImageMeasureLine:
    """A measure of a detector or a segmentation, with its interval by image, and after a repair."""

    title: str
    better: str
    value: float | None
    low: float | None
    high: float | None
    after: float | None
    percent: bool = True


@dataclass(frozen=True)
class BoxClassLine:
    """A class of a detector: its objects, those that were missed, and its boxes."""

    name: str
    objects: int
    missed: int
    boxes: int
    precision: float | None
    score: float | None
    ap: float | None
    precision_low: float | None = None
    precision_high: float | None = None


@dataclass(frozen=True)
class BoxCell:
    """A cell of the image, by column and row: number of boxes, and mean score minus precision."""

    across: int
    down: int
    n: int
    gap: float


@dataclass(frozen=True)
class BoxMap:
    """Where in the image scores promise too much or too little, in cells of as many columns as rows."""

    n_cells: int
    cells: tuple[BoxCell, ...]


@dataclass(frozen=True)
class BoxCurve:
    """Precision with its interval by image and the share of objects that are found, by threshold."""

    threshold: tuple[float, ...]
    precision: tuple[float, ...]
    found: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class BoxGroup:
    """A class or a size: mean score, precision and number of boxes in bins, before a repair and after."""

    name: str
    n: int
    bins: tuple[tuple[tuple[float, float, int], ...], ...]


@dataclass(frozen=True)
class BoxPicture:
    """A wrong box of a high score, drawn."""

    caption: str
    source: str


@dataclass(frozen=True)
class BoxPanel:
    """What a detector has beside other classifiers; maps and curves are those before a repair and after."""

    heading: str
    measures: tuple[ImageMeasureLine, ...]
    classes: tuple[BoxClassLine, ...]
    maps: tuple[BoxMap, ...]
    curves: tuple[BoxCurve, ...]
    groups: tuple[BoxGroup, ...]
    worst: tuple[BoxPicture, ...]


@dataclass(frozen=True)
class PixelLine:
    """A class or a band of distance: its gap with its interval by image, and its gap after a repair."""

    name: str
    n: int
    accuracy: float
    confidence: float
    gap: float
    low: float | None
    high: float | None
    gap_after: float | None
    iou: float | None


@dataclass(frozen=True)
class PixelImageLine:
    """An image with a large calibration error."""

    name: str
    n: int
    accuracy: float
    confidence: float
    ece: float


@dataclass(frozen=True)
class PixelPanel:
    """What score maps have beside other predictions; bins and maps are those before a repair and after.

    Attributes:
        heading: Numbers of pixels and images.
        measures: Measures of all pixels.
        bins: Mean confidence, accuracy and number of the pixels in bins of the confidence.
        classes: Pixels by predicted class.
        bands: Pixels by their distance to the border of a region.
        images: The images with the largest calibration errors.
        mapped: The image whose gaps are drawn.
        maps: Its gaps, as pictures.
    """

    heading: str
    measures: tuple[ImageMeasureLine, ...]
    bins: tuple[tuple[tuple[float, float, int], ...], ...]
    classes: tuple[PixelLine, ...]
    bands: tuple[PixelLine, ...]
    images: tuple[PixelImageLine, ...]
    mapped: str
    maps: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """Everything on the page, in its order.

    Attributes:
        title: What the page is about.
        measured_on: The predictions that the numbers were measured on.
        verdict: The top of the page.
        columns: Measures of the comparison.
        candidates: Its rows; the first is the uncalibrated model.
        chosen: Name of the candidate that was chosen, or that is shown first against the uncalibrated model.
        is_choice: Whether the candidates are methods, one of them chosen.
        own: What the model's own confidence is called: ``"as stated"`` for a black box.
        pairs: The first model against each other one, if the candidates are models.
        chance: Calibration errors beside what a calibrated model would show by chance.
        groups: Groups of samples, if the predictions have any.
        classes: The classes, the least calibrated first.
        temperatures: Temperature by margin.
        shift: Samples under distribution shift.
        foreign: Out-of-distribution samples.
        boxes: What a detector has beside other classifiers.
        pixels: What score maps have beside other predictions.
        skipped: Methods that could not be fitted, with the reason.
        notes: What was thinned or left out.
        facts: How the page was made.
    """

    title: str
    measured_on: str
    verdict: PageVerdict
    columns: tuple[ComparedMeasure, ...]
    candidates: tuple[Candidate, ...]
    chosen: str | None
    is_choice: bool = False
    own: str = "uncalibrated"
    pairs: tuple[ModelPair, ...] = ()
    chance: tuple[ChanceLine, ...] = ()
    groups: GroupPanel | None = None
    classes: tuple[ClassLine, ...] = ()
    temperatures: Temperatures | None = None
    shift: Shift | None = None
    foreign: OutOfDistribution | None = None
    boxes: BoxPanel | None = None
    pixels: PixelPanel | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()

    @property
    def drawn(self) -> tuple[Candidate, ...]:
        """Candidates with figures."""
        return tuple(each for each in self.candidates if each.figures is not None)


def page_to_json(page: Page) -> dict[str, Any]:
    """Return the page as plain values for :mod:`json`."""
    return asdict(page)


def page_from_json(value: object) -> Page:
    """Build the page from what :func:`page_to_json` returned; values that no page has are refused."""
    page = read_dataclass(Page, value, "page", ignore_unknown=True)
    names = [each.name for each in page.candidates]
    if not page.candidates or len(set(names)) < len(names) or page.candidates[0].figures is None:
        raise FormatError("page.candidates: expected rows of different names, the first with figures")
    if page.chosen is not None and page.chosen not in [each.name for each in page.drawn]:
        raise FormatError(f"page.chosen: expected the name of a candidate with figures, got {page.chosen!r}")
    for column in page.columns:
        if not all(column.name in each.metrics for each in page.candidates):
            raise FormatError(f"page.columns.name: expected a measure of all candidates, got {column.name!r}")
    if (page.verdict.confidence_after is None) != (page.verdict.accuracy_after is None):
        raise FormatError("page.verdict: expected confidence_after with accuracy_after, got only one")
    return page
