"""What a holder does with a lease: extend it, keep it alive, give it back, once or twice; also on a
host that slept. On every way of waiting."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from bench.topology.fleet import Fleet
from lockcore import Denied, Outcome
from lockcore.errors import LeaseGoneError
from tests.doubles.instance import Instances
from tests.integration.lockcore.keys import keys_on, ttls_on
from tests.integration.lockcore.shell import TTL_MS, Connect, Scripted, Shell

pytestmark = pytest.mark.integration
# for TTLs from 200 ms on
SHORT = {"instance_timeout_ms": 50}


@pytest.mark.parametrize("instances", [1, 4, 5])
def test_an_extension_lasts_from_now_on_every_instance(
    shell: Shell, connect: Connect, fleet: Fleet, instances: int
) -> None:
    urls = fleet.urls[:instances]
    prefix = f"{uuid4().hex}:"
    lock = connect(urls, key_prefix=prefix, **SHORT)
    lease = shell.won(lock, ttl_ms=1000)
    longer = lock.extend(lease, TTL_MS)
    assert (longer.resource, longer.owner_token, longer.ttl_ms) == (
        "stock",
        lease.owner_token,
        TTL_MS,
    )
    assert longer.valid_until_ns == longer.started_ns + (TTL_MS - 102) * 1_000_000
    assert longer.started_ns >= lease.granted_ns
    shell.until(
        lambda: min(ttls_on(urls, f"{prefix}stock")) > 8000, "the extension on every instance"
    )
    assert lock.try_release(longer) is Outcome.RELEASED
    shell.until(lambda: keys_on(urls, prefix) == [], "the release on every instance")


def test_an_extension_and_a_release_wait_for_a_silent_majority_no_longer_than_the_instance_timeout(
    shell: Shell, connect: Connect, instances: Instances
) -> None:
    lock = connect(instances.urls, instance_timeout_ms=100)
    lease = shell.won(lock)
    instances[1:].pause()
    started = time.monotonic()
    denied = lock.try_extend(lease)
    assert (denied.outcome, denied.tally.granted, denied.tally.silent) == (
        Outcome.UNREACHABLE,
        1,
        2,
    )
    assert 0.1 <= time.monotonic() - started < 2.0
    assert lock.try_release(lease) is Outcome.UNREACHABLE
    assert 0.2 <= time.monotonic() - started < 4.0
    instances.resume()
    shell.until(lambda: instances.keys == [], "the release on every instance")


@pytest.mark.parametrize("lost", [2, 3])
def test_a_lease_that_is_no_longer_ours_is_gone(
    shell: Shell, lock: Any, instances: Instances, lost: int
) -> None:
    lease = shell.won(lock)
    instances[:lost].put(b"stock", b"somebody else")
    assert lock.try_extend(lease).outcome is Outcome.GONE
    with pytest.raises(LeaseGoneError) as raised:
        lock.extend(lease)
    assert raised.value.lease is lease
    assert lock.try_release(lease) is Outcome.GONE
    with pytest.raises(LeaseGoneError, match="'stock'"):
        lock.release(lease)
    assert all(instance.keys[b"stock"] == b"somebody else" for instance in instances[:lost])


def test_a_double_release_says_gone(shell: Shell, connect: Connect, fleet: Fleet) -> None:
    lock = connect(fleet.urls, key_prefix=f"{uuid4().hex}:")
    lease = shell.won(lock)
    assert lock.try_release(lease) is Outcome.RELEASED
    assert lock.try_release(lease) is Outcome.GONE
    other = lock.acquire("stock", TTL_MS)
    assert lock.try_release(lease) is Outcome.GONE
    assert lock.try_extend(lease).outcome is Outcome.GONE
    assert lock.try_release(other) is Outcome.RELEASED


def test_a_foreign_lease_is_refused(connect: Connect, instances: Instances) -> None:
    lock = connect(instances.urls)
    other = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    for use in (other.try_release, other.try_extend, other.keep_alive):
        with pytest.raises(ValueError, match="was not made by this Redlock"):
            use(lease)
    assert lock.try_release(lease) is Outcome.RELEASED


# -- keep alive ------------------------------------------------------------------------------------


def test_a_lease_is_kept_alive_until_it_is_released(
    shell: Shell, connect: Connect, fleet: Fleet
) -> None:
    prefix = f"{uuid4().hex}:"
    lock = connect(fleet.urls, key_prefix=prefix, **SHORT)
    other = connect(fleet.urls, key_prefix=prefix, **SHORT)
    lease = lock.acquire("stock", 300)
    keeper = lock.keep_alive(lease, every_ms=50)
    shell.until(
        lambda: time.monotonic_ns() > lease.valid_until_ns + 100_000_000, "its first end to pass"
    )
    assert keeper.renewals >= 3
    assert keeper.lease.valid_until_ns > time.monotonic_ns()
    assert other.try_acquire("stock", 300).outcome is Outcome.CONTENDED
    assert lock.try_release(keeper.lease) is Outcome.RELEASED
    assert (keeper.stopped, keeper.gone) == (True, None)
    renewals = keeper.renewals
    shell.until(lambda: keys_on(fleet.urls, prefix) == [], "the release on every instance")
    shell.sleep(0.12)
    assert keeper.renewals == renewals


def test_a_kept_lease_may_be_released_by_the_first_one(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    lease = lock.acquire("stock", TTL_MS)
    keeper = lock.keep_alive(lease, every_ms=10)
    shell.until(lambda: keeper.renewals > 1, "extensions")
    assert lock.try_release(lease) is Outcome.RELEASED
    shell.until(lambda: instances.keys == [], "the release on every instance")
    assert keeper.stopped


def test_the_holder_is_told_at_the_end_when_no_extension_is_left(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(1)
    lock = connect(instances.urls, instance_timeout_ms=100)
    told: list[Denied] = []
    keeper = lock.keep_alive(
        lock.acquire("stock", 400), every_ms=50, extensions=1, on_gone=told.append
    )
    shell.until(lambda: told, "word of it")
    assert (keeper.renewals, keeper.stopped, told[0].outcome) == (1, True, Outcome.GONE)
    assert instances[0].kinds() == ["set", "extend"]
    assert told[0].ended_ns >= keeper.lease.valid_until_ns


def test_the_holder_is_told_at_once_that_the_lease_is_gone_and_may_release_it(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    lease = shell.won(lock)
    released: list[Any] = []

    def on_gone(denied: Denied) -> None:
        released.append(shell.start(shell.raw(lock).try_release, lease))

    keeper = lock.keep_alive(lease, every_ms=20, on_gone=on_gone)
    instances[:2].drop(b"stock")
    shell.until(lambda: released, "word of it")
    # long before it would have ended
    assert time.monotonic_ns() < keeper.lease.valid_until_ns
    assert released[0].result() is Outcome.GONE
    assert keeper.gone.outcome is Outcome.GONE
    shell.until(lambda: instances.keys == [], "the release of the last key")


def test_closing_ends_what_is_kept(shell: Shell, lock: Any) -> None:
    told: list[Denied] = []
    keeper = lock.keep_alive(lock.acquire("stock", TTL_MS), every_ms=10, on_gone=told.append)
    shell.until(lambda: keeper.renewals, "an extension")
    lock.close()
    assert (keeper.stopped, told) == (True, [])


# -- a host that was suspended: CLOCK_MONOTONIC stood still, the servers did not -------------------


APART_S = 86_400
HELD = """
import sys, time
from lockcore import Redlock
patient = {"instance_timeout_ms": 2500, "connect_timeout_s": 5.0}
with Redlock.connect(sys.argv[1:], shell="threads", **patient) as lock:
    apart_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    lease = lock.acquire("stock", 10_000)
    print(round(apart_s), 0 < lease.valid_until_ns - time.monotonic_ns() < 10_000_000_000)
"""


def test_a_lease_that_ran_out_while_its_host_slept_is_gone_at_its_next_use(
    shell: Shell, connect: Callable[..., Any], scripted: Callable[..., Instances]
) -> None:
    """Keys expire, this host's clock has not moved."""
    instances = scripted(3)
    told = list[Denied]()
    lock = connect(instances.urls)
    used = lock.acquire("used", TTL_MS)
    kept = lock.acquire("kept", TTL_MS)
    lock.keep_alive(kept, every_ms=50, on_gone=told.append)
    for instance in instances:
        instance.keyspace.clear()
    assert lock.try_extend(used).outcome is Outcome.GONE
    assert lock.try_release(used) is Outcome.GONE
    shell.until(lambda: told, "the keeper to be told")
    assert told[0].outcome is Outcome.GONE


def test_a_lease_ends_by_the_clock_that_callers_compare_it_with(
    scripted: Callable[..., Instances],
) -> None:
    """In a time namespace where the host seems to have slept for a day."""
    unshare = ["unshare", "--time", "--fork", "--boottime", str(APART_S)]
    try:
        tried = subprocess.run(
            [*unshare, "true"], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError as error:
        pytest.skip(f"no time namespace here: {error}")
    if tried.returncode:
        pytest.skip(f"no time namespace here: {tried.stderr.strip()}")
    done = subprocess.run(
        [*unshare, sys.executable, "-c", HELD, *scripted(3).urls],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    apart_s, holds = done.stdout.split()
    assert abs(int(apart_s) - APART_S) < 3600, done.stderr
    assert holds == "True"
