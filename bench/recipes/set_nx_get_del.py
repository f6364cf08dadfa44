"""The lock that looks before it deletes: *SET key token NX PX; GET == mine, then DEL*.

Flawed, on purpose: do not copy it. Its fault: between the GET and the DEL the key may expire and become somebody
else's.
Source: the table in the README of this folder.
"""

from __future__ import annotations

from bench.recipes.about import About
from bench.recipes.plain import HELD, PlainRecipe, Refusal
from lockcore import Lease, Outcome
from lockcore.clock import monotonic_ns


class SetNxGetDel(PlainRecipe):
    """A unique value, compared by the client."""

    about = About(
        how="SET NX PX with a unique value; GET, and DEL if it is ours",
        flaw="the gap between GET and DEL: the key may be another's by then",
        safe=False,
        shown_by=("pause after-get",),
        points=("after-get",),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SET NX PX."""
        token, started_ns = self.new_token(), monotonic_ns()
        if self.ask("SET", self.key(resource), token, "NX", "PX", ttl_ms) is None:
            return HELD
        return self.leased(resource, token, ttl_ms, started_ns)

    def give_back(self, lease: Lease) -> Outcome:
        """GET, then DEL."""
        if self.ask("GET", self.key(lease.resource)) != lease.owner_token:
            return Outcome.GONE
        self.pause("after-get")
        return self.delete(lease.resource)
