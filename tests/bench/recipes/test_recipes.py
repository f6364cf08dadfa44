"""What every recipe promises, against real servers."""

import threading
from dataclasses import replace

import pytest

from bench.recipes.plain import FOREVER_NS, OBSERVE_EVERY
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import RECIPES
from lockcore import Denied, Lease, Outcome
from lockcore.clock import monotonic_ns

pytestmark = pytest.mark.integration
TTL_MS = 2000
WITHOUT_END = ("get-set", "setnx")
BY_TIMESTAMP = ("timestamp-getset", "timestamp-set", "company-2013")
WITH_TOKENS = [
    name
    for name in RECIPES
    if name not in {*WITHOUT_END, *BY_TIMESTAMP, "setnx-expire", "set-nx-fixed"}
    # the others cannot tell their key from another's
]


def granted(under, ttl_ms: int = TTL_MS) -> Lease:
    lease = under.recipe.acquire("r1", ttl_ms, 0)
    assert isinstance(lease, Lease), lease
    return lease


def held(under) -> Lease:
    """Every place of the resource is taken; the lease of the first one."""
    lease = granted(under)
    if under.entry.name == "semaphore-off-by-one":
        # the place that is its flaw
        granted(under)
    return lease


def test_a_free_resource_is_granted_and_given_back_and_nothing_is_left(under) -> None:
    before_ns = monotonic_ns()
    lease = granted(under)
    assert before_ns <= lease.started_ns <= lease.granted_ns <= monotonic_ns()
    assert (lease.resource, lease.ttl_ms, lease.attempts) == ("r1", TTL_MS, 1)
    under.settles(lambda: set(under.values()), {lease.owner_token})
    assert under.recipe.release(lease) is Outcome.RELEASED
    # that one is its flaw
    under.settles(under.keys, 1 if under.entry.name == "majority-release" else 0)


def test_a_lease_is_believed_for_as_long_as_the_recipe_says(under) -> None:
    lease = granted(under)
    believed_ns = lease.valid_until_ns - lease.started_ns
    if under.entry.name in WITHOUT_END:
        assert believed_ns == FOREVER_NS
        assert under.servers[0].pttl("test:r1") == -1
    elif under.entry.name in BY_TIMESTAMP:
        assert believed_ns == TTL_MS * 1_000_000
        assert under.servers[0].pttl("test:r1") == -1
    else:
        # TTL − 1 % − 2 ms
        assert believed_ns == (TTL_MS - 20 - 2) * 1_000_000
        under.settles(
            lambda: all(
                TTL_MS - 500 < server.pttl("test:r1") <= TTL_MS for server in under.servers
            ),
            True,
        )


def test_a_held_resource_is_contended_and_stays_with_its_holder(under) -> None:
    holder = held(under)
    denied = under.recipe.acquire("r1", TTL_MS, 0)
    assert isinstance(denied, Denied)
    assert (denied.outcome, denied.attempts) == (Outcome.CONTENDED, 1)
    assert denied.tally.refused > 0
    under.settles(lambda: set(under.values()), {holder.owner_token})


def test_waiting_ends_at_its_deadline_after_several_attempts(under) -> None:
    held(under)
    before_ns = monotonic_ns()
    # long enough that a machine which pauses sees several, too
    denied = under.recipe.acquire("r1", TTL_MS, 600)
    assert isinstance(denied, Denied)
    assert denied.attempts >= 3
    assert monotonic_ns() - before_ns < TTL_MS * 1_000_000


def test_an_instance_that_forgot_its_scripts_is_taught_again(under) -> None:
    lease = granted(under)
    for server in under.servers:
        server.script_flush()
    assert under.recipe.release(lease) is Outcome.RELEASED


def test_a_full_memory_is_unreachable_and_counted_by_kind(under) -> None:
    for server in under.servers:
        server.config_set("maxmemory", "1")
    try:
        denied = under.recipe.acquire("r1", TTL_MS, 0)
    finally:
        for server in under.servers:
            server.config_set("maxmemory", "0")
    assert isinstance(denied, Denied)
    assert denied.outcome is Outcome.UNREACHABLE
    assert denied.tally.errored > len(under.servers) // 2
    kinds = [list(status.errors) for status in under.recipe.instances]
    assert kinds.count(["OOM"]) > len(under.servers) // 2


def test_a_longer_ttl_than_the_fleets_is_refused(under) -> None:
    with pytest.raises(ValueError, match=r"ttl_ms (is )?10001"):
        under.recipe.acquire("r1", 10_001, 0)


def test_the_instances_say_what_they_are_and_what_was_exchanged(under) -> None:
    for _ in range(3):
        under.recipe.release(granted(under))
    statuses = under.recipe.instances
    assert [status.index for status in statuses] == list(range(len(under.urls)))
    assert {status.state for status in statuses} == {"voting"}
    assert [f"redis://{status.address}" for status in statuses] == list(under.urls)
    assert statuses[0].server.split()[0] in ("redis", "valkey")
    assert statuses[0].commands >= 6


def test_reply_times_are_sampled_and_handed_over_once(under) -> None:
    for _ in range(2 * OBSERVE_EVERY + 6):
        # a busy machine may answer late
        if isinstance(lease := under.recipe.acquire("r1", TTL_MS, 0), Lease):
            under.recipe.release(lease)
        for server in under.servers:
            server.delete("test:r1")  # majority-release
    times_ns = under.recipe.take_reply_times_ns()
    assert len(times_ns) == len(under.urls)
    assert len(times_ns[0]) >= 1
    assert all(0 < time_ns < 1_000_000_000 for time_ns in times_ns[0])
    assert under.recipe.take_reply_times_ns() == tuple([] for _ in under.urls)


@pytest.mark.parametrize(
    "under", [name for name, entry in RECIPES.items() if entry.about.safe], indirect=True
)
def test_safe_recipes_exclude_many_callers(under) -> None:
    inside = [0]
    most = [0]
    done = []
    turns, wait_ms = (1, 9000) if under.entry.name == "backoff" else (10, 9000)

    def call() -> None:
        for _ in range(turns):
            lease = under.recipe.acquire("r1", TTL_MS, wait_ms)
            assert isinstance(lease, Lease), lease
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1
            assert under.recipe.release(lease) is Outcome.RELEASED
        done.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(done), most[0]) == (4, 1)


@pytest.mark.parametrize("under", WITH_TOKENS, indirect=True)
def test_every_attempt_has_an_owner_token_of_its_own(under) -> None:
    tokens = set()
    for number in range(20):
        lease = under.recipe.acquire(f"r{number}", TTL_MS, 0)
        assert isinstance(lease, Lease), lease
        tokens.add(lease.owner_token)
    assert len(tokens) == 20


@pytest.mark.parametrize(
    "under", [name for name in WITH_TOKENS if "index" not in name], indirect=True
)
def test_a_client_that_is_no_holder_any_more_is_told_so(under) -> None:
    lease = granted(under)
    for server in under.servers:
        server.delete("test:r1")
    successor = granted(under)
    assert under.recipe.release(lease) is Outcome.GONE
    under.settles(lambda: set(under.values()), {successor.owner_token})


class Interrupted(BaseException):
    """A kill at a pause point."""


@pytest.mark.parametrize("point", ["after-grant", "before-release"])
@pytest.mark.parametrize(
    "under", ["redlock", "redlock-sequential", "set-nx-lua", "watchdog"], indirect=True
)
def test_a_caller_killed_at_a_pause_point_leaves_no_key(
    under, point: str, settings: RecipeSettings
) -> None:
    def gate(reached: str) -> None:
        if reached == point:
            under.settles(lambda: None in under.values(), False)
            raise Interrupted

    recipe = under.entry.connect(under.urls, replace(settings, gate=gate))
    with pytest.raises(Interrupted):
        recipe.release(recipe.acquire("r1", TTL_MS, 0))
    under.settles(under.keys, 0)
    recipe.close()
