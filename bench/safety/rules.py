"""The oracle's rules: *operations → valid leases by resource and grant → the rows that break each rule*.

Rules
- A lease is believed valid in [granted, min(valid_until, release sent)]: the start is late and both ends are early, so
  every delay only shrinks the interval and an overlap is never an artefact.
- Intervals may touch. Leases accepted at or after their end are not valid and stand apart.
- Each function is one rule, vectorised over a timeline (every key of a resource is below every key of the next, so a
  comparison of keys compares times of one resource, or is settled by the resources). Pairs are (culprit or earlier row,
  other row). With unique owner tokens these rules equal a linearizability check of a mutex: no search is needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.measure.outcomes import acquired, attempts_of, votes_of
from bench.measure.record import OUTCOME_CODES, Records, ends_ns
from bench.measure.run_result import BrokenRule
from bench.measure.timeline import Integers, Timeline

CLEANUP_NS = 50_000_000  # how long the releases after a lost round may take to arrive
Pairs = tuple[Integers, Integers]

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Leases:
    """Valid leases of a timeline, by resource, then grant, then end. `row`: index into the records; the others are ns.

    `granted` and `end` are keys of the timeline, the rest plain times; `sent` and `replied` are 0 without a release.
    """

    row: Integers
    resource: Integers
    granted: Integers
    end: Integers
    valid_until: Integers
    work_end: Integers
    sent: Integers
    replied: Integers
    release: Integers


def order_leases(records: Records, timeline: Timeline) -> Leases:
    """The valid leases among `records`."""
    row = np.flatnonzero(acquired(records) & (records["granted_ns"] < records["valid_until_ns"]))
    sent = records["release_sent_ns"][row]
    valid_until = records["valid_until_ns"][row]
    resource = records["resource"][row]
    end = timeline.keys(resource, np.where(sent > 0, np.minimum(valid_until, sent), valid_until))
    granted = timeline.keys(resource, records["granted_ns"][row])
    order = np.lexsort((end, granted))
    row = row[order]
    return Leases(
        row=row,
        resource=resource[order],
        granted=granted[order],
        end=end[order],
        valid_until=valid_until[order],
        work_end=records["work_end_ns"][row],
        sent=sent[order],
        replied=records["release_replied_ns"][row],
        release=(records["outcome"][row] >> 8) & 0xFF,
    )


def invalid_grants(records: Records) -> Integers:
    """Rows of grants that were accepted at or after their end."""
    return np.flatnonzero(acquired(records) & (records["granted_ns"] >= records["valid_until_ns"]))


def contended(records: Records) -> NDArray[np.bool_]:
    """Which acquires were refused because the lock is held."""
    return np.asarray((records["outcome"] & 0xFF) == OUTCOME_CODES["contended"])


def trace_end_ns(records: Records, ttl_ms: int) -> Integers:
    """Until when each operation may have kept a quorum of keys, generously: no refusal before that is spurious.

    A confirmed release, or a single lost round in which every instance answered: until its clean-up has arrived. In
    all other cases a key may live on for a whole TTL.
    """
    released = ((records["outcome"] >> 8) & 0xFF) == OUTCOME_CODES["released"]
    unsure = votes_of(records, "silent") + votes_of(records, "undecided") > 0
    answered = ~acquired(records) & (attempts_of(records) <= 1) & ~unsure
    lasting = np.where(released | answered, 0, ttl_ms * 1_000_000)
    held_until = np.where(acquired(records) & ~released, records["valid_until_ns"], 0)
    return np.asarray(np.maximum(ends_ns(records), held_until) + lasting + CLEANUP_NS)


def broken_rules(
    records: Records, leases: Leases, timeline: Timeline
) -> Iterator[tuple[BrokenRule, tuple[Integers, ...]]]:
    """Yield every rule that leases can break, with the rows that break it."""
    yield "service_fault", service_faults(leases)
    yield "client_overstay", client_overstays(leases, timeline)
    yield "foreign_delete", foreign_deletes(leases, timeline)
    yield "granted_invalid", (invalid_grants(records),)


def service_faults(leases: Leases) -> Pairs:
    """Leases granted while an earlier one of the resource was valid: (the one valid longest, the later one)."""
    if len(leases.row) < 2:
        return _NONE, _NONE
    latest_end = np.maximum.accumulate(leases.end)
    later = np.flatnonzero(leases.granted[1:] < latest_end[:-1]) + 1
    earlier = np.searchsorted(latest_end, latest_end[later - 1], "left")  # where that end was first reached
    return leases.row[earlier], leases.row[later]


def client_overstays(leases: Leases, timeline: Timeline) -> Pairs:
    """Clients that worked past their validity while the resource was granted to another: (the client, the other)."""
    worked = np.where(leases.sent > 0, np.minimum(leases.work_end, leases.sent), leases.work_end)
    late = np.flatnonzero(worked > leases.valid_until)
    since = timeline.keys(leases.resource[late], leases.valid_until[late])
    until = timeline.keys(leases.resource[late], worked[late])
    following = np.searchsorted(leases.granted, since, "left")
    hit = following < len(leases.row)
    late, following, until = late[hit], following[hit], until[hit]
    harmful = leases.granted[following] < until
    return leases.row[late[harmful]], leases.row[following[harmful]]


def foreign_deletes(leases: Leases, timeline: Timeline) -> Pairs:
    """Releases that removed another's lease: (the one that released, the one that lost its lease).

    The other was granted after the first one's end, and either the release was sent after that grant, returned inside
    the other's validity and reports success; or the other was told inside its validity that its key is gone, and the
    lease before it reported the success of a release that ran past its own end. (Leases that overlap are service
    faults: each may have removed its own key.)
    """
    released = leases.release == OUTCOME_CODES["released"]
    after = np.flatnonzero(released & (leases.sent > 0) & (leases.replied > 0))
    holder = np.searchsorted(leases.granted, timeline.keys(leases.resource[after], leases.sent[after]), "right") - 1
    foreign = (leases.granted[holder] >= timeline.keys(leases.resource[after], leases.valid_until[after])) & (
        leases.end[holder] >= timeline.keys(leases.resource[after], leases.replied[after])
    )
    return _joined((after[foreign], holder[foreign]), _deleted_under(leases, released, timeline), leases)


def _deleted_under(leases: Leases, released: NDArray[np.bool_], timeline: Timeline) -> Pairs:
    gone = leases.release == OUTCOME_CODES["gone"]
    victim = np.flatnonzero(gone & (leases.replied > 0) & (leases.replied < leases.valid_until))
    victim = victim[victim > 0]
    before = victim - 1
    guilty = (
        (leases.resource[before] == leases.resource[victim])
        & (leases.granted[victim] >= timeline.keys(leases.resource[before], leases.valid_until[before]))
        & released[before]
        & (leases.replied[before] > leases.valid_until[before])
        & (leases.sent[before] <= leases.sent[victim])
    )
    return before[guilty], victim[guilty]


def spurious_refusals(records: Records, timeline: Timeline, ttl_ms: int) -> Integers:
    """Refused acquires during which no other operation can have held a key of the resource."""
    refused = np.flatnonzero(contended(records))
    if not len(refused):
        return refused
    resource = records["resource"]
    begun = np.sort(timeline.keys(resource, records["start_ns"]))
    over = np.sort(timeline.keys(resource, trace_end_ns(records, ttl_ms)))
    asked = timeline.keys(resource[refused], records["start_ns"][refused])
    answered = timeline.keys(resource[refused], records["ended_ns"][refused])
    around = np.searchsorted(begun, answered, "right") - np.searchsorted(over, asked, "left")
    return refused[around <= 1]  # itself


def contested(leases: Leases, records: Records, timeline: Timeline) -> int:
    """How many leases another operation asked for while they were valid, be it in a line of its own process."""
    begun = np.sort(timeline.keys(records["resource"], records["start_ns"]))
    ended = np.sort(timeline.keys(records["resource"], records["ended_ns"]))
    around = np.searchsorted(begun, leases.end, "right") - np.searchsorted(ended, leases.granted, "left")
    return int((around > 1).sum())  # itself


def tested(leases: Leases, asked: Integers) -> int:
    """How many leases were held for a time in which another attempt's command was sent; `asked`: keys of all of them.

    A lease's own attempts are begun before its grant.
    """
    asked = np.sort(asked)
    inside = np.searchsorted(asked, leases.end, "left") - np.searchsorted(asked, leases.granted, "right")
    return int((inside > 0).sum())


def _joined(first: Pairs, second: Pairs, leases: Leases) -> Pairs:
    culprits = np.concatenate([first[0], second[0]])
    others = np.concatenate([first[1], second[1]])
    _, unique = np.unique(culprits, return_index=True)
    return leases.row[culprits[unique]], leases.row[others[unique]]
