"""Read the variable, and set it if it is 0: *GET; SET key 1*. Flawed, on purpose: do not copy it.

Its fault: between the GET and the SET anybody else may have read the same 0. Here an absent key is the 0, so that
nothing is left behind. Source: the first row of the table in the README of this folder.
"""

from __future__ import annotations

from bench.recipes.about import About
from bench.recipes.plain import FOREVER_NS, HELD, PlainRecipe, Refusal
from lockcore import Lease, Outcome
from lockcore.clock import monotonic_ns


class GetSet(PlainRecipe):
    """Two commands where one is needed."""

    about = About(
        how="GET the variable, SET it to 1 if it is 0",
        flaw="not atomic: all who read 0 before the first SET get the lock",
        safe=False,
        shown_by=("pause after-get",),
        points=("after-get",),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """GET, then SET."""
        key, started_ns = self.key(resource), monotonic_ns()
        if self.ask("GET", key) is not None:
            return HELD
        self.pause("after-get")
        self.ask("SET", key, "1")
        return self.leased(resource, b"1", ttl_ms, started_ns, valid_until_ns=started_ns + FOREVER_NS)

    def give_back(self, lease: Lease) -> Outcome:
        """The variable is 0 again."""
        return self.delete(lease.resource)
