"""One operation as tests write it: times in ms, what is not said did not happen."""

from bench.measure.outcomes import KINDS
from bench.measure.record import OUTCOME_CODES, RECORD_DTYPE

MS = 1_000_000
TIMES = (
    *("intended", "start", "attempt", "granted", "valid_until", "work_end", "release_sent", "release_replied", "ended"),
)


def record_of(
    sequence, outcome="acquired", release=None, resource=0, caller=0, votes=None, attempts=1, split=0, **times
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
        "votes": sum(count << (8 * KINDS.index(kind)) for kind, count in (votes or {"granted": 5}).items()),
        "attempts": attempts | split << 32,
        "owner": sequence,
        "sequence": sequence,
    }
    return tuple(fields[name] for name in RECORD_DTYPE.names)
