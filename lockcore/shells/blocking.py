"""Waiting by threads: *one daemon I/O thread per Redlock carries the calls of all others*.

Rules: the engine lives in the I/O thread and is touched nowhere else. Callers leave jobs in its inbox (and wake it
only if it sleeps), then sleep on a lock of their own thread; a caller that is interrupted there leaves word that it is
gone. The first attempt takes a short cut: its lease is made by the caller itself, so that a call crosses over once. At
interpreter exit what is queued is still sent; the thread is a daemon and holds nothing up.
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

from lockcore.attempt import Acquire, Steps, lease_of
from lockcore.clock import NS_PER_S, monotonic_ns
from lockcore.deadlines import FAR_FUTURE_NS
from lockcore.errors import InstanceClosedError
from lockcore.model import Denied, Lease, Outcome
from lockcore.rounds import Round, SetRound
from lockcore.settings import Settings
from lockcore.shells.call import Call, ring
from lockcore.shells.driver import Driver
from lockcore.shells.handshake import discard, shaken
from lockcore.shells.target import Target
from lockcore.shells.wire import Wire
from lockcore.turns import Wanted

T = TypeVar("T")
JOIN_S = 0.5
LOOK_S = 1.0  # how often a sleeping caller looks whether the I/O thread still lives
MOST_HANDSHAKES = 32
_OPEN: weakref.WeakSet[ThreadDriver] = weakref.WeakSet()


class ThreadDriver(Driver):
    """The driver for plain threads: usable from any thread of the process that made it."""

    def __init__(self, targets: Sequence[Target], settings: Settings) -> None:
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
        self._tick_ns = self._close_ns = FAR_FUTURE_NS
        self._own = threading.local()
        self._thread = threading.Thread(target=self._run, name="lockcore", daemon=True)
        self.calls: set[Call] = set()
        super().__init__(targets, settings)

    @classmethod
    def connect(cls, targets: Sequence[Target], settings: Settings) -> ThreadDriver:
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
        self.check_usable()
        started_ns = monotonic_ns()
        if wait_ms and resource in self.engine.turns:
            steps = self._wait_in_line(resource, ttl_ms, wait_ms, started_ns)
            return self._carry(steps, judged=True, undo=_give_back)  # type: ignore[no-any-return]
        round_: SetRound | None = None
        try:
            round_ = won = self._carry(self._attempt(resource, ttl_ms, started_ns), undo=SetRound.abandon)
            now_ns = monotonic_ns()
            if won.outcome is Outcome.ACQUIRED and not won.watched:
                lease = lease_of(won, now_ns)
                if lease is not None:
                    return lease
            self.check_usable()
            first = Acquire(self.engine, resource, won.terms, wait_ms, started_ns, self.random)
            return self._carry(first.after(won, now_ns), judged=True, undo=_give_back)  # type: ignore[no-any-return]
        except BaseException:
            if round_ is not None:
                self._post(round_.abandon)
            raise

    def try_release(self, lease: Lease) -> Outcome:
        """See Redlock.try_release."""
        try:
            self.check_usable()
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
        self.check_usable()
        return self._carry(steps, judged=True)  # type: ignore[no-any-return]

    def background(self, steps: Generator[Wanted, int, T], done: Callable[[T], None]) -> Callable[[], object]:
        """Run steps beside all callers, then `done` with their value in a thread. Returns what stops them."""

        def tell() -> None:
            threading.Thread(target=lambda: done(call.result()), name="lockcore-told", daemon=True).start()

        call = Call(self, steps, tell)
        self._post(call.start)
        return partial(self._post, call.abandon)

    def close(self, drain_s: float) -> None:
        """Send what is queued, wait up to `drain_s` for what is in flight, close."""
        if not self.closed:
            self._post(partial(self._close_at, monotonic_ns() + int(drain_s * NS_PER_S)))
            if threading.current_thread() is not self._thread:
                self._thread.join(drain_s + JOIN_S)

    def _carry(
        self,
        steps: Generator[Wanted, int, Any],
        *,
        judged: bool = False,
        undo: Callable[[Any], None] | None = None,
    ) -> Any:
        lock = getattr(self._own, "lock", None)
        if lock is None:
            self._own.lock = lock = threading.Lock()
            lock.acquire()
        call = Call(self, steps, partial(ring, lock), judged=judged, undo=undo)
        try:
            self._post(call.start)
            while True:
                while not lock.acquire(timeout=LOOK_S):
                    if not self._thread.is_alive():
                        raise InstanceClosedError("all instances", "this Redlock is closed")
                if call.over:
                    return call.result()
                self._post(partial(call.go_on, monotonic_ns()))
        except BaseException:
            self._own.lock = None  # it may still be released for this call
            self._post(call.abandon)
            raise

    def _post(self, job: Callable[[], object]) -> None:
        self._inbox.append(job)
        if self._sleeping:
            self._sleeping = False
            try:
                os.eventfd_write(self._bell, 1)
            except BaseException:
                self._sleeping = True  # interrupted: somebody else must ring
                raise

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
            yield from Acquire(self.engine, resource, terms, wait_ms, started_ns, self.random).steps(monotonic_ns())
        )

    def _release(self, lease: Lease, now_ns: int) -> Generator[Round, int, Outcome]:
        round_ = self.engine.release_round(lease, now_ns)
        yield round_
        return round_.outcome or Outcome.UNREACHABLE

    def _run(self) -> None:
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
        if self._close_ns != FAR_FUTURE_NS and (engine.is_idle or self._close_ns <= monotonic_ns()):
            self.shut()

    def _sleep_s(self) -> float | None:
        due_ns = min(self._tick_ns, self._close_ns, self._timers[0][0] if self._timers else FAR_FUTURE_NS)
        return None if due_ns == FAR_FUTURE_NS else max(0, due_ns - monotonic_ns()) / NS_PER_S

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

    def _close_at(self, due_ns: int) -> None:
        self._close_ns = min(self._close_ns, due_ns)

    def _end(self) -> None:
        """Closed, or broken by a bug: nobody may wait for this thread any more."""
        self.shut()
        self.wake()
        for call in list(self.calls):
            call.fail(InstanceClosedError("all instances", "this Redlock is closed"))
        while self._inbox:
            self._inbox.popleft()()
        self._poll.close()

    # -- hooks of Driver and Call -------------------------------------------------------------------------------------

    def call_at(self, due_ns: int, job: Callable[[], None]) -> None:
        """Run `job` in the I/O thread at that time."""
        heappush(self._timers, (due_ns, next(self._numbers), job))

    def wake(self) -> None:
        """See Driver.wake."""
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
