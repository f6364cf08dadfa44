"""The facts of a lock as values: *what happened → names and counts*.

Rules: facts are immutable (a `Lease` is slotted and written once: it is made on the hot path, where
a frozen dataclass costs four times as much). Times are integers in ns of CLOCK_MONOTONIC. Source of
the words: the README's vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol


class Vote(Enum):
    """What one instance said to one command, or why it said nothing."""

    GRANTED = "granted"
    REFUSED = "refused"  # the key is held
    ERRORED = "errored"  # a definite error reply: nothing changed
    SILENT = "silent"  # sent, no reply: it may have happened
    ABSENT = "absent"  # not sent: it cannot have happened


class Outcome(Enum):
    """How an acquire, an extension or a release ended."""

    ACQUIRED = "acquired"
    CONTENDED = "contended"  # a quorum refused
    SPLIT_VOTE = "split_vote"  # cannot win, and saw no other quorum
    UNREACHABLE = "unreachable"  # a quorum is impossible
    TOO_LATE = "too_late"  # a quorum granted, but its validity was used up
    EXTENDED = "extended"
    RELEASED = "released"
    GONE = "gone"  # no longer ours


ACQUIRED: Final = Outcome.ACQUIRED  # compiled code reads a constant faster than a member
RELEASED: Final = Outcome.RELEASED
CONTENDED: Final = Outcome.CONTENDED
GONE: Final = Outcome.GONE


class Tally(NamedTuple):
    """Votes of one round, counted; the six sum to N. `undecided` is 0 once the round is closed.

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
        return (
            ", ".join(f"{count} {name}" for name, count in self._asdict().items() if count)
            or "no votes"
        )


class Counted:
    """Whatever knows how its round stands. `undecided`: not 0 while votes are still out."""

    __slots__ = ("undecided",)
    undecided: int

    @property
    def tally(self) -> Tally:
        """The votes so far."""
        raise NotImplementedError


class Closed(Counted):
    """A round whose votes are final: what a recipe without rounds gives its `Lease`."""

    __slots__ = ("_tally",)

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.undecided = tally.undecided

    @property
    def tally(self) -> Tally:
        """All of them."""
        return self._tally


class Lease:
    """What a successful acquire returns: `resource` is ours until `valid_until_ns` on this host's
    monotonic clock.

    `owner_token`: unguessable, another per attempt. `ttl_ms`: the PX argument. `started_ns`: before
    the first byte of the winning attempt was queued. `granted_ns`: the reading the validity check
    used. `attempts` ≥ 1: rounds it took; `split_votes`: how many of those ended so. `lost_ns`: when
    each attempt that was sent and lost before was begun.
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
        """True while replies to the winning round may still come in and count."""
        return self.round.undecided != 0

    @property
    def tally(self) -> Tally:
        """The winning round's votes so far: late replies still count until the round closes."""
        return self.round.tally

    def __repr__(self) -> str:
        return f"Lease({self.resource!r}, ttl_ms={self.ttl_ms}, valid_until_ns={self.valid_until_ns}, {self.tally})"


@dataclass(frozen=True, slots=True)
class Denied:
    """An operation that did not get (or keep) the lock, and why. False in a boolean test, as a
    `Lease` is true.

    `started_ns`, `ended_ns`: of the whole operation. `lost_ns`: when each of its attempts that was
    sent was begun.
    `round`: the last attempt, some of whose votes may still be out; None where a recipe has no
    rounds.

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
    """One instance as the client sees it now: its state, what it runs, and what was exchanged with
    it so far.

    `state`: `voting`, `abstaining` (re-joined, not safe to count yet), `lagging` (over the lag cap:
    no SETs sent), `down`, `refused` (must not take part: see `reason`). `address` holds no secret.
    Counts are since `connect`, without the count of swaps that is read by the clock
    (membership.py).
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
    """One attempt, seen from outside, once its round has closed and its caller has decided. Times
    in ns of CLOCK_MONOTONIC; per-instance tuples have one entry per configured instance, 0 = never.

    `attempt`: 1 for the first round of its acquire, which began at `acquire_ns`: attempts on one
    resource with the same `acquire_ns` are one acquire's. `validity_ns`: what was left when the
    caller got it (≤ 0: none). `margin`: granted votes − quorum, negative when lost.
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


class Observer(Protocol):
    """Gets every observed attempt, in the thread that does the I/O: return fast, never block, never
    raise."""

    def observe(self, record: AttemptRecord) -> None:
        """Take one record."""


class OperationObserver(Observer, Protocol):
    """An `Observer` that is told of whole operations, too (`Redlock.observe`): where they were
    asked for, as they end.

    Extensions, and releases by `release`, are told where the I/O is done. Never two calls at once.
    """

    def begun(self) -> object:
        """An acquire begins."""

    def ended(self, resource: str, result: Lease | Denied | None, started_ns: int) -> None:
        """That acquire, begun at `started_ns`, is over; None: it raised."""

    def released(self, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        """A release begun at `started_ns` has ended; of one that raised nothing is told."""

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        """An extension of `lease` has ended; a keeper's, too."""

    def gone(self, lease: Lease) -> None:
        """A keeper cannot keep `lease` any more."""
