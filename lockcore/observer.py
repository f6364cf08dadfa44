"""What a lock tells of its operations: *an attempt or an operation → a method of yours*.

Rules: there is one interface. Each method does nothing, so that a class derived from `Observer`
overrides what it wants to hear; a class with all six methods need not be derived from it. An
observer must return fast, and never block. What it raises costs nobody a lease (observed.py).
Attempts are told in the thread that does the I/O. Operations are told as they end, where they were
asked for. Of extensions, and of releases by `release`, it is told where the I/O is done. It never
gets two calls at once. This file is not compiled, because no class of yours can be derived from a
compiled one.
"""

from typing import Protocol

from lockcore.facts.model import AttemptRecord, Denied, Lease, Outcome


class Observer(Protocol):
    """Hears of attempts (`Redlock.connect`), or of attempts and operations (`Redlock.observe`)."""

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
        """A release that began at `started_ns` has ended. A release that raised is not told."""
        return

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        """An extension of `lease` has ended. A keeper's extensions are told, too."""
        return

    def gone(self, lease: Lease) -> None:
        """A keeper cannot keep `lease` any more."""
        return
