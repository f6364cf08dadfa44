"""Time is an argument: timeouts fall exactly on their deadline, and the engine says when it wants
to be asked next."""

from random import Random

import pytest

from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS
from lockcore.rounds.rounds import Round, SetRound
from tests.doubles.keyspace import NIL, OK, ONE
from tests.lockcore.scripted import ScriptedFleet, name_of, rounds_kept


@pytest.mark.parametrize("company", [0, 5])
@pytest.mark.parametrize(
    "ttl_ms, timeout_ms", [(10_000, 50), (200, 50), (100, 25), (4, 1), (3, 0.75)]
)
def test_a_silent_round_is_settled_at_its_timeout_and_not_a_nanosecond_before(
    fleet: ScriptedFleet, ttl_ms: int, timeout_ms: float, company: int
) -> None:
    """The timeout is min(50 ms, TTL ÷ 4), counted from before the first byte was queued."""
    round_ = fleet.begin(ttl_ms=ttl_ms)
    for number in range(company):
        fleet.begin(f"r{number}", ttl_ms)
    fleet.after(timeout_ms / 2)
    # a batch that waits is paid for
    fleet.flush()
    fleet.now_ns = round_.started_ns + int(timeout_ms * NS_PER_MS) - 1
    fleet.tick()
    assert name_of(round_) is None
    fleet.now_ns += 1
    fleet.tick()
    assert name_of(round_) == "unreachable"
    assert round_.tally == (0, 0, 0, 3, 0, 0)


@pytest.mark.parametrize("company", [0, 5])
@pytest.mark.parametrize("held_up_ms", [0, 44, 45, 46, 60, 1_000])
def test_what_left_late_still_gets_a_tenth_of_the_timeout_on_the_wire(
    fleet: ScriptedFleet, held_up_ms: int, company: int
) -> None:
    """Silence must be the instance's, not that of a process that was held up before it sent."""
    rounds = [fleet.begin(f"r{number}") for number in range(company + 1)]
    fleet.after(held_up_ms)
    fleet.flush()
    fleet.now_ns = rounds[0].started_ns + max(50, held_up_ms + 5) * NS_PER_MS - 1
    fleet.tick()
    assert {name_of(round_) for round_ in rounds} == {None}
    fleet.now_ns += 1
    fleet.tick()
    assert {name_of(round_) for round_ in rounds} == {"unreachable"}


def test_rounds_of_different_ttls_time_out_each_at_its_own_time(fleet: ScriptedFleet) -> None:
    ttls = [1000, 20, 100, 40, 8, 1000, 60]
    rounds = [fleet.begin(f"r{number}", ttl_ms) for number, ttl_ms in enumerate(ttls)]
    fleet.flush()
    for elapsed_ms in range(1, 60):
        fleet.tick(1)
        settled = [name_of(round_) is not None for round_ in rounds]
        assert settled == [elapsed_ms >= min(50, ttl_ms / 4) for ttl_ms in ttls]


@pytest.mark.parametrize("seed", range(10))
def test_a_shell_that_asks_only_when_told_to_misses_no_deadline(seed: int) -> None:
    """Rounds start at random; between starts the clock jumps from one wanted tick to the next."""
    random = Random(seed)
    fleet = ScriptedFleet(random.randrange(1, 6))
    rounds: list[Round] = []
    for number in range(40):
        rounds += [
            fleet.begin(f"{number}-{one}", random.choice([20, 100, 1000]))
            for one in range(random.randrange(7))
        ]
        fleet.flush()
        until_ns = fleet.now_ns + random.randrange(30) * NS_PER_MS
        while (next_ns := fleet.engine.next_tick_ns(fleet.now_ns)) <= until_ns:
            fleet.now_ns = max(next_ns, fleet.now_ns + 1)
            fleet.tick()
            overdue = [
                one
                for one in rounds
                if name_of(one) is None and one.started_ns + one.terms.timeout_ns < fleet.now_ns - 1
            ]
            assert overdue == []
        fleet.now_ns = max(until_ns, fleet.now_ns)


def test_with_nothing_under_way_no_tick_is_wanted(fleet: ScriptedFleet) -> None:
    assert fleet.engine.next_tick_ns(fleet.now_ns) == FAR_FUTURE_NS
    lease = fleet.won()
    fleet.drain()
    fleet.tick(60)
    assert fleet.engine.next_tick_ns(fleet.now_ns) == FAR_FUTURE_NS
    fleet.release(lease)
    fleet.reply_all(ONE)
    fleet.tick(60)
    assert fleet.engine.next_tick_ns(fleet.now_ns) == FAR_FUTURE_NS


def test_a_tick_says_when_the_next_one_is_wanted(fleet: ScriptedFleet) -> None:
    fleet.ask()
    assert (
        fleet.engine.tick(fleet.now_ns)
        == fleet.engine.next_tick_ns(fleet.now_ns)
        == fleet.now_ns + 50 * NS_PER_MS
    )


def test_a_timeout_is_counted_on_the_instances_that_did_not_answer(fleet: ScriptedFleet) -> None:
    fleet.ask()
    fleet.reply(0, OK)
    fleet.reply(1, NIL)
    fleet.tick(50)
    assert [dict(status.errors) for status in fleet.engine.members.status()] == [
        {},
        {},
        {"TIMEOUT": 1},
    ]


@pytest.mark.parametrize("company", [0, 1, 5])
def test_under_load_only_what_is_under_way_is_kept_and_no_tick_is_needed_for_it(
    company: int,
) -> None:
    fleet = ScriptedFleet(5)
    for _ in range(50):
        rounds = [fleet.begin(f"r{number}") for number in range(company + 1)]
        fleet.flush()
        fleet.reply_all(*[OK] * len(rounds))
        fleet.engine.take_ready()
        assert [round_.tally.undecided for round_ in rounds] == [0] * len(rounds)
        assert len(rounds_kept(fleet.engine)) <= len(rounds)


@pytest.mark.parametrize("company", [0, 5])
def test_answers_that_come_after_the_timeout_leave_nothing_behind_either(
    fleet: ScriptedFleet, company: int
) -> None:
    rounds = [fleet.begin(f"r{number}") for number in range(company + 1)]
    fleet.flush()
    fleet.tick(50)
    assert {name_of(round_) for round_ in rounds} == {"unreachable"}
    fleet.drain()
    fleet.engine.take_ready()
    fleet.tick(60)
    assert fleet.is_empty()
    assert rounds_kept(fleet.engine) == []
    late = [status.late_replies for status in fleet.engine.members.status()]
    assert late == [len(rounds)] * 3


def test_late_answers_to_releases_and_extensions_are_counted(fleet: ScriptedFleet) -> None:
    lease = fleet.won()
    fleet.after(1)
    fleet.extend(lease)
    fleet.release(lease)
    fleet.tick(60)
    fleet.reply(0, OK, ONE)
    fleet.reply(1, OK)
    assert [status.late_replies for status in fleet.engine.members.status()] == [2, 1, 0]


@pytest.mark.parametrize("company", [0, 2])
@pytest.mark.parametrize(
    "reply, name", [(OK, "acquired"), (NIL, "contended"), (b"-MISCONF full\r\n", "unreachable")]
)
def test_a_vote_whose_judgement_was_interrupted_is_judged_at_the_timeout(
    reply: bytes, name: str, company: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is undecided any more, but nobody was told."""
    fleet = ScriptedFleet(1)
    for number in range(company):
        fleet.begin(f"r{number}")
    round_ = fleet.ask()
    fleet.reply(0, *[OK] * company)
    with monkeypatch.context() as struck:
        struck.setattr(SetRound, "judge", ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            fleet.reply(0, reply)
    fleet.ask("another")
    fleet.tick(60)
    assert name_of(round_) == name


def ctrl_c(_round: SetRound) -> None:
    raise KeyboardInterrupt
