"""The oracle's rules: *operations → valid leases → the rows of the leases that break a rule*.

The valid leases are sorted by resource, and then by grant.

- A lease is valid in the interval [granted, min(valid_until, release sent)]. The intervals of two
  leases may touch without a violation. If a lease was granted at or after its own end, the lease is
  not valid. The rule `granted_invalid` finds invalid leases.
- If several clocks measured the leases, each time has an earliest and a latest possible value. The
  rules use the shortest possible interval of each lease. If a rule compares the times of two
  operations, the comparison must be true for all possible values of these times. One clock measures
  all times of the same operation, so comparisons within one operation are exact.
- Two leases of a resource conflict, unless both belong to readers. If two leases do not conflict,
  they cannot break a rule about two leases.
- Each function checks one rule for all leases on a timeline. A key of the timeline stands for a
  resource and a time. Keys are sorted by resource first, and then by time. A rule about two leases
  returns pairs of rows, in two arrays. If one lease of a pair is the culprit, this lease is in the
  first array. If a pair has no culprit, the earlier lease is in the first array. The second array
  has the second lease of each pair.
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

# The releases after a lost round may take this long to arrive.
CLEANUP_NS = 50_000_000
# On a busy machine, a process sometimes waits this long for a core.
BRIEF_NS = 50_000_000
BRIEF_SHARE = 0.01
Pairs = tuple[Integers, Integers]


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations, with three values for each time.

    `own`: the times on the clock of the load process. `early`: the earliest possible times on one
    common clock. `late`: the latest possible times on this common clock.
    """

    own: Records
    early: Records
    late: Records

    @classmethod
    def of(
        cls, records: Records, early: Records | None = None, late: Records | None = None
    ) -> Self:
        """Return operations that have an earliest and a latest possible value for each time.

        If one clock measured all operations, the times are exact, and `early` and `late` are None.
        """
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
        """One bool for each operation.

        The bool is true if the lease of the operation has no usable time on the common clock. The
        reason is that the clock of the process stepped at the grant or at the end of the lease.
        """
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
        """The largest uncertainty (ns) of a grant time on the common clock.

        This number ignores every grant whose time on the common clock is unknown.
        """
        width = self.late.granted_ns - self.early.granted_ns
        return int(width[width < LOST_NS].max(initial=0))


@dataclass(frozen=True, slots=True)
class Leases:
    """The valid leases of a timeline.

    The leases are sorted by resource, then by grant time, and then by end time. `row`: the index of
    each lease in `operations`. `reader`: whether the lease belongs to a reader. The arrays
    `granted`, `returned` and `end` hold keys of the timeline. `granted`: the latest possible time
    of the grant. The lease may have been granted up to `spread` earlier. `returned`: the latest
    possible time at which the caller got the lease. `end`: the earliest possible end of the lease.
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
        """Return the values of the field `name` for the `chosen` leases (default: for all leases).

        The times are on the clock of the process that had the lease.
        """
        return np.asarray(self.operations.own[name][self.row[chosen]])

    def keys(self, times: Records, name: str, chosen: Integers) -> Integers:
        """Return one timeline key for each of the `chosen` leases.

        The time of each key is the value of the field `name` in `times`. `times`: the operations
        with either their earliest or their latest possible times.
        """
        rows = self.row[chosen]
        return self.timeline.keys(times.resource[rows], times[name][rows])

    def conflict(self, ones: Integers, others: Integers) -> NDArray[np.bool_]:
        """Return an array of bools.

        The bool at index i is true if the leases `ones[i]` and `others[i]` conflict.
        """
        return np.asarray(~(self.reader[ones] & self.reader[others]))


def order_leases(operations: Operations, timeline: Timeline) -> Leases:
    """Return the valid leases among `operations`."""
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
        # Leases with the same grant time are ordered by their ends. This second sort takes four
        # times as long as the first sort.
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
    """Return the latest time until which each operation may have kept a quorum of keys.

    If the release was confirmed, the keys are gone `CLEANUP_NS` after the end of the operation. If
    the acquire lost its only round and every instance answered, the keys are also gone `CLEANUP_NS`
    after the end of the operation. In all other cases, a key may remain for a whole TTL.
    """
    released = records.release_code == RELEASED
    # If a vote came late, its key was cleaned up late, so this round is not certain.
    late = (records.votes & LATE_VOTES) != 0
    unsure = late | (votes_of(records, "silent") + votes_of(records, "undecided") > 0)
    answered = ~acquired(records) & (attempts_of(records) <= 1) & ~unsure
    lasting = np.where(released | answered, 0, ttl_ms * 1_000_000)
    held_until = np.where(acquired(records) & ~released, records.valid_until_ns, 0)
    return np.asarray(np.maximum(ends_ns(records), held_until) + lasting + CLEANUP_NS)


def broken_rules(
    leases: Leases, gaps_ns: Sequence[tuple[int, int]] | None = None, capacity: int = 1
) -> Iterator[tuple[BrokenRule, tuple[Integers, ...]]]:
    """Check all rules about leases.

    For each rule, yield the rule and the rows of the leases that break the rule. `gaps_ns`: the
    periods in which a load process did not run. `gaps_ns` is None if no process measured such
    periods. `capacity`: how many callers may hold a resource at once. If `capacity` is above 1,
    foreign deletes are not judged, because a record does not show which place a release removed.
    """
    yield "service_fault", service_faults(leases, capacity)
    yield "client_overstay", client_overstays(leases, capacity)
    if capacity == 1:
        yield "foreign_delete", foreign_deletes(leases)
    own = leases.operations.own
    yield "granted_invalid", (granted_invalid(own, gaps_ns),)


def granted_invalid(own: Records, gaps_ns: Sequence[tuple[int, int]] | None = None) -> Integers:
    """Return the leases that had already ended when they were granted or when their callers got
    them.

    When the lock grants a lease, the lock checks that the lease has not ended. lockbench reads the
    clock later, when the acquire returns. Between the grant and the return, the process may be
    stopped or may wait for a core. A gap is a period in which a load process did not run. A late
    return does not count if any gap overlaps the time from the grant to the return. A late return
    is uncertain if the time between the grant and the return is shorter than `BRIEF_NS`. If there
    are no data about gaps, every late return is uncertain. Uncertain late returns count only if
    they are more than 1 % of all leases.
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


# Comparing all pairs of leases would take n² steps. The leases are ordered by grant, so the running
# maximum of ends shows whether any earlier lease is still valid. The maximum continues from
# resource to resource. It needs no reset, because each end of an earlier resource is below each
# grant of the current resource (`Timeline`). This is true only if the extent of the timeline
# includes every end.
def service_faults(leases: Leases, capacity: int = 1) -> Pairs:
    """Return the leases that were granted although the resource had no free place.

    The resource has no free place while at least `capacity` earlier conflicting leases are valid.
    Each result is a pair of leases. The second lease of a pair is the lease that was granted
    although the resource had no free place. The first lease was granted earlier, and conflicts with
    the second lease. If there are several earlier conflicting leases, the first
    lease of the pair is the lease that ends last.
    """
    certain = leases.granted <= leases.end
    row = leases.row[certain]
    granted = leases.granted[certain]
    end = leases.end[certain]
    reader = leases.reader[certain]
    latest_end = np.maximum.accumulate(end)
    # Only a writer conflicts with a reader.
    latest_writer = np.maximum.accumulate(np.where(reader, -NEVER_NS, end))
    in_the_way = np.where(reader[1:], latest_writer[:-1], latest_end[:-1])
    later = np.flatnonzero(granted[1:] < in_the_way) + 1
    if capacity > 1:
        later = later[_others_valid(granted, end, later) >= capacity]
    # The earlier lease is the first lease that reached this maximum of ends.
    earlier = np.where(
        reader[later],
        np.searchsorted(latest_writer, latest_writer[later - 1], "left"),
        np.searchsorted(latest_end, latest_end[later - 1], "left"),
    )
    return row[earlier], row[later]


def _others_valid(granted: Integers, end: Integers, chosen: Integers) -> Integers:
    """Return the number of earlier leases that are valid at the grant of each of the `chosen`
    leases.

    `granted` and `end` are arrays with one entry for each lease, sorted as in `Leases`. `chosen`
    has indices of these arrays.
    """
    ended = np.searchsorted(np.sort(end), granted[chosen], "right")
    # A lease of zero length ends when it begins, so it takes no place from a later lease.
    empty = np.concatenate([[0], np.cumsum(granted == end)])
    same = np.searchsorted(granted, granted[chosen], "right")
    return np.asarray(chosen - ended + empty[same] - empty[chosen])


def client_overstays(leases: Leases, capacity: int = 1) -> Pairs:
    """Return the leases of clients that worked too long.

    A client worked too long if both of two conditions are true. The work of the client continued
    after the end of its lease. Before the work ended, another lease took the last place of the
    resource. A resource has `capacity` places. Each result is a pair of leases. The first lease of
    a pair belongs to the client that worked too long. The second lease of the pair is the lease
    that took the last place of the resource. If `capacity` is 1, every conflicting lease takes the
    last place.
    """
    early = leases.operations.early
    sent = leases.own("release_sent_ns")
    worked = leases.own("work_end_ns")
    # If the client sent its release during its work, the release ended the work.
    stopped = (sent > 0) & (sent <= worked)
    late = np.flatnonzero(np.where(stopped, sent, worked) > leases.own("valid_until_ns"))
    since = leases.keys(leases.operations.late, "valid_until_ns", late) + leases.spread
    ends = (leases.keys(early, name, late) for name in ("release_sent_ns", "work_end_ns"))
    until = np.where(stopped[late], *ends)
    last = np.arange(len(leases.row))
    if capacity > 1:
        last = np.flatnonzero(leases.granted <= leases.end)
        granted = leases.granted[last]
        others = _others_valid(granted, leases.end[last], np.arange(len(last)))
        last = last[others >= capacity - 1]
    following = np.searchsorted(leases.granted[last], since, "left")
    writers = np.append(np.flatnonzero(~leases.reader[last]), len(last))
    next_writer = writers[np.searchsorted(writers, following)]
    following = np.where(leases.reader[late], next_writer, following)
    hit = following < len(last)
    late = late[hit]
    following = last[following[hit]]
    until = until[hit]
    harmful = leases.granted[following] < until
    return leases.row[late[harmful]], leases.row[following[harmful]]


def foreign_deletes(leases: Leases) -> Pairs:
    """Return the releases that removed another caller's lease.

    Each result is a pair of two leases. The first lease is the culprit's lease, and the second
    lease is the victim's lease. The victim's lease was certainly granted after the end of the
    culprit's lease. Two overlapping leases are a service fault and not a foreign delete, because
    each release may have removed its own key. Two leases of readers never form such a pair. There
    are two kinds of proof that a release removed another caller's lease:

    - The culprit's release was sent after the victim's grant and succeeded. The reply to the
      culprit's release came while the victim's lease was still valid.
    - The victim's release returned GONE while the victim's lease was valid. The culprit had the
      lease of the resource before the victim, and the culprit's release succeeded. The reply to the
      culprit's release came after the end of the culprit's lease. The culprit's release was not
      sent after the victim's release.
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
    """Return an array of bools.

    The bool at index i is true if the lease `others[i]` was certainly granted after the end of the
    lease `ended[i]`.
    """
    over = leases.keys(leases.operations.late, "valid_until_ns", ended)
    return np.asarray(leases.granted[others] - leases.spread >= over)


def spurious_refusals(
    operations: Operations, timeline: Timeline, ttl_ms: int, capacity: int = 1
) -> Integers:
    """Return the acquires that the lock refused without a valid reason.

    A refusal is valid only if at least `capacity` other operations can have held a key of the
    resource during the refused acquire.
    """
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
    # `around` includes the refused acquire itself. So at most `capacity` means that fewer than
    # `capacity` others can have held a key.
    return refused[around <= capacity]


def contested(leases: Leases) -> int:
    """Return how many leases were valid while another operation tried to get the resource.

    Operations that waited in a queue of their own process are included.
    """
    early = leases.operations.early
    late = leases.operations.late
    keys = leases.timeline.keys
    begun = np.sort(keys(late.resource, late.start_ns))
    ended = np.sort(keys(early.resource, early.ended_ns))
    around = np.searchsorted(begun, leases.end, "right") - np.searchsorted(
        ended, leases.granted, "left"
    )
    # `around` includes the lease's own operation.
    return int((around > 1).sum())


def tested(
    leases: Leases,
    at_earliest: Integers,
    at_latest: Integers,
    is_writer: NDArray[np.bool_],
    capacity: int,
) -> int:
    """Return the number of tested leases.

    A lease is tested if another caller sent a command of a conflicting attempt while the lease was
    held. An attempt that may find a free place does not test the lock. If `capacity` is above 1, a
    command counts only if at least `capacity` leases of the resource were certainly held when the
    command was sent.

    A lease counts as held only after its acquire has returned. So an acquire does not test its own
    lease. `at_earliest`: one timeline key for each command, with the earliest possible time of the
    command. `at_latest`: one timeline key for each command, with the latest possible time of the
    command. `is_writer`: true for each command that certainly belongs to a writer.
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
    """Return the number of commands that were certainly sent while each lease was held."""
    sent_before_end = np.searchsorted(np.sort(at_latest), leases.end, "left")
    sent_before_return = np.searchsorted(np.sort(at_earliest), leases.returned, "right")
    return np.asarray(sent_before_end - sent_before_return)
