"""The public lock classes.

Input: a resource and a TTL. Output: a lease, or an exception for each other outcome.

Rules: this layer is thin. `Redlock` (gevent or threads) and `AsyncRedlock` (asyncio) have equal
methods. attempt.py and engine.py decide what the methods do, and shells/ decides how callers wait.
`connect` imports only the shell that it uses, and the library that this shell needs.
"""

from __future__ import annotations

import inspect
import sys
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar

from lockcore.clock import monotonic_ns
from lockcore.engine.attempt import Steps, extend_steps, release_steps
from lockcore.engine.turns import Request
from lockcore.errors import error_of
from lockcore.facts.arguments import A_DAY_MS, check_lease, check_number, check_whole
from lockcore.facts.membership import Rejoin
from lockcore.facts.model import (
    Denied,
    InstanceStatus,
    Lease,
    Outcome,
)
from lockcore.observer import Observer
from lockcore.settings import (
    DEFAULT_LAG_CAP,
    DEFAULT_RETRY,
    MOST_UNOBSERVED,
    LagCap,
    RetryPolicy,
    Settings,
)
from lockcore.shells.common.keeper import KeepAlive

if TYPE_CHECKING:
    from lockcore.shells.common.target import InstanceTarget
    from lockcore.shells.greenlets.driver import GreenletDriver
    from lockcore.shells.tasks.driver import AsyncDriver
    from lockcore.shells.threads.driver import ThreadDriver

D = TypeVar("D", bound="GreenletDriver | ThreadDriver | AsyncDriver")
F = TypeVar("F")
Shell = Literal["auto", "gevent", "threads"]


def _targets_of(urls: Sequence[str], settings: Settings) -> list[InstanceTarget]:
    # The import is late, because redis-py imports asyncio.
    from lockcore.shells.common.target import target_of

    if isinstance(urls, str):
        raise TypeError("urls must be a list of instance URLs, not one string")
    if not isinstance(urls, Sequence):
        raise TypeError(f"urls must be a list of instance URLs, not {urls!r}")
    for url in urls:
        if not isinstance(url, str):
            raise TypeError(f"an instance URL must be text, not {url!r}")
    if not urls:
        raise ValueError("a lock needs at least one instance URL")
    targets = [target_of(url, settings.connect_timeout_s, settings.key_prefix) for url in urls]
    for target in targets:
        for sentence in target.ignored:
            warnings.warn(f"{target.address}: {sentence}", RuntimeWarning, stacklevel=3)
    return targets


def _driver_of(name: Shell) -> type[GreenletDriver | ThreadDriver]:
    if name == "auto":
        monkey = sys.modules.get("gevent.monkey")
        name = "gevent" if monkey is not None and monkey.is_module_patched("socket") else "threads"
    if name == "gevent":
        from lockcore.shells.greenlets.driver import GreenletDriver

        return GreenletDriver
    if name == "threads":
        from lockcore.shells.threads.driver import ThreadDriver

        return ThreadDriver
    raise ValueError(
        f"shell must be auto, gevent or threads, not {name!r} (asyncio: use AsyncRedlock)"
    )


def _granted(result: Lease | Denied, lease: Lease | None = None) -> Lease:
    """Return the lease. Raises the error of the outcome if `result` is not a lease.

    For an extension, `lease` is the lease to extend.
    """
    if isinstance(result, Denied):
        raise error_of(result, lease)
    return result


# This is how lockcore notices a dropped Redlock. The loop or the thread keeps a driver alive for
# ever, even if the program has dropped the Redlock. So the garbage collector calls this function
# when it frees a Redlock. A bound method keeps its Redlock alive. A lease does not keep its Redlock
# alive, because nobody can release a lease without the Redlock. The collector may call this
# function in any thread and in the middle of any code. So this function only asks the loop to close
# the driver.
def _dropped(driver: GreenletDriver | ThreadDriver | AsyncDriver) -> None:
    """Close the driver of a dropped Redlock soon, and warn the user."""
    if driver.engine.retired or driver.engine.foreign:
        return
    driver.close_soon()
    where = ", ".join(target.address for target in driver.targets)
    # The garbage collector calls this function, so the warning cannot name a line of the user's
    # code.
    warnings.warn(
        f"a Redlock on {where} was dropped without close(). The garbage collector has closed "
        "the client, and its leases last until their TTL ends. Call close() when you no "
        "longer need the client, or connect it in a `with` (`async with`) statement",
        ResourceWarning,
        stacklevel=1,
    )


class _AnyRedlock(Generic[D]):
    """The common part of both lock classes: the driver, the instances and the kept-alive leases."""

    def __init__(self, driver: D) -> None:
        self._driver = driver
        weakref.finalize(self, _dropped, driver).atexit = False

    def keep_alive(
        self,
        lease: Lease,
        *,
        every_ms: float | None = None,
        extensions: int = 1000,
        on_gone: Callable[[Denied], None] | None = None,
    ) -> KeepAlive:
        """Extend `lease` in the background every `every_ms` ms, at most `extensions` times.

        The default of `every_ms` is a third of the lease's TTL. The extensions stop when the lease
        is released. When the lease is gone, `KeepAlive.gone` is set and `on_gone` is called at
        once. lockcore sends no extension after the lease's end. Raises ValueError when `every_ms`
        or `extensions` is out of range.
        """
        keeper = KeepAlive(lease, every_ms, extensions, on_gone)
        self._driver.keep(keeper)
        return keeper

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        """Every instance as this client sees it now."""
        return self._driver.engine.members.status()

    @property
    def handoffs(self) -> dict[str, int]:
        """The counts of the retry policy `push`. The result is empty for every other policy.

        `wakeups` is the number of turns that this process got from other processes. `polls` is the
        number of times that this process asked for the holder of a key. The result has a third
        entry if this process does not get the messages of other processes.
        """
        handoff = self._driver.engine.handoff
        if handoff is None:
            return {}
        counts = {"wakeups": handoff.wakeups, "polls": handoff.polls}
        return (
            counts if handoff.mail.arrives else counts | {"processes_that_hear_nothing_and_poll": 1}
        )

    @property
    def closed(self) -> bool:
        """True once `close` has begun, and in a forked child's copy of the Redlock."""
        return self._driver.engine.retired or self._driver.engine.foreign

    def observe_every(self, every: int) -> None:
        """From now on, observe at least one of `every` attempts.

        `every` is a whole number from 1 to MOST_UNOBSERVED. Raises ValueError or TypeError for any
        other value.
        """
        check_whole("observe_every", every, 1, MOST_UNOBSERVED)
        self._driver.engine.observe_every = every

    def observe(self, observer: Observer) -> None:
        """From now on, report every operation to `observer`. Also report one attempt in
        `observe_every` to `observer`.

        Use either this method or the `observer` argument of `connect`. Raises ValueError when the
        lock has an observer already.
        """
        if self._driver.engine.attempt_listener is not None:
            raise ValueError("this Redlock has an observer already")
        self._driver.engine.listener = self._driver.listen(observer)

    def _released(self, lease: Lease, result: Denied) -> None:
        """Report a release to the observer, and raise the error of its outcome."""
        listener = self._driver.engine.listener
        if listener is not None:
            listener.released(lease, result.outcome, result.started_ns)
        if result.outcome is not Outcome.RELEASED:
            raise error_of(result, lease)

    def _extended(self, lease: Lease, result: Lease | Denied) -> Lease | Denied:
        """Report an extension to the observer, and return the extension's result."""
        listener = self._driver.engine.listener
        if listener is not None:
            listener.extended(lease, result)
        return result

    def _release_steps(self, lease: Lease) -> Generator[Request, int, Denied]:
        self._driver.check_home()
        self._driver.stop_keeping(lease)
        return release_steps(self._driver.engine, lease, monotonic_ns())

    def _extend_steps(self, lease: Lease, ttl_ms: int | None) -> Steps:
        check_lease(lease)
        if ttl_ms is None:
            ttl_ms = lease.ttl_ms
        check_whole("ttl_ms", ttl_ms, 1, A_DAY_MS)
        return extend_steps(self._driver.engine, lease, ttl_ms, monotonic_ns())


class Redlock(_AnyRedlock["GreenletDriver | ThreadDriver"]):
    """A lock over N independent instances, for greenlets or threads.

    `connect` returns a Redlock. Many callers may share one Redlock.
    """

    def __init__(self, driver: GreenletDriver | ThreadDriver) -> None:
        super().__init__(driver)
        # The hot path reads only these attributes.
        self._try_acquire = driver.try_acquire
        self._try_release = driver.try_release

    @classmethod
    def connect(
        cls,
        urls: Sequence[str],
        *,
        shell: Shell = "auto",
        key_prefix: str = "",
        max_ttl_ms: int = 10_000,
        instance_timeout_ms: float | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        drift_factor: float = 0.01,
        rejoin: Rejoin = "delay",
        observer: Observer | None = None,
        observe_every: int = 1,
        connect_timeout_s: float = 1.0,
        merge_releases: bool = True,
        lag_cap: LagCap = DEFAULT_LAG_CAP,
    ) -> Self:
        """Connect to every instance of `urls` (redis://, rediss://, unix://).

        At least a quorum of the instances must answer. `shell` decides how callers wait. The value
        `auto` means gevent in a monkey-patched process, and threads in any other process. The other
        arguments are the fields of `lockcore.Settings`. Raises ValueError or TypeError for a bad
        setting or URL. Raises InstanceError when an instance must not take part, or when too few
        instances answer.

        >>> Redlock.connect("redis://127.0.0.1")
        Traceback (most recent call last):
        TypeError: urls must be a list of instance URLs, not one string
        >>> Redlock.connect(["redis://127.0.0.1"], instance_timeout_ms=5_000)
        Traceback (most recent call last):
        ValueError: instance_timeout_ms must be 0.1 … 2500, not 5000
        """
        settings = Settings(
            key_prefix=key_prefix,
            max_ttl_ms=max_ttl_ms,
            instance_timeout_ms=instance_timeout_ms,
            retry=retry,
            drift_factor=drift_factor,
            rejoin=rejoin,
            observer=observer,
            observe_every=observe_every,
            connect_timeout_s=connect_timeout_s,
            merge_releases=merge_releases,
            lag_cap=lag_cap,
        )
        return cls(_driver_of(shell).connect(_targets_of(urls, settings), settings))

    def try_acquire(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Lease | Denied:
        """Lock `resource` as `acquire` does, but return a `Denied` instead of raising.

        The value is a `Lease`, or a `Denied` with its outcome: CONTENDED, SPLIT_VOTE, UNREACHABLE
        or TOO_LATE. A `Denied` is false in a boolean test. Raises ValueError, TypeError and
        CannotWaitError as `acquire` does.
        """
        return self._try_acquire(resource, ttl_ms, wait_ms)

    def try_release(self, lease: Lease) -> Outcome:
        """Release the lease, and return the outcome.

        The outcome GONE means that the lease was no longer ours. UNREACHABLE means that too few
        instances answered. In all other cases the outcome is RELEASED.
        """
        return self._try_release(lease)

    def acquire(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Lease:
        """Lock `resource` for `ttl_ms` (1 … max_ttl_ms), and try again for up to `wait_ms`.

        `wait_ms` is 0 … a day. If `wait_ms` is 0, there is only one attempt. Raises AcquireError by
        outcome: ContendedError, SplitVoteError, UnreachableError, TooLateError. Raises ValueError
        or TypeError for invalid arguments, and CannotWaitError in a place where the caller cannot
        wait. lockcore raises these three errors before it sends anything.
        """
        return _granted(self.try_acquire(resource, ttl_ms, wait_ms))

    def release(self, lease: Lease) -> None:
        """Release the lease.

        Raises LeaseGoneError when the lease was no longer ours, and UnreachableError when too few
        instances answered.
        """
        self._released(lease, self._driver.drive(self._release_steps(lease)))

    def try_extend(self, lease: Lease, ttl_ms: int | None = None) -> Lease | Denied:
        """Extend the lease as `extend` does, but return a `Denied` instead of raising.

        The value is a new `Lease`, or a `Denied` (GONE, UNREACHABLE). After a `Denied` the lease
        keeps its old end. Raises ValueError, TypeError and CannotWaitError as `extend` does.
        """
        return self._extended(lease, self._driver.drive(self._extend_steps(lease, ttl_ms)))

    def extend(self, lease: Lease, ttl_ms: int | None = None) -> Lease:
        """Make the lease last `ttl_ms` from now (default: its own TTL).

        Raises LeaseGoneError or UnreachableError if the extension fails. After a failed extension,
        the lease keeps its old end. Raises ValueError if the extension would shorten the lease.
        Raises ValueError or TypeError for invalid arguments, and CannotWaitError in a place where
        the caller cannot wait. lockcore raises ValueError, TypeError and CannotWaitError before it
        sends anything.
        """
        return _granted(self.try_extend(lease, ttl_ms), lease)

    @contextmanager
    def hold(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Iterator[Lease]:
        """`with lock.hold("stock:42", 10_000, wait_ms=500) as lease:` acquires and releases.

        `hold` also releases the lease if the body raises an exception. Raises the errors of
        `acquire`. At the end of the body, `hold` releases the lease. If the body raised no
        exception, `hold` raises the errors of this `release`.
        """
        lease = self.acquire(resource, ttl_ms, wait_ms)
        try:
            yield lease
        except BaseException as raised:
            try:
                self.try_release(lease)
            except Exception as failed:  # noqa: BLE001 - it must not hide what the body raised
                raised.add_note(f"the lease on {resource!r} was not released: {failed}")
            raise
        self.release(lease)

    def close(self, drain_s: float = 1.0) -> None:
        """Refuse new acquires, wait up to `drain_s` (0 … 86,400 s) for open operations, and close.

        Holders may release their leases meanwhile. If no lease is released for 0.1 s, the remaining
        leases are left to expire. A waiting acquire raises InstanceClosedError and releases its
        attempt. A second call does nothing.
        """
        check_number("drain_s", drain_s, 0, A_DAY_MS / 1000)
        self._driver.close(drain_s)

    def __enter__(self) -> Redlock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# A coroutine around a coroutine costs 6,000 instructions a cycle. So the two hot methods are
# ordinary functions that return the driver's coroutine. This mark makes
# `inspect.iscoroutinefunction` return True for these functions, so autospec works, too. Python has
# such a mark since 3.12.
def _known_as_coroutine(function: F) -> F:
    """Mark `function` as a coroutine function, and return the same function."""
    mark: Callable[[F], F] | None = getattr(inspect, "markcoroutinefunction", None)
    return function if mark is None else mark(function)


class AsyncRedlock(_AnyRedlock["AsyncDriver"]):
    """A lock over N independent instances, for tasks of one event loop (asyncio's own or uvloop).

    An AsyncRedlock has the methods of `Redlock`, but the caller awaits them. `keep_alive` and
    `instances` do not wait, so they are called as in `Redlock`.
    """

    @classmethod
    async def connect(
        cls,
        urls: Sequence[str],
        *,
        key_prefix: str = "",
        max_ttl_ms: int = 10_000,
        instance_timeout_ms: float | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        drift_factor: float = 0.01,
        rejoin: Rejoin = "delay",
        observer: Observer | None = None,
        observe_every: int = 1,
        connect_timeout_s: float = 1.0,
        merge_releases: bool = True,
        lag_cap: LagCap = DEFAULT_LAG_CAP,
    ) -> Self:
        """See `Redlock.connect`."""
        from lockcore.shells.tasks.driver import AsyncDriver

        settings = Settings(
            key_prefix=key_prefix,
            max_ttl_ms=max_ttl_ms,
            instance_timeout_ms=instance_timeout_ms,
            retry=retry,
            drift_factor=drift_factor,
            rejoin=rejoin,
            observer=observer,
            observe_every=observe_every,
            connect_timeout_s=connect_timeout_s,
            merge_releases=merge_releases,
            lag_cap=lag_cap,
        )
        return cls(await AsyncDriver.connect(_targets_of(urls, settings), settings))

    @_known_as_coroutine
    def try_acquire(
        self, resource: str, ttl_ms: int, wait_ms: float = 0
    ) -> Coroutine[object, None, Lease | Denied]:
        """See `Redlock.try_acquire`."""
        return self._driver.try_acquire(resource, ttl_ms, wait_ms)

    @_known_as_coroutine
    def try_release(self, lease: Lease) -> Coroutine[object, None, Outcome]:
        """See `Redlock.try_release`."""
        return self._driver.try_release(lease)

    async def acquire(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Lease:
        """See `Redlock.acquire`. If the task is cancelled meanwhile, the attempt is released."""
        return _granted(await self.try_acquire(resource, ttl_ms, wait_ms))

    async def release(self, lease: Lease) -> None:
        """See `Redlock.release`. If the task is cancelled, the release goes on."""
        self._released(lease, await self._driver.drive(self._release_steps(lease)))

    async def try_extend(self, lease: Lease, ttl_ms: int | None = None) -> Lease | Denied:
        """See `Redlock.try_extend`."""
        return self._extended(lease, await self._driver.drive(self._extend_steps(lease, ttl_ms)))

    async def extend(self, lease: Lease, ttl_ms: int | None = None) -> Lease:
        """See `Redlock.extend`."""
        return _granted(await self.try_extend(lease, ttl_ms), lease)

    @asynccontextmanager
    async def hold(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> AsyncIterator[Lease]:
        """See `Redlock.hold`: `async with lock.hold("stock:42", 10_000) as lease:`."""
        lease = await self.acquire(resource, ttl_ms, wait_ms)
        try:
            yield lease
        except BaseException as raised:
            try:
                await self.try_release(lease)
            except Exception as failed:  # noqa: BLE001 - as in Redlock.hold
                raised.add_note(f"the lease on {resource!r} was not released: {failed}")
            raise
        await self.release(lease)

    async def close(self, drain_s: float = 1.0) -> None:
        """See `Redlock.close`."""
        check_number("drain_s", drain_s, 0, A_DAY_MS / 1000)
        await self._driver.close(drain_s)

    async def __aenter__(self) -> AsyncRedlock:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
