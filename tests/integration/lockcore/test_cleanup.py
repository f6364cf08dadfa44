"""Nothing is left behind: after a lost attempt, a cancelled caller, a late reply.

On every way of waiting.
"""

import asyncio
import gc
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
    Connect,
    GeventShell,
    Shell,
    ThreadShell,
    only,
)

pytestmark = pytest.mark.integration
ASKED = ["set", "release"]


def hold_up(instances: Instances, what: str) -> None:
    """Let an operation wait for its answers, or (a retry) for its next attempt."""
    if what == "retry":
        instances[1:].say("set", REFUSE)
    else:
        instances.pause()


def is_waiting(lock: Any, instances: Instances, what: str) -> bool:
    """Whether it does."""
    return instances.were_told(ASKED) if what == "retry" else is_sent(lock)


def is_sent(lock: Any) -> bool:
    """Whether the first SET has left for every instance (its reply is awaited)."""
    return all(status.pending for status in lock.instances)


def expect_clean(shell: Shell, instances: Instances) -> None:
    """Every instance executed the SET, then a release, and holds nothing."""
    shell.until(lambda: instances.were_told(ASKED), "a release behind every SET")
    assert instances.keys == []


def test_a_timed_out_attempt_is_cleaned_up_everywhere_and_its_late_replies_are_counted(
    shell: Shell, connect: Connect, instances: Instances
) -> None:
    lock = connect(instances.urls, instance_timeout_ms=50)
    instances[1:].pause()
    denied = lock.try_acquire("stock", TTL_MS)
    assert (denied.outcome, denied.tally.silent) == (Outcome.UNREACHABLE, 2)
    shell.until(lambda: instances[0].kinds() == ASKED, "clean-up where it was granted")
    instances.resume()
    expect_clean(shell, instances)
    shell.until(
        lambda: [status.pending for status in lock.instances] == [0] * 3, "every late reply"
    )
    assert lock.instances[0].late_replies == 0
    assert all(status.late_replies >= 1 for status in lock.instances[1:])
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.ACQUIRED


@only(GeventShell, *TASKS)
@pytest.mark.parametrize("what", ["attempt", "retry"])
def test_a_cancelled_caller_leaves_no_key(
    shell: Shell, connect: Connect, instances: Instances, what: str
) -> None:
    lock = connect(instances.urls, retry=RetryPolicy("fixed", 60_000))
    hold_up(instances, what)
    job = shell.start(shell.raw(lock).try_acquire, "stock", TTL_MS, 600_000)
    shell.until(lambda: is_waiting(lock, instances, what), "the wait")
    assert not job.is_done()
    shell.cancel(job)
    assert job.is_done()
    instances.resume()
    expect_clean(shell, instances)


@only(GeventShell, *TASKS)
def test_200_cancelled_callers_leave_no_key_on_real_servers(
    shell: Shell, connect: Connect, fleet: Fleet
) -> None:
    prefix = f"{uuid4().hex}:"
    lock = connect(fleet.urls, key_prefix=prefix)
    jobs = [
        shell.start(shell.raw(lock).try_acquire, f"r{number % 150}", TTL_MS, 60_000)
        for number in range(200)
    ]
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


@contextmanager
def interrupt_when(reached: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C for the main thread once something has happened, and not in a finalizer, where Python
    drops it."""

    def watch() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not reached() and time.monotonic() < deadline:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        gc.enable()
    watcher.join(DEADLINE_S)


@only(GeventShell, ThreadShell)
@pytest.mark.parametrize("what", ["attempt", "retry", "release"])
def test_ctrl_c_while_waiting_leaves_no_key(
    shell: Shell, connect: Connect, instances: Instances, what: str
) -> None:
    lock = connect(instances.urls, retry=RetryPolicy("fixed", 60_000))
    lease = None
    if what == "release":
        lease = shell.won(lock)
    hold_up(instances, what)
    with interrupt_when(lambda: is_waiting(lock, instances, what)):
        if lease:
            lock.release(lease)
        else:
            lock.try_acquire("stock", TTL_MS, 600_000)
    instances.resume()
    # It may strike between two sockets: then who was not sent the SET is sent a release all the
    # same.
    shell.until(
        lambda: all(instance.kinds()[-1:] == ["release"] for instance in instances),
        "a release everywhere",
    )
    assert instances.keys == []
    instances.be_honest()
    # once its connections are made anew
    shell.until(lambda: lock.try_acquire("stock", TTL_MS), "an acquire")


@only(*TASKS)
def test_ctrl_c_under_asyncio_run_leaves_no_key(shell: AsyncioShell, instances: Instances) -> None:

    async def main() -> None:
        connecting = AsyncRedlock.connect(instances.urls, **PATIENT)  # type: ignore[arg-type]
        async with await connecting as lock:
            instances.pause()
            asyncio.get_running_loop().call_later(0.02, signal.raise_signal, signal.SIGINT)
            threading.Timer(0.1, instances.resume).start()
            await lock.acquire("stock", TTL_MS)

    with pytest.raises(KeyboardInterrupt), asyncio.Runner(loop_factory=shell.new_loop) as runner:
        runner.run(main())
    expect_clean(shell, instances)


@only(*TASKS)
@pytest.mark.parametrize("settled_first", [True, False])
def test_a_task_cancelled_as_its_grant_comes_gives_it_back_and_is_woken_no_more(
    shell: AsyncioShell, lock: Any, instances: Instances, settled_first: bool
) -> None:
    problems: list[Any] = []
    shell.loop.set_exception_handler(lambda _, context: problems.append(context))
    instances.pause()
    job: Any = shell.start(lock.raw.try_acquire, "stock", TTL_MS)
    shell.until(lambda: is_sent(lock), "the SETs")
    instances.resume()

    # while this task is being stepped, the other one is not
    async def cancel() -> None:
        if settled_first:
            settle_without_the_loop(lock)
        job.task.cancel()
        settle_without_the_loop(lock)

    shell.loop.run_until_complete(cancel())
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


def test_a_body_that_raises_gives_the_lock_back(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    with pytest.raises(ZeroDivisionError), lock.hold("stock", TTL_MS):
        raise ZeroDivisionError
    expect_clean(shell, instances)


def test_a_body_that_outlives_its_lease_is_told(
    shell: Shell, lock: Any, instances: Instances
) -> None:

    def lose_it() -> None:
        shell.until(lambda: len(instances.keys) == 3, "every SET")
        instances.drop(b"stock")

    with (
        pytest.raises(LeaseGoneError, match="'stock': the lease is no longer ours"),
        lock.hold("stock", TTL_MS),
    ):
        lose_it()
    with lock.hold("stock", TTL_MS):
        pass
