"""Releases that an instance did not take: owed until the key has expired, asked for politely,
counted for nobody."""

from types import SimpleNamespace

import pytest

from lockcore.clock import NS_PER_MS, NS_PER_S
from lockcore.facts.model import Lease
from lockcore.rounds import owed, rounds
from lockcore.rounds.owed import LONGEST_PAUSE_NS
from lockcore.rounds.resp import TRANSIENT
from lockcore.shells.common.connections import GRACE_NS, STILL_NS, Drain
from tests.doubles.keyspace import OK, ONE, WRONGTYPE, ZERO
from tests.lockcore.scripted import (
    DELIFEQ,
    EVALSHA,
    ScriptedFleet,
    claims_of,
    name_of,
    rounds_kept,
    settings_of,
)

MAX_TTL_MS = 10_000
# and the drift over it
LASTS_MS = MAX_TTL_MS + 102
# the instance that is unwell
ILL = 2


KINDS = [
    *sorted(TRANSIENT),
    *[
        "NOPERM",
        "WRONGPASS",
        "DENIED",
        "MOVED 42 10.0.0.9:6379",
        "ASK 42 10.0.0.9:6379",
        "CROSSSLOT",
        "EXECABORT",
    ],
    *["ERR upstream failure", "ERR unknown command 'DELIFEQ'", "SOMETHINGNEW", "no word of ours"],
]


def fleet_of(
    leases: int, dialect: object = DELIFEQ, *, merge: bool = False
) -> tuple[ScriptedFleet, list[Lease]]:
    settings = settings_of(merge_releases=merge)
    fleet = ScriptedFleet(3, dialect=dialect, settings=settings)  # type: ignore[arg-type]
    return fleet, [fleet.won(f"r{number}") for number in range(leases)]


def released(fleet: ScriptedFleet, leases: list[Lease], reply: bytes) -> list[rounds.ReleaseRound]:
    """All given back in one turn; the instance that is unwell answers `reply` to each."""
    given = fleet.release_together(leases)
    count = len(leases)
    merged = len(fleet.unanswered[0]) < count
    fleet.reply_all(*[b"*%d\r\n" % count + ONE * count] if merged else [ONE] * count, of=[0, 1])
    fleet.reply(ILL, *[reply] * len(fleet.unanswered[ILL]))
    return given


def owes(fleet: ScriptedFleet) -> int:
    return fleet.engine.members.status()[ILL].owed_releases


def until_asked(fleet: ScriptedFleet, reply: bytes = b"", limit_ms: int = 60_000) -> list[float]:
    """Go from one wanted tick to the next, answering `reply` each time; returns when it was asked
    (ms from now)."""
    start_ns = fleet.now_ns
    asked = []
    while fleet.now_ns < start_ns + limit_ms * NS_PER_MS:
        fleet.now_ns = min(
            max(fleet.engine.next_tick_ns(fleet.now_ns), fleet.now_ns + 1),
            start_ns + limit_ms * 10**6,
        )
        fleet.tick()
        if fleet.unanswered[ILL]:
            asked.append((fleet.now_ns - start_ns) / NS_PER_MS)
            if not reply:
                return asked
            fleet.reply(ILL, *[reply] * len(fleet.unanswered[ILL]))
            fleet.flush()
    return asked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", [DELIFEQ, EVALSHA], ids=["native", "script"])
def test_a_release_that_an_instance_cannot_take_now_is_sent_again_until_it_does(
    kind: str, dialect: object
) -> None:
    fleet, leases = fleet_of(1, dialect)
    (round_,) = released(fleet, leases, b"-%b not now\r\n" % kind.encode())
    assert name_of(round_) == "released"
    assert owes(fleet) == 1
    assert until_asked(fleet) == [50.0]
    assert claims_of(fleet.unanswered[ILL][0]) == [(b"r0", leases[0].owner_token)]
    fleet.reply(ILL, ONE)
    assert round_.tally == (2, 0, 1, 0, 0, 0)
    assert until_asked(fleet) == []
    assert fleet.is_empty()
    fleet.engine.take_ready()
    assert rounds_kept(fleet.engine) == []


@pytest.mark.parametrize("reply", [WRONGTYPE, b"+QUEUED\r\n", b"#t\r\n", b"$1\r\n1\r\n", ZERO])
def test_a_release_that_will_never_be_taken_is_not_sent_again(reply: bytes) -> None:
    fleet, leases = fleet_of(1)
    released(fleet, leases, reply)
    assert until_asked(fleet) == []
    assert fleet.is_empty()


def test_an_unwell_instance_is_asked_for_one_release_per_pause_until_keys_expire() -> None:
    fleet, leases = fleet_of(500)
    start = len(fleet.sent[ILL])
    released(fleet, leases, b"-BUSY script\r\n")
    before = len(fleet.sent[ILL])
    assert before - start == 500
    asked = until_asked(fleet, b"-BUSY script\r\n")
    assert len(fleet.sent[ILL]) - before == len(asked)
    pauses = [later - earlier for earlier, later in zip([0.0, *asked], asked, strict=False)]
    assert pauses[:5] == [50, 100, 200, 400, 800]
    assert pauses[-1] == LONGEST_PAUSE_NS / NS_PER_MS
    assert asked[-1] < LASTS_MS <= asked[-1] + pauses[-1]
    assert owes(fleet) == 0
    assert fleet.is_empty()


def test_what_left_long_after_it_was_asked_for_is_owed_as_long_as_its_key_may_last() -> None:
    fleet = ScriptedFleet(3, settings=settings_of())
    round_ = fleet.begin()
    # the process stood still between asking and sending, and nobody waits any more
    fleet.after(MAX_TTL_MS)
    round_.abandon()
    fleet.flush()
    fleet.detach(ILL)
    # its SET is not half through its TTL
    fleet.after(MAX_TTL_MS / 2)
    fleet.attach(ILL)
    fleet.flush()
    assert fleet.about(ILL, round_) == ["set", "release", "release"]


def test_when_one_is_taken_the_others_follow_at_once() -> None:
    fleet, leases = fleet_of(40)
    released(fleet, leases, b"-LOADING\r\n")
    until_asked(fleet)
    assert len(fleet.unanswered[ILL]) == 1
    fleet.reply(ILL, ONE)
    fleet.flush()
    assert len(fleet.unanswered[ILL]) == 39
    fleet.reply(ILL, *[ONE] * 39)
    assert fleet.is_empty()


def test_an_instance_that_takes_one_and_no_more_is_asked_ever_less_often() -> None:
    fleet, leases = fleet_of(40)
    released(fleet, leases, b"-MISCONF\r\n")
    before = len(fleet.sent[ILL])
    waves = 0
    for _ in range(30):
        until_asked(fleet, limit_ms=3_000)
        # the one that asks, then the others
        for _ in range(2):
            commands = len(fleet.unanswered[ILL])
            if commands:
                fleet.reply(ILL, *([ONE] if commands == 1 else [b"-MISCONF\r\n"] * commands))
                fleet.flush()
        waves += 1
        if not owes(fleet):
            break
    assert owes(fleet) == 0
    # in ten seconds
    assert waves < 12
    assert len(fleet.sent[ILL]) - before <= 40 * waves


@pytest.mark.parametrize("merge", [False, True])
def test_a_whole_merged_release_that_is_not_taken_is_owed_part_by_part(merge: bool) -> None:
    fleet, leases = fleet_of(5, EVALSHA, merge=merge)
    given = released(fleet, leases, b"-BUSY script\r\n")
    assert {name_of(round_) for round_ in given} == {"released"}
    assert owes(fleet) == 5
    until_asked(fleet, ONE, limit_ms=200)
    assert fleet.is_empty()


def test_what_was_never_set_is_not_owed(fleet: ScriptedFleet) -> None:
    """An instance that answers every SET with an error holds nothing of ours, however long that
    lasts."""
    for number in range(50):
        fleet.ask(f"r{number}")
        fleet.reply_all(b"-MISCONF\r\n")
        fleet.flush()
        fleet.reply_all(b"-MISCONF\r\n")
    assert [status.owed_releases for status in fleet.engine.members.status()] == [0, 0, 0]


def test_what_was_set_before_it_became_unwell_is_owed_when_its_attempt_is_lost(
    fleet: ScriptedFleet,
) -> None:
    fleet.ask()
    fleet.reply(ILL, OK)
    fleet.reply_all(b"-MISCONF\r\n", of=[0, 1])
    fleet.flush()
    fleet.reply_all(b"-MISCONF\r\n")
    assert [status.owed_releases for status in fleet.engine.members.status()] == [0, 0, 1]


def test_an_owed_release_is_not_owed_for_longer_because_its_connection_breaks_again_and_again() -> (
    None
):
    fleet, leases = fleet_of(1)
    fleet.detach(ILL)
    released(fleet, leases, b"")
    for _ in range(20):
        fleet.after(LASTS_MS / 10)
        fleet.attach(ILL)
        fleet.flush()
        fleet.detach(ILL)
    sent = [kind for kind in fleet.kinds(ILL) if kind == "release"]
    assert len(sent) == 9
    assert owes(fleet) == 0


def test_an_extension_that_is_not_taken_is_not_sent_again() -> None:
    fleet, (lease,) = fleet_of(1)
    fleet.after(1)
    fleet.extend(lease)
    fleet.reply(ILL, b"-BUSY script\r\n")
    assert owes(fleet) == 0


def test_what_is_owed_to_an_instance_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owed, "MOST", 10)
    fleet, leases = fleet_of(30)
    released(fleet, leases, b"-OOM\r\n")
    assert owes(fleet) == 10


def test_a_release_given_up_at_the_first_error_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "is_owed", lambda _reply: False)
    with pytest.raises(AssertionError):
        test_a_release_that_an_instance_cannot_take_now_is_sent_again_until_it_does("BUSY", DELIFEQ)


@pytest.mark.parametrize("kind", ["NOPERM", "WRONGPASS", "MOVED", "ASK"])
def test_a_release_given_up_at_an_error_that_was_once_forgotten_is_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, a list of words said what is owed, and these four were not on it."""
    monkeypatch.setattr(owed, "NEVER_TAKEN", owed.NEVER_TAKEN | {kind})
    with pytest.raises(AssertionError):
        test_a_release_that_an_instance_cannot_take_now_is_sent_again_until_it_does(kind, DELIFEQ)


def test_one_key_that_is_forbidden_is_owed_and_delays_no_other() -> None:
    """A whole merged release is refused for the sake of one key: all are sent alone, one is
    owed."""
    fleet, leases = fleet_of(5, EVALSHA, merge=True)
    released(fleet, leases, b"-NOPERM one of the keys\r\n")
    fleet.flush()
    assert fleet.kinds(ILL)[-5:] == ["release"] * 5
    fleet.reply(ILL, ONE, ONE, b"-NOPERM this key\r\n", ONE, ONE)
    assert owes(fleet) == 1
    assert until_asked(fleet) == [50.0]
    assert claims_of(fleet.unanswered[ILL][0]) == [(b"r2", leases[2].owner_token)]


# -- closing ---------------------------------------------------------------------------------------


def test_time_in_which_a_process_stood_still_is_none_for_its_holders_to_give_back_in() -> None:
    fleet = ScriptedFleet(3)
    fleet.won()
    drain = Drain(SimpleNamespace(engine=fleet.engine, calls=set()), 30.0)  # type: ignore[arg-type]
    now_ns = drain.deadline_ns - 30 * NS_PER_S
    assert not drain.is_over(now_ns), "a lease is held"
    assert not drain.is_over(now_ns + 5 * NS_PER_S), "but nobody ran"
    looks = [drain.is_over(now_ns + 5 * NS_PER_S + number * NS_PER_MS) for number in range(1, 95)]
    assert looks.index(True) * NS_PER_MS == pytest.approx(GRACE_NS - STILL_NS, abs=2 * NS_PER_MS)
