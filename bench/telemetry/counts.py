"""What the operations of a run add up to: *history records → data points*, by the definitions of bench.measure.

Rules
- Every record is counted once: latencies, outcomes and attempts when it appears, votes only once no round of it can be
  open any more, so both may be fed from different places of the same history.
- Whole runs are counted, with warm-up and drain: sums equal `totals` and `releases` of result.json.
"""

from collections import defaultdict
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
from bench.telemetry.load_log import Extension, ObservedAttempt
from bench.telemetry.points import NS_PER_S, DataPoint, Exemplar, Totals, point
from bench.telemetry.run import Address
from bench.telemetry.table import EXTEND_OUTCOMES, RELEASE_OUTCOMES

Exemplars = Mapping[str, Sequence[Exemplar]]  # of acquires, by outcome
_SILENT_OR_ERROR = ("errored", "silent")


class OperationCounts:
    """Adds up a run. `quorum`: the votes that win; `operations`: acquires that returned; `leases`: those of them that
    got the lock."""

    def __init__(self, quorum: int) -> None:
        self._quorum = quorum
        self._totals = Totals()
        self._waiting = Sums(WAITS)
        self.operations = self.leases = 0

    def add(self, records: Records) -> None:
        """Count what these operations took and how they ended; of each closed set every member, also with 0."""
        count, won = self._totals.count, acquired(records)
        self.operations += len(records)
        self.leases += int(won.sum())
        took, rounds = records["ended_ns"] - records["intended_ns"], outcomes.attempts_of(records)
        for name, number in outcomes.count_acquires(records).items():
            rows = (records["outcome"] & 0xFF) == OUTCOME_CODES[name]
            count("redlock.acquire.duration", took[rows], redlock_outcome=name)
            count("redlock.acquire.attempts", rounds[rows], redlock_outcome=name)
            count("redlock.acquire.outcomes", number, redlock_outcome=name)
        sent = records["release_sent_ns"]
        for name in RELEASE_OUTCOMES:
            rows = ((records["outcome"] >> 8) & 0xFF) == OUTCOME_CODES[name]
            count("redlock.release.duration", (records["release_replied_ns"] - sent)[rows], redlock_outcome=name)
        count("redlock.leases.gone", outcomes.count_releases(records)["gone"])
        count("redlock.hold.duration", (sent - records["granted_ns"])[won & (sent > 0)])
        count("redlock.lease.validity", (records["valid_until_ns"] - records["granted_ns"])[won])
        split_votes = outcomes.split_votes_of(records)
        count("redlock.split_votes", int(split_votes.sum()))
        dead = (records["attempt_ns"] - records["start_ns"])[won & (split_votes > 0)]
        count("redlock.split_vote.dead_time", dead)
        add_waits(self._waiting, records, records)

    def add_handoffs(self, records: Records, window: Window) -> None:
        """Count the hand-offs whose release was sent in `window`, among all operations of their resources."""
        self._totals.count("redlock.handoff.duration", handoffs(records, window))

    def add_votes(self, records: Records) -> None:
        """Count the votes of operations that are not patched any more."""
        for kind, number in outcomes.count_votes(records).items():
            self._totals.count("redlock.votes", number, redlock_vote=kind)
        closed = acquired(records) & (outcomes.votes_of(records, "undecided") == 0)
        self._totals.count("redlock.vote.margin", outcomes.votes_of(records, "granted")[closed] - self._quorum)

    def points(self, exemplars: Exemplars, notes: Sequence[WorkerNote] = ()) -> Iterator[DataPoint]:
        """All of it, and how those waited who had to, also by what the recipes of the `notes`' workers counted."""
        for one in self._totals.points():
            timed = one.instrument.name == "redlock.acquire.duration"
            shown = exemplars.get(str(one.attributes[0][1]), ()) if timed else ()
            yield replace(one, exemplars=tuple(shown))
        found = waiting_of(self._waiting, 0, added(note.figures for note in notes))
        yield point("redlock.handoff.turns", found.wakeups)
        yield point("redlock.acquire.polls", found.polls)
        if found.jain is not None and found.longest_s is not None:
            yield point("redlock.acquire.longest", found.longest_s)
            yield point("redlock.callers.fairness", found.jain)


def count_extensions(totals: Totals, extensions: Sequence[Extension]) -> None:
    """Count how long these took, by outcome: what no record says. No point while nothing was ever extended."""
    for name in EXTEND_OUTCOMES if extensions else ():
        took = [one.replied_ns - one.sent_ns for one in extensions if one.outcome == name]
        totals.count("redlock.extend.duration", np.array(took, np.int64), redlock_outcome=name)


def count_answers(totals: Totals, attempts: Sequence[ObservedAttempt], addresses: Sequence[Address]) -> None:
    """Count how long each instance took to answer a SET in these; a silent one took until the round closed."""
    took_ns = defaultdict[tuple[int, str], list[int]](list)
    for attempt in attempts:
        for index, ask in enumerate(attempt.asks):
            if ask.sent_ns:
                error = ask.vote if ask.vote in _SILENT_OR_ERROR else ""
                took_ns[index, error].append(max((ask.replied_ns or attempt.closed_ns) - ask.sent_ns, 0))
    for (index, error), times in took_ns.items():
        host, port = addresses[index]
        failed: dict[str, str | int] = {"error_type": error} if error else {}
        totals.count(
            "db.client.operation.duration", np.array(times, np.int64), db_system_name="redis", db_operation_name="SET",
            server_address=host, server_port=port, **failed,
        )  # fmt: skip


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
