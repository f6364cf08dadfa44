"""The link before an instance: late in order, held and healed, reset, and gone with its owner."""

import random
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from bench.topology.servants import Proxies, Shape

DEADLINE_S = 30.0
BOTH = ("to", "from")


@pytest.fixture
def proxies(echoes: list[int]) -> Iterator[Proxies]:
    with Proxies(echoes, seed=1) as one_each:
        yield one_each


def connect(proxies: Proxies, index: int = 0) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", proxies.ports[index]), DEADLINE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = connection.recv(65536)
        assert chunk
        received += chunk
    return received


def round_trip_s(connection: socket.socket) -> float:
    began = time.monotonic()
    connection.sendall(b"?")
    assert receive(connection, 1) == b"?"
    return time.monotonic() - began


def first_word(proxies: Proxies) -> bytes:
    with connect(proxies) as connection:
        return connection.recv(1)


def is_silent(connection: socket.socket) -> bool:
    return not select.select([connection], [], [], 0.1)[0]


def test_unshaped_it_passes_everything_on_unchanged(proxies: Proxies) -> None:
    sent = random.Random(1).randbytes(20_000_000)
    with connect(proxies) as connection:
        threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
        assert receive(connection, len(sent)) == sent


@pytest.mark.parametrize("slow, least_ms", [(("to",), 30), (("from",), 30), (BOTH, 60)])
def test_a_delay_is_kept_in_its_direction_and_only_there(
    proxies: Proxies, slow: tuple[str, ...], least_ms: int
) -> None:
    with connect(proxies) as late, connect(proxies, 1) as other:
        proxies.shape(0, Shape(delay_s=0.03, slow=slow))
        assert round_trip_s(late) >= least_ms / 1000
        assert min(round_trip_s(other) for _ in range(20)) < least_ms / 1000
        proxies.shape(0, Shape())
        assert min(round_trip_s(late) for _ in range(20)) < least_ms / 1000


def test_a_delay_costs_no_throughput(proxies: Proxies) -> None:
    """A pump that sleeps for each chunk would take 40 × 50 ms."""
    with connect(proxies) as connection:
        proxies.shape(0, Shape(delay_s=0.05, slow=("to",)))
        began = time.monotonic()
        for number in range(40):
            connection.sendall(bytes([number]))
            # chunks of their own
            time.sleep(0.001)
        assert receive(connection, 40) == bytes(range(40))
        assert 0.05 <= time.monotonic() - began < 1.0


def test_jitter_keeps_the_order(proxies: Proxies) -> None:
    with connect(proxies) as connection:
        proxies.shape(0, Shape(jitter_s=0.02, slow=BOTH))
        for number in range(50):
            connection.sendall(bytes([number]))
            # chunks of their own
            time.sleep(0.0005)
        assert receive(connection, 50) == bytes(range(50))


@pytest.mark.parametrize("held", [("to",), ("from",), BOTH])
def test_a_black_hole_hands_over_nothing_and_everything_once_healed(
    proxies: Proxies, held: tuple[str, ...]
) -> None:
    with connect(proxies) as connection:
        round_trip_s(connection)
        proxies.shape(0, Shape(held=held))
        connection.sendall(b"late")
        assert is_silent(connection)
        # as on a stopped server
        with connect(proxies) as newcomer:
            newcomer.sendall(b"me too")
            assert is_silent(newcomer)
            proxies.shape(0, Shape())
            assert receive(connection, 4) == b"late"
            assert receive(newcomer, 6) == b"me too"


def test_a_black_hole_hides_the_end_of_a_connection_until_healed() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Proxies([server.getsockname()[1]]) as one,
        connect(one) as client,
    ):
        theirs, _ = server.accept()
        one.shape(0, Shape(held=("from",)))
        theirs.sendall(b"last words")
        theirs.close()
        assert is_silent(client)
        one.shape(0, Shape())
        assert receive(client, 10) == b"last words"
        assert client.recv(1) == b""


def test_new_connections_lead_to_the_instance_that_took_over() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as primary,
        socket.create_server(("127.0.0.1", 0)) as replica,
        Proxies([primary.getsockname()[1]]) as one,
    ):
        one.shape(0, Shape(port=replica.getsockname()[1]))
        with connect(one), replica.accept()[0] as theirs:
            theirs.sendall(b"me")
        one.shape(0, Shape())
        with connect(one) as client, primary.accept()[0] as theirs:
            theirs.sendall(b"me")
            assert receive(client, 2) == b"me"


def test_a_sender_into_a_black_hole_is_held_back(proxies: Proxies) -> None:
    sent = bytes(64 << 20)
    with connect(proxies) as connection:
        proxies.shape(0, Shape(held=("to",)))
        connection.setblocking(False)
        count = 0
        while select.select([], [connection], [], 0.3)[1]:
            count += connection.send(sent[: 1 << 20])
            assert count < len(sent)
        proxies.shape(0, Shape())
        connection.settimeout(DEADLINE_S)
        assert len(receive(connection, count)) == count


def test_an_instance_that_is_down_is_a_reset() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with Proxies([nobody.getsockname()[1]]) as one, pytest.raises(ConnectionResetError):
            first_word(one)


def test_an_end_of_either_side_reaches_the_other(proxies: Proxies) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Proxies([server.getsockname()[1]]) as one,
    ):
        with connect(one) as client:
            client.sendall(b"bye")
            theirs, _ = server.accept()
            assert receive(theirs, 3) == b"bye"
            theirs.sendall(b"last words")
            theirs.close()
            assert receive(client, 10) == b"last words"
            assert client.recv(1) == b""
        client = connect(one)
        theirs, _ = server.accept()
        client.close()
        theirs.settimeout(DEADLINE_S)
        assert theirs.recv(1) == b""
        theirs.close()
