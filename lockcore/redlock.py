"""The lock people use: *resource and TTL → a lease, or the error of its outcome*.

Rules: thin. `Redlock` (gevent or threads) and `AsyncRedlock` (asyncio) have equal methods; what they do is decided in
attempt.py and engine.py, how they wait in shells/. A shell, and its library, is imported when it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from lockcore.attempt import extend_steps
from lockcore.clock import monotonic_ns
from lockcore.errors import LeaseGoneError, UnreachableError, error_of
from lockcore.keeper import KeepAlive, keeper_steps
from lockcore.model import Denied, InstanceStatus, Lease, Outcome, Tally
from lockcore.settings import Settings

if TYPE_CHECKING:
    from lockcore.shells.handshake import Target

Shell = Literal["auto", "gevent", "threads"]


def targets_of(urls: Sequence[str], settings: Settings) -> list[Target]:
    """Check the URLs of a fleet. Raises ValueError: none, or one that is no instance URL; TypeError: a lone string."""
    from lockcore.shells.handshake import target_of

    if isinstance(urls, str):
        raise TypeError("urls must be a list of instance URLs, not one string")
    if not urls:
        raise ValueError("a lock needs at least one instance URL")
    return [target_of(url, settings.connect_timeout_s, settings.key_prefix) for url in urls]


def _shell(name: Shell) -> Any:
    if name == "auto":
        monkey = sys.modules.get("gevent.monkey")
        name = "gevent" if monkey is not None and monkey.is_module_patched("socket") else "threads"
    if name == "gevent":
        from lockcore.shells.greenlet import GreenletDriver

        return GreenletDriver
    if name == "threads":
        from lockcore.shells.blocking import ThreadDriver

        return ThreadDriver
    raise ValueError(f"shell must be auto, gevent or threads, not {name!r} (asyncio: use AsyncRedlock)")


class Redlock:
    """A lock over N independent instances, for greenlets or threads. Made by `connect`; safe to share between callers."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.try_acquire = driver.try_acquire  # the driver's own methods: no wrapper on the hot path
        self.try_release = driver.try_release

    @classmethod
    def connect(cls, urls: Sequence[str], *, shell: Shell = "auto", **settings: Any) -> Redlock:
        """Connect to every instance of `urls` (redis://, rediss://, unix://), at least a quorum of which must answer.

        `settings`: the fields of `lockcore.Settings`. `shell`: how callers wait; `auto` is gevent in a monkey-patched
        process, else threads. Raises ValueError or TypeError for a bad setting or URL, InstanceError when an instance must
        not take part or too few can be reached.
        """
        checked = Settings(**settings)
        return cls(_shell(shell).connect(targets_of(urls, checked), checked))

    if TYPE_CHECKING:

        def try_acquire(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Lease | Denied:
            """Acquire as a value: a `Lease`, or a `Denied` with its outcome. See `acquire`."""

        def try_release(self, lease: Lease) -> Outcome:
            """Give the lease back: RELEASED, GONE (it was no longer ours) or UNREACHABLE (too few answered)."""

    def acquire(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Lease:
        """Lock `resource` for `ttl_ms` (1 … max_ttl_ms), trying again for up to `wait_ms` (0: one attempt).

        Raises AcquireError by outcome: ContendedError, SplitVoteError, UnreachableError, TooLateError.
        """
        result = self.try_acquire(resource, ttl_ms, wait_ms)
        if isinstance(result, Denied):
            raise error_of(result)
        return result

    def release(self, lease: Lease) -> None:
        """Give the lease back. Raises LeaseGoneError when it was no longer ours, UnreachableError when too few answered."""
        outcome = self.try_release(lease)
        if outcome is not Outcome.RELEASED:
            raise error_of(_unreleased(lease, outcome), lease)

    def try_extend(self, lease: Lease, ttl_ms: int | None = None) -> Lease | Denied:
        """Extend as a value: a new `Lease`, or a `Denied` (GONE, UNREACHABLE): the old one then ends when it would have."""
        steps = extend_steps(self._driver.engine, lease, ttl_ms or lease.ttl_ms, monotonic_ns())
        return self._driver.drive(steps)  # type: ignore[no-any-return]

    def extend(self, lease: Lease, ttl_ms: int | None = None) -> Lease:
        """Make the lease last `ttl_ms` from now (default: its own TTL). Raises LeaseGoneError, UnreachableError, ValueError."""
        result = self.try_extend(lease, ttl_ms)
        if isinstance(result, Denied):
            raise error_of(result, lease)
        return result

    def keep_alive(
        self,
        lease: Lease,
        *,
        every_ms: float | None = None,
        extensions: int = 1000,
        on_gone: Callable[[Denied], None] | None = None,
    ) -> KeepAlive:
        """Extend `lease` in the background every `every_ms` (default: a third of its TTL), at most `extensions` times.

        Stops at release. When the lease is gone, `KeepAlive.gone` is set and `on_gone` called at once; nothing is sent
        after the lease's own end.
        """
        keeper = KeepAlive(lease, every_ms, extensions, on_gone)
        driver = self._driver
        driver.keepers[lease.owner_token] = keeper

        def run() -> None:
            try:
                keeper.ended(driver.drive(keeper_steps(keeper, driver.engine)))
            finally:
                driver.keepers.pop(lease.owner_token, None)

        keeper.cancel = driver.background(run)
        return keeper

    @contextmanager
    def hold(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Iterator[Lease]:
        """`with lock.hold("stock:42", 10_000, wait_ms=500) as lease:` acquires, and releases however the body ends.

        Raises what `acquire` raises; LeaseGoneError at the end when the body outlived its lease and did not raise itself.
        """
        lease = self.acquire(resource, ttl_ms, wait_ms)
        try:
            yield lease
        except BaseException:
            self.try_release(lease)
            raise
        self.release(lease)

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        """Every instance as this client sees it now."""
        return self._driver.engine.status()  # type: ignore[no-any-return]

    def close(self, drain_s: float = 1.0) -> None:
        """Send what is queued, wait up to `drain_s` seconds for what is in flight, close the connections. Idempotent."""
        for keeper in list(self._driver.keepers.values()):
            keeper.stop()
        self._driver.close(drain_s)

    def __enter__(self) -> Redlock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unreleased(lease: Lease, outcome: Outcome) -> Denied:
    now_ns = monotonic_ns()
    return Denied(lease.resource, outcome, Tally(), 1, 0, now_ns, now_ns)
