"""Nothing is left behind: after a lost attempt, a cancelled caller, a late reply. On every way of waiting."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import gevent
import pytest

from bench.topology.fleet import Fleet
from lockcore import AsyncRedlock, Outcome, RetryPolicy
from lockcore.errors import LeaseGoneError
from tests.doubles.instance import REFUSE, Instances
from tests.integration.lockcore.keys import keys_on
from tests.integration.lockcore.shell import (
    DEADLINE_S,
    PATIENT,
    TASKS,
    TTL_MS,
    AsyncioShell,
    GeventShell,
    Shell,
    ThreadShell,
    only,
)

pytestmark = pytest.mark.integration
Connect = Callable[..., Any]
Scripted = Callable[..., Instances]
ASKED = ["set", "release"]


def pause(instances: Instances) -> None:
    for instance in instances:
        instance.pause()


def resume(instances: Instances) -> None:
    for instance in instances:
        instance.resume()


def is_sent(lock: Any) -> bool:
    """Whether the first SET has left for every instance (its reply is awaited)."""
    return all(status.pending for status in lock.instances)


def expect_clean(shell: Shell, instances: Instances) -> None:
    """Every instance executed the SET, then a release, and holds nothing."""
    shell.until(lambda: all(instance.kinds() == ASKED for instance in instances), "a release behind every SET")
    assert instances.keys == []


def test_a_timed_out_attempt_is_cleaned_up_everywhere_and_its_late_replies_are_counted(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(3)
    lock = connect(instances.urls, instance_timeout_ms=50)
    for instance in instances[1:]:
        instance.pause()
    denied = lock.try_acquire("stock", TTL_MS)
    assert (denied.outcome, denied.tally.silent) == (Outcome.UNREACHABLE, 2)
    shell.until(lambda: instances[0].kinds() == ASKED, "clean-up where it was granted")
    resume(instances)
    expect_clean(shell, instances)
    shell.until(lambda: [status.pending for status in lock.instances] == [0] * 3, "every late reply")
    assert lock.instances[0].late_replies == 0
    assert all(status.late_replies >= 1 for status in lock.instances[1:])
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.ACQUIRED


def test_a_late_set_never_outlives_its_release(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    instances[2].pause()
    lease = lock.acquire("stock", TTL_MS)
    assert lock.try_release(lease) is Outcome.RELEASED
    again = lock.acquire("stock", TTL_MS)
    instances[2].resume()
    shell.until(lambda: instances[2].kinds() == ["set", "release", "set"], "everything in order")
    assert instances[2].keys == {b"stock": again.owner_token}


@only(GeventShell, *TASKS)
def test_a_cancelled_caller_leaves_no_key(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    pause(instances)
    job = shell.start(shell.raw(lock).try_acquire, "stock", TTL_MS, 60_000)
    shell.until(lambda: is_sent(lock), "the SETs")
    shell.cancel(job)
    assert job.is_done()
    resume(instances)
    expect_clean(shell, instances)


@only(GeventShell, *TASKS)
def test_a_caller_cancelled_between_attempts_holds_nothing(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    for instance in instances[1:]:
        instance.says["set"] = REFUSE
    lock = connect(instances.urls, retry=RetryPolicy("fixed", 60_000))
    job = shell.start(shell.raw(lock).try_acquire, "stock", TTL_MS, 600_000)
    expect_clean(shell, instances)
    assert not job.is_done()
    shell.cancel(job)
    assert job.is_done()
    expect_clean(shell, instances)


@only(GeventShell, *TASKS)
def test_200_cancelled_callers_leave_no_key_on_real_servers(shell: Shell, connect: Connect, fleet: Fleet) -> None:
    prefix = f"{uuid4().hex}:"
    lock = connect(fleet.urls, key_prefix=prefix)
    jobs = [shell.start(shell.raw(lock).try_acquire, f"r{number % 150}", TTL_MS, 60_000) for number in range(200)]
    shell.sleep(0)
    for job in jobs:
        shell.cancel(job)
    granted = [job.result() for job in jobs if not was_cancelled(job)]
    shell.together(shell.raw(lock).try_release, [(lease,) for lease in granted])
    shell.until(lambda: all(not status.pending for status in lock.instances), "every reply")
    assert keys_on(fleet.urls, prefix) == []


def was_cancelled(job: Any) -> bool:
    if hasattr(job, "task"):
        return bool(job.task.cancelled())
    return isinstance(job.greenlet.value, gevent.GreenletExit)


@only(GeventShell, *TASKS)
def test_a_time_limit_around_acquire_leaves_no_key(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    pause(instances)
    if isinstance(shell, GeventShell):
        with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
            lock.try_acquire("stock", TTL_MS)
    else:
        assert isinstance(shell, AsyncioShell)
        with pytest.raises(TimeoutError):
            shell.run(asked_within(0.05, shell.raw(lock)))
    resume(instances)
    expect_clean(shell, instances)


async def asked_within(seconds: float, lock: Any) -> None:
    async with asyncio.timeout(seconds):
        await lock.try_acquire("stock", TTL_MS)


@contextmanager
def interrupt_when(reached: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C for the main thread as soon as something has happened."""

    def watch() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not reached() and time.monotonic() < deadline:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    watcher.join(DEADLINE_S)


@only(GeventShell, ThreadShell)
def test_ctrl_c_while_waiting_leaves_no_key(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    pause(instances)
    with interrupt_when(lambda: is_sent(lock)):
        lock.try_acquire("stock", TTL_MS)
    resume(instances)
    # It may strike between two sockets: then who was not sent the SET is sent a release all the same.
    shell.until(lambda: all(instance.kinds()[-1:] == ["release"] for instance in instances), "a release everywhere")
    assert instances.keys == []
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.ACQUIRED  # and the thread can go on


@only(ThreadShell)
def test_ctrl_c_in_the_moment_of_the_grant_gives_it_back_and_spoils_no_later_call(
    shell: Shell, connect: Connect, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    post = lock._driver._post

    def interrupted(job: Callable[[], Any]) -> None:  # the answer is there, the caller has not looked yet
        monkeypatch.undo()
        post(job)
        shell.until(lambda: instances[0].kinds() and all(call.over for call in lock._driver.calls), "the grant")
        raise KeyboardInterrupt

    monkeypatch.setattr(lock._driver, "_post", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.try_acquire("stock", TTL_MS)
    for instance in instances:
        instance.pause()
    resumed = threading.Timer(0.05, resume, [instances])
    resumed.start()
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.ACQUIRED
    resumed.join()
    shell.until(lambda: all(instance.kinds() == [*ASKED, "set"] for instance in instances), "the release in between")


@only(GeventShell, ThreadShell)
def test_ctrl_c_between_attempts_ends_the_wait(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    for instance in instances[1:]:
        instance.says["set"] = REFUSE
    lock = connect(instances.urls, retry=RetryPolicy("fixed", 60_000))
    with interrupt_when(lambda: all(instance.kinds() == ASKED for instance in instances)):
        lock.try_acquire("stock", TTL_MS, 600_000)
    expect_clean(shell, instances)


@only(GeventShell, ThreadShell)
def test_ctrl_c_while_releasing_still_releases(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    shell.until(lambda: not lease.tally.undecided, "every vote")
    pause(instances)
    with interrupt_when(lambda: is_sent(lock)):
        lock.release(lease)
    resume(instances)
    shell.until(lambda: instances.keys == [], "the release")
    assert all(set(instance.kinds()[1:]) == {"release"} for instance in instances)


@only(*TASKS)
def test_ctrl_c_under_asyncio_run_leaves_no_key(shell: AsyncioShell, scripted: Scripted) -> None:
    instances = scripted(3)

    async def main() -> None:
        async with await AsyncRedlock.connect(instances.urls, **PATIENT) as lock:  # type: ignore[arg-type]
            pause(instances)
            asyncio.get_running_loop().call_later(0.02, signal.raise_signal, signal.SIGINT)
            threading.Timer(0.1, resume, [instances]).start()
            await lock.acquire("stock", TTL_MS)

    with pytest.raises(KeyboardInterrupt), asyncio.Runner(loop_factory=shell.new_loop) as runner:
        runner.run(main())
    expect_clean(shell, instances)


@only(*TASKS)
def test_a_task_cancelled_after_its_grant_gives_it_back(
    shell: AsyncioShell, connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    pause(instances)
    job: Any = shell.start(lock.raw.try_acquire, "stock", TTL_MS)
    shell.until(lambda: is_sent(lock), "the SETs")
    resume(instances)
    settle_without_the_loop(lock)
    job.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        job.result()
    expect_clean(shell, instances)


@only(*TASKS)
def test_a_round_settled_after_its_task_was_cancelled_wakes_nobody(
    shell: AsyncioShell, connect: Connect, scripted: Scripted
) -> None:
    problems: list[Any] = []
    shell.loop.set_exception_handler(lambda _, context: problems.append(context))
    instances = scripted(3)
    lock = connect(instances.urls)
    pause(instances)
    job: Any = shell.start(lock.raw.try_acquire, "stock", TTL_MS)
    shell.until(lambda: is_sent(lock), "the SETs")
    resume(instances)
    job.task.cancel()  # its future is cancelled at once, its task hears of it in the loop's next turn
    settle_without_the_loop(lock)
    with pytest.raises(asyncio.CancelledError):
        job.result()
    expect_clean(shell, instances)
    assert problems == []


def settle_without_the_loop(lock: Any) -> None:
    """Feed the driver what has come in, while no task can run."""
    driver = lock._driver
    deadline = time.monotonic() + DEADLINE_S
    while any(status.pending for status in lock.instances):
        assert time.monotonic() < deadline
        for index in range(len(driver.wires)):
            driver.readable(index)


def test_a_body_that_raises_gives_the_lock_back(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)
    with pytest.raises(ZeroDivisionError), lock.hold("stock", TTL_MS):
        raise ZeroDivisionError
    expect_clean(shell, instances)


def test_a_body_that_outlives_its_lease_is_told(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(3)
    lock = connect(instances.urls)

    def lose_it() -> None:
        shell.until(lambda: len(instances.keys) == 3, "every SET")
        for instance in instances:
            instance.keyspace.drop(b"stock")

    with pytest.raises(LeaseGoneError, match="'stock': the lease is no longer ours"), lock.hold("stock", TTL_MS):
        lose_it()
    with lock.hold("stock", TTL_MS):
        pass
