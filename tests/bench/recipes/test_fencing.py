"""Registers: what they accept, what they reject, and what an owner's mark cannot catch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from bench.recipes.fencing import FencedLease, FencingRegister, OwnerRegister
from bench.recipes.instance import Instance
from bench.recipes.protocol import RecipeSettings
from bench.topology.fleet import Fleet
from lockcore import Lease, Tally
from lockcore.model import Closed

pytestmark = pytest.mark.integration


def lease_of(owner: bytes, resource: str = "r1") -> Lease:
    return Lease(resource, owner, 1000, 0, 0, 0, Closed(Tally(granted=1)), attempts=3)


def fenced(token: int) -> FencedLease:
    return FencedLease.of(lease_of(b"owner"), token)


@pytest.fixture
def instance(fleet: Fleet, server: Redis, settings: RecipeSettings) -> Iterator[Instance]:
    made = Instance(0, fleet.urls[0], settings)
    yield made
    made.close()


def test_a_fenced_lease_is_a_lease_with_a_token() -> None:
    lease = fenced(7)
    assert lease
    assert isinstance(lease, Lease)
    assert (lease.fencing_token, lease.owner_token, lease.resource, lease.tally.granted) == (7, b"owner", "r1", 1)


@pytest.mark.parametrize(
    "tokens, accepted",
    [
        ([1, 1, 2, 2], [True] * 4),
        ([2, 1, 1, 2, 3], [True, False, False, True, True]),
        ([10, 9], [True, False]),  # as numbers, not as text
        ([2**53, 2**53 - 1], [True, False]),
    ],
)
def test_a_smaller_token_than_one_seen_is_rejected(
    tokens: list[int], accepted: list[bool], instance: Instance, server: Redis
) -> None:
    register = FencingRegister(instance, "test:register")
    assert [register.write(fenced(token), f"by {token}") for token in tokens] == accepted
    last = max(tokens)
    assert server.hget("test:register", "r1") == f"by {last}".encode()


def test_resources_are_protected_apart(instance: Instance) -> None:
    register = FencingRegister(instance, "test:register")
    assert register.write(fenced(5), "r1's")
    assert register.write(FencedLease.of(lease_of(b"owner", "r2"), 2), "r2's")


def test_every_stale_write_is_rejected_once_a_later_holder_has_written(instance: Instance) -> None:
    register = FencingRegister(instance, "test:register")
    assert register.write(fenced(100), "new")
    assert not any(register.write(fenced(token), "stale") for token in range(1, 100))


def test_only_the_marked_owner_writes(instance: Instance, server: Redis) -> None:
    register, first, second = OwnerRegister(instance, "test:register"), lease_of(b"first"), lease_of(b"second")
    assert not register.write(first, "unmarked")
    register.mark(first)
    assert register.write(first, "one")
    register.mark(second)
    assert not register.write(first, "stale")
    assert register.write(second, "two")
    assert server.hget("test:register", "r1") == b"two"


def test_an_owner_that_marks_after_its_pause_takes_over_from_its_successor(instance: Instance) -> None:
    register, first, second = OwnerRegister(instance, "test:register"), lease_of(b"first"), lease_of(b"second")
    register.mark(second)
    register.mark(first)  # its lease is long over: this is what cannot be caught
    assert register.write(first, "stale")
    assert not register.write(second, "two")


def test_a_register_outlives_a_script_flush(instance: Instance, server: Redis) -> None:
    register = FencingRegister(instance, "test:register")
    assert register.write(fenced(1), "one")
    server.script_flush()
    assert register.write(fenced(2), "two")
