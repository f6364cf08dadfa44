"""Defines a common interface for the locks of all libraries.

This module imports only the standard library, because it runs in the environment of each audited
library.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

KEY_PREFIX = "lockbench:"
# A lockcore lock whose waiters receive release messages has a name with this suffix.
PUSH = ", push"
Result = TypeVar("Result")


@dataclass(frozen=True)
class ClientOrder:
    """The order that a driver reads first. The driver then connects the lock called `name` to the
    servers `urls`. If `merge` is true, lockcore merges its releases. If the lock has readers and a
    writer, `side` is "read" or "write".
    """

    name: str
    urls: Sequence[str]
    merge: bool = False
    side: str = ""


def never() -> bool:
    """Return False."""
    return False


class Lock(NamedTuple):
    """The calls of a library's lock. Each call may be a coroutine function.

    `acquire(resource, ttl_ms, wait_ms)` uses the library's own retries. If `acquire` succeeds, it
    returns a handle, which is an argument of the other calls. If the library did not get the lock,
    `acquire` returns an object of the class `refused`. A successful release returns the value
    `released`.

    Only an audit uses the following calls. A call is None if the library does not offer this call.
    If the extension fails, `extend(held, ttl_ms)` raises an error or returns a false value.
    `is_held(held)` asks the library whether the caller still holds the lock, and returns the
    answer. `valid_ms(held)` returns the validity that the library stated at the grant.
    `hold(resource, ttl_ms, wait_ms)` returns the library's context manager. `answers()` returns
    True if the acquire of a user's lock has already returned a value at a grant, such as True or a
    token.
    """

    acquire: Callable[[str, int, int], object]
    release: Callable[[Any], object]
    refused: type = type(None)
    released: object = None
    extend: Callable[[Any, int], object] | None = None
    is_held: Callable[[Any], object] | None = None
    valid_ms: Callable[[Any], float] | None = None
    hold: Callable[[str, int, int], object] | None = None
    answers: Callable[[], bool] = never


# A function that connects the lock of an order. The function may be a coroutine function.
Connect = Callable[[ClientOrder], Lock | Coroutine[object, None, Lock]]


async def value(result: Awaitable[Result] | Result) -> Result:
    """Return the result of a library's call. If the result is awaitable, await it first."""
    if inspect.isawaitable(result):
        done: Result = await result
        return done
    return result


def then(result: object, make: Callable[[object], object]) -> object:
    """Return `make(result)`. If `result` must be awaited, return a coroutine that does the same."""
    if not inspect.isawaitable(result):
        return make(result)

    async def awaited() -> object:
        return make(await result)

    return awaited()


def at_once(work: Coroutine[object, None, Result]) -> Result:
    """Run a coroutine without an event loop, and return its result. The coroutine must never wait
    for anything."""
    try:
        work.send(None)
    except StopIteration as stop:
        done: Result = stop.value
        return done
    raise AssertionError("a library without coroutines awaited something")
