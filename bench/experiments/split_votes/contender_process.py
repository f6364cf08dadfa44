"""One contender of `lockbench split-votes`, alone in its process: *orders on stdin → its attempts
on stdout*.

Rules: one attempt is one round of SETs; retries are made here, by lockcore's own policy, so that
everybody stops when somebody has won. The winner holds until all others have stopped, so that a
trial has one grant. A lost attempt's clean-up counts as sent as soon as the attempt was lost: a
time never too late.
"""

import time
from pathlib import Path
from random import Random

import gevent
from msgspec.structs import replace

from bench.experiments.split_votes.contenders import STOP, StartingGate
from bench.experiments.split_votes.plan import (
    PATIENCE_MS,
    TTL_MS,
    Attempt,
    Block,
    CastVote,
    Contest,
    Enrolment,
)
from bench.recipes.plain import DEFINITE, PlainInstance
from bench.recipes.protocol import RecipeSettings
from bench.recipes.redlock import RedlockRandomOrder, RedlockSequential
from bench.topology.child import orders, say
from lockcore import AttemptRecord, Denied, LagCap, Lease, Outcome, Redlock, RetryPolicy, Vote
from lockcore.bench import quorum_of
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

# There may be more contenders than cores. A reply that waits for a core must not count as lost.
TIMEOUT_MS = 2000.0
# A contender stops sleeping so long before its start, and spins.
SPIN_NS = 150_000
# The time between two looks at the gate.
LOOK_S = 0.0002


class ParallelVoter:
    """lockcore's Redlock; an Observer of itself."""

    def __init__(self, enrolment: Enrolment) -> None:
        self._seat = enrolment.seat
        self._records = list[AttemptRecord]()
        self._released_ns = 0
        self._lock = Redlock.connect(  # noqa: S604 - this shell is a way of waiting
            enrolment.urls,
            shell="gevent",
            key_prefix=enrolment.key_prefix,
            max_ttl_ms=TTL_MS,
            instance_timeout_ms=TIMEOUT_MS,
            lag_cap=LagCap(age_ms=TIMEOUT_MS),
            rejoin="trust",
            retry=RetryPolicy("none"),
            observer=self,
        )

    def observe(self, record: AttemptRecord) -> None:
        """See Observer."""
        self._records.append(record)

    def acquire(self, resource: str) -> Lease | Denied:
        """Make one attempt."""
        self._records.clear()
        self._released_ns = 0
        return self._lock.try_acquire(resource, TTL_MS)

    def release(self, lease: Lease) -> None:
        """Give the lease back."""
        self._released_ns = monotonic_ns()
        self._lock.try_release(lease)

    def attempt(self) -> Attempt:
        """How the last one went, once all its replies, and those to its release, are there."""
        while not self._records or any(status.pending for status in self._lock.instances):
            gevent.sleep(LOOK_S)
        record = self._records[0]
        won = record.outcome is Outcome.ACQUIRED
        given_back_ns = self._released_ns if won else lost_ns(record)
        votes = [
            CastVote(vote, sent_ns, replied_ns, given_back_ns if sent_ns else 0)
            for vote, sent_ns, replied_ns in zip(
                record.votes, record.sent_ns, record.replied_ns, strict=True
            )
        ]
        until_ns = record.decided_ns + record.validity_ns if won else 0
        return Attempt(
            self._seat, record.started_ns, record.decided_ns, record.outcome, tuple(votes), until_ns
        )


def lost_ns(record: AttemptRecord) -> int:
    """When (ns) a lost attempt knew that it was: so many instances had not granted that no quorum
    was left."""
    spare = len(record.votes) - quorum_of(len(record.votes))
    others = [
        at
        for vote, at in zip(record.votes, record.replied_ns, strict=True)
        if vote is not Vote.GRANTED
    ]
    replies_ns = sorted(at or record.closed_ns for at in others)
    # TOO_LATE: won, and not in time
    return replies_ns[spare] if len(replies_ns) > spare else record.decided_ns


class TimedInstance(PlainInstance):
    """An instance that keeps its vote in the present attempt."""

    cast = CastVote(Vote.ABSENT)

    def ask(self, *command: object) -> object:
        """See PlainInstance.ask."""
        asked_ns = monotonic_ns()
        if command[0] != "SET":
            self.cast = replace(self.cast, release_sent_ns=self.cast.release_sent_ns or asked_ns)
            return super().ask(*command)
        self.cast = CastVote(Vote.SILENT, asked_ns)
        try:
            reply = super().ask(*command)
        except DEFINITE:
            self.cast = CastVote(Vote.ERRORED, asked_ns, monotonic_ns())
            raise
        self.cast = CastVote(
            Vote.REFUSED if reply is None else Vote.GRANTED, asked_ns, monotonic_ns()
        )
        return reply


class SequentialVoter:
    """One of the two recipes that ask one instance after the other."""

    def __init__(self, enrolment: Enrolment, recipe: type[RedlockSequential]) -> None:
        settings = RecipeSettings(
            key_prefix=enrolment.key_prefix,
            max_ttl_ms=TTL_MS,
            instance_timeout_ms=TIMEOUT_MS,
            retry=RetryPolicy("none"),
            seed=enrolment.seed,
            process=enrolment.seat,
        )
        self._servers = [
            TimedInstance(index, url, settings) for index, url in enumerate(enrolment.urls)
        ]
        self._lock = recipe(self._servers, settings)
        self._seat = enrolment.seat
        self._started_ns = 0
        self._ended_ns = 0
        self._result: Lease | Denied
        self.release = self._lock.release

    def acquire(self, resource: str) -> Lease | Denied:
        """See ParallelVoter."""
        self._started_ns = monotonic_ns()
        self._result = self._lock.acquire(resource, TTL_MS, 0)
        self._ended_ns = monotonic_ns()
        return self._result

    def attempt(self) -> Attempt:
        """See ParallelVoter.

        The recipe cleans up before it returns: a lost attempt was decided by its last vote.
        """
        votes = tuple(server.cast for server in self._servers)
        if isinstance(self._result, Lease):
            decided_ns = self._ended_ns
            until_ns = self._result.valid_until_ns
        else:
            decided_ns = max(one.replied_ns for one in votes) or self._ended_ns
            until_ns = 0
        return Attempt(
            self._seat, self._started_ns, decided_ns, self._result.outcome, votes, until_ns
        )


class Contender:
    """One of the contenders."""

    def __init__(self, enrolment: Enrolment, gate: StartingGate) -> None:
        self._seat = enrolment.seat
        self._gate = gate
        self._rng = Random(f"{enrolment.seed} {enrolment.seat} contender")
        self._voters: dict[str, ParallelVoter | SequentialVoter] = {
            "parallel": ParallelVoter(enrolment),
            "sequential": SequentialVoter(enrolment, RedlockSequential),
            "random": SequentialVoter(enrolment, RedlockRandomOrder),
        }

    def run(self, block: Block) -> list[tuple[int, Attempt]]:
        """Take part in all trials of a block; every attempt with its trial's number."""
        records: list[tuple[int, Attempt]] = []
        gate = self._gate
        voter = self._voters[block.contest.order]
        start_ns = gate.start[0]
        for trial in block.trials:
            gate.ready[self._seat] = trial
            while gate.start[0] == start_ns != STOP:
                time.sleep(LOOK_S)
            start_ns = gate.start[0]
            if start_ns == STOP:
                break
            lease, attempts = self._try_for(block.contest, trial, int(start_ns))
            gate.finished[self._seat] = trial
            if lease is not None:
                while (gate.finished[: block.contest.contenders] < trial).any() and gate.start[
                    0
                ] != STOP:
                    time.sleep(LOOK_S)
                voter.release(lease)
                attempts.append(voter.attempt())
            records += [(trial, attempt) for attempt in attempts]
        return records

    def _try_for(
        self, contest: Contest, trial: int, start_ns: int
    ) -> tuple[Lease | None, list[Attempt]]:
        """Attempt after attempt, until somebody has won or the policy or the patience is at its
        end; the lost ones."""
        voter = self._voters[contest.order]
        resource = f"trial-{trial}"
        policy = RetryPolicy(contest.retry.policy, contest.retry.window_ms)
        deadline_ns = start_ns + int(PATIENCE_MS * NS_PER_MS)
        _sleep_until(start_ns + int(self._rng.uniform(0, contest.spread_ms) * NS_PER_MS))
        lost: list[Attempt] = []
        while True:
            result = voter.acquire(resource)
            if isinstance(result, Lease):
                self._gate.won[0] = trial
                return result, lost
            lost.append(voter.attempt())
            next_ns = policy.next_start_ns(
                result.outcome, len(lost), lost[-1].decided_ns, deadline_ns, self._rng.random()
            )
            if next_ns is None or not self._rest(next_ns, trial):
                return None, lost

    def _rest(self, until_ns: int, trial: int) -> bool:
        """Wait for the next attempt; False when there is no need for it."""
        while self._gate.won[0] < trial and self._gate.start[0] != STOP:
            left_ns = until_ns - monotonic_ns()
            if left_ns <= 0:
                return True
            gevent.sleep(min(LOOK_S, left_ns / NS_PER_S))
        return False


# All contenders must start within microseconds of each other, and a sleep ends later than it was
# asked to. So a contender sleeps until shortly before its start and then reads the clock in a loop.
# With sleep alone the starts are spread by the scheduler, and attempts overlap less than the row
# says.
def _sleep_until(due_ns: int) -> None:
    """Return at `due_ns`: asleep until shortly before, then awake."""
    while (left_ns := due_ns - monotonic_ns() - SPIN_NS) > 0:
        time.sleep(left_ns / NS_PER_S)
    while monotonic_ns() < due_ns:
        pass


def main() -> None:
    """Enrol, say so, then answer every block with the attempts made."""
    enrolment = next(orders(Enrolment), None)
    if enrolment is None:
        return
    contender = Contender(enrolment, StartingGate(Path(enrolment.gate), enrolment.seats))
    say("enrolled")
    for block in orders(Block):
        say(contender.run(block))


if __name__ == "__main__":
    main()
