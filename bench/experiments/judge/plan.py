"""Makes the plan of a judgement. The input is a lock, the names of rows, and the user's options."""

from collections.abc import Sequence

from bench.errors import UsageError
from bench.experiments.judge.experiment import JudgePlan
from bench.experiments.judge.needs import rows_of
from bench.experiments.judge.rows import BY_NAME, ROWS
from bench.experiments.judge.subject import Subject
from bench.scenario.quantity import require_known

SECONDS = 10.0
QUICK_SECONDS = 3.0
PLAYS = 3
TAKEOVERS = 12
QUICK_TAKEOVERS = 3


def plan_of(
    subject: Subject,
    rows: Sequence[str] = (),
    *,
    quick: bool,
    instances: int = 1,
    capacity: int = 1,
    shared: bool = False,
    with_costs: bool = True,
) -> JudgePlan:
    """Return the plan of a judgement with contention and the rows in `rows`. If `rows` is empty,
    the plan has all rows. Raises UsageError for a wrong name, or for a lock that is both a
    semaphore and a shared lock.
    """
    require_known("row", rows, BY_NAME)
    if shared and capacity > 1:
        raise UsageError("--shared and --capacity are two kinds of lock; give one of them")
    seconds = SECONDS
    plays = PLAYS
    takeovers = TAKEOVERS
    if quick:
        seconds = QUICK_SECONDS
        plays = 1
        takeovers = QUICK_TAKEOVERS
    names = rows_of(rows, capacity=capacity, shared=shared)
    return JudgePlan(
        subject=subject,
        instances=instances,
        capacity=capacity,
        shared=shared,
        seconds=seconds,
        plays=plays,
        takeovers=takeovers,
        rows=[row for row in ROWS if row.name in names],
        chosen=tuple(rows),
        with_costs=with_costs,
    )
