"""One operation that the I/O thread runs for another thread: *steps → a value for its caller*.

Rules: the I/O thread runs the steps, because the engine lives there. The caller only sleeps, and
takes the result. The I/O thread puts the result into the call's `_hand`. The caller owns the result
after taking it out of the hand. Before that, the I/O thread may take the result back. So either the
caller or the I/O thread gets the result, never both. If the caller judges the lease (`judged`), the
call offers the lease. The caller takes the lease, reads the clock, and keeps the lease or not. Then
the caller reports its decision (`taken`, `go_on`) without another wait. All methods except `take`
run in the I/O thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from threading import Lock
from typing import Any, Protocol

from lockcore.clock import monotonic_ns
from lockcore.engine.turns import Offer, Request, Turn
from lockcore.errors import InstanceClosedError
from lockcore.rounds.rounds import Round


def nothing() -> None:
    """Do nothing, because no caller waits."""


class Carrier(Protocol):
    """The I/O thread, as a call sees it.

    `calls` has the calls whose callers have not taken the result yet.
    """

    calls: set[Call]

    def submit(self, round_: Round | Turn) -> None:
        """Queue a round. When it is settled, the call's `settled` runs."""

    def call_at(self, due_ns: int, job: Callable[[], None]) -> None:
        """Run `job` at `due_ns`."""


class Call:
    """An operation of a thread.

    `take` returns the operation's value if the operation is `over`, and an `Offer` otherwise.
    `wake` is called when there is something to take. `undo` takes a value back. Only an acquire has
    an `undo`.
    """

    __slots__ = (
        "_error",
        "_hand",
        "_judged",
        "_offered",
        "_steps",
        "_value",
        "carrier",
        "over",
        "undo",
        "wake",
    )

    def __init__(
        self,
        carrier: Carrier,
        steps: Generator[Request, int, object],
        wake: Callable[[], object],
        *,
        judged: bool = False,
        undo: Callable[[Any], None] | None = None,
    ) -> None:
        self.carrier = carrier
        self.wake = wake
        self.over = self._offered = False
        self.undo = undo
        self._steps = steps
        self._judged = judged
        self._hand: list[object] = []
        self._value: object = None
        self._error: BaseException | None = None

    def take(self) -> object:
        """Take the content of the hand.

        Raises the exception of the steps, or an error if the content has been taken back.
        """
        try:
            return self._hand.pop()
        except IndexError:
            closed = InstanceClosedError("all instances", "this Redlock is closed")
            raise self._error or closed from None

    def start(self) -> None:
        """Run the steps up to their first wait."""
        self.carrier.calls.add(self)
        self._advance(lambda: next(self._steps))

    def settled(self) -> None:
        """Run the next steps, because the call's round has an outcome."""
        self.go_on(monotonic_ns())

    def go_on(self, now_ns: int) -> None:
        """Run the steps from a wait that ended at `now_ns` up to the next wait."""
        if not self.over:
            self._offered = False
            self._advance(lambda: self._steps.send(now_ns))

    def taken(self, now_ns: int) -> None:
        """Go on for a caller that took the offer at `now_ns` and waits no more."""
        self.wake = nothing
        self.go_on(now_ns)

    def fail(self, error: Exception) -> None:
        """End the call with an error, because its wait cannot end or its result may not be taken.

        A caller that has already taken the result keeps it.
        """
        if self.over and self.undo is None:
            return
        if self.over or self._offered:
            try:
                self._hand.pop()
            except IndexError:
                return
            self._error = error
            self._offered = False
        if not self.over:
            self._advance(lambda: self._steps.throw(error))
        elif self.undo is not None:
            self.undo(self._value)

    def abandon(self) -> None:
        """Release anything that the call may still get, because the caller is gone."""
        self.carrier.calls.discard(self)
        if not self.over:
            self.over = True
            self._steps.close()
        elif self.undo is not None and self._value is not None:
            self.undo(self._value)

    def _advance(self, run: Callable[[], Request]) -> None:
        try:
            request = run()
            try:
                self._wait_for(request)
            except Exception as refused:
                self._steps.throw(refused)
                raise
        except StopIteration as done:
            self._value = done.value
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller, who raises it
            self._steps.close()
            self._error = error
        else:
            return
        self.over = True
        if self._error is None:
            self._hand.append(self._value)
        self.wake()

    def _wait_for(self, request: Request) -> None:
        if isinstance(request, Offer) and self._judged:
            self._offered = True
            self._hand.append(request)
            self.wake()
            return
        due_ns = request if isinstance(request, int) else 0
        if not isinstance(request, int | Offer):
            self.carrier.submit(request)
            if request.outcome is None:
                request.waiter = self
                return
            # The round was settled without waiting. A caller that tries again at once must not
            # starve the I/O thread.
            due_ns = monotonic_ns()
        self.carrier.call_at(due_ns, lambda: self.go_on(monotonic_ns()))


def locked() -> Lock:
    """A lock that a caller sleeps on."""
    lock = Lock()
    lock.acquire()
    return lock


def ring(lock: Lock) -> None:
    """Wake the caller that sleeps on `lock`. Only the I/O thread rings.

    A second ring before the caller has woken does nothing.
    """
    if lock.locked():
        lock.release()
