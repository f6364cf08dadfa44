"""Values with their intervals, one row each: *rows, a scale → one SVG picture*.

Rules: the figure of a row stands in words beside it, so that nobody must read it off; a row without an interval is a
bare point; reference lines are named. On a phone it is as wide as here and scrolls, as names would lie on points.
Source: the forest plots of meta-analyses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.report.html import svg
from bench.report.html.scale import Label, Scale

_WIDTH, _ROW, _TOP, _BOTTOM = 470.0, 24.0, 24.0, 40.0
_NAMES, _WORDS = 196.0, 122.0
RANGE = (_NAMES, _WIDTH - _WORDS)
_MOST_LETTERS = 29


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: its name, the value with its interval (None = not known), the figure in words, its class.

    `other`: a second value to stand beside it, drawn as a ring.
    """

    name: str
    value: float | None
    low: float | None
    high: float | None
    text: str
    style: str
    other: float | None = None


def forest(
    bars: Sequence[Bar], x: Scale, x_label: Label, x_name: str, *, name: str, about: str,
    lines: Sequence[tuple[float, str]] = (),
) -> str:  # fmt: skip
    """Draw `bars` over `x` (whose pixels are `RANGE`); `lines`: values to be marked, with their names."""
    bottom = _TOP + len(bars) * _ROW
    parts = []
    for place, tick in enumerate(x.ticks):
        at, odd = x(tick), "odd" if place % 2 else ""
        parts.append(svg.line(at, _TOP - 4, at, bottom, "grid"))
        parts.append(svg.label(x_label(tick), at, bottom + 15, anchor="middle", style=odd))
    for value, text in lines:
        if x.low <= value <= x.high:
            at = x(value)
            parts.append(svg.line(at, _TOP - 6, at, bottom, "mean"))
            parts.append(svg.label(text, at, 12, anchor="middle", style="name"))
    parts.append(svg.label(x_name, sum(RANGE) / 2, bottom + 33, anchor="middle", style="name"))
    parts += [_row(bar, x, _TOP + place * _ROW + _ROW / 2) for place, bar in enumerate(bars)]
    return svg.drawing(_WIDTH, bottom + _BOTTOM, "".join(parts), name=name, about=about, style="forest")


def _row(bar: Bar, x: Scale, y: float) -> str:
    short = bar.name if len(bar.name) <= _MOST_LETTERS else bar.name[: _MOST_LETTERS - 1] + "…"
    parts = [svg.label(short, 0, y + 4, style="row"), svg.label(bar.text, _WIDTH - _WORDS + 10, y + 4, style="row")]
    if bar.low is not None and bar.high is not None:
        left, right, style = x(bar.low), x(bar.high), f"line solid {bar.style}"
        parts += [svg.line(left, y, right, y, style), *(svg.line(at, y - 4, at, y + 4, style) for at in (left, right))]
    for value, size, mark in ((bar.other, 5.0, "ring"), (bar.value, 4.0, "dot")):
        if value is not None:
            parts.append(svg.element("circle", cx=x(value), cy=y, r=size, class_=f"{mark} {bar.style}"))
    return "".join(parts)
