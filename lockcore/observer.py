"""The interface of an observer: *an attempt or an operation of a lock → a call of your method*.

Rules: there is one interface. Each method does nothing, so a subclass of `Observer` overrides only
the methods that it needs. A class with all six methods need not be a subclass. An observer must
return fast, and never block. If it raises, no caller loses a lease (observed.py). An observer never
gets calls from two threads at once. But a second call may come during the first call, from a signal
handler, or from another greenlet while the first greenlet waits in the observer. The thread that
does the I/O reports attempts. The caller's own thread, greenlet or task reports an operation as it
ends. A keeper has no caller, so its extensions are reported beside all callers. This file is not
compiled, because your class could not derive from a compiled class.
"""

from typing import Protocol

from lockcore.facts.model import AttemptRecord, Denied, Lease, Outcome


class Observer(Protocol):
    """Gets attempts (`Redlock.connect`), or attempts and operations (`Redlock.observe`)."""

    def observe(self, record: AttemptRecord) -> None:
        """An observed attempt has closed."""
        return

    def begun(self) -> None:
        """An acquire begins."""
        return

    def ended(self, resource: str, result: Lease | Denied | None, started_ns: int) -> None:
        """An acquire that began at `started_ns` is over. The result is None if it raised."""
        return

    def released(self, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        """A release that began at `started_ns` has ended. A release that raised is not reported."""
        return

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        """An extension of `lease` has ended. This includes the extensions of a keeper."""
        return

    def gone(self, lease: Lease) -> None:
        """A keeper cannot keep `lease` any more."""
        return
