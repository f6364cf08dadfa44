"""Redlock released on a quorum only: *the first N / 2 + 1 that confirm; the rest keep the key*.

Flawed, on purpose: do not copy it. Its fault: the keys left on the minority refuse the next holder until their TTL; it
then wins without margin, or, with one more instance down, not at all. Source: the table in the README of this folder.
"""

from __future__ import annotations

from dataclasses import replace

from bench.recipes.redlock_sequential import RedlockSequential, deleted
from lockcore import Lease, Outcome
from lockcore.quorum import owned_outcome_of, quorum_of


class MajorityRelease(RedlockSequential):
    """As redlock-sequential, but the release stops at the quorum."""

    about = replace(
        RedlockSequential.about,
        how="as redlock-sequential, but the release stops once a quorum has confirmed it",
        flaw="the keys left on the minority block the next holder until their TTL",
        shown_by=("kill instance", "stop instance"),
        least=2,
    )

    def give_back(self, lease: Lease) -> Outcome:
        """Compare-and-delete on one after the other, until a quorum has confirmed."""
        ours = not_ours = 0
        instances, quorum = len(self.servers), quorum_of(len(self.servers))
        for server in self.servers:
            answer = deleted(server, self.key(lease.resource), lease.owner_token)
            ours, not_ours = ours + (answer is True), not_ours + (answer is False)
            if ours >= quorum:
                break
        return owned_outcome_of(ours, not_ours, instances, quorum)
