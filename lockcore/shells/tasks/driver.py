"""Lets tasks wait.

A reader of the loop steps the waiting task directly from the I/O callback.

Rules: there is one engine per event loop (asyncio's own or uvloop). If a task is cancelled while it
waits, it abandons its round. If few commands are in flight, a batch leaves at once. If many
commands are in flight, a batch leaves once per pass of the loop. The first attempt and the release
do not use the step generator (fast.py).
"""

import asyncio
from asyncio.events import _get_running_loop
from collections.abc import Callable, Generator, Sequence
from typing import Self, TypeVar

from lockcore.clock import monotonic_ns
from lockcore.engine.attempt import give_back
from lockcore.engine.turns import Offer, Request
from lockcore.errors import CannotWaitError, InstanceClosedError
from lockcore.facts.model import Denied, Lease, Outcome
from lockcore.settings import Settings
from lockcore.shells.common.connections import LOOK_S
from lockcore.shells.common.handshake import Shaken, discard, shaken
from lockcore.shells.common.looped import LoopedDriver, whole_ms_s
from lockcore.shells.common.target import InstanceTarget
from lockcore.shells.tasks.fast import TaskShortcut, step_all

T = TypeVar("T")


class AsyncDriver(LoopedDriver):
    """The driver for asyncio. A driver belongs to the event loop in which it was created."""

    def __init__(self, targets: Sequence[InstanceTarget], settings: Settings) -> None:
        super().__init__(targets, settings, asyncio.get_running_loop())
        self._tasks: set[asyncio.Task[None]] = set()
        self._shortcut = TaskShortcut(self, self._loop)

    @classmethod
    async def connect(cls, targets: Sequence[InstanceTarget], settings: Settings) -> Self:
        """Connect to all instances at the same time. Raises InstanceError."""
        driver = cls(targets, settings)
        jobs = [driver._shake(target) for target in driver.targets]
        try:
            await asyncio.wait(jobs)
        except BaseException:
            for job in jobs:
                job.add_done_callback(discard)
            raise
        driver.admit([job.result() for job in jobs])
        return driver

    # -- the three operations ----------------------------------------------------------------------

    async def try_acquire(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Lease | Denied:
        """See AsyncRedlock.try_acquire."""
        short = self._shortcut
        listener = self.engine.listener
        round_ = None
        begun_ns = short.now()
        if listener is not None:
            listener.begun()
        # A coroutine of its own for the first attempt would cost 6,000 instructions.
        try:
            round_ = short.begin(resource, ttl_ms, wait_ms, begun_ns)
            if round_ is None:
                result = await self.drive(short.steps_in_line(resource, ttl_ms, wait_ms))
            else:
                seat = short.ask(round_)
                if seat is not None:
                    await seat
                else:
                    # The round was settled without waiting. A caller that tries again at once must
                    # not starve the loop.
                    await asyncio.sleep(0)
                lease = short.lease_of(round_)
                if lease is not None:
                    result = lease
                else:
                    result = await self.drive(short.steps_after(round_, wait_ms))
            if listener is None:
                return result
        except BaseException:
            if round_ is not None:
                round_.abandon()
            if listener is not None:
                listener.ended(resource, None, begun_ns)
            raise
        # As in `GreenletShortcut.try_acquire`, this `try` must not move to another function.
        try:
            listener.ended(resource, result, begun_ns)
        except BaseException:
            # An interrupt came while the observer ran.
            give_back(result)
            raise
        return result

    async def try_release(self, lease: Lease) -> Outcome:
        """See AsyncRedlock.try_release."""
        short = self._shortcut
        try:
            round_ = short.release(lease)
        except BaseException as error:
            short.release_failed(lease, error)
            raise
        try:
            seat = round_.waiter
            if seat is not None:
                await seat
        except BaseException:
            round_.waiter = None
            raise
        return short.released(lease, round_)

    async def drive(self, steps: Generator[Request, int, T]) -> T:
        """Run an operation's steps in this task."""
        self.check_home()
        try:
            request = next(steps)
            while True:
                try:
                    await self._wait(request)
                    now_ns = monotonic_ns()
                except BaseException as cancelled:
                    steps.throw(cancelled)
                    raise
                request = steps.send(now_ns)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except BaseException:
            # An interrupt may have come between two steps.
            steps.close()
            raise

    def check_home(self) -> None:
        """See LoopDriver.check_home."""
        self.check_usable()
        if _get_running_loop() is not self._loop:
            raise CannotWaitError("outside the event loop that connected this Redlock")

    async def _wait(self, request: Request) -> None:
        # The caller runs here, so it accepts an offer by reading the clock now.
        if isinstance(request, Offer):
            return
        if isinstance(request, int):
            await asyncio.sleep(whole_ms_s(request - monotonic_ns()))
            return
        self.submit(request)
        if request.outcome is None:
            request.waiter = seat = self._shortcut.seats.take()
            await seat
        else:
            # The task yields to the loop here, as in `try_acquire`.
            await asyncio.sleep(0)

    def background(
        self, steps: Generator[Request, int, T], done: Callable[[T], None]
    ) -> Callable[[], object]:
        """Run `steps` in a separate task, then call `done` with the value of `steps`.

        Returns a function that stops the steps.
        """

        async def run() -> None:
            done(await self.drive(steps))

        task = self._loop.create_task(run())
        # The loop itself keeps only a weak reference.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return lambda: self._loop.is_closed() or task.cancel()

    async def close(self, drain_s: float) -> None:
        """Send queued commands, wait up to `drain_s` for open operations, and close."""
        if not self.closed:
            self.check_home()
        closing = self.begin_close(drain_s)
        try:
            while not self.closed and not closing.is_over(monotonic_ns()):
                self.flush()
                await asyncio.sleep(LOOK_S)
            if not self.closed:
                self.wake()
                # The woken callers run now, and release leases that they may not take any more.
                await asyncio.sleep(0)
        finally:
            self.end_close(closing)
            self.wake()

    def close_soon(self) -> None:
        """See LoopDriver.close_soon.

        A loop that does not run now may never run again. If the loop does not run, the method
        closes the driver itself.
        """
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self.close_now)
        else:
            self.close_now()

    # -- hooks of LoopDriver -----------------------------------------------------------------------

    def _hand_out(self) -> None:
        step_all(self.engine, at_once=asyncio.current_task(self._loop) is None)

    def _shake(self, target: InstanceTarget) -> asyncio.Future[Shaken]:
        try:
            return self._loop.run_in_executor(None, shaken, target)
        except RuntimeError as error:
            # The executor was shut down, because the interpreter or the loop is ending.
            failed: asyncio.Future[Shaken] = self._loop.create_future()
            failed.set_result(InstanceClosedError(target.address, str(error)))
            return failed

    def _connect_later(self, index: int) -> None:
        def shook(job: asyncio.Future[Shaken]) -> None:
            if not job.cancelled():
                self.connected(index, job.result())

        self._shake(self.targets[index]).add_done_callback(shook)
