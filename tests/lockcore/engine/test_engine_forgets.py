"""A server that forgot its locks while its connection stayed: a replica for a moment, a flush.

What it grants then.
"""

from dataclasses import replace

import pytest

from lockcore.clock import NS_PER_MS, NS_PER_S, drift_ns
from lockcore.engine.amnesia import SWAPS_EVERY_NS
from lockcore.facts.membership import (
    NOT_COUNTED,
    Hello,
    IdentityKind,
    State,
    abstention_ns,
    fields_of,
    identity_of,
    swaps_of,
    twin_of,
)
from lockcore.rounds.awaited import Asked
from tests.doubles.keyspace import NIL, OK
from tests.lockcore.scripted import TTL_MS, ScriptedFleet, name_of, settings_of

FLUSHED = b">2\r\n$10\r\ninvalidate\r\n_\r\n"
READONLY = b"-READONLY You can't write against a read only replica.\r\n"
RESP3_NIL = b"_\r\n"
WHOLE_NS = TTL_MS * NS_PER_MS + drift_ns(TTL_MS, 0.01)
HELLO = Hello("run-0", 1_000_000, "redis 7", 1, replid="a" * 40)
# What their manuals and sources print; no server of either kind ran here.
DRAGONFLY = {
    "server": "# Server\r\nredis_version:7.4.0\r\ndragonfly_version:df-v1.40.1\r\n"
    "redis_mode:standalone\r\n"
    "arch_bits:64\r\ntcp_port:6379\r\nuptime_in_seconds:23\r\nuptime_in_days:0\r\n",
    "replication": "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
    f"master_replid:{'4d' * 20}\r\n",
}
KVROCKS = {
    "server": "# Server\r\nversion:2.8.0\r\nkvrocks_version:2.8.0\r\nredis_version:4.0.0\r\n"
    "redis_mode:standalone\r\n"
    "process_id:17\r\ntcp_port:6666\r\nuptime_in_seconds:23\r\nuptime_in_days:0\r\n",
    "replication": "# Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_repl_offset:0\r\n",
}


def fleet_of(instances: int = 3, rejoin: str = "trust-first", **settings: object) -> ScriptedFleet:
    return ScriptedFleet(instances, settings=settings_of(rejoin=rejoin, **settings))


def states(fleet: ScriptedFleet) -> list[str]:
    return [member.state.value for member in fleet.engine.members.states]


def told(fleet: ScriptedFleet, index: int, data: bytes) -> None:
    """Bytes of an instance that answer nothing."""
    fleet.engine.received(index, data, fleet.now_ns)


# -- what is told on the connection ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("rejoin", "state"),
    [("delay", "abstaining"), ("trust-first", "abstaining"), ("trust", "voting")],
)
def test_an_instance_that_was_flushed_abstains_like_a_restarted_one(
    rejoin: str, state: str
) -> None:
    fleet = fleet_of(rejoin=rejoin)
    told(fleet, 0, FLUSHED)
    assert states(fleet) == [state, "voting", "voting"]
    if state == "abstaining":
        assert "flushed" in fleet.engine.members.status()[0].reason
        assert fleet.engine.next_tick_ns(fleet.now_ns) == fleet.now_ns + WHOLE_NS
        fleet.tick(WHOLE_NS / NS_PER_MS)
        assert states(fleet) == ["voting"] * 3


@pytest.mark.parametrize("rounds", [1, 8], ids=["one by one", "a flight"])
def test_a_vote_that_was_under_way_when_it_was_flushed_is_not_counted(rounds: int) -> None:
    """The server grants what it has forgotten: another lease may be valid there."""
    fleet = fleet_of()
    asked = [fleet.begin(f"r{number}") for number in range(rounds)]
    fleet.flush()
    for index in range(2):
        told(fleet, index, FLUSHED)
        fleet.reply(index, *[OK] * rounds)
    assert {name_of(round_) for round_ in asked} == {"unreachable"}
    assert {round_.tally.granted for round_ in asked} == {0}
    fleet.reply(2, *[OK] * rounds)
    fleet.drain()
    assert fleet.is_empty()


@pytest.mark.parametrize("rounds", [1, 8], ids=["one by one", "a flight"])
def test_a_vote_before_the_flush_counts_and_so_does_everybody_else_s(rounds: int) -> None:
    fleet = fleet_of()
    asked = [fleet.begin(f"r{number}") for number in range(rounds)]
    fleet.flush()
    fleet.reply(0, *[OK] * rounds)
    told(fleet, 0, FLUSHED)
    fleet.reply(1, *[OK] * rounds)
    assert {name_of(round_) for round_ in asked} == {"acquired"}


def test_flushes_told_in_the_middle_of_replies_and_in_pieces_keep_every_reply_in_its_place() -> (
    None
):
    for cut in range(len(OK * 3 + FLUSHED + OK * 3)):
        fleet = fleet_of()
        asked = [fleet.begin(f"r{number}") for number in range(6)]
        fleet.flush()
        data = OK * 3 + FLUSHED + OK * 3
        for piece in (data[:cut], data[cut:]):
            fleet.engine.received(0, piece, fleet.now_ns)
        assert [round_.tally.granted for round_ in asked] == [1, 1, 1, 0, 0, 0]
        assert fleet.engine.members.status()[0].pending == 0


@pytest.mark.parametrize("nil", [NIL, RESP3_NIL], ids=["RESP2", "RESP3"])
def test_a_flight_is_refused_in_either_protocol(nil: bytes) -> None:
    fleet = fleet_of()
    asked = [fleet.begin(f"r{number}") for number in range(12)]
    fleet.flush()
    for index in range(3):
        fleet.engine.received(index, OK * 5 + nil + OK * 6, fleet.now_ns)
    assert [name_of(round_) for round_ in asked] == ["acquired"] * 5 + ["contended"] + [
        "acquired"
    ] * 6
    assert asked[0].flight is None or asked[5].flight is None


def test_other_news_and_refusals_are_no_flush() -> None:
    fleet = fleet_of()
    told(fleet, 0, b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n")
    fleet.ask()
    fleet.reply_all(RESP3_NIL)
    assert states(fleet) == ["voting"] * 3


# -- -READONLY -------------------------------------------------------------------------------------


def test_the_first_readonly_is_a_changed_run_id() -> None:
    fleet = fleet_of()
    round_ = fleet.ask()
    fleet.reply(0, READONLY)
    assert states(fleet) == ["abstaining", "voting", "voting"]
    assert "replica" in fleet.engine.members.status()[0].reason
    fleet.reply(1, OK)
    fleet.reply(2, OK)
    assert name_of(round_) == "acquired"
    assert len(fleet.ask("next").voters) == 2


@pytest.mark.parametrize("answer", [OK, NIL])
def test_what_comes_behind_a_readonly_is_not_counted(answer: bytes) -> None:
    fleet = fleet_of()
    fleet.ask("first")
    second = fleet.ask("second")
    fleet.reply(0, READONLY, answer)
    assert (second.tally.granted, second.tally.refused, second.tally.silent) == (0, 0, 1)


# -- asked, where it does not tell -----------------------------------------------------------------


def asked_fleet() -> ScriptedFleet:
    fleet = fleet_of()
    for member in fleet.engine.members.states:
        assert member.hello is not None
        member.joined(replace(member.hello, tells=False, replid="a" * 40), 0, fleet.now_ns)
    return fleet


def info(role: str, replid: str) -> bytes:
    text = f"# Replication\r\nrole:{role}\r\nmaster_replid:{replid}\r\n".encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (info("master", "a" * 40), "voting"),
        (info("master", "b" * 40), "abstaining"),
        (info("slave", "a" * 40), "abstaining"),
        (b"-NOPERM no\r\n", "voting"),
    ],
    ids=["the same", "another replication id", "a replica", "not allowed"],
)
def test_an_instance_that_does_not_tell_is_asked_every_second(answer: bytes, state: str) -> None:
    fleet = asked_fleet()
    assert fleet.engine.next_tick_ns(fleet.now_ns) == fleet.now_ns + NS_PER_S
    fleet.tick(1000)
    assert fleet.sent[0] == [[b"INFO", b"replication"]]
    fleet.reply(0, answer)
    assert states(fleet) == [state, "voting", "voting"]
    fleet.tick(999)
    assert len(fleet.sent[0]) == 1


def test_an_instance_that_tells_is_not_asked() -> None:
    fleet = fleet_of()
    fleet.tick(5000)
    assert fleet.sent == [[], [], []]


# -- databases that were swapped -------------------------------------------------------------------


LOOK = [b"INFO", b"commandstats"]


def counting_fleet(swaps: int = 4) -> ScriptedFleet:
    """Three instances that count their swaps, and that said so a second ago."""
    fleet = fleet_of()
    for member in fleet.engine.members.states:
        assert member.hello is not None
        member.hello = replace(member.hello, swaps=swaps)
    fleet.after(1000)
    return fleet


def stats(swaps: int | None, failed: int = 0) -> bytes:
    """What INFO says of the commands a server was asked for."""
    text = (
        b"# Commandstats\r\n"
        b"cmdstat_info:calls=6,usec=27,usec_per_call=4.62,rejected_calls=0,failed_calls=0\r\n"
    )
    if swaps is not None:
        text += (
            b"cmdstat_swapdb:calls=%d,usec=5,usec_per_call=1.25,"
            b"rejected_calls=0,failed_calls=%d\r\n" % (swaps + failed, failed)
        )
    return b"$%d\r\n%b\r\n" % (len(text), text)


@pytest.mark.parametrize("rounds", [1, 8], ids=["one by one", "a flight"])
def test_a_swap_voids_the_first_sets_that_are_sent_after_it(rounds: int) -> None:
    """The server counts the swap before it executes them, and they may have found an empty
    database."""
    fleet = counting_fleet()
    asked = [fleet.begin(f"r{number}") for number in range(rounds)]
    fleet.flush()
    for index in range(2):
        assert fleet.sent[index][0] == LOOK
        fleet.reply(index, stats(5), *[OK] * rounds)
    fleet.reply(2, stats(4), *[OK] * rounds)
    assert states(fleet) == ["abstaining", "abstaining", "voting"]
    assert "databases were swapped" in fleet.engine.members.status()[0].reason
    assert {name_of(round_) for round_ in asked} == {"unreachable"}
    fleet.drain()
    assert fleet.is_empty()


def test_the_count_of_swaps_is_read_ahead_of_sets_that_others_have_pushed_out_of_the_batch() -> (
    None
):
    fleet = counting_fleet(swaps=0)
    first = fleet.begin("first")
    fleet.engine.unicast(
        fleet.engine.pipes[0], b"*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n", Asked(fleet.now_ns)
    )
    second = fleet.begin("second")
    fleet.flush()
    assert [command[0] for command in fleet.sent[0]] == [b"INFO", b"SET", b"CLIENT", b"SET"]
    for index in range(3):
        rest = [b":7\r\n"] if index == 0 else []
        fleet.reply(index, stats(1), OK, *rest, OK)
    assert [round_.tally.granted for round_ in (first, second)] == [0, 0]


class Deaf:
    """An observer that wants nothing but that rounds are watched."""

    def observe(self, record: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("rounds", [1, 4, 40])
def test_a_watched_set_may_be_the_one_that_the_count_of_swaps_is_read_ahead_of(rounds: int) -> None:
    """The reading ends the batch before it. That batch is told of its own watched rounds only."""
    fleet = fleet_of(observer=Deaf(), observe_every=1)
    for member in fleet.engine.members.states:
        assert member.hello is not None
        member.hello = replace(member.hello, swaps=0)
    fleet.ask("the reading before")
    fleet.drain()
    batch = [fleet.begin(f"r{number}") for number in range(rounds)]
    fleet.now_ns += SWAPS_EVERY_NS
    last = fleet.begin("the next reading")
    fleet.flush()
    for index in range(3):
        fleet.reply(index, *[OK] * rounds, stats(0), OK)
    assert {name_of(round_) for round_ in (*batch, last)} == {"acquired"}


@pytest.mark.parametrize("tells", [False, True], ids=["RESP2", "RESP3"])
def test_a_reading_of_swaps_is_no_part_of_what_locks_cost(tells: bool) -> None:
    """It comes by the clock: a slower load would seem to need more commands and bytes a lease."""
    counted = counting_fleet()
    plain = fleet_of()
    plain.after(1000)
    for member in counted.engine.members.states:
        assert member.hello is not None
        member.hello = replace(member.hello, tells=tells)
    text = stats(4)
    reply = text.replace(
        b"$%d\r\n" % (len(text.split(b"\r\n", 1)[1]) - 2),
        b"=%d\r\ntxt:" % (len(text.split(b"\r\n", 1)[1]) + 2),
    )
    counted.ask()
    counted.reply(0, reply if tells else text, OK)
    plain.ask()
    plain.reply(0, OK)
    one = counted.engine.members.status()[0]
    other = plain.engine.members.status()[0]
    assert counted.sent[0][0] == LOOK
    assert (one.commands, one.bytes_sent, one.bytes_received) == (
        other.commands,
        other.bytes_sent,
        other.bytes_received,
    )


def test_swaps_are_counted_four_times_a_second_at_most_and_never_without_a_set() -> None:
    fleet = counting_fleet()
    for _ in range(50):
        fleet.ask()
        fleet.after(10)
    assert fleet.sent[0].count(LOOK) == 2
    looks = fleet.sent[0].count(LOOK)
    fleet.tick(60_000)
    assert fleet.sent[0].count(LOOK) == looks


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (stats(4), "voting"),
        (stats(4, failed=3), "voting"),
        (stats(None), "voting"),
        (stats(0, failed=1), "voting"),
        (b"-NOPERM no\r\n", "voting"),
        (b"$0\r\n\r\n", "voting"),
        (b"=15\r\ntxt:Some string\r\n", "voting"),
        (stats(5), "abstaining"),
        (stats(6), "abstaining"),
        (stats(1), "abstaining"),
    ],
    ids=[
        "none",
        "failed ones",
        "reset",
        "reset, then a failed one",
        "not allowed",
        "no statistics",
        "text",
        "one",
        "to and fro",
        "reset, then one",
    ],
)
def test_a_swap_is_told_from_what_is_none(answer: bytes, state: str) -> None:
    fleet = counting_fleet()
    fleet.ask()
    fleet.reply(0, answer)
    assert states(fleet) == [state, "voting", "voting"]


def test_a_swap_is_noticed_once_and_costs_one_abstention() -> None:
    fleet = counting_fleet()
    fleet.ask()
    fleet.reply_all(stats(5), OK)
    assert states(fleet) == ["abstaining"] * 3
    fleet.drain()
    fleet.tick(WHOLE_NS / NS_PER_MS)
    round_ = fleet.ask("later")
    fleet.reply_all(stats(5), OK)
    assert name_of(round_) == "acquired"


def test_who_trusts_or_finds_no_statistics_reads_none() -> None:
    for fleet in (fleet_of(rejoin="trust"), fleet_of()):
        fleet.after(1000)
        fleet.ask()
        assert [command[0] for command in fleet.sent[0]] == [b"SET"]


@pytest.mark.parametrize(
    ("info", "swaps"),
    [
        ("", NOT_COUNTED),
        ("# Commandstats\r\n", NOT_COUNTED),
        ("cmdstat_info:calls=1\r\n", 0),
        ("cmdstat_swapdb:calls=3,usec=5\r\n", 3),
        ("cmdstat_swapdb:calls=3,usec=5,failed_calls=1\r\n", 2),
        ("cmdstat_swapdb:\r\n", 0),
        ("cmdstat_swapdb:calls=3\r\n" + "cmdstat_other:calls=1\r\n" * 2000, NOT_COUNTED),
    ],
)
def test_swaps_are_those_that_did_not_fail(info: str, swaps: int) -> None:
    assert swaps_of(info) == swaps_of(info.encode()) == swaps


def test_a_swap_while_nobody_was_connected_is_a_changed_run_id() -> None:
    known = replace(HELLO, swaps=4)
    whole = {4: 0, 0: 0, NOT_COUNTED: 0, 5: WHOLE_NS, 3: WHOLE_NS}
    for swaps, abstention in whole.items():
        assert (
            abstention_ns(replace(known, swaps=swaps), known, "trust-first", TTL_MS, 0.01)
            == abstention
        )
    assert abstention_ns(known, HELLO, "trust-first", TTL_MS, 0.01) == 0


# -- the handshake ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hello", "abstains"),
    [
        (HELLO, False),
        (replace(HELLO, client_id=9, uptime_s=0, server="redis 8"), False),
        (replace(HELLO, replid="b" * 40), True),
        (replace(HELLO, run_id="run-1"), True),
    ],
    ids=["the same", "reconnected", "was a replica meanwhile", "restarted"],
)
def test_another_replication_id_is_a_changed_run_id(hello: Hello, abstains: bool) -> None:
    assert abstention_ns(hello, HELLO, "trust-first", TTL_MS, 0.01) == (WHOLE_NS if abstains else 0)


def test_a_first_contact_with_a_server_that_was_a_replica_waits_whatever_its_uptime() -> None:
    promoted = replace(HELLO, was_replica=True)
    assert [
        abstention_ns(promoted, None, rejoin, TTL_MS, 0.01)
        for rejoin in ("delay", "trust-first", "trust")
    ] == [
        WHOLE_NS,
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("server", "identity"),
    [
        (
            {"server": "run_id:abc\r\nprocess_id:1\r\n", "replication": "master_replid:def\r\n"},
            IdentityKind.RUN_ID,
        ),
        (DRAGONFLY, IdentityKind.REPLICATION_ID),
        (KVROCKS, IdentityKind.PROCESS),
        ({"server": "run_id:\r\nuptime_in_seconds:3\r\n"}, None),
        ({"server": "process_id:3\r\n"}, None),
        ({}, None),
    ],
)
def test_a_server_is_told_apart_by_the_best_it_offers(
    server: dict[str, str], identity: IdentityKind | None
) -> None:
    found = identity_of(fields_of("".join(server.values())), 1000.0)
    assert (found and found[0]) is identity


@pytest.mark.parametrize(
    ("process_id", "uptime_s", "now_s", "same"),
    [
        (17, 23, 1000.0, True),
        # uptime is cut to whole seconds
        (17, 24, 1001.4, True),
        (17, 0, 1001.0, False),
        (17, 20, 1000.0, False),
        (18, 23, 1000.0, False),
    ],
)
def test_a_process_is_the_same_by_number_and_start(
    process_id: int, uptime_s: int, now_s: float, same: bool
) -> None:
    def hello(process_id: int, uptime_s: int, now_s: float) -> Hello:
        found = identity_of(
            {"process_id": str(process_id), "uptime_in_seconds": str(uptime_s)}, now_s
        )
        assert found is not None
        return Hello(found[1], uptime_s, "kvrocks", 0, identity=found[0], started_s=found[2])

    assert hello(process_id, uptime_s, now_s).is_run_of(hello(17, 23, 1000.0)) is same


def test_a_wall_clock_that_is_set_moves_no_start() -> None:
    """Both are of the server's own clock, which NTP may have set between the two."""
    before = {"process_id": "1", "server_time_usec": "1000000000000", "uptime_in_seconds": "10"}
    after = {"process_id": "1", "server_time_usec": "4600000000000", "uptime_in_seconds": "3600010"}
    first = identity_of(before, 0.0)
    later = identity_of(after, 5.0)
    assert first is not None
    assert first == later


def test_process_numbers_of_two_machines_make_no_twins() -> None:
    fleet = fleet_of(2)
    kvrocks = Hello("process 1", 10, "kvrocks", 1, identity=IdentityKind.PROCESS, started_s=5.0)
    fleet.engine.members.states[0].hello = kvrocks
    assert fleet.engine.members.states[0].state is State.VOTING
    assert twin_of(fleet.engine.members.states, 1, kvrocks) is None
