"""Numbers as people read them: *seconds, shares, counts → short text*.

Rules: scaling to a unit happens only here, on print; a missing value is an en dash, never a zero.
Source: golang/perf, whose units are normalised at the door and scaled on print.
"""

from math import inf

from bench.measure.run_result import JudgedThreshold

MISSING = "–"
INFINITE = "∞"


def count(value: float | None) -> str:
    """Return a number with thousands separators; below 100 a fraction keeps one digit."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}"


def decimals(value: float | None, digits: int = 2) -> str:
    """Return a number with so many digits after the point."""
    return MISSING if value is None else f"{value:,.{digits}f}"


def counted(value: float, noun: str) -> str:
    """Return a number with what it counts: 1 user, 64 users."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def milliseconds(seconds: float | None) -> str:
    """Return seconds as ms with three significant digits and no unit (for a table whose head names
    it)."""
    return MISSING if seconds is None else three_digits(seconds * 1000)


def three_digits(value: float) -> str:
    """Return a number with its first three digits; below 1 with two after the point."""
    if value < 9.995:
        return f"{value:,.2f}"
    return f"{value:,.1f}" if value < 99.95 else f"{value:,.0f}"


def latency(seconds: float | None) -> str:
    """Return seconds with a fitting unit: µs below 0.1 ms, ms below 1 s, else s; ∞ for infinity."""
    if seconds is None or seconds == inf:
        return MISSING if seconds is None else INFINITE
    if seconds < 0.0001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{milliseconds(seconds)} ms" if seconds < 1 else f"{seconds:.2f} s"


def percent(ratio: float | None, digits: int = 1) -> str:
    """Return a share (1 = all) in per cent; what is not all is never rounded up to 100, nor
    something down to 0."""
    if ratio is None:
        return MISSING
    text = f"{ratio * 100:.{digits}f}"
    edge = 10**-digits
    if ratio < 1 and float(text) >= 100:
        text = f"> {100 - edge:.{digits}f}"
    elif ratio > 0 and float(text) == 0:
        text = f"< {edge:.{digits}f}"
    return f"{text} %"


def share(part: float, whole: float) -> str:
    """Return `part` of `whole` in per cent, an en dash when there is no whole."""
    return percent(part / whole) if whole else MISSING


def in_unit(value: float | None, unit: str) -> str:
    """Return a figure of a result with its unit: `unit` is s, us, per_s, ratio or count."""
    if value is None:
        return MISSING
    if unit == "s":
        return latency(value)
    if unit == "us":
        return f"{count(value)} µs"
    if unit == "per_s":
        return f"{count(value)}/s"
    if unit == "ratio":
        return percent(value, 2)
    return f"{value:.2f}" if value != int(value) and value < 10 else count(value)


def threshold_text(entry: JudgedThreshold) -> str:
    """Return what was measured, the limit and the margin, or why there is no answer."""
    value, limit = (in_unit(one, entry.unit) for one in (entry.value, entry.limit))
    if entry.infinite and entry.reason:
        value = entry.reason
    parts = [f"measured {value}", f"limit {limit}"]
    if entry.margin is not None:
        margin = abs(entry.margin)
        sign = "+" if entry.margin else ""
        if entry.margin < 0:
            sign = "-"
        size = percent(margin / abs(entry.limit)) if entry.limit else in_unit(margin, entry.unit)
        parts.append(f"margin {sign}{size}")
    if entry.reason and entry.reason != value:
        parts.append(entry.reason)
    return " · ".join(parts)
