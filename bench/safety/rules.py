"""The oracle's rules: *operations → valid leases by resource and grant → the rows that break each
rule*.

- A lease is valid in [granted, min(valid_until, release sent)]. Intervals may touch. A lease that
  was accepted at or after its end is not valid, and has a rule of its own.
- If several clocks timed the leases, each interval is as short as it can be. A comparison of two
  operations counts only if it holds for all times within their bounds. Times of the same operation
  come from one clock, so their comparison is exact.
- Two leases of a resource conflict unless both are readers'. Only leases that conflict break a rule
  about two leases.
- Each function checks one rule over a timeline. A comparison of two keys compares times if the
  resource is the same, else it compares the resources. Pairs are (culprit or earlier row, other
  row).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bench.measure.clocks import LOST_NS, Integers, Timeline
from bench.measure.outcomes import acquired, attempts_of, votes_of
from bench.measure.record import CONTENDED, GONE, LATE_VOTES, NEVER_NS, RELEASED, Records, ends_ns
from bench.measure.run_result import BrokenRule

# How long the releases after a lost round may take to arrive.
CLEANUP_NS = 50_000_000
# A busy machine sometimes keeps a process from its core for this long.
BRIEF_NS = 50_000_000
BRIEF_SHARE = 0.01
Pairs = tuple[Integers, Integers]


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations by their own clocks (`own`), and on one clock: at the earliest and at the latest
    times that the bounds of these clocks allow."""

    own: Records
    early: Records
    late: Records

    @classmethod
    def of(
        cls, records: Records, early: Records | None = None, late: Records | None = None
    ) -> Self:
        """Operations with bounds. Without bounds, one clock timed them all, and times are exact."""
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
        """Which valid leases have no place on one clock, because their own clock stepped when they
        were granted or ended."""
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
        """The widest bound on a grant that has a place on one clock."""
        width = self.late.granted_ns - self.early.granted_ns
        return int(width[width < LOST_NS].max(initial=0))


@dataclass(frozen=True, slots=True)
class Leases:
    """Valid leases of a timeline, ordered by resource, then grant, then end.

    `row` is the index of each lease in `operations`, `reader` whether it is a reader's. The others
    are keys of the timeline: `granted`
    at the latest (`spread` earlier at the earliest), `returned`, when the caller got the lease, at
    the latest, and `end` at the earliest.
    """

    operations: Operations
    timeline: Timeline
    row: Integers
    reader: NDArray[np.bool_]
    granted: Integers
    returned: Integers
    end: Integers
    spread: int

    def own(self, name: str, chosen: Integers | slice = slice(None)) -> Integers:
        """A field of all leases, or of the `chosen` ones, by their own clocks."""
        return np.asarray(self.operations.own[name][self.row[chosen]])

    def keys(self, times: Records, name: str, chosen: Integers) -> Integers:
        """The keys of a time of the chosen leases. `times`: the operations at the earliest, or at
        the latest."""
        rows = self.row[chosen]
        return self.timeline.keys(times.resource[rows], times[name][rows])

    def conflict(self, ones: Integers, others: Integers) -> NDArray[np.bool_]:
        """Which of the leases in `ones` may not be valid together with those in `others`."""
        return np.asarray(~(self.reader[ones] & self.reader[others]))


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
        records.reader[row[order]],
        granted[order],
        returned[order],
        end[order],
        operations.spread_ns,
    )


def trace_end_ns(records: Records, ttl_ms: int) -> Integers:
    """Until when each operation may have kept a quorum of keys, at the latest.

    After a confirmed release the keys go when the clean-up has arrived. The same holds for a single
    lost round in which every instance answered. Otherwise a key may live on for a whole TTL.
    """
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
    process did not run. None: nobody looked for such gaps. `capacity`: how many may hold a resource
    at once. Above 1 another holder proves nothing, so only the number of holders and late grants
    are judged."""
    yield "service_fault", service_faults(leases, capacity)
    if capacity == 1:
        yield "client_overstay", client_overstays(leases)
        yield "foreign_delete", foreign_deletes(leases)
    own = leases.operations.own
    yield "granted_invalid", (granted_invalid(own, gaps_ns),)


def granted_invalid(own: Records, gaps_ns: Sequence[tuple[int, int]] | None = None) -> Integers:
    """Leases that were taken, or handed out, at or after their own end.

    The lock checks the end of a lease, and we read the clock when the lease is returned. In between
    the process may be stopped, or may wait for a core. So a lease that was handed out late does not
    count if its process did not run in between. If nobody looked for gaps, or if less than
    `BRIEF_NS` passed, such leases count only if they are more than one in a hundred.
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
    """Leases granted while `capacity` earlier leases of the resource that conflict with them were
    valid: (the earlier lease that is valid longest, the later lease)."""
    certain = leases.granted <= leases.end
    row = leases.row[certain]
    granted = leases.granted[certain]
    end = leases.end[certain]
    reader = leases.reader[certain]
    latest_end = np.maximum.accumulate(end)
    # Only a writer can be in a reader's way.
    latest_writer = np.maximum.accumulate(np.where(reader, -NEVER_NS, end))
    in_the_way = np.where(reader[1:], latest_writer[:-1], latest_end[:-1])
    later = np.flatnonzero(granted[1:] < in_the_way) + 1
    if capacity > 1:
        # A lease without length ends as it begins, and takes no place of a later one.
        ended = np.searchsorted(np.sort(end), granted[later], "right")
        empty = np.concatenate([[0], np.cumsum(granted == end)])
        same = np.searchsorted(granted, granted[later], "right")
        ended -= empty[same] - empty[later]
        later = later[later - ended >= capacity]
    # The lease that reached this end first.
    earlier = np.where(
        reader[later],
        np.searchsorted(latest_writer, latest_writer[later - 1], "left"),
        np.searchsorted(latest_end, latest_end[later - 1], "left"),
    )
    return row[earlier], row[later]


def client_overstays(leases: Leases) -> Pairs:
    """Clients that worked past the end of their lease while another lease of the resource that
    conflicts with it was granted: (the client, the other lease)."""
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
    writers = np.append(np.flatnonzero(~leases.reader), len(leases.row))
    next_writer = writers[np.searchsorted(writers, following)]
    following = np.where(leases.reader[late], next_writer, following)
    hit = following < len(leases.row)
    late = late[hit]
    following = following[hit]
    until = until[hit]
    harmful = leases.granted[following] < until
    return leases.row[late[harmful]], leases.row[following[harmful]]


def foreign_deletes(leases: Leases) -> Pairs:
    """Releases that removed another's lease: (the culprit's lease, the victim's lease).

    The victim was certainly granted after the end of the culprit's lease. Leases that overlap are
    service faults instead, because each may have removed its own key. Between two readers nothing
    is a proof. Else there are two proofs:

    - The culprit's release was sent after the victim's grant, reports success, and was answered
      while the victim's lease was valid.
    - The victim's release returned GONE while its lease was valid. The lease before it, of the same
      resource, reports a successful release. That release was answered after the end of its lease,
      and was sent no later than the victim's release.
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
        (holder >= 0)
        & leases.conflict(holder, after)
        & _granted_after(leases, holder, after)
        & (leases.end[holder] >= replied)
    )

    victim = np.flatnonzero(outcome[1:] == GONE) + 1
    told_ns = leases.own("release_replied_ns", victim)
    victim = victim[(told_ns > 0) & (told_ns < leases.own("valid_until_ns", victim))]
    before = victim - 1
    guilty = (
        (leases.own("resource", before) == leases.own("resource", victim))
        & leases.conflict(victim, before)
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
    """Which of the `others` were certainly granted after the end of the lease beside them in
    `ended`."""
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
    # The refused acquire itself is one of the operations around it, and `capacity` − 1 may hold.
    return refused[around <= capacity]


def contested(leases: Leases) -> int:
    """How many leases another operation asked for while they were valid, even if it waited in the
    queue of its own process."""
    early = leases.operations.early
    late = leases.operations.late
    keys = leases.timeline.keys
    begun = np.sort(keys(late.resource, late.start_ns))
    ended = np.sort(keys(early.resource, early.ended_ns))
    around = np.searchsorted(begun, leases.end, "right") - np.searchsorted(
        ended, leases.granted, "left"
    )
    # One of the operations around a lease is its own.
    return int((around > 1).sum())


def tested(
    leases: Leases,
    at_earliest: Integers,
    at_latest: Integers,
    is_writer: NDArray[np.bool_],
    capacity: int,
) -> int:
    """How many leases were held while another attempt that conflicts with them sent a command.

    With `capacity` above 1, only an attempt counts that was sent while so many leases of the
    resource were surely held. Any other attempt finds a free place, and tells nothing.

    A lease is held from the return of its acquire, which is after its own attempts. `at_earliest`
    and `at_latest` are the keys of all commands, and `is_writer` tells which are surely a writer's.
    """
    if capacity > 1:
        held = leases.end > leases.returned
        begun = np.searchsorted(np.sort(leases.returned[held]), at_earliest, "left")
        over = np.searchsorted(np.sort(leases.end[held]), at_latest, "right")
        full = begun - over >= capacity
        at_earliest = at_earliest[full]
        at_latest = at_latest[full]
        is_writer = is_writer[full]
    inside = _inside(leases, at_earliest, at_latest)
    if leases.reader.any():
        by_writers = _inside(leases, at_earliest[is_writer], at_latest[is_writer])
        inside = np.where(leases.reader, by_writers, inside)
    return int((inside > 0).sum())


def _inside(leases: Leases, at_earliest: Integers, at_latest: Integers) -> Integers:
    """How many of these commands were surely sent while each lease was held."""
    sent_before_end = np.searchsorted(np.sort(at_latest), leases.end, "left")
    sent_before_return = np.searchsorted(np.sort(at_earliest), leases.returned, "right")
    return np.asarray(sent_before_end - sent_before_return)
