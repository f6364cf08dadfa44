"""Connects a driver to an asyncio event loop.

This file implements the hooks of `LoopDriver` with the sockets and timers of the loop.

Rules: the loop is asyncio's own loop or uvloop's. In the shell for tasks, callers wait in this loop
(tasks/driver.py). In the shell for threads, the loop runs in a separate thread
(threads/io_thread.py).
"""

import asyncio
import os
from collections.abc import Callable, Sequence

from lockcore.clock import NS_PER_MS
from lockcore.settings import Settings
from lockcore.shells.common.connections import Drain
from lockcore.shells.common.driver import LoopDriver
from lockcore.shells.common.fast import Wire
from lockcore.shells.common.target import InstanceTarget


class LoopedDriver(LoopDriver):
    """The base of drivers that use an event loop. `loop` watches the sockets and runs the
    timers."""

    def __init__(
        self,
        targets: Sequence[InstanceTarget],
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(targets, settings)
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def end_close(self, closing: Drain) -> None:
        """See LoopDriver.end_close."""
        super().end_close(closing)
        self._stop_timer()

    def _soon(self, callback: Callable[[], None]) -> None:
        if self._loop.is_closed():
            # Tasks are being destroyed. Their releases are still sent.
            callback()
        else:
            self._loop.call_soon(callback)

    def _wake_later(self) -> None:
        # After the loop is closed, tasks are being destroyed, and no caller is left to wake.
        if not self._loop.is_closed():
            self._loop.call_soon(self.wake)

    def _tick_later(self, delay_ns: int) -> None:
        timer = self._loop.call_later(whole_ms_s(delay_ns), self.tick)
        # The old timer is stopped last, so an interrupt leaves two timers rather than none.
        self._stop_timer()
        self._timer = timer

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stay_awake(self) -> None:
        if not self._loop.is_closed():
            # While the loop has a callback to run, it polls and does not sleep.
            self._loop.call_soon(self._on_pass)

    def _on_pass(self) -> None:
        if self.look_again():
            self._stay_awake()

    def _watch(self, index: int, wire: Wire) -> None:
        readable = self._readable_at_last if is_uvloop(self._loop) else self.readable
        self._loop.add_reader(wire.fileno, readable, index)

    def _readable_at_last(self, index: int) -> None:
        """Read a socket of uvloop, and look for a reset afterwards.

        uvloop reports a reset only once, together with the bytes before the reset. After uvloop has
        reported the reset, it does not watch the socket any more.
        """
        wire = self.wires[index]
        self.readable(index)
        if wire is not None and wire is self.wires[index] and (code := wire.error()):
            self.broken(index, OSError(code, os.strerror(code)))

    def _watch_writes(self, index: int, is_needed: bool) -> None:
        wire = self.wires[index]
        if wire is None:
            return
        if is_needed:
            self._loop.add_writer(wire.fileno, self.writable, index)
        else:
            self._loop.remove_writer(wire.fileno)

    def _unwatch(self, index: int) -> None:
        wire = self.wires[index]
        if wire is not None and not self._loop.is_closed():
            self._loop.remove_reader(wire.fileno)
            self._loop.remove_writer(wire.fileno)


def is_uvloop(loop: asyncio.AbstractEventLoop) -> bool:
    """True if `loop` is a loop of uvloop. uvloop has no public attribute for this test, so the test
    compares the name of the module."""
    return type(loop).__module__.startswith("uvloop")


def whole_ms_s(delay_ns: int) -> float:
    """Convert `delay_ns` to s. The result is rounded up to a whole ms.

    The timers of uvloop have a resolution of 1 ms. With a delay that is rounded down, the timer
    would fire early, and the code would have to wait again.
    """
    return max(0, -(-delay_ns // NS_PER_MS)) / 1000
