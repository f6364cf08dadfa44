"""A TTL as an afterthought: *SETNX; EXPIRE; DEL*. Flawed, on purpose: do not copy it.

Its faults: a crash between the two commands leaves a key without TTL; the DEL removes whatever is there. PEXPIRE takes
the place of EXPIRE, whose second is too long for a test. Source: the table in the README of this folder.
"""

from __future__ import annotations

from bench.recipes.about import About
from bench.recipes.plain import HELD, PlainRecipe, Refusal
from lockcore import Lease, Outcome
from lockcore.clock import monotonic_ns


class SetnxExpire(PlainRecipe):
    """SETNX, then the TTL."""

    about = About(
        how="SETNX, then EXPIRE; DEL",
        flaw="a crash between the two leaves a key without TTL; its DEL removes a successor's lock",
        safe=False,
        shown_by=("kill worker at after-setnx", "pause after-grant", "stop worker"),
        points=("after-setnx",),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SETNX, then PEXPIRE."""
        key = self.key(resource)
        if not self.ask("SETNX", key, "1"):
            return HELD
        self.pause("after-setnx")
        started_ns = monotonic_ns()  # the TTL counts from here
        self.ask("PEXPIRE", key, ttl_ms)
        return self.leased(resource, b"1", ttl_ms, started_ns)

    def give_back(self, lease: Lease) -> Outcome:
        """DEL."""
        return self.delete(lease.resource)
