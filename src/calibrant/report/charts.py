"""The charts as Vega-Lite specifications; the page fills in their data by name.

Specifications are plain dictionaries: importing Altair and building them with it takes a second. A test
checks them against Altair's copy of the schema. Colours are CSS variables, so that one drawing serves the
light, dark and printed page. Marks that differ in colour also differ in place, shape or dashes.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

Spec: TypeAlias = dict[str, Any]

BLUE, VERMILION, GREEN = "var(--blue)", "var(--vermilion)", "var(--green)"
INK, SOFT, LINE, CARD = "var(--ink)", "var(--soft)", "var(--line)", "var(--card)"
_LINES = (BLUE, VERMILION, GREEN, "var(--purple)", "var(--orange)", SOFT)
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 2], [1, 2])
#: Bins with fewer samples are drawn pale.
FEW = 10
_UNIT = {"domain": [0, 1]}
_TYPES = {"Q": "quantitative", "N": "nominal", "O": "ordinal"}
_CONFIG = {
    "font": "system-ui, sans-serif",
    "autosize": {"type": "fit-x", "contains": "padding"},
    "view": {"stroke": None},
    "axis": {
        "labelColor": SOFT,
        "titleColor": SOFT,
        "gridColor": LINE,
        "domainColor": LINE,
        "tickColor": LINE,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    },
    "legend": {"labelColor": INK, "titleColor": SOFT, "labelFontSize": 12},
}


def specifications(scores: tuple[str, ...] = ()) -> dict[str, Spec]:
    """Return every chart by name.

    Args:
        scores: Names of the out-of-distribution scores; each gets a colour.
    """
    return {
        "reliability": _reliability("confidence", "accuracy"),
        "positive": _reliability("probability of the class", "frequency of the class"),
        "histogram": _histogram(),
        "margins": _margins(),
        "groups": _groups(),
        "risk": _risk(),
        "temperature": _temperature(),
        "detection": _detection(scores),
    }


def _reliability(across: str, up: str) -> Spec:
    x = _field("low:Q", scale=_UNIT, axis=_percents(across, grid=False))
    y = _field("accuracy:Q", scale=_UNIT, axis=_percents(up))
    sides: Spec = {
        "x": x,
        "x2": {"field": "high"},
        "y": y,
        "tooltip": _gap_tooltip(across, up, across),
        # A bin of a few samples must not look like one of thousands.
        "opacity": {"condition": {"test": f"datum.n < {FEW}", "value": 0.3}, "value": 1},
    }
    bars = _layer("bins", _mark("bar", color=BLUE, stroke=CARD, strokeWidth=1), **sides, y2={"datum": 0})
    gap = _layer(
        "bins",
        _mark("bar", strokeWidth=1),
        **sides,
        y2={"field": "confidence"},
        fill=_gap("-fill"),
        stroke=_gap(),
    )
    band = _layer(
        "bins",
        _mark("rule", color=INK, strokeWidth=1.2),
        x=_field("middle:Q"),
        y=_field("band_low:Q"),
        y2={"field": "band_high"},
    )
    # Counts stand above the diagram, in two rows where one is too narrow for them.
    counts = [
        _layer(
            "bins",
            _mark("text", baseline="bottom", fontSize=9.5, color=SOFT),
            x=_field("middle:Q"),
            y={"value": -3 - 11 * row},
            text=_field("label:N"),
        )
        | {"transform": [{"filter": f"datum.n > 0 && datum.row == {row}"}]}
        for row in (0, 1)
    ]
    bars, gap, band = (each | {"transform": [{"filter": "datum.n > 0"}]} for each in (bars, gap, band))
    return _chart(300, bars, gap, _diagonal(), band, *counts)


def _histogram() -> Spec:
    bars = _layer(
        "parts",
        _mark("bar", stroke=CARD, strokeWidth=0.5),
        x=_field("low:Q", scale=_UNIT, axis=_percents("confidence", grid=False)),
        x2={"field": "high"},
        y=_field("bottom:Q", stack=None, axis=_percents("share of samples"), scale={"domainMin": 0}),
        y2={"field": "top"},
        color=_field("outcome:N", scale=_scale(["correct", "wrong"], [BLUE, VERMILION]), legend=None),
        tooltip=[
            _field("range:N", title="confidence"),
            _field("outcome:N", title="outcome"),
            _field("count:Q", format=",", title="samples"),
        ],
    )
    rules = _layer(
        "means",
        _mark("rule", strokeWidth=1.6, color=INK),
        x=_field("value:Q"),
        strokeDash=_field(
            "what:N", scale=_scale(["accuracy", "mean confidence"], [[1, 0], [4, 3]]), legend=None
        ),
        tooltip=[_field("what:N", title="mean"), _field("value:Q", format=".1%")],
    )
    room = _layer("parts", _mark("point", opacity=0), x=_field("low:Q"), y=_field("room:Q"))
    return _chart(200, bars, rules, room)


def _margins() -> Spec:
    axis = {
        "title": "logit margin, groups of equal count",
        "labelAngle": 0,
        "labelOverlap": True,
        "grid": False,
    }
    x = _field("range:O", sort=None, axis=axis)
    tooltip = _gap_tooltip("margin")
    gap = _layer(
        "groups",
        _mark("bar", width={"band": 0.34}, strokeWidth=1),
        x=x,
        y=_field("accuracy:Q", scale=_UNIT, axis=_percents("accuracy, confidence")),
        y2={"field": "confidence"},
        fill=_gap("-fill"),
        stroke=_gap(),
        tooltip=tooltip,
    )
    tick = _mark("tick", color=INK, thickness=2.4, width={"band": 0.6})
    dot = _mark("point", filled=True, color=BLUE, size=70, opacity=1, stroke=CARD, strokeWidth=1)
    confidence = _layer("groups", tick, x=x, y=_field("confidence:Q"))
    accuracy = _layer("groups", dot, x=x, y=_field("accuracy:Q"), tooltip=tooltip)
    return _chart(240, gap, confidence, accuracy)


def _groups() -> Spec:
    y = _field("name:N", sort=None, axis={"title": None, "labelLimit": 220, "grid": True})
    offset = _field("role:N", sort=["before", "after"])
    x = _field("low:Q", axis=_percents("mean confidence minus accuracy"), scale={"nice": True})
    color = _field("role:N", scale=_scale(["after", "before"], [BLUE, VERMILION]), legend=None)
    shape = _field("role:N", scale=_scale(["after", "before"], ["circle", "diamond"]), legend=None)
    tooltip = [
        _field("name:N", title="group"),
        _field("title:N", title="of"),
        _field("gap:Q", format="+.1%", title="gap"),
        _field("low:Q", format="+.1%", title="from"),
        _field("high:Q", format="+.1%", title="to"),
        _field("n:Q", format=",", title="samples"),
    ]
    zero: Spec = {
        "data": {"values": [{"zero": 0}]},
        "mark": _mark("rule", color=INK, strokeDash=[4, 4], strokeWidth=1.2, opacity=0.7),
        "encoding": {"x": _field("zero:Q")},
    }
    place: Spec = {"y": y, "yOffset": offset, "color": color, "tooltip": tooltip}
    span = _layer("gaps", _mark("rule", strokeWidth=1.8), x=x, x2={"field": "high"}, **place)
    dot = _mark("point", filled=True, size=70, opacity=1, stroke=CARD, strokeWidth=1)
    dots = _layer("gaps", dot, x=_field("gap:Q"), shape=shape, **place)
    return _chart(300, zero, span, dots)  # the page makes it as high as its groups need


def _risk() -> Spec:
    x = _field("coverage:Q", scale=_UNIT, axis=_percents("coverage", grid=False))
    y = _field("risk:Q", axis=_percents("error rate"), scale={"domainMin": 0, "nice": True})
    roles = ["after", "before", "guaranteed"]
    lines = _layer(
        "curves",
        _mark("line", strokeWidth=2.2, interpolate="linear"),
        x=x,
        y=y,
        color=_field("role:N", scale=_scale(roles, [BLUE, VERMILION, GREEN]), legend=None),
        strokeDash=_field("role:N", scale=_scale(roles, [[1, 0], [6, 3], [2, 2]]), legend=None),
    )
    rule = _layer("here", _mark("rule", color=INK, strokeWidth=1.4), x=x)
    dot = _layer("here", _mark("point", filled=True, color=INK, size=120, opacity=1), x=x, y=y)
    return _chart(300, lines, rule, dot)


def _temperature() -> Spec:
    x = _field(
        "margin:Q",
        axis={"title": "logit margin", "grid": False, "tickCount": 8},
        scale={"nice": False, "zero": True},
    )
    wanted = _layer(
        "wanted",
        _mark("area", color=SOFT, opacity=0.22, stroke=SOFT, strokeOpacity=0.7, clip=True),
        x=x,
        y=_field("lowest:Q", axis={"title": "temperature", "tickCount": 6}, scale={"nice": False}),
        y2={"field": "highest"},
        detail=_field("group:N"),
    )
    dashed = _mark("rule", color=VERMILION, strokeDash=[6, 3], strokeWidth=2)
    single = _layer("single", dashed, y=_field("temperature:Q"))
    line = _mark("line", color=BLUE, strokeWidth=2.6, clip=True)
    curve = _layer("curve", line, x=x, y=_field("temperature:Q"))
    return _chart(280, wanted, single, curve)


def _detection(scores: tuple[str, ...]) -> Spec:
    names = list(scores) or ["score"]
    legend = {"title": None, "orient": "bottom", "columns": 2, "symbolStrokeWidth": 2.4}
    lines = _layer(
        "roc",
        _mark("line", strokeWidth=2, clip=True),
        x=_field("passed:Q", scale=_UNIT, axis=_percents("out-of-distribution inputs accepted")),
        y=_field("kept:Q", scale=_UNIT, axis=_percents("known inputs accepted")),
        color=_field("score:N", scale=_scale(names, _cycle(_LINES, len(names))), legend=legend),
        strokeDash=_field("score:N", scale=_scale(names, _cycle(_DASHES, len(names)))),
    )
    return _chart(300, _diagonal(), lines)


def _diagonal() -> Spec:
    mark = _mark("line", color=INK, strokeDash=[4, 4], strokeWidth=1.2, opacity=0.7)
    ends = {"values": [{"end": 0}, {"end": 1}]}
    return {"data": ends, "mark": mark, "encoding": {"x": _field("end:Q"), "y": _field("end:Q")}}


def _gap(part: str = "") -> Spec:
    over = {"test": "datum.accuracy < datum.confidence", "value": f"var(--over{part})"}
    return {"condition": [over], "value": f"var(--under{part})"}


def _gap_tooltip(of: str, up: str = "accuracy", across: str = "confidence") -> list[Spec]:
    return [
        _field("range:N", title=of),
        _field("accuracy:Q", format=".1%", title=up),
        _field("confidence:Q", format=".1%", title=f"mean {across}"),
        # Of weighted samples with one decimal; whole numbers have none.
        _field("n:Q", format=",.1~f", title="samples"),
    ]


def _percents(title: str, *, grid: bool = True) -> Spec:
    return {
        "title": f"{title} (%)",
        "labelExpr": "format(100 * datum.value, '~g')",
        "grid": grid,
        "tickCount": 5,
    }


def _scale(domain: Sequence[str], range_: Sequence[Any]) -> Spec:
    return {"domain": list(domain), "range": list(range_)}


def _cycle(values: tuple[Any, ...], n: int) -> list[Any]:
    return [values[i % len(values)] for i in range(n)]


def _field(name: str, **options: Any) -> Spec:  # noqa: ANN401  # any property of a channel
    """Return what a channel shows: a field and, after the colon, the first letter of its type."""
    field, letter = name.split(":")
    return {"field": field, "type": _TYPES[letter], **options}


def _mark(kind: str, **look: Any) -> Spec:  # noqa: ANN401  # any property of a mark
    return {"type": kind, **look}


def _layer(data: str, mark: Spec, **encoding: Any) -> Spec:  # noqa: ANN401  # a channel or a list of them
    return {"data": {"name": data}, "mark": mark, "encoding": encoding}


def _chart(height: int, *layers: Spec) -> Spec:
    """Return layers as wide as their container, in the page's fonts and colours."""
    return {
        "layer": list(layers),
        "width": "container",
        "height": height,
        "background": "transparent",
        "config": _CONFIG,
    }
