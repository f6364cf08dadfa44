"""Nothing grows with what callers name or servers say, and each round keeps its own time."""

from random import Random

import pytest

from lockcore.clock import NS_PER_MS
from lockcore.engine import members
from lockcore.engine.turns import Turn
from lockcore.rounds import claims
from lockcore.rounds.deadlines import Deadlines, Timetable
from lockcore.settings import Settings
from tests.doubles.keyspace import OK
from tests.lockcore.scripted import ScriptedFleet, name_of, settings_of


@pytest.mark.parametrize(
    "resource", ["r", "ä€😀", "x" * 254, "x" * 255, "x" * 256, "ä" * 128, "x" * 131_069]
)
def test_a_claim_says_key_and_owner_token_with_their_lengths(resource: str) -> None:
    made = claims.Claims(settings_of(key_prefix="lb:"))
    key = f"lb:{resource}".encode()
    numbers = (10**14, 10**14 + 999, 10**14 + 1_000, 10**14 + 7, 10**15 - 1)
    for number in numbers:
        expected = b"$%d\r\n%b\r\n$37\r\n%b%d\r\n" % (len(key), key, made.process, number)
        assert made.claim(resource, number) == expected


@pytest.mark.parametrize("resource", ["x" * 131_070, "ä" * 65_535, "x" * 10_000_000])
def test_a_key_that_is_too_long_is_refused_with_its_length(resource: str) -> None:
    """Its prefix counts, too; the sentence does not repeat the name."""
    made = claims.Claims(settings_of(key_prefix="lb:"))
    with pytest.raises(
        ValueError, match=f"resource must .*131,072 bytes .* not {len(resource.encode()) + 3:,};"
    ) as raised:
        made.claim(resource, 10**14)
    assert len(str(raised.value)) < 200


def test_a_key_prefix_that_leaves_no_room_is_refused() -> None:
    Settings(key_prefix="ä" * 512)
    with pytest.raises(ValueError, match="key_prefix must have at most 1,024 bytes .* not 1,026"):
        Settings(key_prefix="ä" * 513)


def test_the_terms_kept_are_bounded_and_those_forgotten_are_made_again() -> None:
    fleet = ScriptedFleet(1)
    for ttl_ms in range(3, 3_003):
        fleet.engine.terms(ttl_ms)
    assert 0 < len(fleet.engine.claims._terms_of) <= claims.TERMS_KEPT
    assert fleet.engine.terms(3).ttl_ms == 3


def test_the_voter_sets_kept_are_bounded() -> None:
    random = Random(1)
    fleet = ScriptedFleet(9)
    for _ in range(1_000):
        index = random.randrange(9)
        if fleet.engine.pipes[index].is_open:
            fleet.detach(index)
        else:
            fleet.attach(index)
    assert 0 < len(fleet.engine.members._voter_sets) <= members.VOTER_SETS_KEPT


# -- time ------------------------------------------------------------------------------------------


def test_one_short_ttl_changes_no_other_rounds_grace(fleet: ScriptedFleet) -> None:
    """Held up for 60 ms before it leaves, a round still gets a tenth of its own timeout on the
    wire."""
    fleet.ask("brief", ttl_ms=3)
    fleet.tick(60)
    fleet.drain()
    for company in (0, 5):
        rounds = [fleet.begin(f"r{number}") for number in range(company + 1)]
        if company:
            rounds.append(fleet.begin("brief too", ttl_ms=4))
        fleet.after(60)
        fleet.flush()
        fleet.tick(4.9)
        fleet.reply_all(*[OK] * len(rounds))
        assert {name_of(round_) for round_ in rounds[: company + 1]} == {"acquired"}
        fleet.drain()


def test_one_short_ttl_makes_no_later_tick_come_sooner() -> None:
    fleet = ScriptedFleet(3)
    fleet.ask("brief", ttl_ms=3)
    fleet.tick(60)
    fleet.drain()
    fleet.engine.tick(fleet.now_ns)
    fleet.ask()
    assert fleet.engine.next_tick_ns(fleet.now_ns) == fleet.now_ns + 50 * NS_PER_MS
    assert fleet.engine.deadlines.due_ns == fleet.now_ns + 50 * NS_PER_MS


def test_a_grace_shared_by_all_rounds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    watch_batch = Deadlines.watch_batch

    def shared(self: Deadlines, rounds: object, sent_ns: int, shortest_ns: int) -> None:
        watch_batch(self, rounds, sent_ns, NS_PER_MS)  # type: ignore[arg-type]

    monkeypatch.setattr(Deadlines, "watch_batch", shared)
    with pytest.raises(AssertionError):
        test_one_short_ttl_makes_no_later_tick_come_sooner()


@pytest.mark.parametrize("factor, least", [(0.0, 3), (0.01, 3), (0.3, 3), (0.4, 4), (0.5, 5)])
def test_a_ttl_that_could_never_be_valid_is_refused_and_the_least_one_named(
    factor: float, least: int
) -> None:
    settings = Settings(drift_factor=factor)
    settings.check_ttl(least)
    for ttl_ms in range(1, least):
        with pytest.raises(
            ValueError, match=f"ttl_ms {ttl_ms} could never be valid, .* use at least {least}$"
        ):
            settings.check_ttl(ttl_ms)
    with pytest.raises(ValueError, match="max_ttl_ms 2 could never be valid"):
        Settings(max_ttl_ms=2, drift_factor=factor)


# -- what is due -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_a_timetable_gives_everything_that_is_open_in_order_once(seed: int) -> None:
    """Against a plain list: things are added, moved and closed at random."""
    random = Random(seed)
    times = {}
    given = []  # type: ignore[var-annotated]
    table: Timetable[int] = Timetable(lambda due, thing: times.get(thing) == due)
    for now in range(2_000):
        for _ in range(random.randrange(4)):
            thing = random.randrange(300)
            due = now + random.randrange(1, 400)
            times[thing] = due
            table.add(due, thing)
        times.pop(random.randrange(300), None)
        due_now = sorted(thing for thing, due in times.items() if due <= now)
        given.clear()
        table.run(now, lambda thing: (given.append(thing), times.pop(thing)))
        assert sorted(given) == due_now
        assert len(table) <= 2 * 300 + 64 + 4


def test_parking_again_and_again_keeps_no_more_than_twice_who_is_parked() -> None:
    turns = ScriptedFleet(1).engine.turns
    parked = [Turn(turns, "stock", 0) for _ in range(10)]
    for number in range(5_000):
        turn = parked[number % 10]
        turn.settle()
        turn.park(10**15 + number)
    assert len(turns.parked) <= 2 * 10 + 64


def looked_at(callers: int) -> int:
    """How many parked callers are looked at while the times of 100 of them come, one after the
    other."""
    fleet = ScriptedFleet(1)
    turns = fleet.engine.turns
    looks = 0
    still_parked = turns.parked._is_open

    def counting(due_ns: int, turn: Turn) -> bool:
        nonlocal looks
        looks += 1
        return still_parked(due_ns, turn)

    for number in range(callers):
        turn = Turn(turns, f"r{number}", 0)
        turns.join(turn)
        turn.park(fleet.now_ns + (number + 1) * NS_PER_MS)
    turns.parked._is_open = counting
    for _ in range(100):
        fleet.tick(1)
    assert sum(isinstance(one, Turn) for one in fleet.engine.take_ready()) == min(callers, 100)
    return looks


def test_a_parked_caller_costs_the_same_however_many_are_parked() -> None:
    """Counted, not timed: each is looked at once, when its time comes."""
    assert [looked_at(callers) for callers in (100, 1_000, 5_000)] == [100, 100, 100]


def test_a_look_at_everybody_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Timetable[Turn], now_ns: int, act: object) -> None:
        for due_ns, _, turn in list(self._entries):
            if self._is_open(due_ns, turn) and due_ns <= now_ns:
                turn.settle()

    monkeypatch.setattr(Timetable, "run", run)
    with pytest.raises(AssertionError):
        test_a_parked_caller_costs_the_same_however_many_are_parked()
