"""Thresholds as people read them: *an entry of a result's `thresholds` → one line, measured value, limit and margin*.

Rules: nothing is computed here. Source: bench.gates.threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.report.figures import in_unit, percent


def threshold_text(entry: Mapping[str, Any]) -> str:
    """Return what was measured, the limit and the margin, or why there is no answer."""
    value, limit = (in_unit(entry[name], entry["unit"]) for name in ("value", "limit"))
    if entry.get("infinite"):
        value = entry["reason"]
    parts = [f"measured {value}", f"limit {limit}"]
    if entry["margin"] is not None:
        parts.append(f"margin {_margin(entry)}")
    if entry["reason"] and entry["reason"] != value:
        parts.append(entry["reason"])
    return " · ".join(parts)


def _margin(entry: Mapping[str, Any]) -> str:
    margin, ratio = entry["margin"], entry["margin_ratio"]
    sign = "-" if margin < 0 else "+" if margin else ""
    return sign + (in_unit(abs(margin), entry["unit"]) if ratio is None else percent(abs(ratio)))
