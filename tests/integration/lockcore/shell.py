"""Ways of waiting behind one face: *a lock on gevent, asyncio, uvloop or threads → the same calls
for every claim*.

A claim is written once. `connect` gives a lock whose methods return when the operation is done,
whatever runs it; `start` runs one beside the test; `until` lets the loop go on until something has
happened, or fails at its deadline.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

import gevent
import pytest
import uvloop

from lockcore import AsyncRedlock, KeepAlive, LagCap, Lease, Redlock
from tests.doubles.instance import Instances

Connect = Callable[..., Any]
Scripted = Callable[..., Instances]

TTL_MS = 10_000
DEADLINE_S = 30.0
PATIENT = {
    "rejoin": "trust-first",
    "instance_timeout_ms": 2500,
    "lag_cap": LagCap(age_ms=5000),
    "connect_timeout_s": 5.0,
}
"""Nothing times out by itself on a busy machine; what is about time-outs says so."""


class Job(Protocol):
    """An operation that runs beside the test."""

    def result(self) -> Any:
        """Its value once it is done; raises what it raised, TimeoutError after the deadline."""

    def is_done(self) -> bool:
        """Whether it has ended."""


class Shell:
    """One way of waiting. `raw(lock).method` is what `start` runs beside the test."""

    name = ""

    def connect(self, urls: Sequence[str], **settings: Any) -> Any:
        """A lock over `urls`; PATIENT unless `settings` say otherwise."""
        chosen: dict[str, Any] = PATIENT | settings
        return Redlock.connect(urls, shell=self.name, **chosen)

    def raw(self, lock: Any) -> Any:
        """The lock itself: its methods may have to be awaited."""
        return lock

    def start(self, function: Callable[..., Any], *arguments: Any) -> Job:
        """Run it beside the test."""
        raise NotImplementedError

    def begin(
        self, work: Callable[..., Coroutine[Any, Any, Any]], lock: Any, *arguments: Any
    ) -> Job:
        """Run `work(lock, pause, *arguments)` beside the test: one coroutine for every way of
        waiting."""

        async def pause(seconds: float) -> None:
            self.sleep(seconds)

        return self.start(first_step, work(Blocking(lock), pause, *arguments))

    def cancel(self, job: Any) -> None:
        """End a job as this way of waiting ends one."""
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        """Let everything else go on for a while."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing of it is left."""

    def until(self, reached: Callable[[], Any], what: str, within_s: float = DEADLINE_S) -> None:
        """Let everything go on until `reached()`; fails after `within_s`."""
        deadline = time.monotonic() + within_s
        while not reached():
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
            self.sleep(0.002)

    def won(self, lock: Any, resource: str = "stock", ttl_ms: float = TTL_MS) -> Lease:
        """A lease whose last vote is in."""
        lease: Lease = lock.acquire(resource, ttl_ms)
        self.until(lambda: not lease.tally.undecided, "every vote")
        return lease

    def together(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Many calls at once; their values in order."""
        jobs = [self.start(function, *each) for each in arguments]
        return [job.result() for job in jobs]


class Blocking:
    """A blocking lock as a coroutine sees it: awaited, and done at once."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any) -> Any:
            return getattr(self._lock, name)(*arguments)

        return call


def first_step(coroutine: Any) -> Any:
    """The value of a coroutine that needs no loop, or of what is none."""
    if not hasattr(coroutine, "send"):
        return coroutine
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


class GeventJob:
    """A greenlet."""

    def __init__(self, greenlet: Any) -> None:
        self.greenlet = greenlet

    def result(self) -> Any:
        self.greenlet.join(DEADLINE_S)
        if not self.greenlet.ready():
            raise TimeoutError
        return self.greenlet.get()

    def is_done(self) -> bool:
        return bool(self.greenlet.ready())


class GeventShell(Shell):
    """The hub of the main thread, unpatched."""

    name = "gevent"

    def start(self, function: Callable[..., Any], *arguments: Any) -> GeventJob:
        greenlet = gevent.Greenlet(function, *arguments)
        greenlet.start()
        return GeventJob(greenlet)

    def cancel(self, job: GeventJob) -> None:
        job.greenlet.kill()

    def sleep(self, seconds: float) -> None:
        gevent.sleep(seconds)


class ThreadJob(Future[Any]):
    """A thread."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        super().__init__()
        threading.Thread(target=self._run, args=(function, arguments), daemon=True).start()

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001 - it is the test's
            self.set_exception(error)

    def result(self, timeout: float | None = DEADLINE_S) -> Any:
        return super().result(timeout)

    is_done = Future.done


class ThreadShell(Shell):
    """Plain threads."""

    name = "threads"

    def start(self, function: Callable[..., Any], *arguments: Any) -> ThreadJob:
        return ThreadJob(function, arguments)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Awaited:
    """An `AsyncRedlock` whose methods run the loop until they are done."""

    def __init__(self, raw: AsyncRedlock, run: Callable[[Awaitable[Any]], Any]) -> None:
        self.raw = raw
        self._run = run

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.raw, name)
        if name not in (
            "try_acquire",
            "acquire",
            "try_release",
            "release",
            "try_extend",
            "extend",
            "close",
        ):
            return attribute
        return lambda *arguments: self._run(attribute(*arguments))

    def keep_alive(self, lease: Lease, **options: Any) -> KeepAlive:
        """Within the loop, as its callers are."""

        async def keep() -> KeepAlive:
            return self.raw.keep_alive(lease, **options)

        return self._run(keep())  # type: ignore[no-any-return]

    @contextmanager
    def hold(self, *arguments: Any) -> Iterator[Lease]:
        """`async with`, as `with`."""
        manager = self.raw.hold(*arguments)
        lease = self._run(manager.__aenter__())
        try:
            yield lease
        except BaseException as error:
            if not self._run(manager.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._run(manager.__aexit__(None, None, None))

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


class TaskJob:
    """A task; it goes on while the loop runs."""

    def __init__(self, task: asyncio.Task[Any], run: Callable[[Awaitable[Any]], Any]) -> None:
        self.task = task
        self._run = run

    def result(self) -> Any:
        self._run(asyncio.wait([self.task], timeout=DEADLINE_S))
        if not self.task.done():
            raise TimeoutError
        return self.task.result()

    def is_done(self) -> bool:
        return self.task.done()


class AsyncioShell(Shell):
    """A loop that runs while the test waits for something."""

    name = "asyncio"
    new_loop: Callable[[], asyncio.AbstractEventLoop] = staticmethod(asyncio.new_event_loop)

    def __init__(self) -> None:
        self.loop = self.new_loop()

    def connect(self, urls: Sequence[str], **settings: Any) -> Awaited:
        lock = self.run(AsyncRedlock.connect(urls, **(PATIENT | settings)))
        return Awaited(lock, self.run)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Its value, after the loop has run that long."""

        async def wait() -> Any:
            return await awaitable

        return self.loop.run_until_complete(wait())

    def raw(self, lock: Awaited) -> AsyncRedlock:
        return lock.raw

    def start(self, function: Callable[..., Any], *arguments: Any) -> TaskJob:
        """A task whose first step has been taken, as a thread's or a greenlet's would have."""
        return TaskJob(self.loop.create_task(function(*arguments)), self.run)

    def begin(
        self, work: Callable[..., Coroutine[Any, Any, Any]], lock: Any, *arguments: Any
    ) -> TaskJob:
        return self.start(work, lock.raw, asyncio.sleep, *arguments)

    def cancel(self, job: TaskJob) -> None:
        job.task.cancel()
        self.run(asyncio.wait([job.task]))

    def sleep(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def close(self) -> None:
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()


class UvloopShell(AsyncioShell):
    """The same on uvloop."""

    name = "uvloop"
    new_loop = staticmethod(uvloop.new_event_loop)


SHELLS: tuple[type[Shell], ...] = (GeventShell, AsyncioShell, UvloopShell, ThreadShell)
TASKS: tuple[type[AsyncioShell], ...] = (AsyncioShell, UvloopShell)


def only(*shells: type[Shell]) -> pytest.MarkDecorator:
    """For a claim that concerns some ways of waiting only."""
    return pytest.mark.parametrize(
        "shell", shells, indirect=True, ids=[shell.name for shell in shells]
    )
