"""A picture of the messages between clients and servers: *steps of several clients and their
servers → a figure*. All functions are pure.

Every client has a vertical line. All servers together have one vertical line at the right. A call
is an arrow to the line of the servers, and an answer is an arrow back to the client. All other
steps are drawn as dots. A bar beside the line of a client shows how long this client believes that
it holds the lock.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.report.html.plot import Column, Figure, circle, drawing, element, label, stroke

WIDTH = 470.0
FIRST = 66.0
LAST = WIDTH - 26.0
HEAD_PX = 30.0
ROW_PX = 24.0
# The width of a letter in the larger type of a phone.
LETTER_PX = 8.8


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a client or a server, which is a call, an answer or another event.

    `line`: the number of the vertical line on which the step is drawn. The line with the highest
    number is the line of the servers.
    """

    at_ms: float
    line: int
    text: str
    kind: Literal["call", "answer", "event"] = "event"


@dataclass(frozen=True, slots=True)
class HoldingSpan:
    """The time during which a client believes that it holds the lock.

    `begin`, `end`: the numbers of the first and the last step. `is_bad`: true if another client
    also holds the lock.
    """

    line: int
    begin: int
    end: int
    is_bad: bool


def sequence(
    name: str,
    title: str,
    about: str,
    *,
    lines: Sequence[str],
    moves: Sequence[Move],
    holdings: Sequence[HoldingSpan] = (),
) -> Figure:
    """Return the figure `name`. The figure is a picture of the `moves`.

    The data table of the figure also lists the `moves`. `lines`: the names of the clients, then the
    name of the servers.
    """
    places = [
        FIRST + (LAST - FIRST) * number / max(len(lines) - 1, 1) for number in range(len(lines))
    ]
    bottom = HEAD_PX + ROW_PX * len(moves) + 18
    parts = []
    for text, place in zip(lines, places, strict=True):
        parts.append(label(text, place, 14, anchor="middle", style="row strong"))
        parts.append(stroke(place, 20, place, bottom, "grid"))
    for one in holdings:
        top = HEAD_PX + ROW_PX * one.begin + 12
        height = ROW_PX * (one.end - one.begin)
        style = f"area {'bad' if one.is_bad else 'good'}"
        left = places[one.line] - 4
        parts.append(element("rect", x=left, y=top, width=8, height=height, class_=style))
    for number, move in enumerate(moves):
        parts += _drawn(move, HEAD_PX + ROW_PX * number, places)
    return Figure(
        name,
        title,
        about,
        drawing(bottom, parts, f"{title}. {about}"),
        [Column("after_ms", "count"), Column("who", "text"), Column("what", "text")],
        [[move.at_ms, lines[move.line], move.text] for move in moves],
        legend=_legend(moves, holdings, len(lines) - 1),
    )


def _legend(moves: Sequence[Move], holdings: Sequence[HoldingSpan], servers: int) -> dict[str, str]:
    """Return the marks that the picture uses, with their meanings. The legend shows only these
    marks."""
    legend = {}
    for is_bad, text in ((False, "holds the lock"), (True, "holds it beside another client")):
        if [one for one in holdings if one.is_bad is is_bad]:
            style = f"area {'bad' if is_bad else 'good'}"
            legend[text] = element("rect", x=0, y=1, width=26, height=8, class_=style)
    if [move for move in moves if move.kind == "event" or move.line == servers]:
        legend["event"] = circle(13, 5, 3.2, "dot c1")
    return legend


def _drawn(move: Move, top: float, places: Sequence[float]) -> Iterator[str]:
    """Yield the SVG elements of a move.

    The elements show the time, the text, and an arrow or a dot.
    """
    here = places[move.line]
    low = top + 17
    yield label(f"{move.at_ms:,.0f}", FIRST - 26, top + 12, anchor="end", style="name")
    is_server = move.line == len(places) - 1
    if is_server:
        yield _text(move.text, here - 8, top + 12, here - FIRST, anchor="end")
    else:
        yield _text(move.text, here + 9, top + 12, WIDTH - here - 9)
    if move.kind == "event" or is_server:
        yield circle(here, top + 9, 3.2, "dot c1")
        return
    begin = here + 5
    end = places[-1] - 1
    yield stroke(begin, low, end, low, "axis")
    tip, back = (begin, 5) if move.kind == "answer" else (end, -5)
    yield element(
        "path", d=f"M{tip + back:.1f} {low - 3:.1f}L{tip:.1f} {low:.1f}l{back} 3", class_="axis"
    )


def _text(text: str, x: float, y: float, room: float, *, anchor: str | None = None) -> str:
    """Return the text, which is cut if it is longer than its space.

    The table below the picture has the complete text.
    """
    most = int(room / LETTER_PX)
    shown = text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
    return label(shown, x, y, anchor=anchor, style="row over")
