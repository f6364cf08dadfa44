"""What to judge: *a lock, rows by name, quick or not → a plan*."""

from collections.abc import Sequence
from typing import Any

from bench.experiments.judge.experiment import JudgePlan
from bench.experiments.judge.judge import CONTENTION
from bench.experiments.judge.rows import BY_NAME, ROWS
from bench.experiments.judge.subject import Subject
from bench.scenario.quantity import require_known

SECONDS = 10.0
QUICK_SECONDS = 3.0
PLAYS = 3


def plan_of(subject: Subject, rows: Sequence[str] = (), *, quick: bool, **terms: Any) -> JudgePlan:
    """The plan for `rows` and contention, or for all rows. Raises UsageError for a wrong name."""
    require_known("row", rows, BY_NAME)
    chosen = [row for row in ROWS if not rows or row.name in (CONTENTION, *rows)]
    usual = {
        "instances": 1,
        "capacity": 1,
        "seconds": QUICK_SECONDS if quick else SECONDS,
        "plays": 1 if quick else PLAYS,
    }
    return JudgePlan(subject, **usual | terms, rows=chosen)
