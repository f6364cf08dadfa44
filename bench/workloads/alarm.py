"""The alarms of this module wake greenlets at precise times: *a time on the monotonic clock → a
greenlet that continues at this time*.

A wheel contains this file as compiled machine code (lockcore/compiled.py).

The class `Pacer` gives the arrivals of a schedule to the callers. An alarm belongs to the hub of
the process that created it. So a forked process must create its own alarm. The file
docs/workloads.md explains lateness, crowds and late starts. Source: timerfd_create(2); libev's
prepare, check and idle watchers.
"""

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Final

from gevent import get_hub
from gevent.hub import Hub
from greenlet import getcurrent, greenlet

from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

# `wait_until` returns this after a cancelled wait.
CANCELLED: Final = -1
LATE_NS: Final = NS_PER_MS
GRAIN_NS: Final = 50_000
# If fewer greenlets than this wait, each greenlet wakes at its own time, because a common time
# would gain nothing.
_CROWD: Final = 8

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_READ = 1
_FIRST = 2
_LAST = -2
_MARGIN_NS = 200_000
_LEAST_NS = 40_000
_MOST_NS = 600_000
# A step up is 200 times as large as a step down. So the margin settles where 99.5 % of the wake-ups
# are in time.
_EARLIER_NS = 30_000
_LATER_NS = 150

_libc = ctypes.CDLL(None, use_errno=True)
_settime = _libc.timerfd_settime
_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Alarm:
    """One timerfd for all waiting greenlets of a process.

    If many greenlets wait, all greenlets that are due within the same `grain_ns` wake together.
    These greenlets wake at the end of the grain, so no greenlet wakes before its time. Raises
    OSError if the kernel has no timer left.
    """

    def __init__(self, grain_ns: int = GRAIN_NS) -> None:
        self._file: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._file < 0:
            raise OSError(
                ctypes.get_errno(), "timerfd_create failed: " + os.strerror(ctypes.get_errno())
            )
        # struct itimerspec: interval (unused) and value
        self._spec: ctypes.Array[ctypes.c_long] = (ctypes.c_long * 4)()
        self._spec_at = ctypes.addressof(self._spec)
        self._hub: Hub = get_hub()
        # Compiled code looks up a name of a module each time the name is used. These three
        # functions are called very often, so they are stored as attributes, which need no look-up.
        self._current: Callable[[], greenlet] = getcurrent
        self._switch: Callable[..., object] = greenlet.switch
        self._now: Callable[[], int] = monotonic_ns
        self._grain_ns = grain_ns
        # A heap with the times at which greenlets must wake.
        self._times: list[int] = []
        self._crowds: dict[int, deque[greenlet]] = {}
        self._waiting: dict[greenlet, int] = {}
        self._armed_ns = 0
        self._watcher: Any = self._hub.loop.io(self._file, _READ)
        self._watcher.priority = _FIRST
        self._watcher.start(self._fired)

    @property
    def waiting(self) -> int:
        """The number of greenlets that wait for this alarm."""
        return len(self._waiting)

    def wait_until(self, due_ns: int) -> int:
        """Park the calling greenlet until `due_ns`.

        Returns how late the timer was (ns), or CANCELLED if the wait was cancelled.
        """
        waiter = self._current()
        self._add(waiter, due_ns)
        try:
            cancelled = self._switch(self._hub)
        except BaseException:
            # The greenlet was killed.
            self._waiting.pop(waiter, None)
            raise
        return CANCELLED if cancelled else self.lateness_ns(due_ns)

    # If few greenlets wait, each greenlet has its own time. If `_CROWD` or more greenlets wait,
    # each new time is rounded up to the grain. Then many greenlets share one heap entry and one
    # firing of the timer, and their commands leave in one batch. Times are rounded up and never to
    # the nearest grain, because no greenlet may wake before its time. Rounding up costs 25 µs on
    # average (docs/lab/workloads.md).
    def _add(self, waiter: object, due_ns: int) -> None:
        at_ns = due_ns
        if len(self._waiting) >= _CROWD:
            at_ns = -(-due_ns // self._grain_ns) * self._grain_ns
        self._waiting[waiter] = at_ns
        crowd = self._crowds.get(at_ns)
        if crowd is None:
            self._crowds[at_ns] = deque([waiter])
            heappush(self._times, at_ns)
            if self._times[0] == at_ns:
                self._first_is(at_ns)
        else:
            crowd.append(waiter)

    def cancel(self, waiter: greenlet) -> None:
        """If the greenlet `waiter` waits for this alarm, wake `waiter` in the next pass of the
        hub."""
        if (at_ns := self._waiting.get(waiter)) is not None:
            self._hub.loop.run_callback(self._cancel, waiter, at_ns)

    def close(self) -> None:
        """Close the timer and cancel all waits."""
        for waiter in list(self._waiting):
            self.cancel(waiter)
        self._watcher.stop()
        self._watcher.close()
        os.close(self._file)

    def _first_is(self, due_ns: int) -> None:
        self._arm(due_ns)

    def _arm(self, at_ns: int) -> None:
        self._armed_ns = at_ns
        self._spec[2], self._spec[3] = divmod(max(at_ns, 1), NS_PER_S)
        _settime(self._file, _ABSOLUTE, self._spec_at, None)

    def _fired(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            # The timer was armed again after it had fired.
            return
        self._wake_due()

    # A greenlet that wakes may start a new wait before this method continues. If the new wait is
    # for the same time, the greenlet joins the crowd that is being emptied. If the new wait is for
    # an earlier time, the earlier time becomes the first in the heap. So a time is removed only if
    # it is still the first. Otherwise the earlier time would be lost, and its callers would sleep
    # for ever. The comparison with `waiting` skips callers whose wait was cancelled, and callers
    # that now wait for another time.
    def _wake_due(self) -> None:
        """Run every greenlet that is due, and then set the timer for the next time."""
        times = self._times
        waiting = self._waiting
        while times:
            at_ns = times[0]
            if at_ns > self._now():
                self._first_is(at_ns)
                return
            crowd = self._crowds[at_ns]
            while crowd:
                waiter = crowd.popleft()
                # If the times differ, the waiter was cancelled or killed.
                if waiting.get(waiter) == at_ns:
                    del waiting[waiter]
                    self._switch(waiter)
            # If the first time differs, an earlier time was added during this loop.
            if times[0] == at_ns:
                heappop(times)
                del self._crowds[at_ns]

    def _cancel(self, waiter: greenlet, at_ns: int) -> None:
        # If the times are equal, the waiter has neither been woken nor killed since the cancel.
        if self._waiting.get(waiter) == at_ns:
            del self._waiting[waiter]
            waiter.switch(True)

    def lateness_ns(self, due_ns: int) -> int:
        """Return the lateness (ns) of a timer that was due at `due_ns` and has just fired."""
        return self._now() - due_ns


class Rests(Alarm):
    """An alarm that ends the rests of callers.

    `late_ns`: the lateness (ns) of the timer at the end of each rest. `kept_ns`: the sum of the
    lateness (ns) of all rests so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.late_ns: list[int] = []
        self.kept_ns = 0

    def rest(self, due_ns: int) -> None:
        """Park the calling greenlet until `due_ns`, or until its wait is cancelled."""
        lateness_ns = self.wait_until(due_ns)
        if lateness_ns != CANCELLED:
            self.late_ns.append(lateness_ns)
            self.kept_ns += lateness_ns


class PreciseAlarm(Alarm):
    """An alarm that fires early and then checks the clock again and again until the due time.

    This alarm reports only the lateness that the timer causes. If the process was busy at the due
    time, the reported lateness is 0.
    """

    def __init__(self) -> None:
        super().__init__(grain_ns=1)
        self.margin_ns = _MARGIN_NS
        # The times at which the hub last began to wait and last stopped waiting.
        self._went_ns = self._came_ns = 0
        loop = self._hub.loop
        self._idle = loop.idle()
        self._yielding = False
        self._going = loop.prepare()
        self._coming = loop.check()
        self._going.priority = _LAST
        self._coming.priority = _FIRST
        self._going.start(self._goes)
        self._coming.start(self._comes)

    def close(self) -> None:
        """Close the timer and the watchers."""
        for watcher in (self._idle, self._going, self._coming):
            watcher.stop()
            watcher.close()
        super().close()

    def _goes(self) -> None:
        self._went_ns = monotonic_ns()

    def _comes(self) -> None:
        self._came_ns = monotonic_ns()

    # A timerfd wakes 60 µs late on an idle machine (docs/workloads.md). So the timer is set to fire
    # `margin_ns` early. During the margin, the hub makes passes, and an idle watcher checks in each
    # pass whether a greenlet is due. The watcher keeps a core busy, so it runs only within the
    # margin.
    def _first_is(self, due_ns: int) -> None:
        if due_ns - monotonic_ns() > self.margin_ns:
            if self._yielding:
                self._yielding = False
                self._idle.stop()
            self._arm(due_ns - self.margin_ns)
        elif not self._yielding:
            self._yielding = True
            self._idle.start(self._wake_due)

    # Each wake-up of the timer adjusts the margin. If the wake-up was later than the margin, the
    # margin grows by 30 µs. Otherwise it shrinks by 0.15 µs. So the margin settles where 1 of 200
    # wake-ups is late. A wake-up counts only if the hub was already waiting for it. If callers were
    # running at that time, the load and not the kernel caused the lateness. The margin must not
    # grow with the load.
    def _fired(self) -> None:
        if self._went_ns <= self._armed_ns:
            seen_ns = self._came_ns - self._armed_ns
            step_ns = _EARLIER_NS if seen_ns > self.margin_ns else -_LATER_NS
            self.margin_ns = min(max(self.margin_ns + step_ns, _LEAST_NS), _MOST_NS)
        super()._fired()

    def _wake_due(self) -> None:
        super()._wake_due()
        if self._yielding and not self._times:
            self._yielding = False
            self._idle.stop()

    def lateness_ns(self, due_ns: int) -> int:
        """Return the lateness (ns) of a timer that was due at `due_ns` and has just fired. The
        result is 0 if the process was busy at `due_ns`."""
        return monotonic_ns() - due_ns if self._went_ns <= due_ns <= self._came_ns else 0


class Pacer:
    """The schedule of the arrivals of one worker, which starts at `origin_ns` (monotonic). The
    worker's callers take the arrivals one by one.

    `wait_until`: a function that parks the caller and returns the lateness of the timer (ns). If
    the wait was cancelled, `wait_until` returns a negative number. `measure_ns`: the start of the
    measurement (ns after the origin). `end_ns`: the end of the schedule (ns after the origin). If
    `end_ns` is None, the schedule never ends.

    `late`: the number of late starts during the measurement. `queued`: the number of starts that
    had to wait for a free caller. `lateness_ns`: the lateness of the timer (ns) for starts during
    the measurement. Starts that did not wait for the timer have no entry.
    """

    def __init__(
        self,
        wait_until: Callable[[int], int],
        schedule_ns: Iterator[int],
        origin_ns: int,
        measure_ns: int = 0,
        end_ns: int | None = None,
    ) -> None:
        self._wait_until = wait_until
        self._schedule_ns = schedule_ns
        self._origin_ns = origin_ns
        self._now: Callable[[], int] = monotonic_ns
        self._measure_ns = origin_ns + measure_ns
        self._end_ns = None if end_ns is None else origin_ns + end_ns
        self._over = False
        self.queued = self.late = 0
        self.lateness_ns: list[int] = []

    def take(self) -> int:
        """Wait for the next arrival and return its due time (ns).

        Returns 0 if the schedule has ended or the wait was cancelled.
        """
        due_ns = self._next_ns()
        if not due_ns:
            return 0
        if due_ns <= self._now():
            # The arrival had to queue, because no caller was free in time.
            self.queued += 1
        else:
            lateness_ns = self._wait_until(due_ns)
            if lateness_ns < 0:
                return 0
            if due_ns >= self._measure_ns:
                self.late += lateness_ns > LATE_NS
                self.lateness_ns.append(lateness_ns)
        return due_ns

    def _next_ns(self) -> int:
        """Return the due time (ns) of the next arrival, or 0 if the schedule has ended."""
        if self._over:
            return 0
        due_ns = self._origin_ns + next(self._schedule_ns)
        if self._end_ns is not None and due_ns >= self._end_ns:
            self._over = True
            return 0
        return due_ns
