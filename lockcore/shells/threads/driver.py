"""Lets threads wait.

Each Redlock has one daemon thread for its I/O. This thread runs the calls of all other threads.

Rules: a caller puts a job into the I/O thread's inbox (io_thread.py) and sleeps on a lock of its
own. If a signal handler uses the Redlock during this sleep, the handler sleeps on a lock of its
own. An interrupt may end the sleep of the caller. The caller then sends a message to the I/O
thread, because the caller will not take the result. The I/O thread never waits for the result of a
call. A `__del__` or an observer that runs in this thread and tries to wait gets a CannotWaitError.
A lease belongs to a caller only after the caller itself has read the clock. The reading of the
clock is always the last step (call.py). At interpreter exit, queued commands are still sent.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar, cast

from lockcore.clock import monotonic_ns
from lockcore.engine.attempt import Acquisition, Steps, give_back, lease_of
from lockcore.engine.turns import Offer, Request
from lockcore.errors import CannotWaitError, InstanceClosedError
from lockcore.facts.arguments import NO_WAIT, check_acquire
from lockcore.facts.model import Denied, Lease, Outcome
from lockcore.rounds.rounds import Round, SetRound
from lockcore.settings import Settings
from lockcore.shells.common.handshake import discard, shaken
from lockcore.shells.common.target import InstanceTarget
from lockcore.shells.threads.call import Call, locked, nothing, ring
from lockcore.shells.threads.io_thread import IoDriver

T = TypeVar("T")
JOIN_S = 0.5

# A sleeping caller checks after every such period whether the I/O thread is alive.
ALIVE_S = 1.0
MOST_HANDSHAKES = 32
_OPEN: weakref.WeakSet[ThreadDriver] = weakref.WeakSet()


class ThreadDriver(IoDriver):
    """The driver for plain threads. All threads of the process that created a driver may use it."""

    for_threads = True

    def __init__(self, targets: Sequence[InstanceTarget], settings: Settings) -> None:
        super().__init__(targets, settings)
        self._own = threading.local()

    @classmethod
    def connect(cls, targets: Sequence[InstanceTarget], settings: Settings) -> ThreadDriver:
        """Connect to all instances at the same time. Raises InstanceError."""
        driver = cls(targets, settings)
        with ThreadPoolExecutor(min(len(targets), MOST_HANDSHAKES)) as pool:
            jobs = [pool.submit(shaken, target) for target in driver.targets]
            try:
                results = [job.result() for job in jobs]
            except BaseException:
                for job in jobs:
                    job.add_done_callback(discard)
                raise
        try:
            driver.admit(results)
            driver._thread.start()
        except BaseException:
            # An instance is refused, or no thread can start. No other code would close the sockets.
            driver.discard()
            raise
        _OPEN.add(driver)
        return driver

    # -- the three operations: in the caller's thread ----------------------------------------------

    def try_acquire(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Lease | Denied:
        """See Redlock.try_acquire."""
        listener = self.engine.listener
        begun_ns = monotonic_ns()
        if listener is None:
            return self._try_acquire(resource, ttl_ms, wait_ms, begun_ns)
        listener.begun()
        try:
            result = self._try_acquire(resource, ttl_ms, wait_ms, begun_ns)
        except BaseException:
            listener.ended(resource, None, begun_ns)
            raise
        # As in `GreenletShortcut.try_acquire`, this `try` must not move to another function.
        try:
            listener.ended(resource, result, begun_ns)
        except BaseException:
            # An interrupt came while the observer ran.
            self._post(partial(give_back, result))
            raise
        return result

    def _try_acquire(
        self, resource: str, ttl_ms: int, wait_ms: float, started_ns: int
    ) -> Lease | Denied:
        if self.engine.retired or threading.get_ident() == self._io:
            self.check_caller()
            self.check_open()
        if wait_ms is not NO_WAIT or type(ttl_ms) is not int or type(resource) is not str:
            check_acquire(resource, ttl_ms, wait_ms)
        if wait_ms and self.engine.turns.is_taken(resource):
            steps = self._wait_in_line(resource, ttl_ms, wait_ms, started_ns)
            return self._carry(steps, judged=True, undo=give_back)
        round_: SetRound | None = None
        try:
            attempt = self._attempt(resource, ttl_ms, started_ns)
            round_ = won = self._carry(attempt, undo=SetRound.abandon)
            if won.watched:
                self._post(self._expect)
            now_ns = monotonic_ns()
            lease = lease_of(won, now_ns) if won.outcome is Outcome.ACQUIRED else None
            if won.watched:
                self._leave(partial(won.decided, Outcome.ACQUIRED, now_ns) if lease else nothing)
            if lease is not None:
                return lease
            self.check_open()
            first = Acquisition(self.engine, resource, won.terms, wait_ms, started_ns, self.random)
            return self._carry(first.after(won, now_ns), judged=True, undo=give_back)
        except BaseException:
            if round_ is not None:
                self._post(round_.abandon)
            raise

    def try_release(self, lease: Lease) -> Outcome:
        """See Redlock.try_release."""
        listener = self.engine.listener
        # The `try` begins with the first line, because an interrupt may come at any line.
        try:
            begun_ns = monotonic_ns()
            self.check_caller()
            if self.keepers:
                self.stop_keeping(lease)
            outcome = self._carry(self._release(lease, begun_ns))
        except Exception:
            raise
        except BaseException:
            # The lease is released once more, because the first release may not have left.
            self._post(partial(give_back, lease))
            raise
        if listener is not None:
            listener.released(lease, outcome, begun_ns)
        return outcome

    def drive(self, steps: Generator[Request, int, T]) -> T:
        """Run an operation's steps for this thread."""
        self.check_caller()
        return self._carry(steps, judged=True)

    def background(
        self, steps: Generator[Request, int, T], done: Callable[[T], None]
    ) -> Callable[[], object]:
        """Run `steps` in the I/O thread. After the last step, call `done` in a new thread.

        `done` gets the value of `steps`. Returns a function that stops the steps.
        """

        def tell() -> None:
            self.calls.discard(call)
            self.beside(lambda: done(cast("T", call.take())))

        call = Call(self, steps, tell)
        self._post(call.start)
        return partial(self._post, call.abandon)

    def beside(self, job: Callable[[], object]) -> None:
        """See LoopDriver.beside."""
        try:
            threading.Thread(target=job, name="lockcore-told", daemon=True).start()
        except RuntimeError:
            # There are no more threads, or the interpreter is ending.
            job()

    def close(self, drain_s: float) -> None:
        """Send queued commands, wait up to `drain_s` for open operations, and close."""
        if not self.closed:
            self._post(partial(self._close, drain_s))
            if threading.get_ident() != self._io:
                self._ring()
                self._thread.join(drain_s + JOIN_S)

    def close_soon(self) -> None:
        """See LoopDriver.close_soon."""
        self._post(partial(self._close, 0))

    def check_caller(self) -> None:
        """Raises CannotWaitError unless the current thread may wait here.

        Raises ForeignProcessError and InstanceClosedError as `check_usable` does.
        """
        self.check_usable()
        if threading.get_ident() == self._io:
            raise CannotWaitError("in the I/O thread of this Redlock (a __del__ or an observer)")

    def _carry(
        self,
        steps: Generator[Request, int, T],
        *,
        judged: bool = False,
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """Let the I/O thread run `steps`, and return the value of the steps.

        If the caller is gone, `undo` releases the value.
        """
        spare: list[threading.Lock] | None = getattr(self._own, "spare", None)
        is_nested = spare == []
        if spare is None:
            self._own.spare = spare = []
        lock = spare.pop() if spare else locked()
        call = Call(self, steps, partial(ring, lock), judged=judged, undo=undo)
        try:
            self._post(call.start)
            if is_nested:
                # This call has interrupted an outer call. The outer call may have been about to
                # ring.
                self._ring()
            # Take the value of the steps, or the lease that the steps offered.
            value = cast("T", self._taken(call, lock))
            self.calls.discard(call)
            spare.append(lock)
            return value
        except BaseException:
            # The I/O thread may still release the lock for this call, so no later call uses the
            # lock.
            self._post(call.abandon)
            raise

    def _taken(self, call: Call, lock: threading.Lock) -> object:
        """Sleep until `call` has a result, and return the result.

        If `call` offers a lease that is not valid any more, refuse the lease and sleep again.
        """
        while True:
            while not lock.acquire(timeout=ALIVE_S):
                if not self._thread.is_alive():
                    raise InstanceClosedError("all instances", "this Redlock is closed")
                self._ring()
            value = call.take()
            if not isinstance(value, Offer):
                return value
            self._post(self._expect)
            now_ns = monotonic_ns()
            is_valid = now_ns < value.until_ns
            self._leave(partial(call.taken if is_valid else call.go_on, now_ns))
            if is_valid:
                value.lease.granted_ns = now_ns
                return value.lease

    def _attempt(
        self, resource: str, ttl_ms: int, started_ns: int
    ) -> Generator[Round, int, SetRound]:
        round_ = self.engine.set_round(resource, self.engine.terms(ttl_ms), started_ns)
        try:
            yield round_
        except BaseException:
            round_.abandon()
            raise
        return round_

    def _wait_in_line(self, resource: str, ttl_ms: int, wait_ms: float, started_ns: int) -> Steps:
        line = Acquisition(
            self.engine, resource, self.engine.terms(ttl_ms), wait_ms, started_ns, self.random
        )
        return (yield from line.steps(monotonic_ns()))

    def _release(self, lease: Lease, now_ns: int) -> Generator[Round, int, Outcome]:
        round_ = self.engine.release_round(lease, now_ns)
        yield round_
        return round_.outcome or Outcome.UNREACHABLE


@atexit.register
def _close_all() -> None:
    for driver in list(_OPEN):
        driver.close(JOIN_S)
