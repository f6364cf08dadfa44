"""A table of all questions that lockbench answers.

The program reads its commands from this table. The report uses the table to find the `Answer` for
each kind of result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bench.experiments.audit.question import AUDIT
from bench.experiments.capacity.question import CAPACITY
from bench.experiments.compare.question import COMPARE, GATE
from bench.experiments.durability.question import CRASH, FSYNC
from bench.experiments.explore.question import EXPLORE
from bench.experiments.judge.question import JUDGE
from bench.experiments.safety_matrix.question import SAFETY
from bench.experiments.split_votes.question import SPLIT_VOTES
from bench.frame.question import Question

if TYPE_CHECKING:
    from bench.measure.run_result import RunResult
    from bench.report.answer import Answer, Answers

# The questions by the user's job. The keys are headings of the program's help.
QUESTIONS: Mapping[str, tuple[Question[Any], ...]] = {
    "Plan capacity": (CAPACITY,),
    "Choose an fsync policy": (FSYNC, CRASH),
    "Compare, and gate in CI": (COMPARE, GATE),
    "Judge safety": (JUDGE, SAFETY, EXPLORE, SPLIT_VOTES, AUDIT),
}


def _run() -> Answer[RunResult]:
    from bench.report.run_answer import RUN

    return RUN


ANSWERS: Answers = {
    **{one.name: one.answer for questions in QUESTIONS.values() for one in questions},
    "run": _run,
}
