"""Lets greenlets wait.

A watcher of the hub wakes the waiting greenlet directly from the I/O callback.

Rules: there is one engine per hub (thread). If a greenlet is killed while it waits, it abandons its
round. If few commands are in flight, a batch leaves at once. If many commands are in flight, a
batch leaves once per pass of the loop. The module fast.py acquires and releases locks for callers.
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Protocol, Self, TypeVar

import gevent
from gevent import monkey
from gevent.event import AsyncResult
from gevent.hub import get_hub
from greenlet import getcurrent
from greenlet import greenlet as RawGreenlet  # noqa: N812 - a class, and not gevent's

from lockcore.clock import FAR_FUTURE_NS, NS_PER_S, monotonic_ns
from lockcore.engine.turns import Request
from lockcore.errors import CannotWaitError, InstanceClosedError
from lockcore.facts.model import Outcome
from lockcore.rounds.awaited import hand_out
from lockcore.settings import Settings
from lockcore.shells.common.connections import LOOK_S
from lockcore.shells.common.driver import LoopDriver
from lockcore.shells.common.fast import Wire
from lockcore.shells.common.handshake import Shaken, shaken
from lockcore.shells.common.target import InstanceTarget
from lockcore.shells.greenlets.fast import GreenletShortcut

T = TypeVar("T")
READ = 1
WRITE = 2

# If an interrupt prevents a tick, the timer fires again after this time (s).
AGAIN_S = 0.1


class Watcher(Protocol):
    """A watcher of gevent's loop, for a timer or for a socket."""

    active: bool

    def start(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call `callback` each time that the watcher fires."""

    def stop(self) -> None:
        """Stop the calls. The watcher can be started again."""

    def close(self) -> None:
        """Free the watcher. It must be stopped."""


class GreenletDriver(LoopDriver):
    """The driver for gevent. A driver belongs to the hub of the thread that created it."""

    def __init__(self, targets: Sequence[InstanceTarget], settings: Settings) -> None:
        self._hub = get_hub()
        self._readers: list[Watcher | None] = [None] * len(targets)
        self._writers: list[Watcher | None] = [None] * len(targets)
        self._timer = self._hub.loop.timer(0)
        self._idle = self._hub.loop.idle(ref=False)
        super().__init__(targets, settings)
        self._shortcut = GreenletShortcut(self, self._hub, self.check_caller)
        self.try_acquire = self._shortcut.try_acquire
        self.try_release = self._shortcut.try_release
        self.drive = self._shortcut.drive

    @classmethod
    def connect(cls, targets: Sequence[InstanceTarget], settings: Settings) -> Self:
        """Connect to all instances at the same time. Raises InstanceError."""
        driver = cls(targets, settings)
        jobs = [driver._spawn(shaken, target) for target in driver.targets]
        driver.admit([job.get() for job in jobs])
        return driver

    def make_foreign(self) -> None:
        """See Connections.make_foreign. In the child the hub keeps running.

        Only the parent will get the replies, so the waiting callers in the child get an error.
        """
        super().make_foreign()
        self._timer.stop()
        self._idle.stop()
        for index in range(len(self._readers)):
            self._unwatch(index)
            self.engine.members.detach(index, "forked", monotonic_ns())
        self.engine.turns.end()
        for round_ in self.engine.ready:
            # The parent may win this round, so the child must not win the same round.
            round_.outcome = Outcome.UNREACHABLE
        self._wake_later()

    # -- callers -----------------------------------------------------------------------------------

    def check_home(self) -> None:
        """See LoopDriver.check_home."""
        self.check_usable()
        if get_hub() is not self._hub:
            raise CannotWaitError("in a thread that did not connect this Redlock")

    def check_caller(self) -> None:
        """Make the checks of `check_home`. Raises CannotWaitError if no greenlet can wait here."""
        self.check_home()
        if getcurrent() is self._hub:
            raise CannotWaitError(
                "in gevent's hub (spawn a greenlet in the callback or the signal handler, and "
                "wait there)"
            )
        if self._shortcut.inside:
            raise CannotWaitError(
                "in the middle of another operation (a signal handler or a __del__)"
            )

    def background(
        self, steps: Generator[Request, int, T], done: Callable[[T], None]
    ) -> Callable[[], object]:
        """Run `steps` in a separate greenlet, then call `done` with the value of `steps`.

        Returns a function that stops the steps.
        """
        greenlet = gevent.spawn(lambda: done(self.drive(steps)))
        return lambda: greenlet.kill(block=False)

    def beside(self, job: Callable[[], object]) -> None:
        """See LoopDriver.beside."""
        gevent.spawn(job)

    def close(self, drain_s: float) -> None:
        """Send queued commands, wait up to `drain_s` for open operations, and close."""
        if not self.closed:
            self.check_caller()
        closing = self.begin_close(drain_s)
        try:
            while not self.closed and not closing.is_over(monotonic_ns()):
                self.flush()
                gevent.sleep(LOOK_S)
        finally:
            self.end_close(closing)
            self._timer.stop()
            self._idle.stop()
            self._wake_later()

    def close_soon(self) -> None:
        """See LoopDriver.close_soon."""
        loop = getattr(self._hub, "loop", None)
        # If there is no loop, the hub was destroyed with its thread.
        if loop is not None:
            loop.run_callback_threadsafe(self.close_now)

    def close_now(self) -> None:
        """See LoopDriver.close_now."""
        super().close_now()
        self._timer.stop()
        self._idle.stop()

    # -- hooks of LoopDriver -----------------------------------------------------------------------

    def _hand_out(self) -> None:
        hand_out(self.engine, RawGreenlet.switch)

    def _soon(self, callback: Callable[[], None]) -> None:
        self._hub.loop.run_callback(callback)

    def interrupted(self) -> None:
        """See LoopDriver.interrupted."""
        super().interrupted()
        self._shortcut.inside = False

    def tick(self) -> None:
        """See LoopDriver.tick."""
        for index, reader in enumerate(self._readers):
            # gevent stops a watcher after an interrupt in the watcher's callback.
            if reader is not None and not reader.active:
                reader.start(partial(self.readable, index))
        super().tick()

    def _tick_later(self, delay_ns: int) -> None:
        timer = self._hub.loop.timer(delay_ns / NS_PER_S, AGAIN_S)
        timer.start(self._fired, timer)
        # The old timer is stopped last, so an interrupt leaves two timers rather than none.
        self._timer.stop()
        self._timer = timer

    def _fired(self, timer: Watcher) -> None:
        self.tick()
        if timer is not self._timer or self._tick_at == FAR_FUTURE_NS or self.closed:
            timer.stop()

    def _stay_awake(self) -> None:
        if not self._idle.active:
            # With an idle watcher the hub polls and does not sleep.
            self._idle.start(self._on_idle)

    def _on_idle(self) -> None:
        if not self.look_again():
            self._idle.stop()

    def _watch(self, index: int, wire: Wire) -> None:
        reader: Watcher = self._hub.loop.io(wire.fileno, READ)
        self._readers[index] = reader
        self._writers[index] = self._hub.loop.io(wire.fileno, WRITE)
        reader.start(partial(self.readable, index))

    def _watch_writes(self, index: int, is_needed: bool) -> None:
        writer = self._writers[index]
        assert writer is not None
        if is_needed:
            writer.start(partial(self.writable, index))
        else:
            writer.stop()

    def _unwatch(self, index: int) -> None:
        for watcher in (self._readers[index], self._writers[index]):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        self._readers[index] = self._writers[index] = None

    def _spawn(
        self, function: Callable[[InstanceTarget], Shaken], target: InstanceTarget
    ) -> gevent.Greenlet | AsyncResult:
        spawn = gevent.spawn if monkey.is_module_patched("socket") else self._hub.threadpool.spawn
        return spawn(function, target)

    def _connect_later(self, index: int) -> None:
        def run() -> None:
            result: Shaken = InstanceClosedError(
                self.targets[index].address, "interrupted while it was connected"
            )
            try:
                result = self._spawn(shaken, self.targets[index]).get()
            finally:
                self.connected(index, result)

        gevent.spawn(run)
