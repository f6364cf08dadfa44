"""Defines the questions of `compare` and `gate`: *Which lock is faster? Did this change make the
lock slower?*"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.experiments.compare.command import compare, gate
from bench.frame.question import Question

if TYPE_CHECKING:
    from bench.experiments.compare.result import ComparisonResult, Kind
    from bench.report.answer import Answer


def _answer(kind: Kind) -> Answer[ComparisonResult]:
    from bench.experiments.compare.judge import earned
    from bench.experiments.compare.result import ComparisonResult
    from bench.experiments.compare.words import figures, sheet, suite
    from bench.report.answer import Answer

    return Answer(kind, ComparisonResult, earned, sheet, suite, figures=figures)


COMPARE = Question(
    "compare",
    compare,
    lambda: _answer("compare"),
    examples=(
        "lockbench compare --recipe redlock --recipe redlock-sequential",
        "lockbench compare before after",
    ),
    note="A and B are each a result, a folder of results, or a scenario. lockbench compares every "
    "side with the first side.",
)
GATE = Question(
    "gate",
    gate,
    lambda: _answer("gate"),
    examples=("lockbench gate --baseline git:main --candidate git:HEAD --tolerance 10%",),
    note="X, Y: a result folder, a scenario, git:REV (a revision), lib:DIR (packages).",
)
