"""One operation that the I/O thread runs for another thread.

Input: the steps of an operation. Output: a value for the caller.

Rules: the I/O thread runs the steps, because only this thread uses the engine. The caller only
sleeps and takes the result. The I/O thread puts the result into the list `_hand`. When the caller
has removed the result from `_hand`, the result belongs to the caller. While the result is in
`_hand`, the I/O thread may remove it, for example at a close. So either the caller or the I/O
thread gets the result, and never both. If `judged` is True, the call offers a lease to the caller.
The caller takes the lease, reads the clock, and decides whether the lease is still valid. Then the
caller reports its decision (`taken` or `go_on`). All methods except `take` run in the I/O thread.
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
    """The part of the I/O thread that a call uses.

    `calls` contains the calls whose callers have not taken the result yet.
    """

    calls: set[Call]

    def submit(self, round_: Round | Turn) -> None:
        """Queue a round. When the round is settled, the call's `settled` runs."""

    def call_at(self, due_ns: int, job: Callable[[], None]) -> None:
        """Run `job` at `due_ns`."""


class Call:
    """An operation of a thread.

    `take` returns the value of the operation if the operation is `over`, and an `Offer` if it is
    not. The call runs `wake` as soon as `take` can return a value. `undo` releases a value that no
    caller will use, and only an acquire has an `undo`.
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
        """Remove the result from `_hand`, and return it.

        Raises the exception of the steps, or an error if the I/O thread has removed the result.
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
        """Run the steps up to their next wait. The last wait ended at `now_ns`."""
        if not self.over:
            self._offered = False
            self._advance(lambda: self._steps.send(now_ns))

    def taken(self, now_ns: int) -> None:
        """Run the next steps. The caller took the offer at `now_ns` and does not wait any more."""
        self.wake = nothing
        self.go_on(now_ns)

    def fail(self, error: Exception) -> None:
        """End the call with an error, because the Redlock closes or its I/O thread ends.

        If the caller has already taken the result, the caller keeps it.
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
        """Release any lease that this call gets, because the caller is gone."""
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
    """Return a locked lock. A caller sleeps until another thread releases this lock."""
    lock = Lock()
    lock.acquire()
    return lock


def ring(lock: Lock) -> None:
    """Wake the caller that sleeps on `lock`. Only the I/O thread calls this function.

    A second call has no effect if the caller has not woken yet.
    """
    if lock.locked():
        lock.release()
