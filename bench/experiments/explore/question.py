"""Describes the question that `lockbench explore` answers. The question is whether a simulated
schedule breaks a recipe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.experiments.explore.command import explore
from bench.frame.question import Question

if TYPE_CHECKING:
    from bench.experiments.explore.result import ExploreResult
    from bench.report.answer import Answer


def _answer() -> Answer[ExploreResult]:
    from bench.experiments.explore.judge import earned
    from bench.experiments.explore.result import ExploreResult
    from bench.experiments.explore.words import figures, sheet, suite
    from bench.report.answer import Answer

    return Answer("explore", ExploreResult, earned, sheet, suite, figures=figures)


EXPLORE = Question(
    "explore",
    explore,
    _answer,
    examples=(
        "lockbench explore --recipe set-nx-get-del",
        "lockbench explore --recipe redlock --budget 60s",
    ),
    note="Servers and time are simulated. A schedule that broke a recipe is played again on real "
    "servers that lockbench starts.",
)
