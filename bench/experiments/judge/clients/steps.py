"""Drives a lock in a process of its own. The process reads one order and then steps, each on a line
of stdin. It answers each line with a line on stdout.

    order     lacks: the steps among hold and fork that the lock does not have
    acquire   ok: the lock was granted. valid_ms: the validity that the library states. answers:
              the user's acquire has returned a grant, such as True or a token
    release   ok: the library reports no fault
    extend    ok: the library says that the lease is longer now
    held      ok: the library says that it still holds the lock
    hold      ok: the body ran. raises: the body must end by an exception
    fork      ok: a forked child was granted the same resource through the parent's objects

This module imports only the standard library, because it runs in the environment of each audited
library. The process is one client. An answer with `absent` means that the lock does not offer this
step. SIGINT interrupts the current step. In a thread, the step gets KeyboardInterrupt. In asyncio,
the task of the step is cancelled. If the lock raises an exception, the exception becomes the
answer. Text that the lock writes to stdout is redirected to stderr.
"""

import asyncio
import contextvars
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from functools import partial
from importlib import import_module
from typing import TypedDict

from bench.experiments.judge.clients.lock import ClientOrder, Connect, Lock, at_once, value


class StepAnswer(TypedDict, total=False):
    """The answer to an order or to a step."""

    ok: bool
    absent: bool
    valid_ms: float
    answers: bool
    error: str
    lacks: list[str]


ABSENT: StepAnswer = {"ok": False, "absent": True}
BLOCKING = ("threads", "gevent")


class _BodyError(Exception):
    """Raised inside the library's context manager if the step requests an exception."""


class _Steps:
    """A client of a library. The client stores the locks that it holds, and executes steps."""

    def __init__(self, lock: Lock, *, forks: bool = False) -> None:
        self._lock = lock
        self._forks = forks
        # The handles of granted locks that the client has not released, the newest at the end. The
        # list keeps a reference to each context manager. Without a reference, a context manager
        # would release its lock.
        self._held: list[object] = []
        self.lacks: list[str] = []
        if lock.hold is None:
            self.lacks.append("hold")
        if not forks:
            self.lacks.append("fork")

    async def answer(self, step: dict[str, object]) -> StepAnswer:
        """Execute one step. If the library raises an exception, the answer describes the
        exception.
        """
        try:
            done: StepAnswer = await getattr(self, str(step.pop("do")))(**step)
        except (KeyboardInterrupt, asyncio.CancelledError, Exception) as error:  # noqa: BLE001
            # Every exception of a library is an answer.
            return _raised(error, ok=False)
        return done

    async def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> StepAnswer:
        held = await value(self._lock.acquire(resource, ttl_ms, wait_ms))
        if held.__class__ is self._lock.refused:
            return {"ok": False, "answers": self._lock.answers()}
        self._held.append(held)
        validity_ms = self._lock.valid_ms
        if validity_ms is None:
            return {"ok": True, "answers": self._lock.answers()}
        return {"ok": True, "valid_ms": float(validity_ms(held))}

    async def release(self) -> StepAnswer:
        return {"ok": await value(self._lock.release(self._held.pop())) is self._lock.released}

    async def extend(self, ttl_ms: int) -> StepAnswer:
        """Extend the newest lock. The extension also counts as successful if the library returns
        None.
        """
        if self._lock.extend is None:
            return ABSENT
        outcome = await value(self._lock.extend(self._held[-1], ttl_ms))
        return {"ok": outcome is None or bool(outcome)}

    async def held(self) -> StepAnswer:
        return (
            {"ok": bool(await value(self._lock.is_held(self._held[-1])))}
            if self._lock.is_held
            else ABSENT
        )

    async def hold(
        self, resource: str, ttl_ms: int, wait_ms: int, *, raises: bool = False
    ) -> StepAnswer:
        if self._lock.hold is None:
            return ABSENT
        ran = False
        try:
            manager = await value(self._lock.hold(resource, ttl_ms, wait_ms))
            async with AsyncExitStack() as stack:
                if isinstance(manager, AbstractAsyncContextManager):
                    await stack.enter_async_context(manager)
                else:
                    assert isinstance(manager, AbstractContextManager)
                    stack.enter_context(manager)
                ran = True
                if raises:
                    raise _BodyError
        except _BodyError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it raises is an answer
            return _raised(error, ok=ran)
        return {"ok": ran}

    async def fork(self, resource: str, ttl_ms: int, wait_ms: int) -> StepAnswer:
        """Try to acquire the lock in a forked child with the parent's objects. The child ends in
        the same way as a child process of multiprocessing.
        """
        if not self._forks:
            # An event loop does not survive a fork.
            return ABSENT
        from multiprocessing import get_context

        def ask() -> None:
            if self._lock.acquire(resource, ttl_ms, wait_ms).__class__ is self._lock.refused:
                raise SystemExit(1)

        child = get_context("fork").Process(target=ask)
        child.start()
        child.join(5.0)
        if child.exitcode is None:
            child.kill()
        return {"ok": child.exitcode == 0}


def _raised(error: BaseException, *, ok: bool) -> StepAnswer:
    return {"ok": ok, "error": f"{type(error).__name__}: {error}"[:200]}


def step(
    how: str,
    connect: Connect,
    order: ClientOrder,
    say: Callable[[StepAnswer], None],
) -> None:
    """Execute the steps that arrive on stdin. `how` is the way in which the lock waits, such as
    threads, gevent or asyncio.
    """
    read: Callable[[], str] = sys.stdin.readline
    # A thread reads stdin, so that the greenlets can continue.
    if how == "gevent":
        read = partial(import_module("gevent").get_hub().threadpool.apply, sys.stdin.readline)
    if how not in BLOCKING:
        import_module(how).run(_step_tasks(connect, order, say))
        return
    lock = connect(order)
    assert isinstance(lock, Lock)
    steps = _Steps(lock, forks=True)
    say({"ok": True, "lacks": steps.lacks})
    while line := read():
        say(at_once(steps.answer(json.loads(line))))


async def _step_tasks(
    connect: Connect, order: ClientOrder, say: Callable[[StepAnswer], None]
) -> None:
    """Execute the steps for a library with coroutines. Each step runs in its own task."""
    loop = asyncio.get_running_loop()
    steps = _Steps(await value(connect(order)))
    context = contextvars.copy_context()
    say({"ok": True, "lacks": steps.lacks})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        # All steps share one context, because coredis keeps its token in the context.
        task = asyncio.create_task(steps.answer(json.loads(line)), context=context)
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        say(await task)


def serve(
    find: Callable[[ClientOrder], tuple[str, Connect]],
    refusal: Callable[[BaseException], str] | None = None,
) -> None:
    """Read an order on stdin, and connect the lock that `find` returns for this order. Then execute
    the steps that arrive on stdin. If this work raises an exception, `refusal` makes an answer from
    the exception, and the process ends with exit code 2. The function raises a KeyboardInterrupt
    again. If `refusal` is None, the function raises every exception again.
    """
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)

    def say(message: object) -> None:
        answer.write(json.dumps(message) + "\n")
        answer.flush()

    order = ClientOrder(**json.loads(sys.stdin.readline()))
    try:
        step(*find(order), order, say)
    except BaseException as error:
        # An interruption between two steps is no answer to a step.
        if refusal is None or isinstance(error, KeyboardInterrupt):
            raise
        say({"ok": False, "error": refusal(error)})
        os._exit(2)
    # Threads of a library may still wait for a stopped server. Their answers do not matter any
    # more, so the process does not wait for the threads.
    os._exit(0)
