"""Locks on one instance. Each attempt gets a resource and a TTL, and it returns a lease or a
refusal.

The recipes lock with GET and SET, with SETNX, or with SET NX PX. Some recipes store the end time as
the value of the key. The recipes with SET NX PX differ in their release. Some of these recipes also
renew their leases. Many of these recipes are flawed on purpose. The attribute `about` of each
recipe describes its flaw. Do not copy a flawed recipe.

If no reply to a SET comes, `set-nx-lua` deletes its key, because the server may have executed the
SET. `set-nx-lua` also deletes the key of a caller that was killed. If a grant arrives after the end
of its lease, the recipe deletes the key and counts the attempt as too late.

Source: the SET command's reference page ("Patterns").
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar
from uuid import uuid1

from redis.exceptions import RedisError

from bench.recipes.fencing import COUNTER, FENCED_SET, FencedLease
from bench.recipes.plain import (
    DEFINITE,
    DRIFT_FACTOR,
    FOREVER_NS,
    GRANTED,
    HELD,
    PlainInstance,
    PlainRecipe,
    Refusal,
)
from bench.recipes.protocol import About, RecipeSettings
from bench.telemetry.load_log import Extension, LineLog
from lockcore import Lease, Outcome
from lockcore.bench import COMPARE_AND_EXTEND
from lockcore.clock import NS_PER_MS, NS_PER_S, drift_ns, monotonic_ns

# The first and the longest delay of `backoff`.
FIRST_MS = 100
LONGEST_MS = 5_000
# How many renewals a watchdog makes within each TTL of a lease.
RENEWALS_PER_TTL = 3


class _Unchecked(PlainRecipe):
    """A lock whose release deletes the key, even if another caller owns it."""

    def give_back(self, lease: Lease) -> Outcome:
        return self.delete(lease.resource)


class GetSet(_Unchecked):
    """A lock that uses two commands instead of one atomic command.

    This lock is flawed on purpose. Do not copy it.
    """

    about = About(
        how="GET the variable, SET it to 1 if it is 0",
        flaw="the check and the SET are two steps, so all callers that read 0 before the SET "
        "get the lock",
        safe=False,
        points=("after-get",),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        key = self.key(resource)
        started_ns = monotonic_ns()
        if self.ask("GET", key) is not None:
            return HELD
        self.pause("after-get")
        self.ask("SET", key, "1")
        return self.leased(
            resource, b"1", ttl_ms, started_ns, valid_until_ns=started_ns + FOREVER_NS
        )


class Setnx(_Unchecked):
    """A lock that uses SETNX and DEL, and has no TTL.

    This lock is flawed on purpose. Do not copy it.
    """

    about = About(
        how="SETNX, no TTL; DEL", flaw="a holder that dies keeps the lock for ever", safe=True
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        started_ns = monotonic_ns()
        if not self.ask("SETNX", self.key(resource), "1"):
            return HELD
        return self.leased(
            resource, b"1", ttl_ms, started_ns, valid_until_ns=started_ns + FOREVER_NS
        )


class SetnxExpire(_Unchecked):
    """A lock that uses SETNX, and sets the TTL with a second command.

    This lock is flawed on purpose. Do not copy it.
    """

    about = About(
        how="SETNX, then EXPIRE; DEL",
        flaw="a crash between the commands leaves a key without TTL; DEL may remove the next "
        "holder's lock",
        safe=False,
        points=("after-setnx",),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        key = self.key(resource)
        if not self.ask("SETNX", key, "1"):
            return HELD
        self.pause("after-setnx")
        # The TTL counts from this moment.
        started_ns = monotonic_ns()
        self.ask("PEXPIRE", key, ttl_ms)
        return self.leased(resource, b"1", ttl_ms, started_ns)


class TimestampGetset(PlainRecipe):
    """A lock whose key has the lock's end time as its value. The end time is a wall-clock time
    (ms).

    This lock is flawed on purpose. Do not copy it.
    """

    about = About(
        how="SETNX with the end time as value; GETSET takes over an expired lock; a release "
        "is DEL if the lock has not expired",
        flaw="needs synchronised clocks; after a takeover, the loser overwrites the winner's "
        "end time",
        safe=False,
        points=("after-get", "after-check"),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        key = self.key(resource)
        started_ns = monotonic_ns()
        end_ms = self.wall_ms() + ttl_ms
        if not self.ask("SETNX", key, end_ms):
            observed = self.ask("GET", key)
            if observed is None or int(observed) >= self.wall_ms():
                return HELD
            self.pause("after-get")
            started_ns = monotonic_ns()
            end_ms = self.wall_ms() + ttl_ms
            if not self.take_over(key, observed, end_ms):
                return HELD
        valid_until_ns = started_ns + ttl_ms * NS_PER_MS
        return self.leased(
            resource, b"%d" % end_ms, ttl_ms, started_ns, valid_until_ns=valid_until_ns
        )

    def take_over(self, key: str, observed: bytes, end_ms: int) -> bool:
        """Try to take over an expired lock. `observed` is the value that this caller has read from
        the key of the lock. `observed` is an end time, and this time has passed.

        Returns True if GETSET replaced `observed`. Otherwise another caller had won, and this
        GETSET has overwritten the winner's value.
        """
        won: bool = self.ask("GETSET", key, end_ms) == observed
        self.figures["overwritten_ends"] += not won
        return won

    def give_back(self, lease: Lease) -> Outcome:
        """Delete the key if this lease has not ended. After the end of the lease, another caller
        may own the key."""
        if self.wall_ms() > int(lease.owner_token):
            return Outcome.GONE
        self.pause("after-check")
        return self.delete(lease.resource)


class TimestampSet(TimestampGetset):
    """A lock like timestamp-getset. A caller that takes over an expired lock does not check which
    value it has replaced.

    This lock is flawed on purpose. Do not copy it.
    """

    about = replace(
        TimestampGetset.about,
        how="like timestamp-getset, but SET takes over an expired lock",
        flaw="two callers can take over the same expired lock; clocks must also be synchronised",
    )

    def take_over(self, key: str, observed: bytes, end_ms: int) -> bool:
        self.ask("SET", key, end_ms)
        return True


class Company2013(TimestampGetset):
    """A lock like timestamp-getset. When a caller releases the lock, it does not check whether the
    key still has the caller's own timestamp.

    This lock is flawed on purpose. Do not copy it.
    """

    about = replace(
        TimestampGetset.about,
        how="like timestamp-getset, but a release reads the key and deletes it if its end time "
        "has not passed",
        flaw="a blocked owner reads its successor's timestamp and deletes the successor's lock",
    )

    def give_back(self, lease: Lease) -> Outcome:
        end_ms = self.ask("GET", self.key(lease.resource))
        if end_ms is None or int(end_ms) < self.wall_ms():
            return Outcome.GONE
        self.pause("after-check")
        return self.delete(lease.resource)


class SetNxFixed(_Unchecked):
    """A lock whose key has the same value for all callers. The release sends DEL without a check of
    the owner.

    This lock is flawed on purpose. Do not copy it.
    """

    about = About(
        how="SET NX PX with the same value for all callers; DEL",
        flaw="deletes another caller's lock after its own lock has expired",
        safe=False,
    )

    def new_token(self) -> bytes:
        return b"1"


class SetNxGetDel(PlainRecipe):
    """A lock whose key has a unique value. At the release, the client reads the value of the key
    and compares this value with its own value.

    This lock is flawed on purpose. Do not copy it.
    """

    about = About(
        how="SET NX PX with a unique value; a release is GET, and then DEL if the value is "
        "the caller's own",
        flaw="between GET and DEL, another caller may get the key",
        safe=False,
        points=("after-get",),
    )

    def give_back(self, lease: Lease) -> Outcome:
        if self.ask("GET", self.key(lease.resource)) != lease.owner_token:
            return Outcome.GONE
        self.pause("after-get")
        return self.delete(lease.resource)


class SetNxLuaRecipe(PlainRecipe):
    """A lock whose key has a unique value. At the release, a script on the server compares the
    value with the client's own."""

    about = About(
        how="one instance through redis-py: SET NX PX with a unique value, "
        "compare-and-delete in Lua",
        flaw="the lock has no known flaw, but its only instance is a single point of failure",
        safe=True,
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        return self.attempt_as(self.new_token(), resource, ttl_ms)

    def attempt_as(self, token: bytes, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Try to lock once with the owner token `token`. Raises RedisError."""
        started_ns = monotonic_ns()
        try:
            granted = self._set(resource, token, ttl_ms)
        except DEFINITE:
            raise
        except BaseException:
            self._undo(resource, token)
            raise
        if not granted:
            return HELD
        lease = self.leased(resource, token, ttl_ms, started_ns)
        if lease.granted_ns >= lease.valid_until_ns:
            self._undo(resource, token)
            return Refusal(Outcome.TOO_LATE, GRANTED)
        return FencedLease.of(lease, granted) if self.settings.fencing else lease

    def abandon(self, lease: Lease) -> None:
        self._undo(lease.resource, lease.owner_token)

    def _set(self, resource: str, token: bytes, ttl_ms: int) -> int:
        """Set the key. Returns 0 if another caller holds the resource. Otherwise returns the
        fencing token, or 1 without fencing."""
        key = self.key(resource)
        if self.settings.fencing:
            return int(self.server.run(FENCED_SET, (key, self.key(COUNTER)), token, ttl_ms) or 0)
        return int(self.ask("SET", key, token, "NX", "PX", ttl_ms) is not None)

    def _undo(self, resource: str, token: bytes) -> None:
        with suppress(RedisError):
            self.server.delete_own(self.key(resource), token)


class Semaphore(SetNxLuaRecipe):
    """A lock that several callers can hold at once. There is a separate set-nx-lua lock for each
    possible holder.

    A caller holds the resource when it has acquired one of these locks.
    """

    about = replace(
        SetNxLuaRecipe.about, how="one set-nx-lua key for each possible holder", counts=True
    )
    # How many callers more than `capacity` may hold the resource.
    too_many: ClassVar[int] = 0

    def __init__(self, servers: Sequence[PlainInstance], settings: RecipeSettings) -> None:
        super().__init__(servers, settings)
        # For each owner token: the name of the set-nx-lua lock that the caller got.
        self._names: dict[bytes, str] = {}

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        outcome = super().attempt(resource, ttl_ms)
        for place in range(1, self.settings.capacity + self.too_many):
            if isinstance(outcome, Lease):
                break
            outcome = super().attempt(f"{resource}:{place}", ttl_ms)
        if isinstance(outcome, Refusal):
            return outcome
        self._names[outcome.owner_token] = outcome.resource
        return _renamed(outcome, resource)

    def give_back(self, lease: Lease) -> Outcome:
        outcome = super().give_back(self._own(lease))
        self._names.pop(lease.owner_token, None)
        return outcome

    def abandon(self, lease: Lease) -> None:
        super().abandon(self._own(lease))
        self._names.pop(lease.owner_token, None)

    def _own(self, lease: Lease) -> Lease:
        return _renamed(lease, self._names.get(lease.owner_token, lease.resource))


def _renamed(lease: Lease, resource: str) -> Lease:
    return Lease(
        resource,
        lease.owner_token,
        lease.ttl_ms,
        lease.started_ns,
        lease.granted_ns,
        lease.valid_until_ns,
        lease.round,
    )


class SemaphoreOffByOne(Semaphore):
    """A semaphore that admits one caller more than `capacity` allows.

    This lock is flawed on purpose. Do not copy it.
    """

    about = replace(Semaphore.about, flaw="it admits one caller too many", safe=False)
    too_many: ClassVar[int] = 1


class Backoff(PlainRecipe):
    """A lock that doubles its delay after each refusal.

    This lock is flawed on purpose. Do not copy it.
    """

    about = About(
        how="SET NX PX with a uuid1; after a refusal the caller waits 0.1 s, and each further "
        "wait is twice as long, up to 5 s; without try/finally",
        flaw="callers that wait long starve; an exception in the body leaks the lock",
        safe=True,
    )

    def new_token(self) -> bytes:
        return str(uuid1()).encode()

    def next_start_ns(
        self, outcome: Outcome, attempts: int, now_ns: int, deadline_ns: int
    ) -> int | None:
        """Return the start of the next attempt (ns). Each delay is twice as long as the delay
        before, up to 5 s. The last attempt starts when the wait time ends.

        The recipe ignores the scenario's retry policy.
        """
        if outcome is not Outcome.CONTENDED or now_ns >= deadline_ns:
            return None
        start_ns = now_ns + min(FIRST_MS << min(attempts - 1, 16), LONGEST_MS) * NS_PER_MS
        return min(start_ns, deadline_ns)


class Watchdog(PlainRecipe):
    """A lock with a thread that renews all leases of a client until the leases are released. If
    gevent has patched threading, the thread is a greenlet.

    The thread renews each lease three times per TTL. A renewal succeeds only if the client still
    owns the key, and then it extends `valid_until_ns` of the lease.

    `figures` has three counters. `late_renewals` counts renewals that were sent after the end of
    the lease. `lost_leases` counts leases whose key no longer belonged to the client.
    `noticed_late_ms` is the sum of the delays (ms) between the end of a lost lease and the moment
    when the watchdog noticed the loss.
    """

    about = About(
        how="SET NX PX with a unique value, renewed in the background by compare-and-extend",
        flaw="a dead or paused client does not renew; a paused client notices a lost lock late",
        safe=True,
        points=("before-renew",),
    )

    def __init__(self, servers: Sequence[PlainInstance], settings: RecipeSettings) -> None:
        super().__init__(servers, settings)
        self._changed = threading.Condition()
        # For each owner token: the time of the next renewal (ns), and the lease.
        self._due: dict[bytes, tuple[int, Lease]] = {}
        self._closed = False
        self._log = (
            LineLog(settings.attempts, "extensions", settings.process)
            if settings.attempts is not None
            else None
        )
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        lease = super().attempt(resource, ttl_ms)
        if isinstance(lease, Lease):
            with self._changed:
                self._renew_after(lease, lease.started_ns)
        return lease

    def extend(self, lease: Lease) -> bool:
        """Extend the lease to one TTL from now, if the key still has the lease's owner token.
        Returns whether the lease was extended. Raises RedisError."""
        key = self.key(lease.resource)
        return bool(self.server.run(COMPARE_AND_EXTEND, (key,), lease.owner_token, lease.ttl_ms))

    def give_back(self, lease: Lease) -> Outcome:
        with self._changed:
            self._due.pop(lease.owner_token, None)
        return super().give_back(lease)

    def abandon(self, lease: Lease) -> None:
        self.give_back(lease)

    def take_reply_times_ns(self) -> tuple[list[int], ...]:
        """Return the reply times, as `Recipe` describes. The load calls this method once a second,
        so the method also writes the recorded renewals to the log."""
        if self._log is not None:
            self._log.flush()
        return super().take_reply_times_ns()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(1.0)
        super().close()

    def _renew_after(self, lease: Lease, sent_ns: int) -> None:
        self._due[lease.owner_token] = sent_ns + lease.ttl_ms * NS_PER_MS // RENEWALS_PER_TTL, lease
        self._changed.notify()

    def _watch(self) -> None:
        while (lease := self._next_due()) is not None:
            self.pause("before-renew")
            sent_ns = monotonic_ns()
            try:
                renewed = self.extend(lease)
            except RedisError:
                renewed = None
            if self._log is not None:
                self._log.keep(Extension.of(lease, sent_ns, monotonic_ns(), renewed))
            self._note(lease, renewed, sent_ns)

    def _next_due(self) -> Lease | None:
        """Wait until the renewal of a lease is due, and return this lease. Return None if the
        recipe is closed."""
        with self._changed:
            while not self._closed:
                due_ns, lease = min(self._due.values(), key=lambda one: one[0], default=(0, None))
                left_s = (due_ns - monotonic_ns()) / NS_PER_S
                if lease is not None and left_s <= 0:
                    return lease
                self._changed.wait(None if lease is None else left_s)
        return None

    def _note(self, lease: Lease, renewed: bool | None, sent_ns: int) -> None:
        """Apply the result of a renewal to its lease.

        `renewed` is None if no answer came. Then the next renewal decides whether the lease is
        lost.
        """
        with self._changed:
            if lease.owner_token not in self._due:
                # The lease was given back in the meantime.
                return
            self.figures["late_renewals"] += sent_ns > lease.valid_until_ns
            if renewed is False:
                del self._due[lease.owner_token]
                self.figures["lost_leases"] += 1
                self.figures["noticed_late_ms"] += (
                    max(monotonic_ns() - lease.valid_until_ns, 0) // NS_PER_MS
                )
                return
            if renewed:
                lease.valid_until_ns = (
                    sent_ns + lease.ttl_ms * NS_PER_MS - drift_ns(lease.ttl_ms, DRIFT_FACTOR)
                )
            self._renew_after(lease, sent_ns)


class WatchdogNaive(Watchdog):
    """A watchdog that renews a key without checking who owns the key.

    This lock is flawed on purpose. Do not copy it.
    """

    about = replace(
        Watchdog.about,
        how="like watchdog, but a plain PEXPIRE renews the lock",
        flaw="after a pause, a caller may extend another caller's lock and treat it as its own",
        safe=False,
    )

    def extend(self, lease: Lease) -> bool:
        return bool(self.ask("PEXPIRE", self.key(lease.resource), lease.ttl_ms))
