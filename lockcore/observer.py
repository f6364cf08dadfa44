"""The interface of an observer.

lockcore calls your method for each attempt or operation of a lock.

Rules: each method of `Observer` does nothing, so a subclass overrides only the methods that it
needs. If a class has all six methods, it need not be a subclass. An observer must return fast, and
never block. If an observer raises, no caller loses a lease (observed.py). An observer never gets
calls from two threads at once. But if a signal handler uses the lock, the observer may get a call
while another call is running. A greenlet may wait within a call of the observer. Meanwhile another
greenlet may call the observer. lockcore reports an attempt in the thread that does the I/O.
lockcore reports the end of an operation in the caller's own thread, greenlet or task. A keeper has
no caller. So lockcore reports the extensions of a keeper in a separate thread or greenlet, or in
the event loop. This file is not compiled, because your class could not derive from a compiled
class.
"""

from typing import Protocol

from lockcore.facts.model import AttemptRecord, Denied, Lease, Outcome


class Observer(Protocol):
    """Receives attempts (`Redlock.connect`), or attempts and operations (`Redlock.observe`)."""

    def observe(self, record: AttemptRecord) -> None:
        """Receive the record of an observed attempt after the attempt has closed."""
        return

    def begun(self) -> None:
        """Note that an acquire begins."""
        return

    def ended(self, resource: str, result: Lease | Denied | None, started_ns: int) -> None:
        """Note that an acquire has ended. The acquire began at `started_ns`.

        `result` is None if the acquire raised.
        """
        return

    def released(self, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        """Note that a release has ended. The release began at `started_ns`.

        A release that raised is not reported.
        """
        return

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        """Note that an extension of `lease` has ended. Either a caller or a keeper has extended the
        lease."""
        return

    def gone(self, lease: Lease) -> None:
        """Note that a keeper cannot extend `lease` any more."""
        return
