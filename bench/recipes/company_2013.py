"""A company's lock of 2013: *taken over by GETSET; released by "not expired, so DEL"*.

Flawed, on purpose: do not copy it. Its fault: an owner blocked for longer than its TTL reads, at its release, the fresh
timestamp of its successor, finds it not expired, and deletes it. Source: the table in the README of this folder.
"""

from __future__ import annotations

from dataclasses import replace

from bench.recipes.timestamp_getset import TimestampGetset
from lockcore import Lease, Outcome


class Company2013(TimestampGetset):
    """As timestamp-getset, but the release trusts whatever timestamp it finds."""

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
