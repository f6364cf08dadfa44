"""Many callers on few resources: never two holders, nothing left at the end, and those of one
process stand in line: the servers hear of their head only. On every way of waiting."""

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from bench.topology.fleet import Fleet
from lockcore import Outcome, RetryPolicy
from tests.integration.lockcore.keys import keys_on
from tests.integration.lockcore.shell import (
    TASKS,
    TTL_MS,
    Connect,
    GeventShell,
    Scripted,
    Shell,
    ThreadShell,
    only,
)

pytestmark = pytest.mark.integration
STANDING = 32
LEASES = 5
LINE_MS = 60_000
CALLERS = 200
RESOURCES = ("r0", "r1", "r2", "r3", "r4")
WAIT_MS = 8_000


class Holders:
    """Who holds what, counted where the lock says it is held."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most = 0
        self.leases = 0
        self._lock = threading.Lock()

    def enter(self, resource: str) -> None:
        """One more holder."""
        with self._lock:
            self.now[resource] += 1
            self.leases += 1
            self.most = max(self.most, self.now[resource])

    def leave(self, resource: str) -> None:
        """One less."""
        with self._lock:
            self.now[resource] -= 1


async def user(
    lock: Any, pause: Callable[[float], Any], holders: Holders, seed: int, resources: Sequence[str]
) -> None:
    """Hold each of them for a moment."""
    random = Random(seed)
    for resource in resources:
        if lease := await lock.try_acquire(resource, TTL_MS, WAIT_MS):
            holders.enter(resource)
            await pause(random.random() * 0.0005)
            holders.leave(resource)
            assert await lock.try_release(lease) is Outcome.RELEASED


def run_users(shell: Shell, locks: list[Any], holders: Holders, cycles: int) -> None:
    """CALLERS callers, spread over the locks."""
    jobs = [
        shell.begin(
            user,
            locks[number % len(locks)],
            holders,
            number,
            Random(number).choices(RESOURCES, k=cycles),
        )
        for number in range(CALLERS)
    ]
    for job in jobs:
        job.result()


def test_200_callers_on_few_resources_are_never_two_and_leave_nothing(
    shell: Shell, connect: Connect, fleet: Fleet
) -> None:
    prefix = f"{uuid4().hex}:"
    holders = Holders()
    # as two processes would be
    locks = [connect(fleet.urls, key_prefix=prefix) for _ in range(2)]
    run_users(shell, locks, holders, cycles=1 if isinstance(shell, ThreadShell) else 3)
    assert holders.most == 1
    assert holders.leases > CALLERS / 2
    for lock in locks:
        shell.until(
            lambda: not any(status.pending for status in lock.instances),  # noqa: B023
            "every reply",
        )
        assert all(status.owed_releases == 0 for status in lock.instances)
    assert keys_on(fleet.urls, prefix) == []


def test_the_count_of_holders_would_notice(
    shell: Shell, connect: Connect, redis_fleet: Fleet
) -> None:
    """Two fleets that know nothing of each other grant the same resources."""
    prefix = f"{uuid4().hex}:"
    holders = Holders()
    locks = [
        connect(redis_fleet.urls[:2], key_prefix=prefix),
        connect(redis_fleet.urls[3:], key_prefix=prefix),
    ]
    run_users(shell, locks, holders, cycles=1)
    assert holders.most == 2


def test_processes_that_add_to_one_file_lose_no_addition(
    redis_fleet: Fleet, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    code = """
import sys
from pathlib import Path
from lockcore import Redlock
from tests.integration.lockcore.shell import PATIENT
prefix, counter, *urls = sys.argv[1:]
counter = Path(counter)
with Redlock.connect(urls, shell="threads", key_prefix=prefix, **PATIENT) as lock:
    for _ in range(50):
        with lock.hold("counter", 10_000, wait_ms=10_000):
            counter.write_text(str(int(counter.read_text()) + 1))
"""
    prefix = f"{uuid4().hex}:"
    command = [sys.executable, "-c", code, prefix, str(counter), *redis_fleet.urls]
    processes = [
        subprocess.Popen(command, cwd=Path(__file__).parents[3], env=os.environ) for _ in range(3)
    ]
    assert [process.wait(60) for process in processes] == [0] * 3
    assert counter.read_text() == "150"
    assert keys_on(redis_fleet.urls, prefix) == []


# -- in line ---------------------------------------------------------------------------------------


def test_32_callers_on_one_key_all_get_it_one_by_one_with_few_commands(
    shell: Shell, connect: Connect, redis_fleet: Fleet
) -> None:
    url = redis_fleet.urls[0]
    prefix = f"{uuid4().hex}:"
    holders = Holders()
    lock = connect([url], key_prefix=prefix)
    for job in [
        shell.begin(user, lock, holders, number, ["hot"] * LEASES) for number in range(STANDING)
    ]:
        job.result()
    assert (holders.most, holders.leases) == (1, STANDING * LEASES)
    assert lock.instances[0].commands / holders.leases < 12
    shell.until(lambda: not lock.instances[0].pending, "every reply")
    assert keys_on([url], prefix) == []


@only(GeventShell, *TASKS)
def test_who_is_cancelled_in_line_holds_nobody_up(
    shell: Shell, connect: Connect, redis_fleet: Fleet
) -> None:
    """The head and others of the line are cancelled while the key is held; the last one still gets
    it."""
    prefix = f"{uuid4().hex}:"
    lock = connect(redis_fleet.urls[:3], key_prefix=prefix)
    lease = lock.acquire("hot", TTL_MS)
    jobs = [shell.start(shell.raw(lock).acquire, "hot", TTL_MS, LINE_MS) for _ in range(4)]
    shell.sleep(0.02)
    for job in jobs[:3]:
        shell.cancel(job)
    lock.release(lease)
    last = jobs[3].result()
    lock.release(last)
    shell.until(lambda: not any(status.pending for status in lock.instances), "every reply")
    assert keys_on(redis_fleet.urls[:3], prefix) == []


def test_who_tries_again_without_a_pause_still_notices_that_the_instances_are_back(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    """Nothing is sent without a quorum, so every attempt is over at once; the loop must get its
    turn all the same."""
    instances = scripted(1)
    retry = RetryPolicy(window_ms=0, attempts=1 << 40, retry_unreachable=True)
    lock = connect(instances.urls, retry=retry, rejoin="trust")
    instances[0].kill(forget=False)
    shell.until(lambda: lock.instances[0].state == "down", "the loss to be noticed")
    job = shell.start(shell.raw(lock).try_acquire, "hot", TTL_MS, LINE_MS)
    shell.sleep(0.02)
    instances[0].start()
    assert job.result()
