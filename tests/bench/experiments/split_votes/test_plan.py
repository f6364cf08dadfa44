"""What goes through a contender's pipe comes out as it was."""

from __future__ import annotations

import msgspec

from bench.experiments.split_votes.judge import Attempt, CastVote
from bench.experiments.split_votes.plan import Block, resource_of
from lockcore import Outcome, RetryPolicy, Vote


def test_an_attempt_survives_its_line() -> None:
    votes = (CastVote(Vote.GRANTED, 5, 9, 20, 25), CastVote(Vote.SILENT, 6), CastVote(Vote.ABSENT))
    made = [(17, Attempt(3, 4, 10, Outcome.ACQUIRED, votes, valid_until_ns=1000))]
    assert msgspec.json.decode(msgspec.json.encode(made), type=list[tuple[int, Attempt]]) == made


def test_a_block_survives_its_line_and_numbers_its_trials() -> None:
    block = Block(41, 3, 5, "random", 0.5, RetryPolicy("fixed", 200.0), 5000.0)
    assert msgspec.json.decode(msgspec.json.encode(block), type=Block) == block
    assert list(block.trials) == [41, 42, 43]
    assert len({resource_of(trial) for trial in block.trials}) == 3
