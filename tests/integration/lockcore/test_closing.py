"""Closing under load, with leases held and releases owed: nothing is left behind. On every way of waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from lockcore.errors import InstanceClosedError
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import TASKS, TTL_MS, AsyncioShell, GeventShell, Shell, ThreadShell, only

pytestmark = pytest.mark.integration
Connect = Callable[..., Any]
Scripted = Callable[..., Instances]
CALLERS = 40
LONG_MS = 600_000


def work(lock: Any, shell: Shell, name: str, hold_s: float) -> str:
    """Lock and release until that is over."""
    try:
        while True:
            lease = lock.try_acquire(name, TTL_MS, 5.0)
            if lease:
                if hold_s:
                    shell.sleep(hold_s)
                lock.try_release(lease)
    except InstanceClosedError as error:
        return str(error)


async def work_as_a_task(lock: Any, _shell: Shell, name: str, hold_s: float) -> str:
    try:
        while True:
            lease = await lock.try_acquire(name, TTL_MS, 5.0)
            if lease:
                if hold_s:
                    await asyncio.sleep(hold_s)
                await lock.try_release(lease)
    except InstanceClosedError as error:
        return str(error)


@pytest.mark.parametrize("hold_s", [0, 0.005])
def test_closing_under_load_leaves_no_key(shell: Shell, connect: Connect, scripted: Scripted, hold_s: float) -> None:
    """Half of the callers stand in line for a few resources, too."""
    instances = scripted(3)
    lock = connect(instances.urls)
    worker = work_as_a_task if isinstance(shell, AsyncioShell) else work
    names = [f"r{number if number % 2 else number % 4}" for number in range(CALLERS)]
    jobs = [shell.start(worker, shell.raw(lock), shell, name, hold_s) for name in names]
    shell.until(lambda: len(instances[0].kinds()) > 4 * CALLERS, "load")
    lock.close(30.0)
    assert {job.result() for job in jobs} == {"all instances: not connected: this Redlock is closed"}
    assert instances.keys == []


@pytest.mark.parametrize("settled", [False, True])
def test_an_acquire_that_waits_is_told_and_leaves_nothing(
    shell: Shell, connect: Connect, scripted: Scripted, settled: bool
) -> None:
    """No server answers until all is closed; or all do, in the moment it closes."""
    instances = scripted(3)
    lock = connect(instances.urls, max_ttl_ms=LONG_MS)
    for instance in instances:
        instance.pause()
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
    for instance in instances:
        instance.resume()
    shell.until(lambda: all(instance.kinds() == ["set", "release"] for instance in instances), "a release of each")
    assert instances.keys == []


@pytest.mark.parametrize("shell", [GeventShell, *TASKS], indirect=True, ids=["gevent", "asyncio", "uvloop"])
def test_a_caller_that_closes_while_it_waits_itself_may_be_cancelled(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(3)
    lock = connect(instances.urls, max_ttl_ms=LONG_MS)
    for instance in instances:
        instance.pause()
    waits = shell.start(shell.raw(lock).try_acquire, "stock", LONG_MS)
    shell.until(lambda: all(status.pending for status in lock.instances), "the SETs")
    closes = shell.start(shell.raw(lock).close, 60.0)
    shell.sleep(0.01)
    shell.cancel(closes)
    for instance in instances:
        instance.resume()
    with pytest.raises(InstanceClosedError):
        waits.result()
    shell.until(lambda: all(instance.kinds() == ["set", "release"] for instance in instances), "a release of each")


def test_a_holder_gives_back_while_it_closes(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
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


def test_what_is_owed_goes_out_before_it_is_closed(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    shell.until(lambda: not lease.tally.undecided, "every vote")
    instances[0].pause()
    lock.release(lease)
    instances[0].drop_connections()
    shell.until(lambda: lock.instances[0].owed_releases, "a release to be owed")
    instances[0].resume()
    lock.close(30.0)
    assert instances.keys == []


def test_what_is_owed_to_a_dead_instance_holds_nobody_up(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
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
    connect: Connect, scripted: Scripted, error: type[BaseException]
) -> None:
    lock = connect(scripted(3).urls)

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
