"""What ``calibrant calibrate`` answers: the comparison of methods, the choice, and what it changes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from calibrant._version import __version__
from calibrant.evaluation.answering import answer_when
from calibrant.evaluation.choose import Choice
from calibrant.evaluation.compare import Comparison
from calibrant.evaluation.effect import Effect
from calibrant.files import without_nan
from calibrant.results import Result
from calibrant.show.numbers import percent
from calibrant.show.table import Table


@dataclass(frozen=True)
class WholeStream:
    """Measures of a whole test set, of which the comparison has seen a sample, before and after the method.

    Attributes:
        n: Number of rows, or of pixels.
        before: Measures of the model by name.
        after: Measures after the chosen method.
        rows: What the rows are.
    """

    n: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    rows: str = "rows"

    @property
    def sentence(self) -> str:
        """The change as a sentence."""
        nll, ece = ([each[name] for each in (self.before, self.after)] for name in ("nll", "ece"))
        return (
            f"On all {self.n:,} test {self.rows}: negative log-likelihood {nll[0]:.4f}, calibrated "
            f"{nll[1]:.4f}; ECE {percent(ece[0])}, calibrated {percent(ece[1])}."
        )


@dataclass(frozen=True, eq=False)
class Calibration(Result):
    """A comparison of methods, the chosen one, and its effect.

    Attributes:
        comparison: The methods.
        choice: The chosen one, and why.
        effect: What it changes.
        score: What decided.
        seed: Seed of the comparison.
        whole: Number of rows and measures before and after on the whole test set, if it is a stream, or
            score maps, of which the comparison has seen a sample.
    """

    comparison: Comparison
    choice: Choice
    effect: Effect
    score: str = "nll"
    seed: int = 0
    whole: "WholeStream | None" = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, as ``calibrate --json`` and ``results.json`` have them."""
        rules = answer_when(self.choice.result.measured.outcomes())
        return {
            "chosen": self.choice.result.name,
            "choice": self.choice.reason,
            "score": self.score,
            "seed": self.seed,
            "calibrant": __version__,
            **self.comparison.to_dict(),
            "answer_when": [without_nan(asdict(rule)) for rule in rules],
            "effect": self.effect.to_dict(),
            **({} if self.whole is None else {"whole": without_nan(asdict(self.whole))}),
        }

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was chosen and why, what it changes, and what it gives up."""
        gain = self.choice.result.improvement
        changed = (
            f"It changes the negative log-likelihood by {gain.difference:+.4f} (95 % interval "
            f"{gain.low:+.4f} to {gain.high:+.4f})."
        )
        # The uncalibrated model changes nothing.
        between = (changed,) if gain.low < gain.high else ()
        whole = () if self.whole is None else (self.whole.sentence,)
        return (f"Chosen: {self.choice.sentence}.", *between, *self.effect.sentences, *whole)

    def to_table(self) -> Table:
        """Return the methods, the chosen one marked, and the sentences."""
        table = self.comparison.to_table(self.choice.result)
        return replace(table, notes=(*table.notes, *self.sentences))
