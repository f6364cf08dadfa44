"""Towards a collector: `put` never waits, every loss is counted; one that is down is one sentence,
off the screen."""

import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.measure.environment import version_of
from bench.telemetry import otlp as module
from bench.telemetry.otlp import Otlp
from bench.telemetry.points import NS_PER_S, Buckets, Snapshot, point
from bench.telemetry.run import Run
from bench.telemetry.settings import GRPC, HTTP, TelemetrySettings
from bench.telemetry.table import SCHEMA_URL
from bench.telemetry.traces import TraceSpan
from tests.doubles.collector import Collector, GrpcCollector

LONG_S = 30.0


class Receiver:
    """An exporter that takes batches when it is let."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.asked = threading.Event()
        self.taken: list[float] = []

    def export(self, spans: Sequence[Any]) -> SimpleNamespace:
        self.asked.set()
        assert self.free.wait(LONG_S)
        self.taken += [span.start_time for span in spans]
        return SimpleNamespace(name="SUCCESS")

    def shutdown(self) -> None:
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    receiver = Receiver()
    monkeypatch.setattr(
        module, "_exporter", lambda signal, protocol, _answers: receiver if protocol else None
    )
    monkeypatch.setattr(module, "SPANS_KEPT", 10)
    monkeypatch.setattr(module, "SPANS_PER_BATCH", 2)
    yield receiver
    receiver.free.set()


def spans(*begun_ns: int) -> list[TraceSpan]:
    return [TraceSpan("s", 1, 1, 0, at_ns, at_ns, {}) for at_ns in begun_ns]


def test_a_slow_receiver_costs_the_oldest_and_they_are_counted(receiver: Receiver) -> None:
    otlp = Otlp(TelemetrySettings(traces=HTTP, endpoint="E"), {}, 0)
    otlp.offer_spans(spans(0))
    # holds 0
    assert receiver.asked.wait(LONG_S)
    otlp.offer_spans(spans(*range(1, 17)))
    assert otlp.dropped == {"span": 6}
    receiver.free.set()
    otlp.close(LONG_S)
    assert receiver.taken == [0, *range(7, 17)]
    assert otlp.complaints() == ["telemetry: E accepted 11 of 17 spans"]


def test_closing_gives_up_in_time_and_counts_what_is_left(receiver: Receiver) -> None:
    otlp = Otlp(TelemetrySettings(traces=HTTP, endpoint="E"), {}, 0)
    otlp.offer_spans(spans(*range(5)))
    assert receiver.asked.wait(LONG_S)
    otlp.close(0.01)
    assert otlp.dropped == {"span": 5}
    receiver.free.set()
    for thread in threading.enumerate():
        if thread.name == "telemetry-span":
            thread.join(LONG_S)
    assert len(receiver.taken) == 2
    assert otlp.complaints() == ["telemetry: E accepted 0 of 5 spans"], (
        "what arrives after all was counted as lost, once"
    )


def test_traces_that_nobody_takes_hold_no_metrics_up(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Receiver()
    quick = Receiver()
    monkeypatch.setattr(quick, "export", lambda data: SimpleNamespace(name="SUCCESS"))
    monkeypatch.setattr(
        module, "_exporter", lambda signal, protocol, _answers: slow if signal == "trace" else quick
    )
    otlp = Otlp(TelemetrySettings(metrics=HTTP, traces=HTTP, endpoint="E"), {}, 0)
    otlp.offer_spans(spans(1))
    assert slow.asked.wait(LONG_S)
    otlp.offer(Snapshot(0, 1, (), [point("redlock.split_votes", 1)]))
    otlp.close(0.5)
    assert otlp.complaints() == ["telemetry: E accepted 1 of 1 exports and 0 of 1 spans"]
    slow.free.set()


def test_a_collector_that_has_moved_has_taken_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        collector.status = 301
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        otlp = Otlp(TelemetrySettings(metrics=HTTP, endpoint=collector.endpoint), {}, 0)
        otlp.offer(Snapshot(0, 1, (), [point("redlock.split_votes", 1)]))
        otlp.close(LONG_S)
    (said,) = otlp.complaints()
    assert "0 of 1 exports" in said
    assert "has the status 301" in said


def sent_to(
    collector: Collector | GrpcCollector,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    times: int = 1,
) -> Otlp:
    """An export of three points and one of four spans, each so many times."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    otlp = Otlp(TelemetrySettings(metrics=protocol, traces=protocol, endpoint="E"), {}, 0)
    names = ("redlock.split_votes", "redlock.leases.gone", "redlock.load.time")
    deadline_s = time.monotonic() + LONG_S
    for number in range(1, times + 1):
        otlp.offer(Snapshot(0, 1, (), [point(name, 1) for name in names]))
        otlp.offer_spans(spans(1, 2, 3, 4))
        while sum(otlp._sent.values()) + otlp.dropped["export"] + otlp.dropped["span"] < 5 * number:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    otlp.close(LONG_S)
    return otlp


@pytest.mark.parametrize("kind, protocol", [(Collector, HTTP), (GrpcCollector, GRPC)])
def test_what_is_rejected_in_a_success_is_counted_and_warned_of_once(
    kind: type[Collector | GrpcCollector], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kind() as collector:
        collector.rejects = 2
        collector.message = "the series is full\nask your admin"
        otlp = sent_to(collector, protocol, monkeypatch, times=2)
    assert otlp.dropped == {"export": 0, "span": 4, "point": 4}
    (sentence,) = otlp.complaints()
    assert sentence == (
        "telemetry: E accepted 2 of 2 exports and 4 of 8 spans, and it rejected 4 points in "
        "these exports; "
        "its reasons: the series is full"
    )


@pytest.mark.parametrize("rejects, lost_points, lost_spans", [(-7, 0, 0), (1 << 40, 3, 4)])
def test_a_number_of_rejected_points_that_cannot_be_is_not_believed(
    rejects: int, lost_points: int, lost_spans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector() as collector:
        collector.rejects = rejects
        otlp = sent_to(collector, HTTP, monkeypatch)
    assert otlp.dropped == {"export": 0, "span": lost_spans, "point": lost_points}


def test_a_warning_of_a_receiver_that_took_everything_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Collector() as collector:
        collector.message = "your token ends tomorrow"
        otlp = sent_to(collector, HTTP, monkeypatch)
    assert otlp.complaints() == [
        "telemetry: E accepted everything, but its answer contains a warning: "
        "your token ends tomorrow"
    ]


@pytest.mark.parametrize(
    "media, body",
    [
        ("text/html; charset=utf-8", b"<!DOCTYPE html><html><body>Sign in</body></html>"),
        ("application/x-protobuf", b"<html><body>Sign in</body></html>"),
        ("application/json", b"<html>"),
        (
            "application/json",
            b'{"partialSuccess": {"rejectedSpans": "many", "rejectedDataPoints": "many"}}',
        ),
        ("application/json", b"\xff"),
        ("text/plain", b"OK"),
        ("", b"\x0a\x7f"),
    ],
)
def test_a_success_that_is_no_answer_of_otlp_has_taken_nothing(
    media: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector() as collector:
        collector.page = media, body
        otlp = sent_to(collector, HTTP, monkeypatch)
    assert otlp.dropped == {"export": 1, "span": 4, "point": 0}
    (sentence,) = otlp.complaints()
    shown = media.partition(";")[0] or "bytes"
    assert (
        f"the answer has the status 200 and the content {shown}, so it is not an OTLP" in sentence
    )


@pytest.mark.parametrize(
    "media, body", [("", b""), ("application/json", b"{}"), ("text/plain", b"")]
)
def test_an_empty_answer_has_taken_everything(
    media: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector() as collector:
        collector.page = media, body
        otlp = sent_to(collector, HTTP, monkeypatch)
    assert otlp.complaints() == []


def test_an_answer_in_json_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        collector.page = (
            "application/json",
            b'{"partialSuccess": {"rejectedDataPoints": "1", "new": 1}, "more": 2}',
        )
        otlp = sent_to(collector, HTTP, monkeypatch)
    assert otlp.dropped == {"export": 0, "span": 0, "point": 1}


def test_grpc_is_heard_on_a_channel_that_was_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with GrpcCollector() as collector:
        collector.rejects = 1
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        otlp = Otlp(TelemetrySettings(metrics=GRPC, endpoint="E"), {}, 0)
        otlp._exporters["export"]._initialize_channel_and_stub()
        otlp.offer(Snapshot(0, 1, (), [point("redlock.split_votes", 1)]))
        otlp.close(LONG_S)
    assert otlp.dropped == {"export": 0, "point": 1}


def test_a_collector_that_is_down_is_said_once_and_off_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    past: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.Handler()])
    monkeypatch.setattr(logging.getLogger().handlers[0], "emit", past.append)
    with socket.socket() as taken:
        # and never listens: connecting is refused
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        otlp = Otlp(TelemetrySettings(metrics=HTTP, endpoint=endpoint), {}, 0)
        before = threading.enumerate()
        otlp.offer(Snapshot(0, 1, (), [point("redlock.split_votes", 1)]))
        deadline = time.monotonic() + 30
        while not otlp._log.text and time.monotonic() < deadline:
            time.sleep(0.01)
        otlp.close(0.0)
        assert otlp.dropped["export"] == 1
        (said,) = otlp.complaints()
    for thread in before:
        if thread.name == "telemetry-export":
            thread.join(20)
    assert "0 of 1 exports" in said
    assert said.endswith("; its reasons: Connection refused")
    assert past == [], "nothing went past our handler"


def test_both_signals_name_their_scope_with_its_version_and_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Collector() as collector:
        sent_to(collector, HTTP, monkeypatch)
    assert collector.received.scopes == {("lockbench", version_of("lockbench"), SCHEMA_URL)}


@pytest.mark.parametrize("exponential", [False, True])
def test_a_histogram_of_nothing_has_no_least_and_no_greatest(
    exponential: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 0 would be a value that nobody has seen."""
    filled = Buckets()
    filled.add(np.array([NS_PER_S, 3 * NS_PER_S]))
    points = [point("redlock.hold.duration", Buckets()), point("redlock.handoff.duration", filled)]
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        otlp = Otlp(
            TelemetrySettings(metrics=HTTP, endpoint="E", exponential=exponential),
            {"service.instance.id": "i"},
            0,
        )
        otlp.offer(Snapshot(0, 1, (), points))
        otlp.close(LONG_S)
        (empty,), (full,) = (collector.received.points(one.instrument.name) for one in points)
    assert (empty.count, empty.HasField("min"), empty.HasField("max")) == (0, False, False)
    assert (full.count, full.min, full.max) == (2, 1.0, 3.0)


def test_the_environment_adds_to_the_resource_and_replaces_nothing_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = "team=a,redlock.run.id=other,service.instance.id=other,redlock.fsync=none"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", theirs)
    ours = Run("ab12", "redlock", "always").resource("mine")
    attributes = Otlp(TelemetrySettings(), ours, 0)._resource.attributes
    assert {**attributes, **ours} == attributes
    assert attributes["team"] == "a"
