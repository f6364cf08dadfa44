"""Locks that set a key and hope: *GET, then SET; SETNX; SETNX, then EXPIRE*. Flawed, on purpose: do not copy them.

Their faults: between GET and SET others have read the same; without a TTL the key of a holder that dies stays for ever;
with a TTL as an afterthought a crash between the two commands leaves such a key, and the DEL removes whatever is there.
"""

from __future__ import annotations

from bench.recipes.plain import FOREVER_NS, HELD, PlainRecipe, Refusal
from bench.recipes.protocol import About
from lockcore import Lease, Outcome
from lockcore.clock import monotonic_ns


class GetSet(PlainRecipe):
    """Two commands where one is needed. Flawed, on purpose: do not copy it."""

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


class Setnx(PlainRecipe):
    """SETNX and DEL, no TTL. Flawed, on purpose: do not copy it."""

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


class SetnxExpire(PlainRecipe):
    """SETNX, then the TTL. Flawed, on purpose: do not copy it."""

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
