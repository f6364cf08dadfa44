"""Releases and extensions while their answers come in: every table, in every order, against a naive
reading."""

from collections.abc import Iterator
from itertools import permutations, product
from random import Random

import pytest

from lockcore.facts.model import Lease, Outcome
from lockcore.facts.quorum import owned_outcome_of
from lockcore.rounds import rounds
from lockcore.rounds.rounds import ExtendRound, ReleaseRound
from tests.doubles.keyspace import NIL, ONE, WRONGTYPE, ZERO
from tests.lockcore import reading
from tests.lockcore.reading import ERRORED, NOT_OURS, OURS
from tests.lockcore.scripted import EVALSHA, ScriptedFleet, name_of, rounds_kept

SILENT = "silent"
# the connection breaks before the answer
BROKEN = "broken"
# it was sent the SET, and is not connected now
DOWN = "down"
# it was not sent the SET, and is not connected
NEVER = "never"
# it was not sent the SET, but is connected now
LATE = "late"
FATES = (OURS, NOT_OURS, ERRORED, SILENT, BROKEN, DOWN, NEVER, LATE)
WITHOUT_SET = (NEVER, LATE)
TIMEOUT_MS = 50

Fate = tuple[str, ...]
Order = tuple[int, ...]


class Play:
    """One release or extension through all its events, checked after each."""

    def __init__(self, fates: Fate, company: int = 0) -> None:
        self.fates = fates
        self.fleet = fleet = ScriptedFleet(len(fates), connect=False, dialect=EVALSHA)
        for index, fate in enumerate(fates):
            if fate not in WITHOUT_SET:
                fleet.attach(index)
        leases = [fleet.won(f"stock {number}") for number in range(2 * company + 1)]
        fleet.engine.take_ready()
        for index, fate in enumerate(fates):
            if fate == DOWN:
                fleet.detach(index)
            elif fate == LATE:
                fleet.attach(index)
        self.company = company
        self.round = self.start(leases)
        self.heard: list[int] = []

    def start(self, leases: list[Lease]) -> ReleaseRound:
        raise NotImplementedError

    def answer_of(self, fate: str) -> bytes:
        return {OURS: ONE, NOT_OURS: ZERO, ERRORED: WRONGTYPE, LATE: ZERO}[fate]

    def arrivals(self) -> list[int]:
        raise NotImplementedError

    def happen(self, index: int) -> None:
        fate = self.fates[index]
        if fate == BROKEN:
            self.fleet.detach(index)
        else:
            self.fleet.reply(index, *[ONE] * self.company, self.answer_of(fate))
        self.fleet.flush()
        self.heard.append(index)

    def known_at_once(self, fate: str) -> str | None:
        """What is known of an instance that is not asked."""
        raise NotImplementedError

    def reading_of(self, index: int) -> str | None:
        """What is known of an instance by now."""
        fate = self.fates[index]
        answer = {BROKEN: ERRORED, LATE: NOT_OURS}.get(fate, fate)
        return self.known_at_once(fate) or (answer if index in self.heard else None)

    def check(self) -> None:
        """Settled as soon as no answer can change the name, and not before."""
        known = [self.reading_of(index) for index in range(len(self.fates))]
        names = reading.owned_names(tuple(sorted(one for one in known if one)), known.count(None))
        assert name_of(self.round) == (next(iter(names)) if len(names) == 1 else None)

    def check_end(self) -> None:
        self.fleet.tick(TIMEOUT_MS)
        full = [self.reading_of(index) or ERRORED for index in range(len(self.fates))]
        assert name_of(self.round) == reading.owned_name(full)
        assert sum(self.round.tally) == len(self.fates)
        said_no = self.fates.count(NOT_OURS) + (
            self.fates.count(LATE) if isinstance(self, Extension) else 0
        )
        assert self.round.tally[:3] == (self.fates.count(OURS), said_no, self.fates.count(ERRORED))
        assert self.round.tally.silent == self.fates.count(SILENT) + self.fates.count(BROKEN)
        assert self.round.tally.undecided == 0
        self.check_sent()
        self.fleet.drain()
        self.fleet.engine.take_ready()
        self.fleet.tick(TIMEOUT_MS)
        assert self.fleet.is_empty()
        assert rounds_kept(self.fleet.engine) == []

    def check_sent(self) -> None:
        raise NotImplementedError


class Release(Play):
    def start(self, leases: list[Lease]) -> ReleaseRound:
        fleet = self.fleet
        all_rounds = fleet.release_together(leases)
        return all_rounds[self.company]

    def known_at_once(self, fate: str) -> str | None:
        """Where the SET was not sent the key cannot be ours."""
        if fate in WITHOUT_SET:
            return NOT_OURS
        return ERRORED if fate == DOWN else None

    def arrivals(self) -> list[int]:
        return [
            index
            for index, fate in enumerate(self.fates)
            if fate in (OURS, NOT_OURS, ERRORED, BROKEN)
        ]

    def check_sent(self) -> None:
        """Once to every instance that was sent the SET; to one that was not connected, as soon as
        it is."""
        for index, fate in enumerate(self.fates):
            if fate in WITHOUT_SET:
                expected = []
            elif fate == DOWN:
                expected = ["set"]
            else:
                expected = ["set", "release"]
            assert self.fleet.about(index, self.round.won) == expected
            if fate in (DOWN, BROKEN):
                self.fleet.attach(index)
                self.fleet.flush()
                assert self.fleet.about(index, self.round.won) == [*expected, "release"]


class Extension(Play):
    def start(self, leases: list[Lease]) -> ExtendRound:
        self.company = 0
        self.fleet.after(1)
        return self.fleet.extend(leases[0])

    def known_at_once(self, fate: str) -> str | None:
        """Whoever cannot be asked is unknown."""
        return ERRORED if fate in (DOWN, NEVER) else None

    def arrivals(self) -> list[int]:
        return [
            index
            for index, fate in enumerate(self.fates)
            if fate in (OURS, NOT_OURS, ERRORED, BROKEN, LATE)
        ]

    def check_sent(self) -> None:
        """Once to every connected instance, also to one that was not sent the SET; never again."""
        for index, fate in enumerate(self.fates):
            expected = [] if fate in WITHOUT_SET else ["set"]
            expected += [] if fate in (NEVER, DOWN) else ["extend"]
            if fate == BROKEN:
                self.fleet.attach(index)
                self.fleet.flush()
            assert self.fleet.about(index, self.round.won) == expected


def tables(instances: int) -> Iterator[Fate]:
    """Every table of a lease that a quorum can have granted."""
    for fates in product(FATES, repeat=instances):
        if sum(fate not in WITHOUT_SET for fate in fates) >= reading.quorum(instances):
            yield fates


def play(kind: type[Play], fates: Fate, order: Order | None = None, company: int = 0) -> None:
    orders = [order] if order is not None else list(permutations(kind(fates, company).arrivals()))
    for one in orders:
        drama = kind(fates, company)
        drama.check()
        for index in one:
            drama.happen(index)
            drama.check()
        drama.check_end()


def play_sample(kind: type[Play], instances: int, plays: int, seed: int, company: int = 0) -> None:
    """So many tables drawn at random, each in one order drawn at random."""
    random = Random(seed)
    every = list(tables(instances))
    for fates in random.choices(every, k=plays):
        arriving = kind(fates, company).arrivals()
        play(kind, fates, tuple(random.sample(arriving, len(arriving))), company)


@pytest.mark.parametrize("kind", [Release, Extension])
@pytest.mark.parametrize("instances", [1, 2, 3])
def test_in_every_order_of_answers_it_is_settled_in_time_and_sent_once(
    kind: type[Play], instances: int
) -> None:
    for fates in tables(instances):
        play(kind, fates)


@pytest.mark.parametrize("kind", [Release, Extension])
@pytest.mark.parametrize("instances", [4, 5])
def test_in_orders_drawn_at_random_of_more_instances_too(kind: type[Play], instances: int) -> None:
    play_sample(kind, instances, 150, seed=instances)


@pytest.mark.parametrize("instances", [2, 3, 4, 5])
def test_a_release_among_others_of_its_batch_is_counted_like_one_alone(instances: int) -> None:
    play_sample(Release, instances, 80, seed=instances, company=2)


def test_an_extension_counts_an_instance_that_never_had_the_key_once() -> None:
    """Two of five were not there for the SET.

    They answer "not ours" first; the three that granted it decide.
    """
    fleet = ScriptedFleet(5, connect=False)
    for index in (0, 1, 2):
        fleet.attach(index)
    lease = fleet.won()
    fleet.attach(3)
    fleet.attach(4)
    round_ = fleet.extend(lease)
    fleet.reply_all(NIL, of=[3, 4])
    assert name_of(round_) is None
    fleet.reply_all(b"+OK\r\n", of=[0, 1, 2])
    assert name_of(round_) == "released"


# -- negative controls -----------------------------------------------------------------------------


def breaks_somewhere(kind: type[Play]) -> bool:
    try:
        for fates in tables(3):
            play(kind, fates)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("kind", [Release, Extension])
def test_a_release_that_settles_only_when_all_have_answered_is_noticed(
    kind: type[Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(ours: int, not_ours: int, undecided: int, instances: int, q: int) -> bool:
        return undecided == 0

    monkeypatch.setattr(rounds, "is_owned_settled", slow)
    assert breaks_somewhere(kind)


@pytest.mark.parametrize("kind", [Release, Extension])
def test_gone_on_a_single_no_is_noticed(kind: type[Play], monkeypatch: pytest.MonkeyPatch) -> None:
    def rash(ours: int, not_ours: int, instances: int, q: int) -> Outcome:
        return Outcome.GONE if not_ours else owned_outcome_of(ours, 0, instances, q)

    monkeypatch.setattr(rounds, "owned_outcome_of", rash)
    assert breaks_somewhere(kind)


def test_a_release_that_is_not_owed_to_a_broken_connection_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReleaseRound, "put_off", lambda self, pipe: None)
    assert breaks_somewhere(Release)
