"""Describes the question that `lockbench judge` answers. The question is whether your own lock is
safe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.experiments.judge.command import judge
from bench.frame.question import Question

if TYPE_CHECKING:
    from bench.experiments.judge.result import JudgeResult
    from bench.report.answer import Answer


def _answer() -> Answer[JudgeResult]:
    from bench.experiments.judge.figures import figures
    from bench.experiments.judge.judge import earned
    from bench.experiments.judge.result import JudgeResult
    from bench.experiments.judge.words import evidence, sheet, suite
    from bench.report.answer import Answer

    return Answer("judge", JudgeResult, earned, sheet, suite, figures=figures, evidence=evidence)


JUDGE = Question(
    "judge",
    judge,
    _answer,
    examples=(
        "lockbench judge mine.py --quick",
        "lockbench judge package.module:lock --instances 3",
        "lockbench judge 'node lock.mjs' --quick",
    ),
    note="The servers are started on loopback, empty and in memory, and stopped at the end.",
)
