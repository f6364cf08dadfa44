"""Defines the data types of the stored result of `lockbench judge`."""

from typing import Annotated, Literal

from bench.experiments.judge.holders import HeldSpan
from bench.experiments.judge.needs import Observed
from bench.measure.fleet_facts import OwnFleet
from bench.measure.result import Document
from bench.measure.section import Amount, Count, Section, says

JudgedWord = Literal["holds", "does not", "told", "not applicable", "not known"]


def seconds_text(ms: float) -> str:
    """Return the text of a time to live in seconds, rounded to 0.01 s. A server reports a TTL of 5
    s as 4,998 ms.
    """
    return f"{round(ms / 1000, 2):g} s"


class CourseStep(Section, frozen=True):
    """One step in the course of events of a play."""

    after_ms: Annotated[
        Amount,
        says(
            "time of this step after the judge had emptied the servers",
            shown="table",
        ),
    ]
    who: Annotated[
        str,
        says("the client's letter; empty for the servers", label="client", shown="table"),
    ]
    what: Annotated[
        str,
        says(
            "a call in the library's own code, its answer, or an event that the judge caused",
            shown="table",
        ),
    ]


class RowFigure(Section, frozen=True):
    """A count or a measurement that supports the verdict on a row."""

    name: Annotated[str, says("the name of the count or the measurement")]
    value: Annotated[float, says("the value in its unit")]
    unit: Annotated[str, says("the unit of the value; empty if the value is a count")]


class JudgedRow(Section, frozen=True, kw_only=True):
    """The answer to one question about the lock. The answer consists of the verdict and the
    evidence for this verdict.
    """

    library: Annotated[str, says("only in an audit: the library's name")] = ""
    group: Annotated[str, says("the subject of the row")]
    topic: Annotated[str, says("the name of the row")]
    question: Annotated[str, says("the fault that the row looks for")]
    is_safety: Annotated[
        bool,
        says("true if a fault means that two clients had the lock, or could have had it"),
    ]
    verdict: Annotated[
        JudgedWord,
        says(
            "`told` means that the row only informs; `not known` means that a precondition of "
            "the row was not met"
        ),
    ]
    happened: Annotated[
        str,
        says(
            "finding of the judge: a fault, an observation, or the reason why the row is not known"
        ),
    ] = ""
    wrong: Annotated[Count, says("the number of plays with a fault")] = 0
    plays: Annotated[Count, says("the number of plays that reached their end")] = 0
    tested: Annotated[
        Count,
        says(
            "number of leases during which another process asked for the lock; 0 in every row "
            "except the row named contention"
        ),
    ] = 0
    figures: Annotated[tuple[RowFigure, ...], says("the figures that support the verdict")] = ()
    holders: Annotated[
        tuple[HeldSpan, ...],
        says("the leases at the moment with the most holders; only for the row named contention"),
    ] = ()
    course: Annotated[
        tuple[CourseStep, ...],
        says("the steps of one play if the verdict is `does not` or `not known`; otherwise empty"),
    ] = ()
    promise: Annotated[
        str,
        says(
            "only in an audit, if the row fails: the promise of the library's documentation, "
            "with its place"
        ),
    ] = ""


class WaitingCost(Section, frozen=True, kw_only=True):
    """The costs and waiting times of a lock. During the measurement, four processes competed for
    one name.
    """

    lock: Annotated[str, says("the name of the lock", shown="table")]
    leases_per_s: Annotated[
        float, says("number of leases per second, over all processes", shown="table")
    ]
    handoff_p50_s: Annotated[
        float | None,
        says(
            "the median time from a release to the next grant", label="hand-off p50", shown="table"
        ),
    ]
    handoff_p99_s: Annotated[
        float | None,
        says(
            "99th percentile of the time from a release to the next grant; null if there "
            "were fewer than 1,000 hand-offs",
            label="hand-off p99",
            shown="table",
        ),
    ]
    fairness: Annotated[
        float | None,
        says(
            "Jain's index of the leases per process; 1 means that all processes got the same "
            "number",
            unit="ratio",
            shown="table",
        ),
    ]
    attempts_per_lease: Annotated[
        float | None,
        says(
            "number of calls of acquire per lease. If the lock waits inside a call, one call "
            "can make many attempts",
            label="attempts",
            shown="table",
        ),
    ] = None
    commands_per_lease: Annotated[
        float | None,
        says(
            "number of commands with a key that the servers executed, per lease",
            label="commands",
            shown="table",
        ),
    ]
    client_cpu_us_per_lease: Annotated[
        float | None,
        says(
            "CPU time of the processes, including the judge's pipe",
            label="client CPU",
            shown="table",
        ),
    ]


class JudgeResult(Document, frozen=True, kw_only=True):
    """The judgement of one lock, row by row."""

    kind: Annotated[Literal["judge"], says("the command that made it")] = "judge"
    fleet: Annotated[OwnFleet, says("the servers that the judge started")]
    lock: Annotated[str, says("the lock, as named on the command line")]
    instances: Annotated[Count, says("the number of servers for the lock")]
    capacity: Annotated[Count, says("how many callers may hold the lock at once")]
    shared: Annotated[
        bool, says("true if readers may hold the lock together, while a writer holds it alone")
    ] = False
    ttl_ms: Annotated[
        int | None,
        says("TTL of the lock's keys after a grant; null without a TTL"),
    ]
    keys: Annotated[
        Count,
        says(
            "number of keys that a lease has on all servers together; 0 means that the lock uses "
            "no server"
        ),
    ]
    lacks: Annotated[
        tuple[Observed, ...],
        says(
            "features that the client or the servers lack; no row can apply that needs such a "
            "feature"
        ),
    ] = ()
    chosen: Annotated[
        tuple[str, ...],
        says(
            "the rows that the user selected; the row named contention, which is always played, "
            "is not listed; empty if the judge played all rows"
        ),
    ] = ()
    planned: Annotated[Count, says("the number of rows of a complete judgement")]
    rows: Annotated[tuple[JudgedRow, ...], says("the rows of the judgement, with their verdicts")]
    costs: Annotated[
        tuple[WaitingCost, ...],
        says(
            "the cost of waiting for a lock, measured on one machine for this lock, redis-py's "
            "lock and lockcore"
        ),
    ] = ()
