"""Memory over a long load: `make test-long`.

LOCKBENCH_LONG_S shortens it for a try (default 600 s).
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

import psutil
import pytest

from bench.topology.fleet import start_fleet

LOAD = """
import sys, time, gevent
from lockcore import Redlock
lock = Redlock.connect(sys.argv[2:], shell="gevent", rejoin="trust-first")
until = time.monotonic() + float(sys.argv[1])
def caller(number):
    cycle = 0
    while time.monotonic() < until:
        cycle += 1
        lease = lock.try_acquire(f"r{number}" if cycle % 8 else f"shared{cycle % 50}", 10_000, 20)
        if lease:
            lock.try_release(lease)
gevent.joinall([gevent.spawn(caller, number) for number in range(100)], raise_error=True)
lock.close()
"""


def grows(samples: Sequence[int]) -> bool:
    """True when the last third of RSS samples (bytes) lies more than 2 % and 1 MiB above the first
    third."""
    third = len(samples) // 3
    first = median(samples[:third])
    last = median(samples[-third:])
    return last > first * 1.02 + (1 << 20)


def test_growth_is_noticed() -> None:
    flat = [100 << 20] * 30
    assert not grows(flat)
    assert grows([size + (number << 19) for number, size in enumerate(flat)])


@pytest.mark.slow
@pytest.mark.integration
def test_memory_stays_flat_over_ten_minutes_of_load_with_contention() -> None:
    seconds = float(os.environ.get("LOCKBENCH_LONG_S", "600"))
    with start_fleet(5, "none") as fleet:
        load = subprocess.Popen([sys.executable, "-c", LOAD, f"{seconds}", *fleet.urls])
        try:
            client = psutil.Process(load.pid)
            samples = []
            end = time.monotonic() + seconds
            settled = end - seconds * 0.95
            while load.poll() is None and time.monotonic() < end - 1:
                if time.monotonic() > settled:
                    samples.append(client.memory_info().rss)
                try:
                    load.wait(seconds / 120)
                except subprocess.TimeoutExpired:
                    continue
            assert load.wait(30) == 0
        finally:
            load.kill()
            load.wait()
    assert len(samples) > 90
    assert not grows(samples), f"RSS went from {samples[0]:,} to {samples[-1]:,} bytes"
