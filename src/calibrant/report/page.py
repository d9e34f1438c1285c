"""What the report shows: frozen values of numbers and text only, which can be saved and drawn again.

A number that the data leave undefined is none. All shares are fractions of one.
"""

from dataclasses import dataclass, field

Numbers = tuple[float | None, ...]


@dataclass(frozen=True)
class Binned:
    """A reliability diagram at one number of bins of equal width."""

    n_bins: int
    ece: float
    count: tuple[int, ...]
    confidence: Numbers
    accuracy: Numbers
    band_low: Numbers
    band_high: Numbers


@dataclass(frozen=True)
class MarginGroup:
    """Samples whose two largest logits are about equally far apart."""

    low: float
    high: float
    n: int
    accuracy: float
    confidence: float


@dataclass(frozen=True)
class Risk:
    """A risk-coverage curve, thinned: answering where the confidence reaches the threshold."""

    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    threshold: tuple[float, ...]


@dataclass(frozen=True)
class Figures:
    """What the charts draw of one set of predictions."""

    accuracy: float
    mean_confidence: float
    bins: tuple[Binned, ...]
    risk: Risk
    margins: tuple[MarginGroup, ...]


@dataclass(frozen=True)
class Candidate:
    """A row of the comparison: a method, or another model.

    Attributes:
        name: Its name on the command line.
        title: Its name in a sentence.
        note: Where it comes from.
        metrics: The measures by name.
        figures: None if only its measures are known.
        fit_seconds: Time of the fit, if there was one.
        parameters: Number of fitted numbers, if there was a fit.
    """

    name: str
    title: str
    note: str
    metrics: dict[str, float | None]
    figures: Figures | None = None
    fit_seconds: float | None = None
    parameters: int | None = None


@dataclass(frozen=True)
class Column:
    """A measure in the comparison.

    Attributes:
        name: Its name in ``metrics``.
        title: Its heading.
        meaning: Its full name.
        better: ``"lower"``, ``"higher"`` or ``"neither"``.
        percent: Whether it is shown times 100.
        best: Names of the candidates with the best value.
        near: Names of those that are not significantly worse.
        tested: Whether a test tells which differences are more than chance.
    """

    name: str
    title: str
    meaning: str
    better: str
    percent: bool
    best: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    tested: bool = False


@dataclass(frozen=True)
class ClassLine:
    """One class against all others, before the repair and after."""

    name: str
    n: int
    frequency: float
    recall: float | None
    mean_probability: float
    ece: float
    mean_probability_after: float | None = None
    ece_after: float | None = None


@dataclass(frozen=True)
class WantedTemperature:
    """A group of margins, and the temperatures at either end at which its confidence can be honest.

    A highest temperature of none has no upper end.
    """

    margins: tuple[float, ...]
    lowest: tuple[float, ...]
    highest: Numbers


@dataclass(frozen=True)
class Temperatures:
    """Temperature along the margin: SMART's curve, the single one, and what each group of margins wants."""

    fitted_on: str
    margins: tuple[float, ...]
    temperature: tuple[float, ...]
    single: float
    wanted: tuple[WantedTemperature, ...]


@dataclass(frozen=True)
class Shift:
    """The same model on samples from elsewhere, before the repair and after."""

    name: str
    n: int
    columns: tuple[Column, ...]
    before: Candidate
    after: Candidate | None


@dataclass(frozen=True)
class Detection:
    """How well one score tells foreign samples apart."""

    score: str
    auroc: float
    aupr_in: float
    aupr_out: float
    fpr95: float
    passed: tuple[float, ...]
    kept: tuple[float, ...]


@dataclass(frozen=True)
class Foreign:
    """Out-of-distribution samples against known ones."""

    name: str
    n: int
    scores: tuple[Detection, ...]


@dataclass(frozen=True)
class Verdict:
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
    """A line of how the report was made."""

    label: str
    values: tuple[str, ...]
    is_code: bool = False


@dataclass(frozen=True)
class Page:
    """Everything on the page, in its order.

    Attributes:
        title: What was looked at.
        measured_on: What the numbers were measured on.
        verdict: The top of the page.
        columns: Measures of the comparison.
        candidates: Its rows; the first is the model as it is.
        chosen: Name of the candidate that was chosen, or shown first against the model as it is.
        classes: The classes, the least calibrated first.
        temperatures: Of SMART.
        shift: Samples from elsewhere.
        foreign: Out-of-distribution samples.
        skipped: Methods that could not take part, and why.
        notes: What was thinned or left out.
        facts: How it was made.
    """

    title: str
    measured_on: str
    verdict: Verdict
    columns: tuple[Column, ...]
    candidates: tuple[Candidate, ...]
    chosen: str | None
    is_choice: bool = False
    classes: tuple[ClassLine, ...] = ()
    temperatures: Temperatures | None = None
    shift: Shift | None = None
    foreign: Foreign | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()

    @property
    def drawn(self) -> tuple[Candidate, ...]:
        """Candidates with figures."""
        return tuple(each for each in self.candidates if each.figures is not None)
