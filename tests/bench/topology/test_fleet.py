"""Kept ports: free for a server, taken for everybody else."""

import socket

import pytest

from bench.topology.fleet import HOST, KeptPort


def listener(port: int) -> socket.socket:
    """Listens the way a server does: with SO_REUSEADDR."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((HOST, port))
    listening.listen()
    return listening


def test_a_server_can_listen_on_a_kept_port_and_again() -> None:
    kept = KeptPort()
    for _ in range(2):
        with listener(kept.number), socket.create_connection((HOST, kept.number), 1):
            pass
    kept.release()


def test_nobody_listens_on_a_kept_port_until_a_server_does() -> None:
    kept = KeptPort()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, kept.number), 1)
    kept.release()
