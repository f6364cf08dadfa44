"""Loopback ports kept for servers that are not started yet: *how many, from where → bound sockets*.

Rules: a port is kept by a socket that is bound with SO_REUSEADDR and never listens. A server, which sets SO_REUSEADDR
too, can still listen there, and start there again; but the kernel gives the port to nobody else, neither to another
bind(0) nor as the source port of a connection (which would connect to itself while its server is down).
Source: Linux inet_csk_bind_conflict (net/ipv4/inet_connection_sock.c).
"""

import errno
import os
import socket

from bench.errors import EnvironmentNotReadyError, UsageError

HOST = "127.0.0.1"
_HIGHEST = 65535


class KeptPort:
    """One port of the loopback address, kept until `release()`."""

    def __init__(self, port: int = 0) -> None:
        """Keep `port`, or a free one if 0. Raises OSError when it is taken."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, port))
        except BaseException:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let go of the port; more than once is fine."""
        self._socket.close()


def keep_ports(count: int, base: int | None = None) -> list[KeptPort]:
    """Keep `count` free ports, or exactly base, base + 1, … when a base (1-65535) is given.

    Raises UsageError for a base out of range and EnvironmentNotReadyError for a taken or forbidden port.
    """
    if base is not None and not 1 <= base <= _HIGHEST - count + 1:
        highest = _HIGHEST - count + 1
        raise UsageError(f"port {base} is out of range: {count} instances need a base port from 1 to {highest}")
    kept: list[KeptPort] = []
    try:
        for offset in range(count):
            kept.append(KeptPort(0 if base is None else base + offset))  # noqa: PERF401  (the kept ones are let go below)
    except OSError as error:
        for port in kept:
            port.release()
        if error.errno == errno.EMFILE:
            raise
        where = "a free port" if base is None else f"port {base + len(kept)}"
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used: {os.strerror(error.errno or 0)}"
        raise EnvironmentNotReadyError(f"{where} on {HOST} {why}; choose another base port or leave it out") from error
    return kept
