"""Pictures as SVG text: *series, or rows with intervals, over scales → markup*. Source: SVG 1.1.

Rules: whatever comes from a result is escaped here; coordinates keep one digit after the point; colours are classes of
page.css, so that light, dark and print are its business. Gaps stay gaps; every axis has its unit; faults are bands over
the whole height with their name on top; lines differ by dash, not by colour alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from bench.report.html.scale import Label, Scale

_WIDTH, _HEIGHT = 470.0, 262.0
X_RANGE = LEFT, RIGHT = (60.0, _WIDTH - 12.0)
Y_RANGE = BOTTOM, TOP = (_HEIGHT - 44.0, 26.0)
_LETTER_PX = 6.4  # about the width of a character: labels that would touch are left out
_SPOT_PX = 4.0

Value = float | int | None


@dataclass(frozen=True, slots=True)
class Line:
    """A line through (xs, ys); None in ys is a gap, and a point between two gaps a dot. `style`: class of page.css."""

    xs: Sequence[float]
    ys: Sequence[Value]
    style: str


@dataclass(frozen=True, slots=True)
class Area:
    """Steps between `edges` (one more than the others), from `lows` up to `highs`."""

    edges: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    style: str


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of the x axis with a name."""

    start: float
    stop: float
    text: str
    style: str = "fault"


@dataclass(frozen=True, slots=True)
class Spot:
    """A point; `hollow`: drawn as a ring."""

    x: float
    y: float
    style: str
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """Both scales, what they measure (with the unit), and how their ticks are written."""

    x: Scale
    y: Scale
    x_name: str
    y_name: str
    x_label: Label
    y_label: Label


Mark = Line | Area | Band | Spot


def plot(axes: Axes, marks: Sequence[Mark], *, name: str, about: str) -> str:
    """Draw `marks` over `axes`, bands first. `name` and `about` are read out."""
    bands = [mark for mark in marks if isinstance(mark, Band)]
    others = [mark for mark in marks if not isinstance(mark, Band)]
    parts = [_areas(axes, bands), _grid(axes), *(_mark(axes, mark) for mark in others)]
    parts.append(_band_names(axes, bands))
    parts.append(_label(axes.y_name, 4, 12, style="name"))
    parts.append(_label(axes.x_name, (LEFT + RIGHT) / 2, _HEIGHT - 6, anchor="middle", style="name"))
    return _drawing(_WIDTH, _HEIGHT, "".join(parts), name=name, about=about)


def _grid(axes: Axes) -> str:
    parts = []
    for tick in axes.y.ticks:
        at = axes.y(tick)
        parts += [_stroke(LEFT, at, RIGHT, at, "grid"), _label(axes.y_label(tick), LEFT - 6, at + 4, anchor="end")]
    free = 0.0
    for place, tick in enumerate(axes.x.ticks):
        at, text = axes.x(tick), axes.x_label(tick)
        parts.append(_stroke(at, BOTTOM, at, BOTTOM + 4, "axis"))
        half = len(text) * _LETTER_PX / 2
        middle = min(at, RIGHT - half + 4)
        if middle - half >= free:
            parts.append(_label(text, middle, BOTTOM + 17, anchor="middle", style="odd" if place % 2 else ""))
            free = middle + half + 6
    return "".join([*parts, _stroke(LEFT, BOTTOM, RIGHT, BOTTOM, "axis")])


def _areas(axes: Axes, bands: Sequence[Band]) -> str:
    """The bands themselves, below everything else."""
    parts = []
    for band in bands:
        left, right = axes.x(band.start), axes.x(band.stop)
        area = {"x": left, "y": TOP, "width": max(right - left, 1.5), "height": BOTTOM - TOP}
        parts.append(_element("rect", _element("title", escape(band.text)), class_=band.style, **area))
    return "".join(parts)


def _band_names(axes: Axes, bands: Sequence[Band]) -> str:
    """Their edges and names, above everything else."""
    parts, free, most = [], 0.0, int((RIGHT - LEFT) / _LETTER_PX)
    for band in sorted(bands, key=lambda band: band.start):
        parts += [_stroke(axes.x(at), TOP, axes.x(at), BOTTOM, f"{band.style}-edge") for at in (band.start, band.stop)]
        text = band.text if len(band.text) <= most else f"{band.text[: most - 1]}…"
        at = min(axes.x(band.start) + 3, RIGHT - len(text) * _LETTER_PX)
        if at >= free:
            parts.append(_label(text, at, TOP + 12, style=f"over {band.style}-text"))
            free = at + len(text) * _LETTER_PX
    return "".join(parts)


def _mark(axes: Axes, mark: Line | Area | Spot) -> str:
    if isinstance(mark, Area):
        edges = [axes.x(edge) for edge in mark.edges]
        path = _staircase(edges, [axes.y(v) for v in mark.highs], [axes.y(v) for v in mark.lows])
        return _element("path", d=path, class_=f"area {mark.style}")
    if isinstance(mark, Spot):
        return _circle(axes.x(mark.x), axes.y(mark.y), _SPOT_PX, f"{'ring' if mark.hollow else 'dot'} {mark.style}")
    points = [None if y is None else (axes.x(x), axes.y(y)) for x, y in zip(mark.xs, mark.ys, strict=True)]
    around = zip([None, *points], points, [*points[1:], None], strict=False)
    alone = [point for before, point, after in around if point and not before and not after]  # no line shows it
    dots = [_circle(x, y, 2.2, f"dot {mark.style}") for x, y in alone]
    return "".join([_element("path", d=_polyline(points), class_=f"line {mark.style}"), *dots])


# -- rows with their intervals ---------------------------------------------------------------------------------------

_ROW_PX, _FIRST_PX, _LAST_PX = 24.0, 24.0, 40.0  # of a row, above the first, below the last
_NAMES_PX, _WORDS_PX, _MOST_LETTERS = 196.0, 122.0, 29
RANGE = (_NAMES_PX, _WIDTH - _WORDS_PX)


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: its name, the value with its interval (None = not known), the figure in words, its class; `limit`: where
    the row has a mark of its own."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    text: str
    style: str
    limit: float | None = None


def forest(
    bars: Sequence[Bar], x: Scale, x_label: Label, x_name: str, *, name: str, about: str,
    lines: Sequence[tuple[float, str]] = (),
) -> str:  # fmt: skip
    """Draw `bars` over `x` (whose pixels are `RANGE`), as meta-analyses do; `lines`: values to mark, with their names.

    The figure of a row stands in words beside it. On a phone it is as wide as here, as names would lie on points.
    """
    bottom = _FIRST_PX + len(bars) * _ROW_PX
    parts = []
    for place, tick in enumerate(x.ticks):
        at, odd = x(tick), "odd" if place % 2 else ""
        parts.append(_stroke(at, _FIRST_PX - 4, at, bottom, "grid"))
        parts.append(_label(x_label(tick), at, bottom + 15, anchor="middle", style=odd))
    for value, text in lines:
        if x.low <= value <= x.high:
            at = x(value)
            parts.append(_stroke(at, _FIRST_PX - 6, at, bottom, "mean"))
            parts.append(_label(text, at, 12, anchor="middle", style="name"))
    parts.append(_label(x_name, sum(RANGE) / 2, bottom + 33, anchor="middle", style="name"))
    parts += [_row(bar, x, _FIRST_PX + place * _ROW_PX + _ROW_PX / 2) for place, bar in enumerate(bars)]
    return _drawing(_WIDTH, bottom + _LAST_PX, "".join(parts), name=name, about=about, style="forest")


def _row(bar: Bar, x: Scale, y: float) -> str:
    short = bar.name if len(bar.name) <= _MOST_LETTERS else bar.name[: _MOST_LETTERS - 1] + "…"
    parts = [_label(short, 0, y + 4, style="row"), _label(bar.text, RANGE[1] + 10, y + 4, style="row")]
    if bar.low is not None and bar.high is not None:
        left, right, style = x(bar.low), x(bar.high), f"line solid {bar.style}"
        parts += [_stroke(left, y, right, y, style), *(_stroke(at, y - 4, at, y + 4, style) for at in (left, right))]
    if bar.value is not None:
        parts.append(_circle(x(bar.value), y, 4.0, f"dot {bar.style}"))
    if bar.limit is not None:
        parts.append(_stroke(x(bar.limit), y - 11, x(bar.limit), y + 11, "mean"))
    return "".join(parts)


# -- SVG -------------------------------------------------------------------------------------------------------------


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _element(name: str, content: str = "", /, **attributes: float | str | None) -> str:
    """An element; `content` is markup. `_` at an attribute's end is dropped, others become `-`; None leaves it out."""
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            text = value if isinstance(value, str) else _number(value)
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    head = " ".join(parts)
    return f"<{head}>{content}</{name}>" if content else f"<{head}/>"


def _label(text: str, x: float, y: float, *, anchor: str | None = None, style: str = "") -> str:
    return _element("text", escape(text), x=x, y=y, text_anchor=anchor, class_=style or None)


def _stroke(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    return _element("path", d=_polyline([(x, y), (to_x, to_y)]), class_=style)


def _circle(x: float, y: float, radius: float, style: str) -> str:
    return _element("circle", cx=x, cy=y, r=radius, class_=style)


def _polyline(points: Iterable[tuple[float, float] | None]) -> str:
    parts, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
        else:
            parts.append(f"{pen}{_number(point[0])} {_number(point[1])}")
            pen = "L"
    return "".join(parts)


def _staircase(edges: Sequence[float], tops: Sequence[float], bottoms: Sequence[float]) -> str:
    forth = [(x, top) for left, right, top in zip(edges, edges[1:], tops, strict=False) for x in (left, right)]
    lows = zip(edges, edges[1:], bottoms, strict=False)
    back = [(x, bottom) for left, right, bottom in [*lows][::-1] for x in (right, left)]
    return _polyline([*forth, *back]) + "Z"


def _drawing(width: float, height: float, content: str, *, name: str, about: str, style: str = "") -> str:
    """The whole: `name` and `about` are what a screen reader says."""
    shape = f'viewBox="0 0 {_number(width)} {_number(height)}"' + (f' class="{style}"' if style else "")
    return f'<svg {shape} role="img" tabindex="0" aria-label="{escape(name)}. {escape(about)}">{content}</svg>'
