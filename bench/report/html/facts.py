"""Any value of a result as a cell: *JSON value → words*.

Rules: nothing is left out; what is not known is an en dash. Source: bench.report.figures.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.report.figures import MISSING


def fact_text(value: object) -> str:
    """Return `value` in words: mappings as `name value, …`, lists parted by semicolons."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {fact_text(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        return "; ".join(fact_text(part) for part in value) or "none"
    if value is None:
        return MISSING
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
