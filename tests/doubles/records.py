"""One operation as tests write it: times in ms, what is not said did not happen; many of a correct
lock, by rng."""

from dataclasses import replace
from typing import Any

import numpy as np

from bench.measure.outcomes import KINDS
from bench.measure.record import OUTCOME_CODES, RECORD_DTYPE, records_of
from bench.scenario import Scenario, load

MS = 1_000_000
TIMES = (
    *(
        "intended",
        "start",
        "attempt",
        "granted",
        "valid_until",
        "work_end",
        "release_sent",
        "release_replied",
        "ended",
    ),
)


def scenario_of(users: int = 2, **changes: Any) -> Scenario:
    """A load on five instances, without a warm-up unless it is said."""
    return replace(load(), **{"users": users, "instances": 5, "warmup_ms": 0.0, **changes})


def cycle(start, **changes):
    """Granted after 1 ms, held for 10, released within 2."""
    times = {
        "start": start,
        "ended": start + 1,
        "release_sent": start + 11,
        "release_replied": start + 13,
    }
    return times | changes


def record_of(
    sequence,
    outcome="acquired",
    release=None,
    resource=0,
    caller=0,
    votes=None,
    attempts=1,
    split=0,
    **times,
):
    start = times.get("start", 0)
    times = {"intended": start, "attempt": start, **times}
    if outcome == "acquired":
        times = {"granted": times.get("ended", start), "valid_until": start + 10_000, **times}
        release = release or ("released" if "release_sent" in times else "none")
    fields = {f"{name}_ns": round(times.get(name, 0) * MS) for name in TIMES} | {
        "resource": resource,
        "caller": caller,
        "outcome": OUTCOME_CODES[outcome] | OUTCOME_CODES[release or "none"] << 8,
        "votes": sum(
            count << (8 * KINDS.index(kind)) for kind, count in (votes or {"granted": 5}).items()
        ),
        "attempts": attempts | split << 32,
        "owner": sequence,
        "sequence": sequence,
    }
    return tuple(fields[name] for name in RECORD_DTYPE.names)


def legal_records(count, resources, seed=1):
    """A correct lock's history; 100 leases or more of a resource follow each other."""
    rng = np.random.default_rng(seed)
    records = records_of(np.zeros(count, RECORD_DTYPE))
    resource = np.arange(count) % resources
    turn = np.arange(count) // resources
    length = 10 * MS
    granted = 10**15 + turn * length + rng.integers(0, length // 4, count)
    sent = granted + rng.integers(1, length // 2, count)
    records["resource"] = resource
    records["granted_ns"] = records["ended_ns"] = granted
    records["start_ns"] = records["intended_ns"] = granted - rng.integers(1_000, length, count)
    records["attempt_ns"] = granted - 900
    records["valid_until_ns"] = records["attempt_ns"] + 98 * MS
    records["work_end_ns"] = sent - 1
    records["release_sent_ns"] = sent
    records["release_replied_ns"] = sent + 500
    records["outcome"] = OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
    records["votes"] = 5
    records["attempts"] = 1
    records["caller"] = rng.integers(0, 64, count)
    records["owner"] = records["sequence"] = np.arange(count) + 1
    return records


def granted_earlier(records, row, granted_ns):
    """All of the acquire, so that the record can be true."""
    by_ns = records["granted_ns"][row] - granted_ns
    for name in ("intended_ns", "start_ns", "attempt_ns", "granted_ns", "ended_ns"):
        records[name][row] -= by_ns
