"""What must not change at all: *costs per acquire of two sides → the same, more or fewer, exactly*.

Rules: these are counts, not measurements: one command more is one command more, so there is no tolerance. More fails;
fewer passes and is said, so that the baseline can be renewed. Source: README, "Gate your CI".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ExactCosts:
    """What one acquire of a free resource and its release cost, N instances together, and one client's connections.

    Averages over a fixed number of cycles; where every cycle is alike they are whole numbers.
    """

    commands: float
    bytes_sent: float
    bytes_received: float
    round_trips: float
    connections: float
    connections_at_start: float


def judge_exact(baseline: ExactCosts, candidate: ExactCosts) -> dict[str, Any]:
    """Return the section `exact`: `rows` (name, first, second, verdict) and `failures` in words."""
    rows = [_row(name, value, getattr(candidate, name)) for name, value in asdict(baseline).items()]
    failures = [
        f"{row['name'].replace('_', ' ')} per acquire: {row['first']:g} → {row['second']:g}"
        for row in rows
        if row["verdict"] == "more"
    ]
    return {"rows": rows, "failures": failures, "skipped": None}


def skipped(reason: str) -> dict[str, Any]:
    """Return the section `exact` when nothing could be counted."""
    return {"rows": [], "failures": [], "skipped": reason}


def _row(name: str, first: float, second: float) -> Mapping[str, Any]:
    verdict = "same" if first == second else "more" if second > first else "fewer"
    return {"name": name, "first": first, "second": second, "verdict": verdict}
