"""The facts of a lock as values.

Input: events of a lock. Output: outcomes and counts.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, the outcomes of the hot paths are constants, and `Lease` is a plain class with slots.

Rules: facts are immutable. A `Lease` is a plain class with slots, and its attributes are set once.
Hot paths create leases, and a frozen dataclass would take four times as long to create. Times are
integers in ns of CLOCK_MONOTONIC. The README's vocabulary explains the names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple


class Vote(Enum):
    """The vote of one instance on one command, or the reason why there is no vote.

    GRANTED means success. REFUSED means that the key is held. ERRORED means a definite error reply,
    so nothing changed. SILENT means that the command was sent but not answered, so it may have been
    executed. ABSENT means that the command was not sent, so it cannot have been executed.
    """

    GRANTED = "granted"
    REFUSED = "refused"
    ERRORED = "errored"
    SILENT = "silent"
    ABSENT = "absent"


class Outcome(Enum):
    """The result of an acquire, an extension or a release.

    ACQUIRED, EXTENDED and RELEASED are successes. CONTENDED means that a quorum refused the lock.
    SPLIT_VOTE means that the attempt cannot win, and that it saw no quorum of refusals. UNREACHABLE
    means that a quorum is impossible. TOO_LATE means that a quorum granted the lock, but the
    validity ended before the caller had the lease. GONE means that the lease is no longer ours.
    """

    ACQUIRED = "acquired"
    CONTENDED = "contended"
    SPLIT_VOTE = "split_vote"
    UNREACHABLE = "unreachable"
    TOO_LATE = "too_late"
    EXTENDED = "extended"
    RELEASED = "released"
    GONE = "gone"


# Outcomes that hot paths use, as constants. Machine code reads a constant directly, but looks up a
# member of an enum by its name.
ACQUIRED: Final = Outcome.ACQUIRED
RELEASED: Final = Outcome.RELEASED
CONTENDED: Final = Outcome.CONTENDED
GONE: Final = Outcome.GONE


class Tally(NamedTuple):
    """The counts of the votes of one round. The six numbers add up to N.

    `undecided` is 0 once the round is closed.

    >>> print(Tally(granted=3, absent=2))
    3 granted, 2 absent
    """

    granted: int = 0
    refused: int = 0
    errored: int = 0
    silent: int = 0
    absent: int = 0
    undecided: int = 0

    def __str__(self) -> str:
        parts = [f"{count} {name}" for name, count in self._asdict().items() if count]
        return ", ".join(parts) or "no votes"


class Counted:
    """The base class of a round's counts. `undecided` is the number of missing votes."""

    __slots__ = ("undecided",)
    undecided: int

    @property
    def tally(self) -> Tally:
        """The votes so far."""
        raise NotImplementedError


class Closed(Counted):
    """A round whose votes are final.

    A recipe without rounds (bench/recipes) puts a `Closed` into its `Lease`.
    """

    __slots__ = ("_tally",)

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.undecided = tally.undecided

    @property
    def tally(self) -> Tally:
        """All votes."""
        return self._tally


class Lease:
    """The result of a successful acquire.

    `resource` is ours until `valid_until_ns` on this host's monotonic clock. `owner_token` cannot
    be guessed, and it differs for each attempt. `ttl_ms` is the PX argument. `started_ns` was read
    before the first byte of the winning attempt was queued. `granted_ns` is the time of the
    validity check. The acquire took `attempts` ≥ 1 rounds, and `split_votes` of them had split
    votes. `lost_ns` contains the start times of the earlier attempts that were sent and lost.
    """

    __slots__ = (
        "attempts",
        "granted_ns",
        "lost_ns",
        "owner_token",
        "resource",
        "round",
        "split_votes",
        "started_ns",
        "ttl_ms",
        "valid_until_ns",
    )
    outcome = ACQUIRED

    def __init__(  # noqa: PLR0917 - one argument per fact, made on the hot path
        self,
        resource: str,
        owner_token: bytes,
        ttl_ms: int,
        started_ns: int,
        granted_ns: int,
        valid_until_ns: int,
        round: Counted,  # noqa: A002 - the word of the vocabulary
        attempts: int = 1,
        split_votes: int = 0,
    ) -> None:
        self.resource = resource
        self.owner_token = owner_token
        self.ttl_ms = ttl_ms
        self.started_ns = started_ns
        self.granted_ns = granted_ns
        self.valid_until_ns = valid_until_ns
        self.round = round
        self.attempts = attempts
        self.split_votes = split_votes
        self.lost_ns: Sequence[int] = ()

    @property
    def is_open(self) -> bool:
        """True while the winning round still waits for replies."""
        return self.round.undecided != 0

    @property
    def tally(self) -> Tally:
        """The winning round's votes so far. Late replies still count until the round closes."""
        return self.round.tally

    def __repr__(self) -> str:
        return (
            f"Lease({self.resource!r}, ttl_ms={self.ttl_ms}, "
            f"valid_until_ns={self.valid_until_ns}, {self.tally})"
        )


@dataclass(frozen=True, slots=True)
class Denied:
    """The result of a failed operation. The operation did not get the lock, or it did not keep the
    lock.

    A `Denied` is false in a boolean test, and a `Lease` is true. `started_ns` and `ended_ns` are
    the start and the end of the whole operation. `lost_ns` contains the start times of all attempts
    that were sent. `round` is the last attempt, and some of its votes may still be missing. `round`
    is None if the recipe has no rounds.

    >>> bool(Denied("stock:42", Outcome.CONTENDED, Tally(refused=3), 1, 0, 0, 400_000))
    False
    """

    resource: str
    outcome: Outcome
    tally: Tally
    attempts: int
    split_votes: int
    started_ns: int
    ended_ns: int
    lost_ns: Sequence[int] = ()
    round: Counted | None = field(default=None, compare=False, repr=False)

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """One instance as the client sees it now.

    `state` has five values. `voting` is the normal state. `abstaining` means that the instance may
    have forgotten locks, so it gets no SETs yet. `lagging` means that the instance exceeds the lag
    cap, so it gets no SETs. `down` means that the instance is not connected. `refused` means that
    the instance must not take part. `reason` explains every state except `voting`. `address`
    contains no secret. The counts begin at `connect`. lockcore regularly reads each server's number
    of database swaps (engine/amnesia.py). `commands`, `bytes_sent` and `bytes_received` do not
    include these readings.
    """

    index: int
    address: str
    state: str
    reason: str = ""
    run_id: str = ""
    server: str = ""
    release_command: str = ""
    commands: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    writes: int = 0
    reads: int = 0
    late_replies: int = 0
    pending: int = 0
    owed_releases: int = 0
    reconnects: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """A record of one attempt.

    lockcore makes the record once the round has closed and the caller has decided. Times are in ns
    of CLOCK_MONOTONIC. Each tuple has one entry per configured instance. A time of 0 means that the
    event did not happen. `attempt` is the number of the round within its acquire, from 1.
    `acquire_ns` is the start of the acquire. If two attempts on a resource have the same
    `acquire_ns`, they belong to the same acquire. `validity_ns` is the remaining validity at the
    caller's decision. If `validity_ns` is 0 or less, the caller has no lease. `margin` is the
    number of granted votes minus the quorum. A lost attempt has a negative margin. `errors`
    contains the first word of each instance's error reply, or "" for an instance without an error.
    `errors` is empty if no instance sent an error.
    """

    resource: str
    attempt: int
    acquire_ns: int
    started_ns: int
    decided_ns: int
    closed_ns: int
    outcome: Outcome
    tally: Tally
    validity_ns: int
    margin: int
    votes: tuple[Vote, ...]
    sent_ns: tuple[int, ...]
    replied_ns: tuple[int, ...]
    errors: tuple[str, ...] = ()
