"""A library's lock behind the same calls: *an order → a lock*.

Rules: the standard library only, because this runs in every library's own environment.
"""

import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

KEY_PREFIX = "lockbench:"
# The name of a lockcore whose waiters hear of a release ends so.
PUSH = ", push"
Result = TypeVar("Result")


@dataclass(frozen=True)
class ClientOrder:
    """What a driver connects: the lock called `name`, to the servers `urls`. `merge`: lockcore
    merges its releases. `side`: the side of a lock for readers and a writer, "read" or "write"."""

    name: str
    urls: Sequence[str]
    merge: bool = False
    side: str = ""


class Lock(NamedTuple):
    """A library's lock. `acquire(resource, ttl_ms, wait_ms)`, with the library's own retries,
    returns what the others take, or a `refused` when it gave up; a release that did what it should
    returns `released`. All may be coroutines. What only an audit asks for, None where the library
    has no such thing: `extend(held, ttl_ms)` raises or returns something false when it did not;
    `is_held(held)`: does the library say that it still is? `valid_ms(held)`: for how long, as the
    library told at the grant; `hold(resource, ttl_ms, wait_ms)`: its context manager."""

    acquire: Callable[[str, int, int], Any]
    release: Callable[[Any], Any]
    refused: type = type(None)
    released: object = None
    extend: Callable[[Any, int], Any] | None = None
    is_held: Callable[[Any], Any] | None = None
    valid_ms: Callable[[Any], float] | None = None
    hold: Callable[[str, int, int], object] | None = None


async def value(result: Any) -> Any:
    """What a library gave, awaited if it must be."""
    return await result if inspect.isawaitable(result) else result


def then(result: Any, make: Callable[[Any], Any]) -> Any:
    """`make(result)`; a coroutine that returns that, if `result` must be awaited."""
    if not inspect.isawaitable(result):
        return make(result)

    async def awaited() -> Any:
        return make(await result)

    return awaited()


def at_once(work: Coroutine[Any, Any, Result]) -> Result:
    """What comes of a coroutine that awaits nothing."""
    try:
        work.send(None)
    except StopIteration as stop:
        done: Result = stop.value
        return done
    raise AssertionError("a library without coroutines awaited something")
