"""Redlock as most libraries have it: *SET NX PX on N instances, one after the other; won on a quorum in time*.

Its faults: an acquire takes N round trips, and as long is the window in which contenders split the votes. Exclusion is
that of Redlock. In random order contenders meet the instances in different orders, so they split the votes more often.

`majority-release` stops its release at the quorum: the keys left on the minority refuse the next holder until their
TTL; it then wins without margin, or, with one more instance down, not at all. Flawed, on purpose: do not copy it.
Source: the Redlock text, "The Redlock algorithm"; lockcore.quorum names the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random

from redis.exceptions import RedisError

from bench.recipes.instance import DEFINITE, PlainInstance
from bench.recipes.plain import PlainRecipe, Refusal
from bench.recipes.protocol import About, RecipeSettings
from lockcore import Lease, Outcome, Tally, Vote
from lockcore.clock import monotonic_ns
from lockcore.quorum import outcome_of, owned_outcome_of, quorum_of


class RedlockSequential(PlainRecipe):
    """N instances, each asked when the one before has answered."""

    about = About(
        how="Redlock through redis-py: N instances one after the other, always in the same order",
        flaw="slow: N round trips, and as wide a window for split votes",
        safe=True,
        shown_by=("pause after-vote",),
        most=None,
        usual=5,
        points=("after-vote",),
    )

    @classmethod
    def needed(cls, instances: int) -> int:
        """A quorum."""
        return quorum_of(instances)

    def order(self) -> Sequence[PlainInstance]:
        """In which order the instances are asked this time."""
        return self.servers

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """One round: ask all, count; give back what was got unless it is a quorum in time."""
        token, started_ns, votes = self.new_token(), monotonic_ns(), []
        try:
            for server in self.order():
                votes.append(_vote(server, self.key(resource), token, ttl_ms))
                self.pause("after-vote")
        except BaseException:
            self._undo(resource, token)
            raise
        tally = Tally(*(votes.count(vote) for vote in (Vote.GRANTED, Vote.REFUSED, Vote.ERRORED, Vote.SILENT)))
        outcome = outcome_of(tally.granted, tally.refused, quorum_of(len(votes)))
        lease = self.leased(resource, token, ttl_ms, started_ns, tally=tally)
        if outcome is Outcome.ACQUIRED and lease.granted_ns < lease.valid_until_ns:
            return lease
        self._undo(resource, token)
        return Refusal(Outcome.TOO_LATE if outcome is Outcome.ACQUIRED else outcome, tally)

    def give_back(self, lease: Lease) -> Outcome:
        """Compare-and-delete on all, whether or not their vote was got."""
        answers = [deleted(server, self.key(lease.resource), lease.owner_token) for server in self.servers]
        instances = len(self.servers)
        return owned_outcome_of(answers.count(True), answers.count(False), instances, quorum_of(instances))

    def abandon(self, lease: Lease) -> None:
        """A caller that is killed has its keys deleted all the same."""
        self._undo(lease.resource, lease.owner_token)

    def _undo(self, resource: str, token: bytes) -> None:
        for server in self.servers:
            deleted(server, self.key(resource), token)


class RedlockRandomOrder(RedlockSequential):
    """The same, each round in an order of its own."""

    about = replace(
        RedlockSequential.about,
        how="as redlock-sequential, but every round asks the instances in a random order",
        flaw="slow, and splits the votes more often than one order for all",
    )

    def __init__(self, servers: Sequence[PlainInstance], settings: RecipeSettings) -> None:
        super().__init__(servers, settings)
        self._dice = Random(f"{settings.seed} {settings.process} order")

    def order(self) -> Sequence[PlainInstance]:
        """A shuffle drawn from the seed."""
        return self._dice.sample(self.servers, len(self.servers))


def _vote(server: PlainInstance, key: str, token: bytes, ttl_ms: int) -> Vote:
    try:
        return Vote.REFUSED if server.ask("SET", key, token, "NX", "PX", ttl_ms) is None else Vote.GRANTED
    except DEFINITE:
        return Vote.ERRORED
    except RedisError:
        return Vote.SILENT


def deleted(server: PlainInstance, key: str, token: bytes) -> bool | None:
    """Compare-and-delete on one instance; None when it did not say."""
    with suppress(RedisError):
        return server.delete_own(key, token)
    return None


class MajorityRelease(RedlockSequential):
    """As redlock-sequential, but the release stops at the quorum. Flawed, on purpose: do not copy it."""

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
