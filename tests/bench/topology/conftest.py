"""Servers that send back what they get."""

import socket
import threading
from collections.abc import Iterator

import pytest


class Echo:
    """One of them."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    @staticmethod
    def _serve(connection: socket.socket) -> None:
        with connection:
            try:
                while chunk := connection.recv(65536):
                    connection.sendall(chunk)
            except OSError:
                return

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def echoes() -> Iterator[list[int]]:
    """The ports of three."""
    servers = [Echo() for _ in range(3)]
    yield [server.port for server in servers]
    for server in servers:
        server.close()
