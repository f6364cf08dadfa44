"""The oracle: *the history of all workers → SafetyReport*.

Rules
- Each part that is added holds all operations of its resources; a million operations take less than a second.
- A checker that fails says UNKNOWN, never SAFE.

Source: the rules in `rules.py`, the verdict in `report.py`.
"""

from collections import Counter
from typing import Any

import numpy as np

from bench.measure.outcomes import acquired
from bench.measure.record import OUTCOMES, RECORD_FIELDS, History, Records
from bench.measure.run_result import BrokenRule, Example, OperationFacts, SafetyReport, SafetyWord
from bench.measure.timeline import Integers, timelines
from bench.measure.verdict import TESTED_LEAST
from bench.safety import rules
from bench.safety.operations import invalid_grants, order_leases, trace_end_ns
from bench.safety.report import (
    EXAMPLES_PER_KIND,
    VIOLATIONS,
    Circumstances,
    blame,
    ignorance,
    not_tested,
)

NO_ATTEMPTS: Integers = np.empty((0, 2), np.int64)


class Judge:
    """Judges a history part by part. `ttl_ms`: the longest TTL that was asked for."""

    def __init__(self, ttl_ms: int, circumstances: Circumstances | None = None) -> None:
        self._ttl_ms = ttl_ms
        self._circumstances = circumstances or Circumstances()
        self._counts: Counter[str] = Counter()
        self._examples: list[Example] = []
        self._failure: str | None = None

    def add(self, records: Records, lost: Integers = NO_ATTEMPTS) -> None:
        """Judge all operations of some resources; `lost`: their earlier attempts, as in `History`.

        Never raises: a failure of the checker becomes UNKNOWN.
        """
        try:
            self._counts["operations"] += len(records)
            self._counts["acquired"] += int(acquired(records).sum())
            resources, asked_ns = _asked(records, lost)
            times = [*_times(records, self._ttl_ms), asked_ns]
            for timeline, chosen in timelines(np.concatenate([records["resource"], resources]), times):
                rows, asked = (chosen, chosen) if isinstance(chosen, slice) else np.split(chosen, [len(records)])
                part = records[rows]
                leases = order_leases(part, timeline)
                self._counts["contested"] += rules.contested(leases, part, timeline)
                self._counts["tested"] += rules.tested(leases, timeline.keys(resources[asked], asked_ns[asked]))
                self._counts["held"] += int((leases.end > leases.granted).sum())
                self._note("service_fault", part, *rules.service_faults(leases))
                self._note("client_overstay", part, *rules.client_overstays(leases, timeline))
                self._note("foreign_delete", part, *rules.foreign_deletes(leases, timeline))
                self._note("granted_invalid", part, invalid_grants(part))
                self._note("spurious_refusal", part, rules.spurious_refusals(part, timeline, self._ttl_ms))
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is not SAFE
            self._failure = f"the checker failed: {type(error).__name__}: {error}"

    @property
    def violated_resources(self) -> frozenset[int]:
        """The resources of the examples of violations so far."""
        found = (incident for incident in self._examples if incident.kind in VIOLATIONS)
        return frozenset(operation.resource for incident in found for operation in incident.operations)

    def report(self, torn: int = 0, missing_segments: int = 0) -> SafetyReport:
        """The verdict over all parts; `torn` and `missing_segments` as in `History`."""
        counts = self._counts
        tested = self._tested
        unknown = ignorance(counts["operations"], torn, missing_segments, self._circumstances)
        verdict, reason = self._verdict("; ".join(filter(None, (self._failure, unknown))) or None)
        return SafetyReport(
            verdict=verdict,
            reason=reason,
            violations=counts["service_fault"],
            service_faults=counts["service_fault"],
            client_overstays=counts["client_overstay"],
            granted_invalid=counts["granted_invalid"],
            foreign_deletes=counts["foreign_delete"],
            spurious_refusals=counts["spurious_refusal"],
            unexplained=counts["unexplained"],
            contested_leases=counts["contested"],
            tested_leases=tested,
            upper_bound_95=3 / tested if verdict == "SAFE" else None,
            examples=tuple(self._examples),
        )

    def _verdict(self, unknown: str | None) -> tuple[SafetyWord, str | None]:
        seen = [f"{self._counts[kind]} × {kind.replace('_', ' ')}" for kind in VIOLATIONS if self._counts[kind]]
        if seen:
            return "VIOLATED", ", ".join(seen) + (f"; besides, {unknown}" if unknown else "")
        if unknown:
            return "UNKNOWN", unknown
        if self._tested < TESTED_LEAST:
            return "NOT TESTED", not_tested(self._counts["held"], self._tested, unasked=self._unasked)
        return "SAFE", None

    @property
    def _unasked(self) -> bool:
        """Whether the servers took fewer commands than leases were granted: then nobody asked them for a lock."""
        commands = self._circumstances.commands
        return commands is not None and commands < self._counts["acquired"]

    @property
    def _tested(self) -> int:
        return 0 if self._unasked else self._counts["tested"]

    def _note(self, kind: BrokenRule, records: Records, *rows: Integers) -> None:
        count = len(rows[0])
        if not count:
            return
        at_ns = _happened_ns(kind, records, rows[-1])
        causes: list[str | None] = [None] * count
        if kind in VIOLATIONS:
            causes = [blame(at, self._ttl_ms, self._circumstances) for at in at_ns.tolist()]
            self._counts["unexplained"] += causes.count("unexplained")
        room = max(EXAMPLES_PER_KIND - self._counts[kind], 0)
        for position in range(min(room, count)):
            operations = tuple(describe(records[int(row[position])]) for row in rows)
            cause, at = causes[position], int(at_ns[position])
            self._examples.append(Example(kind=kind, at_ns=at, blame=cause, operations=operations))
        self._counts[kind] += count


def judge(history: History, ttl_ms: int, circumstances: Circumstances | None = None) -> SafetyReport:
    """Judge a whole history at once; see `Judge`. `ttl_ms`: the longest TTL that was asked for."""
    oracle = Judge(ttl_ms, circumstances)
    oracle.add(history.records, history.lost)
    return oracle.report(history.torn, history.missing_segments)


def describe(record: np.void) -> OperationFacts:
    """A record by field names, its outcomes in words."""
    fields: dict[str, Any] = {name: int(record[name]) for name in RECORD_FIELDS}
    code = fields["outcome"]
    words = {"outcome": OUTCOMES[code & 0xFF], "release_outcome": OUTCOMES[(code >> 8) & 0xFF]}
    return OperationFacts(**{**fields, **words})


def _asked(records: Records, lost: Integers) -> tuple[Integers, Integers]:
    """The resource and time of every attempt of which something was sent."""
    sent = records[records["attempt_ns"] > 0]
    return np.concatenate([sent["resource"], lost[:, 0]]), np.concatenate([sent["attempt_ns"], lost[:, 1]])


def _times(records: Records, ttl_ms: int) -> list[Integers]:
    """Every time that rules make keys of; 0 (did not happen) left out."""
    optional = ("granted_ns", "valid_until_ns", "work_end_ns", "release_sent_ns", "release_replied_ns")
    happened = [records[name][records[name] != 0] for name in optional]
    return [records["start_ns"], records["ended_ns"], trace_end_ns(records, ttl_ms), *happened]


def _happened_ns(kind: BrokenRule, records: Records, rows: Integers) -> Integers:
    field = {"foreign_delete": "release_sent_ns", "spurious_refusal": "ended_ns"}.get(kind, "granted_ns")
    return np.asarray(records[field][rows])
