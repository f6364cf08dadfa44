"""A lease kept alive in the background: *a lease → a handle with the newest one, or why it is gone*. Pure.

Rules: bounded in number, stopped by release, never extends after the lease's own end (attempt.py), tells its holder at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from lockcore.attempt import keep_alive_steps
from lockcore.clock import NS_PER_MS
from lockcore.engine import Engine
from lockcore.errors import LockcoreError
from lockcore.model import Denied, Lease
from lockcore.turns import Wanted


class KeepAlive:
    """`lease`: the newest one. `gone`: None while it is ours, else why it is not. `renewals`: extensions so far.

    `stopped`: it is over, because it was told to, the lease was released, or it is gone (also when no extension was
    left and its end has come).
    """

    def __init__(
        self, lease: Lease, every_ms: float | None, extensions: int, on_gone: Callable[[Denied], None] | None
    ) -> None:
        if extensions < 1:
            raise ValueError(f"extensions must be at least 1, not {extensions}")
        self.every_ms = lease.ttl_ms / 3 if every_ms is None else every_ms
        validity_ms = (lease.valid_until_ns - lease.started_ns) / NS_PER_MS
        if not 1 <= self.every_ms < validity_ms:
            raise ValueError(f"every_ms must be 1 … below the validity of {validity_ms:g} ms, not {self.every_ms:g}")
        self.lease = lease
        self.extensions = extensions
        self.renewals = 0
        self.gone: Denied | None = None
        self.stopped = False
        self.cancel: Callable[[], object] | None = None
        self._on_gone = on_gone

    def renewed(self, lease: Lease) -> None:
        """An extension succeeded."""
        self.lease = lease
        self.renewals += 1

    def ended(self, denied: Denied | None) -> None:
        """It is over: the lease is gone (`denied`), or nobody can extend it from here any more (None)."""
        was_stopped, self.stopped = self.stopped, True
        self.cancel = None  # a holder that releases in `on_gone` must not stop what is telling him
        if denied is not None and not was_stopped:
            self.gone = denied
            if self._on_gone is not None:
                self._on_gone(denied)

    def stop(self) -> None:
        """Extend no more; the lease lasts until `lease.valid_until_ns` unless released."""
        self.stopped = True
        cancel, self.cancel = self.cancel, None
        if cancel is not None:
            cancel()


def keeper_steps(keeper: KeepAlive, engine: Engine) -> Generator[Wanted, int, Denied | None]:
    """The steps of `keep_alive_steps` for a handle. None also when the Redlock is closed, or of another process.

    Raises ValueError at once when the lease was not made by `engine`.
    """
    lease = keeper.lease
    engine.extend_round(lease, engine.terms(lease.ttl_ms), lease.started_ns)

    def steps() -> Generator[Wanted, int, Denied | None]:
        extensions = keep_alive_steps(engine, lease, lease.ttl_ms, keeper.every_ms, keeper.extensions, keeper.renewed)
        try:
            return (yield from extensions)
        except LockcoreError:
            return None

    return steps()
