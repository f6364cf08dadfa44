"""RESP on the wire: bytes in any pieces give the same replies, commands are those of redis-py."""

from random import Random
from typing import Any

import pytest
from hiredis import ProtocolError, ReplyError
from redis.connection import Connection

from lockcore.rounds.resp import NOT_YET, error_kind, reply_reader, request

REPLIES: list[tuple[bytes, Any]] = [
    (b"+OK\r\n", b"OK"),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b":0\r\n", 0),
    (b":1\r\n", 1),
    (b":-9223372036854775808\r\n", -(2**63)),
    (b"$0\r\n\r\n", b""),
    (b"$7\r\na\r\nb\x00\xff!\r\n", b"a\r\nb\x00\xff!"),
    (b"*0\r\n", []),
    (b"*3\r\n:1\r\n:0\r\n:1\r\n", [1, 0, 1]),
    (b"*2\r\n$1\r\nx\r\n*2\r\n+a\r\n$-1\r\n", [b"x", [b"a", None]]),
]
ERRORS = [
    (b"-NOSCRIPT No matching script. Please use EVAL.\r\n", "NOSCRIPT"),
    (b"-MISCONF Redis is configured to save RDB snapshots\r\n", "MISCONF"),
    (b"-ERR\r\n", "ERR"),
    (b"-\r\n", "ERR"),
]
EVERYTHING = b"".join([data for data, _ in REPLIES + ERRORS])


class Replies:
    """All of one connection."""

    def __init__(self) -> None:
        self.reader = reply_reader()

    def all(self, data: bytes) -> list[Any]:
        """What `data` completes."""
        self.reader.feed(data)
        return list(iter(self.reader.gets, NOT_YET))


def shown(replies: list[Any]) -> list[Any]:
    """Replies in a form that compares: an error by its text."""
    return [f"error {reply}" if isinstance(reply, ReplyError) else reply for reply in replies]


def packed(*arguments: bytes) -> bytes:
    """What redis-py sends for a command."""
    connection: Any = Connection
    return b"".join(connection().pack_command(*arguments))


@pytest.mark.parametrize("data, expected", REPLIES)
def test_a_reply_is_parsed_to_its_value(data: bytes, expected: object) -> None:
    assert Replies().all(data) == [expected]


@pytest.mark.parametrize("data, kind", ERRORS)
def test_an_error_reply_is_a_value_with_a_kind(data: bytes, kind: str) -> None:
    (reply,) = Replies().all(data)
    assert isinstance(reply, ReplyError)
    assert error_kind(reply) == kind


@pytest.mark.parametrize("reply", [b"OK", 1, None, [1], b"QUEUED"])
def test_a_reply_that_is_no_error_is_unexpected_where_errors_are_counted(reply: object) -> None:
    assert error_kind(reply) == "UNEXPECTED"


def test_fed_byte_by_byte_equals_fed_at_once() -> None:
    at_once = Replies()
    one_by_one = Replies()
    pieces = [
        reply
        for index in range(len(EVERYTHING))
        for reply in one_by_one.all(EVERYTHING[index : index + 1])
    ]
    assert shown(pieces) == shown(at_once.all(EVERYTHING))
    assert len(pieces) == len(REPLIES) + len(ERRORS)


@pytest.mark.parametrize("seed", range(20))
def test_fed_in_any_pieces_equals_fed_at_once(seed: int) -> None:
    random = Random(seed)
    cuts = sorted(random.choices(range(len(EVERYTHING)), k=random.randrange(1, 30)))
    replies = Replies()
    parsed = []
    for start, end in zip([0, *cuts], [*cuts, len(EVERYTHING)], strict=True):
        parsed += replies.all(EVERYTHING[start:end])
    assert shown(parsed) == shown(Replies().all(EVERYTHING))


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 200\r\n", b"\x16\x03\x01\x02", b"+OK\r\nhello\r\n", b":one\r\n"]
)
def test_bytes_that_are_no_replies_are_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Replies().all(data)


@pytest.mark.parametrize("seed", range(20))
def test_a_request_is_what_redis_py_would_send(seed: int) -> None:
    random = Random(seed)
    arguments = [
        random.randbytes(random.choice([0, 1, 9, 10, 99, 100, 5000]))
        for _ in range(random.randrange(12))
    ]
    assert request(b"SET", *arguments) == packed(b"SET", *arguments)
