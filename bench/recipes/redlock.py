"""lockcore's Redlock under test: *targets → its own bound methods, and reply times per instance*.

Rules: nothing stands between the load and lockcore; one attempt in 64 is observed for its per-instance reply times.
Source: lockcore's public API, on its gevent shell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.recipes.protocol import RecipeSettings
from lockcore import AttemptRecord, InstanceStatus, Redlock
from lockcore.errors import InstanceError

OBSERVE_EVERY = 64


class ReplyTimes:
    """An Observer that keeps how long each instance took to answer a SET."""

    def __init__(self, instances: int) -> None:
        self._times_ns: tuple[list[int], ...] = tuple([] for _ in range(instances))

    def observe(self, record: AttemptRecord) -> None:
        """Take one attempt's times; an instance that did not answer has none."""
        for times_ns, sent_ns, replied_ns in zip(self._times_ns, record.sent_ns, record.replied_ns, strict=True):
            if replied_ns:
                times_ns.append(replied_ns - sent_ns)

    def take(self) -> tuple[list[int], ...]:
        """What was kept since the last call."""
        taken = self._times_ns
        self._times_ns = tuple([] for _ in taken)
        return taken


class RedlockRecipe:
    """A connected lockcore.Redlock."""

    def __init__(self, lock: Redlock, reply_times: ReplyTimes) -> None:
        self._lock = lock
        self.acquire = lock.try_acquire
        self.release = lock.try_release
        self.take_reply_times_ns = reply_times.take
        self.close = lock.close

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """See `Recipe.connect`: a quorum of the targets must answer."""
        reply_times = ReplyTimes(len(targets))
        try:
            lock = Redlock.connect(  # noqa: S604 - this shell is a way of waiting
                targets,
                shell="gevent",
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
        return cls(lock, reply_times)

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        """Every instance as the lock sees it now."""
        return self._lock.instances
