"""Registers: what they accept, what they reject, and what an owner's mark cannot catch."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from redis import Redis

from bench.recipes.fencing import OWN_KEYS, REGISTERS, FencedLease, Protected
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe
from bench.topology.fleet import Fleet
from lockcore import Lease, Outcome, Tally
from lockcore.facts.model import Closed

pytestmark = pytest.mark.integration


def lease_of(owner: bytes, resource: str = "r1") -> Lease:
    return Lease(resource, owner, 1000, 0, 0, 0, Closed(Tally(granted=1)), attempts=3)


def fenced(token: int) -> FencedLease:
    return FencedLease.of(lease_of(b"owner"), token)


@pytest.fixture(params=["set-nx-lua", "redlock"])
def recipe(
    request: pytest.FixtureRequest, fleet: Fleet, server: Redis, settings: RecipeSettings
) -> Iterator[Protected]:
    made = find_recipe(request.param).connect(fleet.urls[:1], replace(settings, fencing=True))
    assert isinstance(made, Protected)
    yield made
    made.close()


@pytest.mark.parametrize(
    "tokens, accepted",
    [
        ([1, 1, 2, 2], [True] * 4),
        ([2, 1, 1, 2, 3], [True, False, False, True, True]),
        # as numbers, not as text
        ([10, 9], [True, False]),
        ([2**53, 2**53 - 1], [True, False]),
    ],
)
def test_a_smaller_token_than_one_seen_is_rejected(
    tokens: list[int], accepted: list[bool], recipe: Protected, server: Redis
) -> None:
    assert [recipe.write(fenced(token), f"by {token}") for token in tokens] == accepted
    last = max(tokens)
    assert server.hget("test:" + REGISTERS, "r1") == f"by {last}".encode()


def test_only_the_marked_owner_writes(recipe: Protected, server: Redis) -> None:
    first = lease_of(b"first")
    second = lease_of(b"second")
    assert recipe.write(first, "unmarked") is False
    recipe.mark(first)
    assert recipe.write(first, "one")
    recipe.mark(second)
    assert recipe.write(first, "stale") is False
    assert recipe.write(second, "two")
    assert server.hget("test:" + REGISTERS, "r1") == b"two"


def granted(recipe: Protected) -> Lease:
    lease = recipe.acquire("r1", 5000, 0)
    assert isinstance(lease, Lease)
    return lease


def test_a_holder_writes_and_gives_back(recipe: Protected, server: Redis) -> None:
    assert recipe.release(granted(recipe)) is Outcome.RELEASED
    assert server.hget("test:" + REGISTERS, "r1") == b"work"
    assert recipe.figures == {"valid_writes_accepted": 1}
    assert server.get("test:r1") is None
    assert {key.decode().removeprefix("test:") for key in server.scan_iter()} <= set(OWN_KEYS)


def test_the_write_of_a_holder_that_was_succeeded_is_rejected_and_counted(
    recipe: Protected, server: Redis
) -> None:
    stale = granted(recipe)
    # as if its time were over
    stale.valid_until_ns = stale.granted_ns
    server.delete("test:r1")
    successor = granted(recipe)
    assert recipe.write(successor, "new") is True
    assert recipe.release(stale) is Outcome.GONE
    assert server.hget("test:" + REGISTERS, "r1") == b"new"
    assert recipe.figures == {"valid_writes_accepted": 1, "stale_writes_rejected": 1}
    assert recipe.release(successor) is Outcome.RELEASED


def test_a_write_without_an_answer_is_counted_and_the_lock_given_back(
    recipe: Protected, server: Redis
) -> None:
    lease = granted(recipe)
    server.set("test:" + REGISTERS, "no hash")
    assert recipe.release(lease) is Outcome.RELEASED
    assert recipe.figures == {"failed_writes": 1}


class Interrupted(BaseException):
    """A kill in the middle of the write."""


def test_a_caller_killed_while_it_writes_leaves_no_lock(
    recipe: Protected, server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(_lease: Lease, _value: str) -> bool:
        raise Interrupted

    lease = granted(recipe)
    monkeypatch.setattr(recipe, "write", kill)
    with pytest.raises(Interrupted):
        recipe.release(lease)
    assert server.get("test:r1") is None
