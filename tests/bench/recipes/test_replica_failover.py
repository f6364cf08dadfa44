"""A master and its replicas: who is asked, and when the recipe refuses to begin."""

import pytest
from redis import Redis

from bench.errors import EnvironmentNotReadyError
from bench.recipes.protocol import RecipeSettings
from bench.recipes.several_instances import ReplicaFailover, replicate
from bench.topology.fleet import Fleet, start_fleet
from lockcore import Denied, Lease, Outcome

pytestmark = pytest.mark.integration


def test_the_master_is_found_wherever_it_stands(replicas: Fleet, settings: RecipeSettings) -> None:
    with Redis.from_url(replicas.urls[0]) as master:
        master.flushall()
    recipe = ReplicaFailover.connect(replicas.urls[::-1], settings)
    lease = recipe.acquire("r1", 5000, 0)
    assert isinstance(lease, Lease)
    assert recipe.release(lease) is Outcome.RELEASED
    recipe.close()


def test_independent_masters_are_refused(fleet: Fleet, settings: RecipeSettings) -> None:
    with pytest.raises(
        EnvironmentNotReadyError,
        match=r"there are 2 masters .* Make the other instances its replicas",
    ):
        ReplicaFailover.connect(fleet.urls[:2], settings)


def test_replicas_without_a_master_are_refused(replicas: Fleet, settings: RecipeSettings) -> None:
    with pytest.raises(
        EnvironmentNotReadyError,
        match="no instance is a master; this recipe needs exactly one master",
    ):
        ReplicaFailover.connect(replicas.urls[1:], settings)


def test_a_client_follows_the_promotion(settings: RecipeSettings) -> None:
    with start_fleet(2, "none") as fleet:
        replicate(fleet.urls)
        recipe = ReplicaFailover.connect(fleet.urls, settings)
        lease = recipe.acquire("r1", 5000, 0)
        assert isinstance(lease, Lease)
        with Redis.from_url(fleet.urls[0]) as master:
            assert master.wait(1, 5000) == 1, "the replica has it"
        fleet.kill(0)
        with Redis.from_url(fleet.urls[1]) as replica:
            replica.replicaof("NO", "ONE")
        denied = recipe.acquire("r1", 5000, 0)
        assert isinstance(denied, Denied)
        assert denied.outcome is Outcome.UNREACHABLE, "the first to notice pays for it"
        denied = recipe.acquire("r1", 5000, 0)
        assert denied.outcome is Outcome.CONTENDED
        assert recipe.release(lease) is Outcome.RELEASED
        recipe.close()


def test_a_server_that_does_not_answer_is_one_sentence() -> None:
    with pytest.raises(
        EnvironmentNotReadyError, match="127.0.0.1:1 cannot become master or replica"
    ):
        replicate(["redis://127.0.0.1:2", "redis://127.0.0.1:1"])
