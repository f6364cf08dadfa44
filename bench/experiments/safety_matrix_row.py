"""One row of the safety matrix: *a case that can be looked at → what was expected, what was seen, the verdict*.

Rules: a flaw that had to show and did not is `not shown`, a row that had to be safe and was not is `violated`; what
this machine cannot do is `skipped`, what another command measures is `not measured here`, each with its reason.
Source: README, "Safety"; the exit codes of `bench.experiments.verdict`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.safety.report import SafetyReport
from bench.topology.fleet import Fleet

AS_EXPECTED, NOT_SHOWN, VIOLATED = "as expected", "not shown", "violated"
SKIPPED, ELSEWHERE = "skipped", "not measured here"
PARTS = ("schedule", "load", "claim")

Figures = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Ground:
    """What a case is looked at on. `fleet`: three servers without persistence, not to be harmed.

    `quick`: a glance instead of a look; `seed` of every random choice; `server`: the program to start, None = look.
    `memory`: what several cases share.
    """

    fleet: Fleet
    seed: int
    quick: bool
    server: str | None
    scratch: Path
    run_id: str
    memory: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a case came to. `figures`: by name, their units in the names; `reason` where there is more to say."""

    seen: str
    verdict: str
    figures: Figures = field(default_factory=dict)
    reason: str | None = None
    safety: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One row to come: `part` of the matrix, the `recipe`, the `fault` it meets, what is `expected`, how to look."""

    part: str
    recipe: str
    fault: str
    expected: str
    about: str
    look: Callable[[Ground], Finding]

    def row(self, finding: Finding) -> dict[str, Any]:
        """The row of the result."""
        named = {name: getattr(self, name) for name in ("part", "recipe", "fault", "expected", "about")}
        return {**named, **asdict(finding)}


def cannot(verdict: str, reason: str) -> Finding:
    """The finding of a case that was not looked at."""
    return Finding("–", verdict, reason=reason)


def broken_rules(report: SafetyReport) -> str | None:
    """What of exclusion was broken, in words, or None. It is what a safe recipe must never show."""
    counts = {
        "service faults": report.service_faults,
        "grants after their end": report.granted_invalid,
        "foreign deletes": report.foreign_deletes,
        "unexplained": report.unexplained,
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or None


def judge_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The section `verdict`: violated before inconclusive before pass; nothing looked at is inconclusive."""
    found = {verdict: [row for row in rows if row["verdict"] == verdict] for verdict in (VIOLATED, NOT_SHOWN)}
    reasons = [_sentence(row) for bad in found.values() for row in bad]
    if not reasons and not any(row["verdict"] == AS_EXPECTED for row in rows):
        return {"status": "inconclusive", "reasons": ["no row could be looked at here"]}
    status = "violated" if found[VIOLATED] else "inconclusive" if reasons else "pass"
    return {"status": status, "reasons": reasons}


def _sentence(row: Mapping[str, Any]) -> str:
    more = f" ({row['reason']})" if row["reason"] else ""
    return f"{row['recipe']}, {row['fault']}: expected {row['expected']}, seen {row['seen']}{more}"
