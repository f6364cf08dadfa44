"""The pictures of a judged lock: *its result → the course of events of each row that does not
hold*. Pure."""

from collections.abc import Iterator, Sequence

from bench.experiments.judge.result import CourseStep, JudgedRow, JudgeResult
from bench.report.html.plot import Figure
from bench.report.html.sequence import HoldingSpan, Move, sequence

# A course of events with more steps is shown only as a table.
MOST_MOVES = 40
ANSWER = "→ "
TAKES = "acquire"
GIVES_BACK = "release"
# The stage's note for the moment when no lease can be alive any more.
ENDED = "its keys have ended"


def figures(result: JudgeResult) -> list[Figure]:
    """Return the pictures of rows that do not hold, with faults of safety first."""
    broken = [row for row in result.rows if row.verdict == "does not"]
    drawn = (_figure(row) for row in sorted(broken, key=lambda row: not row.is_safety))
    return [figure for figure in drawn if figure is not None]


def _figure(row: JudgedRow) -> Figure | None:
    """Return the picture of one course of events. Return None if the course has no call or is too
    long."""
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
        "Time runs from top to bottom, in ms. A bar shows who has the lock as far as it knows.",
        lines=lines,
        moves=moves,
        holdings=list(_holdings(steps, clients)),
    )


def _is_begin(row: JudgedRow, step: CourseStep) -> bool:
    """Return whether the picture begins with this step. A simulated course has no connections
    before this step."""
    return row.topic == "search" or step.what.startswith(TAKES)


def _is_more(step: CourseStep) -> bool:
    """Return whether a client does something in this step that is not a connection."""
    return not step.what.startswith("lock(")


def _move(step: CourseStep, clients: Sequence[str], begun_ms: float) -> Move:
    at_ms = step.after_ms - begun_ms
    line = clients.index(step.who) if step.who else len(clients)
    if step.what.startswith(ANSWER):
        return Move(at_ms, line, step.what.removeprefix(ANSWER), "answer")
    is_call = step.what.startswith((TAKES, GIVES_BACK))
    return Move(at_ms, line, step.what, "call" if is_call else "event")


def _holdings(steps: Sequence[CourseStep], clients: Sequence[str]) -> Iterator[HoldingSpan]:
    """Yield the span of each lease. It starts at the grant, and ends at the client's next release
    or at the end of the keys, whichever comes first. Otherwise it ends with the course."""
    waiting: set[str] = set()
    spans: list[tuple[str, int, int]] = []
    for number, step in enumerate(steps):
        if step.what.startswith(TAKES):
            waiting.add(step.who)
        elif step.what.startswith(ANSWER) and step.who in waiting:
            waiting.discard(step.who)
            if step.what.startswith(f"{ANSWER}yes"):
                spans.append((step.who, number, _end(steps, number)))
    for who, begin, end in spans:
        is_bad = any(
            other != who and begin < other_end and other_begin < end
            for other, other_begin, other_end in spans
        )
        yield HoldingSpan(clients.index(who), begin, end, is_bad)


def _end(steps: Sequence[CourseStep], begin: int) -> int:
    """Return the number of the step that ends the lease granted at step `begin`. If no step ends
    the lease, return the number of steps."""
    who = steps[begin].who
    return next(
        (
            number
            for number, step in enumerate(steps)
            if number > begin
            and (step.what == ENDED or (step.who == who and step.what.startswith(GIVES_BACK)))
        ),
        len(steps),
    )
