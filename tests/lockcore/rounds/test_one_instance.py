"""What one instance says, or does not say, concerns that instance only, and only what it was said
to."""

import pytest

from lockcore.clock import NS_PER_MS, NS_PER_S
from lockcore.errors import ProtocolError
from lockcore.rounds import awaited, replies
from lockcore.rounds.commands import COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, Dialect
from lockcore.rounds.resp import UNEXPECTED, error_kind
from lockcore.rounds.rounds import ReleaseRound
from lockcore.settings import LagCap
from tests.doubles.keyspace import NIL, NOSCRIPT, OK, ONE, WRONGTYPE, ZERO, Command
from tests.lockcore.scripted import (
    DELIFEQ,
    EVALSHA,
    ScriptedFleet,
    claims_of,
    name_of,
    settings_of,
    token_of,
)

NOPERM = b"-NOPERM No permissions to access a key\r\n"
NO_ANSWERS = [
    b":1\r\n",
    b":0\r\n",
    b":2\r\n",
    b"#t\r\n",
    b"#f\r\n",
    b",1.0\r\n",
    b",1\r\n",
    b"(1\r\n",
    b"*-1\r\n",
    b"+ok\r\n",
    b"+OK \r\n",
    b"+QUEUED\r\n",
    b"$2\r\nOK\r\n",
    b"=6\r\ntxt:OK\r\n",
    b"*1\r\n+OK\r\n",
    b"*1\r\n:1\r\n",
    b"*0\r\n",
    b"%0\r\n",
    b"~1\r\n+OK\r\n",
    b"$0\r\n\r\n",
]
FEEDS = ["at once", "byte by byte"]


def hear(fleet: ScriptedFleet, data: bytes, how: str = "at once") -> None:
    """Every instance says `data`, to as many commands as there are."""
    for index, commands in enumerate(fleet.unanswered):
        commands.clear()
        step = len(data) if how == "at once" else 1
        for at in range(0, len(data), step):
            fleet.engine.received(index, data[at : at + step], fleet.now_ns)


def feed(fleet: ScriptedFleet, data: bytes, step: int) -> None:
    """Instance 0 says `data`, in pieces."""
    for at in range(0, len(data), step):
        fleet.engine.received(0, data[at : at + step], fleet.now_ns)


# -- only the documented answer grants -------------------------------------------------------------


@pytest.mark.parametrize("how", FEEDS)
@pytest.mark.parametrize("company", [0, 5])
@pytest.mark.parametrize("answer", NO_ANSWERS)
def test_only_ok_grants_a_set_and_only_nil_refuses_it(
    answer: bytes, company: int, how: str
) -> None:
    """Alone it is read line by line, in company it was expected byte for byte; the answers behind
    it stay in place."""
    fleet = ScriptedFleet(3)
    rounds = [fleet.begin(f"r{number}") for number in range(company + 2)]
    fleet.flush()
    hear(fleet, answer + OK * company + NIL, how)
    assert [name_of(one) for one in rounds] == ["unreachable"] + ["acquired"] * company + [
        "contended"
    ]
    assert rounds[0].tally == (0, 0, 3, 0, 0, 0)
    assert fleet.engine.members.status()[0].errors == {"UNEXPECTED": 1}


@pytest.mark.parametrize("dialect", [DELIFEQ, EVALSHA], ids=["native", "script"])
@pytest.mark.parametrize("answer", [*NO_ANSWERS, OK, NIL])
def test_only_one_confirms_a_release_and_only_zero_says_gone(
    answer: bytes, dialect: Dialect
) -> None:
    fleet = ScriptedFleet(3, dialect=dialect)
    expected = {ONE: "released", ZERO: "gone"}.get(answer, "unreachable")
    round_ = fleet.release(fleet.won())
    hear(fleet, answer)
    assert name_of(round_) == expected


@pytest.mark.parametrize(
    "dialect, yes, no", [(DELIFEQ, OK, NIL), (EVALSHA, ONE, ZERO)], ids=["native", "script"]
)
@pytest.mark.parametrize("answer", [*NO_ANSWERS, OK, NIL])
def test_an_extension_is_confirmed_by_the_answer_of_its_own_form_only(
    answer: bytes, dialect: Dialect, yes: bytes, no: bytes
) -> None:
    """SET … IFEQ answers like a SET, the script with a number; neither is the other's."""
    fleet = ScriptedFleet(3, dialect=dialect)
    lease = fleet.won()
    fleet.after(1)
    round_ = fleet.extend(lease)
    hear(fleet, answer)
    assert name_of(round_) == {yes: "released", no: "gone"}.get(answer, "unreachable")


def test_votes_by_equality_alone_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """True == 1 == 1.0: the fault there was."""
    loose = {b"+OK": b"OK", b"$-1": None, b":1": b"OK", b":0": b"OK"}.get
    monkeypatch.setattr(replies, "exact_answer", loose)
    for answer in (b":1\r\n", b":0\r\n"):
        with pytest.raises(AssertionError):
            test_only_ok_grants_a_set_and_only_nil_refuses_it(answer, 0, "at once")


# -- nonsense --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", FEEDS)
@pytest.mark.parametrize(
    "data, named",
    [
        (b"%1\r\n*1\r\n:1\r\n:2\r\n", "TypeError"),
        (b"~1\r\n%1\r\n*0\r\n:1\r\n", "TypeError"),
        (b"@\r\n", "does not speak RESP2"),
        (b"$x\r\n", "does not speak RESP2"),
        (b"$99999999\r\n" + b"x\r\n" * 30_000, "more than 65,536 bytes"),
        (b"-ERR " + b"x" * 70_000, "more than 65,536 bytes"),
    ],
)
def test_what_cannot_be_read_ends_the_connection_of_its_instance_and_nothing_else(
    fleet: ScriptedFleet, data: bytes, named: str, how: str
) -> None:
    round_ = fleet.ask()
    with pytest.raises(ProtocolError, match=named):
        feed(fleet, data, 997 if how == "byte by byte" else len(data))
    fleet.detach(0)
    fleet.reply_all(OK, of=[1, 2])
    assert name_of(round_) == "acquired"
    fleet.attach(0)
    fleet.drain()
    assert fleet.won("next").tally.granted == 3


def test_an_error_while_an_answer_is_handled_is_that_instances_too(
    fleet: ScriptedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_ = fleet.release(fleet.won())
    with monkeypatch.context() as struck:
        struck.setattr(ReleaseRound, "judge", lambda self: next(iter(())))
        with pytest.raises(ProtocolError, match=r"host:7000 sent unreadable bytes \(StopIteration"):
            fleet.reply(0, ZERO)
    fleet.detach(0)
    fleet.reply_all(ONE, of=[1, 2])
    assert name_of(round_) == "released"


def test_the_kinds_of_errors_kept_are_few_whatever_a_server_makes_up() -> None:
    fleet = ScriptedFleet(1)
    words = [f"{chr(65 + number % 26)}{chr(65 + number // 26)}" for number in range(400)]
    for number, word in enumerate(words):
        fleet.ask(f"r{number}")
        fleet.reply(0, f"-{word} no\r\n".encode())
        fleet.drain()
    errors = fleet.engine.members.status()[0].errors
    assert len(errors) == awaited.MOST_KINDS + 1
    assert sum(errors.values()) == len(words)
    assert errors["OTHER"] == len(words) - awaited.MOST_KINDS


@pytest.mark.parametrize(
    "reply", [b"-\r\n", b"-secret:1234 no\r\n", b"-S3CRET\r\n", b"-" + b"X" * 99 + b"\r\n"]
)
def test_the_first_word_of_an_error_is_a_kind_only_if_it_looks_like_one(reply: bytes) -> None:
    fleet = ScriptedFleet(1)
    fleet.ask()
    fleet.reply(0, reply)
    assert fleet.engine.members.status()[0].errors == {"ERR": 1}
    assert error_kind(b"OK") is UNEXPECTED


# -- merged releases -------------------------------------------------------------------------------


def merged(releases: int) -> tuple[ScriptedFleet, list[ReleaseRound]]:
    """So many releases in one script call, sent."""
    fleet = ScriptedFleet(3, dialect=EVALSHA, settings=settings_of(merge_releases=True))
    rounds = fleet.release_together([fleet.won(f"r{number}") for number in range(releases)])
    assert [len(commands) for commands in fleet.unanswered] == [1, 1, 1]
    return fleet, rounds


@pytest.mark.parametrize("how", FEEDS)
@pytest.mark.parametrize("releases", [2, 3, 4, 9])
def test_the_error_of_one_part_of_a_merged_release_is_that_parts_alone(
    releases: int, how: str
) -> None:
    for wrong in range(releases):
        fleet, rounds = merged(releases)
        lines = [ONE] * releases
        lines[wrong] = WRONGTYPE
        hear(fleet, b"*%d\r\n" % releases + b"".join(lines), how)
        expected = ["unreachable" if number == wrong else "released" for number in range(releases)]
        assert [name_of(round_) for round_ in rounds] == expected
        assert fleet.engine.members.status()[0].errors == {"WRONGTYPE": 1}
        assert fleet.is_empty()


@pytest.mark.parametrize("releases", [2, 3, 4, 9])
@pytest.mark.parametrize(
    "whole", [NOPERM, b"-ERR no\r\n", WRONGTYPE, b":1\r\n", OK, b"*1\r\n:1\r\n", b"#t\r\n"]
)
def test_what_is_said_to_a_whole_merged_release_answers_no_part_and_each_is_sent_alone(
    whole: bytes, releases: int
) -> None:
    """An ACL denies a call for one of its keys: who may not touch its own is told, the others are
    released."""
    fleet, rounds = merged(releases)
    hear(fleet, whole)
    assert {name_of(round_) for round_ in rounds} == {None}
    fleet.flush()
    for commands in fleet.unanswered:
        assert [command[:3] for command in commands] == [
            [b"EVALSHA", COMPARE_AND_DELETE.sha, b"1"]
        ] * releases
        assert [claims_of(command)[0][1] for command in commands] == [
            token_of(round_) for round_ in rounds
        ]
    hear(fleet, NOPERM + ONE * (releases - 1))
    assert [name_of(round_) for round_ in rounds] == ["unreachable"] + ["released"] * (releases - 1)
    fleet.flush()
    assert not any(fleet.unanswered)
    assert [status.owed_releases for status in fleet.engine.members.status()] == [1, 1, 1]


def test_a_part_that_is_sent_alone_and_never_answered_times_out() -> None:
    fleet, rounds = merged(4)
    fleet.tick(40)
    hear(fleet, NOPERM)
    fleet.tick(9)
    assert {name_of(round_) for round_ in rounds} == {None}
    fleet.tick(1)
    assert {name_of(round_) for round_ in rounds} == {"unreachable"}


def test_the_script_of_merged_releases_stops_at_no_key() -> None:
    """`redis.call` raises and ends the script; `redis.pcall` gives the error as that key's
    answer."""
    assert b"redis.call" not in COMPARE_AND_DELETE_MANY.source


# -- scripts that stay unknown ---------------------------------------------------------------------


def scripts_sent(fleet: ScriptedFleet, rounds: int = 20) -> list[Command]:
    """What instance 0 was sent while it answered everything with NOSCRIPT, so many times."""
    sent = len(fleet.sent[0])
    for _ in range(rounds):
        fleet.flush()
        if any(fleet.unanswered):
            hear(fleet, NOSCRIPT * max(map(len, fleet.unanswered), default=0))
    return fleet.sent[0][sent:]


@pytest.mark.parametrize("what", ["release", "extend", "merged", "owed"])
def test_a_script_that_is_unknown_with_its_source_too_is_an_error_and_not_sent_again(
    what: str,
) -> None:
    if what == "merged":
        fleet, rounds = merged(3)
        # SCRIPT LOAD, and each part once with its source
        assert len(scripts_sent(fleet)) == 4
        assert {name_of(round_) for round_ in rounds} == {"unreachable"}
        return
    fleet = ScriptedFleet(3, dialect=EVALSHA)
    lease = fleet.won()
    fleet.after(1)
    if what == "owed":
        for index in range(3):
            fleet.detach(index)
        fleet.release(lease)
        for index in range(3):
            fleet.attach(index)
        assert [command[0] for command in scripts_sent(fleet)] == [b"EVALSHA", b"EVAL"]
    else:
        round_ = fleet.release(lease) if what == "release" else fleet.extend(lease)
        assert [command[0] for command in scripts_sent(fleet)] == [b"EVAL"]
        assert name_of(round_) == "unreachable"
        assert round_.tally == (0, 0, 3, 0, 0, 0)
    assert fleet.is_empty()


# -- silence ---------------------------------------------------------------------------------------


def test_an_instance_that_answers_nothing_is_given_up_after_two_seconds_and_not_before(
    fleet: ScriptedFleet,
) -> None:
    fleet.ask()
    fleet.reply_all(OK, of=[1, 2])
    silent_ms = 0
    while not (given_up := fleet.engine.members.silent(fleet.now_ns)):
        fleet.tick(10)
        silent_ms += 10
        assert silent_ms < 10_000
    assert given_up == [0]
    assert silent_ms == 2_000


def test_a_shell_that_ticks_when_told_to_gives_it_up_soon_after(fleet: ScriptedFleet) -> None:
    fleet.ask()
    fleet.reply_all(OK, of=[1, 2])
    started_ns = fleet.now_ns
    while not fleet.engine.members.silent(fleet.now_ns):
        fleet.now_ns = max(fleet.engine.next_tick_ns(fleet.now_ns), fleet.now_ns + 1)
        fleet.tick()
        assert fleet.now_ns < started_ns + 10 * NS_PER_S
    assert fleet.now_ns <= started_ns + 3 * NS_PER_S


def look_for(fleet: ScriptedFleet, ms: int, then: object = None) -> list[int]:
    """Every 50 ms; `then` happens in between."""
    found: list[int] = []
    for _ in range(ms // 50):
        found += fleet.engine.members.silent(fleet.now_ns)
        fleet.tick(50)
        if callable(then):
            then()
    return found


def test_an_instance_that_is_slow_but_answers_is_not_given_up() -> None:
    fleet = ScriptedFleet(1)
    for number in range(200):
        fleet.begin(f"r{number}")
    fleet.flush()
    assert look_for(fleet, 9_000, lambda: fleet.reply(0, OK)) == []


def test_bytes_that_complete_no_answer_are_silence() -> None:
    fleet = ScriptedFleet(1)
    fleet.ask()
    drip = iter(b"$1000\r\n" + b"x" * 900)
    assert look_for(
        fleet, 5_000, lambda: fleet.engine.received(0, bytes([next(drip)]), fleet.now_ns)
    )


def test_a_quiet_hour_is_no_silence_when_nothing_was_asked() -> None:
    fleet = ScriptedFleet(1)
    fleet.ask()
    assert look_for(fleet, 100) == []
    fleet.drain()
    fleet.after(3_600_000)
    fleet.ask()
    assert look_for(fleet, 1_500) == []


@pytest.mark.parametrize(
    "settings", [{"lag_cap": LagCap(age_ms=3_000)}, {"instance_timeout_ms": 2_500.0}]
)
def test_who_was_given_more_time_is_given_up_later(settings: dict[str, object]) -> None:
    limit_ns = settings_of(**settings).silence_ns
    assert limit_ns in (6_000 * NS_PER_MS, 5_000 * NS_PER_MS)
