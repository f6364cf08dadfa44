"""One socket: all is sent, in order, however little the kernel takes; what comes in is read; breaks
are told."""

import _socket
import select
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from lockcore.shells.common.fast import MOST_READS, READ_BYTES, Wire
from tests.integration.lockcore.certificates import Certificates, make_certificates

HOST = "127.0.0.1"
DEADLINE_S = 10.0
MOST_IN_A_RECORD = 1 << 14


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
        tell = (self.wanted.append, self.errors.append)
        self.wire = Wire(bare(mine), *tell)  # type: ignore[arg-type]
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


# -- TLS -------------------------------------------------------------------------------------------


class TlsEnds:
    """Both ends of a TLS connection, one of them a wire.

    `send` writes to the other until the kernel is full.
    """

    def __init__(self, certificates: Certificates) -> None:
        there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        there.load_cert_chain(certificates.certificate, certificates.key)
        here = ssl.create_default_context(cafile=str(certificates.authority))
        with socket.create_server((HOST, 0)) as server:
            mine = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
        with ThreadPoolExecutor(1) as pool:
            shaken = pool.submit(there.wrap_socket, accepted, server_side=True)
            self.mine = here.wrap_socket(mine, server_hostname=HOST)
            self.peer = shaken.result(DEADLINE_S)
        self.mine.setblocking(False)
        self.peer.setblocking(False)
        self.wire = Wire(
            self.mine,  # type: ignore[arg-type]
            lambda wanted: None,
            lambda error: None,
        )

    def fill(self, record: int, most: int) -> bytes:
        """Records of so many bytes, as many as the kernel takes without a reader, `most` bytes at
        the most."""
        sent = bytearray()
        random = Random(record)
        with suppress(ssl.SSLWantWriteError):
            while len(sent) < most:
                data = random.randbytes(record)
                self.peer.send(data)
                sent += data
        return bytes(sent)

    def next_pass(self) -> list[bytes]:
        """What one pass of a loop reads, that sleeps until the poll tells it of something."""
        readable, _, _ = select.select([self.mine], [], [], DEADLINE_S)
        assert readable, "the loop sleeps, and bytes are left"
        return self.wire.receive()

    def close(self) -> None:
        self.wire.close()
        self.peer.close()


@pytest.fixture
def tls_ends(tmp_path: Path) -> Iterator[TlsEnds]:
    made = TlsEnds(make_certificates(tmp_path))
    yield made
    made.close()


def read_in_passes(ends: TlsEnds, count: int) -> list[bytes]:
    """So many bytes, by one pass after the other."""
    passes: list[bytes] = []
    while sum(map(len, passes)) < count:
        passes.append(b"".join(ends.next_pass()))
    return passes


def test_a_flood_of_tiny_records_is_read_in_bounded_passes_too(tls_ends: TlsEnds) -> None:
    sent = tls_ends.fill(1, 10 * MOST_READS)
    seen = b""
    while len(seen) < len(sent):
        chunks = tls_ends.next_pass()
        assert len(chunks) <= MOST_READS
        seen += b"".join(chunks)
    assert seen == sent


def check_a_flood(ends: TlsEnds, record: int) -> None:
    sent = ends.fill(record, 64 * READ_BYTES)
    assert len(sent) > 4 * READ_BYTES
    passes = read_in_passes(ends, len(sent))
    assert b"".join(passes) == sent
    assert max(map(len, passes)) < READ_BYTES + MOST_IN_A_RECORD
    assert ends.wire.receive() == []


@pytest.mark.parametrize("record", [100, 1000, MOST_IN_A_RECORD])
def test_a_pass_reads_a_bounded_part_of_what_a_tls_instance_floods_it_with(
    tls_ends: TlsEnds, record: int
) -> None:
    check_a_flood(tls_ends, record)


def test_a_tls_socket_that_is_read_until_it_would_block_is_noticed(tls_ends: TlsEnds) -> None:
    tls_ends.wire.pending = lambda: 1
    with pytest.raises(AssertionError):
        check_a_flood(tls_ends, MOST_IN_A_RECORD)


@pytest.mark.parametrize("bytes_", [1, 999, 1000, 1001, 5000, MOST_IN_A_RECORD])
def test_what_the_tls_layer_has_decrypted_is_read_in_the_same_pass(
    tls_ends: TlsEnds, bytes_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No poll tells of it.

    A record is larger than a read here, so that something stays decrypted.
    """
    monkeypatch.setattr("lockcore.shells.common.fast.READ_BYTES", 1000)
    sent = tls_ends.fill(bytes_, bytes_)
    assert b"".join(read_in_passes(tls_ends, bytes_)) == sent
    assert tls_ends.wire.receive() == []


def test_decrypted_bytes_that_are_left_for_the_next_pass_are_noticed(
    tls_ends: TlsEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls_ends.wire.pending = lambda: 0
    monkeypatch.setattr("tests.lockcore.shells.common.test_fast.DEADLINE_S", 0.1)
    with pytest.raises(AssertionError, match="bytes are left"):
        test_what_the_tls_layer_has_decrypted_is_read_in_the_same_pass(tls_ends, 5000, monkeypatch)


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
