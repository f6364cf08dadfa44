"""A lock used in the middle of itself, or where nobody can wait: it works, or is refused before
anything is sent."""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import gevent
import pytest

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
        result = (
            lock.try_acquire("more", TTL_MS) if outer == "try_acquire" else lock.try_release(lease)
        )
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
        self.lock = lock
        self.refused = 0
        self._instances = instances

    def strike(self) -> None:
        tracing = sys.gettrace()
        sys.settrace(None)
        before = len(self._instances[0].log)
        try:
            # its TTL and its wait are others, so that nobody else may get them
            self.lock.try_release(self.lock.acquire("inner", TTL_MS + 1, 1))
        except CannotWaitError:
            self.refused += 1
            assert not [
                command for command in self._instances[0].log[before:] if b"inner" in command
            ]
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
            more = (
                lock.try_acquire(f"s{moment}", TTL_MS)
                if outer == "try_acquire"
                else lock.try_release(lease)
            )
        finally:
            sys.settrace(None)
        refused += nested.refused
        for one in [more, lease]:
            if hasattr(one, "owner_token"):
                assert one.ttl_ms == TTL_MS, nested.where
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
    assert said == [
        [
            "this Redlock cannot wait in the I/O thread of this Redlock "
            "(a __del__ or an observer); nothing was sent"
        ]
        * 7
    ]
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
    hub = "in gevent's hub (spawn a greenlet in the callback or the signal handler, and wait there)"
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
    assert {*said} == {
        "this Redlock cannot wait in a thread that did not connect this Redlock; nothing was sent"
    }
    shell.until(lambda: instances.were_told(["set"]), "no more than that")


@only(*TASKS)
def test_another_event_loop_is_refused(
    shell: AsyncioShell, connect: Connect, instances: Instances
) -> None:
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
    assert (
        said
        == [
            "this Redlock cannot wait outside the event loop that connected this Redlock; "
            "nothing was sent"
        ]
        * 9
    )
    shell.until(lambda: instances.were_told(["set"]), "no more than that")
    shell.run(lock.release(lease))
