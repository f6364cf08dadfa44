"""The facts of a lock as values, and every way an operation fails as data with a sentence."""

import copy
import dataclasses

import pytest

import lockcore
from lockcore import errors
from lockcore.errors import AcquireError, InstanceError, LeaseGoneError, LockcoreError, error_of
from lockcore.facts.model import Closed, Denied, InstanceStatus, Lease, Outcome, Tally, Vote
from tests.doubles.keyspace import NIL, OK
from tests.lockcore.scripted import ScriptedFleet

NAMES = {
    Outcome.CONTENDED: errors.ContendedError,
    Outcome.SPLIT_VOTE: errors.SplitVoteError,
    Outcome.UNREACHABLE: errors.UnreachableError,
    Outcome.TOO_LATE: errors.TooLateError,
}
LEASE = Lease("stock", b"secret-token", 10_000, 1, 2, 3, Closed(Tally(granted=3)))


REFUSED = Tally(refused=3)


def denied_of(
    outcome: Outcome = Outcome.CONTENDED, tally: Tally = REFUSED, attempts: int = 1
) -> Denied:
    return Denied("stock", outcome, tally, attempts, 0, 10, 20)


@pytest.mark.parametrize("outcome, kind", NAMES.items())
def test_every_denial_has_its_error_with_its_data(
    outcome: Outcome, kind: type[AcquireError]
) -> None:
    error = error_of(denied_of(outcome, Tally(granted=1, refused=2), attempts=4))
    assert type(error) is kind
    assert isinstance(error, AcquireError)
    assert (error.resource, error.tally, error.attempts) == (
        "stock",
        Tally(granted=1, refused=2),
        4,
    )
    assert str(error) == f"'stock': {kind.reason} (1 granted, 2 refused after 4 attempts)"


def test_one_attempt_is_one_attempt() -> None:
    assert str(error_of(denied_of(Outcome.CONTENDED))).endswith("(3 refused after 1 attempt)")


def test_a_lease_that_is_gone_has_an_error_of_its_own() -> None:
    error = error_of(denied_of(Outcome.GONE), LEASE)
    assert isinstance(error, LeaseGoneError)
    assert (error.lease, error.tally) == (LEASE, Tally(refused=3))
    assert str(error) == "'stock': the lease is no longer ours (3 refused)"


@pytest.mark.parametrize(
    "tally, definite",
    [
        (Tally(refused=3), True),
        (Tally(refused=2, errored=1, absent=2), True),
        (Tally(granted=1, refused=2), False),
        (Tally(refused=2, silent=1), False),
        (Tally(refused=2, undecided=1), False),
    ],
)
def test_a_failure_is_definite_when_no_instance_can_have_changed(
    tally: Tally, definite: bool
) -> None:
    assert error_of(denied_of(Outcome.CONTENDED, tally)).definite is definite


@pytest.mark.parametrize(
    "kind, text",
    [
        (errors.InstanceTimeoutError, "host:1: no answer in time: after 1 s"),
        (errors.InstanceClosedError, "host:1: not connected: after 1 s"),
        (errors.InstanceReplyError, "host:1: answered with an error: after 1 s"),
        (errors.InstanceRefusedError, "host:1: cannot take part: after 1 s"),
    ],
)
def test_an_instance_error_names_the_instance_and_what_happened(
    kind: type[InstanceError], text: str
) -> None:
    error = kind("host:1", "after 1 s")
    assert str(error) == text
    assert (error.instance, error.detail) == ("host:1", "after 1 s")
    assert str(kind("host:1")) == text.removesuffix(": after 1 s")


@pytest.mark.parametrize(
    "error",
    [error_of(denied_of(Outcome.SPLIT_VOTE)), errors.InstanceClosedError("host:1", "reset")],
)
def test_an_error_survives_a_copy(error: Exception) -> None:
    """Between processes errors travel as copies."""
    again = copy.copy(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_all_errors_have_one_parent_and_end_in_error() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert len(kinds) >= 13
    assert all(
        issubclass(kind, LockcoreError) and kind.__name__.endswith("Error") for kind in kinds
    )


def test_no_text_of_an_error_holds_an_owner_token() -> None:
    assert "secret" not in str(LeaseGoneError(LEASE, Tally()))
    assert "secret" not in repr(LeaseGoneError(LEASE, Tally()))


# -- the facts of a lock ---------------------------------------------------------------------------


def test_the_words_are_those_of_the_vocabulary() -> None:
    assert [vote.value for vote in Vote] == ["granted", "refused", "errored", "silent", "absent"]
    assert {outcome.value for outcome in Outcome} == {
        "acquired",
        "contended",
        "split_vote",
        "unreachable",
        "too_late",
        "extended",
        "released",
        "gone",
    }
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


@pytest.mark.parametrize(
    "fact, name", [(denied_of(), "tally"), (InstanceStatus(0, "host:1", "voting"), "state")]
)
def test_facts_cannot_be_changed(fact: object, name: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(fact, name, None)
    assert not hasattr(fact, "__dict__")


def test_what_is_public_is_little_and_all_there() -> None:
    assert len(lockcore.__all__) <= 20
    assert [name for name in lockcore.__all__ if not hasattr(lockcore, name)] == []
