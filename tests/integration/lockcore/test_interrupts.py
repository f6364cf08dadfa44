"""Ctrl-C at any moment, and a lock used in the middle of itself or where nobody can wait: nothing is left behind, it
works or is refused before anything is sent, and the lock goes on.

A trace function strikes at the k-th moment at which the interpreter looks for signals inside lockcore, in the caller
and in its hub, for every k there is.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import gevent
import pytest

from lockcore import Outcome
from lockcore.errors import CannotWaitError
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import (
    DEADLINE_S,
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
from tests.lockcore.interrupt import Interrupt

pytestmark = pytest.mark.integration
LONG_MS = 600_000  # no key goes by itself
WAIT_MS = 60_000
PATIENCE_MS = 250  # a wake-up lost to an interrupt is made good by the instance timeout


@contextmanager
def interrupted(shell: Shell, at: int) -> Iterator[Interrupt]:
    """KeyboardInterrupt at the `at`-th moment of lockcore in this thread, its hub included."""
    interrupt = Interrupt(at)
    in_hub = gevent.get_hub().loop.run_callback if isinstance(shell, GeventShell) else None
    if in_hub:
        in_hub(sys.settrace, interrupt.trace)
        with suppress(KeyboardInterrupt):  # in the hub, for the sake of others
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
    monkeypatch.setattr("lockcore.membership.FIRST_BACKOFF_NS", 1_000_000)
    made = connect(servers.urls, max_ttl_ms=LONG_MS, instance_timeout_ms=PATIENCE_MS)
    made.release(made.acquire("warm", LONG_MS))
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
        lease = lock.acquire(f"r{moment}", LONG_MS) if what == "release" else None
        with interrupted(shell, moment) as interrupt:
            if lease:
                lock.try_release(lease)
            else:
                lease = lock.try_acquire(f"r{moment}", LONG_MS)
        if lease and what == "acquire":  # it struck elsewhere
            lock.try_release(lease)
        if not interrupt.where:
            break
        check_sound(shell, lock, servers, interrupt.where)
    assert moment > 10


@pytest.mark.slow
@only(GeventShell, ThreadShell)
def test_who_is_interrupted_in_line_at_any_moment_holds_nobody_up(shell: Shell, lock: Any, servers: Instances) -> None:
    """One holds the key, one is interrupted while he waits for it, one waits behind him and must get it."""
    for moment in count(1):
        resource, mine = f"r{moment}", None
        held = lock.acquire(resource, LONG_MS)
        jobs = [shell.start(join_line_and_release, shell, lock, resource, held)]
        with interrupted(shell, moment) as interrupt:
            mine = lock.try_acquire(resource, LONG_MS, WAIT_MS)
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
    with suppress(KeyboardInterrupt):  # it may strike here, too
        lock.try_release(held)
    behind.result()


def take_turn(lock: Any, resource: str) -> None:
    with suppress(KeyboardInterrupt):
        if lease := lock.try_acquire(resource, LONG_MS, WAIT_MS):  # else the interrupt cost the quorum its connections
            lock.try_release(lease)


def check_sound(shell: Shell, lock: Any, servers: Instances, where: str) -> None:
    """Nothing is held, everybody votes, and a whole cycle works."""
    shell.until(lambda: servers.keys == [], f"nothing to be held after {where}")
    shell.until(lambda: all(status.state == "voting" for status in lock.instances), f"everybody to vote after {where}")
    lease = lock.try_acquire("probe", LONG_MS)
    assert lease.outcome is Outcome.ACQUIRED, where
    assert lease.tally.granted == len(servers), where
    assert lock.try_release(lease) is Outcome.RELEASED, where
    assert not any(status.pending for status in lock.instances), where


# -- used in the middle of itself, or where nobody can wait -----------------------------------------------------------


@contextmanager
def on_signal(handler: Callable[[], object]) -> Iterator[None]:
    """SIGUSR1 runs `handler`."""
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def uses_of(lock: Any, lease: Any) -> list[Callable[[], Any]]:
    """Everything that waits."""
    return [
        lambda: lock.try_acquire("other", TTL_MS),
        lambda: lock.try_acquire("other", TTL_MS, 50),
        lambda: lock.acquire("other", TTL_MS),
        lambda: lock.try_release(lease),
        lambda: lock.release(lease),
        lambda: lock.try_extend(lease),
        lambda: lock.extend(lease),
        lock.close,
    ]


def refusals(uses: list[Callable[[], Any]]) -> list[str]:
    """What each use that is refused says."""
    said = []
    for use in uses:
        try:
            use()
        except CannotWaitError as error:
            said.append(str(error))
    return said


@only(ThreadShell)
@pytest.mark.parametrize("outer", ["try_acquire", "try_release"])
def test_a_signal_handler_may_lock_while_its_own_thread_waits(
    shell: Shell, lock: Any, instances: Instances, outer: str
) -> None:
    lease = lock.acquire("outer", TTL_MS)
    inner: list[Any] = []

    def handler() -> None:
        got = lock.try_acquire("inner", TTL_MS)
        inner.append((got.tally, lock.try_release(got)))

    def strike() -> None:
        shell.until(lambda: len(lock._driver.calls) == 1, "the outer call")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        shell.until(lambda: len(lock._driver.calls) == 2, "the inner one")
        instances.resume()

    instances.pause()
    with on_signal(handler):
        striking = threading.Thread(target=strike, daemon=True)
        striking.start()
        result = lock.try_acquire("more", TTL_MS) if outer == "try_acquire" else lock.try_release(lease)
        striking.join()
    assert len(inner) == 1
    for one in [result, lease]:
        if hasattr(one, "owner_token"):
            lock.try_release(one)
    shell.until(lambda: instances.keys == [], "nothing to be left")


class Nested(Interrupt):
    """At the chosen moment a whole cycle runs, as a signal handler or a `__del__` may do."""

    def __init__(self, at: int, lock: Any, instances: Instances) -> None:
        super().__init__(at)
        self.lock, self.refused = lock, 0
        self._instances = instances

    def strike(self) -> None:
        tracing = sys.gettrace()
        sys.settrace(None)
        before = len(self._instances[0].log)
        try:
            self.lock.try_release(self.lock.acquire("inner", TTL_MS))
        except CannotWaitError:
            self.refused += 1
            assert not [command for command in self._instances[0].log[before:] if b"inner" in command]
        finally:
            sys.settrace(tracing)


@only(GeventShell, ThreadShell)
@pytest.mark.parametrize("outer", ["try_acquire", "try_release"])
def test_a_cycle_within_an_operation_at_any_moment_works_or_is_refused(
    shell: Shell, connect: Connect, scripted: Scripted, outer: str
) -> None:
    instances = scripted(1)
    lock = connect(instances.urls, max_ttl_ms=600_000)
    lock.release(lock.acquire("warm", TTL_MS))
    refused = 0
    for moment in count(1):
        lease = lock.acquire(f"r{moment}", TTL_MS)
        nested = Nested(moment, lock, instances)
        sys.settrace(nested.trace)
        try:
            more = lock.try_acquire(f"s{moment}", TTL_MS) if outer == "try_acquire" else lock.try_release(lease)
        finally:
            sys.settrace(None)
        refused += nested.refused
        for one in [more, lease]:
            if hasattr(one, "owner_token"):
                lock.try_release(one)
        shell.until(lambda: instances.keys == [], f"nothing to be held after {nested.where}")
        if not nested.where:
            break
    assert moment > 10
    assert bool(refused) is isinstance(shell, GeventShell)


@only(ThreadShell)
def test_what_is_collected_in_the_io_thread_is_refused_there_and_hangs_nobody(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    lease = lock.acquire("stock", TTL_MS)
    said: list[list[str]] = []

    class Collected:
        def __del__(self) -> None:
            said.append(refusals(uses_of(lock, lease)[:-1]))

    lock._driver._post(Collected)
    shell.until(lambda: said, "the garbage to be collected")
    assert said == [["this Redlock cannot wait in its own I/O thread (a __del__ or an observer); nothing was sent"] * 7]
    shell.until(lambda: instances.were_told(["set"]), "nothing else to be sent")
    lock.release(lease)
    lock.release(lock.acquire("other", TTL_MS))


@only(GeventShell)
@pytest.mark.parametrize("way", ["run_callback", "rawlink", "signal"])
def test_in_the_hub_it_is_refused(shell: Shell, lock: Any, instances: Instances, way: str) -> None:
    lease = lock.acquire("stock", TTL_MS)
    said: list[list[str]] = []

    def use(*_: object) -> None:
        said.append(refusals(uses_of(lock, lease)))

    if way == "rawlink":
        gevent.spawn(lambda: None).rawlink(use)
    elif way == "run_callback":
        gevent.get_hub().loop.run_callback(use)
    else:
        gevent.get_hub().loop.run_callback(signal.raise_signal, signal.SIGUSR1)
    with on_signal(use):
        shell.until(lambda: said, "the callback")
    hub = "in gevent's hub (a callback or a signal handler): spawn a greenlet there"
    assert said == [[f"this Redlock cannot wait {hub}; nothing was sent"] * 8]
    lock.release(lease)
    shell.until(lambda: instances.were_told(["set", "release"]), "only what was not refused")


@only(GeventShell)
def test_another_threads_hub_is_refused(shell: Shell, lock: Any, instances: Instances) -> None:
    lease = lock.acquire("stock", TTL_MS)
    said: list[str] = []
    uses = [*uses_of(lock, lease), lambda: lock.keep_alive(lease)]
    other = threading.Thread(target=lambda: said.extend(refusals(uses)))
    other.start()
    other.join(DEADLINE_S)
    assert len(said) == len(uses)
    assert {*said} == {"this Redlock cannot wait in another thread than the one that connected it; nothing was sent"}
    shell.until(lambda: instances.were_told(["set"]), "no more than that")


@only(*TASKS)
def test_another_event_loop_is_refused(shell: AsyncioShell, connect: Connect, instances: Instances) -> None:
    lock = connect(instances.urls).raw
    lease = shell.run(lock.acquire("stock", TTL_MS))
    said: list[str] = []

    async def keep() -> None:
        lock.keep_alive(lease)

    async def elsewhere() -> None:
        for use in [*uses_of(lock, lease), keep]:
            try:
                await use()
            except CannotWaitError as error:
                said.append(str(error))

    other = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    other.start()
    other.join(DEADLINE_S)
    assert said == ["this Redlock cannot wait outside the event loop that connected it; nothing was sent"] * 9
    shell.until(lambda: instances.were_told(["set"]), "no more than that")
    shell.run(lock.release(lease))
