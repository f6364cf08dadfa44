"""Where the callers of one process wait: *a scenario → holds, rests, arrivals, turns; when each
caller's next operation starts*.

Rules: made in the process that uses it. Nobody waits for anything else between two operations, so a
user that is to stop is woken here.
"""

from collections.abc import Callable

from gevent.event import Event
from greenlet import greenlet

from bench.scenario import Scenario
from bench.workloads.alarm import Alarm, Pacer, PreciseAlarm, Rests
from bench.workloads.demand import offsets_ns
from bench.workloads.plan import Ring
from bench.workloads.turns import RingPlace


class Waits:
    """All waits of one process's callers. `started`: users of all workers run."""

    def __init__(self, scenario: Scenario, ring: Ring | None) -> None:
        self._scenario = scenario
        self.naps = Alarm()
        self.rests = Rests()
        self.turns = RingPlace(ring, scenario.users) if ring else None
        self.started = Event()
        self._arrivals = PreciseAlarm() if scenario.rate_per_s else None
        self.pacer: Pacer | None = None
        # callers were kept from their next operation by turns of the hub
        self._kept_ns = 0

    @property
    def take(self) -> Callable[[], int] | None:
        """What gives a caller the start of its next operation (ns), 0 = there is none; None: it
        starts at once."""
        if self._arrivals is not None:
            return self._next_arrival
        return self.turns.take if self.turns is not None else None

    def _next_arrival(self) -> int:
        """The next arrival of the schedule, which is there once all users run."""
        if self.pacer is None:
            self.started.wait()
        return self.pacer.take() if self.pacer else 0

    def begin(
        self, origin_ns: int, window_ns: tuple[int, int | None], part: int, parts: int
    ) -> None:
        """All users run: the schedule starts at `origin_ns` (monotonic), of which this process has
        `part` of `parts`."""
        scenario = self._scenario
        if self._arrivals is not None and scenario.rate_per_s:
            schedule = offsets_ns(
                scenario.rate_per_s, scenario.arrivals, scenario.seed, part, parts
            )
            self.pacer = Pacer(self._arrivals.wait_until, schedule, origin_ns, *window_ns)
        self.started.set()

    def wake(self, user: greenlet) -> None:
        """End the rest of a user that is to stop: a wait for others or for an arrival, a think
        time. A hold goes on."""
        self.started.set()
        self.rests.cancel(user)
        if self.turns is not None:
            self.turns.free()
        if self._arrivals is not None:
            self._arrivals.cancel(user)

    def keep(self, kept_ns: int) -> None:
        """A caller was kept from its next operation for so long."""
        self._kept_ns += kept_ns

    @property
    def kept_ns(self) -> int:
        """How long callers were kept from their next operations, in all."""
        turns_ns = self.turns.kept_ns if self.turns else 0
        return self._kept_ns + self.rests.kept_ns + turns_ns

    @property
    def late_ns(self) -> list[int]:
        """How late the timer ended waits since the last time somebody emptied this list."""
        return self.rests.late_ns if self.pacer is None else self.pacer.lateness_ns

    @property
    def idle(self) -> int:
        """How many callers think, or wait for an arrival."""
        return self.rests.waiting + (self._arrivals.waiting if self._arrivals else 0)

    def close(self) -> None:
        """Give the timers back."""
        for alarm in (self.naps, self.rests, self._arrivals):
            if alarm is not None:
                alarm.close()
