"""What a contender says of an attempt is never too good: a vote ends when its clean-up may have left."""

from __future__ import annotations

import pytest

from bench.experiments.split_votes.contender_process import lost_ns
from lockcore import AttemptRecord, Outcome, Tally, Vote

KINDS = {"G": Vote.GRANTED, "R": Vote.REFUSED, "E": Vote.ERRORED, "S": Vote.SILENT, "A": Vote.ABSENT}


def record(votes: str, replied: tuple[int, ...], outcome: Outcome = Outcome.CONTENDED) -> AttemptRecord:
    return AttemptRecord(
        resource="r", attempt=1, acquire_ns=0, started_ns=0, decided_ns=60, closed_ns=70, outcome=outcome,
        tally=Tally(), validity_ns=0, margin=0, votes=tuple(KINDS[vote] for vote in votes), sent_ns=(1,) * len(votes),
        replied_ns=replied,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("votes", "replied", "lost"),
    [
        ("GGRRR", (10, 20, 30, 50, 40), 50),  # the third refusal of five, whatever order they came in
        ("RRRRR", (50, 40, 30, 20, 10), 30),
        ("GRRR", (10, 20, 40, 30), 30),  # four instances: the second
        ("GRR", (30, 10, 20), 20),
        ("GERSS", (10, 20, 30, 0, 0), 70),  # the silent ones are known at the close
        ("R", (10,), 10),
    ],
)
def test_an_attempt_is_lost_with_the_reply_that_leaves_no_quorum(
    votes: str, replied: tuple[int, ...], lost: int
) -> None:
    assert lost_ns(record(votes, replied)) == lost


def test_one_that_was_won_too_late_is_lost_when_that_was_decided() -> None:
    assert lost_ns(record("GGGRR", (10, 20, 30, 40, 50), Outcome.TOO_LATE)) == 60
