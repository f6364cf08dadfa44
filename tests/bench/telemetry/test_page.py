"""The metrics page: what Prometheus reads, with OTLP's names; it stays until it was read once
more."""

import threading
import time
import urllib.request

import numpy as np
import pytest

from bench.errors import EnvironmentNotReadyError
from bench.telemetry.page import MetricsPage
from bench.telemetry.points import Buckets, Snapshot, point

RESOURCE = {"service.name": "lockbench", "redlock.run.id": "ab12"}
COMMON = (("redlock.recipe", "redlock"), ("redlock.fsync", "always"))


def read(page: MetricsPage) -> str:
    with urllib.request.urlopen(page.address, timeout=30) as answer:
        return str(answer.read().decode())


@pytest.fixture
def page():
    page = MetricsPage(("127.0.0.1", 0), RESOURCE)
    yield page
    page.close(0)


def snapshot() -> Snapshot:
    buckets = Buckets()
    buckets.add(np.array([400_000, 2_000_000, 200 * 10**9]))
    took = point("redlock.acquire.duration", buckets, redlock_outcome="acquired")
    outcomes = point("redlock.acquire.outcomes", 3, redlock_outcome="acquired")
    return Snapshot(1, 2, COMMON, [took, outcomes, point("redlock.load.offered", 12.5)])


LABELS = (
    'redlock_fsync="always",redlock_outcome="acquired",'
    'redlock_recipe="redlock",redlock_run_id="ab12"'
)


def test_series_have_the_names_buckets_and_labels_that_otlp_leads_to(page: MetricsPage) -> None:
    page.offer(snapshot())
    text = read(page)
    assert f'redlock_acquire_duration_seconds_bucket{{le="1e-05",{LABELS}}} 0.0' in text
    assert f'redlock_acquire_duration_seconds_bucket{{le="0.00047",{LABELS}}} 1.0' in text
    assert f'redlock_acquire_duration_seconds_bucket{{le="0.0022",{LABELS}}} 2.0' in text
    assert f'redlock_acquire_duration_seconds_bucket{{le="100.0",{LABELS}}} 2.0' in text
    assert f'redlock_acquire_duration_seconds_bucket{{le="+Inf",{LABELS}}} 3.0' in text
    assert f"redlock_acquire_duration_seconds_count{{{LABELS}}} 3.0" in text
    assert f"redlock_acquire_duration_seconds_sum{{{LABELS}}} 200.0024" in text
    assert f"redlock_acquire_outcomes_total{{{LABELS}}} 3.0" in text
    assert "# TYPE redlock_acquire_outcomes_total counter" in text
    assert 'redlock_load_offered_per_second{redlock_fsync="always"' in text
    assert 'target_info{redlock_run_id="ab12",service_name="lockbench"} 1.0' in text


def test_nothing_is_made_up_before_the_first_snapshot(page: MetricsPage) -> None:
    assert "redlock" not in read(page)


class Slow(list):
    """Points that are read only when they may be."""

    def __init__(self) -> None:
        super().__init__([point("redlock.load.offered", 7)])
        self.begun = threading.Event()
        self.free = threading.Event()

    def __iter__(self):
        self.begun.set()
        assert self.free.wait(30)
        return super().__iter__()


def test_a_scrape_that_began_before_the_last_snapshot_is_not_taken_for_one_of_it() -> None:
    page = MetricsPage(("127.0.0.1", 0), RESOURCE)
    page.offer(snapshot())
    read(page)
    read(page)
    # a period that a slow machine may take
    page._scrapes_s[:] = [0.0, 100.0]
    slow = Slow()
    page.offer(Snapshot(1, 2, COMMON, slow))
    early = threading.Thread(target=read, args=(page,))
    early.start()
    assert slow.begun.wait(30)
    page.offer(snapshot())
    closing = threading.Thread(target=page.close, args=(60.0,))
    closing.start()
    slow.free.set()
    early.join(30)
    assert closing.is_alive(), "the last snapshot has not been read"
    assert "redlock_load_offered_per_second{" in read(page)
    closing.join(30)
    assert not closing.is_alive()


def test_who_came_twice_is_waited_for_and_who_came_once_is_not() -> None:
    page = MetricsPage(("127.0.0.1", 0), RESOURCE)
    page.offer(snapshot())
    read(page)
    page.offer(snapshot())
    page.close(3600.0)
    page = MetricsPage(("127.0.0.1", 0), RESOURCE)
    page.offer(snapshot())
    read(page)
    read(page)
    page._scrapes_s[:] = [0.0, 100.0, 100.1]
    page.offer(snapshot())
    closing = threading.Thread(target=page.close, args=(60.0,))
    closing.start()
    closing.join(1.0)
    assert closing.is_alive()
    read(page)
    closing.join(30)
    assert not closing.is_alive()


def test_who_comes_no_more_is_not_waited_for_long() -> None:
    page = MetricsPage(("127.0.0.1", 0), RESOURCE)
    page.offer(snapshot())
    read(page)
    read(page)
    page._scrapes_s[:] = [0.0, 1.0]
    page.offer(snapshot())
    began_s = time.monotonic()
    page.close(3600.0)
    assert time.monotonic() - began_s < 600.0


def test_a_port_that_is_taken_is_one_sentence(page: MetricsPage) -> None:
    port = int(page.address.rpartition(":")[2].partition("/")[0])
    with pytest.raises(
        EnvironmentNotReadyError, match="choose another OTEL_EXPORTER_PROMETHEUS_PORT"
    ):
        MetricsPage(("127.0.0.1", port), RESOURCE)


def test_a_gauge_of_an_old_snapshot_is_left_out_but_for_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("bench.telemetry.page.time.monotonic", lambda: now_s[0])
    page = MetricsPage(("127.0.0.1", 0), RESOURCE, fresh_s=2.0)
    try:
        page.offer(snapshot())
        now_s[0] += 2.0
        assert "redlock_load_offered_per_second{" in read(page)
        now_s[0] += 0.1
        text = read(page)
        assert "redlock_load_offered_per_second" not in text
        assert "redlock_acquire_outcomes_total{" in text
        page._closing = True
        assert "redlock_load_offered_per_second{" in read(page)
    finally:
        page.close(0)
