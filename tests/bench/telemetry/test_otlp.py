"""A collector that is down is told in one sentence, by its cause, and nothing of it reaches the screen."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from bench.telemetry.otlp import open_otlp
from bench.telemetry.points import Snapshot, point
from bench.telemetry.settings import HTTP, Settings


def test_a_collector_that_is_down_is_said_once_and_off_the_screen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens: connecting is refused
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        otlp = open_otlp(Settings(metrics=HTTP, endpoint=endpoint), {}, 0)
        before = threading.enumerate()
        otlp.offer(Snapshot(0, 1, (), [point("redlock.split_votes", 1)]))
        deadline = time.monotonic() + 30
        while not otlp._log.text and time.monotonic() < deadline:
            time.sleep(0.01)
        otlp.close(0.0)
        assert otlp.dropped["export"] == 1
        (said,) = otlp.complaints(endpoint)
    for thread in before:
        if thread.name == "telemetry-metrics":
            thread.join(20)
    assert "0 of 1 metric exports" in said
    assert said.endswith("; it said: Connection refused")
    assert caplog.records == [], "nothing went past our handler"
    otlp._log.close()
