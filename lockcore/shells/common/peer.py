"""Finds the protocol of a peer.

Input: a host and a port, or the path of a socket. Output: the protocol that the peer speaks.

Rules: lockcore examines a peer only after a connection failed without a reason. The examination
makes at most two connections. The examination takes at most a second in all, except for the
resolver. The first connection listens for a moment and then sends PING without TLS. The second
connection begins TLS. Neither connection sends a name, a password or a key. Only an answer of the
peer is evidence of its protocol.
"""

import socket
import ssl
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum

from lockcore.shells.common.target import HEARD_BYTES, InstanceTarget

PATIENCE_S = 1.0
FIRST_WORD_S = 0.25
PING = b"*1\r\n$4\r\nPING\r\n"

# The first bytes of TLS records: an alert or a handshake message, then the protocol's version.
TLS_RECORDS = (b"\x15\x03", b"\x16\x03")


class Speech(Enum):
    """The observed protocol of a peer."""

    REDIS = "the Redis protocol"
    TLS = "TLS"
    HTTP = "HTTP"
    SSH = "SSH"
    OTHER = "another protocol"
    HANGS_UP = "it accepts a connection and closes it without a reply"
    SILENT = "it accepts a connection but sends nothing"
    ABSENT = "nothing can be connected to"


@dataclass(frozen=True, slots=True)
class Peer:
    """The observed peer.

    `heard` contains the first bytes that the peer sent. `alert` is OpenSSL's name for the peer's
    TLS alert, or "".
    """

    speech: Speech
    heard: bytes = b""
    alert: str = ""


def speech_of(heard: bytes) -> Speech | None:
    """The protocol of a peer whose first bytes are `heard`, or None if `heard` is empty."""
    if not heard:
        return None
    if heard.startswith(TLS_RECORDS):
        return Speech.TLS
    if heard[:5] == b"HTTP/" or heard[:1] == b"<":
        return Speech.HTTP
    if heard.startswith(b"SSH-"):
        return Speech.SSH
    if heard[:1] in (b"+", b"-", b":", b"$", b"*") and (
        b"\n" in heard or len(heard) == HEARD_BYTES
    ):
        return Speech.REDIS
    return Speech.OTHER


def look(target: InstanceTarget, patience_s: float | None = None) -> Peer:
    """Find the protocol of the peer at the address of `target`.

    The search takes at most `patience_s`, which is PATIENCE_S by default. Only the resolver may
    take longer. Raises nothing.
    """
    patience_s = PATIENCE_S if patience_s is None else patience_s
    end_s = time.monotonic() + patience_s
    plain = _answer(target, PING, time.monotonic() + patience_s / 2)
    if plain.speech not in (Speech.HANGS_UP, Speech.SILENT):
        return plain
    secure = _tls_end(target, end_s) if target.is_tls else _answer(target, client_hello(), end_s)
    return secure if secure.speech is Speech.TLS else plain


def _answer(target: InstanceTarget, question: bytes, end_s: float) -> Peer:
    """Connect, send `question` if the peer sends nothing first, and return the answer."""
    try:
        peer = _connected(target, end_s)
    except ConnectionResetError:
        # The connection was accepted, but reset before this side read from it.
        return Peer(Speech.HANGS_UP)
    except (OSError, ValueError):
        # No peer has accepted the connection. An example is a time-out because a firewall drops the
        # packets.
        return Peer(Speech.ABSENT)
    try:
        with closing(peer):
            heard = _first_words(peer, end_s)
            if not heard:
                peer.settimeout(max(end_s - time.monotonic(), 0.01))
                peer.sendall(question)
                heard = peer.recv(HEARD_BYTES)
    except TimeoutError:
        return Peer(Speech.SILENT)
    except (ConnectionResetError, BrokenPipeError):
        return Peer(Speech.HANGS_UP)
    except (OSError, ValueError):
        return Peer(Speech.ABSENT)
    return Peer(speech_of(heard) or Speech.HANGS_UP, heard)


def _first_words(peer: socket.socket, end_s: float) -> bytes:
    """Return the first bytes that the peer sends while this side sends nothing.

    A server in protected mode sends its reason and closes the connection. If the server closes
    before it has read our bytes, its kernel resets the connection, and the reason may be lost. So
    this side sends nothing at first.
    """
    peer.settimeout(min(FIRST_WORD_S, max((end_s - time.monotonic()) / 2, 0.01)))
    with suppress(TimeoutError):
        return peer.recv(HEARD_BYTES)
    return b""


def _connected(target: InstanceTarget, end_s: float) -> socket.socket:
    patience_s = max(end_s - time.monotonic(), 0.01)
    path = target.options.get("path")
    if path is None:
        return socket.create_connection(
            (target.options["host"], target.options["port"]), patience_s
        )
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.settimeout(patience_s)
        peer.connect(path)
    except OSError:
        peer.close()
        raise
    return peer


def _tls_end(target: InstanceTarget, end_s: float) -> Peer:
    """Make a TLS handshake with the peer, and return the observation. The peer may refuse the
    connection.

    A server that requires a client certificate reports this in its last record, after the
    handshake. If this function sent data, a reset of the connection could destroy the last record.
    So the function sends no data.
    """
    try:
        with closing(_connected(target, end_s)) as peer, _unverified().wrap_socket(peer) as secure:
            secure.settimeout(max(end_s - time.monotonic(), 0.01))
            secure.recv(1)
    except TimeoutError:
        return Peer(Speech.SILENT)
    except ssl.SSLError as error:
        return Peer(Speech.TLS, alert=error.reason or "")
    except (OSError, ValueError):
        return Peer(Speech.HANGS_UP)
    return Peer(Speech.TLS)


def _unverified() -> ssl.SSLContext:
    """A TLS context that checks no certificate. No check is needed, because no secret is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def client_hello() -> bytes:
    """The first message of TLS."""
    incoming = ssl.MemoryBIO()
    outgoing = ssl.MemoryBIO()
    handshake = _unverified().wrap_bio(incoming, outgoing)
    with suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()
