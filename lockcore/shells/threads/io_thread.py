"""The I/O thread of the threads shell: *jobs of other threads, sockets, timers → an epoll loop*.

Rules: the engine lives in the I/O thread and is touched nowhere else. Callers ring its bell only if
it sleeps. Ringing lets go of the GIL, so a caller that was offered a lease rings before it reads
the clock. The message that it then leaves comes without a ring, and the thread looks out for it.
The thread is a daemon and holds no exit up.
"""

import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count

from lockcore.clock import FAR_FUTURE_NS, NS_PER_S, monotonic_ns
from lockcore.errors import InstanceClosedError
from lockcore.settings import Settings
from lockcore.shells.common.connections import LOOK_S, Drain
from lockcore.shells.common.driver import LoopDriver
from lockcore.shells.common.fast import Wire
from lockcore.shells.common.handshake import shaken
from lockcore.shells.common.target import InstanceTarget
from lockcore.shells.threads.call import Call

LOOK_NS = int(LOOK_S * NS_PER_S)


class PolledDriver(LoopDriver):
    """A loop driver that runs in a thread of its own, which `ThreadDriver.connect` starts."""

    def __init__(self, targets: Sequence[InstanceTarget], settings: Settings) -> None:
        if not hasattr(select, "epoll"):
            raise RuntimeError(
                "threads need select.epoll, which gevent's patches remove; use shell='gevent'"
            )
        self._poll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # It is not closed sooner, because a caller may be about to ring.
        self._close_bell = weakref.finalize(self, os.close, self._bell)
        self._close_bell.atexit = False
        self._poll.register(self._bell, select.EPOLLIN)
        self._index_of: dict[int, int] = {}
        self._inbox: deque[Callable[[], object]] = deque()
        self._sleeping = False
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._tick_ns = FAR_FUTURE_NS
        self._closing: Drain | None = None
        # How many messages callers are about to leave, and how long to look out for them.
        self._messages = 0
        self._until_ns = 0
        self._thread = threading.Thread(target=self._run, name="lockcore", daemon=True)
        # The identity of the I/O thread.
        self._io = 0
        super().__init__(targets, settings)

    def can_be_interrupted(self) -> bool:
        """See LoopDriver.can_be_interrupted: signals are handled in the main thread only."""
        return threading.current_thread() is threading.main_thread()

    def discard(self) -> None:
        """Close everything: nobody has it, and its thread has not been started."""
        self._end()
        self._close_bell()

    # -- from any thread ---------------------------------------------------------------------------

    def _post(self, job: Callable[[], object]) -> None:
        self._inbox.append(job)
        if self._sleeping:
            self._sleeping = False
            try:
                self._ring()
            except BaseException:
                # This ring was interrupted, so somebody else must ring.
                self._sleeping = True
                raise

    def _leave(self, message: Callable[[], object]) -> None:
        """Leave a message without a ring, behind `_expect`."""
        self._inbox.append(partial(self._hear, message))

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    # -- in the I/O thread -------------------------------------------------------------------------

    def _expect(self) -> None:
        self._messages += 1
        # A caller that is interrupted leaves no message, so later the thread looks seldom.
        self._until_ns = monotonic_ns() + NS_PER_S

    def _hear(self, message: Callable[[], object]) -> None:
        self._messages -= 1
        message()

    def _run(self) -> None:
        self._io = threading.get_ident()
        try:
            while not self.closed:
                self._make_pass()
        finally:
            self._end()

    def _make_pass(self) -> None:
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
        while engine.outbox.dirty or engine.ready:
            if engine.followed:
                self.wake()
            self.flush()
            self.wake()
        if self._closing is not None and self._closing.is_over(monotonic_ns()):
            self.end_close(self._closing)

    def _sleep_s(self) -> float | None:
        now_ns = monotonic_ns()
        due_ns = min(self._tick_ns, self._timers[0][0] if self._timers else FAR_FUTURE_NS)
        if self._closing is not None or self._messages:
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
        """It is closed, or broken by a bug: nobody may wait for this thread any more."""
        self.shut()
        self.wake()
        self._refuse(list(self.calls))
        while self._inbox:
            self._inbox.popleft()()
        self._poll.close()

    # -- hooks of LoopDriver and Call --------------------------------------------------------------

    def call_at(self, due_ns: int, job: Callable[[], None]) -> None:
        """Run `job` in the I/O thread at `due_ns`."""
        heappush(self._timers, (due_ns, next(self._numbers), job))

    def wake(self) -> None:
        """See LoopDriver.wake."""
        for round_ in self.engine.take_ready():
            call = round_.waiter
            if call is not None:
                round_.waiter = None
                call.settled(round_)

    def _want_flush(self) -> None:
        """Do nothing: every pass ends with a flush."""

    def _wake_later(self) -> None:
        """Do nothing: every pass ends with a look at who is to be woken."""

    def _tick_later(self, delay_ns: int) -> None:
        self._tick_ns = monotonic_ns() + delay_ns

    def _watch(self, index: int, wire: Wire) -> None:
        self._index_of[wire.fileno] = index
        self._poll.register(wire.fileno, select.EPOLLIN)

    def _watch_writes(self, index: int, is_needed: bool) -> None:
        wire = self.wires[index]
        if wire is not None:
            events = select.EPOLLIN | select.EPOLLOUT if is_needed else select.EPOLLIN
            self._poll.modify(wire.fileno, events)

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
        except RuntimeError as error:
            # There are no more threads, or the interpreter is ending.
            self.connected(index, InstanceClosedError(self.targets[index].address, str(error)))
