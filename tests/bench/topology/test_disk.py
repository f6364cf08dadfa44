"""fdatasync figures: counted, bounded and ordered."""

import os
from pathlib import Path

import pytest

from bench.topology import disk
from bench.topology.disk import fdatasync_latency


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A disk with a clock of its own: the n-th fdatasync takes n milliseconds.

    Returns the clock [ns].
    """
    clock = [0]
    syncs = [0]

    def sync(_descriptor: int) -> None:
        syncs[0] += 1
        clock[0] += syncs[0] * 1_000_000

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(disk.time, "monotonic_ns", lambda: clock[0])
    return clock


def test_percentiles_are_nearest_ranks_in_seconds(slow_disk: list[int], tmp_path: Path) -> None:
    latency = fdatasync_latency(tmp_path, writes=200, budget_s=1000)
    assert latency.count == 200
    assert latency.p50_s == pytest.approx(0.100)
    assert latency.p99_s == pytest.approx(0.198)
    assert latency.max_s == pytest.approx(0.200)


def test_a_slow_disk_ends_at_the_budget_without_a_p99(slow_disk: list[int], tmp_path: Path) -> None:
    latency = fdatasync_latency(tmp_path, budget_s=0.9)
    # 1 + 2 + … + 42 ms is the first sum beyond 900 ms
    assert latency.count == 42
    assert latency.p99_s is None
    assert slow_disk[0] == 903_000_000


def test_every_write_is_synced_on_the_real_disk_and_nothing_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes: list[int] = []
    real = os.fdatasync

    def sync(descriptor: int) -> None:
        real(descriptor)
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fdatasync", sync)
    latency = fdatasync_latency(tmp_path, writes=5)
    assert sizes == [100, 200, 300, 400, 500]
    assert 0 < latency.p50_s <= latency.max_s
    assert list(tmp_path.iterdir()) == []
