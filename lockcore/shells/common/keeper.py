"""Keeps a lease alive in the background.

Input: a lease. Output: a handle with the newest lease, or with the reason why the keeper ended.

Pure. This file is not compiled, because it is on no hot path and applications use its class.

Rules: as soon as a keeper ends, it calls the holder's callback. After this call, the keeper reports
its end to the observer. The callback is also called if the end of the lease, a cancelled task or a
bug of lockcore ended the keeper. The callback is not called after `stop`, a release or a close. If
the callback raises, Python prints the exception. A forked child calls neither the callback nor the
observer, because the lease still belongs to the parent. The `error` of the child's handle says that
the process was forked (`forked`).
"""

from collections.abc import Callable, Generator

from lockcore.clock import NS_PER_MS
from lockcore.engine.attempt import asked_until_ns, extend_steps, newest_of
from lockcore.engine.engine import Engine
from lockcore.engine.turns import Request
from lockcore.errors import ForeignProcessError
from lockcore.facts.arguments import A_DAY_MS, check_lease, check_number, check_whole
from lockcore.facts.model import Denied, Lease, Outcome, Tally
from lockcore.unraised import is_its_own, show_unraised

MOST_EXTENSIONS = 1 << 40


def nothing(*_: object) -> None:
    """Do nothing, because there is no listener."""


class KeepAlive:
    """The handle of a lease that is kept alive.

    `lease` is the newest lease, after extensions by the keeper or by other code. `gone` is None
    while the lease is kept alive. `gone` stays None after `stop`, a release or a close. After any
    other end, `gone` is the `Denied` that ended the keeper. `renewals` is the number of extensions
    so far.

    `stopped` is True once the keeper has ended. A keeper ends after `stop`, a release, a close or
    its last extension, and when the lease is gone. `error` is the exception that ended the keeper,
    or None. If `error` is not None, the outcome of `gone` is UNREACHABLE. The lease is then still
    valid until `lease.valid_until_ns`. In a forked child `error` is a ForeignProcessError, because
    only the parent extends the lease. `tell_extended` and `tell_gone` report to the Redlock's
    observer.
    """

    def __init__(
        self,
        lease: Lease,
        every_ms: float | None,
        extensions: int,
        on_gone: Callable[[Denied], None] | None,
    ) -> None:
        check_lease(lease)
        check_whole("extensions", extensions, 1, MOST_EXTENSIONS)
        self.every_ms = lease.ttl_ms / 3 if every_ms is None else every_ms
        validity_ms = (lease.valid_until_ns - lease.started_ns) / NS_PER_MS
        check_number("every_ms", self.every_ms, 1, A_DAY_MS)
        if self.every_ms >= validity_ms:
            raise ValueError(
                f"every_ms must be below the validity of {validity_ms:g} ms, not {self.every_ms:g}"
            )
        if on_gone is not None and not callable(on_gone):
            raise TypeError(f"on_gone must be a function, not {on_gone!r}")
        self._lease = lease
        self.extensions = extensions
        self.renewals = 0
        self.gone: Denied | None = None
        self.error: BaseException | None = None
        self.stopped = False
        self.cancel: Callable[[], object] | None = None
        self.tell_extended: Callable[[Lease, Lease | Denied], object] = nothing
        self.tell_gone: Callable[[Lease], object] = nothing
        self._on_gone = on_gone

    @property
    def lease(self) -> Lease:
        """The newest lease. An extension by the holder also makes a new lease."""
        return newest_of(self._lease)

    def renewed(self, lease: Lease) -> None:
        """Note that an extension has succeeded."""
        self._lease = lease
        self.renewals += 1

    def ended(self, denied: Denied) -> None:
        """End the keeper with `denied`. If the keeper was not stopped before, report its end.

        The lease is gone, or this keeper cannot extend it any more.
        """
        # A holder may release the lease in `on_gone`. Such a release must not stop the steps that
        # call `on_gone`.
        self.cancel = None
        if self.stopped:
            return
        self.stopped = True
        self.gone = denied
        try:
            if self._on_gone is not None:
                self._on_gone(denied)
        except BaseException as error:
            if not is_its_own(error):
                raise
            show_unraised(
                error,
                "lockcore: the function on_gone raised an exception for the lease on "
                f"{denied.resource!r}",
            )
        finally:
            self.tell_gone(self.lease)

    def forked(self, denied: Denied) -> None:
        """End this keeper without a report, because it is a copy in a forked child.

        The keeper in the parent process continues.
        """
        self.cancel = None
        if not self.stopped:
            self.stopped = True
            self.gone = denied
            self.error = ForeignProcessError()

    def stop(self) -> None:
        """Stop the extensions.

        The lease lasts until `lease.valid_until_ns` or until its release.
        """
        self.stopped = True
        cancel = self.cancel
        self.cancel = None
        if cancel is not None:
            cancel()


def keeper_steps(keeper: KeepAlive, engine: Engine) -> Generator[Request, int, Denied]:
    """Steps that extend the keeper's lease every `every_ms`.

    The steps end after `extensions` extensions, or when the lease is gone. The value of the steps
    is a `Denied`, even after an exception. Raises ValueError at once if another engine made the
    lease.
    """
    engine.extend_round(keeper.lease, engine.terms(keeper.lease.ttl_ms), keeper.lease.started_ns)

    def steps() -> Generator[Request, int, Denied]:
        try:
            return (yield from _extensions(keeper, engine))
        except GeneratorExit:
            # `stop` was called, or no loop is left to run the steps.
            raise
        except BaseException as error:
            if not keeper.stopped:
                keeper.error = error
            denied = over(keeper.lease, Outcome.UNREACHABLE, engine, engine.now_ns)
            if isinstance(error, Exception):
                return denied
            # The steps were cancelled from outside. This is reported, and the steps end.
            keeper.ended(denied)
            raise

    return steps()


def _extensions(keeper: KeepAlive, engine: Engine) -> Generator[Request, int, Denied]:
    """Extend the lease when it is due.

    If an extension reaches too few instances, the keeper tries again after a tenth of `every_ms`.
    Nothing is sent after the end of the lease. Other code may also extend the lease. The keeper
    then makes its next extension later.
    """
    lease = keeper.lease
    every_ns = int(keeper.every_ms * NS_PER_MS)
    ttl_ms = lease.ttl_ms
    usable_ns = engine.terms(ttl_ms).usable_ns
    again_ns = now_ns = 0
    while keeper.renewals < keeper.extensions:
        lease = newest_of(lease)
        asked_ns = asked_until_ns(lease)
        due_ns = max(again_ns or lease.started_ns + every_ns, asked_ns - usable_ns + 1)
        due_ns = min(due_ns, lease.valid_until_ns)
        now_ns = yield due_ns
        # A timer may also fire early.
        if now_ns < due_ns:
            continue
        again_ns = 0
        if newest_of(lease) is not lease or asked_until_ns(lease) != asked_ns:
            continue
        extended = yield from extend_steps(engine, lease, ttl_ms, now_ns)
        keeper.tell_extended(lease, extended)
        if isinstance(extended, Lease):
            keeper.renewed(extended)
        elif extended.outcome is Outcome.UNREACHABLE:
            again_ns = extended.ended_ns + every_ns // 10
        else:
            return extended
    while newest_of(lease) is not lease or now_ns < lease.valid_until_ns:
        lease = newest_of(lease)
        now_ns = yield lease.valid_until_ns
    return over(lease, Outcome.GONE, engine, now_ns)


def over(lease: Lease, outcome: Outcome, engine: Engine, now_ns: int) -> Denied:
    """Make a `Denied` for a keeper that ended before any instance answered."""
    return Denied(
        lease.resource, outcome, Tally(absent=engine.instances), 1, 0, lease.started_ns, now_ns
    )
