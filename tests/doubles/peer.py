"""Peers that are no server a lock can use: *what a port does with a connection → a listening port
that does it*.

A proxy without INFO, a dead port, a server in protected mode, a Sentinel, another protocol.
"""

import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from bench.topology.fleet import HOST

Serve = Callable[[socket.socket], None]
DENIED = (
    b"-DENIED Redis is running in protected mode because protected mode is enabled and "
    b"no password is set "
    + (
        b"for the default user. In this mode connections are only accepted from the "
        b"loopback interface. " * 10 + b"\r\n"
    )
)


@contextmanager
def listening(serve: Serve) -> Iterator[int]:
    """A port on which every connection is handed to `serve`, and then closed."""

    def accept() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                threading.Thread(target=one, args=(peer,), daemon=True).start()

    def one(peer: socket.socket) -> None:
        with suppress(OSError), peer:
            peer.settimeout(10)
            serve(peer)

    with closing(socket.create_server((HOST, 0))) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def replying(replies: dict[str, bytes | None], otherwise: bytes | None = b"+OK\r\n") -> Serve:
    """A server that has these replies, by command; it hangs up where one is None."""

    def serve(peer: socket.socket) -> None:
        reader = peer.makefile("rb")
        while head := reader.readline():
            if not head.startswith(b"*"):
                return
            words = [reader.read(int(reader.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]
            reply = replies.get(words[0].decode().upper(), otherwise)
            if reply is None:
                return
            peer.sendall(reply)

    return serve


def bulk(text: str) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text.encode())


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def silent(peer: socket.socket) -> None:
    while peer.recv(4096):
        pass


def banner(text: bytes) -> Serve:
    def serve(peer: socket.socket) -> None:
        peer.sendall(text)
        silent(peer)

    return serve


def http(peer: socket.socket) -> None:
    peer.recv(1)
    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def denied(peer: socket.socket) -> None:
    """As protected mode does it: the line, and the end, whatever comes in."""
    peer.sendall(DENIED)


def denied_and_reset(peer: socket.socket) -> None:
    """The same, of a client that has written before: the kernel resets, and what was not read by
    then is lost."""
    select.select([peer], [], [], 0.3)
    peer.sendall(DENIED)
    reset(peer)


def denied_unless_asked(peer: socket.socket) -> None:
    """The same where the kernel was quick: of a client that has written before, nothing of the line
    is left to read."""
    if not select.select([peer], [], [], 0.05)[0]:
        peer.sendall(DENIED)


PONG = {"PING": b"+PONG\r\n"}
UNKNOWN = "-ERR unknown command '{}', with args beginning with: {} \r\n"
