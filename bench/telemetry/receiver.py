"""A check of the server at an OTLP address: *the environment variables → nothing, or an error with
the reason why no telemetry can arrive*. The check takes at most one second.

Rules: the check reports a fault only if the fault is certain. A receiver that is down, slow or
behind a proxy passes this check. If the receiver does not accept items later, the result has a
warning.

The check recognises the protocol of a server by the server's answers. A gRPC server speaks only
HTTP/2. A gRPC server answers the preface of HTTP/2 with a SETTINGS frame. A gRPC server never sends
an HTTP/1 answer to an HTTP/1.1 request. If a server answers both the HTTP/2 preface and the
HTTP/1.1 request, the check accepts the server. A TLS server answers the first message of TLS with a
TLS record. A TLS server may answer any other message with an alert or an HTTP error. So only an
HTTP answer to the first TLS message proves that a server speaks plain HTTP.

Source: RFC 9113, 3.4 and 6.5; RFC 8446, 5.1.
"""

import re
import socket
import threading
from urllib.parse import SplitResult
from urllib.request import getproxies, proxy_bypass

from bench.errors import UsageError
from bench.telemetry.settings import GRPC, Endpoint, Environ, endpoints_of
from lockcore.bench.sockets import TLS_RECORDS, client_hello

# The checks of all receivers together take at most this time (s).
LOOK_S = 1.0
# One step with a receiver takes at most this time (s).
_ANSWER_S = 0.4
# The preface of HTTP/2 and an empty SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# The type of a SETTINGS frame. The type is the fourth byte of a frame.
_SETTINGS = 4
_FRAME_BYTES = 9
_TEXT_BYTES = 5
_HTTP = b"HTTP/"
_REDIS_ERROR = re.compile(rb"-[A-Z]{3,}")
_SPEAKS_REDIS = "uses the Redis protocol; write the address of a collector"
# If an address has no port, exporters add HTTP's default port or gRPC's usual port.
_HTTP_PORT = 80
_OTHER_PORT = 443


def require_receivers(environ: Environ) -> None:
    """Raise UsageError if a collector's address can never work.

    For example, the server at the address may speak a wrong protocol.
    """
    endpoints = endpoints_of(environ)
    faults = list[str]()
    if not endpoints:
        return

    def look() -> None:
        faults.extend(filter(None, map(_fault, endpoints)))

    # Resolving a host name has no time limit, so a separate thread resolves it.
    looking = threading.Thread(target=look, name="telemetry-look", daemon=True)
    looking.start()
    looking.join(LOOK_S)
    if faults:
        raise UsageError(faults[0])


def _fault(endpoint: Endpoint) -> str:
    """Return the fault of the server at this endpoint, or "" if no fault is certain."""
    url = endpoint.url
    if url.scheme not in ("http", "https", "") or not url.hostname or _by_proxy(url):
        return ""
    is_http = url.scheme == "http" and endpoint.protocol != GRPC
    place = url.hostname, url.port or (_HTTP_PORT if is_http else _OTHER_PORT)
    is_secure = url.scheme == "https" or not (url.scheme or endpoint.insecure)
    fault = _of_secure(place) if is_secure else _of_plain(place, is_grpc=endpoint.protocol == GRPC)
    return fault and f"{endpoint.variable} names {place[0]}:{place[1]}, but this port {fault}"


def _of_secure(place: tuple[str, int]) -> str:
    """Return a text about the fault of a port at which a server should speak TLS.

    The message to the port ends with an empty line, because a server with a text protocol answers
    only after the end of a line.
    """
    hello = client_hello() + b"\r\n\r\n"
    heard = _answer(place, hello, _FRAME_BYTES)
    # Redis does not answer the TLS message, because it waits for more bytes. A TLS server never
    # answers the preface of HTTP/2 with a Redis error or with SETTINGS.
    if not heard:
        heard = _answer(place, _PREFACE, _FRAME_BYTES) or b""
        if heard.startswith((_HTTP, b"<")):
            return ""
    if _REDIS_ERROR.match(heard):
        return _SPEAKS_REDIS
    if heard.startswith((_HTTP, b"<")) or _is_settings(heard):
        return "does not use TLS; write http:// in front of the address"
    return ""


def _of_plain(place: tuple[str, int], *, is_grpc: bool) -> str:
    """Return a text about the fault of a port at which a server should not use TLS."""
    frame = _answer(place, _PREFACE, _FRAME_BYTES)
    if frame is None:
        return ""
    if _REDIS_ERROR.match(frame):
        return _SPEAKS_REDIS
    if frame.startswith(TLS_RECORDS):
        return "uses TLS; write https:// in front of the address"
    is_http_2 = _is_settings(frame)
    if is_http_2 is is_grpc:
        return ""
    request = f"OPTIONS / HTTP/1.1\r\nHost: {place[0]}\r\nConnection: close\r\n\r\n".encode(
        "ascii", "replace"
    )
    line = _answer(place, request, _TEXT_BYTES)
    if line is None:
        return ""
    if is_grpc and line == _HTTP:
        return (
            "uses HTTP instead of gRPC; try port 4317, or set "
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
        )
    if is_http_2 and line != _HTTP:
        return "uses gRPC instead of HTTP; try port 4318, or set OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
    return ""


def _is_settings(frame: bytes) -> bool:
    return len(frame) == _FRAME_BYTES and frame[3] == _SETTINGS


def _by_proxy(url: SplitResult) -> bool:
    return (url.scheme or "http") in getproxies() and not proxy_bypass(url.hostname or "")


def _answer(place: tuple[str, int], sent: bytes, size: int) -> bytes | None:
    """Return the first `size` bytes of the answer, or fewer if the connection ends.

    Return None if there is no connection or no answer.
    """
    received = b""
    try:
        with socket.create_connection(place, _ANSWER_S) as connection:
            connection.sendall(sent)
            while len(received) < size:
                data = connection.recv(size - len(received))
                if not data:
                    break
                received += data
    except ConnectionResetError:
        # A reset also ends the answer.
        return received
    except OSError:
        return received or None
    return received
