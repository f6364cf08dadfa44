"""Where the page of a run opens: *its result → the moment people look for first, in words and in seconds*.

Rules: the first violation, else the first fault, else the slowest acquire; seconds count from the start of the measured
window. A moment of which the result has no time is told, and not shown. "First" is said of what the result has: of each
kind of violation it has the earliest few.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.measure.run_result import BrokenRule, Example, Holder, RunResult
from bench.report.figures import count
from bench.report.html.run_figures import course_of, fault_bands, slowest_of

RULES: dict[BrokenRule, str] = {
    "service_fault": "two leases valid at once", "granted_invalid": "accepted after its own end",
    "foreign_delete": "deleted another's lock", "client_overstay": "worked past its own validity",
    "spurious_refusal": "refused, and nobody held it",
}  # fmt: skip
TIMES = ("start_ns", "granted_ns", "valid_until_ns", "work_end_ns", "release_sent_ns", "release_replied_ns")
_VIOLATIONS = ("service_fault", "granted_invalid", "foreign_delete")
VIOLATION, FAULT = "the first violation", "the first fault"
_LEASES = 12  # in view to either side of a moment
_BEFORE_S = 1.0  # how far before a fault its leases may begin


@dataclass(frozen=True, slots=True)
class Eyecatcher:
    """What to look at first: `what` it is, `text` in a sentence, when (None: not known), and what to show around it."""

    what: str
    text: str
    at_s: float | None = None
    view_s: tuple[float, float] = (0.0, 0.0)


def moment_of(result: RunResult) -> Eyecatcher | None:
    """Return where the page of `result` opens; None when nothing of the kind is known."""
    return _violation(result) or _fault(result) or _slowest(result)


def findings(result: RunResult) -> list[Example]:
    """What the oracle found, violations before the rest, the earliest first."""
    return sorted(result.safety.examples, key=lambda one: (one.kind not in _VIOLATIONS, one.at_ns))


def span_of(example: Example, origin_ns: int) -> tuple[float, float]:
    """From when to when the operations of a finding lasted; a lease that was never released, to the finding."""
    names = (name for name in TIMES if name != "valid_until_ns")
    times = [example.at_ns, *(at for name in names for op in example.operations if (at := getattr(op, name)))]
    return (min(times) - origin_ns) / 1e9, (max(times) - origin_ns) / 1e9


def _violation(result: RunResult) -> Eyecatcher | None:
    found = [one for one in findings(result) if one.kind in _VIOLATIONS]
    if not found:
        return None
    first, safety, over = found[0], result.safety, course_of(result)
    seen = safety.service_faults + safety.granted_invalid + safety.foreign_deletes
    name = f"Violation 1 of {count(seen)}" if seen > 1 else "The violation"
    text = f"{name}: {RULES[first.kind]}, on resource {first.operations[0].resource}"
    if over is None:
        return Eyecatcher(VIOLATION, text)
    at_s = (first.at_ns - over.origin_ns) / 1e9
    when = f"{at_s:.3f} s into the run" if at_s >= 0 else f"{-at_s:.3f} s before the measured window"
    return Eyecatcher(VIOLATION, f"{text}, {when}", at_s, span_of(first, over.origin_ns))


def _fault(result: RunResult) -> Eyecatcher | None:
    over = course_of(result)
    bands = fault_bands(result, over.start_s[-1] + over.slice_s if over else result.duration_s)
    if not bands:
        return None
    first = min(bands, key=lambda band: band.start)
    name = "The fault" if len(bands) == 1 else f"Fault 1 of {len(bands)}"
    text = f"{name}: {first.text}, from {first.start:.2f} s to {first.stop:.2f} s of the run"
    low, high = _around(_holders(result), first.start - _BEFORE_S, first.stop, first.start)
    return Eyecatcher(FAULT, text, first.start, (min(low, first.start), high))


def _slowest(result: RunResult) -> Eyecatcher | None:
    over, found = course_of(result), slowest_of(result)
    if over is None or found is None:
        return None
    at_s, text = found
    middle_s = at_s + over.slice_s / 2
    return Eyecatcher(
        "the slowest acquire", text, middle_s, _around(_holders(result), at_s, at_s + over.slice_s, middle_s)
    )


def _holders(result: RunResult) -> Sequence[Holder]:
    """Those of whom single leases are known."""
    return [entry for entry in result.safety.holders if entry.rows]


def _around(holders: Sequence[Holder], low_s: float, high_s: float, at_s: float) -> tuple[float, float]:
    """Some leases of the first resource around `at_s`; where none was granted between the two times, those as well."""
    rows = holders[0].rows if holders else ()
    if not rows:
        return low_s, high_s
    nearest = min(range(len(rows)), key=lambda place: abs(rows[place][0] / 1e6 - at_s))
    chosen = rows[max(nearest - _LEASES, 0) : nearest + _LEASES]
    first, last = chosen[0][0] / 1e6, max(row[1] for row in chosen) / 1e6
    if any(low_s <= row[0] / 1e6 <= high_s for row in chosen):
        return first, last
    return min(first, low_s), max(last, high_s)
