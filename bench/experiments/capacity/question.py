"""Defines the question of `capacity`: *Which is the highest rate that keeps an SLO, and what limits
this rate?*"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.experiments.capacity.command import capacity
from bench.frame.question import Question

if TYPE_CHECKING:
    from bench.experiments.capacity.result import CapacityResult
    from bench.report.answer import Answer


def _answer() -> Answer[CapacityResult]:
    from bench.experiments.capacity.judge import earned
    from bench.experiments.capacity.result import CapacityResult
    from bench.experiments.capacity.words import figures, sheet, suite
    from bench.report.answer import Answer

    return Answer("capacity", CapacityResult, earned, sheet, suite, figures=figures)


CAPACITY = Question(
    "capacity",
    capacity,
    _answer,
    examples=("lockbench capacity --slo 'acquire.p99 < 10ms' --quick",),
    note="Servers are started and stopped.",
)
