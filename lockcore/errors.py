"""The exceptions of this package.

Input: a failed operation. Output: an exception that carries the data of the failure.

    LockcoreError                       .definite: no instance can have changed
      AcquireError                      resource, tally, attempts
        ContendedError  SplitVoteError  UnreachableError  TooLateError
      LeaseGoneError                    lease, tally
      InstanceError                     instance
        InstanceTimeoutError  InstanceClosedError  InstanceReplyError  InstanceRefusedError
      ProtocolError                     bytes that are not RESP
      ForeignProcessError               used in a process that did not connect it
      CannotWaitError                   used where it cannot wait: nothing was sent

Rules: the name of each exception ends in Error. An exception contains data, and `__str__` makes the
text from this data. No exception contains a password.
"""

from lockcore.facts.model import Denied, Lease, Outcome, Tally


class LockcoreError(Exception):
    """The base class of all errors that this package raises on purpose.

    `tally` counts the votes of the operation's last round. If there was no round, every count is 0.
    """

    tally = Tally()

    @property
    def definite(self) -> bool:
        """True if the operation certainly changed no instance.

        The result is True if all votes are known, and no vote is GRANTED or SILENT.
        """
        return self.tally.granted == self.tally.silent == self.tally.undecided == 0


class AcquireError(LockcoreError):
    """An acquire, an extension or a release failed."""

    reason = "not acquired"

    def __init__(self, resource: str, tally: Tally, attempts: int) -> None:
        super().__init__(resource, tally, attempts)
        self.resource = resource
        self.tally = tally
        self.attempts = attempts

    def __str__(self) -> str:
        rounds = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return f"{self.resource!r}: {self.reason} ({self.tally} after {rounds})"


class ContendedError(AcquireError):
    """A quorum of instances says that another caller holds the lock."""

    reason = "held by another owner"


class SplitVoteError(AcquireError):
    """The votes were split, and this caller saw no quorum for any caller."""

    reason = "split vote, nobody won"


class UnreachableError(AcquireError):
    """Too few instances could answer, so no quorum was possible."""

    reason = "too few instances could vote"


class TooLateError(AcquireError):
    """A quorum granted the lock, but the validity ended before the caller had the lease."""

    reason = "the grants arrived too late for a valid lease"


class LeaseGoneError(LockcoreError):
    """The lease is no longer ours, because it expired or because somebody removed the key."""

    def __init__(self, lease: Lease, tally: Tally) -> None:
        super().__init__(lease, tally)
        self.lease = lease
        self.tally = tally

    def __str__(self) -> str:
        return f"{self.lease.resource!r}: the lease is no longer ours ({self.tally})"


class InstanceError(LockcoreError):
    """One instance failed. `instance` is the address of the instance, without secrets."""

    reason = "failed"

    def __init__(self, instance: str, detail: str = "") -> None:
        super().__init__(instance, detail)
        self.instance = instance
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.instance}: {self.reason}" + (f": {self.detail}" if self.detail else "")


class InstanceTimeoutError(InstanceError):
    """The instance did not answer in time."""

    reason = "no answer in time"


class InstanceClosedError(InstanceError):
    """The connection to the instance could not be opened, or it ended."""

    reason = "not connected"


class InstanceReplyError(InstanceError):
    """The instance answered with an error."""

    reason = "answered with an error"


class InstanceRefusedError(InstanceError):
    """The instance must not take part in a quorum.

    lockcore raises this error for a cluster node and for a replica. lockcore also raises it if two
    instances of the lock are the same server. The error is also raised if the user of the
    connection may not run the commands that a lock needs.
    """

    reason = "cannot take part"


class ProtocolError(LockcoreError):
    """The peer sent bytes that are not RESP, or a reply without a command."""


class CannotWaitError(LockcoreError):
    """A Redlock was used in a place where it cannot wait. Nothing was sent.

    A Redlock cannot wait in its own I/O thread, in gevent's hub, or in any event loop except its
    own.
    """

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where

    def __str__(self) -> str:
        return f"this Redlock cannot wait {self.where}; nothing was sent"


class ForeignProcessError(LockcoreError):
    """A Redlock was used in a process that did not connect it.

    lockcore refuses this, because owner tokens would repeat.
    """

    def __str__(self) -> str:
        return "another process connected this Redlock; call connect() again after fork"


_BY_OUTCOME: dict[Outcome, type[AcquireError]] = {
    Outcome.CONTENDED: ContendedError,
    Outcome.SPLIT_VOTE: SplitVoteError,
    Outcome.UNREACHABLE: UnreachableError,
    Outcome.TOO_LATE: TooLateError,
}


def error_of(denied: Denied, lease: Lease | None = None) -> LockcoreError:
    """Return the exception for `denied`. `lease` is the lease of an extension or a release."""
    if denied.outcome is Outcome.GONE and lease is not None:
        return LeaseGoneError(lease, denied.tally)
    return _BY_OUTCOME[denied.outcome](denied.resource, denied.tally, denied.attempts)
