"""The relay counts what a client says, exactly: commands, bytes, connections, and round trips by who waits for whom."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from bench.topology.counting_relay import CountingRelay

PING = b"*1\r\n$4\r\nPING\r\n"


@pytest.fixture
def relay(echoes: list[int]) -> Iterator[CountingRelay]:
    with CountingRelay(echoes) as relay:
        yield relay


def connected(relay: CountingRelay) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port), timeout=30) for port in relay.ports]


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += sock.recv(count - len(data))
    return data


def close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def test_pipelined_and_torn_commands_are_counted_one_by_one(relay: CountingRelay) -> None:
    sockets = connected(relay)
    sockets[0].sendall(PING * 5 + PING[:7])
    sockets[0].sendall(PING[7:])
    read(sockets[0], 6 * len(PING))
    assert relay.settled().commands == 6
    close(sockets)


def test_a_relay_ends_with_its_connections(relay: CountingRelay) -> None:
    sockets = connected(relay)
    relay.settled()
    relay.close()
    assert sockets[0].recv(1) == b""
    close(sockets)
