"""Describes the question that `lockbench safety` answers. The question is which faults break each
recipe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.experiments.safety_matrix.command import safety
from bench.frame.question import Question

if TYPE_CHECKING:
    from bench.experiments.safety_matrix.result import SafetyResult
    from bench.report.answer import Answer


def _answer() -> Answer[SafetyResult]:
    from bench.experiments.safety_matrix.judge import earned
    from bench.experiments.safety_matrix.result import SafetyResult
    from bench.experiments.safety_matrix.words import figures, sheet, suite
    from bench.report.answer import Answer

    return Answer("safety", SafetyResult, earned, sheet, suite, figures=figures)


SAFETY = Question(
    "safety",
    safety,
    _answer,
    examples=("lockbench safety --quick", "lockbench safety --recipe set-nx-get-del --claim votes"),
    note="Servers run on loopback and are stopped at the end. All rows take about 5 minutes. With "
    "--quick, they take 2 to 3 minutes.",
)
