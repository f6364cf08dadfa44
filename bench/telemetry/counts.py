"""What the operations of a run add up to: *history records → data points*, by the definitions of bench.measure.

Rules
- Every record is counted once: latencies, outcomes and attempts when it appears, votes only once no round of it can be
  open any more, so both may be fed from different places of the same history.
- Whole runs are counted, with warm-up and drain: sums equal `totals` and `releases` of result.json.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bench.measure import outcomes
from bench.measure.facts import Window
from bench.measure.latency import WAITS, add_waits, handoffs, waiting_of
from bench.measure.outcomes import acquired
from bench.measure.record import OUTCOME_CODES, RECORD_DTYPE, Records
from bench.measure.sums import Sums
from bench.measure.workers import WorkerNote, added
from bench.telemetry.load_log import Extension
from bench.telemetry.points import NS_PER_S, Buckets, DataPoint, Exemplar, point
from bench.telemetry.table import ACQUIRE_OUTCOMES, EXTEND_OUTCOMES, RELEASE_OUTCOMES

Exemplars = Mapping[str, Sequence[Exemplar]]  # of acquires, by outcome


class OperationCounts:
    """Adds up a run. `quorum`: the votes that win."""

    def __init__(self, quorum: int) -> None:
        self._quorum = quorum
        self._acquires = {name: Buckets() for name in ACQUIRE_OUTCOMES}
        self._attempts = {name: Buckets(1) for name in ACQUIRE_OUTCOMES}
        self._releases = {name: Buckets() for name in RELEASE_OUTCOMES}
        self._plain = {name: Buckets() for name in ("hold", "handoff", "validity", "dead_time")}
        self._votes: Counter[str] = Counter(dict.fromkeys(outcomes.KINDS, 0))
        self._margin = Buckets(1)
        self._split_votes = 0
        self._waiting = Sums(WAITS)

    def add(self, records: Records) -> None:
        """Count what these operations took and how they ended."""
        won, codes = acquired(records), records["outcome"] & 0xFF
        took, rounds = records["ended_ns"] - records["intended_ns"], outcomes.attempts_of(records)
        for name in ACQUIRE_OUTCOMES:
            rows = codes == OUTCOME_CODES[name]
            self._acquires[name].add(took[rows])
            self._attempts[name].add(rounds[rows])
        released = (records["outcome"] >> 8) & 0xFF
        lasted = records["release_replied_ns"] - records["release_sent_ns"]
        for name in RELEASE_OUTCOMES:
            self._releases[name].add(lasted[released == OUTCOME_CODES[name]])
        sent = records["release_sent_ns"]
        self._plain["hold"].add((sent - records["granted_ns"])[won & (sent > 0)])
        self._plain["validity"].add((records["valid_until_ns"] - records["granted_ns"])[won])
        split_votes = outcomes.split_votes_of(records)
        self._plain["dead_time"].add((records["attempt_ns"] - records["start_ns"])[won & (split_votes > 0)])
        self._split_votes += int(split_votes.sum())
        add_waits(self._waiting, records, records)

    def add_handoffs(self, records: Records, window: Window) -> None:
        """Count the hand-offs whose release was sent in `window`, among all operations of their resources."""
        self._plain["handoff"].add(handoffs(records, window))

    def add_votes(self, records: Records) -> None:
        """Count the votes of operations that are not patched any more."""
        self._votes.update(outcomes.count_votes(records))
        closed = acquired(records) & (outcomes.votes_of(records, "undecided") == 0)
        self._margin.add(outcomes.votes_of(records, "granted")[closed] - self._quorum)

    def waiting(self, notes: Sequence[WorkerNote]) -> Iterator[DataPoint]:
        """How those waited who had to, also by what the recipes of these workers counted."""
        found = waiting_of(self._waiting, 0, added(note.figures for note in notes))
        yield point("redlock.handoff.turns", found.wakeups)
        yield point("redlock.acquire.polls", found.polls)
        if found.jain is not None and found.longest_s is not None:
            yield point("redlock.acquire.longest", found.longest_s)
            yield point("redlock.callers.fairness", found.jain)

    @property
    def operations(self) -> int:
        """Acquires that returned."""
        return sum(buckets.count for buckets in self._acquires.values())

    @property
    def leases(self) -> int:
        """Those of them that got the lock."""
        return self._acquires["acquired"].count

    def points(self, exemplars: Exemplars) -> Iterator[DataPoint]:
        """All of it. Of each closed set every member is there, with 0 if it never happened."""
        for name, buckets in self._acquires.items():
            took = point("redlock.acquire.duration", buckets, redlock_outcome=name)
            yield replace(took, exemplars=tuple(exemplars.get(name, ())))
            yield point("redlock.acquire.outcomes", buckets.count, redlock_outcome=name)
        for name, buckets in self._attempts.items():
            yield point("redlock.acquire.attempts", buckets, redlock_outcome=name)
        for name, buckets in self._releases.items():
            yield point("redlock.release.duration", buckets, redlock_outcome=name)
        yield point("redlock.leases.gone", self._releases["gone"].count)
        yield point("redlock.hold.duration", self._plain["hold"])
        yield point("redlock.handoff.duration", self._plain["handoff"])
        yield point("redlock.lease.validity", self._plain["validity"])
        yield point("redlock.split_vote.dead_time", self._plain["dead_time"])
        yield point("redlock.split_votes", self._split_votes)
        yield point("redlock.vote.margin", self._margin)
        for name, number in self._votes.items():
            yield point("redlock.votes", number, redlock_vote=name)


class Extensions:
    """How long extensions took, by outcome: what no record of an operation says."""

    def __init__(self) -> None:
        self._buckets = {name: Buckets() for name in EXTEND_OUTCOMES}

    def add(self, extensions: Sequence[Extension]) -> None:
        """Count these."""
        for name, buckets in self._buckets.items():
            took = [one.replied_ns - one.sent_ns for one in extensions if one.outcome == name]
            buckets.add(np.array(took, np.int64))

    def points(self) -> Iterator[DataPoint]:
        """One histogram per outcome; none while nothing was ever extended."""
        if any(buckets.count for buckets in self._buckets.values()):
            for name, buckets in self._buckets.items():
                yield point("redlock.extend.duration", buckets, redlock_outcome=name)


class Occupancy:
    """Who holds a lease and who waits, on average over an interval; how fast leases are acquired. From `now_ns` on.

    What is told is of the interval before the last: those who were at it then have been recorded by now.
    """

    def __init__(self, now_ns: int) -> None:
        self._looked_ns = self._before_ns = now_ns
        self._last = np.empty(0, RECORD_DTYPE)
        self._leases = 0
        self._achieved_per_s = self._held = self._waiting = self._releasing = 0.0

    def look(self, records: Records, counts: OperationCounts, now_ns: int) -> None:
        """Take the records that are new at `now_ns`, which `counts` has counted; give it the hand-offs among them."""
        window, known = Window(self._before_ns, self._looked_ns), np.concatenate([self._last, records])
        counts.add_handoffs(known, window)
        if window.duration_s > 0:
            self._held = busy(known, "granted_ns", "release_sent_ns", window)
            self._waiting = busy(known, "start_ns", "ended_ns", window)
            self._releasing = busy(known, "release_sent_ns", "release_replied_ns", window)
        elapsed_s = max((now_ns - self._looked_ns) / NS_PER_S, 1e-3)
        self._achieved_per_s = (counts.leases - self._leases) / elapsed_s
        self._before_ns, self._looked_ns, self._last, self._leases = self._looked_ns, now_ns, records, counts.leases

    def points(self, notes: Sequence[WorkerNote]) -> Iterator[DataPoint]:
        """As the records tell, or as the workers saw it last, where holds and waits outlast an interval."""
        running = [note for note in notes if note.phase == "running"]
        holding = sum(note.holding for note in running)
        asking = sum(note.callers - note.idle for note in running) - holding
        yield point("redlock.leases.held", max(self._held, holding))
        yield point("redlock.callers.waiting", max(self._waiting, asking - self._releasing, 0.0))
        yield point("redlock.load.achieved", self._achieved_per_s)


def busy(records: Records, begun: str, ended: str, window: Window) -> float:
    """How many operations were between the times `begun` and `ended` of their records, on average over `window`."""
    start, stop = records[begun], records[ended]
    rows = (start > 0) & (stop > 0)
    overlap = np.minimum(stop[rows], window.stop_ns) - np.maximum(start[rows], window.start_ns)
    return float(np.maximum(overlap, 0).sum()) / (window.duration_s * NS_PER_S)
