"""Observers and callbacks that raise, on every way of waiting: nothing of it costs a lease, or
reaches a caller."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
import pytest

from lockcore import Lease, Outcome
from lockcore.engine import observed
from lockcore.engine.observed import Listener
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import TTL_MS, Connect, GeventShell, Shell, only
from tests.lockcore.source import needs_source

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
END_S = 60.0
# before the TTL ends, which would take the keys away, too
SOON_S = 5.0
METHODS = ("observe", "begun", "ended", "released", "extended", "gone")

# Each use of a lock, in a process of its own, because pytest replaces `sys.unraisablehook`.
PROGRAM = """
import asyncio, sys, threading, time
from lockcore import AsyncRedlock, LagCap, Redlock, RetryPolicy

shell, *urls = sys.argv[1:]
PATIENT = dict(
    rejoin="trust-first", instance_timeout_ms=100, lag_cap=LagCap(age_ms=5000),
    connect_timeout_s=5.0, retry=RetryPolicy(retry_unreachable=True),
)
SHORT = ("k", 400, 20_000)
events = []


class Broken:
    def __getattr__(self, name):
        def note(*_):
            if name != "observe":
                events.append(name)
            raise ValueError("a bug of the observer's")
        return note


def on_gone(denied):
    events.append("on_gone")
    raise KeyError("a bug of the holder's")


def judge(kept, outcome):
    deadline = time.monotonic() + 20
    while "gone" not in events and time.monotonic() < deadline:
        yield
    wanted = ["begun", "ended", "extended", "released", "begun", "ended", "on_gone", "gone"]
    assert events == wanted, events
    assert outcome.value == "released" and kept.gone.outcome.value == "gone", (outcome, kept.gone)
    print("ok", flush=True)


def blocking(connect):
    with connect(urls, shell=shell, **PATIENT) as lock:
        lock.observe(Broken())
        lease = lock.extend(lock.acquire("k", 5_000, 20_000))
        outcome = lock.try_release(lease)
        kept = lock.keep_alive(lock.acquire(*SHORT), every_ms=390, extensions=1, on_gone=on_gone)
        kept.extensions = 0
        for _ in judge(kept, outcome):
            time.sleep(0.005)


async def awaiting():
    async with await AsyncRedlock.connect(urls, **PATIENT) as lock:
        lock.observe(Broken())
        lease = await lock.extend(await lock.acquire("k", 5_000, 20_000))
        outcome = await lock.try_release(lease)
        lease = await lock.acquire(*SHORT)
        kept = lock.keep_alive(lease, every_ms=390, extensions=1, on_gone=on_gone)
        kept.extensions = 0
        for _ in judge(kept, outcome):
            await asyncio.sleep(0.005)


if shell == "gevent":
    from gevent import monkey
    monkey.patch_all()
if shell in ("gevent", "threads"):
    blocking(Redlock.connect)
elif shell == "uvloop":
    import uvloop
    uvloop.run(awaiting())
else:
    asyncio.run(awaiting())
"""


def test_with_pythons_own_hook_an_observer_that_always_raises_costs_nothing(
    shell: Shell, instances: Instances
) -> None:
    """Neither does a callback that raises. The holder hears of its end before the observer."""
    command = [sys.executable, "-X", "dev", "-c", PROGRAM, shell.name, *instances.urls]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=END_S, check=False
    )
    assert ended.stdout == "ok\n", ended.stderr
    assert ended.returncode == 0
    assert ended.stderr.count("lockcore: an observer raised an exception; ") == 1, (
        "the first of a process is printed"
    )
    assert "ValueError: a bug of the observer's" in ended.stderr
    assert "lockcore: the function on_gone raised an exception for the lease on 'k'" in ended.stderr
    assert 'KeyError: "a bug of the holder\'s"' in ended.stderr


class Raising:
    """An observer that raises one thing in one method."""

    def __init__(self, method: str, error: BaseException) -> None:
        self._method = method
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., None]:
        def note(*_: object) -> None:
            if name == self._method:
                raise self._error

        return note


def printed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `sys.unraisablehook` is given from now on."""
    texts: list[str] = []
    monkeypatch.setattr(observed, "_dropped", [])
    monkeypatch.setattr("sys.unraisablehook", lambda args: texts.append(args.exc_type.__name__))
    return texts


@pytest.mark.parametrize(
    "error", [ValueError(), asyncio.CancelledError(), GeneratorExit()], ids=repr
)
@pytest.mark.parametrize("method", METHODS)
def test_what_is_no_interrupt_is_dropped_whatever_method_raises_it(
    shell: Shell,
    lock: Any,
    instances: Instances,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    error: BaseException,
) -> None:
    texts = printed(monkeypatch)
    lock.observe(Raising(method, error))
    lease = lock.extend(shell.won(lock))
    lock.release(lease)
    kept = lock.keep_alive(lock.acquire("lost", TTL_MS), every_ms=10)
    instances.drop(b"lost")
    shell.until(lambda: kept.gone is not None, "the loss to be noticed")
    shell.until(lambda: texts, "the exception to be printed")
    assert texts == [type(error).__name__]
    assert lock.try_release(lock.acquire("stock", TTL_MS)) is Outcome.RELEASED


def test_a_hook_that_raises_costs_nobody_a_lease(
    shell: Shell, lock: Any, instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(_: object) -> None:
        raise OSError

    monkeypatch.setattr(observed, "_dropped", [])
    monkeypatch.setattr("sys.unraisablehook", hook)
    lock.observe(Raising("ended", ValueError()))
    lock.release(lock.acquire("stock", TTL_MS))
    assert observed._dropped == ["ValueError"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_that_comes_while_an_observer_runs_reaches_the_caller_and_leaves_no_key(
    shell: Shell, lock: Any, instances: Instances, error: type[BaseException]
) -> None:
    observer = Raising("ended", error("stop"))
    lock.observe(observer)
    with pytest.raises(error, match="stop"):
        lock.acquire("stock", TTL_MS)
    shell.until(lambda: instances.keys == [], "what was granted to be given back", SOON_S)
    observer._method = ""
    assert isinstance(lock.try_acquire("stock", TTL_MS, 5_000), Lease)


@pytest.mark.parametrize("wait_ms", [0, 60_000])
def test_who_is_interrupted_while_an_observer_runs_is_counted_once(
    shell: Shell, connect: Connect, instances: Instances, wait_ms: int
) -> None:
    lock = connect(instances.urls)
    notes = list[str]()

    class Interrupted(Raising):
        def __getattr__(self, name: str) -> Callable[..., None]:
            if name in ("begun", "ended"):
                notes.append(name)
            return super().__getattr__(name)

    lock.observe(Interrupted("ended", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        lock.acquire("stock", TTL_MS, wait_ms)
    assert notes == ["begun", "ended"]


@needs_source
def test_an_observer_that_is_not_guarded_is_noticed(
    shell: Shell, lock: Any, instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Listener, "is_interrupt", lambda *_: True)
    lock.observe(Raising("ended", ValueError()))
    with pytest.raises(ValueError):
        lock.acquire("stock", TTL_MS)


@only(GeventShell)
@pytest.mark.parametrize("method", ["ended", "released", "extended"])
def test_an_observer_that_waits_keeps_nobody_else_out(shell: Shell, lock: Any, method: str) -> None:
    class Slow:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: gevent.sleep(0.02) if name == method else None

    lock.observe(Slow())

    def use(name: str) -> str:
        for _ in range(3):
            lock.release(lock.extend(lock.acquire(name, TTL_MS)))
        return "done"

    jobs = [shell.start(use, f"r{number}") for number in range(4)]
    assert [job.result() for job in jobs] == ["done"] * 4


@only(GeventShell)
def test_a_greenlet_that_is_killed_while_its_observer_waits_leaves_no_key(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    waits: list[bool] = []

    class Slow:
        def __getattr__(self, name: str) -> Callable[..., None]:
            def note(*_: object) -> None:
                if name == "ended":
                    waits.append(True)
                    gevent.sleep(60)

            return note

    lock.observe(Slow())
    job = shell.start(lock.acquire, "stock", TTL_MS)
    shell.until(lambda: waits, "the observer to be told")
    shell.cancel(job)
    shell.until(lambda: instances.keys == [], "what was granted to be given back", SOON_S)


@pytest.mark.parametrize("error", [SystemExit(), ValueError()], ids=repr)
def test_an_observer_given_at_connect_ends_no_thread_of_ours(
    shell: Shell,
    connect: Connect,
    instances: Instances,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    """It hears of attempts where votes are counted: for threads in the I/O thread."""
    if shell.name != "threads" and not isinstance(error, Exception):
        # there it is an interrupt
        return
    texts = printed(monkeypatch)
    lock = connect(instances.urls, observer=Raising("observe", error))
    for _ in range(3):
        lock.release(shell.won(lock))
    shell.until(lambda: texts, "the exception to be printed")
    assert texts == [type(error).__name__]
    with suppress(AttributeError):
        assert lock._driver._thread.is_alive()
