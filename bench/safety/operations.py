"""A history as the oracle needs it: *records → columns, leases ordered by resource and grant*.

Rules
- A lease is believed valid in [granted, min(valid_until, release sent)]: the start is late and both ends are early, so
  every delay only shrinks the interval and an overlap is never an artefact.
- Intervals may touch. Leases accepted at or after their end are not valid and stand apart.

Source: the soundness argument of the oracle in README's section on safety.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.measure.outcomes import acquired, attempts_of, votes_of
from bench.measure.record import OUTCOME_CODES, Records
from bench.measure.timeline import Integers, Timeline

CLEANUP_NS = 50_000_000  # how long the releases after a lost round may take to arrive


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
    over = np.maximum(records["ended_ns"], records["release_replied_ns"])
    released = ((records["outcome"] >> 8) & 0xFF) == OUTCOME_CODES["released"]
    unsure = votes_of(records, "silent") + votes_of(records, "undecided") > 0
    answered = ~acquired(records) & (attempts_of(records) <= 1) & ~unsure
    lasting = np.where(released | answered, 0, ttl_ms * 1_000_000)
    held_until = np.where(acquired(records) & ~released, records["valid_until_ns"], 0)
    return np.asarray(np.maximum(over, held_until) + lasting + CLEANUP_NS)
