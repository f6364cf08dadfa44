"""A driver told step by step, for `lockbench audit`: *a JSON step per line → a JSON answer per line*.

    acquire   ok: granted; valid_ms: how long the library says it is ours
    release   ok: the library reports nothing wrong
    extend    ok: the library says it is ours for longer
    held      ok: the library says it is still ours
    hold      ok: the body ran; raises: it is to end by an exception
    fork      ok: a forked child was granted the same resource through the parent's objects

Rules: one client, one resource at a time. `absent`: the library has no such thing. SIGINT interrupts the step under
way: KeyboardInterrupt in a thread, the task's cancellation in asyncio. Whatever a library raises is an answer.
"""

import asyncio
import contextvars
import json
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from bench.experiments.contest.clients.loops import Lock, at_once, value

Answer = dict[str, Any]
ABSENT: Answer = {"ok": False, "absent": True}


class _BodyError(Exception):
    """What the body raises when it is told to."""


class Steps:
    """One client of a library: what it holds, and what is asked of it."""

    def __init__(self, lock: Lock, *, forks: bool = False) -> None:
        self._lock, self._forks, self._held = lock, forks, None

    async def answer(self, step: Answer) -> Answer:
        """Do one step; what the library raised is said."""
        try:
            done: Answer = await getattr(self, step.pop("do"))(**step)
        except (KeyboardInterrupt, asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - whatever it raises
            return _raised(error, ok=False)
        return done

    async def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> Answer:
        """Lock it."""
        held = await value(self._lock.acquire(resource, ttl_ms, wait_ms))
        if held.__class__ is self._lock.refused:
            return {"ok": False}
        self._held = held
        told = self._lock.valid_ms
        return {"ok": True} | ({"valid_ms": float(told(held))} if told else {})

    async def release(self) -> Answer:
        """Give back what was locked last."""
        return {"ok": await value(self._lock.release(self._held)) is self._lock.released}

    async def extend(self, ttl_ms: int) -> Answer:
        """Have it for longer; a library that says nothing has."""
        extend = self._lock.extend
        return {"ok": (await value(extend(self._held, ttl_ms))) is not False} if extend else ABSENT

    async def held(self) -> Answer:
        """Ask the library whether it is still ours."""
        return {"ok": bool(await value(self._lock.is_held(self._held)))} if self._lock.is_held else ABSENT

    async def hold(self, resource: str, ttl_ms: int, wait_ms: int, *, raises: bool = False) -> Answer:
        """Run a body under the lock."""
        if self._lock.hold is None:
            return ABSENT
        ran = False
        try:
            manager = await value(self._lock.hold(resource, ttl_ms, wait_ms))
            async with AsyncExitStack() as stack:
                if hasattr(manager, "__aenter__"):
                    await stack.enter_async_context(manager)
                else:
                    stack.enter_context(manager)
                ran = True
                if raises:
                    raise _BodyError
        except _BodyError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it raises is an answer
            return _raised(error, ok=ran)
        return {"ok": ran}

    async def fork(self, resource: str, ttl_ms: int, wait_ms: int) -> Answer:
        """Ask for what the parent holds, in a forked child, and end it as multiprocessing does."""
        if not self._forks:
            return ABSENT  # an event loop does not survive one
        from multiprocessing import get_context

        words = (self._lock.acquire, self._lock.refused, resource, ttl_ms, wait_ms)
        child = get_context("fork").Process(target=_ask, args=words)
        child.start()
        child.join(5.0)
        if child.exitcode is None:
            child.kill()
        return {"ok": child.exitcode == 0}


def _ask(acquire: Callable[[str, int, int], Any], refused: type, *words: Any) -> None:
    if acquire(*words).__class__ is refused:
        raise SystemExit(1)


def _raised(error: BaseException, *, ok: bool) -> Answer:
    return {"ok": ok, "error": f"{type(error).__name__}: {error}"[:200]}


def step_threads(lock: Lock, say: Callable[[Answer], None], read: Callable[[], str]) -> None:
    """Do the steps of a library that blocks."""
    steps = Steps(lock, forks=True)
    say({"ok": True})
    while line := read():
        say(at_once(steps.answer(json.loads(line))))


async def step_tasks(lock: Lock, say: Callable[[Answer], None]) -> None:
    """Do the steps of a library of coroutines, each in a task of its own."""
    loop, steps, context = asyncio.get_running_loop(), Steps(lock), contextvars.copy_context()
    say({"ok": True})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(steps.answer(json.loads(line)), context=context)  # where coredis keeps its token
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        say(await task)
