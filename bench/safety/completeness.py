"""Is the history whole: *the workers' notes, what was found of each → one sentence for each hole*.

Rules: a worker has said how many operations it recorded, in its last words; whoever had none, or is not there, may have
recorded less than it did. An operation that was begun and has no record may hold a lease that nobody knows of.
Source: the folder protocol (bench.measure).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.measure.workers import WorkerNote

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
