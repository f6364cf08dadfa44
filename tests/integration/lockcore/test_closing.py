"""Closing under load, with leases held and releases owed: nothing is left behind. On every way of waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from lockcore.errors import InstanceClosedError
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import (
    TASKS,
    TTL_MS,
    AsyncioShell,
    Connect,
    GeventShell,
    Scripted,
    Shell,
    ThreadShell,
    only,
)

pytestmark = pytest.mark.integration
CALLERS = 40
LONG_MS = 600_000


async def work(lock: Any, pause: Callable[[float], Any], name: str, hold_s: float) -> str:
    """Lock and release until that is over."""
    try:
        while True:
            if lease := await lock.try_acquire(name, TTL_MS, 5.0):
                if hold_s:
                    await pause(hold_s)
                await lock.try_release(lease)
    except InstanceClosedError as error:
        return str(error)


@pytest.mark.parametrize("hold_s", [0, 0.005])
def test_closing_under_load_leaves_no_key(shell: Shell, lock: Any, instances: Instances, hold_s: float) -> None:
    """Half of the callers stand in line for a few resources, too."""
    names = [f"r{number if number % 2 else number % 4}" for number in range(CALLERS)]
    jobs = [shell.begin(work, lock, name, hold_s) for name in names]
    shell.until(lambda: len(instances[0].kinds()) > 4 * CALLERS, "load")
    lock.close(30.0)
    assert {job.result() for job in jobs} == {"all instances: not connected: this Redlock is closed"}
    assert instances.keys == []


@pytest.mark.parametrize("settled", [False, True])
def test_an_acquire_that_waits_is_told_and_leaves_nothing(
    shell: Shell, connect: Connect, instances: Instances, settled: bool
) -> None:
    """No server answers until all is closed; or all do, in the moment it closes."""
    lock = connect(instances.urls, max_ttl_ms=LONG_MS)
    instances.pause()
    job = shell.start(shell.raw(lock).try_acquire, "stock", LONG_MS, 60_000)
    shell.until(lambda: all(status.pending for status in lock.instances), "the SETs")
    for instance in instances if settled else ():
        instance.resume()
    lock.close(0.05)
    try:
        job.result()
    except InstanceClosedError:
        is_told = True
    else:
        is_told = False  # granted before it was closed
    assert is_told or settled
    if not is_told:
        return
    instances.resume()
    shell.until(lambda: instances.were_told(["set", "release"]), "a release of each")
    assert instances.keys == []


@pytest.mark.parametrize("shell", [GeventShell, *TASKS], indirect=True, ids=["gevent", "asyncio", "uvloop"])
def test_a_caller_that_closes_while_it_waits_itself_may_be_cancelled(
    shell: Shell, connect: Connect, instances: Instances
) -> None:
    lock = connect(instances.urls, max_ttl_ms=LONG_MS)
    instances.pause()
    waits = shell.start(shell.raw(lock).try_acquire, "stock", LONG_MS)
    shell.until(lambda: all(status.pending for status in lock.instances), "the SETs")
    closes = shell.start(shell.raw(lock).close, 60.0)
    shell.sleep(0.01)
    shell.cancel(closes)
    instances.resume()
    with pytest.raises(InstanceClosedError):
        waits.result()
    shell.until(lambda: instances.were_told(["set", "release"]), "a release of each")


def test_a_holder_gives_back_while_it_closes(shell: Shell, lock: Any, instances: Instances) -> None:
    lease = lock.acquire("stock", TTL_MS)
    closes = shell.start(shell.raw(lock).close, 30.0)
    shell.until(lambda: lock._driver.engine.retired, "the begin of closing")
    with pytest.raises(InstanceClosedError):
        lock.try_acquire("other", TTL_MS)
    lock.release(lease)
    closes.result()
    assert instances.keys == []


def test_a_lease_that_is_kept_holds_it_up_for_a_moment_only(connect: Connect, scripted: Scripted) -> None:
    instances = scripted(1)
    lock = connect(instances.urls)
    lock.acquire("stock", TTL_MS)
    started = time.monotonic()
    lock.close(60.0)
    assert 0.1 <= time.monotonic() - started < 30.0
    assert len(instances.keys) == 1


def test_what_is_owed_goes_out_before_it_is_closed(shell: Shell, lock: Any, instances: Instances) -> None:
    lease = shell.won(lock)
    instances[0].pause()
    lock.release(lease)
    instances[0].drop_connections()
    shell.until(lambda: lock.instances[0].owed_releases, "a release to be owed")
    instances[0].resume()
    lock.close(30.0)
    assert instances.keys == []


def test_what_is_owed_to_a_dead_instance_holds_nobody_up(shell: Shell, lock: Any, instances: Instances) -> None:
    lease = lock.acquire("stock", TTL_MS)
    instances[0].kill()
    lock.release(lease)
    shell.until(lambda: lock.instances[0].owed_releases, "a release to be owed")
    started = time.monotonic()
    lock.close(60.0)
    assert time.monotonic() - started < 30.0


@only(ThreadShell, GeventShell)
@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, ZeroDivisionError])
def test_what_a_body_raises_is_not_hidden_by_a_lease_that_cannot_be_given_back(
    lock: Any, error: type[BaseException]
) -> None:

    def body() -> None:
        with lock.hold("stock", TTL_MS):
            lock.close(0)
            raise error

    with pytest.raises(error) as raised:
        body()
    said = "the lease on 'stock' was not given back: all instances: not connected: this Redlock is closed"
    assert raised.value.__notes__ == [said]


@only(*TASKS)
def test_a_cancelled_body_stays_cancelled_when_its_lease_cannot_be_given_back(
    shell: AsyncioShell, connect: Connect, scripted: Scripted
) -> None:
    lock = connect(scripted(3).urls).raw

    async def body() -> None:
        async with lock.hold("stock", TTL_MS):
            await lock.close(0)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        shell.run(body())
