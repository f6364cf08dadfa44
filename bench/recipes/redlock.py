"""lockcore's Redlock under test: *targets → its own bound methods, and reply times per instance*.

Rules: nothing stands between the load and lockcore, unless a pause was asked for; one attempt in 64 is observed for its
per-instance reply times, more of them at low rates while telemetry is wanted. Source: lockcore's public API; in a
process patched by gevent on its gevent shell, else on threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.recipes.protocol import About, Acquire, Reach, RecipeSettings, Release, pass_by, reach_of
from bench.telemetry.load_log import AttemptLog
from lockcore import AttemptRecord, Denied, InstanceStatus, Lease, Outcome, Redlock
from lockcore.errors import InstanceError

OBSERVE_EVERY = 64


class ReplyTimes:
    """An Observer that keeps how long each instance took to answer a SET; and in `log`, if there is one, all of it."""

    def __init__(self, instances: int) -> None:
        self._times_ns: tuple[list[int], ...] = tuple([] for _ in range(instances))
        self.log: AttemptLog | None = None

    def observe(self, record: AttemptRecord) -> None:
        """Take one attempt's times; an instance that did not answer has none."""
        if self.log is not None:
            self.log.observe(record)
        for times_ns, sent_ns, replied_ns in zip(self._times_ns, record.sent_ns, record.replied_ns, strict=True):
            if replied_ns:
                times_ns.append(replied_ns - sent_ns)

    def take(self) -> tuple[list[int], ...]:
        """What was kept since the last call."""
        if self.log is not None:
            self.log.flush()
        taken = self._times_ns
        self._times_ns = tuple([] for _ in taken)
        return taken


class RedlockRecipe:
    """A connected lockcore.Redlock."""

    about = About(
        how="lockcore's Redlock: all N instances at once, pipelined and multiplexed",
        flaw="none known within its assumptions: bounded clock drift, delayed restart",
        safe=True,
        most=None,
        usual=5,
    )

    def __init__(self, lock: Redlock, reply_times: ReplyTimes, reach: Reach) -> None:
        self._lock = lock
        self.acquire: Acquire = lock.try_acquire
        self.release: Release = lock.try_release
        if reach is not pass_by:
            self.acquire, self.release = _paused(lock, reach)
        self.figures: dict[str, int] = {}
        self.take_reply_times_ns = reply_times.take
        self.close = lock.close

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """See `Recipe.connect`: a quorum of the targets must answer."""
        reply_times = ReplyTimes(len(targets))
        try:
            lock = Redlock.connect(  # noqa: S604 - this shell is a way of waiting
                targets,
                shell="auto",
                key_prefix=settings.key_prefix,
                max_ttl_ms=settings.max_ttl_ms,
                instance_timeout_ms=settings.instance_timeout_ms,
                retry=settings.retry,
                rejoin=settings.rejoin,
                merge_releases=settings.merge_releases,
                connect_timeout_s=settings.connect_timeout_s,
                observer=reply_times,
                observe_every=OBSERVE_EVERY,
            )
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error
        except InstanceError as error:
            raise EnvironmentNotReadyError(f"{error}; start it, or name other instances with --target") from error
        if settings.attempts is not None:
            reply_times.log = AttemptLog(settings.attempts, settings.process, len(targets), lock.observe_every)
        return cls(lock, reply_times, reach_of(settings.pause, settings.seed, settings.process, settings.gate))

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        """Every instance as the lock sees it now."""
        return self._lock.instances


def _paused(lock: Redlock, reach: Reach) -> tuple[Acquire, Release]:
    """Lockcore's methods with the pause points that every recipe has; a caller killed there gives its lease back."""

    def acquire(resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        result = lock.try_acquire(resource, ttl_ms, wait_ms)
        if isinstance(result, Lease):
            try:
                reach("after-grant")
            except BaseException:
                lock.try_release(result)
                raise
        return result

    def release(lease: Lease, /) -> Outcome:
        try:
            reach("before-release")
        finally:
            outcome = lock.try_release(lease)
        return outcome

    return acquire, release
