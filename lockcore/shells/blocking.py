"""Waiting by threads: *one daemon I/O thread per Redlock carries the calls of all others*.

Rules: the engine lives in the I/O thread and is touched nowhere else. Callers leave jobs in its inbox (and wake it
only if it sleeps), then sleep on a lock of their own; a caller that is interrupted there leaves word that it is gone,
and one whose signal handler locks, too, has a second lock for that. The I/O thread itself (a `__del__` collected there,
an observer) waits for nobody: it is refused before anything is sent. A lease is its caller's by his own reading of the
clock, always the last thing done (call.py): ringing the bell lets go of the GIL, so it is rung before he reads, and the
I/O thread looks out for the word he then leaves without a ring. At interpreter exit what is queued is still sent; the
thread is a daemon and holds nothing up.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from lockcore.arguments import check_acquire
from lockcore.attempt import Acquisition, Steps, lease_of
from lockcore.clock import FAR_FUTURE_NS, NS_PER_S, monotonic_ns
from lockcore.errors import CannotWaitError, InstanceClosedError
from lockcore.model import Denied, Lease, Outcome
from lockcore.rounds import Round, SetRound
from lockcore.settings import Settings
from lockcore.shells.call import Call, locked, ring
from lockcore.shells.closing import LOOK_S, Drain
from lockcore.shells.driver import NO_WAIT, TEXT, WHOLE, LoopDriver
from lockcore.shells.handshake import discard, shaken
from lockcore.shells.target import InstanceTarget
from lockcore.shells.wire import Wire
from lockcore.turns import Wanted

T = TypeVar("T")
JOIN_S = 0.5
ALIVE_S = 1.0  # how often a sleeping caller looks whether the I/O thread still lives
LOOK_NS = int(LOOK_S * NS_PER_S)
MOST_HANDSHAKES = 32
_OPEN: weakref.WeakSet[ThreadDriver] = weakref.WeakSet()


class ThreadDriver(LoopDriver):
    """The driver for plain threads: usable from any thread of the process that made it."""

    def __init__(self, targets: Sequence[InstanceTarget], settings: Settings) -> None:
        if not hasattr(select, "epoll"):
            raise RuntimeError("threads need select.epoll, which gevent's patches remove; use shell='gevent'")
        self._poll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._bell).atexit = False
        self._poll.register(self._bell, select.EPOLLIN)
        self._index_of: dict[int, int] = {}
        self._inbox: deque[Callable[[], object]] = deque()
        self._sleeping = False
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._tick_ns = FAR_FUTURE_NS
        self._closing: Drain | None = None
        self._words, self._until_ns = 0, 0  # words that callers are about to leave; how long to look out for them
        self._own = threading.local()
        self._thread = threading.Thread(target=self._run, name="lockcore", daemon=True)
        self._io = 0  # that thread's identity
        super().__init__(targets, settings)

    @classmethod
    def connect(cls, targets: Sequence[InstanceTarget], settings: Settings) -> ThreadDriver:
        """Connect to all instances at once. Raises InstanceError."""
        driver = cls(targets, settings)
        with ThreadPoolExecutor(min(len(targets), MOST_HANDSHAKES)) as pool:
            jobs = [pool.submit(shaken, target) for target in targets]
            try:
                results = [job.result() for job in jobs]
            except BaseException:
                for job in jobs:
                    job.add_done_callback(discard)
                raise
        driver.admit(results)
        driver._thread.start()
        _OPEN.add(driver)
        return driver

    # -- the three operations: in the caller's thread -----------------------------------------------------------------

    def try_acquire(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Lease | Denied:
        """See Redlock.try_acquire."""
        if self.engine.retired or threading.get_ident() == self._io:
            self.check_caller()
            self.check_open()
        if wait_ms is not NO_WAIT or ttl_ms.__class__ is not WHOLE or resource.__class__ is not TEXT:
            check_acquire(resource, ttl_ms, wait_ms)
        started_ns = monotonic_ns()
        if wait_ms and resource in self.engine.turns:
            steps = self._wait_in_line(resource, ttl_ms, wait_ms, started_ns)
            return self._carry(steps, judged=True, undo=_give_back)  # type: ignore[no-any-return]
        round_: SetRound | None = None
        try:
            round_ = won = self._carry(self._attempt(resource, ttl_ms, started_ns), undo=SetRound.abandon)
            if won.watched:
                self._post(self._expect)
            now_ns = monotonic_ns()
            lease = lease_of(won, now_ns) if won.outcome is Outcome.ACQUIRED else None
            if won.watched:
                self._leave(partial(won.decided, Outcome.ACQUIRED, now_ns) if lease else int)
            if lease is not None:
                return lease
            self.check_open()
            first = Acquisition(self.engine, resource, won.terms, wait_ms, started_ns, self.random)
            return self._carry(first.after(won, now_ns), judged=True, undo=_give_back)  # type: ignore[no-any-return]
        except BaseException:
            if round_ is not None:
                self._post(round_.abandon)
            raise

    def try_release(self, lease: Lease) -> Outcome:
        """See Redlock.try_release."""
        try:
            self.check_caller()
            if self.keepers:
                self.stop_keeping(lease)
            return self._carry(self._release(lease, monotonic_ns()))  # type: ignore[no-any-return]
        except Exception:
            raise
        except BaseException:
            self._post(partial(_give_back, lease))  # once more, should it have been sent
            raise

    def drive(self, steps: Generator[Wanted, int, T]) -> T:
        """Run an operation's steps for this thread."""
        self.check_caller()
        return self._carry(steps, judged=True)  # type: ignore[no-any-return]

    def background(self, steps: Generator[Wanted, int, T], done: Callable[[T], None]) -> Callable[[], object]:
        """Run steps beside all callers, then `done` with their value in a thread. Returns what stops them."""

        def tell() -> None:
            self.calls.discard(call)
            try:
                threading.Thread(target=lambda: done(call.take()), name="lockcore-told", daemon=True).start()
            except RuntimeError:  # no more threads, or the interpreter is ending
                done(call.take())

        call = Call(self, steps, tell)
        self._post(call.start)
        return partial(self._post, call.abandon)

    def close(self, drain_s: float) -> None:
        """Send what is queued, wait up to `drain_s` for what is in flight, close."""
        if not self.closed:
            self._post(partial(self._close, drain_s))
            if threading.get_ident() != self._io:
                self._ring()
                self._thread.join(drain_s + JOIN_S)

    def check_caller(self) -> None:
        """Raises unless the current thread may wait here, ForeignProcessError, and InstanceClosedError."""
        self.check_usable()
        if threading.get_ident() == self._io:
            raise CannotWaitError("in its own I/O thread (a __del__ or an observer)")

    def _carry(
        self,
        steps: Generator[Wanted, int, Any],
        *,
        judged: bool = False,
        undo: Callable[[Any], None] | None = None,
    ) -> Any:
        spare: list[threading.Lock] | None = getattr(self._own, "spare", None)
        is_nested = spare == []
        if spare is None:
            self._own.spare = spare = []
        lock = spare.pop() if spare else locked()
        call = Call(self, steps, partial(ring, lock), judged=judged, undo=undo)
        try:
            self._post(call.start)
            if is_nested:
                self._ring()  # the outer call may have been about to
            value = self._taken(call, lock)
            self.calls.discard(call)
            spare.append(lock)
            return value
        except BaseException:
            self._post(call.abandon)  # its lock may still be released for it: nobody uses that again
            raise

    def _taken(self, call: Call, lock: threading.Lock) -> Any:
        """Sleep until there is something to take, and take it: a lease on offer only while it is valid."""
        while True:
            while not lock.acquire(timeout=ALIVE_S):
                if not self._thread.is_alive():
                    raise InstanceClosedError("all instances", "this Redlock is closed")
                self._ring()
            is_over, value = call.over, call.take()
            if is_over:
                return value
            self._post(self._expect)
            now_ns = monotonic_ns()
            is_his = now_ns < value.until_ns
            self._leave(partial(call.taken if is_his else call.go_on, now_ns))
            if is_his:
                value.lease.granted_ns = now_ns
                return value.lease

    def _post(self, job: Callable[[], object]) -> None:
        self._inbox.append(job)
        if self._sleeping:
            self._sleeping = False
            try:
                self._ring()
            except BaseException:
                self._sleeping = True  # interrupted: somebody else must ring
                raise

    def _leave(self, word: Callable[[], object]) -> None:
        """Behind `_expect`: without a ring."""
        self._inbox.append(partial(self._hear, word))

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    # -- the I/O thread -----------------------------------------------------------------------------------------------

    def _attempt(self, resource: str, ttl_ms: int, started_ns: int) -> Generator[Round, int, SetRound]:
        round_ = self.engine.set_round(resource, self.engine.terms(ttl_ms), started_ns)
        try:
            yield round_
        except BaseException:
            round_.abandon()
            raise
        return round_

    def _wait_in_line(self, resource: str, ttl_ms: int, wait_ms: float, started_ns: int) -> Steps:
        terms = self.engine.terms(ttl_ms)
        return (
            yield from Acquisition(self.engine, resource, terms, wait_ms, started_ns, self.random).steps(monotonic_ns())
        )

    def _release(self, lease: Lease, now_ns: int) -> Generator[Round, int, Outcome]:
        round_ = self.engine.release_round(lease, now_ns)
        yield round_
        return round_.outcome or Outcome.UNREACHABLE

    def _expect(self) -> None:
        self._words += 1
        self._until_ns = monotonic_ns() + NS_PER_S  # interrupted, he leaves none: then seldom

    def _hear(self, word: Callable[[], object]) -> None:
        self._words -= 1
        word()

    def _run(self) -> None:
        self._io = threading.get_ident()
        try:
            while not self.closed:
                self._turn()
        finally:
            self._end()

    def _turn(self) -> None:
        self._sleeping = True
        events = self._poll.poll(0 if self._inbox else self._sleep_s())
        self._sleeping = False
        for descriptor, event in events:
            self._event(descriptor, event)
        inbox = self._inbox
        while inbox:
            inbox.popleft()()
        self._run_timers(monotonic_ns())
        engine = self.engine
        while engine.dirty or engine.ready:
            self.flush()
            self.wake()
        if self._closing is not None and self._closing.is_over(monotonic_ns()):
            self.end_close(self._closing)

    def _sleep_s(self) -> float | None:
        now_ns = monotonic_ns()
        due_ns = min(self._tick_ns, self._timers[0][0] if self._timers else FAR_FUTURE_NS)
        if self._closing is not None or self._words:
            is_near = self._closing is not None or now_ns < self._until_ns
            due_ns = min(due_ns, now_ns + (LOOK_NS if is_near else 100 * LOOK_NS))
        return None if due_ns == FAR_FUTURE_NS else max(0, due_ns - now_ns) / NS_PER_S

    def _event(self, descriptor: int, event: int) -> None:
        if descriptor == self._bell:
            os.eventfd_read(self._bell)
            return
        index = self._index_of.get(descriptor)
        if index is not None and event & ~select.EPOLLOUT:
            self.readable(index)
        if index is not None and event & select.EPOLLOUT:
            self.writable(index)

    def _run_timers(self, now_ns: int) -> None:
        while self._timers and self._timers[0][0] <= now_ns:
            heappop(self._timers)[2]()
        if self._tick_ns <= now_ns:
            self._tick_ns = FAR_FUTURE_NS
            self.tick()

    def _close(self, drain_s: float) -> None:
        closing = self.begin_close(drain_s)
        if self._closing is not None:
            closing.deadline_ns = min(closing.deadline_ns, self._closing.deadline_ns)
        self._closing = closing
        self._refuse([call for call in list(self.calls) if call.undo is not None])

    def _refuse(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call.fail(InstanceClosedError("all instances", "this Redlock is closed"))
        self.calls.difference_update(call for call in calls if call.over)

    def end_close(self, closing: Drain) -> None:
        """See LoopDriver.end_close."""
        self._refuse(list(self.calls))
        super().end_close(closing)

    def _end(self) -> None:
        """Closed, or broken by a bug: nobody may wait for this thread any more."""
        self.shut()
        self.wake()
        self._refuse(list(self.calls))
        while self._inbox:
            self._inbox.popleft()()
        self._poll.close()

    # -- hooks of LoopDriver and Call ----------------------------------------------------------------------------------

    def call_at(self, due_ns: int, job: Callable[[], None]) -> None:
        """Run `job` in the I/O thread at that time."""
        heappush(self._timers, (due_ns, next(self._numbers), job))

    def wake(self) -> None:
        """See LoopDriver.wake."""
        for round_ in self.engine.take_ready():
            call = round_.waiter
            if call is not None:
                round_.waiter = None
                call.settled(round_)

    def _want_flush(self) -> None:
        """Every turn ends with a flush."""

    def _wake_later(self) -> None:
        """Every turn ends with a look at who is to be woken."""

    def _tick_later(self, delay_ns: int) -> None:
        self._tick_ns = monotonic_ns() + delay_ns

    def _watch(self, index: int, wire: Wire) -> None:
        self._index_of[wire.fileno] = index
        self._poll.register(wire.fileno, select.EPOLLIN)

    def _watch_writes(self, index: int, wanted: bool) -> None:
        wire = self.wires[index]
        if wire is not None:
            self._poll.modify(wire.fileno, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

    def _unwatch(self, index: int) -> None:
        wire = self.wires[index]
        if wire is not None:
            del self._index_of[wire.fileno]
            self._poll.unregister(wire.fileno)

    def _connect_later(self, index: int) -> None:
        def shake() -> None:
            self._post(partial(self.connected, index, shaken(self.targets[index])))

        try:
            threading.Thread(target=shake, name="lockcore-handshake", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self.connected(index, InstanceClosedError(self.targets[index].address, str(error)))


def _give_back(result: Lease | Denied) -> None:
    """A lease whose caller was interrupted before he had it."""
    if isinstance(result, Lease) and isinstance(result.round, SetRound):
        result.round.clean_up()


@atexit.register
def _close_all() -> None:
    for driver in list(_OPEN):
        driver.close(JOIN_S)
