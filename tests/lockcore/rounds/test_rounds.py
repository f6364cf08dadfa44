"""A round of SETs while its votes come in: every arrival order, through the real engine, against a
naive reading."""

from collections.abc import Iterator
from itertools import permutations, product
from random import Random

import pytest

from lockcore.rounds import rounds
from lockcore.rounds.rounds import SetRound
from tests.doubles.keyspace import MISCONF, NIL, OK
from tests.lockcore import reading
from tests.lockcore.reading import ABSENT, ERRORED, GRANTED, REFUSED, SILENT
from tests.lockcore.scripted import ScriptedFleet, name_of, rounds_kept

# the connection breaks before the reply: SILENT, but known at once
BROKEN = "broken"
REPLIES = {GRANTED: OK, REFUSED: NIL, ERRORED: MISCONF}
EVENTS = (GRANTED, REFUSED, ERRORED, BROKEN, SILENT, ABSENT)
TIMEOUT_MS = 50

Fate = tuple[str, ...]
Order = tuple[int, ...]


def arrivals(fates: Fate) -> list[int]:
    """The instances of which something is heard before the timeout."""
    return [index for index, fate in enumerate(fates) if fate not in (SILENT, ABSENT)]


def vote_of(fate: str) -> str:
    return SILENT if fate == BROKEN else fate


class Play:
    """One attempt through all its events, checked after each.

    `company`: others in the same batch, all granted.
    """

    def __init__(self, fates: Fate, company: int = 0) -> None:
        self.fates = fates
        self.fleet = ScriptedFleet(len(fates), connect=False)
        for index, fate in enumerate(fates):
            if fate != ABSENT:
                self.fleet.attach(index)
        self.before = [self.fleet.begin(f"before {number}") for number in range(company)]
        self.round = self.fleet.begin()
        self.behind = [self.fleet.begin(f"behind {number}") for number in range(company)]
        self.fleet.flush()
        self.heard: list[int] = [index for index, fate in enumerate(fates) if fate == ABSENT]
        self.lost_before_break: set[int] = set()

    def happen(self, index: int) -> None:
        """What instance `index` does about the attempt."""
        fate = self.fates[index]
        if fate == BROKEN:
            if self.round.cleaned:
                self.lost_before_break.add(index)
            self.fleet.detach(index)
        else:
            self.fleet.reply(index, *[OK] * len(self.before), REPLIES[fate])
        self.fleet.flush()
        self.heard.append(index)

    @property
    def known(self) -> tuple[str, ...]:
        return tuple(sorted(vote_of(self.fates[index]) for index in self.heard))

    def check(self) -> None:
        """Settled exactly when no completion changes the name; cleaned up exactly when no quorum is
        possible."""
        undecided = len(self.fates) - len(self.heard)
        names = reading.set_names(self.known, undecided)
        assert name_of(self.round) == (next(iter(names)) if len(names) == 1 else None)
        cleaned = reading.must_clean_up(self.known, undecided)
        for index, fate in enumerate(self.fates):
            is_broken = fate == BROKEN and index in self.heard
            expected = ["set"] if fate != ABSENT else []
            if cleaned and fate != ABSENT and (not is_broken or index in self.lost_before_break):
                expected = ["set", "release"]
            assert self.fleet.about(index, self.round) == expected, f"instance {index}"

    def check_end(self) -> None:
        """After the timeout: the full round's name and votes, one clean-up everywhere it was sent,
        nothing kept."""
        fleet = self.fleet
        votes = [vote_of(fate) for fate in self.fates]
        fleet.tick(TIMEOUT_MS)
        assert name_of(self.round) == reading.set_name(votes)
        assert self.round.tally == (*map(votes.count, reading.VOTES), 0)
        for index, fate in enumerate(self.fates):
            if fate == BROKEN:
                fleet.attach(index)
        fleet.drain()
        lost = name_of(self.round) != "acquired"
        for index, fate in enumerate(self.fates):
            # the reply was lost: sent again
            times = 2 if index in self.lost_before_break else 1
            released = ["release"] * times if lost else []
            assert fleet.about(index, self.round) == (["set", *released] if fate != ABSENT else [])
        for other in self.before + self.behind:
            if name_of(other) != "acquired":
                assert other.cleaned
        fleet.engine.take_ready()
        fleet.tick(TIMEOUT_MS)
        assert fleet.is_empty()
        assert rounds_kept(fleet.engine) == []


def play(fates: Fate, order: Order, company: int = 0) -> None:
    """One vote table in one arrival order."""
    present = len(fates) - fates.count(ABSENT)
    if present < reading.quorum(len(fates)):
        check_nothing_is_sent(fates)
        return
    drama = Play(fates, company)
    drama.check()
    for index in order:
        drama.happen(index)
        drama.check()
    drama.check_end()


def check_nothing_is_sent(fates: Fate) -> None:
    """With too few voters the attempt is UNREACHABLE at once and costs no byte."""
    drama = Play(fates)
    assert name_of(drama.round) == "unreachable"
    assert drama.round.tally.absent == len(fates)
    assert not any(drama.fleet.sent)
    assert drama.fleet.engine.take_ready() == []


def all_orders(instances: int) -> Iterator[tuple[Fate, Order]]:
    for fates in product(EVENTS, repeat=instances):
        for order in permutations(arrivals(fates)):
            yield fates, order


def distinct_orders(instances: int, random: Random) -> Iterator[tuple[Fate, Order]]:
    """Every distinct order of votes, with every number of silent and absent ones, on instances
    drawn at random."""
    for fates in product(EVENTS, repeat=instances):
        never = [fate for fate in fates if fate in (SILENT, ABSENT)]
        if list(fates[instances - len(never) :]) != sorted(never):
            # the same order as another
            continue
        seating = random.sample(range(instances), instances)
        seated = [""] * instances
        for seat, fate in zip(seating, fates, strict=True):
            seated[seat] = fate
        yield tuple(seated), tuple(seating[: instances - len(never)])


@pytest.mark.parametrize("instances", [1, 2, 3])
def test_in_every_arrival_order_a_round_is_settled_in_time_and_cleaned_up_once(
    instances: int,
) -> None:
    for fates, order in all_orders(instances):
        play(fates, order)


@pytest.mark.parametrize("instances", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_in_every_distinct_order_of_more_votes_too(instances: int) -> None:
    for fates, order in distinct_orders(instances, Random(1)):
        play(fates, order)


@pytest.mark.parametrize("instances", [2, 3])
def test_in_many_arrival_orders_a_round_in_company_is_counted_like_one_alone(
    instances: int,
) -> None:
    plays = list(all_orders(instances))
    for fates, order in plays if instances < 3 else Random(1).sample(plays, 250):
        play(fates, order, company=2)


def test_of_five_instances_too_a_round_alone_and_in_company() -> None:
    random = Random(2)
    for fates, order in random.sample(list(distinct_orders(5, random)), 150):
        play(fates, order)
        play(fates, order, company=2)


def test_a_late_reply_is_read_counted_and_changes_nothing(fleet: ScriptedFleet) -> None:
    round_ = fleet.ask()
    fleet.reply(0, NIL)
    fleet.reply(1, NIL)
    fleet.tick(TIMEOUT_MS)
    before = round_.tally
    fleet.reply(2, OK)
    assert round_.tally == before == (0, 2, 0, 1, 0, 0)
    assert [status.late_replies for status in fleet.engine.members.status()] == [0, 0, 1]
    assert fleet.about(2, round_) == ["set", "release"]


# -- negative controls -----------------------------------------------------------------------------


def breaks_somewhere(instances: int = 3) -> bool:
    """True when some table in some order is not what the text says."""
    try:
        for fates, order in all_orders(instances):
            play(fates, order)
    except AssertionError:
        return True
    return False


def test_a_clean_up_that_is_skipped_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SetRound, "clean_up", lambda self: None)
    assert breaks_somewhere()


def test_a_clean_up_at_the_end_only_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rounds, "is_lost", lambda granted, undecided, quorum: undecided == 0 and granted < quorum
    )
    assert breaks_somewhere()


def test_a_silence_taken_for_a_refusal_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def silence(self: SetRound, pipe: object) -> None:
        self.reply(None, pipe)  # type: ignore[arg-type]

    monkeypatch.setattr(SetRound, "silence", silence)
    assert breaks_somewhere()
