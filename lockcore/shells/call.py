"""One operation of a thread, carried out by another: *steps, run where the engine lives → a value for who waits*.

Rules: the I/O thread runs the steps; the caller only sleeps. Where validity is judged (`judged`) the caller is woken
as soon as a quorum has granted and says when it ran (`go_on`); nothing else crosses a second time. A caller that is
gone has `abandon` called, which takes back whatever it has not received. All methods but `result` run in the I/O
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from threading import Lock
from typing import Any, Protocol

from lockcore.clock import monotonic_ns
from lockcore.model import Outcome
from lockcore.rounds import Round
from lockcore.turns import Turn, Wanted

GRANTED = (Outcome.ACQUIRED, Outcome.RELEASED)


class Carrier(Protocol):
    """The I/O thread as a call sees it."""

    calls: set[Call]

    def submit(self, round_: Round | Turn) -> None:
        """Queue a round, whose waiter is then woken by `settled`."""

    def call_at(self, due_ns: int, job: Callable[[], None]) -> None:
        """Run `job` at that time."""


class Call:
    """`over`: `result` gives the value or raises. `wake` is called when it is, and when a grant is to be judged."""

    __slots__ = ("_error", "_judged", "_steps", "_undo", "_value", "carrier", "over", "wake")

    def __init__(
        self,
        carrier: Carrier,
        steps: Generator[Wanted, int, Any],
        wake: Callable[[], object],
        *,
        judged: bool = False,
        undo: Callable[[Any], None] | None = None,
    ) -> None:
        self.carrier = carrier
        self.wake = wake
        self.over = False
        self._steps = steps
        self._judged = judged
        self._undo = undo
        self._value: Any = None
        self._error: BaseException | None = None

    def result(self) -> Any:
        """What the steps returned; raises what they raised."""
        if self._error is not None:
            raise self._error
        return self._value

    def start(self) -> None:
        """Run the steps up to their first wait."""
        self.carrier.calls.add(self)
        self._advance(lambda: next(self._steps))

    def settled(self, round_: Round | Turn) -> None:
        """The round it waits for has an outcome."""
        if self._judged and round_.outcome in GRANTED:
            self.wake()
        else:
            self.go_on(monotonic_ns())

    def go_on(self, now_ns: int) -> None:
        """Run the steps from a wait that ended at `now_ns` up to the next one."""
        if not self.over:
            self._advance(lambda: self._steps.send(now_ns))

    def fail(self, error: Exception) -> None:
        """The wait cannot end."""
        if not self.over:
            self._advance(lambda: self._steps.throw(error))

    def abandon(self) -> None:
        """The caller is gone: nobody may hold what it would have got."""
        if not self.over:
            self.over = True
            self.carrier.calls.discard(self)
            self._steps.close()
        elif self._undo is not None and self._value is not None:
            self._undo(self._value)

    def _advance(self, run: Callable[[], Wanted]) -> None:
        try:
            self._wait_for(run())
        except StopIteration as done:
            self._value = done.value
            self._finish()
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller, who raises it
            self._steps.close()
            self._error = error
            self._finish()

    def _wait_for(self, wanted: Wanted) -> None:
        due_ns = wanted if isinstance(wanted, int) else 0
        if not isinstance(wanted, int):
            self.carrier.submit(wanted)
            if wanted.outcome is None:
                wanted.waiter = self
                return
            due_ns = monotonic_ns()  # settled without waiting: who tries again at once must not starve the I/O thread
        self.carrier.call_at(due_ns, lambda: self.go_on(monotonic_ns()))

    def _finish(self) -> None:
        self.over = True
        self.carrier.calls.discard(self)
        self.wake()


def ring(lock: Lock) -> None:
    """Wake who sleeps on `lock`; twice is once, should he not have woken yet. Only the I/O thread rings."""
    if lock.locked():
        lock.release()
