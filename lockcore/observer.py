"""The interface of an observer.

lockcore calls your method for each attempt or operation of a lock.

Rules: each method of `Observer` does nothing, so a subclass overrides only the methods that it
needs. A class with all six methods need not be a subclass. An observer must return fast, and never
block. If an observer raises, no caller loses a lease (observed.py). An observer never gets calls
from two threads at once. But a signal handler may call an observer during another call. Another
greenlet may call an observer, too, while the first greenlet waits in the observer. The thread that
does the I/O reports attempts. When an operation ends, the caller's own thread, greenlet or task
reports the operation. A keeper has no caller, so lockcore reports its extensions in a separate
thread or greenlet, or in the event loop. This file is not compiled, because your class could not
derive from a compiled class.
"""

from typing import Protocol

from lockcore.facts.model import AttemptRecord, Denied, Lease, Outcome


class Observer(Protocol):
    """Receives attempts (`Redlock.connect`), or attempts and operations (`Redlock.observe`)."""

    def observe(self, record: AttemptRecord) -> None:
        """Take the record of an observed attempt that has closed."""
        return

    def begun(self) -> None:
        """Note that an acquire begins."""
        return

    def ended(self, resource: str, result: Lease | Denied | None, started_ns: int) -> None:
        """Note that an acquire, begun at `started_ns`, has ended.

        `result` is None if the acquire raised.
        """
        return

    def released(self, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        """Note that a release, begun at `started_ns`, has ended.

        A release that raised is not reported.
        """
        return

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        """Note that an extension of `lease` has ended, by a caller or by a keeper."""
        return

    def gone(self, lease: Lease) -> None:
        """Note that a keeper cannot extend `lease` any more."""
        return
