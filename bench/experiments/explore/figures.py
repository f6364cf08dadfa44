"""Draws the smallest schedule that breaks each recipe, from the result of an exploration.

The functions are pure.

Each step is a command, a grant or a fault. The text of a command includes the answer to the
command. The text of a grant includes the end of the lease. A client holds the lock from the grant
until the client sends another command. If no command comes before the end of the lease, the client
holds the lock until this end. A command that extends the lease does not end the lease.

A step names neither the caller nor the resource. So a schedule with several callers in a client, or
with several resources, has no picture. In a picture of such a schedule, the start and the end of
each bar would be guesses.
"""

import math
from collections.abc import Iterator, Sequence

from bench.experiments.explore.result import Broken, ExploredRow, Step
from bench.report.html.plot import Figure
from bench.report.html.sequence import HoldingSpan, Move, sequence

# A longer schedule is shown only as a table.
MOST_MOVES = 30
ANSWER = " → "
GRANT = "granted"
EXTENDED = "extended"
UNTIL = " until "


def courses(rows: Sequence[ExploredRow]) -> list[Figure]:
    """Return one picture for each broken recipe, which shows the smallest schedule that breaks the
    recipe.

    Long schedules, and schedules with several callers or resources, have no picture.
    """
    return [
        _course(row.recipe, broken)
        for row in rows
        if (broken := row.broken)
        and broken.callers == broken.resources == 1
        and len(broken.steps) <= MOST_MOVES
    ]


def _course(recipe: str, broken: Broken) -> Figure:
    steps = broken.steps
    clients = max((step.who for step in steps), default=0) + 1
    moves = [
        Move(step.ms, step.who % (clients + 1), step.text, "call" if _is_call(step) else "event")
        for step in steps
    ]
    return sequence(
        f"course-{recipe}",
        f"{recipe}: {steps[-1].text}",
        "Simulated time runs from top to bottom, in ms. A bar shows the time in "
        "which a client believes that it holds the lock.",
        lines=[*(f"client {number + 1}" for number in range(clients)), "servers"],
        moves=moves,
        holdings=list(_holdings(steps)),
    )


def _is_call(step: Step) -> bool:
    return ANSWER in step.text and step.who >= 0


def _holdings(steps: Sequence[Step]) -> Iterator[HoldingSpan]:
    spans = [
        (step.who, number, _end(steps, number))
        for number, step in enumerate(steps)
        if step.text.startswith(GRANT)
    ]
    for who, begin, end in spans:
        is_bad = any(
            other != who and begin < other_end and other_begin < end
            for other, other_begin, other_end in spans
        )
        yield HoldingSpan(who, begin, end, is_bad)


def _end(steps: Sequence[Step], begin: int) -> int:
    """Return the number of the step that ends the lease. The lease was granted in step number
    `begin`.

    If no step ends the lease, the result is one more than the number of the last step.
    """
    granted = steps[begin]
    until_ms = _until_ms(granted)
    for number in range(begin + 1, len(steps)):
        step = steps[number]
        is_own = step.who == granted.who
        if is_own and step.text.startswith(EXTENDED):
            until_ms = _until_ms(step)
        is_over = step.ms >= until_ms
        if is_over or (is_own and _is_call(step) and not _extends(steps, number)):
            return number
    return len(steps)


def _extends(steps: Sequence[Step], number: int) -> bool:
    """Return whether the client of step `number` extends its lease before it gets its next
    grant.
    """
    who = steps[number].who
    answers = (
        step.text
        for step in steps[number:]
        if step.who == who and step.text.startswith((GRANT, EXTENDED))
    )
    return next(answers, "").startswith(EXTENDED)


def _until_ms(step: Step) -> float:
    """Return the end (ms) of a granted or extended lease, or infinity if it has no end."""
    _, _, end = step.text.partition(UNTIL)
    return float(end) if end else math.inf
