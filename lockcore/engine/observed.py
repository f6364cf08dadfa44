"""This module puts a guard around an observer: *an observer → a listener that the shells call*.

This file is compiled, so it follows the rules of docs/lockcore/compiled.md. For this reason, the
code looks up the methods of an observer by name. The code calls the methods of a listener without a
look-up.

Rules: a shell calls a listener when an operation ends, in the thread, greenlet or task of the
caller. So an observer runs in the caller's context. The shell calls the listener directly, because
a wrapping coroutine would cost 6,000 instructions per cycle. Each call of a method by name costs
400 instructions.

An observer cannot make a caller lose a lease. If an observer raises an exception, the listener
drops the exception. Only the first dropped exception of a process is printed. However, an interrupt
may arrive while the observer runs. An interrupt is Ctrl-C, `sys.exit` in a signal handler, a killed
greenlet, or a gevent.Timeout. Code cannot distinguish an interrupt from the observer's own
exception. So if a BaseException may be an interrupt, the listener lets it reach the caller. If an
interrupt reaches the caller after a grant, the granted lease is released. The listener drops all
other exceptions. So the listener drops every `Exception`, and also asyncio's CancelledError and
GeneratorExit. Python raises CancelledError and GeneratorExit only in a suspended task or generator,
so here these two exceptions are not interrupts. In the shell for threads, the listener also drops
all exceptions outside the main thread, because only the main thread handles signals.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from lockcore.facts.model import AttemptRecord, Denied, Lease, Outcome
from lockcore.unraised import is_its_own, show_unraised

# The class name of the exception that was printed. The exception itself is not kept, because its
# traceback would keep alive every frame that it went through.
_dropped: list[str] = []
RAISED = (
    "lockcore: an observer raised an exception; the record of one operation is lost, but the "
    "lock continues (this message appears once)"
)


def _drop(error: BaseException) -> None:
    """Print the exception if it is the first dropped exception of the process. The format is
    Python's format for an exception that cannot be raised."""
    if not _dropped:
        _dropped.append(type(error).__name__)
        show_unraised(error, RAISED)


class Listener:
    """A guard around an observer. The guard hides the observer's exceptions from the caller.

    `can_be_interrupted` is True if a signal or a kill of a greenlet can interrupt the present
    thread. `alone` is a context manager, and the listener calls the observer inside its context.
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
        """Return True if the error may be an interrupt.

        Return False if the error is certainly the observer's own exception.
        """
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
