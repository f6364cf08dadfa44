"""The facts of a lock as values."""

from __future__ import annotations

import dataclasses

import pytest

import lockcore
from lockcore.model import Closed, Denied, InstanceStatus, Lease, Outcome, Tally, Vote
from tests.doubles.keyspace import NIL, OK
from tests.lockcore.scripted import ScriptedFleet


def denied_of(outcome: Outcome = Outcome.CONTENDED) -> Denied:
    return Denied("stock", outcome, Tally(refused=3), 1, 0, 10, 20)


def test_the_words_are_those_of_the_vocabulary() -> None:
    assert [vote.value for vote in Vote] == ["granted", "refused", "errored", "silent", "absent"]
    assert {outcome.value for outcome in Outcome} == {
        "acquired", "contended", "split_vote", "unreachable", "too_late", "extended", "released", "gone",
    }  # fmt: skip
    assert Tally._fields == ("granted", "refused", "errored", "silent", "absent", "undecided")


def test_a_tally_is_shown_in_words_without_its_zeros() -> None:
    assert str(Tally(granted=2, silent=1)) == "2 granted, 1 silent"
    assert str(Tally()) == "no votes"


def test_a_lease_is_true_and_a_denial_is_false() -> None:
    lease = ScriptedFleet(3).won()
    assert lease
    assert not denied_of()
    assert lease.outcome is Outcome.ACQUIRED


def test_the_tally_of_a_lease_is_live(fleet: ScriptedFleet) -> None:
    round_ = fleet.ask()
    fleet.reply_all(OK, of=[0, 1])
    lease = Lease("stock", b"token", 10_000, 1, 2, 3, round_)
    before = lease.tally
    fleet.reply(2, NIL)
    assert (before.undecided, lease.tally.undecided, lease.tally.refused) == (1, 0, 1)


@pytest.mark.parametrize("company", [0, 5])
def test_a_lease_is_open_until_its_last_vote_is_in(fleet: ScriptedFleet, company: int) -> None:
    rounds = [fleet.begin(f"r{number}") for number in range(company + 1)]
    fleet.flush()
    seen = []
    leases = [Lease("r", b"token", 10_000, 1, 2, 3, round_) for round_ in rounds]
    for index in range(3):
        seen.append({lease.is_open for lease in leases})
        fleet.reply(index, *[OK] * len(rounds))
    assert [*seen, {lease.is_open for lease in leases}] == [{True}, {True}, {True}, {False}]


def test_a_lease_may_stand_on_votes_that_are_final() -> None:
    lease = Lease("stock", b"token", 10_000, 1, 2, 3, Closed(Tally(granted=1)))
    assert lease.tally == (1, 0, 0, 0, 0, 0)
    assert (lease.attempts, lease.split_votes, lease.is_open) == (1, 0, False)


def test_a_lease_shows_what_it_is_but_not_its_owner_token() -> None:
    lease = Lease("stock", b"secret", 10_000, 1, 2, 3, Closed(Tally(granted=1)))
    assert repr(lease) == "Lease('stock', ttl_ms=10000, valid_until_ns=3, 1 granted)"


@pytest.mark.parametrize("fact, name", [(denied_of(), "tally"), (InstanceStatus(0, "host:1", "voting"), "state")])
def test_facts_cannot_be_changed(fact: object, name: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(fact, name, None)
    assert not hasattr(fact, "__dict__")


def test_what_is_public_is_little_and_all_there() -> None:
    assert len(lockcore.__all__) <= 20
    assert [name for name in lockcore.__all__ if not hasattr(lockcore, name)] == []
