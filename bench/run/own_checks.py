"""A lock of the user's own, before and beside its load: *a callable → can it be driven, does it own
what it releases?*

- What cannot be driven (a text, a coroutine, an asynchronous lock, a semaphore) is refused with one
  sentence before any load. A semaphore is known by its callers: two or more get in at once, and one
  more does not.
- Owner check. No lock waits for a TTL here, because the servers are ours: one caller holds the
  lock, all keys are removed, a caller of another process gets it, then the first one releases late.
  If a third caller gets in now, the release removed a stranger's lock. An exception of a late
  release is right: the lease is gone.
- What the third caller finds counts only if the release changed a key that the second caller's lock
  had made. Those keys are made persistent, so that nothing but a release removes them.
"""

import inspect
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Literal

import redis

from bench.errors import InconclusiveError, UsageError
from bench.run.own_lock import OwnLoad, OwnLock, commands_between
from bench.run.own_process import Link, answer, forked
from bench.topology.probe import info_snapshot
from bench.topology.target import client_of, parse_targets

# how long a caller may take to enter and leave a lock that nobody wants
ALONE_S = 15.0
# how long one more caller of a semaphore may take
ANOTHER_S = 0.2
MOST_PERMITS = 32
# how often a caller tries to enter a lock that raises
ATTEMPTS = 3
# how long a caller may take to leave when nothing depends on it
LEAVE_S = 1.0
# how long a caller may take to get a lock whose keys are gone
SECOND_S = 5.0
# how long after a release its effects are looked for: some release in the background
LATE_S = 0.1
WANTED = "lock_benchmark takes a callable from a name to a context manager (with lock(name): …)"
# A key is named by its server and its name. It has a value, and it expires or does not.
Keys = dict[tuple[int, str], tuple[bytes | None, bool]]


# -- what can be driven ----------------------------------------------------------------------------


def require_drivable(lock: object) -> None:
    """Raise UsageError with one sentence unless `lock` makes context managers that threads can
    enter.

    It is called once, with a name that nothing else uses; nothing is entered.
    """
    kind = type(lock).__name__
    if hasattr(lock, "__enter__") and not isinstance(lock, type):
        raise UsageError(
            f"{WANTED}, and one lock was given (a {kind}); write lambda name: … and make "
            "it of that name"
        )
    if not callable(lock):
        raise UsageError(
            f"{WANTED}, and a {kind} was given; write lambda name: your_client.lock(name)"
        )
    # This sees through functools.partial, too.
    if _is_asynchronous(lock) or _is_asynchronous(getattr(lock, "__call__", None)):  # noqa: B004
        raise UsageError(
            _asynchronous(f"{getattr(lock, '__name__', kind)} is a coroutine function")
        )
    try:
        manager = lock("lockbench:own:look")
    except Exception:  # noqa: BLE001
        # a lock that raises is a figure of the load, with its first exception
        return
    _require_manager(manager)


def _is_asynchronous(one: object) -> bool:
    return inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)


def _require_manager(manager: object) -> None:
    kind = type(manager)
    if inspect.isawaitable(manager) or inspect.isasyncgen(manager):
        close = getattr(manager, "close", None)
        if close is not None:
            # else Python warns that nobody awaited it
            close()
        raise UsageError(_asynchronous(f"it returned a {kind.__name__}"))
    if not hasattr(kind, "__enter__") and hasattr(kind, "__aenter__"):
        raise UsageError(_asynchronous(f"{kind.__name__} has __aenter__ and no __enter__"))
    if _is_asynchronous(getattr(kind, "__enter__", None)) or _is_asynchronous(
        getattr(kind, "__exit__", None)
    ):
        raise UsageError(
            _asynchronous(f"__enter__ or __exit__ of {kind.__name__} is a coroutine function")
        )
    if not (hasattr(kind, "__enter__") and hasattr(kind, "__exit__")):
        raise UsageError(
            f"{WANTED}, and it returned a {kind.__name__}, which has no __enter__ and __exit__; "
            "write a function that acquires, yields and releases, under @contextlib.contextmanager"
        )


def _asynchronous(what: str) -> str:
    return (
        f"an asynchronous lock cannot be driven, because the callers are threads: {what}; "
        "give the synchronous lock of the same library"
    )


# -- alone, and a few at once ----------------------------------------------------------------------


class CheckCaller:
    """A thread that enters a lock, stays until it is told, and leaves.

    `error`: what the lock raised.
    """

    def __init__(self, lock: OwnLock, name: str) -> None:
        self._lock = lock
        self._name = name
        self._stays = threading.Event()
        self._answers = SimpleQueue[bool]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.is_inside = False
        self.error: BaseException | None = None

    def enter(self, patience_s: float) -> bool:
        """Whether it is inside after so long."""
        self._thread.start()
        with suppress(Empty):
            self.is_inside = self._answers.get(timeout=patience_s)
        return self.is_inside

    def leave(self, patience_s: float) -> bool:
        """Let it leave, also when it gets in later; whether it has."""
        self._stays.set()
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    @property
    def why(self) -> str:
        """Why it is not inside."""
        error = self.error
        return "did not get in" if error is None else f"raised {type(error).__name__}: {error}"

    def _run(self) -> None:
        try:
            with self._lock(self._name):
                self._answers.put(True)
                self._stays.wait()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is kept
            self.error = error
            self._answers.put(False)


def lone_commands(lock: OwnLock, urls: Sequence[str]) -> list[int]:
    """How many commands with a key a lease takes of each server when nobody else wants it; empty
    when the lock raises. Raises InconclusiveError when a lone caller does not get it."""
    fewest: list[int] = []
    # the first one may load a script
    for _ in range(3):
        before = info_snapshot(urls)
        caller = CheckCaller(lock, "lockbench:own:alone")
        entered = caller.enter(ALONE_S)
        if not caller.leave(ALONE_S):
            doing = "release" if entered else "get"
            raise InconclusiveError(
                f"a lone caller did not {doing} the lock within {ALONE_S:g} s, and nobody wanted it"
            )
        if caller.error is not None:
            return []
        commands = commands_between(before, info_snapshot(urls))
        fewest = [*map(min, fewest, commands)] if fewest else commands
    return fewest


def require_mutex(lock: OwnLock, load: OwnLoad, urls: Sequence[str]) -> None:
    """Raise UsageError for a semaphore. A lock that lets everybody in is none: the load shows it.

    Callers that get in after the TTL of the first one show nothing, because its lease may have
    ended: two callers that follow each other are no semaphore.
    """
    callers = [CheckCaller(lock, "lockbench:own:permits") for _ in range(MOST_PERMITS + 1)]
    permits = 0
    began_s = time.monotonic()
    # how long it took until the last caller was in
    took_s = 0.0
    started = []
    for caller in callers:
        started.append(caller)
        if not caller.enter(ANOTHER_S if permits else ALONE_S):
            break
        permits += 1
        keep(urls)
        took_s = time.monotonic() - began_s
    until_s = time.monotonic() + load.ttl_s + ALONE_S
    stuck = sum(not caller.leave(max(until_s - time.monotonic(), 0)) for caller in started)
    if 1 < permits <= MOST_PERMITS and took_s < load.ttl_s:
        raise UsageError(
            "lock_benchmark judges a mutex, which lets one caller in, and this one let "
            f"{permits} in at once and no "
            f"more: it is a semaphore, or its leases end before ttl_s ({load.ttl_s:g} "
            "s). Give ttl_s the TTL of the "
            "lock; allow_violations=True measures a semaphore without a verdict"
        )
    if stuck:
        raise InconclusiveError(
            f"{stuck} of {len(started)} callers did not come through the lock after all "
            "others had left it: "
            "does its release remove the key?"
        )


# -- the owner check -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnerCheck:
    """Whether a late release leaves a stranger's lock alone.

    `reason`: what happened, "" when it was held.
    """

    word: Literal["held", "deleted a stranger's lock", "not tested"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word} because {self.reason}" if self.word == "not tested" else self.word


DELETED = (
    "one caller held it and all keys were removed, as by an expiry, an eviction or a "
    "crash; a second caller got it; "
    "then the late release of the first one let a third caller in beside the second: a "
    "release must compare the "
    "owner's token and delete in one step"
)


def owner_check(lock: OwnLock, load: OwnLoad, urls: Sequence[str]) -> OwnerCheck:
    """Play a lease that ends while it is held."""
    name = "lockbench:own:late"
    without_keys(urls)
    with ExitStack() as ends:
        several = load.processes > 1
        link = ends.enter_context(forked(partial(_second, lock, name), urls)) if several else None
        first = _entered(lock, name, ALONE_S, ends)
        if not first.is_inside:
            return OwnerCheck("not tested", f"a lone caller {first.why}")
        without_keys(urls)
        if link is None:
            second = _entered(lock, name, SECOND_S, ends)
            why = "" if second.is_inside else second.why
        else:
            link.send("enter")
            why = answer(link, ATTEMPTS * SECOND_S + ALONE_S, "enter the lock")
        if why:
            how = "when all keys were gone and the first one still held it"
            return OwnerCheck("not tested", f"a second caller {why}, {how}")
        keep(urls)
        before = keys_of(urls)
        if not before:
            return OwnerCheck("not tested", "the second caller got it without a key on any server")
        if not first.leave(SECOND_S):
            return OwnerCheck(
                "not tested", f"the late release did not return within {SECOND_S:g} s"
            )
        if not _changed(before, urls):
            return OwnerCheck("held")
        third = _entered(lock, name, SECOND_S, ends)
        if third.is_inside:
            return OwnerCheck("deleted a stranger's lock", DELETED)
        if third.error is None or isinstance(third.error, load.refused):
            return OwnerCheck("held")
        return OwnerCheck(
            "not tested", f"the late release changed a key, and a third caller {third.why}"
        )


def _second(lock: OwnLock, name: str, link: Link) -> None:
    """The caller of another process: enters when told, and stays until it is ended."""
    link.recv()
    caller = _entered(lock, name, SECOND_S, ExitStack())
    link.send("" if caller.is_inside else caller.why)
    link.recv()


def _entered(lock: OwnLock, name: str, patience_s: float, ends: ExitStack) -> CheckCaller:
    """A caller that has tried to enter, several times while the lock raises: some locks raise now
    and then, and the first attempt of a fork may only find that its connection has ended."""
    for _ in range(ATTEMPTS):
        caller = CheckCaller(lock, name)
        ends.callback(caller.leave, LEAVE_S)
        if caller.enter(patience_s) or caller.error is None:
            break
    return caller


def _changed(before: Keys, urls: Sequence[str]) -> bool:
    """Whether one of these keys is another or gone, now or soon."""
    until_s = time.monotonic() + LATE_S
    while True:
        after = keys_of(urls)
        if any(after.get(key) != value for key, value in before.items()):
            return True
        if time.monotonic() > until_s:
            return False


def keys_of(urls: Sequence[str]) -> Keys:
    """Every key of our own servers."""
    keys: Keys = {}
    for index, client in _each(urls):
        for name in client.keys("*"):
            keys[index, str(name)] = client.dump(name), client.pttl(name) >= 0
    return keys


def keep(urls: Sequence[str]) -> None:
    """Let no key of our own servers expire by itself."""
    for _, client in _each(urls):
        for name in client.keys("*"):
            client.persist(name)


def without_keys(urls: Sequence[str]) -> None:
    """Remove every key of our own servers, one by one: clients may see a FLUSHALL, and trust no
    server after it."""
    for _, client in _each(urls):
        if names := client.keys("*"):
            client.unlink(*names)


def _each(urls: Sequence[str]) -> Iterator[tuple[int, redis.Redis]]:
    for index, target in enumerate(parse_targets(urls)):
        with client_of(target, 5.0) as client:
            yield index, client
