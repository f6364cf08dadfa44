"""Ctrl-C at any moment: the interrupted caller leaves nothing behind, and the lock goes on.

A trace function raises KeyboardInterrupt at the k-th moment at which the interpreter looks for
signals inside lockcore, in the caller and in its hub, for every k there is.
"""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from socket import create_connection
from typing import Any
from unittest.mock import Mock

import gevent
import pytest

from bench.topology.fleet import HOST
from lockcore import Outcome
from lockcore.rounds.resp import request
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import (
    AsyncioShell,
    Connect,
    GeventShell,
    Scripted,
    Shell,
    ThreadShell,
    UvloopShell,
    only,
)
from tests.lockcore.interrupt import Interrupt

pytestmark = pytest.mark.integration
# no key goes by itself
TTL_MS = 600_000
WAIT_MS = 60_000
# a wake-up lost to an interrupt is made good by the instance timeout
PATIENCE_MS = 250


@contextmanager
def interrupted(shell: Shell, at: int) -> Iterator[Interrupt]:
    """KeyboardInterrupt at the `at`-th moment of lockcore in this thread, its hub included."""
    interrupt = Interrupt(at)
    in_hub = gevent.get_hub().loop.run_callback if isinstance(shell, GeventShell) else None
    if in_hub:
        in_hub(sys.settrace, interrupt.trace)
        # in the hub, for the sake of others
        with suppress(KeyboardInterrupt):
            gevent.sleep(0)
    sys.settrace(interrupt.trace)
    try:
        with suppress(KeyboardInterrupt):
            yield interrupt
    finally:
        sys.settrace(None)
        if in_hub:
            in_hub(sys.settrace, None)
            with suppress(KeyboardInterrupt):
                gevent.sleep(0)


@pytest.fixture
def lock(connect: Connect, servers: Instances, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Connected, used once, and quick to reconnect."""
    monkeypatch.setattr("lockcore.facts.membership.FIRST_BACKOFF_NS", 1_000_000)
    made = connect(servers.urls, max_ttl_ms=TTL_MS, instance_timeout_ms=PATIENCE_MS)
    made.release(made.acquire("warm", TTL_MS))
    return made


@pytest.fixture
def servers(scripted: Scripted) -> Instances:
    return scripted(1)


@only(GeventShell, ThreadShell)
@pytest.mark.parametrize("what", ["acquire", "release"])
def test_an_operation_interrupted_at_any_moment_leaves_nothing(
    shell: Shell, lock: Any, servers: Instances, what: str
) -> None:
    for moment in count(1):
        lease = lock.acquire(f"r{moment}", TTL_MS) if what == "release" else None
        with interrupted(shell, moment) as interrupt:
            if lease:
                lock.try_release(lease)
            else:
                lease = lock.try_acquire(f"r{moment}", TTL_MS)
        # it struck elsewhere
        if lease and what == "acquire":
            lock.try_release(lease)
        if not interrupt.where:
            break
        check_sound(shell, lock, servers, interrupt.where)
    assert moment > 10


class Observer:
    """One that keeps nothing of what it is told."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Traced:
    """A coroutine, awaited: the interrupt may come in any of its steps."""

    def __init__(self, steps: Any, interrupt: Interrupt) -> None:
        self._steps = steps
        self._interrupt = interrupt

    def __await__(self) -> Generator[Any, None, Any]:
        while True:
            sys.settrace(self._interrupt.trace)
            try:
                waits_for = self._steps.send(None)
            except StopIteration as done:
                return done.value
            finally:
                sys.settrace(None)
            yield waits_for


def test_an_observed_acquire_interrupted_at_any_moment_leaves_nothing(
    shell: Any, lock: Any, servers: Instances
) -> None:
    async def traced(resource: str, interrupt: Interrupt) -> Any:
        with suppress(KeyboardInterrupt):
            return await Traced(lock.raw.try_acquire(resource, TTL_MS), interrupt)

    lock.observe(Observer())
    for moment in count(1):
        lease = None
        if isinstance(shell, AsyncioShell):
            interrupt = Interrupt(moment)
            lease = shell.run(traced(f"r{moment}", interrupt))
        else:
            with interrupted(shell, moment) as interrupt:
                lease = lock.try_acquire(f"r{moment}", TTL_MS)
        # it struck elsewhere
        if lease:
            lock.try_release(lease)
        if not interrupt.where:
            break
        check_sound(shell, lock, servers, interrupt.where)
    assert moment > 10


@only(AsyncioShell, UvloopShell)
def test_a_tasks_acquire_interrupted_at_any_moment_before_it_waits_leaves_nothing(
    shell: Any, lock: Any, servers: Instances
) -> None:
    async def begin(resource: str, interrupt: Interrupt) -> None:
        operation = lock.raw.try_acquire(resource, TTL_MS)
        sys.settrace(interrupt.trace)
        try:
            with suppress(KeyboardInterrupt):
                operation.send(None)
        finally:
            sys.settrace(None)
        # where nothing struck, it is given up
        operation.close()

    for moment in count(1):
        interrupt = Interrupt(moment)
        shell.run(begin(f"r{moment}", interrupt))
        if not interrupt.where:
            break
        check_sound(shell, lock, servers, interrupt.where)
    assert moment > 10


@only(GeventShell)
def test_a_tick_interrupted_at_any_moment_lets_nobody_wait_for_ever(
    shell: Shell, lock: Any, servers: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = lock._driver
    tick = driver.tick
    moment = 1
    while True:
        interrupt = Interrupt(moment, "driver.py", "engine.py", "turns.py", "deadlines.py")
        ticks = list[int]()

        def struck(trace: Any = interrupt.trace, ticks: list[int] = ticks) -> None:
            ticks.append(1)
            sys.settrace(trace)
            try:
                tick()
            finally:
                sys.settrace(None)

        held = lock.acquire(f"r{moment}", TTL_MS)
        monkeypatch.setattr(driver, "tick", struck)
        waits = gevent.spawn(lock.try_acquire, held.resource, TTL_MS, 30)
        for _ in range(3):
            # in the hub, for the sake of others
            with suppress(KeyboardInterrupt):
                waits.join(1)
        monkeypatch.setattr(driver, "tick", tick)
        assert waits.ready(), interrupt.where
        lock.try_release(held)
        check_sound(shell, lock, servers, interrupt.where)
        if interrupt.where:
            moment += 1
        elif ticks:
            break
        # else replies have done what a tick does, as on a busy machine: once more
    assert moment > 10


@pytest.mark.slow
@only(GeventShell, ThreadShell)
def test_who_is_interrupted_in_line_at_any_moment_holds_nobody_up(
    shell: Shell, lock: Any, servers: Instances
) -> None:
    """One holds the key, one is interrupted while it waits, one waits behind and must get it."""
    for moment in count(1):
        resource = f"r{moment}"
        mine = None
        held = lock.acquire(resource, TTL_MS)
        jobs = [shell.start(join_line_and_release, shell, lock, resource, held)]
        with interrupted(shell, moment) as interrupt:
            mine = lock.try_acquire(resource, TTL_MS, WAIT_MS)
        for lease in filter(None, (held, mine)):
            lock.try_release(lease)
        try:
            jobs[0].result()
        except TimeoutError:
            pytest.fail(f"still waits behind {interrupt.where}")
        if not interrupt.where:
            break
        check_sound(shell, lock, servers, interrupt.where)
    assert moment > 10


def join_line_and_release(shell: Shell, lock: Any, resource: str, held: Any) -> None:
    """Wait behind whoever waits by then."""
    behind = shell.start(take_turn, lock, resource)
    shell.sleep(0.005)
    # it may strike here, too
    with suppress(KeyboardInterrupt):
        lock.try_release(held)
    behind.result()


def take_turn(lock: Any, resource: str) -> None:
    with suppress(KeyboardInterrupt):
        # else the interrupt cost the quorum its connections
        if lease := lock.try_acquire(resource, TTL_MS, WAIT_MS):
            lock.try_release(lease)


def test_a_client_that_a_scripted_instance_has_killed_executes_nothing_more(
    servers: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Redis. Else a SET of a broken connection might come behind its release."""
    server = servers[0]
    late = request(b"SET", b"stock", b"mine", b"NX", b"PX", b"600000")
    with (
        closing(create_connection((HOST, server.port.number))) as old,
        closing(create_connection((HOST, server.port.number))) as new,
    ):
        old.sendall(request(b"CLIENT", b"ID"))
        number = int(old.recv(64)[1:])
        new.sendall(request(b"PING"))
        assert new.recv(64) == b"+OK\r\n"
        # a thread that would do it later comes too late
        monkeypatch.setattr("tests.doubles.instance.threading.Thread", Mock())
        new.sendall(request(b"CLIENT", b"KILL", b"ID", b"%d" % number))
        assert new.recv(64) == b":1\r\n"
        with suppress(OSError):
            old.sendall(late)
            old.recv(64)
        # its thread may have had the command already
        server._answer(number, [b"SET", b"stock", b"mine", b"NX", b"PX", b"600000"])
        assert server.keys == {}


def check_sound(shell: Shell, lock: Any, servers: Instances, where: str) -> None:
    """Nothing is held, everybody votes, and a whole cycle works."""
    shell.until(lambda: servers.keys == [], f"nothing to be held after {where}")
    shell.until(
        lambda: all(status.state == "voting" for status in lock.instances),
        f"everybody to vote after {where}",
    )
    lease = lock.try_acquire("probe", TTL_MS)
    assert lease.outcome is Outcome.ACQUIRED, where
    assert lease.tally.granted == len(servers), where
    assert lock.try_release(lease) is Outcome.RELEASED, where
    shell.until(
        lambda: not any(status.pending for status in lock.instances), f"every reply after {where}"
    )
