"""The stored result of `lockbench judge`: *a verdict word per row, with its evidence → a typed
result*."""

from typing import Annotated, Literal

from bench.experiments.judge.holders import HeldSpan
from bench.experiments.judge.needs import Observed
from bench.measure.result import Document
from bench.measure.run_result import OwnFleet
from bench.measure.section import Amount, Count, Section, says

JudgedWord = Literal["holds", "does not", "told", "not applicable", "not known"]


def seconds_text(ms: float) -> str:
    """Return a time to live in rounded seconds, because a server reports 4,998 ms for 5 s."""
    return f"{round(ms / 1000, 2):g} s"


class CourseStep(Section, frozen=True):
    """One step of a schedule as it was played."""

    after_ms: Annotated[Amount, says("since the servers were empty", shown="table")]
    who: Annotated[
        str, says("a client, by its letter; empty: the servers", label="client", shown="table")
    ]
    what: Annotated[
        str,
        says(
            "a call in the library's own words, what came of it, or what was done to it",
            shown="table",
        ),
    ]


class RowFigure(Section, frozen=True):
    """A figure that supports the verdict on a row."""

    name: Annotated[str, says("what was counted or measured")]
    value: Annotated[float, says("in its unit")]
    unit: Annotated[str, says("of the value; empty: a count")]


class JudgedRow(Section, frozen=True, kw_only=True):
    """One row: a question about the lock, with its verdict and evidence."""

    library: Annotated[str, says("of an audit: as in libraries")] = ""
    group: Annotated[str, says("what the row is about")]
    topic: Annotated[str, says("the name of the row")]
    question: Annotated[str, says("the fault that the row looks for")]
    is_safety: Annotated[bool, says("a fault means that two clients had the lock, or could")]
    verdict: Annotated[
        JudgedWord,
        says("told: nothing can be right or wrong; not known: what it rests on did not come about"),
    ]
    happened: Annotated[
        str, says("what went wrong, what the caller was told, or why not known")
    ] = ""
    wrong: Annotated[Count, says("in how many plays it went wrong")] = 0
    plays: Annotated[Count, says("how often it was played to an end")] = 0
    tested: Annotated[
        Count, says("leases that were held while another process asked, of contention")
    ] = 0
    figures: Annotated[tuple[RowFigure, ...], says("what the row rests on")] = ()
    holders: Annotated[
        tuple[HeldSpan, ...], says("of contention: the leases of the moment with most holders")
    ] = ()
    course: Annotated[
        tuple[CourseStep, ...], says("one play, step by step, if it does not hold or is not known")
    ] = ()
    promise: Annotated[
        str, says("of an audit: what its documentation says to that, and where, if it fails")
    ] = ""


class WaitingCost(Section, frozen=True, kw_only=True):
    """The costs of a lock for four processes that all wanted one name, and their waiting times."""

    lock: Annotated[str, says("which lock", shown="table")]
    leases_per_s: Annotated[float, says("of all processes", shown="table")]
    handoff_p50_s: Annotated[
        float | None,
        says("from a release to the next grant, half of them", label="hand-off p50", shown="table"),
    ]
    handoff_p99_s: Annotated[
        float | None,
        says("the same, 99 of 100; null: fewer than 1,000", label="hand-off p99", shown="table"),
    ]
    fairness: Annotated[
        float | None,
        says("Jain's index of the processes' leases: 1 = all alike", unit="ratio", shown="table"),
    ]
    attempts_per_lease: Annotated[
        float | None,
        says(
            "calls of acquire; one call of a lock that waits inside can make many attempts",
            label="attempts",
            shown="table",
        ),
    ] = None
    commands_per_lease: Annotated[
        float | None,
        says("that the servers counted, with a key", label="commands", shown="table"),
    ]
    client_cpu_us_per_lease: Annotated[
        float | None,
        says("of the processes, the judge's pipe too", label="client CPU", shown="table"),
    ]


class JudgeResult(Document, frozen=True, kw_only=True):
    """One lock, judged row by row."""

    kind: Annotated[Literal["judge"], says("the command that made it")] = "judge"
    fleet: Annotated[OwnFleet, says("the servers")]
    lock: Annotated[str, says("as it was named")]
    instances: Annotated[Count, says("servers that it was given")]
    capacity: Annotated[Count, says("how many callers may hold the lock at once")]
    shared: Annotated[bool, says("readers may hold it together, and a writer alone")] = False
    ttl_ms: Annotated[int | None, says("of its keys after a grant; null: they have no end")]
    keys: Annotated[Count, says("that a lease makes, over all servers; 0: it asks no server")]
    lacks: Annotated[
        tuple[Observed, ...],
        says("what the client or the servers lack; a row that needs it is not applicable"),
    ] = ()
    chosen: Annotated[
        tuple[str, ...], says("the rows that the user named, beside contention; empty: all")
    ] = ()
    planned: Annotated[Count, says("how many rows the judgement has when it is whole")]
    rows: Annotated[tuple[JudgedRow, ...], says("what it was asked, and what came of it")]
    costs: Annotated[
        tuple[WaitingCost, ...], says("the lock, redis-py's and lockcore on the same machine")
    ] = ()
