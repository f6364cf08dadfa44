"""Waking greenlets at a precise time: *a time on the monotonic clock → this greenlet runs again then*.

Rules: a timerfd ends within the kernel's wake-up time (p50 about 60 µs here), gevent's own timers on whole
milliseconds. A PreciseAlarm wakes earlier, by the 99.5th percentile of the wake-up times seen, and spends the rest
yielding turns of the hub. Lateness is the timer's fault only if the hub was *waiting* at the due time: else the
process was busy, that is load, and the alarm says 0. One alarm belongs to the hub of the process that made it; make it
after a fork.

Source: timerfd_create(2); libev's prepare, check and idle watchers.
"""

import ctypes
import os
from heapq import heappop, heappush
from typing import Any

from gevent import get_hub
from greenlet import getcurrent, greenlet

from lockcore.clock import NS_PER_S, monotonic_ns

CANCELLED = -1  # what `wait_until` returns when somebody called it off

_CLOCK_MONOTONIC, _ABSOLUTE, _FLAGS = 1, 1, os.O_NONBLOCK | os.O_CLOEXEC
_READ, _FIRST, _LAST = 1, 2, -2
_MARGIN_NS, _LEAST_NS, _MOST_NS = 200_000, 40_000, 600_000
_EARLIER_NS, _LATER_NS = 30_000, 150  # steps of 200 : 1 settle where 99.5 % of the wake-ups are in time

_libc = ctypes.CDLL(None, use_errno=True)
_settime = _libc.timerfd_settime
_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Timespec(ctypes.Structure):
    """struct itimerspec: interval (unused) and value."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


_Entry = tuple[int, int, greenlet]  # due, order of arrival, who waits


class Alarm:
    """One timerfd for all waiting greenlets of a process. Raises OSError when the kernel has no timer left."""

    def __init__(self) -> None:
        self._file = _libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed: " + os.strerror(ctypes.get_errno()))
        self._spec = _Timespec()
        self._spec_at = ctypes.addressof(self._spec)
        self._hub = get_hub()
        self._heap: list[_Entry] = []
        self._waiting: dict[greenlet, _Entry] = {}
        self._count = 0
        self._armed_ns = 0
        self._watcher: Any = self._hub.loop.io(self._file, _READ)
        self._watcher.priority = _FIRST
        self._watcher.start(self._fired)

    @property
    def waiting(self) -> int:
        """How many greenlets are parked here."""
        return len(self._waiting)

    def wait_until(self, due_ns: int) -> int:
        """Park the calling greenlet until `due_ns`; return how late the timer was (ns), or CANCELLED."""
        self._count += 1
        waiter = getcurrent()
        entry = (due_ns, self._count, waiter)
        self._waiting[waiter] = entry
        heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._first_is(due_ns)
        try:
            cancelled = self._hub.switch()
        except BaseException:
            self._waiting.pop(waiter, None)
            raise
        return CANCELLED if cancelled else self._lateness(due_ns)

    def cancel(self, waiter: greenlet) -> None:
        """Wake `waiter` on the next turn of the hub, if it waits here."""
        if (entry := self._waiting.get(waiter)) is not None:
            self._hub.loop.run_callback(self._cancel, entry)

    def close(self) -> None:
        """Give the timer back; whoever still waits is cancelled."""
        for waiter in list(self._waiting):
            self.cancel(waiter)
        self._watcher.stop()
        self._watcher.close()
        os.close(self._file)

    def _first_is(self, due_ns: int) -> None:
        self._arm(due_ns)

    def _arm(self, at_ns: int) -> None:
        self._armed_ns = at_ns
        self._spec.value_s, self._spec.value_ns = divmod(max(at_ns, 1), NS_PER_S)
        _settime(self._file, _ABSOLUTE, self._spec_at, None)

    def _fired(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return  # armed anew since it was ready
        self._wake_due()

    def _wake_due(self) -> None:
        """Run everybody who is due, then arm for the next."""
        heap, waiting = self._heap, self._waiting
        while heap:
            entry = heap[0]
            due_ns, _, waiter = entry
            if waiting.get(waiter) is not entry:
                heappop(heap)  # cancelled or killed
            elif due_ns <= monotonic_ns():
                heappop(heap)
                del waiting[waiter]
                waiter.switch()
            else:
                self._first_is(due_ns)
                return

    def _cancel(self, entry: _Entry) -> None:
        if self._waiting.get(entry[2]) is entry:  # neither woken nor killed since
            del self._waiting[entry[2]]
            entry[2].switch(True)

    def _lateness(self, due_ns: int) -> int:
        return monotonic_ns() - due_ns


class PreciseAlarm(Alarm):
    """An alarm that is awake before the time comes, and tells a late timer from a busy process."""

    def __init__(self) -> None:
        super().__init__()
        self.margin_ns = _MARGIN_NS
        self._went_ns = self._came_ns = 0  # when the hub last went to wait, and came back
        loop = self._hub.loop
        self._idle = loop.idle()
        self._yielding = False
        self._going, self._coming = loop.prepare(), loop.check()
        self._going.priority, self._coming.priority = _LAST, _FIRST
        self._going.start(self._goes)
        self._coming.start(self._comes)

    def close(self) -> None:
        """Give the timer and the watchers back."""
        for watcher in (self._idle, self._going, self._coming):
            watcher.stop()
            watcher.close()
        super().close()

    def _goes(self) -> None:
        self._went_ns = monotonic_ns()

    def _comes(self) -> None:
        self._came_ns = monotonic_ns()

    def _first_is(self, due_ns: int) -> None:
        if due_ns - monotonic_ns() > self.margin_ns:
            if self._yielding:
                self._yielding = False
                self._idle.stop()
            self._arm(due_ns - self.margin_ns)
        elif not self._yielding:
            self._yielding = True
            self._idle.start(self._wake_due)

    def _fired(self) -> None:
        if self._went_ns <= self._armed_ns:
            seen_ns = self._came_ns - self._armed_ns
            step_ns = _EARLIER_NS if seen_ns > self.margin_ns else -_LATER_NS
            self.margin_ns = min(max(self.margin_ns + step_ns, _LEAST_NS), _MOST_NS)
        super()._fired()

    def _wake_due(self) -> None:
        super()._wake_due()
        if self._yielding and not self._heap:
            self._yielding = False
            self._idle.stop()

    def _lateness(self, due_ns: int) -> int:
        return monotonic_ns() - due_ns if self._went_ns <= due_ns <= self._came_ns else 0
