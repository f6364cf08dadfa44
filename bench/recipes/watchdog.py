"""A lock renewed in the background: *SET NX PX; a watchdog renews every third of the TTL until the release*.

Flawed, on purpose: do not copy it. One thread (under gevent: a greenlet) renews all leases of a client. A renewal moves
`valid_until_ns` of its lease to its sending + TTL − drift. Counted: `late_renewals` (sent after the lease's end),
`lost_leases` and `noticed_late_ms` (sum over them, from the lease's end until the watchdog learned of it).
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from redis.exceptions import RedisError

from bench.recipes.plain import DRIFT_FACTOR, PlainInstance, PlainRecipe, Refusal
from bench.recipes.protocol import About, RecipeSettings
from bench.telemetry.load_log import ExtensionLog
from lockcore import Lease, Outcome
from lockcore.clock import NS_PER_MS, NS_PER_S, drift_ns, monotonic_ns
from lockcore.commands import COMPARE_AND_EXTEND

RENEWALS_PER_TTL = 3


class Watchdog(PlainRecipe):
    """Renewals check whose key it is."""

    about = About(
        how="SET NX PX with a unique value, renewed in the background by compare-and-extend",
        flaw="a paused or dead client renews nothing, and notices a lost lock late",
        safe=True,
        shown_by=("pause before-renew", "stop worker", "kill worker"),
        points=("before-renew",),
    )

    def __init__(self, servers: Sequence[PlainInstance], settings: RecipeSettings) -> None:
        super().__init__(servers, settings)
        self._changed = threading.Condition()
        self._due: dict[bytes, tuple[int, Lease]] = {}  # by owner token: when to renew (ns)
        self._awake_ns: float = inf  # until when the watchdog sleeps
        self._closed = False
        self._log = ExtensionLog(settings.attempts, settings.process) if settings.attempts is not None else None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SET NX PX; from now on it is renewed."""
        lease = super().attempt(resource, ttl_ms)
        if isinstance(lease, Lease):
            with self._changed:
                self._renew_after(lease, lease.started_ns)
        return lease

    def extend(self, lease: Lease) -> bool:
        """One more TTL, if the key is ours. Raises RedisError."""
        key, server = self.key(lease.resource), self.servers[0]
        return bool(server.run(COMPARE_AND_EXTEND, (key,), lease.owner_token, lease.ttl_ms))

    def give_back(self, lease: Lease) -> Outcome:
        """No more renewals; compare-and-delete."""
        with self._changed:
            self._due.pop(lease.owner_token, None)
        return super().give_back(lease)

    def abandon(self, lease: Lease) -> None:
        """A caller that is killed has no watchdog any more."""
        self.give_back(lease)

    def take_reply_times_ns(self) -> tuple[list[int], ...]:
        """See Recipe; once a second, so the moment to write what was extended."""
        if self._log is not None:
            self._log.flush()
        return super().take_reply_times_ns()

    def close(self) -> None:
        """End the watchdog, close the connections. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(1.0)
        super().close()

    def _renew_after(self, lease: Lease, sent_ns: int) -> None:
        due_ns = sent_ns + lease.ttl_ms * NS_PER_MS // RENEWALS_PER_TTL
        self._due[lease.owner_token] = due_ns, lease
        if due_ns < self._awake_ns:
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
                self._log.note(lease, sent_ns, monotonic_ns(), renewed)
            self._note(lease, renewed, sent_ns)

    def _next_due(self) -> Lease | None:
        """Waits for it; None when the recipe is closed."""
        with self._changed:
            while not self._closed:
                self._awake_ns, lease = min(self._due.values(), key=lambda one: one[0], default=(inf, None))
                left_s = (self._awake_ns - monotonic_ns()) / NS_PER_S
                if lease is not None and left_s <= 0:
                    return lease
                self._changed.wait(None if lease is None else left_s)
        return None

    def _note(self, lease: Lease, renewed: bool | None, sent_ns: int) -> None:
        """What a renewal means for its lease; None: no answer, so the next one decides."""
        with self._changed:
            if lease.owner_token not in self._due:
                return  # given back meanwhile
            self.figures["late_renewals"] += sent_ns > lease.valid_until_ns
            if renewed is False:
                del self._due[lease.owner_token]
                self.figures["lost_leases"] += 1
                self.figures["noticed_late_ms"] += max(monotonic_ns() - lease.valid_until_ns, 0) // NS_PER_MS
                return
            if renewed:
                lease.valid_until_ns = sent_ns + lease.ttl_ms * NS_PER_MS - drift_ns(lease.ttl_ms, DRIFT_FACTOR)
            self._renew_after(lease, sent_ns)


class WatchdogNaive(Watchdog):
    """Renewals extend whatever key is there. Flawed, on purpose: do not copy it."""

    about = replace(
        Watchdog.about,
        how="as watchdog, but renewed by a plain PEXPIRE",
        flaw="after a pause it extends a stranger's lock, and believes that it is its own",
        safe=False,
        shown_by=("pause before-renew", "stop worker"),
    )

    def extend(self, lease: Lease) -> bool:
        """One more TTL for whoever has it. Raises RedisError."""
        return bool(self.ask("PEXPIRE", self.key(lease.resource), lease.ttl_ms))
