"""One connected socket that does not block.

The socket sends all bytes, and it returns received bytes as they arrive.

This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, `Wire` has slots, and the socket's methods are attributes.

Rules: bytes that the kernel does not take at once are kept in order. When the socket is writable
again, these bytes are sent. `want_write` asks the driver to watch for this moment. If the socket is
broken, `receive` raises OSError. A send calls `broken` instead of raising, because a send may
happen in the middle of other code. One call of `receive` reads a bounded number of bytes, however
fast the instance sends.
"""

import _socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from socket import SO_ERROR, SO_LINGER, SOL_SOCKET

READ_BYTES = 65536

# A TLS socket is read at most this many times in one pass, because a record may hold a single byte.
MOST_READS = 64


def nothing() -> int:
    """Return 0. This is the `pending` of a plain socket, because a plain socket keeps no decrypted
    bytes."""
    return 0


class Wire:
    """A connected socket from the handshake. `fileno` stays the same until `close`."""

    __slots__ = (
        "backlog",
        "broken",
        "fileno",
        "is_tls",
        "pending",
        "recv",
        "send_some",
        "sock",
        "want_write",
    )

    def __init__(
        self,
        sock: _socket.socket,
        want_write: Callable[[bool], None],
        broken: Callable[[OSError], None],
    ) -> None:
        self.sock = sock
        self.is_tls = isinstance(sock, ssl.SSLSocket)
        self.pending: Callable[[], int] = (
            sock.pending if isinstance(sock, ssl.SSLSocket) else nothing
        )
        self.fileno = sock.fileno()
        self.recv = sock.recv
        self.send_some = sock.send
        self.backlog = bytearray()
        self.want_write = want_write
        self.broken = broken

    def transmit(self, data: bytes) -> int:
        """Send `data` after all earlier data. Returns the number of unsent bytes."""
        if self.backlog:
            self.backlog += data
            return len(self.backlog)
        try:
            sent = self.send_some(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent = 0
        except OSError as error:
            self.broken(error)
            return 0
        if sent != len(data):
            self.backlog += memoryview(data)[sent:]
            self.want_write(True)
        return len(self.backlog)

    def writable(self) -> None:
        """Send more of the kept bytes."""
        backlog = self.backlog
        if not backlog:
            return
        try:
            del backlog[: self.send_some(bytes(backlog))]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return
        except OSError as error:
            self.broken(error)
            return
        if not backlog:
            self.want_write(False)

    def receive(self) -> list[bytes]:
        """Read received bytes, but not much more than READ_BYTES. The list may be empty.

        Raises OSError when the connection has ended. The method reads a plain socket once. A TLS
        socket returns at most one record (16 KiB) per call, so the method reads a TLS socket
        several times. An instance may send faster than this process decrypts, so the method stops
        before the socket is empty. Without this limit, a fast instance would block the loop for
        seconds and fill hundreds of megabytes of memory. If bytes are left in the kernel, they wake
        the loop again. The loop reads them in its next pass, after the bytes of the other
        instances. But a poll does not report bytes that the TLS layer has already decrypted
        (`pending`). So the method reads these bytes now. They are the rest of one record.
        """
        chunks: list[bytes] = []
        room = READ_BYTES
        while True:
            try:
                data = self.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return chunks
            if not data:
                if chunks:
                    return chunks
                raise ConnectionResetError("the instance closed the connection")
            chunks.append(data)
            room -= len(data)
            if not self.is_tls:
                return chunks
            is_enough = room <= 0 or len(chunks) >= MOST_READS
            if is_enough and not self.pending():
                return chunks

    def error(self) -> int:
        """The kernel's errno for a fault of the connection, or 0 if there is no fault.

        The kernel reports each fault only once.
        """
        return self.sock.getsockopt(SOL_SOCKET, SO_ERROR)

    def close(self, *, hard: bool = False) -> None:
        """Close the socket.

        If `hard` is True, the socket is reset, and the kernel drops the unsent bytes.
        """
        if hard:
            with suppress(OSError):
                self.sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        with suppress(OSError):
            self.sock.close()
