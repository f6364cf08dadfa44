"""What every driver counts: each acquire whatever came of it, releases that released, waits beyond
the end."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from bench.experiments.judge.clients.lock import Lock, at_once
from lockcore import Outcome
from tests.contest.clients.loops import (
    Calls,
    ClientLoad,
    DriverAnswer,
    LoadOrder,
    call,
    run_blocking,
)


def order(seconds: float = 0.05, *, callers: int = 1) -> LoadOrder:
    return LoadOrder(
        "x",
        [],
        pids=[],
        seconds=seconds,
        warmup_s=0.0,
        callers=callers,
        own=True,
        ttl_ms=1,
        wait_ms=1,
    )


class OverError(BaseException):
    """Ends a caller in the middle of its cycle, wherever the clock stands."""


def scripted(*steps: object, release_answer: object = None) -> Lock:
    """A lock whose acquire gives or raises one step after the other, and whose release says or
    raises `release_answer`."""
    held = iter((*steps, OverError()))

    def acquire(_resource: str, _ttl_ms: int, _wait_ms: int) -> object:
        if isinstance(step := next(held), BaseException):
            raise step
        return step

    def release(_held: object) -> object:
        if isinstance(release_answer, Exception):
            raise release_answer
        return release_answer

    return Lock(
        acquire,
        release,
        released=None if isinstance(release_answer, Exception) else Outcome.RELEASED,
    )


def called(lock: Lock) -> DriverAnswer:
    load = ClientLoad(order(60))
    with pytest.raises(OverError):
        at_once(call(lock, load, 0, time.sleep, waits=False))
    return load.answer()


def called_async(lock: Lock) -> DriverAnswer:
    async def acquire(*request: Any) -> object:
        return lock.acquire(*request)

    async def release(held: object) -> object:
        return lock.release(held)

    async def run() -> None:
        await call(
            lock._replace(acquire=acquire, release=release), load, 0, asyncio.sleep, waits=True
        )

    load = ClientLoad(order(60))
    with pytest.raises(OverError):
        asyncio.run(run())
    return load.answer()


@pytest.mark.parametrize("calls", [called, called_async])
def test_every_acquire_counts_whatever_came_of_it(calls: Callable[[Lock], DriverAnswer]) -> None:
    """The last one, which does not return, never was granted either."""
    answer = calls(
        scripted(None, "held", OSError(), None, "held", "held", release_answer=Outcome.RELEASED)
    )
    assert (answer.failed, answer.gave_up, answer.errors) == (4, 2, {"OSError": 1})
    assert (sum(answer.acquires.values()), answer.cycles, answer.all_cycles) == (3, 3, 3)
    assert list(answer.leases_by_caller) == [3]


@pytest.mark.parametrize("calls", [called, called_async])
@pytest.mark.parametrize("release_answer", [Outcome.GONE, Outcome.UNREACHABLE, OSError()])
def test_a_release_that_did_not_release_is_an_error_and_no_cycle(
    calls: Callable[[Lock], DriverAnswer], release_answer: object
) -> None:
    answer = calls(scripted("held", "held", release_answer=release_answer))
    assert (answer.cycles, answer.all_cycles, answer.failed, sum(answer.acquires.values())) == (
        0,
        0,
        1,
        2,
    )
    assert answer.errors == {
        "OSError" if isinstance(release_answer, OSError) else "NotReleasedError": 2
    }


def test_a_load_ends_with_its_time() -> None:
    answer = run_blocking(
        lambda _order: Lock(lambda *_: "held", lambda _held: None),
        order(callers=2),
        greenlets=False,
    )
    assert answer.seconds == pytest.approx(0.05)
    assert answer.cycles <= answer.all_cycles <= answer.cycles + 2


def test_who_waited_beyond_the_end_counts_in_the_latencies_but_not_in_the_cycles() -> None:
    load = ClientLoad(order(1.0))
    calls = load.calls[0]
    calls.first_s = load.begin_s + 0.5
    calls.granted.append(load.begin_s + 3.0)
    calls.ended.append(load.begin_s + 4.0)
    # one that has not returned
    load.calls.append(Calls(first_s=load.begin_s + 0.5))
    answer = load.answer()
    assert (answer.cycles, answer.all_cycles, sum(answer.acquires.values()), answer.failed) == (
        0,
        1,
        1,
        1,
    )
