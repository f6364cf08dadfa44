"""What crashes cost, exported by policy: the sums of the cuts, each lock once."""

from __future__ import annotations

import pytest

from bench.experiments.crash.experiment import export_crashes
from bench.experiments.crash.judge import AskedAgain, Crash, CutFacts, Loss
from tests.doubles.collector import Collector, attributes_of


def cut(policy: str, lost: int, window_s: float | None, doubled: int) -> CutFacts:
    losses = (Loss(1, None, 100, 50, lost, window_s), Loss(1, 0, 100, 50, 9 * lost, window_s))
    asked = (AskedAgain(1, False, 10, doubled), AskedAgain(1, True, 10, 0))
    return CutFacts(Crash(3, policy, "power-cut", 3, "all"), 1, 1.0, (), losses, asked, 0.1, {})


CUTS = [cut("everysec", 7, 0.5, 3), cut("everysec", 2, 1.25, 0), cut("always", 0, None, 0)]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch):
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)  # what the exporters themselves read
        yield collector


def test_sums_are_those_of_the_cuts_by_policy(collector: Collector) -> None:
    assert export_crashes("ab12", CUTS, {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}) == []
    points = {
        (name, attributes_of(point)["redlock.fsync"]): point
        for name, metrics in collector.received.history.items()
        for metric in metrics
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    }
    assert points["redlock.crash.lost_locks", "everysec"].as_int == 9
    assert points["redlock.crash.lost_locks", "always"].as_int == 0
    assert points["redlock.crash.double_grants", "everysec"].as_int == 3
    window = points["redlock.crash.lost_window", "everysec"]
    assert (window.count, window.sum) == (2, 1.75)
    assert points["redlock.crash.lost_window", "always"].count == 0


def test_without_an_endpoint_nothing_is_exported(collector: Collector) -> None:
    assert export_crashes("ab12", CUTS, {}) == []
    assert collector.received.requests == 0


def test_what_cannot_be_read_is_a_warning_and_not_the_end_of_the_result(collector: Collector) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "soon"}
    (warning,) = export_crashes("ab12", CUTS, environ)
    assert "OTEL_METRIC_EXPORT_INTERVAL" in warning
