"""Whom a lock tells of its operations: *an observer → a listener that the shells call*.

This file is compiled, so it follows the rules of docs/lockcore/compiled.md: a listener is a base
class whose methods machine code calls directly, not by name.

Rules: a listener is told of an operation as it ends, in the caller's own thread, greenlet or task.
So an observer finds the context in which the operation was asked for. The shell itself tells it: a
coroutine around another costs 6,000 instructions a cycle, a call by name 400.

An observer costs nobody a lease. What it raises is dropped. Python prints the first such exception
of the process. An interrupt is not the observer's. Ctrl-C, `sys.exit` in a signal handler, a killed
greenlet and a gevent.Timeout may come while an observer runs, and nobody can tell them from what it
raises itself. So they reach the caller, as anywhere else in an operation, and what was granted is
given back. Three kinds cannot come from outside, and are dropped: CancelledError of asyncio and
GeneratorExit, which come only to a task or a generator that is suspended; and everything in a
thread other than the main one, where no signal is handled.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from lockcore.facts.model import AttemptRecord, Denied, Lease, Observer, OperationObserver, Outcome
from lockcore.unraised import is_its_own, show_unraised


class Listener:
    """An observer as machine code calls it.

    The methods of a subclass (telemetry/fast.py) need not be looked up by name.
    """

    def __init__(self, observer: OperationObserver | Observer | None) -> None:
        self._observer: Any = observer
        self._alone: Any = nullcontext()

    def among_threads(self, lock: Any) -> "Listener":
        """This listener, for callers in several threads.

        `lock` must be one that a signal handler may take, too.
        """
        self._alone = lock
        return self

    def observe(self, record: AttemptRecord) -> None:
        with self._alone:
            self._observer.observe(record)

    def begun(self) -> None:
        with self._alone:
            self._observer.begun()

    def ended(self, resource: Any, result: Lease | Denied | None, started_ns: int) -> None:
        with self._alone:
            self._observer.ended(resource, result, started_ns)

    def released(self, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        with self._alone:
            self._observer.released(lease, outcome, started_ns)

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        with self._alone:
            self._observer.extended(lease, result)

    def gone(self, lease: Lease) -> None:
        with self._alone:
            self._observer.gone(lease)


# The kind of the exception that has been printed. The exception itself is not kept: its traceback
# would keep every frame that it went through.
_dropped: list[str] = []
RAISED = (
    "lockcore: an observer raised; its note of one operation is lost, the lock goes on "
    "(printed once)"
)


def _drop(error: BaseException) -> None:
    """Print the first exception, as Python does with what it cannot raise."""
    if not _dropped:
        _dropped.append(type(error).__name__)
        show_unraised(error, RAISED)


class Unraising(Listener):
    """A listener whose exceptions reach nobody: whatever they are, a lease is its caller's.

    `can_be_interrupted` says whether the present thread can be interrupted, by a signal or because
    a greenlet is killed.
    """

    def __init__(self, listener: Listener, can_be_interrupted: Callable[[], bool]) -> None:
        self._listener = listener
        self._can_be_interrupted = can_be_interrupted

    def is_interrupt(self, error: BaseException) -> bool:
        """True when the error is the process's or the caller's, and not the observer's."""
        return not is_its_own(error) and self._can_be_interrupted()

    def observe(self, record: AttemptRecord) -> None:
        try:
            self._listener.observe(record)
        except BaseException as error:
            if self.is_interrupt(error):
                raise
            _drop(error)

    def begun(self) -> None:
        try:
            self._listener.begun()
        except BaseException as error:
            if self.is_interrupt(error):
                raise
            _drop(error)

    def ended(self, resource: Any, result: Lease | Denied | None, started_ns: int) -> None:
        try:
            self._listener.ended(resource, result, started_ns)
        except BaseException as error:
            if self.is_interrupt(error):
                raise
            _drop(error)

    def released(self, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        try:
            self._listener.released(lease, outcome, started_ns)
        except BaseException as error:
            if self.is_interrupt(error):
                raise
            _drop(error)

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        try:
            self._listener.extended(lease, result)
        except BaseException as error:
            if self.is_interrupt(error):
                raise
            _drop(error)

    def gone(self, lease: Lease) -> None:
        try:
            self._listener.gone(lease)
        except BaseException as error:
            if self.is_interrupt(error):
                raise
            _drop(error)
