"""A reliability diagram in text: one line per bin, accuracy as a bar, confidence as a mark."""

from rich.text import Text

from calibrant.bins import Bins

_WIDTH = 40


def reliability_diagram(bins: Bins, *, title: str = "reliability") -> Text:
    """Draw accuracy against confidence, bin by bin; empty bins are left out.

    The bar reaches to the accuracy, the mark stands at the mean confidence; what lies between them is
    the gap, dotted where the model promises more than it keeps.
    """
    text = Text(f"{title}: █ accuracy, ┃ confidence, ░ the gap\n", style="dim")
    columns = (bins.edges[:-1], bins.edges[1:], bins.accuracy, bins.confidence, bins.count)
    for low, high, accuracy, confidence, count in zip(*(c.tolist() for c in columns), strict=True):
        if not count:
            continue
        text.append(f"{low:.2f}-{high:.2f} ")
        text.append_text(_bar(accuracy, confidence))
        text.append(f" {accuracy:6.1%} {accuracy - confidence:+7.1%} {count:9,}\n")
    return text


def _bar(accuracy: float, confidence: float) -> Text:
    reached, promised = round(_WIDTH * accuracy), min(round(_WIDTH * confidence), _WIDTH - 1)
    low, high = sorted((reached, promised))
    line = "█" * reached + "░" * (high - reached) + " " * (_WIDTH - max(reached, high))
    bar = Text(line[:promised] + "┃" + line[promised + 1 :])
    bar.stylize("red" if promised > reached else "blue", low, high + 1)
    return bar
