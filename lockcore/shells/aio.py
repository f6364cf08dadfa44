"""Waiting by tasks: *the loop's readers step the waiting task straight from the I/O callback*.

Rules: one engine per event loop (asyncio's own or uvloop). A task that is cancelled where it waits
abandons its round. A batch leaves at once when little is in flight, else once per turn of the loop.
The first attempt and the release take a short cut past the step generator (tasks.py).
"""

import asyncio
import os
from asyncio.events import _get_running_loop
from collections.abc import Callable, Generator, Sequence
from typing import Self, TypeVar

from lockcore.attempt import Acquisition, give_back
from lockcore.clock import NS_PER_MS, monotonic_ns
from lockcore.errors import CannotWaitError, InstanceClosedError
from lockcore.model import Denied, Lease, Outcome
from lockcore.observed import Listener
from lockcore.settings import Settings
from lockcore.shells.connections import LOOK_S
from lockcore.shells.driver import LoopDriver
from lockcore.shells.handshake import Shaken, discard, shaken
from lockcore.shells.target import InstanceTarget
from lockcore.shells.tasks import TaskShortcut, step_all
from lockcore.shells.wire import Wire
from lockcore.turns import Offer, Wanted

T = TypeVar("T")


class AsyncDriver(LoopDriver):
    """The driver for asyncio: belongs to the loop that runs while it is made."""

    def __init__(self, targets: Sequence[InstanceTarget], settings: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        super().__init__(targets, settings)
        self._shortcut = TaskShortcut(self, self.engine, self._loop)

    @classmethod
    async def connect(cls, targets: Sequence[InstanceTarget], settings: Settings) -> Self:
        """Connect to all instances at once. Raises InstanceError."""
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
        told = self.engine.listener
        result = None
        begun_ns = 0
        try:
            round_ = short.set_round(resource, ttl_ms, wait_ms, told)
            if round_ is None:
                begun_ns = monotonic_ns()
                line = Acquisition(
                    self.engine, resource, self.engine.terms(ttl_ms), wait_ms, begun_ns, self.random
                )
                result = await self.drive(line.steps(begun_ns))
                return result
            try:
                place = short.submit(
                    round_
                )  # in here: a signal's handler may raise before it has returned
                if place is not None:
                    await place
                else:
                    self.check_open()
                    await asyncio.sleep(
                        0
                    )  # settled without waiting: who tries again at once must not starve the loop
                result = short.lease(round_, told)
                if result is not None:
                    told = None  # was told
                    return result
                self.check_open()
                begun_ns = round_.started_ns
                first = Acquisition(
                    self.engine, resource, round_.terms, wait_ms, begun_ns, self.random
                )
                result = await self.drive(first.after(round_, short.now()))
                return result
            except BaseException:
                round_.abandon()
                if (
                    short.is_telling
                ):  # interrupted while the observer heard of the lease: it is not told twice
                    short.is_telling = False
                    told = None
                raise
        finally:
            if told is not None:
                _tell_ended(told, resource, result, begun_ns)

    async def try_release(self, lease: Lease) -> Outcome:
        """See AsyncRedlock.try_release."""
        try:
            round_ = self._shortcut.release(lease)
        except Exception:
            raise
        except BaseException:
            self.release_interrupted(lease)
            raise
        try:
            place = round_.waiter
            if place is not None:
                await place
        except BaseException:
            round_.waiter = None
            raise
        return self._shortcut.outcome(lease, round_)

    async def drive(self, steps: Generator[Wanted, int, T]) -> T:
        """Run an operation's steps in this task."""
        self.check_home()
        try:
            wanted = next(steps)
            while True:
                try:
                    await self._wait(wanted)
                    now_ns = monotonic_ns()
                except BaseException as cancelled:
                    steps.throw(cancelled)
                    raise
                wanted = steps.send(now_ns)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except BaseException:
            steps.close()  # an interrupt may have come between its steps
            raise

    def check_home(self) -> None:
        """See LoopDriver.check_home."""
        self.check_usable()
        if _get_running_loop() is not self._loop:
            raise CannotWaitError("outside the event loop that connected it")

    async def _wait(self, wanted: Wanted) -> None:
        if isinstance(wanted, Offer):
            return  # the caller's, as soon as it looks at the clock
        if isinstance(wanted, int):
            await asyncio.sleep(_whole_ms_s(wanted - monotonic_ns()))
            return
        self.submit(wanted)
        if wanted.outcome is None:
            wanted.waiter = seat = self._shortcut.seats.take()
            await seat
        else:
            await asyncio.sleep(0)  # as in try_acquire

    def background(
        self, steps: Generator[Wanted, int, T], done: Callable[[T], None]
    ) -> Callable[[], object]:
        """Run steps in a task of their own, then `done` with their value; returns what stops them."""

        async def run() -> None:
            done(await self.drive(steps))

        task = self._loop.create_task(run())
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)
        return lambda: self._loop.is_closed() or task.cancel()

    async def close(self, drain_s: float) -> None:
        """Send what is queued, wait up to `drain_s` for what is in flight, close."""
        if not self.closed:
            self.check_home()
        closing = self.begin_close(drain_s)
        try:
            while not self.closed and not closing.is_over(monotonic_ns()):
                self.flush()
                await asyncio.sleep(LOOK_S)
            if not self.closed:
                self.wake()
                await asyncio.sleep(
                    0
                )  # who was woken runs, and gives back what it may not take any more
        finally:
            self.end_close(closing)
            self._stop_timer()
            self.wake()

    def close_soon(self) -> None:
        """See LoopDriver.close_soon. A loop that does not run may never run again: then it is done
        here."""
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self.close_now)
        else:
            self.close_now()

    def close_now(self) -> None:
        """See LoopDriver.close_now."""
        super().close_now()
        self._stop_timer()

    # -- hooks of LoopDriver -----------------------------------------------------------------------

    def _hand_out(self) -> None:
        step_all(self.engine, at_once=asyncio.current_task(self._loop) is None)

    def _soon(self, callback: Callable[[], None]) -> None:
        if self._loop.is_closed():  # tasks are being destroyed: what they give back is sent
            callback()
        else:
            self._loop.call_soon(callback)

    def _wake_later(self) -> None:
        if not self._loop.is_closed():  # else tasks are being destroyed: nobody is left to wake
            self._loop.call_soon(self.wake)

    def _tick_later(self, delay_ns: int) -> None:
        timer = self._loop.call_later(_whole_ms_s(delay_ns), self.tick)
        self._stop_timer()  # not before: interrupted in between, there are two rather than none
        self._timer = timer

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stay_awake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon(self._on_turn)  # with something to call, the loop polls

    def _on_turn(self) -> None:
        if self.look_again():
            self._stay_awake()

    def _watch(self, index: int, wire: Wire) -> None:
        readable = self._readable_at_last if is_uvloop(self._loop) else self.readable
        self._loop.add_reader(wire.fileno, readable, index)

    def _readable_at_last(self, index: int) -> None:
        """uvloop tells of a reset once, together with the bytes before it, and then watches the
        socket no more."""
        wire = self.wires[index]
        self.readable(index)
        if wire is not None and wire is self.wires[index] and (code := wire.error()):
            self.broken(index, OSError(code, os.strerror(code)))

    def _watch_writes(self, index: int, wanted: bool) -> None:
        wire = self.wires[index]
        if wire is None:
            return
        if wanted:
            self._loop.add_writer(wire.fileno, self.writable, index)
        else:
            self._loop.remove_writer(wire.fileno)

    def _unwatch(self, index: int) -> None:
        wire = self.wires[index]
        if wire is not None and not self._loop.is_closed():
            self._loop.remove_reader(wire.fileno)
            self._loop.remove_writer(wire.fileno)

    def _shake(self, target: InstanceTarget) -> asyncio.Future[Shaken]:
        try:
            return self._loop.run_in_executor(None, shaken, target)
        except (
            RuntimeError
        ) as error:  # the executor was shut down: the interpreter, or the loop, is ending
            failed: asyncio.Future[Shaken] = self._loop.create_future()
            failed.set_result(InstanceClosedError(target.address, str(error)))
            return failed

    def _connect_later(self, index: int) -> None:
        def shook(job: asyncio.Future[Shaken]) -> None:
            if not job.cancelled():
                self.connected(index, job.result())

        self._shake(self.targets[index]).add_done_callback(shook)


def _tell_ended(
    told: Listener, resource: str, result: Lease | Denied | None, begun_ns: int
) -> None:
    try:
        told.ended(resource, result, begun_ns)
    except BaseException:  # an interrupt, which came while the observer ran
        give_back(result)
        raise


def is_uvloop(loop: asyncio.AbstractEventLoop) -> bool:
    """True for a loop of uvloop, which has no public mark."""
    return type(loop).__module__.startswith("uvloop")


def _whole_ms_s(delay_ns: int) -> float:
    """`delay_ns` in s, rounded up to ms: uvloop rounds, and what fires early would have to wait
    again at once."""
    return max(0, -(-delay_ns // NS_PER_MS)) / 1000
