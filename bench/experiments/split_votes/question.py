"""Describes the question that `lockbench split-votes` answers. The question is how often no
contender wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.experiments.split_votes.command import split_votes
from bench.frame.question import Question

if TYPE_CHECKING:
    from bench.experiments.split_votes.result import SplitVotesResult
    from bench.report.answer import Answer


def _answer() -> Answer[SplitVotesResult]:
    from bench.experiments.split_votes.judge import earned
    from bench.experiments.split_votes.result import SplitVotesResult
    from bench.experiments.split_votes.words import figures, sheet, suite
    from bench.report.answer import Answer

    return Answer("split-votes", SplitVotesResult, earned, sheet, suite, figures=figures)


SPLIT_VOTES = Question(
    "split-votes",
    split_votes,
    _answer,
    examples=(
        "lockbench split-votes --quick",
        "lockbench split-votes --instances 5 --contenders 3,5,10",
    ),
    note="Servers run on loopback and are stopped at the end. A full run takes about 4 minutes.",
)
