"""lockcore's lock as a recipe is untouched on its hot path; one instance after the other: votes
counted, lost rounds cleaned up, a minority may be missing."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from redis import Redis

from bench.errors import EnvironmentNotReadyError
from bench.recipes.protocol import RecipeSettings
from bench.recipes.redlock import RedlockRandomOrder, RedlockRecipe, RedlockSequential
from bench.topology.fleet import Fleet
from lockcore import Denied, Lease, Outcome, Redlock, RetryPolicy, Tally

pytestmark = pytest.mark.integration


@pytest.fixture
def recipe(
    fleet: Fleet, servers: list[Redis], settings: RecipeSettings
) -> Iterator[RedlockSequential]:
    made = RedlockSequential.connect(fleet.urls, replace(settings, retry=RetryPolicy("none")))
    yield made
    made.close()


@pytest.mark.parametrize(
    "held, outcome",
    [
        ((), None),
        ((0,), None),
        ((2,), None),
        ((0, 2), Outcome.CONTENDED),
        ((0, 1, 2), Outcome.CONTENDED),
    ],
)
def test_a_quorum_wins_and_a_lost_round_leaves_nothing_of_its_own(
    held: tuple[int, ...], outcome: Outcome | None, recipe: RedlockSequential, servers: list[Redis]
) -> None:
    for index in held:
        servers[index].set("test:r1", "another's")
    result = recipe.acquire("r1", 5000, 0)
    assert result.tally == Tally(granted=3 - len(held), refused=len(held))
    if outcome is None:
        assert isinstance(result, Lease)
        assert recipe.release(result) is Outcome.RELEASED
    else:
        assert isinstance(result, Denied)
        assert result.outcome is outcome
    assert [server.get("test:r1") for server in servers] == [
        b"another's" if index in held else None for index in range(3)
    ]


def test_one_silent_and_one_held_is_a_split_vote(
    recipe: RedlockSequential, servers: list[Redis], fleet: Fleet
) -> None:
    servers[0].set("test:r1", "another's")
    fleet.stop(1)
    try:
        result = recipe.acquire("r1", 5000, 0)
    finally:
        fleet.cont(1)
    assert result.tally == Tally(granted=1, refused=1, silent=1)
    assert result.outcome is Outcome.SPLIT_VOTE
    assert servers[2].dbsize() == 0


def test_a_minority_may_be_missing_and_a_majority_may_not(
    fleet: Fleet, servers: list[Redis], settings: RecipeSettings, dead: str
) -> None:
    recipe = RedlockSequential.connect((dead, *fleet.urls[1:]), settings)
    lease = recipe.acquire("r1", 5000, 0)
    assert isinstance(lease, Lease)
    assert lease.tally == Tally(granted=2, silent=1)
    assert recipe.instances[0].state == "down"
    assert recipe.release(lease) is Outcome.RELEASED
    recipe.close()
    with pytest.raises(EnvironmentNotReadyError, match="not connected"):
        RedlockSequential.connect((dead, dead, fleet.urls[2]), settings)


class Interrupted(BaseException):
    """A kill after the first vote."""


def test_a_caller_killed_between_two_votes_leaves_no_key(
    fleet: Fleet, servers: list[Redis], settings: RecipeSettings
) -> None:
    def gate(point: str) -> None:
        if point == "after-vote" and servers[1].dbsize():
            raise Interrupted

    recipe = RedlockSequential.connect(fleet.urls, replace(settings, gate=gate))
    with pytest.raises(Interrupted):
        recipe.acquire("r1", 5000, 0)
    assert [server.dbsize() for server in servers] == [0, 0, 0]
    recipe.close()


def test_random_order_asks_every_instance_once_in_orders_drawn_from_the_seed(
    fleet: Fleet, servers: list[Redis], settings: RecipeSettings
) -> None:
    def orders(seed: int) -> list[tuple[int, ...]]:
        recipe = RedlockRandomOrder.connect(fleet.urls, replace(settings, seed=seed))
        drawn = [tuple(server.index for server in recipe.order()) for _ in range(60)]
        recipe.close()
        return drawn

    assert orders(1) == orders(1) != orders(2)
    assert len(set(orders(1))) == 6, "every order of three comes up"
    assert all(sorted(order) == [0, 1, 2] for order in orders(1))


def test_its_hot_path_is_lockcores_own(
    fleet: Fleet, server: Redis, settings: RecipeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Redlock] = []
    connect = Redlock.connect.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Redlock,
        "connect",
        lambda *urls, **told: made.append(connect(Redlock, *urls, **told)) or made[0],
    )
    recipe = RedlockRecipe.connect(fleet.urls[:1], settings)
    assert recipe.acquire == made[0].try_acquire
    assert recipe.release == made[0].try_release
    recipe.close()
