"""A scene for callers whose greenlets stay parked: a lock on scripted instances, and everything
they leave behind."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from greenlet import settrace

from bench.measure.record import OUTCOME_CODES
from bench.workloads.alarm import Alarm, Pacer, PreciseAlarm, Rests
from bench.workloads.lent import kind_of
from bench.workloads.operation import Caller
from lockcore import Outcome, Redlock
from lockcore.clock import monotonic_ns
from tests.bench.workloads.test_operation import Scene as Offered
from tests.doubles.instance import Instances

MS = 1_000_000
GIVEN_BACK = OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
ENDED = {outcome: OUTCOME_CODES[outcome.value] for outcome in Outcome}


def until(reached: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline, f"not within 30 s: {what}"
        gevent.sleep(0.001)


@dataclass
class Scene:
    """A lock on three scripted instances, what callers wait by, and everything they leave
    behind."""

    instances: Instances
    lock: Redlock
    naps: Alarm = field(default_factory=Alarm)
    rests: Rests = field(default_factory=Rests)
    arrivals: PreciseAlarm = field(default_factory=PreciseAlarm)
    user: Any = field(default_factory=lambda: SimpleNamespace(_state="running"))
    left: Offered = field(
        default_factory=lambda: Offered(lambda: pytest.fail("the lock's own methods are called"))
    )
    pacer: Pacer | None = None

    def start(
        self, kind: Callable[..., Callable[..., Caller]] = kind_of, **setup: Any
    ) -> tuple[Any, Any]:
        """A caller, and the greenlet that it runs in."""
        setup = {
            **self.left.setup(),
            "acquire": self.lock.try_acquire,
            "release": self.lock.try_release,
            "nap_until": self.naps.wait_until,
            "rest_until": self.rests.rest,
            "still_open": 3 << 40,
            "take": self.pacer.take if self.pacer else None,
            **setup,
        }
        caller = kind(setup["acquire"], self.naps, self.rests, self.arrivals, self.pacer)(**setup)
        return caller, gevent.spawn(caller.run, self.user, "running")

    def schedule(self, gap_ns: int) -> None:
        starts = (number * gap_ns for number in range(1, 1_000_000))
        self.pacer = Pacer(self.arrivals.wait_until, starts, monotonic_ns())

    def recorded(self, number: int) -> None:
        until(lambda: len(self.left.records) >= number, f"{number} operations")

    def end(self, job: Any) -> None:
        self.user._state = "stopping"
        self.rests.cancel(job)
        self.arrivals.cancel(job)
        job.get(timeout=30)


def whole(records: list[dict[str, int]]) -> None:
    """Each was granted and given back, and its times are in order."""
    for record in records:
        assert record["outcome"] == GIVEN_BACK
        assert (
            record["intended_ns"]
            <= record["start_ns"]
            <= record["attempt_ns"]
            <= record["granted_ns"]
        )
        assert record["granted_ns"] <= record["release_sent_ns"] <= record["release_replied_ns"]
        assert record["release_sent_ns"] < record["valid_until_ns"]
    assert len({record["owner"] for record in records}) == len(records)


def switches_to(job: Any, work: Callable[[], None]) -> int:
    """How often somebody switched to `job` during `work`."""
    seen = [0]

    def trace(_event: str, between: tuple[Any, Any]) -> None:
        seen[0] += between[1] is job

    before = settrace(trace)
    try:
        work()
    finally:
        settrace(before)
    return seen[0]
