"""Ctrl-C at any moment: the interrupted caller leaves nothing behind, and the lock goes on.

The interpreter looks for signals after a call, at a loop's turn and at the beginning of a function. A trace function
raises KeyboardInterrupt at the k-th such moment inside lockcore, in the caller and in its hub, for every k there is.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gevent
import pytest

import lockcore
from lockcore import Outcome
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import GeventShell, Shell, ThreadShell, only

pytestmark = pytest.mark.integration
Connect = Callable[..., Any]
Scripted = Callable[..., Instances]
HERE = str(Path(lockcore.__file__).parent)
TTL_MS = 600_000  # no key goes by itself
PATIENCE_MS = 250  # a wake-up lost to an interrupt is made good by the instance timeout
OPERATIONS = {"try_acquire", "try_release"}


@cache
def moments(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions before which a signal may be noticed."""
    noticed = [
        after.offset
        for before, after in pairwise(dis.get_instructions(code))
        if after.opname != "RETURN_VALUE"  # belongs to the call before it, and stands outside its `try`
        and (
            before.opname.startswith("CALL")
            or before.opname == "JUMP_BACKWARD"
            or (before.opname == "RESUME" and code.co_name not in OPERATIONS)  # their caller's, rather
        )
    ]
    return frozenset(noticed)


class Interrupt:
    """Counts those moments, and raises at one of them; `where` says at which."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.where = ""
        self._returned_to: FrameType | None = None

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        """For sys.settrace."""
        code = frame.f_code
        if self.where or not code.co_filename.startswith(HERE):
            return None
        frame.f_trace_opcodes = True
        if event == "return":
            self._returned_to = frame.f_back  # no look for signals behind a call of a Python function
        elif event == "opcode" and frame is self._returned_to:
            self._returned_to = None
        elif event == "opcode" and frame.f_lasti in moments(code):
            self.left -= 1
            if not self.left:
                self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
                raise KeyboardInterrupt
        return self.trace


@contextmanager
def interrupted(shell: Shell, at: int) -> Iterator[Interrupt]:
    """KeyboardInterrupt at the `at`-th moment of lockcore in this thread, its hub included."""
    interrupt = Interrupt(at)
    in_hub = gevent.get_hub().loop.run_callback if isinstance(shell, GeventShell) else None
    if in_hub:
        in_hub(sys.settrace, interrupt.trace)
        gevent.sleep(0)
    sys.settrace(interrupt.trace)
    try:
        with suppress(KeyboardInterrupt):
            yield interrupt
    finally:
        sys.settrace(None)
        if in_hub:
            in_hub(sys.settrace, None)
            gevent.sleep(0)


@pytest.fixture
def lock(connect: Connect, servers: Instances, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Connected, used once, and quick to reconnect."""
    monkeypatch.setattr("lockcore.membership.FIRST_BACKOFF_NS", 1_000_000)
    made = connect(servers.urls, max_ttl_ms=TTL_MS, instance_timeout_ms=PATIENCE_MS)
    made.release(made.acquire("warm", TTL_MS))
    return made


@pytest.fixture
def servers(scripted: Scripted) -> Instances:
    return scripted(1)


@only(GeventShell, ThreadShell)
def test_an_acquire_interrupted_at_any_moment_leaves_nothing(shell: Shell, lock: Any, servers: Instances) -> None:
    for moment in count(1):
        lease = None
        with interrupted(shell, moment) as interrupt:
            lease = lock.try_acquire(f"r{moment}", TTL_MS)
        if lease:  # it struck elsewhere
            lock.try_release(lease)
        if not interrupt.where:
            break
        check_sound(shell, lock, servers, interrupt.where)
    assert moment > 10


@only(GeventShell, ThreadShell)
def test_a_release_interrupted_at_any_moment_still_releases(shell: Shell, lock: Any, servers: Instances) -> None:
    for moment in count(1):
        lease = lock.acquire(f"r{moment}", TTL_MS)
        with interrupted(shell, moment) as interrupt:
            lock.try_release(lease)
        if not interrupt.where:
            break
        check_sound(shell, lock, servers, interrupt.where)
    assert moment > 10


def check_sound(shell: Shell, lock: Any, servers: Instances, where: str) -> None:
    """Nothing is held, everybody votes, and a whole cycle works."""
    shell.until(lambda: servers.keys == [], f"nothing to be held after {where}")
    shell.until(lambda: all(status.state == "voting" for status in lock.instances), f"everybody to vote after {where}")
    lease = lock.try_acquire("probe", TTL_MS)
    assert lease.outcome is Outcome.ACQUIRED, where
    assert lease.tally.granted == len(servers), where
    assert lock.try_release(lease) is Outcome.RELEASED, where
    assert not any(status.pending for status in lock.instances), where
