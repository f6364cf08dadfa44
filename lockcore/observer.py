"""The interface of an observer: *an attempt or an operation of a lock → a call of your method*.

Rules: each method of `Observer` does nothing, so a subclass overrides only the methods that it
needs. A class with all six methods need not be a subclass. An observer must return fast, and never
block. If an observer raises, no caller loses a lease (observed.py). An observer never gets calls
from two threads at once. But a signal handler may call an observer during another call. So may
another greenlet, while the first greenlet waits in the observer. The thread that does the I/O
reports attempts. The caller's own thread, greenlet or task reports an operation as it ends. A
keeper has no caller, so lockcore reports its extensions in a separate thread or greenlet, or in the
event loop. This file is not compiled, because your class could not derive from a compiled class.
"""

from typing import Protocol

from lockcore.facts.model import AttemptRecord, Denied, Lease, Outcome


class Observer(Protocol):
    """Gets attempts (`Redlock.connect`), or attempts and operations (`Redlock.observe`)."""

    def observe(self, record: AttemptRecord) -> None:
        """Take the record of an observed attempt that has closed."""
        return

    def begun(self) -> None:
        """Note that an acquire begins."""
        return

    def ended(self, resource: str, result: Lease | Denied | None, started_ns: int) -> None:
        """Note that an acquire from `started_ns` has ended. `result` is None if it raised."""
        return

    def released(self, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        """Note that a release from `started_ns` has ended. Not called if the release raised."""
        return

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        """Note that an extension of `lease` has ended, by a caller or by a keeper."""
        return

    def gone(self, lease: Lease) -> None:
        """Note that a keeper cannot keep `lease` any more."""
        return
