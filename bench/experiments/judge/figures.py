"""Draws the course of events of each row in which the lock failed. The functions are pure."""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from bench.experiments.judge.holders import HeldSpan, crowds, is_too_many
from bench.experiments.judge.result import CourseStep, JudgedRow, JudgeResult
from bench.experiments.judge.row import RENEWAL_EVERY
from bench.report.html.plot import Figure
from bench.report.html.sequence import HoldingSpan, Move, sequence

# A course of events with more steps is shown only as a table.
MOST_MOVES = 40
ANSWER = "→ "
TAKES = "acquire"
GIVES_BACK = "release"
# The end of a reader's request, in a course that tells the two sides of a shared lock apart.
AS_READER = "(read)"
# The stage's note for the moment when no lease can be alive any more.
ENDED = "its keys have ended"


def figures(result: JudgeResult) -> list[Figure]:
    """Return a picture of each row in which the lock failed. Rows about safety come first."""
    broken = [row for row in result.rows if row.verdict == "does not"]
    drawn = (_figure(row, result) for row in sorted(broken, key=lambda row: not row.is_safety))
    return [figure for figure in drawn if figure is not None]


def _figure(row: JudgedRow, result: JudgeResult) -> Figure | None:
    """Return the picture of a row's course of events. Return None if the course of events contains
    no call, or if it is too long.
    """
    begin = next((n for n, step in enumerate(row.course) if _is_begin(row, step)), None)
    if begin is None or len(row.course) > MOST_MOVES:
        return None
    clients = sorted({step.who for step in row.course if step.who})
    # A client that connects later has a line from the beginning, too.
    steps = [
        step
        for step in row.course[begin:]
        if not step.who or step.what.startswith(ANSWER) or _is_more(step)
    ]
    lines = [*(f"client {who}" for who in clients), "servers"]
    begun_ms = steps[0].after_ms
    moves = [_move(step, clients, begun_ms) for step in steps]
    return sequence(
        row.topic,
        f"{row.topic}: {row.happened}",
        "Time runs from top to bottom, in ms. A bar shows when a client believes it has the lock.",
        lines=lines,
        moves=moves,
        holdings=list(_holdings(row, result, steps, clients)),
    )


def _is_begin(row: JudgedRow, step: CourseStep) -> bool:
    """Return whether the picture may begin with this step. On real servers, the clients connect
    before the first request, and the picture omits these steps. A simulated course does not contain
    the steps in which clients connect, so the picture may begin with any step.
    """
    return row.topic == "search" or step.what.startswith(TAKES)


def _is_more(step: CourseStep) -> bool:
    """Return False if the client only connects in this step, and True for every other step."""
    return not step.what.startswith("lock(")


def _move(step: CourseStep, clients: Sequence[str], begun_ms: float) -> Move:
    at_ms = step.after_ms - begun_ms
    line = clients.index(step.who) if step.who else len(clients)
    if step.what.startswith(ANSWER):
        return Move(at_ms, line, step.what.removeprefix(ANSWER), "answer")
    is_call = step.what.startswith((TAKES, GIVES_BACK))
    return Move(at_ms, line, step.what, "call" if is_call else "event")


def _holdings(
    row: JudgedRow, result: JudgeResult, steps: Sequence[CourseStep], clients: Sequence[str]
) -> Iterator[HoldingSpan]:
    """Yield the span of each lease.

    A span is bad if too many clients hold the lock at some moment of the span. Only rows about
    safety can have bad spans. In other rows, one client may hold several locks.
    """
    # A client of a lock that renews believes that its lease lasts until its release.
    renews = any(figure.name == RENEWAL_EVERY for one in result.rows for figure in one.figures)
    spans = list(_held(steps, clients, None if renews else result.ttl_ms))
    # A client that holds the lock twice is one holder.
    bad = {
        one
        for held in crowds(spans)
        if row.is_safety
        and is_too_many(
            list({one.client: one for one in held}.values()),
            result.capacity,
            shared=result.shared,
        )
        for one in held
    }
    for one in spans:
        yield HoldingSpan(one.client, int(one.from_ms), int(one.until_ms), one in bad)


def _held(
    steps: Sequence[CourseStep], clients: Sequence[str], ttl_ms: int | None
) -> Iterator[HeldSpan]:
    """Yield the leases in the order of their grants.

    Each span begins and ends at the number of a step, because several steps may happen in the same
    millisecond. If a request does not name a side of a shared lock, the request counts as a
    writer's request.
    """
    sides: dict[str, Literal["read", "write"]] = {}
    for number, step in enumerate(steps):
        if step.what.startswith(TAKES):
            sides[step.who] = "read" if step.what.endswith(AS_READER) else "write"
        elif step.what.startswith(ANSWER) and step.who in sides:
            side = sides.pop(step.who)
            if step.what.startswith(f"{ANSWER}yes"):
                end = _end(steps, number, ttl_ms)
                yield HeldSpan(clients.index(step.who), side, number, end)


def _end(steps: Sequence[CourseStep], begin: int, ttl_ms: int | None) -> int:
    """Return the number of the step that ends the lease. The lease was granted in step number
    `begin`. The lease ends when the client releases the lease, when the lease's keys end, or when
    `ttl_ms` has passed. If `ttl_ms` is None, the lease has no time limit. If no step ends the
    lease, the result is the number of steps.
    """
    granted = steps[begin]
    until_ms = math.inf if ttl_ms is None else granted.after_ms + ttl_ms
    for number in range(begin + 1, len(steps)):
        step = steps[number]
        is_release = step.who == granted.who and step.what.startswith(GIVES_BACK)
        if is_release or step.what == ENDED or step.after_ms >= until_ms:
            return number
    return len(steps)
