"""Towards a collector: `put` never waits, every loss is counted; one that is down is one sentence, off the screen."""

import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from bench.telemetry import otlp as module
from bench.telemetry.otlp import Otlp
from bench.telemetry.points import Snapshot, point
from bench.telemetry.run import Run
from bench.telemetry.settings import HTTP, TelemetrySettings
from bench.telemetry.traces import TraceSpan
from tests.doubles.collector import Collector

LONG_S = 30.0


class Receiver:
    """An exporter that takes batches when it is let."""

    def __init__(self) -> None:
        self.free, self.asked = threading.Event(), threading.Event()
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
    monkeypatch.setattr(module, "_exporter", lambda signal, protocol: receiver if protocol else None)
    monkeypatch.setattr(module, "SPANS_KEPT", 10)
    monkeypatch.setattr(module, "SPANS_PER_BATCH", 2)
    yield receiver
    receiver.free.set()


def spans(*begun_ns: int) -> list[TraceSpan]:
    return [TraceSpan("s", 1, 1, 0, at_ns, at_ns, {}) for at_ns in begun_ns]


def test_a_slow_receiver_costs_the_oldest_and_they_are_counted(receiver: Receiver) -> None:
    otlp = Otlp(TelemetrySettings(traces=HTTP, endpoint="E"), {}, 0)
    otlp.offer_spans(spans(0))
    assert receiver.asked.wait(LONG_S)  # holds 0
    otlp.offer_spans(spans(*range(1, 17)))
    assert otlp.dropped == {"span": 6}
    receiver.free.set()
    otlp.close(LONG_S)
    assert receiver.taken == [0, *range(7, 17)]
    assert otlp.complaints() == ["telemetry: E took 11 of 17 spans"]


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
    assert otlp.complaints() == ["telemetry: E took 0 of 5 spans"], "what arrives after all was counted as lost, once"


def test_traces_that_nobody_takes_hold_no_metrics_up(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, quick = Receiver(), Receiver()
    monkeypatch.setattr(quick, "export", lambda data: SimpleNamespace(name="SUCCESS"))
    monkeypatch.setattr(module, "_exporter", lambda signal, protocol: slow if signal == "trace" else quick)
    otlp = Otlp(TelemetrySettings(metrics=HTTP, traces=HTTP, endpoint="E"), {}, 0)
    otlp.offer_spans(spans(1))
    assert slow.asked.wait(LONG_S)
    otlp.offer(Snapshot(0, 1, (), [point("redlock.split_votes", 1)]))
    otlp.close(0.5)
    assert otlp.complaints() == ["telemetry: E took 1 of 1 exports and 0 of 1 spans"]
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
    assert "it answers 301" in said


def test_a_collector_that_is_down_is_said_once_and_off_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    past: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.Handler()])
    monkeypatch.setattr(logging.getLogger().handlers[0], "emit", past.append)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens: connecting is refused
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
    assert said.endswith("; it said: Connection refused")
    assert past == [], "nothing went past our handler"


def test_the_environment_adds_to_the_resource_and_replaces_nothing_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = "team=a,redlock.run.id=other,service.instance.id=other,redlock.fsync=none"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", theirs)
    ours = Run("ab12", "redlock", "always").resource("mine")
    attributes = Otlp(TelemetrySettings(), ours, 0)._resource.attributes
    assert {**attributes, **ours} == attributes
    assert attributes["team"] == "a"
