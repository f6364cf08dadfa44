"""What the oracle says: *findings and circumstances → SAFE | VIOLATED | UNKNOWN | NOT TESTED with its reason*.

Rules
- VIOLATED when two leases were valid at once, a grant was accepted after its end, or a foreign lease was deleted: what
  was seen stays seen, whatever else is unknown. Client overstays and spurious refusals are counted and violate nothing.
- UNKNOWN when the history is incomplete or empty, the clock stepped, several hosts took part or the checker failed.
- A lease is *tested* when it was held for a time and another attempt's command was sent in it: only then could a lock
  that grants twice have been seen. With no violation in n tested leases the true rate is below 3 / n (95 % sure); below
  `TESTED_LEAST` of them it is NOT TESTED. Whoever asks whether there is evidence asks for SAFE.

Source: the rule of three; the oracle of README's section on safety.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.measure.verdict import TESTED_LEAST
from bench.measure.workers import WorkerNote

VIOLATIONS = ("service_fault", "granted_invalid", "foreign_delete")
KINDS = (*VIOLATIONS, "client_overstay", "spurious_refusal")
EXAMPLES_PER_KIND = 5

ClockSample = tuple[int, int]  # monotonic ns, CLOCK_REALTIME − CLOCK_MONOTONIC in ns


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the history itself does not tell.

    `unsafe_recipe`: the flaw of a recipe that is known to be unsafe, else None. `fault_spans_ns`: (begun, ended) of
    every injected fault; its effects may last one TTL longer. `clock`: samples over the run, in order. `missing`: one
    sentence for each part of the history that is known to be lost (a killed worker). `hosts`: that recorded it.
    `commands`: what the servers took during the run; None if one of them does not say.
    """

    unsafe_recipe: str | None = None
    fault_spans_ns: tuple[tuple[int, int], ...] = ()
    clock: Sequence[ClockSample] = ()
    missing: tuple[str, ...] = ()
    hosts: int = 1
    commands: int | None = None


def blame(at_ns: int, ttl_ms: int, circumstances: Circumstances) -> str:
    """The cause of a violation: `unsafe recipe`, `injected fault` or `unexplained`."""
    if circumstances.unsafe_recipe:
        return "unsafe recipe"
    lasting_ns = ttl_ms * 1_000_000
    if any(begun <= at_ns <= ended + lasting_ns for begun, ended in circumstances.fault_spans_ns):
        return "injected fault"
    return "unexplained"


def clock_step_ns(samples: Sequence[ClockSample], tolerance_ns: int = 2_000_000, slew: float = 1e-3) -> int:
    """The largest jump between neighbouring samples, in ns; 0 when every change is within `tolerance_ns` + slewing."""
    jumps = [
        abs(offset - offset_before)
        for (at_before, offset_before), (at, offset) in pairwise(samples)
        if abs(offset - offset_before) > tolerance_ns + slew * (at - at_before)
    ]
    return max(jumps, default=0)


def not_tested(held: int, tested: int, *, unasked: bool) -> str:
    """Why `tested` leases are too few, of `held` that were held for a time."""
    if unasked:
        return "the servers took fewer commands than leases were granted: nobody asked them"
    if not held:
        return "no lease was held for a time: set --hold"
    return (
        f"{tested:,} of {held:,} leases were held while another attempt was sent, and {TESTED_LEAST} are needed: "
        "more --users, fewer --resources or a longer --hold"
    )


def ignorance(operations: int, torn: int, missing_segments: int, circumstances: Circumstances) -> str | None:
    """Why nothing can be called safe; None when all is known."""
    reasons = list(circumstances.missing)
    if not operations:
        reasons.append("no operation was recorded")
    if torn or missing_segments:
        reasons.append(f"the history is incomplete: {torn} torn records, {missing_segments} missing files")
    if step := clock_step_ns(circumstances.clock):
        reasons.append(f"the wall clock stepped by {step / 1e6:.1f} ms during the run, and servers expire keys by it")
    if circumstances.hosts > 1:
        reasons.append(f"{circumstances.hosts} hosts recorded it, and their clocks cannot be compared")
    return "; ".join(reasons) or None


Who = tuple[int, int]  # worker, pid


def holes(
    notes: Sequence[WorkerNote],
    recorded: Mapping[Who, int],
    unfinished: Mapping[Who, int],
    processes: int,
    known: str = "",
) -> Iterator[str]:
    """Yield what is missing. `recorded`, `unfinished`: complete records, and operations begun that have none.

    `known`: what is said already of workers that ended early, by their pids.
    """
    said = {(note.worker, note.pid): note for note in notes}
    if len(said) < processes:
        yield f"{processes - len(said)} of {processes} workers left no word"
    for who in sorted({*said, *recorded, *(who for who, number in unfinished.items() if number)}):
        name, note = f"worker {who[0]} (pid {who[1]})", said.get(who)
        if note is None:
            yield f"{name} left no word"
        elif note.phase != "stopped":
            if f"(pid {who[1]})" not in known:
                yield f"{name} did not report its end"
        elif (number := recorded.get(who, 0)) < note.recorded:
            yield f"{name} recorded {note.recorded:,} operations, and {number:,} are there"
        if unfinished.get(who):
            yield f"{unfinished[who]:,} operations of {name} were begun and never recorded"
