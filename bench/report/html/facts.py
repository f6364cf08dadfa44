"""Any value of a result as a cell: *JSON value → words*.

Rules: nothing is left out; what is not known is an en dash. Source: bench.report.figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from bench.report.figures import MISSING
from bench.scenario import Scenario
from bench.scenario.quantity import delay_text, skew_text


def scenario_facts(scenario: Scenario) -> dict[str, str]:
    """Return every key of a resolved scenario in words; times to wait and skew as a scenario file has them."""
    said = {name: fact_text(value) for name, value in asdict(scenario).items()}
    written = {"hold": delay_text(scenario.hold), "think": delay_text(scenario.think), "skew": skew_text(scenario.skew)}
    return said | written


def fact_text(value: object) -> str:
    """Return `value` in words: mappings as `name value, …`, lists parted by semicolons."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {fact_text(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        return "; ".join(fact_text(part) for part in value) or "none"
    if value is None:
        return MISSING
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
