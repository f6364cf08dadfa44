"""Whom a lock tells of its operations: *an observer → a listener that the shells call*.

This file is compiled, so it follows the rules of docs/lockcore/compiled.md: an observer's methods
are looked up by name, and a listener's are not.

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
from contextlib import AbstractContextManager

from lockcore.facts.model import AttemptRecord, Denied, Lease, Outcome
from lockcore.unraised import is_its_own, show_unraised

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


class Listener:
    """An observer whose exceptions reach nobody: whatever they are, a lease is its caller's.

    `can_be_interrupted` says whether the present thread can be interrupted, by a signal or because
    a greenlet is killed. The observer is told within `alone`.
    """

    def __init__(
        self,
        observer: object,
        can_be_interrupted: Callable[[], bool],
        alone: AbstractContextManager[object],
    ) -> None:
        self._observer = observer
        self._can_be_interrupted = can_be_interrupted
        self._alone = alone

    def is_interrupt(self, error: BaseException) -> bool:
        """True when the error is the process's or the caller's, and not the observer's."""
        return not is_its_own(error) and self._can_be_interrupted()

    def _tell(self, method: str, *facts: object) -> None:
        try:
            with self._alone:
                getattr(self._observer, method)(*facts)
        except BaseException as error:
            if self.is_interrupt(error):
                raise
            _drop(error)

    def observe(self, record: AttemptRecord) -> None:
        self._tell("observe", record)

    def begun(self) -> None:
        self._tell("begun")

    def ended(self, resource: object, result: Lease | Denied | None, started_ns: int) -> None:
        self._tell("ended", resource, result, started_ns)

    def released(self, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        self._tell("released", lease, outcome, started_ns)

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        self._tell("extended", lease, result)

    def gone(self, lease: Lease) -> None:
        self._tell("gone", lease)
