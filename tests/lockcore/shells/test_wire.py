"""One socket: all is sent, in order, however little the kernel takes; what comes in is read; breaks are told."""

import _socket
import socket
from collections.abc import Iterator
from random import Random

import pytest

from lockcore.shells.wire import READ_BYTES, Wire


def bare(sock: socket.socket) -> _socket.socket:
    """As the handshake hands one over."""
    sock.setblocking(False)
    return _socket.socket(fileno=sock.detach())


class Ends:
    """Both ends of a connection, one of them a wire; and what the wire told its driver."""

    def __init__(self) -> None:
        mine, self.peer = socket.socketpair()
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.wanted: list[bool] = []
        self.errors: list[OSError] = []
        self.wire = Wire(bare(mine), self.wanted.append, self.errors.append)  # type: ignore[arg-type]
        self.peer.settimeout(5.0)

    def read(self, count: int) -> bytes:
        """So many bytes at the other end; the wire sends more whenever it can."""
        data = b""
        while len(data) < count:
            self.wire.writable()
            data += self.peer.recv(count - len(data))
        return data


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.wire.close()
    made.peer.close()


def test_what_the_kernel_does_not_take_is_kept_in_order(ends: Ends) -> None:
    pieces = [Random(number).randbytes(5000) for number in range(100)]
    kept = [ends.wire.transmit(piece) for piece in pieces]
    assert kept[0] == 0
    assert kept[-1] > 100_000
    assert ends.wanted == [True]
    assert ends.read(500_000) == b"".join(pieces)
    assert ends.wanted == [True, False]
    assert ends.wire.transmit(b"more") == 0
    assert ends.read(4) == b"more"


def test_what_has_come_in_is_read_once(ends: Ends) -> None:
    assert ends.wire.receive() == []
    ends.peer.sendall(b"+OK\r\n")
    assert ends.wire.receive() == [b"+OK\r\n"]
    assert ends.wire.receive() == []
    ends.peer.sendall(b"x" * (READ_BYTES + 1))
    assert len(ends.wire.receive()[0]) <= READ_BYTES


def test_the_end_of_the_stream_is_an_error(ends: Ends) -> None:
    ends.peer.close()
    with pytest.raises(ConnectionResetError, match="the instance closed the connection"):
        ends.wire.receive()


def test_a_send_that_breaks_is_reported_and_does_not_raise(ends: Ends) -> None:
    ends.peer.close()
    assert ends.wire.transmit(b"x") == 0
    assert [type(error) for error in ends.errors] == [BrokenPipeError]


def test_a_kept_send_that_breaks_is_reported_and_does_not_raise(ends: Ends) -> None:
    ends.wire.transmit(b"x" * 1_000_000)
    ends.peer.close()
    ends.wire.writable()
    assert len(ends.errors) == 1


def test_a_hard_close_resets_so_that_nothing_arrives_late() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        wire = Wire(bare(mine), lambda wanted: None, lambda error: None)  # type: ignore[arg-type]
        wire.close(hard=True)
        peer.settimeout(5.0)
        with pytest.raises(ConnectionResetError):
            peer.recv(1)
        peer.close()


def test_closing_twice_is_fine(ends: Ends) -> None:
    ends.wire.close(hard=True)
    ends.wire.close()
