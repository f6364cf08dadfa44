"""What an observer is told: one record per attempt, with every instance's vote and times.

On every way of waiting.
"""

import time
from typing import Any

import pytest

from lockcore import AttemptRecord, Outcome, Vote
from tests.doubles.instance import REFUSE
from tests.doubles.keyspace import error
from tests.integration.lockcore.shell import TTL_MS, Connect, Scripted, Shell

pytestmark = pytest.mark.integration
FULL = error("OOM command not allowed when used memory > 'maxmemory'.")
TIMEOUT_MS = 100


class Notes:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[AttemptRecord] = []

    def observe(self, record: AttemptRecord) -> None:
        """One more."""
        self.records.append(record)


def check_times(record: AttemptRecord, before_ns: int) -> None:
    """Every time is there where something happened, 0 where nothing did, and all are in order."""
    assert before_ns <= record.started_ns <= min(record.decided_ns, record.closed_ns)
    assert max(record.decided_ns, record.closed_ns) <= time.monotonic_ns()
    for vote, sent, replied in zip(record.votes, record.sent_ns, record.replied_ns, strict=True):
        if vote is Vote.ABSENT:
            assert (sent, replied) == (0, 0)
        elif vote is Vote.SILENT:
            assert record.started_ns <= sent
            assert replied == 0
        else:
            assert record.started_ns <= sent <= replied <= record.closed_ns


@pytest.mark.parametrize(
    ("says", "outcome"),
    [
        ([None, None, None], Outcome.ACQUIRED),
        ([None, "pause", None], Outcome.ACQUIRED),
        ([None, "kill", None], Outcome.ACQUIRED),
        ([REFUSE, REFUSE, None], Outcome.CONTENDED),
        ([REFUSE, FULL, None], Outcome.SPLIT_VOTE),
        (["kill", "kill", None], Outcome.UNREACHABLE),
    ],
    ids=lambda value: value.value if isinstance(value, Outcome) else "",
)
def test_a_record_has_every_vote(
    shell: Shell, connect: Connect, scripted: Scripted, says: list[Any], outcome: Outcome
) -> None:
    instances = scripted(3)
    notes = Notes()
    lock = connect(instances.urls, observer=notes, instance_timeout_ms=TIMEOUT_MS)
    for instance, said in zip(instances, says, strict=True):
        if said in ("pause", "kill"):
            getattr(instance, said)()
        else:
            instance.says["set"] = said
    shell.until(
        lambda: [s.state for s in lock.instances].count("down") == says.count("kill"),
        "the losses to be noticed",
    )
    before_ns = time.monotonic_ns()
    result = lock.try_acquire("stock", TTL_MS)
    assert result.outcome is outcome
    shell.until(lambda: notes.records, "the record")
    (record,) = notes.records
    check_times(record, before_ns)
    votes = {
        None: Vote.GRANTED,
        REFUSE: Vote.REFUSED,
        FULL: Vote.ERRORED,
        "pause": Vote.SILENT,
        "kill": Vote.ABSENT,
    }
    if outcome is Outcome.UNREACHABLE and "kill" in says:
        # too few to ask anybody
        assert record.votes == (Vote.ABSENT,) * 3
    else:
        assert record.votes == tuple(votes[said] for said in says)
    assert (record.resource, record.attempt, record.outcome) == ("stock", 1, outcome)
    assert record.margin == record.votes.count(Vote.GRANTED) - 2
    counted = [record.votes.count(vote) for vote in Vote]
    assert list(record.tally) == [*counted, 0]
    assert record.validity_ns == record.started_ns + (TTL_MS - 102) * 1_000_000 - record.decided_ns
    # the round closes with its time-out, however early it was decided
    if "pause" in says:
        assert record.closed_ns - record.started_ns >= TIMEOUT_MS * 1_000_000
