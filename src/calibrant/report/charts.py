"""The charts as Vega-Lite specifications; the page fills in their data by name.

Colours are CSS variables, so that one drawing serves the light, dark and printed page. Marks that differ in
colour also differ in place, shape or dashes.
"""

from typing import Any, TypeAlias

import altair as alt

Layers: TypeAlias = alt.LayerChart | alt.FacetChart

BLUE, VERMILION, GREEN = "var(--blue)", "var(--vermilion)", "var(--green)"
INK, SOFT, LINE = "var(--ink)", "var(--soft)", "var(--line)"
_LINES = (BLUE, VERMILION, GREEN, "var(--purple)", "var(--orange)", SOFT)
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 2], [1, 2])


def specifications(scores: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """Return every chart by name.

    Args:
        scores: Names of the out-of-distribution scores, each of which gets a colour.
    """
    drawn = {
        "reliability": _reliability(),
        "histogram": _histogram(),
        "margins": _margins(),
        "risk": _risk(),
        "temperature": _temperature(),
        "detection": _detection(scores),
    }
    return {name: _finish(chart, height) for name, (chart, height) in drawn.items()}


def _reliability() -> tuple[Layers, int]:
    x = alt.X("low:Q", scale=alt.Scale(domain=[0, 1]), axis=_percents("confidence", grid=False))
    y = alt.Y("accuracy:Q", scale=alt.Scale(domain=[0, 1]), axis=_percents("accuracy"))
    bins = alt.Chart(alt.NamedData("bins")).transform_filter("datum.n > 0")
    tooltip = _gap_tooltip("confidence")
    bars = bins.mark_bar(color=BLUE, stroke="var(--card)", strokeWidth=1).encode(
        x=x, x2="high", y=y, y2=alt.datum(0), tooltip=tooltip
    )
    gap = bins.mark_bar(strokeWidth=1).encode(
        x=x, x2="high", y=y, y2="confidence", fill=_gap("-fill"), stroke=_gap(), tooltip=tooltip
    )
    band = bins.mark_rule(color=INK, strokeWidth=1.2).encode(
        x=alt.X("middle:Q"), y="band_low:Q", y2="band_high"
    )
    return alt.layer(bars, gap, _diagonal(), band), 300


def _histogram() -> tuple[Layers, int]:
    bins = alt.Chart(alt.NamedData("parts"))
    bars = bins.mark_bar(stroke="var(--card)", strokeWidth=0.5).encode(
        x=alt.X("low:Q", scale=alt.Scale(domain=[0, 1]), axis=_percents("confidence", grid=False)),
        x2="high",
        y=alt.Y("bottom:Q", stack=None, axis=_percents("share of samples"), scale=alt.Scale(domainMin=0)),
        y2="top",
        color=alt.Color(
            "outcome:N", scale=alt.Scale(domain=["correct", "wrong"], range=[BLUE, VERMILION]), legend=None
        ),
        tooltip=[
            alt.Tooltip("range:N", title="confidence"),
            alt.Tooltip("outcome:N", title="outcome"),
            alt.Tooltip("count:Q", format=",", title="samples"),
        ],
    )
    means = alt.Chart(alt.NamedData("means"))
    rules = means.mark_rule(strokeWidth=1.6, color=INK).encode(
        x="value:Q",
        strokeDash=alt.StrokeDash(
            "what:N",
            scale=alt.Scale(domain=["accuracy", "mean confidence"], range=[[1, 0], [4, 3]]),
            legend=None,
        ),
        tooltip=[alt.Tooltip("what:N", title="mean"), alt.Tooltip("value:Q", format=".1%")],
    )
    return alt.layer(bars, rules), 200


def _margins() -> tuple[Layers, int]:
    groups = alt.Chart(alt.NamedData("groups"))
    x = alt.X(
        "range:O",
        sort=None,
        axis=alt.Axis(
            title="logit margin, groups of equal count", labelAngle=0, labelOverlap=True, grid=False
        ),
    )
    y = alt.Y("accuracy:Q", scale=alt.Scale(domain=[0, 1]), axis=_percents("accuracy, confidence"))
    tooltip = _gap_tooltip("margin")
    gap = groups.mark_bar(width={"band": 0.34}, strokeWidth=1).encode(
        x=x, y=y, y2="confidence", fill=_gap("-fill"), stroke=_gap(), tooltip=tooltip
    )
    confidence = groups.mark_tick(color=INK, thickness=2.4, width={"band": 0.6}).encode(x=x, y="confidence:Q")
    accuracy = groups.mark_point(
        filled=True, color=BLUE, size=70, opacity=1, stroke="var(--card)", strokeWidth=1
    ).encode(x=x, y="accuracy:Q", tooltip=tooltip)
    return alt.layer(gap, confidence, accuracy), 240


def _risk() -> tuple[Layers, int]:
    x = alt.X("coverage:Q", scale=alt.Scale(domain=[0, 1]), axis=_percents("coverage", grid=False))
    y = alt.Y("risk:Q", axis=_percents("error rate"), scale=alt.Scale(domainMin=0, nice=True))
    lines = alt.Chart(alt.NamedData("curves")).mark_line(strokeWidth=2.2, interpolate="linear")
    colour = alt.Color(
        "role:N", scale=alt.Scale(domain=["after", "before"], range=[BLUE, VERMILION]), legend=None
    )
    dash = alt.StrokeDash(
        "role:N", scale=alt.Scale(domain=["after", "before"], range=[[1, 0], [6, 3]]), legend=None
    )
    mark = alt.Chart(alt.NamedData("here"))
    rule = mark.mark_rule(color=INK, strokeWidth=1.4).encode(x=x)
    dot = mark.mark_point(filled=True, color=INK, size=120, opacity=1).encode(x=x, y=y)
    return alt.layer(lines.encode(x=x, y=y, color=colour, strokeDash=dash), rule, dot), 300


def _temperature() -> tuple[Layers, int]:
    x = alt.X(
        "margin:Q",
        axis=alt.Axis(title="logit margin", grid=False, tickCount=8),
        scale=alt.Scale(nice=False, zero=True),
    )
    y = alt.Y("lowest:Q", axis=alt.Axis(title="temperature", tickCount=6), scale=alt.Scale(nice=False))
    wanted = (
        alt.Chart(alt.NamedData("wanted"))
        .mark_area(color=SOFT, opacity=0.22, stroke=SOFT, strokeOpacity=0.7, clip=True)
        .encode(x=x, y=y, y2="highest", detail="group:N")
    )
    single = (
        alt.Chart(alt.NamedData("single"))
        .mark_rule(color=VERMILION, strokeDash=[6, 3], strokeWidth=2)
        .encode(y="temperature:Q")
    )
    curve = (
        alt.Chart(alt.NamedData("curve"))
        .mark_line(color=BLUE, strokeWidth=2.6, clip=True)
        .encode(x=x, y="temperature:Q")
    )
    return alt.layer(wanted, single, curve), 280


def _detection(scores: tuple[str, ...]) -> tuple[Layers, int]:
    domain = list(scores) or ["score"]
    lines = (
        alt.Chart(alt.NamedData("roc"))
        .mark_line(strokeWidth=2, clip=True)
        .encode(
            x=alt.X(
                "passed:Q",
                scale=alt.Scale(domain=[0, 1]),
                axis=_percents("out-of-distribution inputs accepted"),
            ),
            y=alt.Y("kept:Q", scale=alt.Scale(domain=[0, 1]), axis=_percents("known inputs accepted")),
            color=alt.Color(
                "score:N",
                scale=alt.Scale(domain=domain, range=_cycle(_LINES, len(domain))),
                legend=alt.Legend(title=None, orient="bottom", columns=2, symbolStrokeWidth=2.4),
            ),
            strokeDash=alt.StrokeDash(
                "score:N", scale=alt.Scale(domain=domain, range=_cycle(_DASHES, len(domain)))
            ),
        )
    )
    return alt.layer(_diagonal(), lines), 300


def _diagonal() -> alt.Chart:
    ends = alt.InlineData([{"end": 0}, {"end": 1}])
    line = alt.Chart(ends).mark_line(color=INK, strokeDash=[4, 4], strokeWidth=1.2, opacity=0.7)
    drawn: alt.Chart = line.encode(x="end:Q", y="end:Q")
    return drawn


def _gap(part: str = "") -> Any:  # noqa: ANN401 - Altair's channels for fill and stroke have no common type
    over = alt.when("datum.accuracy < datum.confidence")
    return over.then(alt.value(f"var(--over{part})")).otherwise(alt.value(f"var(--under{part})"))


def _gap_tooltip(of: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("range:N", title=of),
        alt.Tooltip("accuracy:Q", format=".1%", title="accuracy"),
        alt.Tooltip("confidence:Q", format=".1%", title="mean confidence"),
        alt.Tooltip("n:Q", format=",", title="samples"),
    ]


def _percents(title: str, *, grid: bool = True) -> alt.Axis:
    return alt.Axis(title=f"{title} (%)", labelExpr="format(100 * datum.value, '~g')", grid=grid, tickCount=5)


def _cycle(values: tuple[Any, ...], n: int) -> list[Any]:
    return [values[i % len(values)] for i in range(n)]


def _finish(chart: Layers, height: int) -> dict[str, Any]:
    """Give a chart the width of its container, and the page's fonts and colours."""
    whole = (
        chart.properties(width="container", height=height, background="transparent")
        .configure(
            font="system-ui, sans-serif", autosize=alt.AutoSizeParams(type="fit-x", contains="padding")
        )
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=SOFT,
            titleColor=SOFT,
            gridColor=LINE,
            domainColor=LINE,
            tickColor=LINE,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=8,
        )
        .configure_legend(labelColor=INK, titleColor=SOFT, labelFontSize=12)
    )
    specification: dict[str, Any] = whole.to_dict()
    return specification
