"""An attempt that goes through JSON comes back as it was."""

from __future__ import annotations

import json
from dataclasses import asdict

from bench.experiments.split_votes.judge import Attempt, Ballot
from bench.experiments.split_votes.trial import Block, attempt_of, resource_of, row_of
from lockcore import Outcome, Vote


def test_an_attempt_survives_its_line() -> None:
    ballots = (Ballot(Vote.GRANTED, 5, 9, 20, 25), Ballot(Vote.SILENT, 6), Ballot(Vote.ABSENT))
    attempt = Attempt(3, 4, 10, Outcome.ACQUIRED, ballots, valid_until_ns=1000)
    assert attempt_of(json.loads(json.dumps(row_of(17, attempt)))) == (17, attempt)


def test_a_block_survives_its_line_and_numbers_its_trials() -> None:
    block = Block(41, 3, 5, "random", 0.5, "fixed", 200.0, 5000.0)
    assert Block(**json.loads(json.dumps(asdict(block)))) == block
    assert list(block.trials) == [41, 42, 43]
    assert len({resource_of(trial) for trial in block.trials}) == 3
