"""What one connection exchanges, counted in any pieces: INFO is left out, whatever its length."""

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from bench.experiments.compare.costs import CountingRelay, Exchange
from lockcore.rounds.resp import bulk, request

SET = request(b"SET", b"k\r\nx", b"v", b"NX")
INFO = request(b"info", b"commandstats")
SUBSCRIBE = request(b"SUBSCRIBE", b"c")
STATISTICS = bulk(b"# Commandstats\r\ncmdstat_set:calls=1\r\n" * 40)
MESSAGE = b">3\r\n" + bulk(b"message") + bulk(b"c") + bulk(b"two\r\nlines")
SUBSCRIBED = b">3\r\n" + bulk(b"subscribe") + bulk(b"c") + b":1\r\n"
OK = b"+OK\r\n"


def counted(asked: bytes, answered: bytes, piece: int) -> Counter[str]:
    counts = Counter[str]()

    def count(name: str, more: int) -> None:
        counts[name] += more

    exchange = Exchange(count)
    for data, take in ((asked, exchange.ask), (answered, exchange.answer)):
        for at in range(0, len(data), piece):
            take(data[at : at + piece])
    return counts


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 10_000])
def test_an_info_between_two_commands_changes_no_count(piece: int) -> None:
    plain = counted(SET + SET, OK + OK, piece)
    assert plain == {"commands": 2, "bytes_sent": 2 * len(SET), "bytes_received": 2 * len(OK)}
    assert counted(SET + INFO + SET, OK + STATISTICS + OK, piece) == plain
    assert counted(INFO + SET + SET, STATISTICS + OK + OK, piece) == plain


@pytest.mark.parametrize("piece", [1, 5, 10_000])
def test_a_message_belongs_to_no_command(piece: int) -> None:
    found = counted(SUBSCRIBE + INFO + SET, SUBSCRIBED + MESSAGE + STATISTICS + MESSAGE + OK, piece)
    assert found["commands"] == 2
    assert found["bytes_received"] == len(SUBSCRIBED) + 2 * len(MESSAGE) + len(OK)


def test_one_command_more_is_counted() -> None:
    assert counted(SET + SET + SET, OK * 3, 10)["commands"] == 3


@pytest.fixture
def stage() -> Iterator[tuple[CountingRelay, socket.socket, Callable[[], Counter[str]]]]:
    """A relay, the server behind it, and what it counts until a child says something that is there
    already."""
    said, says = os.pipe()
    with (
        os.fdopen(said, "rb") as stdout,
        os.fdopen(says, "wb"),
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        child: Any = SimpleNamespace(
            process=SimpleNamespace(stdout=stdout), read_line=lambda: os.read(said, 9).decode()
        )
        with closing(CountingRelay([server.getsockname()[1]])) as relay:

            def counts() -> Counter[str]:
                os.write(says, b"a line")
                return relay.until_said(child)[1]

            yield relay, server, counts


def test_a_connection_whose_ends_close_in_one_moment_ends_once(stage: Any) -> None:
    """A client on a busy machine gave up just as its server did; the gate ended with a fault of
    lockbench itself."""
    relay, server, counts = stage
    client = socket.create_connection(("127.0.0.1", relay.ports[0]))
    assert counts()["connections"] == 1
    client.close()
    server.accept()[0].close()
    assert counts()["connections"] == 0


def test_a_client_that_asks_for_tls_is_handed_on_and_not_counted(stage: Any) -> None:
    relay, server, counts = stage
    hello = b"\x16\x03\x01\x00\x05hello"
    alert = b"\x15\x03\x01\x00\x02\x02\x28"
    with socket.create_connection(("127.0.0.1", relay.ports[0])) as client:
        client.sendall(hello)
        assert counts()["commands"] == 0
        with server.accept()[0] as other_end:
            assert other_end.recv(99) == hello
            other_end.sendall(alert)
            assert counts()["bytes_received"] == 0
            assert client.recv(99) == alert
