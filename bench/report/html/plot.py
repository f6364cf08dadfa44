"""Pictures as SVG text: *series or rows, with their scales → a figure with a legend*.

Source: SVG 1.1.

Rules: this module escapes all text from a result. Coordinates keep one digit after the point.
Colours are classes of page.css, which has versions for light, dark and print. If a value is
missing, the line has a gap. Every axis has its unit. Each fault is a band over the whole height of
the picture, and the name of the fault is at the top of the band. Lines differ in their dashes as
well as in colour. Each mark has a text `key` that explains the mark. The legend lists the keys of
all marks in the picture. The title of a picture states the result, with the most important numbers.
`about` states the content and the unit of the picture. Every picture includes the data from which
it is drawn. The data have the same units as in result.json.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from textwrap import shorten

from bench.measure.section import builtins_of
from bench.measure.words import field_at, fields_in
from bench.report.html.scale import Scale

_WIDTH = 470.0
_HEIGHT = 262.0
LEFT = 60.0
RIGHT = _WIDTH - 12.0
BOTTOM = _HEIGHT - 44.0
TOP = 26.0
# The approximate width of a character. With this width, the code leaves out labels that would touch
# each other.
_LETTER_PX = 6.4
_SPOT_PX = 4.0
# This many ticks fit on a phone.
_FEW_TICKS = 4

Cell = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of data.

    `name`: the column's name in data files. `unit`: one of the names s, per_s, count, ratio, us and
    text. `label`: the column's name on the page.
    """

    name: str
    unit: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with a title, a legend and its data.

    `name`: an identifier, which is also used in the names of files. `legend`: names, each with a
    small drawing (SVG). `cursor`: the positions on the x axis that belong to the rows of the data.
    The reader selects a position with the mouse or the keyboard, and the page shows the row of this
    position. `drawn`: the data of a picture that the script of the page draws. Such a picture
    covers the whole width of the page. If `drawn` is not None, `svg` is empty.
    """

    name: str
    title: str
    about: str
    svg: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    cursor: Sequence[float] = ()
    legend: Mapping[str, str] = field(default_factory=dict)
    drawn: Mapping[str, object] | None = None


def data_of(
    kind: type, rows: Iterable[object], paths: Iterable[str] = ()
) -> tuple[list[Column], list[list[Cell]]]:
    """Return the columns and the rows of the data table below a picture.

    `rows`: sections of the type `kind`. `paths`: the fields that get a column. If `paths` is empty,
    all fields that pictures show get a column.
    """
    fields = [field_at(kind, path) for path in paths] or fields_in(kind, "data")
    columns = [Column("_".join(field.path), field.unit, field.label) for field in fields]
    return columns, [[builtins_of(field.of(row)) for field in fields] for row in rows]


# -- series over two axes --------------------------------------------------------------------------

Value = float | int | None


@dataclass(frozen=True, slots=True)
class Line:
    """A line through the points of `xs` and `ys`. `style`: a class of page.css.

    If a value in `ys` is None, the line has a gap at this point. If a point has a gap on both
    sides, the point is drawn as a dot.
    """

    xs: Sequence[float]
    ys: Sequence[Value]
    style: str
    key: str


@dataclass(frozen=True, slots=True)
class Area:
    """A filled area between two step curves with the heights `lows` and the heights `highs`. `lows`
    and `highs` have the same length, and `edges` is longer by one entry."""

    edges: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    style: str
    key: str


@dataclass(frozen=True, slots=True)
class Band:
    """A part of the x axis that has a name. A band covers the whole height of the picture."""

    start: float
    stop: float
    text: str
    key: str = "a fault"
    style: str = "fault"


@dataclass(frozen=True, slots=True)
class Spot:
    """A point. The point is drawn as a dot, or as a ring if `hollow` is true."""

    x: float
    y: float
    style: str
    key: str
    hollow: bool = False


Mark = Line | Area | Band | Spot


def plot(
    name: str,
    title: str,
    about: str,
    *,
    x: Scale,
    y: Scale,
    marks: Sequence[Mark],
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    xs: Sequence[float] = (),
) -> Figure:
    """Return the figure `name`, which draws `marks` over the scales `x` and `y`.

    Bands are drawn behind all other marks. Screen readers read the texts `title` and `about` aloud.
    `xs`: the position of each of the `rows` on the x axis.
    """
    x = replace(x, start=LEFT, end=RIGHT)
    y = replace(y, start=BOTTOM, end=TOP)
    bands = [mark for mark in marks if isinstance(mark, Band)]
    others = [
        (mark, drawn)
        for mark in marks
        if not isinstance(mark, Band) and (drawn := _mark(x, y, mark))
    ]
    parts = [*(_area(x, band) for band in bands), _grid(x, y), *(drawn for _, drawn in others)]
    parts += [_band_names(x, bands), label(y.name, 4, 12, style="name")]
    parts.append(label(x.name, (LEFT + RIGHT) / 2, _HEIGHT - 6, anchor="middle", style="name"))
    legend = _legend((mark.key, _swatch(mark)) for mark in (*(mark for mark, _ in others), *bands))
    svg = drawing(_HEIGHT, parts, f"{title}. {about}")
    return Figure(name, title, about, svg, columns, rows, [*map(x, xs)], legend)


def _grid(x: Scale, y: Scale) -> str:
    parts = []
    for tick in y.ticks:
        at = y(tick)
        parts += [
            stroke(LEFT, at, RIGHT, at, "grid"),
            label(y.label(tick), LEFT - 6, at + 4, anchor="end"),
        ]
    free = 0.0
    for place, tick in enumerate(x.ticks):
        at = x(tick)
        text = x.label(tick)
        parts.append(stroke(at, BOTTOM, at, BOTTOM + 4, "axis"))
        half = len(text) * _LETTER_PX / 2
        middle = min(at, RIGHT - half + 4)
        if middle - half >= free:
            parts.append(label(text, middle, BOTTOM + 17, anchor="middle", style=_odd(place, x)))
            free = middle + half + 6
    return "".join([*parts, stroke(LEFT, BOTTOM, RIGHT, BOTTOM, "axis")])


def _odd(place: int, scale: Scale) -> str:
    """Return the CSS class of a tick label. If an axis has many labels, every second label is
    hidden on a phone."""
    return "odd" if place % 2 and len(scale.ticks) > _FEW_TICKS else ""


def _area(x: Scale, band: Band) -> str:
    left = x(band.start)
    right = x(band.stop)
    title = element("title", escape(band.text))
    size = {"width": max(right - left, 1.5), "height": BOTTOM - TOP}
    return element("rect", title, x=left, y=TOP, **size, class_=band.style)


def _band_names(x: Scale, bands: Sequence[Band]) -> str:
    """Return the SVG of the edges and the names of the bands. The marks are drawn first, so they
    cannot hide the edges and the names."""
    parts = []
    free = 0.0
    for band in sorted(bands, key=lambda band: band.start):
        parts += [
            stroke(x(at), TOP, x(at), BOTTOM, f"{band.style}-edge")
            for at in (band.start, band.stop)
        ]
        # The title element of the band has the complete text.
        text = shorten(band.text, 40, placeholder=" …")
        width = len(text) * _LETTER_PX
        at = min(x(band.start) + 3, RIGHT - width)
        if at >= free:
            parts.append(label(text, at, TOP + 12, style=f"over {band.style}-text"))
            free = at + width
    return "".join(parts)


def _mark(x: Scale, y: Scale, mark: Line | Area | Spot) -> str:
    if isinstance(mark, Area):
        edges = [x(edge) for edge in mark.edges]
        steps = [*zip(edges, edges[1:], map(y, mark.highs), map(y, mark.lows), strict=False)]
        forth = [(at, high) for left, right, high, _ in steps for at in (left, right)]
        back = [(at, low) for left, right, _, low in reversed(steps) for at in (right, left)]
        return element("path", d=_polyline([*forth, *back]) + "Z", class_=_class_of(mark))
    if isinstance(mark, Spot):
        return circle(x(mark.x), y(mark.y), _SPOT_PX, _class_of(mark))
    points = [
        None if value is None else (x(at), y(value))
        for at, value in zip(mark.xs, mark.ys, strict=True)
    ]
    around = zip([None, *points], points, [*points[1:], None], strict=False)
    # If a point has no neighbours, no line shows it, so it is drawn as a dot.
    alone = [point for before, point, after in around if point and not before and not after]
    dots = [circle(*point, 2.2, f"alone {mark.style}") for point in alone]
    path = _polyline(points)
    return "".join([element("path", d=path, class_=_class_of(mark)) if "L" in path else "", *dots])


# -- the legend ------------------------------------------------------------------------------------


def _legend(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a legend with one entry for each name. If a name occurs with several small drawings,
    its entry shows all these drawings."""
    legend: dict[str, str] = {}
    for key, swatch in dict.fromkeys(named):
        legend[key] = legend.get(key, "") + swatch
    return legend


def _swatch(mark: Mark) -> str:
    """Return a small drawing of a mark for the legend. The width of the drawing is 26 SVG units,
    and its height is 10 SVG units."""
    style = _class_of(mark)
    if isinstance(mark, Line):
        return stroke(1, 5, 25, 5, "line faint" if "faint" in style else style)
    if isinstance(mark, Spot):
        return circle(13, 5, _SPOT_PX, style)
    edges = (
        [stroke(at, 0, at, 10, f"{style}-edge") for at in (3, 23)] if isinstance(mark, Band) else []
    )
    return element("rect", x=3, y=0, width=20, height=10, class_=style) + "".join(edges)


def _class_of(mark: Mark) -> str:
    if isinstance(mark, Line):
        return f"line {mark.style}"
    if isinstance(mark, Spot):
        return f"{'ring' if mark.hollow else 'dot'} {mark.style}"
    return mark.style if isinstance(mark, Band) else f"area {mark.style}"


# -- rows with their intervals ---------------------------------------------------------------------

# The height of a row, and the space above the first row and below the last.
_ROW_PX = 42.0
_FIRST_PX = 24.0
_LAST_PX = 40.0
# The distance from the top of a row to its interval.
_BAR_PX = 24.0
_MOST_LETTERS = 36
_MARGIN = 16.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a forest plot.

    `value`, `low`, `high`: the value and its interval (None: unknown). `text`: the figure in words.
    `style`: the class of page.css. `key`: the text that explains the style in the legend. `limit`:
    the value of the limit. The row has a mark at this value.
    """

    name: str
    value: float | None
    low: float | None
    high: float | None
    text: str
    style: str
    key: str
    limit: float | None = None


def forest(
    name: str,
    title: str,
    about: str,
    *,
    bars: Sequence[Bar],
    x: Scale,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    lines: Sequence[tuple[float, str]] = (),
    limit: str = "limit",
) -> Figure:
    """Return the figure `name`, which is a forest plot of `bars` over the scale `x`.

    Each row shows its name and its text above its interval. `lines`: pairs of a value and its name.
    A vertical line marks each value. `limit`: the text that the legend shows beside the mark for a
    limit.
    """
    x = replace(x, start=_MARGIN, end=_WIDTH - _MARGIN)
    bottom = _FIRST_PX + len(bars) * _ROW_PX
    tops = [_FIRST_PX + place * _ROW_PX for place in range(len(bars))]
    parts = []
    for place, tick in enumerate(x.ticks):
        parts += [_beside_bar(x(tick), top, "grid") for top in tops]
        parts.append(
            label(x.label(tick), x(tick), bottom + 15, anchor="middle", style=_odd(place, x))
        )
    for value, text in lines:
        if x.low <= value <= x.high:
            parts += [_beside_bar(x(value), top, "axis") for top in tops]
            parts.append(
                label(
                    text,
                    max(x(value), len(text) * _LETTER_PX / 2),
                    12,
                    anchor="middle",
                    style="name",
                )
            )
    parts.append(label(x.name, _WIDTH / 2, bottom + 33, anchor="middle", style="name"))
    parts += [_row(bar, x, _FIRST_PX + place * _ROW_PX) for place, bar in enumerate(bars)]
    drawn = [
        (bar.key, _bar(bar, 5.0, {"low": 2.0, "high": 24.0, "value": 13.0}.__getitem__))
        for bar in bars
    ]
    drawn += [(limit, stroke(13, 0, 13, 10, "mean")) for bar in bars if bar.limit is not None]
    picture = drawing(bottom + _LAST_PX, parts, f"{title}. {about}")
    return Figure(name, title, about, picture, columns, rows, legend=_legend(drawn))


def _beside_bar(at: float, top: float, style: str) -> str:
    """Return a short vertical line. The line covers only the interval of a row, so it does not
    cross the name of a row."""
    return stroke(at, top + _BAR_PX - 8, at, top + _BAR_PX + 8, style)


def _row(bar: Bar, x: Scale, top: float) -> str:
    short = bar.name if len(bar.name) <= _MOST_LETTERS else bar.name[: _MOST_LETTERS - 1] + "…"
    parts = [
        label(short, 0, top + 14, style="row"),
        label(bar.text, _WIDTH, top + 14, anchor="end", style="row"),
    ]
    at = top + _BAR_PX
    if bar.limit is not None:
        parts.append(stroke(x(bar.limit), at - 8, x(bar.limit), at + 8, "mean"))
    return "".join([*parts, _bar(bar, at, lambda end: x(getattr(bar, end)))])


def _bar(bar: Bar, y: float, x_of: Callable[[str], float]) -> str:
    """Return the SVG of a bar, which shows the interval and the value.

    An unknown interval or value is left out. `x_of("low")` returns the position of the bar's lower
    end. `x_of("high")` returns the position of the upper end, and `x_of("value")` returns the
    position of the point.
    """
    parts = []
    if bar.low is not None and bar.high is not None:
        left = x_of("low")
        right = x_of("high")
        style = f"line solid {bar.style}"
        parts = [
            stroke(left, y, right, y, style),
            *(stroke(at, y - 4, at, y + 4, style) for at in (left, right)),
        ]
    if bar.value is not None:
        parts.append(circle(x_of("value"), y, _SPOT_PX, f"dot {bar.style}"))
    return "".join(parts)


# -- rows with several measures --------------------------------------------------------------------

_LINE_PX = 27.0
_HEADS_PX = 38.0
_GAP_PX = 14.0
_BAR_SHARE = 0.42
# The width of a letter on a phone, which uses larger type.
_PHONE_LETTER_PX = 8.8
_TICK = "M{0} {1}l4 4l7 -9"


@dataclass(frozen=True, slots=True)
class Measure:
    """One value in a row of a picture.

    The value is drawn as a bar that has the style `style` and the text `text`. If the value is 0
    and the style is good, a green tick is drawn. If the value is None, only the text is drawn.
    `key`: the text that explains the mark in the legend.
    """

    value: float | None
    text: str
    style: str
    key: str


def harm(value: float | None, text: str, *, some: str, none: str) -> Measure:
    """Return a measure that shows how often an unwanted event happened.

    `value`: the number of events. If `value` is 0, the mark is a green tick. If `value` is above 0,
    the mark is a red bar. `none`: the text that explains the tick in the legend. `some`: the text
    that explains the bar in the legend. If `value` is None (unknown), only the text is drawn.
    """
    return Measure(value, text, "bad", some) if value else Measure(value, text, "good", none)


@dataclass(frozen=True, slots=True)
class Panel:
    """A column of measures. `head`: the heading of the column, which names the measured quantity.
    `unit`: the unit of the measures. The unit is printed below `head`."""

    head: str
    unit: str


# A heading and its rows. A row has a name, and a measure for each panel.
Group = tuple[str, Sequence[tuple[str, Sequence[Measure]]]]


def panels(
    name: str,
    title: str,
    about: str,
    *,
    heads: Sequence[Panel],
    groups: Sequence[Group],
) -> Figure:
    """Return the figure `name`, which shows groups of rows.

    The bars of a row are drawn side by side. Every panel scales its bars to its own largest value.
    Each row of the data has the group, the name and the measures.
    """
    letters = max(len(text) for _, named in groups for text, _ in named)
    first = letters * _PHONE_LETTER_PX + _GAP_PX
    width = (_WIDTH - first) / len(heads)
    measures = [measured for _, named in groups for _, measured in named]
    most = [
        max((one[place].value or 0.0 for one in measures), default=0.0)
        for place in range(len(heads))
    ]
    parts = []
    for place, panel in enumerate(heads):
        parts.append(label(panel.head, first + place * width, 12, style="row"))
        parts.append(label(panel.unit, first + place * width, 29, style="name"))
    top = _HEADS_PX
    for heading, named in groups:
        parts += [
            label(heading, 0, top + 19, style="row strong"),
            stroke(0, top + 25, _WIDTH, top + 25, "grid"),
        ]
        top += _LINE_PX
        for text, measured in named:
            parts.append(label(text, 0, top + 18, style="row"))
            for place, one in enumerate(measured):
                left = first + place * width
                share = (one.value or 0.0) / (most[place] or 1.0)
                parts.append(_measure(one, left, top + 13, share * _BAR_SHARE * (width - _GAP_PX)))
            top += _LINE_PX
    drawn = [one for measured in measures for one in measured if one.value is not None]
    legend = _legend(
        (one.key, _tick(8, 5) if _is_tick(one) else _bar_of(one, 3, 5, 20)) for one in drawn
    )
    return Figure(
        name,
        title,
        about,
        drawing(top + 8, parts, f"{title}. {about}"),
        [Column(name, "text") for name in ("group", "name", *(panel.head for panel in heads))],
        [
            [heading, text, *(one.value for one in measured)]
            for heading, named in groups
            for text, measured in named
        ],
        legend=legend,
    )


def _measure(one: Measure, left: float, middle: float, length: float) -> str:
    if one.value is None:
        return label(one.text, left, middle + 5)
    if _is_tick(one):
        return _tick(left, middle) + label(one.text, left + 17, middle + 5, style="row")
    return _bar_of(one, left, middle, max(length, 1.5)) + label(
        one.text, left + length + 5, middle + 5, style="row"
    )


def _is_tick(one: Measure) -> bool:
    return one.value == 0 and one.style == "good"


def _tick(left: float, middle: float) -> str:
    return element("path", d=_TICK.format(_number(left), _number(middle)), class_="tick good")


def _bar_of(one: Measure, left: float, middle: float, length: float) -> str:
    return element(
        "rect", x=left, y=middle - 5, width=length, height=10, class_=f"area {one.style}"
    )


# -- SVG -------------------------------------------------------------------------------------------


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, content: str = "", /, **attributes: float | str | None) -> str:
    """Return an SVG element. `content` is markup.

    The function drops a `_` at the end of an attribute's name and replaces every other `_` by `-`.
    An attribute that is None is left out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            text = value if isinstance(value, str) else _number(value)
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    head = " ".join(parts)
    return f"<{head}>{content}</{name}>" if content else f"<{head}/>"


def label(text: str, x: float, y: float, *, anchor: str | None = None, style: str = "") -> str:
    """Return the SVG element of a text that is printed at the position (`x`, `y`)."""
    return element("text", escape(text), x=x, y=y, text_anchor=anchor, class_=style or None)


def stroke(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    """Return a straight line."""
    return element("path", d=_polyline([(x, y), (to_x, to_y)]), class_=style)


def circle(x: float, y: float, radius: float, style: str) -> str:
    """Return a round mark."""
    return element("circle", cx=x, cy=y, r=radius, class_=style)


def _polyline(points: Iterable[tuple[float, float] | None]) -> str:
    parts = []
    pen = "M"
    for point in points:
        if point is None:
            pen = "M"
        else:
            parts.append(f"{pen}{_number(point[0])} {_number(point[1])}")
            pen = "L"
    return "".join(parts)


def drawing(height: float, parts: Sequence[str], label: str) -> str:
    """Return the whole drawing. A screen reader reads `label`."""
    shape = f'viewBox="0 0 {_number(_WIDTH)} {_number(height)}"'
    return (
        f'<svg {shape} role="img" tabindex="0" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )
