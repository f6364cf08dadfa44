"""The lock without an end: *SETNX; DEL*. Flawed, on purpose: do not copy it.

Its fault: the key of a holder that dies stays for ever. Source: the table in the README of this folder.
"""

from __future__ import annotations

from bench.recipes.about import About
from bench.recipes.plain import FOREVER_NS, HELD, PlainRecipe, Refusal
from lockcore import Lease, Outcome
from lockcore.clock import monotonic_ns


class Setnx(PlainRecipe):
    """SETNX and DEL, no TTL."""

    about = About(
        how="SETNX, no TTL; DEL",
        flaw="a holder that dies holds for ever",
        safe=True,
        shown_by=("kill worker",),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SETNX."""
        started_ns = monotonic_ns()
        if not self.ask("SETNX", self.key(resource), "1"):
            return HELD
        return self.leased(resource, b"1", ttl_ms, started_ns, valid_until_ns=started_ns + FOREVER_NS)

    def give_back(self, lease: Lease) -> Outcome:
        """DEL."""
        return self.delete(lease.resource)
