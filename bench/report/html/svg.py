"""SVG as text: *shapes → markup, escaped*.

Rules: whatever comes from a result is escaped here and nowhere else; coordinates keep one digit after the point;
colours are classes of page.css, so that light, dark and print are its business. Source: SVG 1.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def number(value: float) -> str:
    """A coordinate: one digit after the point, none if it is 0."""
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, content: str = "", /, **attributes: float | str | None) -> str:
    """An element; `content` is markup. `_` at an attribute's end is dropped, others become `-`; None leaves it out."""
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            text = value if isinstance(value, str) else number(value)
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    head = " ".join(parts)
    return f"<{head}>{content}</{name}>" if content else f"<{head}/>"


def label(text: str, x: float, y: float, *, anchor: str = "start", style: str = "") -> str:
    """A piece of text at a point; `anchor` is start, middle or end."""
    return element(
        "text", escape(text), x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=style or None
    )


def line(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    """A straight line from one point to another."""
    return element("path", d=polyline([(x, y), (to_x, to_y)]), class_=style)


def polyline(points: Iterable[tuple[float, float] | None]) -> str:
    """The path through `points`; None is a gap."""
    parts, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
        else:
            parts.append(f"{pen}{number(point[0])} {number(point[1])}")
            pen = "L"
    return "".join(parts)


def staircase(edges: Sequence[float], tops: Sequence[float], bottoms: Sequence[float]) -> str:
    """The closed path of a step area: between `edges` (one more than the others) from `bottoms` to `tops`."""
    forth = [(x, top) for left, right, top in zip(edges, edges[1:], tops, strict=False) for x in (left, right)]
    lows = zip(edges, edges[1:], bottoms, strict=False)
    back = [(x, bottom) for left, right, bottom in [*lows][::-1] for x in (right, left)]
    return polyline([*forth, *back]) + "Z"


def drawing(width: float, height: float, content: str, *, name: str, about: str, style: str = "") -> str:
    """The whole: `name` and `about` are what a screen reader says."""
    shape = f'viewBox="0 0 {number(width)} {number(height)}"' + (f' class="{style}"' if style else "")
    return f'<svg {shape} role="img" tabindex="0" aria-label="{escape(name)}. {escape(about)}">{content}</svg>'
