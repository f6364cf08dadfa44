"""From connect to close, in this process and no other. On every way of waiting."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from lockcore import Outcome, Redlock
from lockcore.errors import ForeignProcessError, InstanceClosedError
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import (
    DEADLINE_S,
    TTL_MS,
    AsyncioShell,
    Connect,
    GeventJob,
    GeventShell,
    Scripted,
    Shell,
    ThreadShell,
    UvloopShell,
    first_step,
    only,
)

pytestmark = pytest.mark.integration
EXIT_S = 20.0


def test_everything_after_close_says_so(shell: Shell, lock: Any, instances: Instances) -> None:
    with lock:
        lease = lock.acquire("stock", TTL_MS)
    lock.close()
    for use in (
        lambda: lock.try_acquire("stock", TTL_MS),
        lambda: lock.try_release(lease),
        lambda: lock.try_extend(lease),
        lambda: lock.keep_alive(lease),
    ):
        with pytest.raises(InstanceClosedError, match="this Redlock is closed"):
            use()
    assert [status.state for status in lock.instances] == ["down"] * 3
    shell.until(lambda: not any(instance.is_connected for instance in instances), "the connections to end")


def test_close_waits_for_what_is_in_flight(shell: Shell, lock: Any, instances: Instances) -> None:
    lease = lock.acquire("stock", TTL_MS)
    instances[0].pause()
    assert lock.try_release(lease) is Outcome.RELEASED  # two of three; the third is still on its way
    job = shell.start(shell.raw(lock).close, 8.0)
    shell.sleep(0.02)
    assert not job.is_done()
    instances[0].resume()
    job.result()
    assert instances.keys == []
    assert lock.instances[0].pending == 0


def in_a_child(work: Callable[[], str]) -> str:
    """What `work` returns in a forked child."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            said = f"{type(error).__name__}: {error}"
        there.sendall(said.encode())
        os._exit(0)
    there.close()
    here.settimeout(EXIT_S)
    said = here.recv(10_000).decode()
    here.close()
    os.waitpid(child, 0)
    return said


def test_a_forked_child_cannot_use_it_and_its_parent_still_can(
    shell: Shell, connect: Connect, instances: Instances
) -> None:
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    raw = shell.raw(lock)

    def child() -> str:
        said = []
        uses = (lambda: raw.try_acquire("other", TTL_MS), lambda: raw.try_release(lease), lambda: raw.try_extend(lease))
        for use in (*uses, lambda: raw.keep_alive(lease)):
            try:
                first_step(use())
            except ForeignProcessError as error:
                said.append(str(error))
        first_step(raw.close())
        return f"{len(said)} {said[0]}"

    assert in_a_child(child) == "4 this Redlock was connected in another process; call connect() again after fork"
    lease = lock.extend(lease)
    assert lock.try_release(lease) is Outcome.RELEASED
    assert lock.try_acquire("other", TTL_MS)
    expected = ["set", "extend", "release", "set"]
    shell.until(lambda: instances.were_told(expected), "what the parent asked for, alone")


@only(ThreadShell)
def test_a_child_may_connect_anew(connect: Connect, instances: Instances) -> None:
    lock = connect(instances.urls)
    held = lock.acquire("stock", TTL_MS)

    def child() -> str:
        with Redlock.connect(instances.urls, shell="threads", rejoin="trust-first") as mine:
            return (
                f"{mine.try_acquire('stock', TTL_MS).outcome.value} {mine.try_acquire('other', TTL_MS).outcome.value}"
            )

    assert in_a_child(child) == "contended acquired"
    assert lock.try_release(held) is Outcome.RELEASED


@only(ThreadShell)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_io_thread_strands_nobody(shell: Shell, lock: Any, instances: Instances) -> None:
    instances.pause()
    jobs = [shell.start(lock.try_acquire, f"r{number}", TTL_MS, 60_000) for number in range(20)]
    shell.until(lambda: len(lock._driver.calls) == 20, "twenty callers")
    lock._driver._post(lambda: 1 / 0)
    for job in jobs:
        with pytest.raises(InstanceClosedError):
            job.result()
    with pytest.raises(InstanceClosedError):
        lock.try_acquire("stock", TTL_MS)
    lock._driver._thread.join(DEADLINE_S)  # it tells of the bug as it ends


@only(GeventShell, AsyncioShell, UvloopShell)
def test_what_a_forked_child_gives_up_is_not_sent(shell: Shell, lock: Any, instances: Instances) -> None:
    """The child has copies of everybody who waits; ending them must not release what the parent is about to get."""
    instances.pause()
    waits = shell.start(shell.raw(lock).try_acquire, "stock", TTL_MS)
    shell.until(lambda: all(status.pending for status in lock.instances), "its SETs to be sent")

    def child() -> str:
        if isinstance(waits, GeventJob):
            waits.greenlet.kill()
        else:
            waits.task.get_coro().close()
        return "ended"

    assert in_a_child(child) == "ended"
    instances.resume()
    assert lock.try_release(waits.result()) is Outcome.RELEASED
    shell.until(lambda: instances.were_told(["set", "release"]), "one release of each")


@only(GeventShell)
def test_who_stands_in_line_is_told_in_a_forked_child(shell: Shell, connect: Connect, scripted: Scripted) -> None:
    instances = scripted(1)
    lock = connect(instances.urls)
    lease = lock.acquire("stock", TTL_MS)
    jobs = [shell.start(lock.try_acquire, "stock", TTL_MS, 60_000) for _ in range(3)]
    shell.until(lambda: len(lock._driver.engine.turns.get("stock", ())) == 3, "all to stand in line")
    instances[0].pause()
    shell.until(lambda: lock.instances[0].pending, "the first in line to be in a round")

    def child() -> str:
        said = []
        for job in jobs:
            try:
                job.result()
            except ForeignProcessError:
                said.append("foreign")
        return " ".join(said)

    assert in_a_child(child) == "foreign foreign foreign"
    instances[0].resume()
    lock.release(lease)
    for job in jobs:
        lock.release(job.result())
