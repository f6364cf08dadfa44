"""Where a reply ends: found in any pieces, and refused where a header announces what no reply can
be."""

from __future__ import annotations

import time
from random import Random

import pytest
from hiredis import PushNotification

from lockcore.errors import ProtocolError
from lockcore.facts.model import Outcome
from lockcore.rounds.framing import DEEPEST, LONGEST_MESSAGE, LONGEST_REPLY, NOT_WHOLE, Framing
from lockcore.rounds.pipeline import Pipeline
from lockcore.rounds.resp import NOT_YET, bulk, reply_reader
from tests.doubles.keyspace import OK, ONE
from tests.lockcore.scripted import ScriptedFleet, name_of
from tests.lockcore.source import needs_source

WHOLE = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"(12345678901234567890\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"$0\r\n\r\n",
    b"$7\r\na\r\n_\r\nb\r\n",
    b"=6\r\ntxt:OK\r\n",
    b"*0\r\n",
    b"%0\r\n",
    b"~0\r\n",
    b"*2\r\n*2\r\n+a\r\n$-1\r\n$2\r\n\r\n\r\n",
    b"%1\r\n+a\r\n~1\r\n:1\r\n",
    b">2\r\n$10\r\ninvalidate\r\n_\r\n",
    b"*3\r\n*0\r\n*1\r\n*0\r\n+x\r\n",
    b"*1\r\n" * DEEPEST + b":1\r\n",
    bulk(b"x" * (LONGEST_REPLY - 10)),
    b"-" + b"x" * (LONGEST_REPLY - 3) + b"\r\n",
    b"*21000\r\n" + b"_\r\n" * 21_000,
]
TOO_MUCH = [
    *[
        kind + digits + b"\r\n"
        for kind in (b"*", b"%", b"~", b">", b"$", b"=")
        for digits in (b"65537", b"1000000000", b"9223372036854775807", b"9" * 40, b"9" * 5_000)
    ],
    b"*21845\r\n",
    b"%10923\r\n",
    b"*3\r\n*1000000\r\n",
    b"*2\r\n+a\r\n~1000000000\r\n",
    b"%1\r\n+a\r\n%99999999\r\n",
    b">2\r\n+message\r\n*1000000000\r\n",
    b"*20000\r\n*20000\r\n",
    b"*3\r\n$60000\r\n" + b"x" * 60_000 + b"\r\n$60000\r\n",
    b">3\r\n$1000000\r\n",
    b">3\r\n$7\r\nmessage\r\n$5\r\ninbox\r\n$1000000000\r\n",
    b"-" + b"x" * 70_000,
    b"+" + b"x" * 70_000 + b"\r\n",
    b"$" + b"1" * 70_000,
    b"(" + b"1" * 70_000 + b"\r\n",
]
NONSENSE = [
    b"$?\r\n",
    b"*?\r\n",
    b"%?\r\n",
    b"~?\r\n",
    b">?\r\n",
    b";4\r\nabcd\r\n",
    b".\r\n",
    b"|1\r\n+a\r\n+b\r\n+OK\r\n",
    b"|1000000000\r\n",
    b"!5\r\nERR x\r\n",
    b"@\r\n",
    b"\r\n",
    b"OK\r\n",
    b"*-2\r\n",
    b"$-2\r\n",
    b"%-1\r\n",
    b"~-1\r\n",
    b">-1\r\n",
    b"=-1\r\n",
    b"*+1\r\n",
    b"* 1\r\n",
    b"*01\r\n",
    b"$00\r\n\r\n",
    b"*1 \r\n",
    b"*1_0\r\n",
    b"*\r\n",
    b"$\r\n",
    b"$x\r\n",
    "*٣\r\n".encode(),
    b"*-0\r\n",
    b"$3\r\nabcd\r\n",
    b"$3\r\nab\r\n\r\n",
    b"*1\r\n" * (DEEPEST + 1) + b":1\r\n",
    b"*2\r\n:1\r\nx\r\n",
    b"*2\r\n:1\r\n|1\r\n",
]


def pieces_of(data: bytes, how: str) -> list[bytes]:
    """The same bytes at once, one at a time, or in pieces of any size."""
    if how == "at once":
        return [data]
    if how == "byte by byte" and len(data) < 3_000:
        return [data[at : at + 1] for at in range(len(data))]
    random = Random(len(data))
    pieces = []
    while data:
        size = random.choice((1, 2, 700, 9_000))
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def receive(fleet: ScriptedFleet, pieces: list[bytes]) -> None:
    """Instance 0 says this."""
    for piece in pieces:
        fleet.engine.received(0, piece, fleet.now_ns)


HOW = ["at once", "byte by byte", "in pieces"]


def ends(data: bytes, how: str) -> list[int]:
    """What the framing says after each piece that came."""
    framing = Framing("host:1")
    come = b""
    said = []
    for piece in pieces_of(data, how):
        come += piece
        said.append(framing.end_of(b"before" + come, 6))
        if said[-1] != NOT_WHOLE:
            break
    return said


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("data", WHOLE, ids=range(len(WHOLE)))
def test_a_reply_ends_where_the_parser_says_and_not_before(data: bytes, how: str) -> None:
    *before, end = ends(data + b"+next\r\n", how)
    assert set(before) <= {NOT_WHOLE}
    assert end == 6 + len(data)
    reader = reply_reader()
    reader.feed(data)
    assert reader.gets() is not NOT_YET
    assert not reader.has_data()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("data", "words"),
    [(data, "more than 65,536 bytes") for data in TOO_MUCH]
    + [(data, "does not speak RESP2") for data in NONSENSE],
    ids=range(len(TOO_MUCH) + len(NONSENSE)),
)
def test_a_header_is_refused_before_anybody_makes_room_for_what_it_announces(
    data: bytes, words: str, how: str
) -> None:
    """One sentence that names the instance, and no time: the connection ends, the other instances
    go on."""
    fleet = ScriptedFleet(3)
    round_ = fleet.ask()
    begun = time.thread_time()
    with pytest.raises(ProtocolError, match=rf"host:7000 .*{words}"):
        receive(fleet, pieces_of(data, how))
    assert time.thread_time() - begun < 2
    fleet.detach(0, "protocol error")
    fleet.reply_all(OK, of=[1, 2])
    assert round_.outcome is Outcome.ACQUIRED


@pytest.mark.parametrize("company", [0, 6])
@pytest.mark.parametrize("before", [b"", OK, b">2\r\n$7\r\nmessage\r\n+x\r\n"])
def test_it_is_refused_wherever_it_comes(before: bytes, company: int) -> None:
    """Alone, in the middle of a batch, behind an answer or a message."""
    fleet = ScriptedFleet(3)
    rounds = [fleet.begin(f"r{number}") for number in range(company + 1)]
    fleet.flush()
    with pytest.raises(ProtocolError, match="more than 65,536 bytes|nobody asked for"):
        fleet.engine.received(0, before + b"*1000000000\r\n", fleet.now_ns)
    fleet.detach(0)
    fleet.reply_all(*[OK] * (company + 1), of=[1, 2])
    assert {name_of(round_) for round_ in rounds} == {"acquired"}


@needs_source
def test_a_framing_that_believes_headers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Framing, "_check_room", lambda self, size: None)
    with pytest.raises(pytest.fail.Exception):
        test_it_is_refused_wherever_it_comes(b"", 0)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("size", [LONGEST_REPLY, 100_000, 1_000_000])
def test_a_message_that_is_too_long_is_passed_over(size: int, known: bool, how: str) -> None:
    """Another client may publish what it likes: neither the connection nor what comes behind it
    suffers."""
    fleet = ScriptedFleet(3)
    heard = list[object]()
    fleet.engine.pipes[0].heard = lambda message, _: heard.append(message)
    head = b">3\r\n$7\r\nmessage\r\n" + bulk(b"inbox")
    fleet.engine.pipes[0].replies.message_head = head + b"$" if known else b""
    rounds = [fleet.begin(f"r{number}") for number in range(6)]
    fleet.flush()
    data = OK + head + bulk(b"+OK\r\n" * (size // 5)) + OK + head + bulk(b"short") + OK * 4
    receive(fleet, pieces_of(data, how))
    assert heard == [b"short"]
    assert [round_.tally.granted for round_ in rounds] == [1] * 6
    assert fleet.engine.pipes[0].replies.unread_bytes == 0


def test_while_a_long_message_comes_nothing_of_it_is_kept_and_silence_is_noticed() -> None:
    fleet = ScriptedFleet(1)
    fleet.ask()
    pipe: Pipeline = fleet.engine.pipes[0]
    fleet.engine.received(
        0, b">3\r\n$7\r\nmessage\r\n+x\r\n$%d\r\n" % (LONGEST_MESSAGE - 100), fleet.now_ns
    )
    silent: list[int] = []
    for _ in range(60):
        fleet.engine.received(0, b"+OK\r\n" * 10_000, fleet.now_ns)
        assert pipe.replies.unread_bytes == 0
        silent += fleet.engine.members.silent(fleet.now_ns)
        fleet.tick(50)
    assert silent


def test_messages_alone_are_no_answers() -> None:
    """An instance that only passes on what others publish is given up like one that says
    nothing."""
    fleet = ScriptedFleet(1)
    fleet.ask()
    silent: list[int] = []
    for _ in range(60):
        fleet.engine.received(0, b">2\r\n$7\r\nmessage\r\n$1\r\nx\r\n", fleet.now_ns)
        silent += fleet.engine.members.silent(fleet.now_ns)
        fleet.tick(50)
    assert silent


def random_reply(random: Random, depth: int = 0) -> bytes:
    """Any reply that RESP3 allows."""
    kind = random.choice(
        (b"+", b"$", b":", b"*", b"%", b"~") if depth < DEEPEST else (b"+", b"$", b":")
    )
    if kind == b"$":
        return bulk(random.choice((b"", b"\r\n", b"*9\r\n", b"x" * random.randrange(300))))
    if kind in b"+:":
        return kind + b"1\r\n"
    count = random.randrange(4)
    if kind == b"%":
        return b"%%%d\r\n" % count + b"".join(
            b"+%d\r\n" % at + random_reply(random, depth + 1) for at in range(count)
        )
    inner = [
        b":%d\r\n" % at if kind == b"~" else random_reply(random, depth + 1) for at in range(count)
    ]
    return kind + b"%d\r\n" % count + b"".join(inner)


@pytest.mark.parametrize("seed", range(40))
def test_any_reply_in_any_pieces_ends_where_it_does(seed: int) -> None:
    random = Random(seed)
    for _ in range(20):
        data = random_reply(random)
        assert ends(data + b"rest", random.choice(HOW))[-1] == 6 + len(data)
        reader = reply_reader()
        reader.feed(data)
        assert not isinstance(reader.gets(), PushNotification)
        assert not reader.has_data()
    assert ends(ONE, "byte by byte") == [NOT_WHOLE] * 3 + [6 + len(ONE)]
