"""This module makes the callers of one process wait: *a scenario → waits for holds, rests, arrivals
and time slices; a caller → the start of its next operation*.

Each process creates its own `Waits`. Between two operations, callers wait only in methods of this
object. So if a user must stop, this object wakes the user.
"""

from collections.abc import Callable

import gevent
from gevent import Greenlet
from gevent.event import Event
from greenlet import greenlet

from bench.scenario import Scenario
from bench.workloads.alarm import Alarm, Pacer, PreciseAlarm, Rests
from bench.workloads.demand import offsets_ns
from bench.workloads.plan import Ring
from bench.workloads.turns import RingPlace
from lockcore.clock import NS_PER_S, monotonic_ns


class Waits:
    """All waits of the callers of one process. The event `started` is set when the users of all
    workers run."""

    def __init__(self, scenario: Scenario, ring: Ring | None) -> None:
        self._scenario = scenario
        self.naps = Alarm()
        self.rests = Rests()
        self.turns = RingPlace(ring, scenario.users) if ring else None
        self.started = Event()
        self._arrivals = PreciseAlarm() if scenario.rate_per_s else None
        self.pacer: Pacer | None = None
        # How long (ns) callers were delayed between operations. They were delayed by passes of the
        # hub and by rests in an outage.
        self._kept_ns = 0
        # The total of all delays when measuring began, and the total when measuring ended.
        self._kept_before_ns = 0
        self._kept_until_ns: int | None = None
        self._measuring: Greenlet | None = None

    @property
    def take(self) -> Callable[[], int] | None:
        """A function that returns the start time (ns) of a caller's next operation.

        The function returns 0 if the caller must make no further operation. The value None means
        that each operation starts at once.
        """
        if self._arrivals is not None:
            return self._next_arrival
        return self.turns.take if self.turns is not None else None

    def _next_arrival(self) -> int:
        """Wait for the next arrival of the schedule and return its time (ns). If the schedule has
        not started yet, this method first waits until all users run."""
        if self.pacer is None:
            self.started.wait()
        return self.pacer.take() if self.pacer else 0

    def begin(
        self, origin_ns: int, window_ns: tuple[int, int | None], part: int, parts: int
    ) -> None:
        """Start the schedule at `origin_ns` (monotonic). Call this when all users run.

        The schedule is divided among `parts` processes, and `part` is the number of this process.
        """
        scenario = self._scenario
        if self._arrivals is not None and scenario.rate_per_s:
            schedule = offsets_ns(
                scenario.rate_per_s, scenario.arrivals, scenario.seed, part, parts
            )
            self.pacer = Pacer(self._arrivals.wait_until, schedule, origin_ns, *window_ns)
        self.started.set()
        self._measuring = gevent.spawn(self._measure, origin_ns, window_ns)

    # Little's law is applied only to the measured window. The delays of callers may be far longer
    # in one part of a run than in another, because each rest in an outage is a delay. So the total
    # of the delays is read at both edges of the window. An earlier version used the average delay
    # over the whole run. With an outage of a few seconds it was 10 % wrong, and the run became
    # INVALID.
    def _measure(self, origin_ns: int, window_ns: tuple[int, int | None]) -> None:
        start_ns, end_ns = window_ns
        self._wait_until(origin_ns + start_ns)
        self._kept_before_ns = self._kept_in_all_ns
        if end_ns is not None:
            self._wait_until(origin_ns + end_ns)
            self._kept_until_ns = self._kept_in_all_ns

    def _wait_until(self, due_ns: int) -> None:
        """Sleep until the own time of this process has reached `due_ns`."""
        turns = self.turns
        while (left_ns := due_ns - (turns.own_ns() if turns else monotonic_ns())) > 0:
            gevent.sleep(left_ns / NS_PER_S)

    def wake(self, user: greenlet) -> None:
        """End the wait of a user that must stop.

        This method ends a think time. This method also ends a wait for other users, for an arrival
        or for a time slice. If the user holds a lock, this method does not shorten the hold time.
        """
        self.started.set()
        self.rests.cancel(user)
        if self.turns is not None:
            self.turns.free()
        if self._arrivals is not None:
            self._arrivals.cancel(user)

    def keep(self, kept_ns: int) -> None:
        """Add the time (ns) for which a caller was delayed before its next operation."""
        self._kept_ns += kept_ns

    @property
    def _kept_in_all_ns(self) -> int:
        turns_ns = self.turns.kept_ns if self.turns else 0
        return self._kept_ns + self.rests.kept_ns + turns_ns

    @property
    def kept_ns(self) -> int:
        """The total time (ns) for which callers were delayed between two operations. Only delays
        during the measurement count."""
        until_ns = self._kept_in_all_ns if self._kept_until_ns is None else self._kept_until_ns
        return until_ns - self._kept_before_ns

    @property
    def late_ns(self) -> list[int]:
        """The lateness (ns) of the timer for each wait since this list was last emptied."""
        return self.rests.late_ns if self.pacer is None else self.pacer.lateness_ns

    @property
    def idle(self) -> int:
        """The number of callers that are thinking or waiting for an arrival."""
        return self.rests.waiting + (self._arrivals.waiting if self._arrivals else 0)

    def close(self) -> None:
        """Close the timers."""
        if self._measuring is not None:
            self._measuring.kill()
        for alarm in (self.naps, self.rests, self._arrivals):
            if alarm is not None:
                alarm.close()
