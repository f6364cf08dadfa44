"""Kept ports: free for a server, taken for everybody else."""

import socket

import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.topology.fleet import HOST, KeptPort, keep_ports


def listener(port: int = 0) -> socket.socket:
    """Listens the way a server does: with SO_REUSEADDR."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((HOST, port))
    listening.listen()
    return listening


def test_a_server_can_listen_on_a_kept_port_and_again() -> None:
    (kept,) = keep_ports(1)
    for _ in range(2):
        with listener(kept.number), socket.create_connection((HOST, kept.number), 1):
            pass
    kept.release()


def test_nobody_listens_on_a_kept_port_until_a_server_does() -> None:
    (kept,) = keep_ports(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, kept.number), 1)
    kept.release()


def test_a_taken_base_port_is_named_and_nothing_stays_kept() -> None:
    first = KeptPort()
    with listener() as taken:
        number = taken.getsockname()[1]
        with pytest.raises(EnvironmentNotReadyError, match=f"port {number} on 127.0.0.1 is taken; choose another base"):
            keep_ports(1, number)
    with listener(number):  # free again
        pass
    first.release()


@pytest.mark.parametrize("count, base", [(1, 0), (1, -1), (1, 65536), (5, 65532)])
def test_a_base_out_of_range_is_refused(count: int, base: int) -> None:
    with pytest.raises(UsageError, match=f"port {base} is out of range: {count} instances need"):
        keep_ports(count, base)
