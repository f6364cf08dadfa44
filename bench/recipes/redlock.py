"""The Redlock recipes. One recipe uses lockcore. The other recipes use redis-py. The other recipes
send SET NX PX to N instances, one after the other.

If the scenario has no pauses, the recipe `redlock` adds no code to lockcore's acquire and release.
In one of 64 attempts, the recipe `redlock` measures the reply times of the instances. If telemetry
is on and the rate is low, this recipe measures more attempts.

The sequential recipes ask one instance after the other, so an acquire takes N round trips. While an
acquire runs, other callers can win some of the votes. If the votes are split in this way, no caller
gets a quorum. Source: the Redlock text, "The Redlock algorithm". lockcore/facts/quorum.py defines
the outcomes of rounds.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Self, cast

from redis.exceptions import RedisError

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.recipes.plain import DEFINITE, PlainInstance, PlainRecipe, Refusal
from bench.recipes.protocol import About, Acquire, Reach, RecipeSettings, Release, pass_by, reach_of
from bench.telemetry.load_log import AttemptLog
from lockcore import (
    AttemptRecord,
    Denied,
    InstanceStatus,
    Lease,
    Observer,
    Outcome,
    Redlock,
    Tally,
    Vote,
)
from lockcore.bench import InstanceError, Rejoin, outcome_of, owned_outcome_of, quorum_of
from lockcore.clock import monotonic_ns

OBSERVE_EVERY = 64


class RedlockRecipe(Observer):
    """A recipe that uses a connected lockcore.Redlock. The recipe object also observes this Redlock
    (lockcore.Observer)."""

    about = About(
        how="lockcore's Redlock asks all N instances at once, and callers share pipelined "
        "connections",
        flaw="no known flaw if clock drift is bounded and crashed instances restart after the "
        "longest TTL",
        safe=True,
        most=None,
        usual=5,
    )

    def __init__(self, targets: Sequence[str], settings: RecipeSettings) -> None:
        self._times_ns: tuple[list[int], ...] = tuple([] for _ in targets)
        self._log: AttemptLog | None = None
        try:
            lock = Redlock.connect(  # noqa: S604 - this shell is a way of waiting
                targets,
                shell="auto",
                key_prefix=settings.key_prefix,
                max_ttl_ms=settings.max_ttl_ms,
                instance_timeout_ms=settings.instance_timeout_ms,
                retry=settings.retry,
                rejoin=cast("Rejoin", settings.rejoin),
                # The judge expects that each release sends a command
                # (`Circumstances.releases_ask`).
                merge_releases=False,
                connect_timeout_s=settings.connect_timeout_s,
                observer=self,
                observe_every=OBSERVE_EVERY,
            )
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error
        except InstanceError as error:
            raise EnvironmentNotReadyError(
                f"{error}; correct the cause, or name other instances with --target"
            ) from error
        if settings.attempts is not None:
            self._log = AttemptLog(settings.attempts, settings.process, lock.observe_every)
        self._lock = lock
        self.acquire: Acquire = lock.try_acquire
        self.release: Release = lock.try_release
        reach = reach_of(settings.pause, settings.seed, settings.process, settings.gate)
        if reach is not pass_by:
            self.acquire, self.release = _paused(lock, reach)
        self.close = lock.close

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        return cls(targets, settings)

    def observe(self, record: AttemptRecord) -> None:
        """Store the reply time of each instance. If there is a log, also log the whole record."""
        if self._log is not None:
            self._log.observe(record)
        for times_ns, sent_ns, replied_ns in zip(
            self._times_ns, record.sent_ns, record.replied_ns, strict=True
        ):
            if replied_ns:
                times_ns.append(replied_ns - sent_ns)

    def take_reply_times_ns(self) -> tuple[list[int], ...]:
        """Return the reply times, as `Recipe` describes. The method also writes the observed
        attempts to the log, because the load calls this method once a second."""
        if self._log is not None:
            self._log.flush()
        times_ns = self._times_ns
        self._times_ns = tuple([] for _ in self._times_ns)
        return times_ns

    @property
    def figures(self) -> dict[str, int]:
        """The counters of hand-offs between processes. The dictionary is empty if the lock does not
        count hand-offs."""
        return self._lock.handoffs

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        return self._lock.instances


def _paused(lock: Redlock, reach: Reach) -> tuple[Acquire, Release]:
    """Return lockcore's acquire and release with the common pause points.

    If a caller is killed at a pause point, the functions release its lease.
    """

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


class RedlockSequential(PlainRecipe):
    """A Redlock that asks N instances one after the other. It waits for the reply of each instance
    before it asks the next instance."""

    about = About(
        how="Redlock through redis-py: one instance after another, always in the same order",
        flaw="an attempt takes N round trips, and split votes are possible during this whole time",
        safe=True,
        most=None,
        usual=5,
        points=("after-vote",),
    )
    # True: when a quorum has confirmed a release, the release asks no further instance.
    stops_at_quorum = False

    @classmethod
    def needed(cls, instances: int) -> int:
        return quorum_of(instances)

    def order(self) -> Sequence[PlainInstance]:
        """Return the instances in the order in which this round asks them."""
        return self.servers

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Ask all instances and count the votes. If no quorum comes in time, send a
        compare-and-delete to every instance."""
        token = self.new_token()
        started_ns = monotonic_ns()
        votes = []
        try:
            for server in self.order():
                votes.append(_vote(server, self.key(resource), token, ttl_ms))
                self.pause("after-vote")
        except BaseException:
            self._undo(resource, token)
            raise
        tally = Tally(
            *(votes.count(vote) for vote in (Vote.GRANTED, Vote.REFUSED, Vote.ERRORED, Vote.SILENT))
        )
        outcome = outcome_of(tally.granted, tally.refused, quorum_of(len(votes)))
        lease = self.leased(resource, token, ttl_ms, started_ns, tally=tally)
        if outcome is Outcome.ACQUIRED and lease.granted_ns < lease.valid_until_ns:
            return lease
        self._undo(resource, token)
        return Refusal(Outcome.TOO_LATE if outcome is Outcome.ACQUIRED else outcome, tally)

    def give_back(self, lease: Lease) -> Outcome:
        """Send a compare-and-delete to every instance, even to an instance that refused its vote.

        If `stops_at_quorum` is true, stop when a quorum has confirmed the release.
        """
        instances = len(self.servers)
        answers = []
        for server in self.servers:
            answers.append(deleted(server, self.key(lease.resource), lease.owner_token))
            if self.stops_at_quorum and answers.count(True) >= quorum_of(instances):
                break
        return owned_outcome_of(
            answers.count(True), answers.count(False), instances, quorum_of(instances)
        )

    def abandon(self, lease: Lease) -> None:
        self._undo(lease.resource, lease.owner_token)

    def _undo(self, resource: str, token: bytes) -> None:
        for server in self.servers:
            deleted(server, self.key(resource), token)


class RedlockRandomOrder(RedlockSequential):
    """A lock like redlock-sequential, but each round asks the instances in a new random order."""

    about = replace(
        RedlockSequential.about,
        how="like redlock-sequential, but every round asks the instances in a random order",
        flaw="attempts are slow, and votes are split more often than with one common order",
    )

    def __init__(self, servers: Sequence[PlainInstance], settings: RecipeSettings) -> None:
        super().__init__(servers, settings)
        self._rng = Random(f"{settings.seed} {settings.process} order")

    def order(self) -> Sequence[PlainInstance]:
        return self._rng.sample(self.servers, len(self.servers))


def _vote(server: PlainInstance, key: str, token: bytes, ttl_ms: int) -> Vote:
    try:
        return (
            Vote.REFUSED
            if server.ask("SET", key, token, "NX", "PX", ttl_ms) is None
            else Vote.GRANTED
        )
    except DEFINITE:
        return Vote.ERRORED
    except RedisError:
        return Vote.SILENT


def deleted(server: PlainInstance, key: str, token: bytes) -> bool | None:
    """Send a compare-and-delete to one instance. Returns whether the key was deleted, or None if no
    definite reply came."""
    with suppress(RedisError):
        return server.delete_own(key, token)
    return None


class MajorityRelease(RedlockSequential):
    """A lock like redlock-sequential, but a release stops when a quorum has confirmed the release.

    This lock is flawed on purpose. Do not copy it.
    """

    about = replace(
        RedlockSequential.about,
        how="like redlock-sequential, but the release stops after a quorum has confirmed it",
        flaw="keys stay on the minority, and block the next holder until their TTL ends",
        least=2,
    )
    stops_at_quorum = True
