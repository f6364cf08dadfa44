"""The exact judgement against the truth: simulated servers know who held what when, the contenders'
records do not."""

import heapq
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from msgspec.structs import replace

from bench.experiments.split_votes.judge import ending_of, rounds_of
from bench.experiments.split_votes.plan import Attempt, CastVote
from lockcore import Outcome, Vote
from lockcore.facts.quorum import outcome_of, quorum_of


@dataclass
class World:
    """K contenders with one attempt each on N instances, messages delayed at random; a loser gives
    back at once."""

    contenders: int
    instances: int
    rng: Random
    # losers give nothing back
    patient: bool
    now: int = 0
    events: list = field(default_factory=list)
    numbers: count = field(default_factory=count)

    def __post_init__(self) -> None:
        shape = range(self.contenders), range(self.instances)
        self.holder: list[int | None] = [None] * self.instances
        # after each event: when, who holds which instance
        self.truth: list[tuple[int, list[int | None]]] = []
        self.sent = {(who, where): 0 for who in shape[0] for where in shape[1]}
        self.vote: dict[tuple[int, int], Vote] = {}
        self.replied: dict[tuple[int, int], int] = {}
        self.heard: dict[int, Counter[Vote]] = {who: Counter() for who in shape[0]}
        self.started = {who: self.rng.randrange(0, 40) for who in shape[0]}
        self.decided: dict[int, int] = {}
        self.given_back: dict[int, int] = {}
        for who in shape[0]:
            for where in shape[1]:
                self.sent[who, where] = self.started[who] + self.rng.randrange(0, 20)
                self.at(self.sent[who, where] + self.delay(), self.arrive, who, where)

    def delay(self) -> int:
        return 1 + int(self.rng.expovariate(1 / 100))

    def at(self, when: int, do, *arguments: int) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), do, arguments))

    def run(self) -> None:
        while self.events:
            self.now, _, do, arguments = heapq.heappop(self.events)
            do(*arguments)
            self.truth.append((self.now, list(self.holder)))

    def arrive(self, who: int, where: int) -> None:
        granted = self.holder[where] is None
        if granted:
            self.holder[where] = who
        self.vote[who, where] = Vote.GRANTED if granted else Vote.REFUSED
        self.at(self.now + self.delay(), self.reply, who, where)

    def reply(self, who: int, where: int) -> None:
        self.replied[who, where] = self.now
        votes = self.heard[who]
        votes[self.vote[who, where]] += 1
        spare = self.instances - quorum_of(self.instances)
        if votes[Vote.GRANTED] == quorum_of(self.instances):
            self.decided.setdefault(who, self.now)
        elif votes[Vote.REFUSED] == spare + 1 and who not in self.decided:
            self.decided[who] = self.now
            if not self.patient:
                self.give_back(who)

    def give_back(self, who: int) -> None:
        self.given_back[who] = self.now
        for where in range(self.instances):
            self.at(self.now + self.delay(), self.delete, who, where)

    def delete(self, who: int, where: int) -> None:
        # one connection keeps the order: the SET comes first
        if (who, where) not in self.vote:
            self.at(self.now + 1, self.delete, who, where)
            return
        if self.holder[where] == who:
            self.holder[where] = None

    def attempts(self) -> list[Attempt]:
        found = []
        for who in range(self.contenders):
            votes = tuple(
                CastVote(
                    self.vote[who, where],
                    self.sent[who, where],
                    self.replied[who, where],
                    self.given_back.get(who, 0),
                )
                for where in range(self.instances)
            )
            kinds = [cast.vote for cast in votes]
            outcome = outcome_of(
                kinds.count(Vote.GRANTED), kinds.count(Vote.REFUSED), quorum_of(self.instances)
            )
            until = 10**9 if outcome is Outcome.ACQUIRED else 0
            found.append(Attempt(who, self.started[who], self.decided[who], outcome, votes, until))
        return found

    def was_split(self) -> bool:
        """Whether at some moment nobody could get a quorum together, by what the servers knew."""
        quorum = quorum_of(self.instances)
        for _, holders in self.truth:
            held = Counter(who for who in holders if who is not None)
            free = holders.count(None)
            if max(held.values(), default=0) + free < quorum:
                return True
        return False


def simulated(instances: int, contenders: int, seed: int, *, patient: bool = False) -> World:
    world = World(contenders, instances, Random(seed), patient)
    world.run()
    return world


def wins_hidden(world: World) -> list[Attempt]:
    """The attempts as if no win had been noticed: then the votes alone must tell that it was no
    split vote."""
    return [replace(attempt, outcome=Outcome.CONTENDED) for attempt in world.attempts()]


@pytest.mark.parametrize(
    ("instances", "contenders"), [(3, 3), (4, 2), (5, 3), (5, 5), (5, 10), (6, 4)]
)
def test_a_split_vote_that_is_found_was_one_and_many_are_found(
    instances: int, contenders: int
) -> None:
    found = true = other = 0
    for seed in range(120):
        world = simulated(instances, contenders, seed)
        is_split = world.was_split()
        if ending_of(wins_hidden(world)) == "split":
            assert is_split, seed
        attempts = world.attempts()
        found += ending_of(attempts) == "split"
        true += is_split and not any(attempt.is_won for attempt in attempts)
        other += not is_split
    assert min(true, other) > 8, "both happen, or nothing is tested"
    assert found > 0.25 * true


def test_when_losers_keep_their_votes_every_round_that_nobody_wins_is_found() -> None:
    endings = Counter(
        ending_of(simulated(5, 5, seed, patient=True).attempts()) for seed in range(100)
    )
    assert endings["unproven"] == 0
    assert min(endings["split"], endings["won"]) > 15


def test_forgotten_releases_would_be_caught() -> None:
    """The negative control of the first test: votes that count although they were given back."""
    wrong = 0
    for seed in range(400):
        world = simulated(4, 2, seed)
        world.given_back.clear()
        wrong += ending_of(wins_hidden(world)) == "split" and not world.was_split()
    assert wrong > 0


def test_a_trial_of_thousands_of_attempts_is_judged_in_seconds() -> None:
    """Contenders that retry on five instances for seconds: one endless round."""
    attempts = simulated(5, 2000, seed=1).attempts()
    before = time.process_time()
    assert ending_of(attempts) != "unreachable"
    assert sum(map(len, rounds_of(attempts))) == len(attempts)
    # 0.1 s; it was a matter of hours when every pair was looked at
    assert time.process_time() - before < 10
