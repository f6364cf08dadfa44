"""Handing out the schedule: on time, queued, late, and what was due in the end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import gevent
import pytest

from bench.workloads.alarm import CANCELLED, Alarm
from bench.workloads.pacer import Pacer
from lockcore.clock import monotonic_ns

MS = 1_000_000


class ScriptedAlarm(Alarm):
    """Returns at once with the lateness it was told."""

    def __init__(self, *lateness_ns: int) -> None:
        self._script = list(lateness_ns)
        self.waited: list[int] = []

    def wait_until(self, due_ns: int) -> int:
        self.waited.append(due_ns)
        return self._script.pop(0)


def every(gap_ns: int) -> Iterator[int]:
    return count(0, gap_ns)


def test_an_arrival_that_is_due_is_taken_at_once_and_counts_as_queued() -> None:
    origin_ns = monotonic_ns() - 1000 * MS
    pacer = Pacer(ScriptedAlarm(), every(MS), origin_ns)
    assert [pacer.take(), pacer.take()] == [origin_ns, origin_ns + MS]
    assert (pacer.started, pacer.queued, pacer.late, pacer.lateness_ns) == (2, 2, 0, [])


def test_an_arrival_to_come_is_waited_for() -> None:
    origin_ns = monotonic_ns() + 3600 * 1000 * MS
    alarm = ScriptedAlarm(7, 0, 1 * MS + 1)
    pacer = Pacer(alarm, every(MS), origin_ns)
    assert [pacer.take() for _ in range(3)] == [origin_ns, origin_ns + MS, origin_ns + 2 * MS] == alarm.waited
    assert (pacer.started, pacer.queued) == (3, 0)
    assert pacer.lateness_ns == [7, 0, MS + 1]
    assert pacer.late == 1  # more than a millisecond late, and nothing else


def test_the_warm_up_does_not_judge_the_timer() -> None:
    origin_ns = monotonic_ns() + 3600 * 1000 * MS
    pacer = Pacer(ScriptedAlarm(5 * MS, 5 * MS, 5), every(MS), origin_ns, measure_ns=2 * MS)
    for _ in range(3):
        pacer.take()
    assert (pacer.late, pacer.lateness_ns) == (0, [5])


def test_the_schedule_ends_at_its_end() -> None:
    origin_ns = monotonic_ns() - 1000 * MS
    pacer = Pacer(ScriptedAlarm(), every(MS), origin_ns, end_ns=3 * MS)
    assert [bool(pacer.take()) for _ in range(5)] == [True, True, True, False, False]
    assert pacer.scheduled(monotonic_ns()) == 3


def test_a_cancelled_wait_is_no_start() -> None:
    pacer = Pacer(ScriptedAlarm(CANCELLED), every(MS), monotonic_ns() + 3600 * 1000 * MS)
    assert pacer.take() == 0
    assert pacer.started == 0


def test_what_was_due_and_not_started_is_counted_in_the_end() -> None:
    origin_ns = monotonic_ns() - 1000 * MS
    pacer = Pacer(ScriptedAlarm(), every(MS), origin_ns)
    for _ in range(10):
        pacer.take()
    assert pacer.scheduled(origin_ns + 99 * MS) == 100
    assert pacer.take() == 0


def test_callers_share_one_schedule_and_each_arrival_is_taken_once() -> None:
    alarm = Alarm()
    origin_ns = monotonic_ns() + MS
    pacer = Pacer(alarm, every(MS // 10), origin_ns, end_ns=10 * MS)
    taken: list[int] = []

    def call() -> None:
        while due_ns := pacer.take():
            assert monotonic_ns() >= due_ns
            taken.append(due_ns)
            gevent.sleep(0.0005)

    gevent.joinall([gevent.spawn(call) for _ in range(8)], raise_error=True)
    alarm.close()
    assert sorted(taken) == list(islice(count(origin_ns, MS // 10), 100))


@pytest.mark.parametrize("end_ns", [None, 10 * MS])
def test_a_time_before_the_origin_has_nothing_due(end_ns: int | None) -> None:
    origin_ns = monotonic_ns() + 3600 * 1000 * MS
    assert Pacer(ScriptedAlarm(), every(MS), origin_ns, end_ns=end_ns).scheduled(monotonic_ns()) == 0
