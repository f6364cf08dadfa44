"""Every way a lock operation fails, as data with a sentence."""

from __future__ import annotations

import copy

import pytest

from lockcore import errors
from lockcore.errors import AcquireError, InstanceError, LeaseGoneError, LockcoreError, error_of
from lockcore.model import Closed, Denied, Lease, Outcome, Tally

NAMES = {
    Outcome.CONTENDED: errors.ContendedError,
    Outcome.SPLIT_VOTE: errors.SplitVoteError,
    Outcome.UNREACHABLE: errors.UnreachableError,
    Outcome.TOO_LATE: errors.TooLateError,
}
LEASE = Lease("stock", b"secret-token", 10_000, 1, 2, 3, Closed(Tally(granted=3)))


REFUSED = Tally(refused=3)


def denied_of(outcome: Outcome, tally: Tally = REFUSED, attempts: int = 1) -> Denied:
    return Denied("stock", outcome, tally, attempts, 0, 10, 20)


@pytest.mark.parametrize("outcome, kind", NAMES.items())
def test_every_denial_has_its_error_with_its_data(outcome: Outcome, kind: type[AcquireError]) -> None:
    error = error_of(denied_of(outcome, Tally(granted=1, refused=2), attempts=4))
    assert type(error) is kind
    assert isinstance(error, AcquireError)
    assert (error.resource, error.tally, error.attempts) == ("stock", Tally(granted=1, refused=2), 4)
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
def test_a_failure_is_definite_when_no_instance_can_have_changed(tally: Tally, definite: bool) -> None:
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
def test_an_instance_error_names_the_instance_and_what_happened(kind: type[InstanceError], text: str) -> None:
    error = kind("host:1", "after 1 s")
    assert str(error) == text
    assert (error.instance, error.detail) == ("host:1", "after 1 s")
    assert str(kind("host:1")) == text.removesuffix(": after 1 s")


@pytest.mark.parametrize(
    "error", [error_of(denied_of(Outcome.SPLIT_VOTE)), errors.InstanceClosedError("host:1", "reset")]
)
def test_an_error_survives_a_copy(error: Exception) -> None:
    """Between processes errors travel as copies."""
    again = copy.copy(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_all_errors_have_one_parent_and_end_in_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) >= 13
    assert all(issubclass(kind, LockcoreError) and kind.__name__.endswith("Error") for kind in kinds)


def test_no_text_of_an_error_holds_an_owner_token() -> None:
    assert "secret" not in str(LeaseGoneError(LEASE, Tally()))
    assert "secret" not in repr(LeaseGoneError(LEASE, Tally()))
