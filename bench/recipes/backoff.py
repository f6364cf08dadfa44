"""Exponential back-off by hand: *SET NX PX uuid1; refused → 0.1 s, 0.2 s, … 5 s; no try/finally*.

Flawed, on purpose: do not copy it. Its faults: who was refused often sleeps longest, so newcomers overtake it
(starvation); an exception in the body leaves the lock where it is.
Source: the table in the README of this folder.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid1

from bench.recipes.plain import HELD, PlainRecipe, Refusal
from bench.recipes.protocol import About
from lockcore import Lease, Outcome
from lockcore.clock import NS_PER_MS, monotonic_ns

FIRST_MS, LONGEST_MS = 100, 5_000


class Backoff(PlainRecipe):
    """The longer one waits, the more seldom one asks. Flawed, on purpose: do not copy it."""

    about = About(
        how="SET NX PX with a uuid1; refused: wait 0.1 s, doubling to 5 s; used without try/finally",
        flaw="starves who waits long; an exception in the body leaks the lock",
        safe=True,
        shown_by=("same-time start", "exception in the body"),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SET NX PX."""
        token, started_ns = str(uuid1()).encode(), monotonic_ns()
        if self.ask("SET", self.key(resource), token, "NX", "PX", ttl_ms) is None:
            return HELD
        return self.leased(resource, token, ttl_ms, started_ns)

    def give_back(self, lease: Lease) -> Outcome:
        """Compare-and-delete."""
        deleted = self.servers[0].delete_own(self.key(lease.resource), lease.owner_token)
        return Outcome.RELEASED if deleted else Outcome.GONE

    def next_start_ns(self, outcome: Outcome, attempts: int, now_ns: int, deadline_ns: int) -> int | None:
        """Twice the last wait; the scenario's retry policy has no say."""
        if outcome is not Outcome.CONTENDED:
            return None
        start_ns = now_ns + min(FIRST_MS << min(attempts - 1, 16), LONGEST_MS) * NS_PER_MS
        return start_ns if start_ns <= deadline_ns else None

    def run(self, resource: str, ttl_ms: int, wait_ms: int, body: Callable[[Lease], None]) -> bool:
        """As described: what the body raises goes past the release."""
        lease = self.acquire(resource, ttl_ms, wait_ms)
        if not isinstance(lease, Lease):
            return False
        body(lease)
        self.release(lease)
        return True
