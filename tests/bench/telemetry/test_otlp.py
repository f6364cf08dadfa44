"""Towards a collector: `put` never waits, every loss is counted; one that is down is one sentence, off the screen."""

import logging
import socket
import threading
import time
from collections.abc import Sequence

import pytest

from bench.telemetry.otlp import Otlp, SendQueue
from bench.telemetry.points import Snapshot, point
from bench.telemetry.run import Run
from bench.telemetry.settings import HTTP, TelemetrySettings
from tests.doubles.collector import Collector

LONG_S = 30.0


class Receiver:
    """Takes batches when it is let."""

    def __init__(self) -> None:
        self.free, self.asked = threading.Event(), threading.Event()
        self.taken: list[int] = []

    def take(self, items: Sequence[int]) -> bool:
        self.asked.set()
        assert self.free.wait(LONG_S)
        self.taken += items
        return True


def test_a_slow_receiver_costs_the_oldest_and_they_are_counted() -> None:
    receiver = Receiver()
    line = SendQueue("t", receiver.take, room=4, batch=1)
    line.put([0])
    assert receiver.asked.wait(LONG_S)  # holds 0
    line.put(range(1, 11))
    assert line.dropped == 6
    receiver.free.set()
    line.close(LONG_S)
    assert receiver.taken == [0, 7, 8, 9, 10]
    assert line.sent + line.dropped == 11


def test_closing_gives_up_in_time_and_counts_what_is_left() -> None:
    receiver = Receiver()
    line = SendQueue("t", receiver.take, room=10, batch=2)
    line.put(range(5))
    assert receiver.asked.wait(LONG_S)
    line.close(0.01)
    assert (line.sent, line.dropped) == (0, 5)
    assert line._thread.is_alive(), "it was given up, not ended"
    receiver.free.set()
    line._thread.join(LONG_S)
    assert not line._thread.is_alive()
    assert (line.sent, line.dropped) == (0, 5)  # what arrives after all was counted as lost, once


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
        if thread.name == "telemetry-metrics":
            thread.join(20)
    assert "0 of 1 exports" in said
    assert said.endswith("; it said: Connection refused")
    assert past == [], "nothing went past our handler"


@pytest.mark.parametrize(
    "variables, name",
    [
        ({}, "lockbench"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "team=a, service.name=of%20us"}, "of us"),
        ({"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs"}, "mine"),
    ],
)
def test_the_service_is_named_by_the_standard_variables(
    variables: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    attributes = Otlp(TelemetrySettings(), Run("ab12", "redlock").resource, 0)._resource.attributes
    assert (attributes["service.name"], attributes["redlock.run.id"]) == (name, "ab12")
