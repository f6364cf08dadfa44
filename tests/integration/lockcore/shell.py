"""Ways of waiting behind one face: *a lock on gevent, asyncio, uvloop or threads → the same calls for every claim*.

A claim is written once. `connect` gives a lock whose methods return when the operation is done, whatever runs it;
`start` runs one beside the test; `until` lets the loop go on until something has happened, or fails at its deadline.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import gevent
import pytest
import uvloop

from lockcore import AsyncRedlock, KeepAlive, LagCap, Lease, Redlock

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
        return Redlock.connect(urls, shell=self.name, **(PATIENT | settings))  # type: ignore[arg-type]

    def raw(self, lock: Any) -> Any:
        """The lock itself: its methods may have to be awaited."""
        return lock

    def start(self, function: Callable[..., Any], *arguments: Any) -> Job:
        """Run it beside the test."""
        raise NotImplementedError

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

    def together(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Many calls at once; their values in order."""
        jobs = [self.start(function, *each) for each in arguments]
        return [job.result() for job in jobs]


class GeventJob:
    """A greenlet."""

    def __init__(self, greenlet: Any) -> None:
        self.greenlet = greenlet

    def result(self) -> Any:
        """See Job."""
        self.greenlet.join(DEADLINE_S)
        if not self.greenlet.ready():
            raise TimeoutError
        return self.greenlet.get()

    def is_done(self) -> bool:
        """See Job."""
        return bool(self.greenlet.ready())


class GeventShell(Shell):
    """The hub of the main thread, unpatched."""

    name = "gevent"

    def start(self, function: Callable[..., Any], *arguments: Any) -> GeventJob:
        """See Shell."""
        greenlet = gevent.Greenlet(function, *arguments)
        greenlet.start()
        return GeventJob(greenlet)

    def cancel(self, job: GeventJob) -> None:
        """See Shell."""
        job.greenlet.kill()

    def sleep(self, seconds: float) -> None:
        """See Shell."""
        gevent.sleep(seconds)


class ThreadJob:
    """A thread."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._outcome: list[Any] = []
        self._error: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self._outcome.append(function(*arguments))
        except BaseException as error:  # noqa: BLE001 - it is the test's
            self._error.append(error)

    def result(self) -> Any:
        """See Job."""
        self._thread.join(DEADLINE_S)
        if self._thread.is_alive():
            raise TimeoutError
        for error in self._error:
            raise error
        return self._outcome[0]

    def is_done(self) -> bool:
        """See Job."""
        return not self._thread.is_alive()


class ThreadShell(Shell):
    """Plain threads."""

    name = "threads"

    def start(self, function: Callable[..., Any], *arguments: Any) -> ThreadJob:
        """See Shell."""
        return ThreadJob(function, arguments)

    def sleep(self, seconds: float) -> None:
        """See Shell."""
        time.sleep(seconds)


class Awaited:
    """An `AsyncRedlock` whose methods run the loop until they are done."""

    def __init__(self, raw: AsyncRedlock, run: Callable[[Awaitable[Any]], Any]) -> None:
        self.raw = raw
        self._run = run

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.raw, name)
        if name not in ("try_acquire", "acquire", "try_release", "release", "try_extend", "extend", "close"):
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
        """See Job."""
        self._run(asyncio.wait([self.task], timeout=DEADLINE_S))
        if not self.task.done():
            raise TimeoutError
        return self.task.result()

    def is_done(self) -> bool:
        """See Job."""
        return self.task.done()


class AsyncioShell(Shell):
    """A loop that runs while the test waits for something."""

    name = "asyncio"
    new_loop: Callable[[], asyncio.AbstractEventLoop] = staticmethod(asyncio.new_event_loop)

    def __init__(self) -> None:
        self.loop = self.new_loop()

    def connect(self, urls: Sequence[str], **settings: Any) -> Awaited:
        """See Shell."""
        lock = self.run(AsyncRedlock.connect(urls, **(PATIENT | settings)))
        return Awaited(lock, self.run)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Its value, after the loop has run that long."""

        async def wait() -> Any:
            return await awaitable

        return self.loop.run_until_complete(wait())

    def raw(self, lock: Awaited) -> AsyncRedlock:
        """See Shell."""
        return lock.raw

    def start(self, function: Callable[..., Any], *arguments: Any) -> TaskJob:
        """See Shell: a task whose first step has been taken, as a thread's or a greenlet's would have."""
        return TaskJob(self.loop.create_task(function(*arguments)), self.run)

    def cancel(self, job: TaskJob) -> None:
        """See Shell."""
        job.task.cancel()
        self.run(asyncio.wait([job.task]))

    def sleep(self, seconds: float) -> None:
        """See Shell."""
        self.run(asyncio.sleep(seconds))

    def close(self) -> None:
        """See Shell."""
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
    return pytest.mark.parametrize("shell", shells, indirect=True, ids=[shell.name for shell in shells])
