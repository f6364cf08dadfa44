"""The oracle's rules: *operations → valid leases by resource and grant → the rows that break each
rule*.

- A lease is believed valid in [granted, min(valid_until, release sent)]; intervals may touch.
  Leases accepted at or after their end are not valid and stand apart.
- Of leases on several clocks an interval is what it is at the least, and every comparison of two
  operations holds for all times within their bounds. Comparisons within one operation are of its
  own clock, and exact.
- Each function is one rule over a timeline: a comparison of keys compares times of one resource, or
  is settled by the resources. Pairs are (culprit or earlier row, other row).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bench.measure.clocks import LOST_NS, Integers, Timeline
from bench.measure.outcomes import acquired, attempts_of, votes_of
from bench.measure.record import CONTENDED, GONE, LATE_VOTES, RELEASED, Records, ends_ns
from bench.measure.run_result import BrokenRule

# The releases after a lost round may take so long to arrive.
CLEANUP_NS = 50_000_000
# A busy machine now and then keeps a process from its core for so long.
BRIEF_NS = 50_000_000
BRIEF_SHARE = 0.01
Pairs = tuple[Integers, Integers]


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations as `own` clocks told them, and with all times at the earliest and at the latest
    they can be on one."""

    own: Records
    early: Records
    late: Records

    @classmethod
    def of(
        cls, records: Records, early: Records | None = None, late: Records | None = None
    ) -> Self:
        """Without bounds all of one clock, which are exact."""
        earliest = records if early is None else early
        latest = records if late is None else late
        return cls(records, earliest, latest)

    def __getitem__(self, rows: Integers | NDArray[np.bool_] | slice) -> Self:
        if self.early is self.own is self.late:
            part = self.own[rows]
            return type(self)(part, part, part)
        return type(self)(self.own[rows], self.early[rows], self.late[rows])

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Which valid leases cannot be placed, as nothing is known of their clock when they were
        granted or ended."""
        names = ["granted_ns", "release_sent_ns"]
        own = self.own
        ends = np.where(
            own.release_sent_ns > 0,
            0,
            self.late.valid_until_ns - self.early.valid_until_ns,
        )
        width = np.max([ends, *(self.late[name] - self.early[name] for name in names)], axis=0)
        return np.asarray(acquired(own) & (width >= LOST_NS))

    @property
    def spread_ns(self) -> int:
        """The widest bound on a grant that can be placed."""
        width = self.late.granted_ns - self.early.granted_ns
        return int(width[width < LOST_NS].max(initial=0))


@dataclass(frozen=True, slots=True)
class Leases:
    """Valid leases of a timeline, by resource, then grant, then end. `row`: index into
    `operations`. `granted` (at the latest; at the earliest by `spread` less), `returned` (when its
    caller had it, at the latest) and `end` (at the earliest) are keys of the timeline."""

    operations: Operations
    timeline: Timeline
    row: Integers
    granted: Integers
    returned: Integers
    end: Integers
    spread: int

    def own(self, name: str, chosen: Integers | slice = slice(None)) -> Integers:
        """A field of them, or of the `chosen` ones, as their own clocks told it."""
        return np.asarray(self.operations.own[name][self.row[chosen]])

    def keys(self, times: Records, name: str, chosen: Integers) -> Integers:
        """The keys of a time of the chosen ones; `times`: the operations at the earliest, or at the
        latest."""
        rows = self.row[chosen]
        return self.timeline.keys(times.resource[rows], times[name][rows])


def order_leases(operations: Operations, timeline: Timeline) -> Leases:
    """The valid leases among `operations`."""
    records = operations.own
    early = operations.early
    row = np.flatnonzero(acquired(records) & (records.granted_ns < records.valid_until_ns))
    resource, sent, valid_until = (
        early[name][row] for name in ("resource", "release_sent_ns", "valid_until_ns")
    )
    end = timeline.keys(resource, np.where(sent != 0, np.minimum(valid_until, sent), valid_until))
    granted = timeline.keys(resource, operations.late.granted_ns[row])
    order = np.argsort(granted)
    if (np.diff(granted[order]) == 0).any():
        # Grants at the same time are ordered by their ends. That sort takes four times as long.
        order = np.lexsort((end, granted))
    returned = timeline.keys(resource, operations.late.ended_ns[row])
    return Leases(
        operations,
        timeline,
        row[order],
        granted[order],
        returned[order],
        end[order],
        operations.spread_ns,
    )


def trace_end_ns(records: Records, ttl_ms: int) -> Integers:
    """Until when each operation may have kept a quorum of keys, generously: after a confirmed
    release, or a single lost round in which every instance answered, until its clean-up has
    arrived; else a key may live on for a whole TTL."""
    released = records.release_code == RELEASED
    # A key that was set late is cleaned up late, so such a round is not sure.
    late = (records.votes & LATE_VOTES) != 0
    unsure = late | (votes_of(records, "silent") + votes_of(records, "undecided") > 0)
    answered = ~acquired(records) & (attempts_of(records) <= 1) & ~unsure
    lasting = np.where(released | answered, 0, ttl_ms * 1_000_000)
    held_until = np.where(acquired(records) & ~released, records.valid_until_ns, 0)
    return np.asarray(np.maximum(ends_ns(records), held_until) + lasting + CLEANUP_NS)


def broken_rules(
    leases: Leases, gaps_ns: Sequence[tuple[int, int]] | None = None, capacity: int = 1
) -> Iterator[tuple[BrokenRule, tuple[Integers, ...]]]:
    """Yield every rule that leases can break, with the rows that break it. `gaps_ns`: when a load
    process was away, None: nobody has looked. `capacity`: how many may hold a resource at once;
    above 1 another holder proves nothing, so only their number and late grants are judged."""
    yield "service_fault", service_faults(leases, capacity)
    if capacity == 1:
        yield "client_overstay", client_overstays(leases)
        yield "foreign_delete", foreign_deletes(leases)
    own = leases.operations.own
    yield "granted_invalid", (granted_invalid(own, gaps_ns),)


def granted_invalid(own: Records, gaps_ns: Sequence[tuple[int, int]] | None = None) -> Integers:
    """Leases that were taken, or handed out, at or after their own end.

    A process may be stopped, or wait for a core, between the reading that the lock has checked and
    ours when the lease was returned. So a lease that is handed out late does not count where its
    process was away in between. Where nobody has looked for that, or where it lasted less than
    `BRIEF_NS`, it counts if more than one lease in a hundred was so.
    """
    won = acquired(own)
    granted = own.granted_ns
    returned = own.ended_ns
    over = won & (granted >= own.valid_until_ns)
    late = won & ~over & (returned >= own.valid_until_ns)
    if late.any():
        for begun, ended in gaps_ns or ():
            late &= (returned < begun) | (granted > ended)
        brief = late & ((returned - granted < BRIEF_NS) | (gaps_ns is None))
        if brief.sum() <= BRIEF_SHARE * won.sum():
            late &= ~brief
    return np.flatnonzero(over | late)


# Comparing all pairs of leases would take n² steps. They are ordered by grant, so the running
# maximum of ends tells whether any earlier lease is still valid. The maximum runs on from resource
# to resource, and nothing resets it. It needs no reset, because each end of an earlier resource is
# below each grant of this one (`Timeline`). That holds only while the timeline's extent covers
# every end.
def service_faults(leases: Leases, capacity: int = 1) -> Pairs:
    """Leases granted while `capacity` earlier ones of the resource were valid: (the one valid
    longest, the later one)."""
    certain = leases.granted <= leases.end
    row = leases.row[certain]
    granted = leases.granted[certain]
    end = leases.end[certain]
    latest_end = np.maximum.accumulate(end)
    later = np.flatnonzero(granted[1:] < latest_end[:-1]) + 1
    if capacity > 1:
        # A lease without length ends as it begins, and takes no place of a later one.
        ended = np.searchsorted(np.sort(end), granted[later], "right")
        empty = np.concatenate([[0], np.cumsum(granted == end)])
        same = np.searchsorted(granted, granted[later], "right")
        ended -= empty[same] - empty[later]
        later = later[later - ended >= capacity]
    # The lease that reached this end first.
    earlier = np.searchsorted(latest_end, latest_end[later - 1], "left")
    return row[earlier], row[later]


def client_overstays(leases: Leases) -> Pairs:
    """Clients that worked past their validity while the resource was granted to another: (the
    client, the other)."""
    early = leases.operations.early
    sent = leases.own("release_sent_ns")
    worked = leases.own("work_end_ns")
    # The client's own release ended its work.
    stopped = (sent > 0) & (sent <= worked)
    late = np.flatnonzero(np.where(stopped, sent, worked) > leases.own("valid_until_ns"))
    since = leases.keys(leases.operations.late, "valid_until_ns", late) + leases.spread
    ends = (leases.keys(early, name, late) for name in ("release_sent_ns", "work_end_ns"))
    until = np.where(stopped[late], *ends)
    following = np.searchsorted(leases.granted, since, "left")
    hit = following < len(leases.row)
    late = late[hit]
    following = following[hit]
    until = until[hit]
    harmful = leases.granted[following] < until
    return leases.row[late[harmful]], leases.row[following[harmful]]


def foreign_deletes(leases: Leases) -> Pairs:
    """Releases that removed another's lease: (the culprit's lease, the victim's lease).

    The victim was certainly granted after the end of the culprit's lease. Leases that overlap are
    service faults instead, because each may have removed its own key. There are two proofs:

    - The culprit's release was sent after the victim's grant, reports success, and was answered
      while the victim's lease was valid.
    - The victim's release was told GONE while its lease was valid. The lease before it, of the same
      resource, reports the success of a release that was answered after its own end, and that was
      sent no later than the victim's release.
    """
    early = leases.operations.early
    late = leases.operations.late
    outcome = leases.own("outcome") >> 8 & 0xFF
    released = outcome == RELEASED
    after = np.flatnonzero(
        released & (leases.own("release_sent_ns") > 0) & (leases.own("release_replied_ns") > 0)
    )
    holder = (
        np.searchsorted(leases.granted, leases.keys(early, "release_sent_ns", after), "right") - 1
    )
    replied = leases.keys(late, "release_replied_ns", after)
    foreign = (
        (holder >= 0) & _granted_after(leases, holder, after) & (leases.end[holder] >= replied)
    )

    victim = np.flatnonzero(outcome[1:] == GONE) + 1
    told_ns = leases.own("release_replied_ns", victim)
    victim = victim[(told_ns > 0) & (told_ns < leases.own("valid_until_ns", victim))]
    before = victim - 1
    guilty = (
        (leases.own("resource", before) == leases.own("resource", victim))
        & _granted_after(leases, victim, before)
        & released[before]
        & (leases.own("release_replied_ns", before) > leases.own("valid_until_ns", before))
        & (late.release_sent_ns[leases.row[before]] <= early.release_sent_ns[leases.row[victim]])
    )
    culprits = np.concatenate([after[foreign], before[guilty]])
    others = np.concatenate([holder[foreign], victim[guilty]])
    _, once = np.unique(culprits, return_index=True)
    return leases.row[culprits[once]], leases.row[others[once]]


def _granted_after(leases: Leases, others: Integers, ended: Integers) -> NDArray[np.bool_]:
    """Which of the `others` were certainly granted when the leases `ended` beside them were
    over."""
    over = leases.keys(leases.operations.late, "valid_until_ns", ended)
    return np.asarray(leases.granted[others] - leases.spread >= over)


def spurious_refusals(
    operations: Operations, timeline: Timeline, ttl_ms: int, capacity: int = 1
) -> Integers:
    """Refused acquires during which fewer than `capacity` other operations can have held a key of
    the resource."""
    early = operations.early
    late = operations.late
    refused = np.flatnonzero(operations.own.acquire_code == CONTENDED)
    if not len(refused):
        return refused
    resource = early.resource
    begun = np.sort(timeline.keys(resource, early.start_ns))
    over = np.sort(timeline.keys(resource, trace_end_ns(late, ttl_ms)))
    refused_start = timeline.keys(resource[refused], early.start_ns[refused])
    answered = timeline.keys(resource[refused], late.ended_ns[refused])
    around = np.searchsorted(begun, answered, "right") - np.searchsorted(
        over, refused_start, "left"
    )
    return refused[around <= capacity]  # itself


def contested(leases: Leases) -> int:
    """How many leases another operation asked for while they were valid, be it in a line of its own
    process."""
    early = leases.operations.early
    late = leases.operations.late
    keys = leases.timeline.keys
    begun = np.sort(keys(late.resource, late.start_ns))
    ended = np.sort(keys(early.resource, early.ended_ns))
    around = np.searchsorted(begun, leases.end, "right") - np.searchsorted(
        ended, leases.granted, "left"
    )
    return int((around > 1).sum())  # itself


def tested(leases: Leases, at_earliest: Integers, at_latest: Integers) -> int:
    """How many leases were held for a time, since their acquire returned, in which another
    attempt's command was sent; `at_earliest` and `at_latest`: keys of all these commands. A
    lease's own attempts are begun before that."""
    at_earliest = np.sort(at_earliest)
    at_latest = np.sort(at_latest)
    inside = np.searchsorted(at_latest, leases.end, "left") - np.searchsorted(
        at_earliest, leases.returned, "right"
    )
    return int((inside > 0).sum())
