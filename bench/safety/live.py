"""Does the lock hold so far: *what was recorded since the last look → counts of violations, look by look*.

Rules
- It reads the records that workers leave anyway: nothing is added to the load. A lease is known once it has ended, so
  this verdict is one look late, and never says SAFE: the whole history is judged after the run.
- Leases of earlier looks are kept while one still unseen may overlap them: as long as a TTL, at most `MOST_KEPT`. What
  lies further apart is found at the end. What was seen stays seen.
- A checker that fails says UNKNOWN.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bench.measure.outcomes import acquired
from bench.measure.record import RECORD_DTYPE, Records
from bench.measure.timeline import timelines
from bench.safety import rules
from bench.safety.judge import VIOLATIONS

MOST_KEPT = 20_000
_TIMES = ("granted_ns", "valid_until_ns", "work_end_ns", "release_sent_ns", "release_replied_ns")


@dataclass(frozen=True, slots=True)
class LiveVerdict:
    """What is known by now: `leases` that have ended, violations and overstays by kind; `failure` of the checker."""

    leases: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    failure: str | None = None

    @property
    def violations(self) -> dict[str, int]:
        """By kind, those that were seen."""
        return {kind: self.counts[kind] for kind in VIOLATIONS if self.counts.get(kind)}

    @property
    def verdict(self) -> str | None:
        """VIOLATED, UNKNOWN, or None while nothing was seen that must not be."""
        return "VIOLATED" if self.violations else "UNKNOWN" if self.failure else None


class LiveJudge:
    """Judges a history while it grows. `ttl_ms`: the longest TTL that was asked for. `verdict` may be read anywhere."""

    def __init__(self, ttl_ms: float) -> None:
        self._ttl_ns = int(ttl_ms * 1_000_000)
        self._kept: Records = np.empty(0, RECORD_DTYPE)
        self.verdict = LiveVerdict()

    def add(self, records: Records) -> LiveVerdict:
        """Judge what was recorded since the last call, by all workers; return the new verdict. Never raises."""
        before = self.verdict
        try:
            granted = acquired(records)
            if granted.any():
                fresh = records if granted.all() else records[granted]
                both = np.concatenate([self._kept, fresh])
                seen = _count(both)
                if any(seen.values()):  # else there is nothing to take off
                    seen.subtract(_count(self._kept))
                counts = {kind: before.counts.get(kind, 0) + max(number, 0) for kind, number in seen.items()}
                self._keep(both)
                self.verdict = LiveVerdict(before.leases + len(fresh), {**before.counts, **counts}, before.failure)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known from here on
            self.verdict = LiveVerdict(before.leases, before.counts, f"{type(error).__name__}: {error}")
        return self.verdict

    def _keep(self, records: Records) -> None:
        ended_ns = np.maximum(records["ended_ns"], records["release_replied_ns"])
        recent = np.flatnonzero(ended_ns >= ended_ns.max() - self._ttl_ns)
        if len(recent) > MOST_KEPT:
            recent = recent[np.argpartition(ended_ns[recent], len(recent) - MOST_KEPT)[-MOST_KEPT:]]
        self._kept = records[np.sort(recent)]


def _count(records: Records) -> Counter[str]:
    """How often each rule is broken among these leases."""
    counts: Counter[str] = Counter()
    times = [records[name][records[name] != 0] for name in _TIMES]
    for timeline, rows in timelines(records["resource"], times):
        part = records[rows]
        for kind, broken in rules.broken_rules(part, rules.order_leases(part, timeline), timeline):
            counts[kind] += len(broken[0])
    return counts
