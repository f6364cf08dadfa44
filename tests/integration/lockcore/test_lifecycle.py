"""From connect to close, in this process and no other; closed under load, with leases held and
releases owed, nothing is left behind. On every way of waiting."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from lockcore import KeepAlive, Outcome, Redlock
from lockcore.errors import ForeignProcessError, InstanceClosedError
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import (
    DEADLINE_S,
    TASKS,
    TTL_MS,
    AsyncioShell,
    Connect,
    GeventJob,
    GeventShell,
    Scripted,
    Shell,
    ThreadShell,
    first_step,
    only,
)
from tests.lockcore.source import needs_source

pytestmark = pytest.mark.integration
EXIT_S = 20.0
CALLERS = 40
LONG_MS = 600_000


def test_everything_after_close_says_so(shell: Shell, lock: Any, instances: Instances) -> None:
    with lock:
        lease = lock.acquire("stock", TTL_MS)
    lock.close()
    for use in (
        lambda: lock.try_acquire("stock", TTL_MS),
        lambda: lock.try_release(lease),
        lambda: lock.try_extend(lease),
        lambda: lock.keep_alive(lease),
    ):
        with pytest.raises(InstanceClosedError, match="this Redlock is closed"):
            use()
    assert [status.state for status in lock.instances] == ["down"] * 3
    shell.until(
        lambda: not any(instance.is_connected for instance in instances), "the connections to end"
    )


def test_close_waits_for_what_is_in_flight(shell: Shell, lock: Any, instances: Instances) -> None:
    lease = lock.acquire("stock", TTL_MS)
    instances[0].pause()
    # two of three; the third is still on its way
    assert lock.try_release(lease) is Outcome.RELEASED
    job = shell.start(shell.raw(lock).close, 8.0)
    shell.sleep(0.02)
    assert not job.is_done()
    instances[0].resume()
    job.result()
    assert instances.keys == []
    assert lock.instances[0].pending == 0


def in_a_child(work: Callable[[], str]) -> str:
    """What `work` returns in a forked child."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            said = f"{type(error).__name__}: {error}"
        there.sendall(said.encode())
        os._exit(0)
    there.close()
    here.settimeout(EXIT_S)
    said = here.recv(10_000).decode()
    here.close()
    os.waitpid(child, 0)
    return said


def test_a_forked_child_cannot_use_it_and_its_parent_still_can(
    shell: Shell, connect: Connect, instances: Instances
) -> None:
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    raw = shell.raw(lock)

    def child() -> str:
        said = []
        uses = (
            lambda: raw.try_acquire("other", TTL_MS),
            lambda: raw.try_release(lease),
            lambda: raw.try_extend(lease),
        )
        for use in (*uses, lambda: raw.keep_alive(lease)):
            try:
                first_step(use())
            except ForeignProcessError as error:
                said.append(str(error))
        first_step(raw.close())
        return f"{len(said)} {said[0]}"

    assert (
        in_a_child(child)
        == "4 another process connected this Redlock; call connect() again after fork"
    )
    lease = lock.extend(lease)
    assert lock.try_release(lease) is Outcome.RELEASED
    assert lock.try_acquire("other", TTL_MS)
    expected = ["set", "extend", "release", "set"]
    shell.until(lambda: instances.were_told(expected), "what the parent asked for, alone")


@only(ThreadShell)
def test_a_child_may_connect_anew(connect: Connect, instances: Instances) -> None:
    lock = connect(instances.urls)
    held = lock.acquire("stock", TTL_MS)

    def child() -> str:
        with Redlock.connect(instances.urls, shell="threads", rejoin="trust-first") as mine:
            return (
                f"{mine.try_acquire('stock', TTL_MS).outcome.value} "
                f"{mine.try_acquire('other', TTL_MS).outcome.value}"
            )

    assert in_a_child(child) == "contended acquired"
    assert lock.try_release(held) is Outcome.RELEASED


@only(ThreadShell)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_io_thread_strands_nobody(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    instances.pause()
    jobs = [shell.start(lock.try_acquire, f"r{number}", TTL_MS, 60_000) for number in range(20)]
    shell.until(lambda: len(lock._driver.calls) == 20, "twenty callers")
    lock._driver._post(lambda: 1 / 0)
    for job in jobs:
        with pytest.raises(InstanceClosedError):
            job.result()
    with pytest.raises(InstanceClosedError):
        lock.try_acquire("stock", TTL_MS)
    # it tells of the bug as it ends
    lock._driver._thread.join(DEADLINE_S)


def test_a_keeper_ends_in_a_forked_child_and_goes_on_in_its_parent(
    shell: Shell, connect: Connect, instances: Instances
) -> None:
    lock = connect(instances.urls)
    calls = list[Any]()
    lease = lock.acquire("stock", TTL_MS)
    kept = lock.keep_alive(lease, every_ms=20, on_gone=calls.append)
    shell.until(lambda: kept.renewals, "an extension")

    def child() -> str:
        assert kept.gone is not None
        over = [kept.stopped, kept.gone.outcome.value, type(kept.error).__name__]
        renewals = kept.renewals
        # loops that go on in a child
        if shell.name in ("gevent", "asyncio"):
            shell.sleep(0.1)
        return f"{over} {kept.renewals - renewals} {len(calls)} {len(lock._driver.keepers)}"

    assert in_a_child(child) == "[True, 'unreachable', 'ForeignProcessError'] 0 0 0"
    renewals = kept.renewals
    shell.until(lambda: kept.renewals > renewals, "the parent's keeper to go on")
    assert (kept.gone, calls) == (None, [])
    lock.release(kept.lease)


@needs_source
def test_a_keeper_that_says_kept_in_a_forked_child_is_noticed(
    shell: Shell, connect: Connect, instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeepAlive, "forked", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_keeper_ends_in_a_forked_child_and_goes_on_in_its_parent(shell, connect, instances)


@only(GeventShell, *TASKS)
def test_what_a_forked_child_gives_up_is_not_sent(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    """The child has copies of everybody who waits; ending them must not release what the parent is
    about to get."""
    instances.pause()
    waits = shell.start(shell.raw(lock).try_acquire, "stock", TTL_MS)
    shell.until(lambda: all(status.pending for status in lock.instances), "its SETs to be sent")

    def child() -> str:
        if isinstance(waits, GeventJob):
            waits.greenlet.kill()
        else:
            waits.task.get_coro().close()
        return "ended"

    assert in_a_child(child) == "ended"
    instances.resume()
    assert lock.try_release(waits.result()) is Outcome.RELEASED
    shell.until(lambda: instances.were_told(["set", "release"]), "one release of each")


@only(GeventShell)
def test_who_stands_in_line_is_told_in_a_forked_child(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(1)
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    jobs = [shell.start(lock.try_acquire, "stock", TTL_MS, 60_000) for _ in range(3)]
    shell.until(
        lambda: len(lock._driver.engine.turns.lines.get("stock", ())) == 3, "all to stand in line"
    )
    instances[0].pause()
    shell.until(lambda: lock.instances[0].pending, "the first in line to be in a round")

    def child() -> str:
        said = []
        for job in jobs:
            try:
                job.result()
            except ForeignProcessError:
                said.append("foreign")
        return " ".join(said)

    assert in_a_child(child) == "foreign foreign foreign"
    instances[0].resume()
    lock.release(lease)
    for job in jobs:
        lock.release(job.result())


# -- closing ---------------------------------------------------------------------------------------


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
def test_closing_under_load_leaves_no_key(
    shell: Shell, lock: Any, instances: Instances, hold_s: float
) -> None:
    """Half of the callers stand in line for a few resources, too."""
    names = [f"r{number if number % 2 else number % 4}" for number in range(CALLERS)]
    jobs = [shell.begin(work, lock, name, hold_s) for name in names]
    shell.until(lambda: len(instances[0].kinds()) > 4 * CALLERS, "load")
    lock.close(30.0)
    assert {job.result() for job in jobs} == {
        "all instances: not connected: this Redlock is closed"
    }
    # long before keys end
    shell.until(lambda: instances.keys == [], "what was sent last is done", TTL_MS / 4000)


def test_who_is_refused_while_it_closes_gave_nothing_back(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    """Else it would not be waited for those who hold a lease: found by the test above, on a busy
    machine."""
    engine = lock._driver.engine
    lock.acquire("held", TTL_MS)
    waiting = [shell.start(shell.raw(lock).acquire, "held", TTL_MS, 60_000) for _ in range(3)]
    shell.until(lambda: len(engine.turns.lines.get("held", ())) == 3, "all to stand in line")
    engine.retire()
    for job in waiting:
        with pytest.raises(InstanceClosedError):
            job.result()
    assert engine.unreleased == 1


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
        # granted before it was closed
        is_told = False
    assert is_told or settled
    if not is_told:
        return
    instances.resume()
    shell.until(lambda: instances.were_told(["set", "release"]), "a release of each")
    assert instances.keys == []


@only(GeventShell, *TASKS)
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


def test_a_lease_that_is_kept_holds_it_up_for_a_moment_only(
    connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(1)
    lock = connect(instances.urls)
    lock.acquire("stock", TTL_MS)
    started = time.monotonic()
    lock.close(60.0)
    assert 0.1 <= time.monotonic() - started < 30.0
    assert len(instances.keys) == 1


def test_what_is_owed_goes_out_before_it_is_closed(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    lease = shell.won(lock)
    instances[0].pause()
    lock.release(lease)
    instances[0].drop_connections()
    shell.until(lambda: lock.instances[0].owed_releases, "a release to be owed")
    instances[0].resume()
    lock.close(30.0)
    assert instances.keys == []


def test_what_is_owed_to_a_dead_instance_holds_nobody_up(
    shell: Shell, lock: Any, instances: Instances
) -> None:
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
    said = (
        "the lease on 'stock' was not released: all instances: not connected: this Redlock "
        "is closed"
    )
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
