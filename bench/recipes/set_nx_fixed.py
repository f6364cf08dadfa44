"""The lock everybody's value opens: *SET key 1 NX EX; DEL*. Flawed, on purpose: do not copy it.

Its fault: a holder that outlives its TTL deletes its successor's lock, whose release deletes the next one's: one
overstay starts a chain. Source: the table in the README of this folder.
"""

from __future__ import annotations

from bench.recipes.about import About
from bench.recipes.plain import HELD, PlainRecipe, Refusal
from lockcore import Lease, Outcome
from lockcore.clock import monotonic_ns


class SetNxFixed(PlainRecipe):
    """The same value for everybody, a plain DEL."""

    about = About(
        how="SET NX PX with the same value for all; DEL",
        flaw="deletes somebody else's lock after its own has expired",
        safe=False,
        shown_by=("pause after-grant", "stop worker"),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SET NX PX."""
        started_ns = monotonic_ns()
        if self.ask("SET", self.key(resource), "1", "NX", "PX", ttl_ms) is None:
            return HELD
        return self.leased(resource, b"1", ttl_ms, started_ns)

    def give_back(self, lease: Lease) -> Outcome:
        """DEL."""
        return self.delete(lease.resource)
