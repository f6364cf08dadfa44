"""A host that was suspended: CLOCK_MONOTONIC stood still, the servers did not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockcore import Denied, Outcome
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import TTL_MS, Shell

pytestmark = pytest.mark.integration
APART_S = 86_400
HELD = """
import sys, time
from lockcore import Redlock
with Redlock.connect(sys.argv[1:], shell="threads", instance_timeout_ms=2500, connect_timeout_s=5.0) as lock:
    apart_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    lease = lock.acquire("stock", 10_000)
    print(round(apart_s), 0 < lease.valid_until_ns - time.monotonic_ns() < 10_000_000_000)
"""


def test_a_lease_that_ran_out_while_its_host_slept_is_gone_at_its_next_use(
    shell: Shell, connect: Callable[..., Any], scripted: Callable[..., Instances]
) -> None:
    """Keys expire, this host's clock has not moved."""
    instances, told = scripted(3), list[Denied]()
    lock = connect(instances.urls)
    used, kept = lock.acquire("used", TTL_MS), lock.acquire("kept", TTL_MS)
    lock.keep_alive(kept, every_ms=50, on_gone=told.append)
    for instance in instances:
        instance.keyspace.clear()
    assert lock.try_extend(used).outcome is Outcome.GONE
    assert lock.try_release(used) is Outcome.GONE
    shell.until(lambda: told, "the keeper to be told")
    assert told[0].outcome is Outcome.GONE


def test_a_lease_ends_by_the_clock_that_callers_compare_it_with(scripted: Callable[..., Instances]) -> None:
    """In a time namespace where the host seems to have slept for a day."""
    unshare = ["unshare", "--time", "--fork", "--boottime", str(APART_S)]
    try:
        tried = subprocess.run([*unshare, "true"], capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        pytest.skip(f"no time namespace here: {error}")
    if tried.returncode:
        pytest.skip(f"no time namespace here: {tried.stderr.strip()}")
    done = subprocess.run(
        [*unshare, sys.executable, "-c", HELD, *scripted(3).urls],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    apart_s, holds = done.stdout.split()
    assert abs(int(apart_s) - APART_S) < 3600, done.stderr
    assert holds == "True"
