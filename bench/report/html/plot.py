"""Lines and areas over two axes: *series, scales → one SVG picture*.

Rules: gaps stay gaps; every axis has its unit; faults are bands over the whole height with their name on top; lines
differ by dash, not by colour alone. Source: figure.py, scale.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bench.report.html import svg
from bench.report.html.scale import Label, Scale


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a picture and the margins around its axes; `names`: whether these are named."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    names: bool = True

    @property
    def x_range(self) -> tuple[float, float]:
        """From where to where the x axis goes."""
        return self.left, self.width - self.right

    @property
    def y_range(self) -> tuple[float, float]:
        """From the bottom to the top of the y axis."""
        return self.height - self.bottom, self.top


FULL = Frame(470.0, 262.0, left=60.0, right=12.0, top=26.0, bottom=44.0)
SMALL = Frame(250.0, 130.0, left=54.0, right=10.0, top=8.0, bottom=22.0, names=False)
X_RANGE, Y_RANGE = FULL.x_range, FULL.y_range
_LETTER_PX = 6.4  # about the width of a character: labels that would touch are left out

_PHONE_LETTER_PX, _SPOT_PX = 8.2, 4.0  # letters are larger beside a picture that is drawn smaller

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
    """A point with its name beside it, where there is room for one; `hollow`: drawn as a ring."""

    x: float
    y: float
    style: str
    text: str = ""
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


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def plot(axes: Axes, marks: Sequence[Mark], *, name: str, about: str, frame: Frame = FULL) -> str:
    """Draw `marks` over `axes`, bands first. `name` and `about` are read out."""
    bands = [mark for mark in marks if isinstance(mark, Band)]
    others = [mark for mark in marks if not isinstance(mark, Band)]
    parts = [_areas(axes, bands, frame), _grid(axes, frame), *(_mark(axes, mark) for mark in others)]
    parts.append(_band_names(axes, bands, frame))
    parts.append(_spot_names(axes, [mark for mark in others if isinstance(mark, Spot)], frame))
    if frame.names:
        parts.append(svg.label(axes.y_name, 4, 12, style="name"))
        middle = sum(frame.x_range) / 2
        parts.append(svg.label(axes.x_name, middle, frame.height - 6, anchor="middle", style="name"))
    return svg.drawing(frame.width, frame.height, "".join(parts), name=name, about=about)


def _grid(axes: Axes, frame: Frame) -> str:
    (left, right), (bottom, _) = frame.x_range, frame.y_range
    parts = []
    for tick in axes.y.ticks:
        at = axes.y(tick)
        parts += [svg.line(left, at, right, at, "grid"), svg.label(axes.y_label(tick), left - 6, at + 4, anchor="end")]
    free = 0.0
    for place, tick in enumerate(axes.x.ticks):
        at, text = axes.x(tick), axes.x_label(tick)
        parts.append(svg.line(at, bottom, at, bottom + 4, "axis"))
        half = len(text) * _LETTER_PX / 2
        middle = min(at, right - half + 4)
        if middle - half >= free:
            parts.append(svg.label(text, middle, bottom + 17, anchor="middle", style="odd" if place % 2 else ""))
            free = middle + half + 6
    return "".join([*parts, svg.line(left, bottom, right, bottom, "axis")])


def _areas(axes: Axes, bands: Sequence[Band], frame: Frame) -> str:
    """The bands themselves, below everything else."""
    bottom, top = frame.y_range
    parts = []
    for band in bands:
        left, right = axes.x(band.start), axes.x(band.stop)
        area = {"x": left, "y": top, "width": max(right - left, 1.5), "height": bottom - top}
        parts.append(svg.element("rect", svg.element("title", escape(band.text)), class_=band.style, **area))
    return "".join(parts)


def _band_names(axes: Axes, bands: Sequence[Band], frame: Frame) -> str:
    """Their edges and names, above everything else."""
    (bottom, top), (first, last) = frame.y_range, frame.x_range
    parts, free, most = [], 0.0, int((last - first) / _LETTER_PX)
    for band in sorted(bands, key=lambda band: band.start):
        parts += [svg.line(axes.x(at), top, axes.x(at), bottom, f"{band.style}-edge") for at in (band.start, band.stop)]
        text = band.text if len(band.text) <= most else f"{band.text[: most - 1]}…"
        at = min(axes.x(band.start) + 3, last - len(text) * _LETTER_PX)
        if at >= free:
            parts.append(svg.label(text, at, top + 12, style=f"over {band.style}-text"))
            free = at + len(text) * _LETTER_PX
    return "".join(parts)


def _mark(axes: Axes, mark: Line | Area | Spot) -> str:
    if isinstance(mark, Area):
        edges = [axes.x(edge) for edge in mark.edges]
        path = svg.staircase(edges, [axes.y(v) for v in mark.highs], [axes.y(v) for v in mark.lows])
        return svg.element("path", d=path, class_=f"area {mark.style}")
    if isinstance(mark, Spot):
        style = f"{'ring' if mark.hollow else 'dot'} {mark.style}"
        return svg.element("circle", cx=axes.x(mark.x), cy=axes.y(mark.y), r=_SPOT_PX, class_=style)
    points = [None if y is None else (axes.x(x), axes.y(y)) for x, y in zip(mark.xs, mark.ys, strict=True)]
    around = zip([None, *points], points, [*points[1:], None], strict=False)
    alone = [point for before, point, after in around if point and not before and not after]  # no line shows it
    dots = [svg.element("circle", cx=x, cy=y, r=2.2, class_=f"dot {mark.style}") for x, y in alone]
    return "".join([svg.element("path", d=svg.polyline(points), class_=f"line {mark.style}"), *dots])


def _spot_names(axes: Axes, spots: Sequence[Spot], frame: Frame) -> str:
    """The names of points, each beside, above or below its own where it covers nothing; else it is left to the data."""
    places = [(axes.x(spot.x), axes.y(spot.y)) for spot in spots]
    taken = [_Box(x - _SPOT_PX, y - _SPOT_PX, x + _SPOT_PX, y + _SPOT_PX) for x, y in places]
    parts, (first, last), named = [], frame.x_range, set[tuple[str, int, int]]()
    for spot, (x, y) in zip(spots, places, strict=True):
        known = (spot.text, round(x / 9), round(y / 9))  # two that lie on each other need one name
        if not spot.text or known in named:
            continue
        named.add(known)
        width = len(spot.text) * _PHONE_LETTER_PX
        for left, middle in ((x + 7, y), (x - 7 - width, y), (x - width / 2, y - 13), (x - width / 2, y + 13)):
            box = _Box(left, middle - 7, left + width, middle + 7)
            if left >= first and left + width <= last + 12 and not any(box.meets(other) for other in taken):
                taken.append(box)
                parts.append(svg.label(spot.text, left + width / 2, middle + 4, anchor="middle", style="over spot"))
                break
    return "".join(parts)
