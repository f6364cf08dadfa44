"""Precise waking: in order, never early, nothing left behind by whoever is cancelled or killed."""

import gc
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from bench.workloads.alarm import (
    _LEAST_NS,
    _MARGIN_NS,
    _MOST_NS,
    CANCELLED,
    GRAIN_NS,
    Alarm,
    PreciseAlarm,
    Rests,
)
from lockcore.clock import monotonic_ns

MS = 1_000_000


@pytest.fixture(params=[Alarm, PreciseAlarm])
def alarm(request: pytest.FixtureRequest) -> Iterator[Alarm]:
    made = request.param()
    yield made
    made.close()


def test_nobody_wakes_before_the_time(alarm: Alarm) -> None:
    for wait_ns in (0, 20_000, 300_000, 3 * MS):
        due_ns = monotonic_ns() + wait_ns
        lateness_ns = alarm.wait_until(due_ns)
        assert monotonic_ns() >= due_ns
        assert lateness_ns >= 0


def test_waiters_wake_in_the_order_of_their_times(alarm: Alarm) -> None:
    woken: list[int] = []
    # all wait before the first is due
    start_ns = monotonic_ns() + 100 * MS

    def wait(place: int) -> None:
        alarm.wait_until(start_ns + place * 300_000)
        woken.append(place)

    gevent.joinall([gevent.spawn(wait, place) for place in (4, 0, 3, 1, 2)])
    assert woken == [0, 1, 2, 3, 4]


def test_an_earlier_time_that_comes_later_is_kept(alarm: Alarm) -> None:
    late = gevent.spawn(alarm.wait_until, monotonic_ns() + 60_000 * MS)
    gevent.sleep(0)
    due_ns = monotonic_ns() + 2 * MS
    alarm.wait_until(due_ns)
    assert monotonic_ns() < due_ns + 5000 * MS
    assert not late.ready()
    late.kill()


def test_the_cancelled_one_returns_at_once_and_says_so(alarm: Alarm) -> None:
    far = gevent.spawn(alarm.wait_until, monotonic_ns() + 3600 * 1000 * MS)
    near = gevent.spawn(alarm.wait_until, monotonic_ns() + 5 * MS)
    gevent.sleep(0)
    alarm.cancel(far)
    assert far.get(timeout=30) == CANCELLED
    assert near.get(timeout=30) != CANCELLED


def test_a_killed_waiter_is_not_woken_in_its_next_wait(alarm: Alarm) -> None:
    """The alarm must not switch to a greenlet that waits for something else by then."""
    other: list[float] = []

    def wait() -> None:
        try:
            alarm.wait_until(monotonic_ns() + 5 * MS)
        except gevent.GreenletExit:
            began_ns = monotonic_ns()
            gevent.sleep(0.03)
            other.append((monotonic_ns() - began_ns) / MS)

    waiter = gevent.spawn(wait)
    gevent.sleep(0)
    waiter.kill()
    assert len(other) == 1
    assert other[0] >= 29


def test_cancelled_and_killed_in_the_same_turn_wakes_once(alarm: Alarm) -> None:
    ends: list[str] = []

    def wait() -> None:
        try:
            alarm.wait_until(monotonic_ns() + 50 * MS)
            ends.append("woken")
            gevent.sleep(0.02)
            ends.append("slept")
        except gevent.GreenletExit:
            ends.append("killed")
            gevent.sleep(0.01)
            ends.append("cleaned up")

    waiter = gevent.spawn(wait)
    gevent.sleep(0)
    waiter.kill(block=False)
    alarm.cancel(waiter)
    waiter.join(30)
    assert ends == ["killed", "cleaned up"]


def test_a_closed_alarm_gives_its_descriptor_back() -> None:
    # what other tests have left open is not closed in the middle of this one
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for kind in (Alarm, PreciseAlarm):
        made = kind()
        made.wait_until(monotonic_ns() + 100_000)
        made.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_closing_cancels_whoever_still_waits() -> None:
    made = Alarm()
    waiter = gevent.spawn(made.wait_until, monotonic_ns() + 3600 * 1000 * MS)
    gevent.sleep(0)
    made.close()
    assert waiter.get(timeout=30) == CANCELLED


def test_many_who_are_due_within_a_grain_wake_together_and_not_before_their_time() -> None:
    made = Alarm()
    woken = list[tuple[int, int]]()
    start_ns = monotonic_ns() + 100 * MS
    start_ns -= start_ns % GRAIN_NS

    def wait(due_ns: int) -> None:
        made.wait_until(due_ns)
        woken.append((due_ns, monotonic_ns()))

    times = [start_ns + number * GRAIN_NS // 10 + 1 for number in range(20)]
    # so that there are many
    waiters = [gevent.spawn(wait, start_ns + GRAIN_NS * number) for number in range(100, 110)]
    gevent.sleep(0)
    waiters += [gevent.spawn(wait, due_ns) for due_ns in times]
    gevent.sleep(0)
    # two grains
    assert len(made._times) == 10 + 2
    gevent.joinall(waiters)
    assert len(woken) == 30
    assert all(at_ns >= due_ns for due_ns, at_ns in woken)
    made.close()


def test_a_late_end_of_a_rest_is_kept_apart_and_counted_as_the_generators_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = iter([70, 50, CANCELLED])
    monkeypatch.setattr(Rests, "wait_until", lambda _self, _due_ns: next(late))
    made = Rests()
    for _ in range(3):
        made.rest(0)
    assert (made.late_ns, made.kept_ns) == ([70, 50], 120)
    made.close()


@pytest.fixture
def precise() -> Iterator[PreciseAlarm]:
    made = PreciseAlarm()
    # its watchers take part from the hub's next turn on
    gevent.sleep(0.001)
    yield made
    made.close()


def test_a_busy_process_is_not_called_a_late_timer(precise: PreciseAlarm) -> None:
    """Whoever is due while callers run starts late, but the timer says 0: that is load."""
    due_ns = monotonic_ns() + 3 * MS
    waiter = gevent.spawn(precise.wait_until, due_ns)
    gevent.sleep(0)
    while monotonic_ns() < due_ns + 5 * MS:
        # a caller that computes
        pass
    assert waiter.get(timeout=30) == 0


def test_a_wait_in_idleness_reports_what_the_timer_added_and_moves_the_margin(
    precise: PreciseAlarm,
) -> None:
    for _ in range(30):
        due_ns = monotonic_ns() + MS
        lateness_ns = precise.wait_until(due_ns)
        assert lateness_ns <= monotonic_ns() - due_ns
    assert _LEAST_NS <= precise.margin_ns <= _MOST_NS
    assert precise.margin_ns != _MARGIN_NS
