"""A collector's address: what can never work is refused before the run, and nothing else is."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from bench.errors import UsageError
from bench.telemetry import receiver
from bench.telemetry.receiver import LOOK_S, require_receivers
from bench.telemetry.settings import settings_of
from tests.conftest import Ended
from tests.doubles.collector import Collector, GrpcCollector

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may be busy: how long a look may take has a test of its own."""
    monkeypatch.setattr(receiver, "LOOK_S", 60.0)
    monkeypatch.setattr(receiver, "_ANSWER_S", 20.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("address", "protocol", "part"),
    [
        (
            "127.0.0.1:4318",
            "",
            "has no scheme; write http://127.0.0.1:4318",
        ),
        ("collector", "", "write http://collector:4318"),
        ("[::1]:4318", "", r"write http://\[::1\]:4318"),
        ("ann:hunter2@collector:4318", "", "write http://collector:4318"),
        ("tcp://collector:4318", "", "has the scheme tcp://"),
        ("grpc://collector:4317", "", "has the scheme grpc://"),
        ("http://", "", "names no host"),
        ("http:///v1/metrics", "", "names no host"),
        ("http://collector:99999", "", "cannot be read"),
        ("http://collector:port", "", "cannot be read"),
        ("http://[::1", "", "cannot be read"),
        ("http://", "grpc", "names no host; write http://127.0.0.1:4317"),
        ("collector:99999", "grpc", "cannot be read"),
    ],
)
def test_an_address_that_can_never_work_is_refused(address: str, protocol: str, part: str) -> None:
    for variable in (
        ENDPOINT,
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    ):
        with pytest.raises(UsageError, match=part) as refused:
            settings_of({variable: address, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})
        assert str(refused.value).startswith(f"{variable} ")
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "environ",
    [
        {ENDPOINT: "http://collector:4318"},
        {ENDPOINT: "HTTPS://collector"},
        {ENDPOINT: " http://[::1]:4318/prefix/ "},
        {ENDPOINT: "collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {ENDPOINT: "unix:///run/collector.sock", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {ENDPOINT: "collector:4318", "OTEL_SDK_DISABLED": "true"},
        {
            ENDPOINT: "collector:4318",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_EXPORTER": "none",
        },
        {
            ENDPOINT: "collector:4318",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://a:1",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:1",
        },
    ],
)
def test_an_address_that_may_work_is_not(environ: dict[str, str]) -> None:
    settings_of(environ)


def test_a_run_with_a_wrong_address_ends_before_it_begins(
    lockbench: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, "127.0.0.1:4318")
    for words in (
        ("run", "hot-key"),
        ("crash", "--quick"),
        ("capacity", "--slo", "acquire.p99 < 1s"),
    ):
        done = lockbench(*words, "--out", "r")
        assert (done.returncode, done.stdout) == (2, "")
        assert "write http://127.0.0.1:4318" in done.stderr


def test_http_to_a_grpc_port_is_refused_and_the_other_port_is_named() -> None:
    with GrpcCollector() as collector:
        address = (
            collector.endpoint if "://" in collector.endpoint else f"http://{collector.endpoint}"
        )
        with pytest.raises(UsageError, match=r"this port uses gRPC instead of HTTP; try port 4318"):
            require_receivers({ENDPOINT: address})
        require_receivers({ENDPOINT: address, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
        require_receivers({ENDPOINT: address, "OTEL_SDK_DISABLED": "true"})


def test_grpc_to_an_http_port_is_refused_too() -> None:
    with Collector() as collector:
        with pytest.raises(UsageError, match=r"this port uses HTTP instead of gRPC; try port 4317"):
            require_receivers({ENDPOINT: collector.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
        require_receivers({ENDPOINT: collector.endpoint})


@contextmanager
def answering(*answers: bytes | None) -> Iterator[str]:
    """A server that gives each connection the next answer, the last one again, and hangs up; None:
    it is silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            number = 0
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    answer = answers[min(number, len(answers) - 1)]
                    number += 1
                    kept.append(connection)
                    if answer is not None:
                        connection.recv(4096)
                        connection.sendall(answer)
                        connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()


SETTINGS = bytes((0, 0, 6, 4, 0, 0, 0, 0, 0)) + b"\0\3\0\0\0\x64"


@pytest.mark.parametrize(
    "answers",
    [(b"",), (SETTINGS, b"HTTP/1.1 404 Not Found\r\n\r\n"), (b"220 hi\r\n",), (b"- hello\r\n",)],
)
@pytest.mark.parametrize("protocol", ["", "grpc"])
def test_who_is_not_known_is_left_to_the_run(answers: tuple[bytes, ...], protocol: str) -> None:
    """One that hangs up, both versions of HTTP at one port, something else."""
    with answering(*answers) as address:
        require_receivers({ENDPOINT: address, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})


def test_a_receiver_that_is_down_is_only_a_warning_later() -> None:
    with socket.socket() as taken:
        # and never listens: connecting is refused
        taken.bind(("127.0.0.1", 0))
        require_receivers({ENDPOINT: f"http://127.0.0.1:{taken.getsockname()[1]}"})


def test_a_receiver_that_says_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "LOOK_S", LOOK_S)
    with answering(None) as address:
        began_s = time.monotonic()
        require_receivers({ENDPOINT: address})
        # the look of one receiver may take 20 s here
        assert time.monotonic() - began_s < 15


def test_a_slow_answer_to_the_second_question_is_no_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiver, "_ANSWER_S", 0.5)
    with answering(SETTINGS, None) as address:
        require_receivers({ENDPOINT: address})


REDIS_ERROR = b"-ERR unknown command 'PRI'\r\n"
ALERT = b"\x15\3\1\0\2\2\x46"
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\n\r\n"


@pytest.mark.parametrize(
    ("scheme", "protocol", "answer", "part"),
    [
        ("http", "", REDIS_ERROR, "uses the Redis protocol; write the address of a collector"),
        ("http", "grpc", REDIS_ERROR, "uses the Redis protocol"),
        ("https", "", REDIS_ERROR, "uses the Redis protocol"),
        ("http", "", ALERT, "uses TLS; write https://"),
        ("http", "grpc", ALERT, "uses TLS; write https://"),
        ("https", "", BAD_REQUEST, "does not use TLS; write http://"),
        ("https", "", b"<!DOCTYPE HTML>\n", "does not use TLS; write http://"),
        ("https", "grpc", SETTINGS, "does not use TLS; write http://"),
        ("", "grpc", SETTINGS, "does not use TLS; write http://"),
    ],
)
def test_who_speaks_something_else_is_refused(
    scheme: str, protocol: str, answer: bytes, part: str
) -> None:
    with answering(answer) as address:
        place = address.partition("://")[2]
        url = f"{scheme}://{place}" if scheme else place
        with pytest.raises(UsageError, match=f"^{ENDPOINT} names {place}, but this port {part}"):
            require_receivers({ENDPOINT: url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})


def test_a_redis_that_waits_for_more_of_the_first_message_is_asked_again() -> None:
    with (
        answering(b"", REDIS_ERROR) as address,
        pytest.raises(UsageError, match="uses the Redis protocol"),
    ):
        require_receivers({ENDPOINT: address.replace("http:", "https:")})


def test_a_page_in_answer_to_a_request_in_the_clear_is_no_evidence() -> None:
    # as servers of TLS do, too
    with answering(b"", BAD_REQUEST) as address:
        require_receivers({ENDPOINT: address.replace("http:", "https:")})


@pytest.mark.parametrize("answer", [b"\x16\3\3\0\x7a\2\0\0\x76", ALERT, b"", b"220 hi\r\n"])
def test_a_port_that_answers_tls_or_nothing_is_left_to_the_run(answer: bytes) -> None:
    with answering(answer) as address:
        require_receivers({ENDPOINT: address.replace("http:", "https:")})


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"]
)
def test_an_unknown_protocol_is_refused(name: str) -> None:
    with pytest.raises(
        UsageError,
        match=f"^{name} is 'foo', which is not a protocol of OTLP; set http/protobuf or grpc",
    ):
        require_receivers({ENDPOINT: "http://127.0.0.1:9", name: "foo"})
    require_receivers({name: "foo"})


@pytest.mark.parametrize(
    ("address", "protocol", "port"),
    [
        ("http://collector", "", 80),
        ("https://collector/v1/metrics", "", 443),
        ("http://collector", "grpc", 443),
        ("collector", "grpc", 443),
        ("http://collector:4318", "", 4318),
    ],
)
def test_an_address_without_a_port_is_looked_at_where_its_exporter_sends(
    address: str, protocol: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[tuple[str, int]] = []

    def silent(place: tuple[str, int], _sent: bytes, _size: int) -> None:
        looks.append(place)

    monkeypatch.setattr(receiver, "_answer", silent)
    require_receivers({ENDPOINT: address, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})
    assert set(looks) == {("collector", port)}
