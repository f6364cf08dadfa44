"""Who answers at an OTLP address: *variables, a look of a second at most → nothing, or why nothing
can arrive there*.

Rules: only what is certain is told. A receiver that is down, slow or behind a proxy is not judged
here: what it does not take becomes a warning of the result. A gRPC server speaks HTTP/2 alone. It
answers HTTP/2's preface with its SETTINGS, and a request of HTTP/1.1 with no line of HTTP/1. A
server that answers both is left alone. A server of TLS answers the first message of TLS with a
record of TLS, and anything else with an alert or in HTTP; so plain HTTP is certain only where it
answers that first message. Source: RFC 9113, 3.4 and 6.5; RFC 8446, 5.1.
"""

import re
import socket
import threading
from urllib.parse import SplitResult
from urllib.request import getproxies, proxy_bypass

from bench.errors import UsageError
from bench.telemetry.settings import GRPC, Endpoint, Environ, endpoints_of
from lockcore.bench.sockets import TLS_RECORDS, client_hello

# for all receivers together
LOOK_S = 1.0
# for one of them
_ANSWER_S = 0.4
# the preface of HTTP/2 and an empty SETTINGS frame
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# the fourth byte of a frame: its type
_SETTINGS = 4
_FRAME_BYTES = 9
_TEXT_BYTES = 5
_HTTP = b"HTTP/"
_REDIS_ERROR = re.compile(rb"-[A-Z]{3,}")
_SPEAKS_REDIS = "speaks the Redis protocol; write the address of a collector"
# where exporters send to an address without a port: HTTP's own port, and gRPC's usual one
_HTTP_PORT = 80
_OTHER_PORT = 443


def require_receivers(environ: Environ) -> None:
    """Raise UsageError if an address of a collector can never work, or a wrong protocol is spoken
    there."""
    endpoints = endpoints_of(environ)
    faults = list[str]()
    if not endpoints:
        return

    def look() -> None:
        faults.extend(filter(None, map(_fault, endpoints)))

    # names are looked up without a limit
    looking = threading.Thread(target=look, name="telemetry-look", daemon=True)
    looking.start()
    looking.join(LOOK_S)
    if faults:
        raise UsageError(faults[0])


def _fault(endpoint: Endpoint) -> str:
    """What is wrong with who answers there; "" = nothing that is certain."""
    url = endpoint.url
    if url.scheme not in ("http", "https", "") or not url.hostname or _by_proxy(url):
        return ""
    is_http = url.scheme == "http" and endpoint.protocol != GRPC
    place = url.hostname, url.port or (_HTTP_PORT if is_http else _OTHER_PORT)
    is_secure = url.scheme == "https" or not (url.scheme or endpoint.insecure)
    fault = _of_secure(place) if is_secure else _of_plain(place, is_grpc=endpoint.protocol == GRPC)
    return fault and f"{endpoint.variable} names {place[0]}:{place[1]}, and this port {fault}"


def _of_secure(place: tuple[str, int]) -> str:
    """What is wrong with a port that TLS is begun with.

    The line's end is for servers of text, which wait for one.
    """
    hello = client_hello() + b"\r\n\r\n"
    heard = _answer(place, hello, _FRAME_BYTES)
    # Redis waits for more; no server of TLS answers the preface with an error of Redis, or with
    # SETTINGS
    if not heard:
        heard = _answer(place, _PREFACE, _FRAME_BYTES) or b""
        if heard.startswith((_HTTP, b"<")):
            return ""
    if _REDIS_ERROR.match(heard):
        return _SPEAKS_REDIS
    if heard.startswith((_HTTP, b"<")) or _is_settings(heard):
        return "speaks no TLS; write http:// in front of it"
    return ""


def _of_plain(place: tuple[str, int], *, is_grpc: bool) -> str:
    """What is wrong with a port that is spoken to in the clear."""
    frame = _answer(place, _PREFACE, _FRAME_BYTES)
    if frame is None:
        return ""
    if _REDIS_ERROR.match(frame):
        return _SPEAKS_REDIS
    if frame.startswith(TLS_RECORDS):
        return "speaks TLS; write https:// in front of it"
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
            "speaks HTTP and no gRPC; try port 4317, or set "
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
        )
    if is_http_2 and line != _HTTP:
        return "speaks gRPC; try port 4318, or set OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
    return ""


def _is_settings(frame: bytes) -> bool:
    return len(frame) == _FRAME_BYTES and frame[3] == _SETTINGS


def _by_proxy(url: SplitResult) -> bool:
    return (url.scheme or "http") in getproxies() and not proxy_bypass(url.hostname or "")


def _answer(place: tuple[str, int], sent: bytes, size: int) -> bytes | None:
    """The first bytes that come back; fewer where the connection ends, None where it is silent or
    cannot be made."""
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
        # an end, too
        return received
    except OSError:
        return received or None
    return received
