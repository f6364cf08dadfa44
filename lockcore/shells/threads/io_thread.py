"""The I/O thread of the shell for threads.

Its event loop runs the jobs of other threads.

Rules: only the I/O thread uses the engine. A caller rings a bell to wake the I/O thread. If another
caller has already rung for the jobs in the inbox, the next caller does not ring. A ring releases
the GIL, so other threads may delay the caller. For this reason, a caller with an offered lease
first rings and then reads the clock. After the caller has read the clock, it puts its decision into
the inbox without a ring. The I/O thread regularly looks for such messages. The thread is a daemon,
so it does not delay an exit of the process.
"""

import asyncio
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from lockcore.clock import NS_PER_S, monotonic_ns
from lockcore.errors import InstanceClosedError
from lockcore.rounds.awaited import hand_out
from lockcore.settings import Settings
from lockcore.shells.common.connections import LOOK_S, Drain
from lockcore.shells.common.handshake import shaken
from lockcore.shells.common.looped import LoopedDriver
from lockcore.shells.common.target import InstanceTarget
from lockcore.shells.threads.call import Call


class IoDriver(LoopedDriver):
    """A driver whose loop runs in a separate thread. `ThreadDriver.connect` starts this thread."""

    def __init__(self, targets: Sequence[InstanceTarget], settings: Settings) -> None:
        if not hasattr(select, "epoll"):
            raise RuntimeError(
                "threads need select.epoll, which gevent's patches remove; use shell='gevent'"
            )
        super().__init__(targets, settings, asyncio.SelectorEventLoop())
        self._loop.set_exception_handler(self._failed)
        self._bug: BaseException | None = None
        self._inbox: deque[Callable[[], object]] = deque()
        self._has_rung = False
        # The loop's own `call_soon_threadsafe` costs more CPU. A lone caller's cycle then takes 210
        # µs instead of 170 µs. The bell stays open until the driver is freed, because a caller may
        # be about to ring.
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._close_bell = weakref.finalize(self, os.close, self._bell)
        self._close_bell.atexit = False
        self._loop.add_reader(self._bell, self._answer)
        # How many messages callers are about to leave, and the time until which the thread often
        # looks for the messages.
        self._messages = 0
        self._until_ns = 0
        # True while a timer for `_look_out` is set. There is never more than one such timer.
        self._is_looking = False
        self._thread = threading.Thread(target=self._run, name="lockcore", daemon=True)
        # The identity of the I/O thread.
        self._io = 0

    def discard(self) -> None:
        """Close everything. The thread of this driver has not started, and no caller uses the
        driver yet."""
        self._end()
        self._close_bell()

    def can_be_interrupted(self) -> bool:
        """See LoopDriver.can_be_interrupted: signals are handled in the main thread only."""
        return threading.current_thread() is threading.main_thread()

    # -- from any thread ---------------------------------------------------------------------------

    def _post(self, job: Callable[[], object]) -> None:
        self._inbox.append(job)
        if not self._has_rung:
            self._has_rung = True
            try:
                self._ring()
            except BaseException:
                # An interrupt ended this ring, so another caller must ring.
                self._has_rung = False
                raise

    def _leave(self, message: Callable[[], object]) -> None:
        """Put a message into the inbox, and do not ring the bell. The caller has posted `_expect`
        before."""
        self._inbox.append(partial(self._hear, message))

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    # -- in the I/O thread -------------------------------------------------------------------------

    def _answer(self) -> None:
        os.eventfd_read(self._bell)
        self.wake()

    def _expect(self) -> None:
        self._messages += 1
        # After an interrupt a caller leaves no message. So after a second the thread looks rarely.
        self._until_ns = monotonic_ns() + NS_PER_S
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_later(LOOK_S, self._look_out)

    def _look_out(self) -> None:
        self.wake()
        self._is_looking = self._messages > 0
        if self._is_looking:
            is_near = monotonic_ns() < self._until_ns
            self._loop.call_later(LOOK_S if is_near else 100 * LOOK_S, self._look_out)

    def _hear(self, message: Callable[[], object]) -> None:
        self._messages -= 1
        message()

    def _run(self) -> None:
        self._io = threading.get_ident()
        try:
            self._loop.run_forever()
        finally:
            self._end()
        if self._bug is not None:
            raise self._bug

    def _failed(self, _loop: object, context: dict[str, object]) -> None:
        """End the thread, because a callback raised an exception. Python prints the exception."""
        exception = context.get("exception")
        self._bug = exception if isinstance(exception, BaseException) else None
        self._loop.stop()

    def _close(self, drain_s: float) -> None:
        closing = self.begin_close(drain_s)
        self._refuse([call for call in list(self.calls) if call.undo is not None])
        self._go_on_closing(closing)

    def _go_on_closing(self, closing: Drain) -> None:
        if self.closed:
            return
        if closing.is_over(monotonic_ns()):
            self.end_close(closing)
            self._loop.stop()
        else:
            self.flush()
            self._loop.call_later(LOOK_S, self._go_on_closing, closing)

    def end_close(self, closing: Drain) -> None:
        """See LoopDriver.end_close."""
        self._refuse(list(self.calls))
        super().end_close(closing)

    def _refuse(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call.fail(InstanceClosedError("all instances", "this Redlock is closed"))
        self.calls.difference_update(call for call in calls if call.over)

    def _end(self) -> None:
        """A close or a bug has ended the work of this thread. End the waits of all callers, and
        close the loop."""
        self.shut()
        self.wake()
        self._refuse(list(self.calls))
        self.wake()
        self._loop.close()

    # -- hooks of LoopDriver and Call --------------------------------------------------------------

    def call_at(self, due_ns: int, job: Callable[[], None]) -> None:
        """Run `job` in the I/O thread at `due_ns`."""
        self._loop.call_later(max(0, due_ns - monotonic_ns()) / NS_PER_S, job)

    def _hand_out(self) -> None:
        self._has_rung = False
        inbox = self._inbox
        while inbox:
            inbox.popleft()()
        if self.engine.outbox.dirty and not self.engine.followed:
            # A release leaves before the SET of the next caller in this process. Otherwise polling
            # callers of other processes would never find the key free.
            self.flush()
        hand_out(self.engine, Call.settled)

    def _connect_later(self, index: int) -> None:
        def shake() -> None:
            self._post(partial(self.connected, index, shaken(self.targets[index])))

        try:
            threading.Thread(target=shake, name="lockcore-handshake", daemon=True).start()
        except RuntimeError as error:
            # There are no more threads, or the interpreter is ending.
            self.connected(index, InstanceClosedError(self.targets[index].address, str(error)))
