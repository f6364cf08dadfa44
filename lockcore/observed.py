"""Whom a lock tells what it does: *an observer → a listener, whom the shells tell of every operation as it ends*.

Rules: told in the caller's own thread, greenlet or task, so that an observer finds the context the operation was asked
for in; by the shell itself (a coroutine around another costs 6,000 instructions a cycle, a call by name 400). An
observer that raises costs nobody a lease: its first exception of the process is printed, and all are dropped.
"""

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

from lockcore.model import AttemptRecord, Denied, Lease, OperationObserver, Outcome


class Listener:
    """An observer as machine code calls it: the methods of a subclass (counted.py) need not be looked up by name."""

    def __init__(self, observer: OperationObserver | None) -> None:
        self._observer: Any = observer
        self._alone: Any = nullcontext()

    def among_threads(self, lock: Any) -> "Listener":
        """This one, for callers in several threads; `lock`: one that a signal handler may take, too."""
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


_dropped: list[BaseException] = []


def _drop(error: Exception) -> None:
    """Print the first one, as Python does with what it cannot raise."""
    if not _dropped:
        _dropped.append(error)
        about = "lockcore: an observer raised; what it was told is lost, the lock goes on (said once)"
        told = SimpleNamespace(
            exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__, err_msg=about, object=None
        )
        sys.unraisablehook(cast("sys.UnraisableHookArgs", told))


class Unraising(Listener):
    """A listener whose exceptions reach nobody: whatever they are, a lease is its caller's."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def observe(self, record: AttemptRecord) -> None:
        try:
            self._listener.observe(record)
        except Exception as error:  # noqa: BLE001
            _drop(error)

    def begun(self) -> None:
        try:
            self._listener.begun()
        except Exception as error:  # noqa: BLE001
            _drop(error)

    def ended(self, resource: Any, result: Lease | Denied | None, started_ns: int) -> None:
        try:
            self._listener.ended(resource, result, started_ns)
        except Exception as error:  # noqa: BLE001
            _drop(error)

    def released(self, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        try:
            self._listener.released(lease, outcome, started_ns)
        except Exception as error:  # noqa: BLE001
            _drop(error)

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        try:
            self._listener.extended(lease, result)
        except Exception as error:  # noqa: BLE001
            _drop(error)

    def gone(self, lease: Lease) -> None:
        try:
            self._listener.gone(lease)
        except Exception as error:  # noqa: BLE001
            _drop(error)
