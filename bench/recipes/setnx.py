"""Locks that set a key and hope: *GET, then SET; SETNX; SETNX, then EXPIRE*. Flawed, on purpose: do not copy them.

Their faults: between GET and SET others have read the same; without a TTL the key of a holder that dies stays for ever;
with a TTL as an afterthought a crash between the two commands leaves such a key, and the DEL removes whatever is there.

Those whose value is the time of their end are taken over by GETSET or by SET. Clocks must be synchronised; the loser of
a takeover overwrites the winner's end; with SET in place of GETSET both win. The company's lock of 2013 releases by
"not expired, so DEL": an owner blocked for longer than its TTL reads the fresh end of its successor, finds it not
expired, and deletes it.
"""

from __future__ import annotations

from dataclasses import replace

from bench.recipes.plain import FOREVER_NS, HELD, PlainRecipe, Refusal
from bench.recipes.protocol import About
from lockcore import Lease, Outcome
from lockcore.clock import NS_PER_MS, monotonic_ns


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


class TimestampGetset(PlainRecipe):
    """The value is the wall-clock time (ms) at which the lock ends. Flawed, on purpose: do not copy it."""

    about = About(
        how="SETNX with the end as value; an ended lock is taken over by GETSET; DEL while not ended",
        flaw="needs synchronised clocks; the loser of a takeover overwrites the winner's end",
        safe=False,
        shown_by=("client clock skew", "pause after-get", "pause after-check"),
        points=("after-get", "after-check"),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SETNX; GET; GETSET if what was read has ended."""
        key, started_ns, end_ms = self.key(resource), monotonic_ns(), self.wall_ms() + ttl_ms
        if self.ask("SETNX", key, end_ms):
            return self._until(resource, end_ms, ttl_ms, started_ns)
        seen = self.ask("GET", key)
        if seen is None or int(seen) >= self.wall_ms():
            return HELD
        self.pause("after-get")
        started_ns, end_ms = monotonic_ns(), self.wall_ms() + ttl_ms
        return self._until(resource, end_ms, ttl_ms, started_ns) if self.take_over(key, seen, end_ms) else HELD

    def take_over(self, key: str, seen: bytes, end_ms: int) -> bool:
        """True for the one whose GETSET meets the end that was read; every other one has moved the winner's end."""
        won: bool = self.ask("GETSET", key, end_ms) == seen
        self.figures["overwritten_ends"] += not won
        return won

    def give_back(self, lease: Lease) -> Outcome:
        """DEL, unless our own end has passed: then the key may be a successor's."""
        if self.wall_ms() > int(lease.owner_token):
            return Outcome.GONE
        self.pause("after-check")
        return self.delete(lease.resource)

    def _until(self, resource: str, end_ms: int, ttl_ms: int, started_ns: int) -> Lease:
        valid_until_ns = started_ns + ttl_ms * NS_PER_MS
        return self.leased(resource, b"%d" % end_ms, ttl_ms, started_ns, valid_until_ns=valid_until_ns)


class TimestampSet(TimestampGetset):
    """As timestamp-getset, but nobody looks what the takeover replaced. Flawed, on purpose: do not copy it."""

    about = replace(
        TimestampGetset.about,
        how="as timestamp-getset, but an ended lock is taken over by SET",
        flaw="two winners at a takeover; needs synchronised clocks",
    )

    def take_over(self, key: str, seen: bytes, end_ms: int) -> bool:
        """Whoever comes takes it."""
        self.ask("SET", key, end_ms)
        return True


class Company2013(TimestampGetset):
    """As timestamp-getset, but the release trusts whatever timestamp it finds. Flawed, on purpose: do not copy it."""

    about = replace(
        TimestampGetset.about,
        how="as timestamp-getset; the release reads the key: not expired → DEL",
        flaw="a blocked owner deletes its successor's lock: the check reads the successor's timestamp",
        shown_by=("pause after-grant", "stop worker", "client clock skew"),
    )

    def give_back(self, lease: Lease) -> Outcome:
        """GET; DEL if the timestamp that is there now has not passed."""
        end_ms = self.ask("GET", self.key(lease.resource))
        if end_ms is None or int(end_ms) < self.wall_ms():
            return Outcome.GONE
        self.pause("after-check")
        return self.delete(lease.resource)
