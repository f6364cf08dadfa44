"""What a holder does with a lease: extend it, keep it alive, give it back, once or twice. On every way of waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from bench.topology.fleet import Fleet, start_fleet
from lockcore import Denied, Lease, Outcome
from lockcore.errors import LeaseGoneError, UnreachableError
from tests.doubles.instance import Instances
from tests.doubles.keyspace import error
from tests.integration.lockcore.conftest import server_of
from tests.integration.lockcore.keys import client, keys_on, ttls_on
from tests.integration.lockcore.shell import TTL_MS, Shell

pytestmark = pytest.mark.integration
Connect = Callable[..., Any]
Scripted = Callable[..., Instances]
FULL = error("OOM command not allowed when used memory > 'maxmemory'.")
SHORT = {"instance_timeout_ms": 50}  # for TTLs from 200 ms on


@pytest.mark.parametrize("instances", [1, 2, 3, 4, 5])
def test_an_extension_lasts_from_now_on_every_instance(
    shell: Shell, connect: Connect, fleet: Fleet, instances: int
) -> None:
    urls, prefix = fleet.urls[:instances], f"{uuid4().hex}:"
    lock = connect(urls, key_prefix=prefix, **SHORT)
    lease = lock.acquire("stock", 1000)
    shell.until(lambda: not lease.tally.undecided, "every vote")
    longer = lock.extend(lease, TTL_MS)
    assert (longer.resource, longer.owner_token, longer.ttl_ms) == ("stock", lease.owner_token, TTL_MS)
    assert longer.valid_until_ns == longer.started_ns + (TTL_MS - 102) * 1_000_000
    assert longer.started_ns >= lease.granted_ns
    shell.until(lambda: min(ttls_on(urls, f"{prefix}stock")) > 8000, "the extension on every instance")
    assert lock.try_release(longer) is Outcome.RELEASED
    shell.until(lambda: keys_on(urls, prefix) == [], "the release on every instance")


def test_an_extension_never_shortens(connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls, **SHORT)
    lease = lock.acquire("stock", TTL_MS)
    with pytest.raises(ValueError, match="extending 'stock' by 1000 ms would end it before its present end"):
        lock.extend(lease, 1_000)
    assert "extend" not in instances[0].kinds()


def test_an_extension_on_too_few_instances_changes_nothing(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    shell.until(lambda: not lease.tally.undecided, "every vote")
    for instance in instances[:2]:
        instance.says["extend"] = FULL
    denied = lock.try_extend(lease)
    assert (denied.outcome, denied.tally.errored) == (Outcome.UNREACHABLE, 2)
    with pytest.raises(UnreachableError):
        lock.extend(lease)
    assert len(instances.keys) == 3  # no clean-up
    for instance in instances:
        instance.says.clear()
    assert lock.try_extend(lease)
    assert lock.try_release(lease) is Outcome.RELEASED


def test_an_extension_and_a_release_wait_for_a_silent_majority_no_longer_than_the_instance_timeout(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(3)
    lock = connect(instances.urls, instance_timeout_ms=100)
    lease = lock.acquire("stock", TTL_MS)
    shell.until(lambda: not lease.tally.undecided, "every vote")
    for instance in instances[1:]:
        instance.pause()
    started = time.monotonic()
    denied = lock.try_extend(lease)
    assert (denied.outcome, denied.tally.granted, denied.tally.silent) == (Outcome.UNREACHABLE, 1, 2)
    assert 0.1 <= time.monotonic() - started < 2.0
    assert lock.try_release(lease) is Outcome.UNREACHABLE
    assert 0.2 <= time.monotonic() - started < 4.0
    for instance in instances:
        instance.resume()
    shell.until(lambda: instances.keys == [], "the release on every instance")


@pytest.mark.parametrize("lost", [2, 3])
def test_a_lease_that_is_no_longer_ours_is_gone(shell: Shell, connect: Connect, scripted: Scripted, lost: int) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    shell.until(lambda: not lease.tally.undecided, "every vote")
    for instance in instances[:lost]:
        instance.keyspace.put(b"stock", b"somebody else")
    assert lock.try_extend(lease).outcome is Outcome.GONE
    with pytest.raises(LeaseGoneError) as raised:
        lock.extend(lease)
    assert raised.value.lease is lease
    assert lock.try_release(lease) is Outcome.GONE
    with pytest.raises(LeaseGoneError, match="'stock'"):
        lock.release(lease)
    assert all(instance.keys[b"stock"] == b"somebody else" for instance in instances[:lost])


def test_one_lost_key_of_three_does_not_matter(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    shell.until(lambda: not lease.tally.undecided, "every vote")
    instances[0].keyspace.drop(b"stock")
    lease = lock.extend(lease)
    assert b"stock" not in instances[0].keys  # an extension creates nothing
    assert lock.try_release(lease) is Outcome.RELEASED


def test_a_double_release_says_gone(shell: Shell, connect: Connect, fleet: Fleet) -> None:
    lock = connect(fleet.urls, key_prefix=f"{uuid4().hex}:")
    lease = lock.acquire("stock", TTL_MS)
    shell.until(lambda: not lease.tally.undecided, "every vote")
    assert lock.try_release(lease) is Outcome.RELEASED
    assert lock.try_release(lease) is Outcome.GONE
    other = lock.acquire("stock", TTL_MS)
    assert lock.try_release(lease) is Outcome.GONE
    assert lock.try_extend(lease).outcome is Outcome.GONE
    assert lock.try_release(other) is Outcome.RELEASED


def test_an_expired_lease_is_gone_and_nothing_is_sent_for_it(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(3)
    lock = connect(instances.urls, **SHORT)
    lease = lock.acquire("stock", 200)
    shell.until(lambda: time.monotonic_ns() >= lease.valid_until_ns, "its end")
    assert lock.try_extend(lease).outcome is Outcome.GONE
    assert all("extend" not in instance.kinds() for instance in instances)


def test_a_foreign_lease_is_refused(connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock, other = connect(instances.urls), connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    for use in (other.try_release, other.try_extend, other.keep_alive):
        with pytest.raises(ValueError, match="was not made by this Redlock"):
            use(lease)
    assert lock.try_release(lease) is Outcome.RELEASED


# -- keep alive -------------------------------------------------------------------------------------------------------


def test_a_lease_is_kept_alive_until_it_is_released(shell: Shell, connect: Connect, fleet: Fleet) -> None:
    prefix = f"{uuid4().hex}:"
    lock, other = connect(fleet.urls, key_prefix=prefix, **SHORT), connect(fleet.urls, key_prefix=prefix, **SHORT)
    lease = lock.acquire("stock", 300)
    keeper = lock.keep_alive(lease, every_ms=50)
    shell.until(lambda: time.monotonic_ns() > lease.valid_until_ns + 100_000_000, "its first end to pass")
    assert keeper.renewals >= 3
    assert keeper.lease.valid_until_ns > time.monotonic_ns()
    assert other.try_acquire("stock", 300).outcome is Outcome.CONTENDED
    assert lock.try_release(keeper.lease) is Outcome.RELEASED
    assert (keeper.stopped, keeper.gone) == (True, None)
    renewals = keeper.renewals
    shell.until(lambda: keys_on(fleet.urls, prefix) == [], "the release on every instance")
    shell.sleep(0.12)
    assert keeper.renewals == renewals


def test_a_kept_lease_may_be_released_by_the_first_one(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    keeper = lock.keep_alive(lease, every_ms=10)
    shell.until(lambda: keeper.renewals > 1, "extensions")
    assert lock.try_release(lease) is Outcome.RELEASED
    shell.until(lambda: instances.keys == [], "the release on every instance")
    assert keeper.stopped


def test_extensions_are_bounded(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(1)
    lock = connect(instances.urls)
    keeper = lock.keep_alive(lock.acquire("stock", TTL_MS), every_ms=5, extensions=3)
    shell.until(lambda: keeper.renewals == 3, "the last extension")
    assert (keeper.stopped, keeper.gone) == (False, None)  # it goes on watching for the end


def test_the_holder_is_told_at_the_end_when_no_extension_is_left(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(1)
    lock = connect(instances.urls, instance_timeout_ms=100)
    told: list[Denied] = []
    keeper = lock.keep_alive(lock.acquire("stock", 400), every_ms=50, extensions=1, on_gone=told.append)
    shell.until(lambda: told, "word of it")
    assert (keeper.renewals, keeper.stopped, told[0].outcome) == (1, True, Outcome.GONE)
    assert instances[0].kinds() == ["set", "extend"]
    assert told[0].ended_ns >= keeper.lease.valid_until_ns


def test_the_holder_is_told_at_once_when_the_lease_is_gone(shell: Shell, connect: Connect, fleet: Fleet) -> None:
    prefix = f"{uuid4().hex}:"
    lock = connect(fleet.urls, key_prefix=prefix)
    told: list[Denied] = []
    keeper = lock.keep_alive(lock.acquire("stock", TTL_MS), every_ms=20, on_gone=told.append)
    shell.until(lambda: keeper.renewals >= 1, "an extension")
    for url in fleet.urls:
        client(url).delete(f"{prefix}stock")
    shell.until(lambda: told, "word of it")
    assert keeper.gone is told[0]
    assert (keeper.stopped, told[0].outcome, told[0].resource) == (True, Outcome.GONE, "stock")
    assert time.monotonic_ns() < keeper.lease.valid_until_ns  # long before it would have ended


def test_the_holder_may_release_when_told(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    shell.until(lambda: not lease.tally.undecided, "every vote")
    released: list[Any] = []

    def on_gone(denied: Denied) -> None:
        released.append(shell.start(shell.raw(lock).try_release, lease))

    keeper = lock.keep_alive(lease, every_ms=20, on_gone=on_gone)
    for instance in instances[:2]:
        instance.keyspace.drop(b"stock")
    shell.until(lambda: released, "word of it")
    assert released[0].result() is Outcome.GONE
    assert keeper.gone is not None
    shell.until(lambda: instances.keys == [], "the release of the last key")


def test_nothing_is_sent_after_the_lease_s_own_end(shell: Shell, connect: Connect) -> None:
    with start_fleet(3, "none", server=server_of("redis")) as fleet:
        lock = connect(fleet.urls, **SHORT)
        told: list[int] = []
        lease = lock.acquire("stock", 400)
        keeper = lock.keep_alive(lease, every_ms=300, on_gone=lambda _: told.append(time.monotonic_ns()))
        for index in range(3):
            fleet.stop(index)
        shell.until(lambda: told, "word of its end")
        assert keeper.gone is not None
        assert (keeper.gone.outcome, keeper.renewals) == (Outcome.GONE, 0)
        assert told[0] >= lease.valid_until_ns
        commands = [status.commands for status in lock.instances]
        shell.sleep(0.15)
        assert [status.commands for status in lock.instances] == commands


def test_an_extension_that_reached_too_few_is_tried_again_in_time(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    for instance in instances[1:]:
        instance.says["extend"] = FULL
    keeper = lock.keep_alive(lease, every_ms=50)
    shell.until(lambda: instances[1].kinds().count("extend") >= 3, "more than one try")
    assert (keeper.renewals, keeper.gone, keeper.stopped) == (0, None, False)
    for instance in instances:
        instance.says.clear()
    shell.until(lambda: keeper.renewals, "an extension")


def test_closing_ends_what_is_kept(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    lock = connect(scripted(3).urls)
    told: list[Denied] = []
    keeper = lock.keep_alive(lock.acquire("stock", TTL_MS), every_ms=10, on_gone=told.append)
    shell.until(lambda: keeper.renewals, "an extension")
    lock.close()
    assert (keeper.stopped, told) == (True, [])


@pytest.mark.parametrize("options", [{"every_ms": 10_000}, {"every_ms": 0}, {"extensions": 0}], ids=str)
def test_a_keeper_that_could_not_keep_is_refused(
    connect: Connect, scripted: Scripted, options: dict[str, float]
) -> None:
    lock = connect(scripted(1).urls)
    with pytest.raises(ValueError, match="must be"):
        lock.keep_alive(lock.acquire("stock", TTL_MS), **options)


def test_a_lease_is_true_and_a_denial_false(connect: Connect, scripted: Scripted) -> None:
    lock = connect(scripted(1).urls)
    lease, denied = lock.try_acquire("stock", TTL_MS), lock.try_acquire("stock", TTL_MS)
    assert isinstance(lease, Lease)
    assert isinstance(denied, Denied)
    assert (bool(lease), bool(denied)) == (True, False)
