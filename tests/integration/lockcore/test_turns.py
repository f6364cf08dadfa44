"""Many callers of one process on one key: they stand in line, and the servers hear of their head only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from bench.topology.fleet import Fleet
from lockcore import RetryPolicy
from tests.doubles.instance import Instances
from tests.integration.lockcore.keys import keys_on
from tests.integration.lockcore.shell import TTL_MS, AsyncioShell, GeventShell, Shell, UvloopShell, only
from tests.integration.lockcore.test_storm import Holders, user

pytestmark = pytest.mark.integration
CALLERS, LEASES, WAIT_MS = 32, 5, 60_000


def test_32_callers_on_one_key_all_get_it_one_by_one_with_few_commands(
    shell: Shell, connect: Callable[..., Any], redis_fleet: Fleet
) -> None:
    url, prefix, holders = redis_fleet.urls[0], f"{uuid4().hex}:", Holders()
    lock = connect([url], key_prefix=prefix)
    for job in [shell.begin(user, lock, holders, number, ["hot"] * LEASES) for number in range(CALLERS)]:
        job.result()
    assert (holders.most, holders.leases) == (1, CALLERS * LEASES)
    assert lock.instances[0].commands / holders.leases < 12
    shell.until(lambda: not lock.instances[0].pending, "every reply")
    assert keys_on([url], prefix) == []


@only(GeventShell, AsyncioShell, UvloopShell)
def test_who_is_cancelled_in_line_holds_nobody_up(
    shell: Shell, connect: Callable[..., Any], redis_fleet: Fleet
) -> None:
    """The head and others of the line are cancelled while the key is held; the last one still gets it."""
    prefix = f"{uuid4().hex}:"
    lock = connect(redis_fleet.urls[:3], key_prefix=prefix)
    lease = lock.acquire("hot", TTL_MS)
    jobs = [shell.start(shell.raw(lock).acquire, "hot", TTL_MS, WAIT_MS) for _ in range(4)]
    shell.sleep(0.02)
    for job in jobs[:3]:
        shell.cancel(job)
    lock.release(lease)
    last = jobs[3].result()
    lock.release(last)
    shell.until(lambda: not any(status.pending for status in lock.instances), "every reply")
    assert keys_on(redis_fleet.urls[:3], prefix) == []


def test_who_tries_again_without_a_pause_still_notices_that_the_instances_are_back(
    shell: Shell, connect: Callable[..., Any], scripted: Callable[..., Instances]
) -> None:
    """Nothing is sent without a quorum, so every attempt is over at once; the loop must get its turn all the same."""
    instances = scripted(1)
    retry = RetryPolicy(window_ms=0, attempts=1 << 40, retry_unreachable=True)
    lock = connect(instances.urls, retry=retry, rejoin="trust")
    instances[0].kill(forget=False)
    shell.until(lambda: lock.instances[0].state == "down", "the loss to be noticed")
    job = shell.start(shell.raw(lock).try_acquire, "hot", TTL_MS, WAIT_MS)
    shell.sleep(0.02)
    instances[0].start()
    assert job.result()
