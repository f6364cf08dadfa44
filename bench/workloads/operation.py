"""One operation: *acquire, hold, release → one record*, from which everything is counted later.

Rules
- Every finished operation is recorded, also when its caller is killed in the middle: under a lease it gives that back
  first; in the release it records that no reply came. Killed inside the acquire it counts as cut.
- One reading of the clock serves its neighbours: the acquire ends with the one its validity check used.
- A resource's name is made when it is needed: of a hundred thousand none would be in a cache (0.7 µs a cycle).
- Compiled with the core (lockcore/compiled.py), where a wheel is built.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, SupportsInt

import gevent

from bench.measure.record import OUTCOME_CODES
from bench.measure.recorder import Recorder
from bench.recipes.protocol import Release
from lockcore import Denied, Lease, Outcome, Tally
from lockcore.clock import monotonic_ns


class PackedVotes(dict[Tally, int]):
    """The `votes` field of a record for every tally seen so far: there are few of them, and packing costs 0.4 µs."""

    def __missing__(self, tally: Tally) -> int:
        packed = 0
        for place, count in enumerate(tally):
            packed |= count << 8 * place
        self[tally] = packed
        return packed


class OpenVotes:
    """Records whose rounds were open as they were written: *slots and leases → their votes, patched once closed*.

    They are looked at as others come, the oldest first: kept for a mere second they were 50,000 leases, and each
    garbage collection stopped everybody for 26 to 56 ms. `patch`: see `Recorder.patch_votes`.
    """

    def __init__(self, patch: Callable[[int, int], bool], votes: PackedVotes) -> None:
        self._patch, self._votes = patch, votes
        self._entries: deque[tuple[int, Lease]] = deque()
        self._tally = Tally()
        self._packed = votes[self._tally]

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: tuple[int, Lease]) -> None:
        """One more; where many are kept, the oldest two are looked at."""
        self._entries.append(entry)
        if len(self._entries) > KEPT:
            self.look(2)

    def look(self, most: int, *, last: bool = False) -> None:
        """Patch what has closed among the oldest `most`; the `last` time they are taken as they stand."""
        entries = self._entries
        for _ in range(min(most, len(entries))):
            slot, lease = entries.popleft()
            won = lease.round
            if won.undecided and not last:
                entries.append((slot, lease))
                continue
            tally = won.tally
            if tally is not self._tally:
                self._tally, self._packed = tally, self._votes[tally]
            self._patch(slot, self._packed)


class Places(Protocol):
    """A page of begun operations: a memoryview of int64, which a compiled NamedTuple cannot name."""

    def __setitem__(self, place: int, start_ns: int, /) -> None:
        """The operation in progress there was begun at `start_ns`; 0: there is none."""


class LocustUser(Protocol):
    """A user as Locust keeps it."""

    _state: str | None


KEPT: Final = 256  # open votes, before the oldest are looked at
RELEASED: Final = Outcome.RELEASED
ACQUIRED: Final = OUTCOME_CODES["acquired"]
ACQUIRED_RELEASED: Final = ACQUIRED | OUTCOME_CODES["released"] << 8


@dataclass(eq=False)
class Caller:
    """The operations of one caller, one after the other. Times are ns but `ttl_ms` and `wait_ms`, the very objects of
    everybody, which lockcore knows again: it checks others each time.

    `tell` takes an acquire's time and how it failed, `keep` for how long the caller was kept from its next operation.
    `begun[place]`: when the operation in progress was begun, 0 for none. `lost` takes attempts that a record has no
    room for. `still_open`: the votes of a round that is not closed, all of them undecided.
    """

    acquire: Callable[..., Lease | Denied]
    release: Release
    ttl_ms: SupportsInt
    wait_ms: SupportsInt
    number: int
    resources: Iterator[int]
    take: Callable[[], int] | None
    holds_ns: Iterator[int] | None
    thinks_ns: Iterator[int] | None
    nap_until: Callable[[int], int]
    rest_until: Callable[[int], None]
    recorder: Recorder
    begun: Places
    place: int
    lost: Callable[[int, Sequence[int]], None]
    votes: PackedVotes
    still_open: int
    pending: Callable[[tuple[int, Lease]], None]
    tell: Callable[[int, str | None], None] | None
    cut: Callable[[], None]
    keep: Callable[[int], None]

    def __post_init__(self) -> None:
        self._now: Callable[[], int] = monotonic_ns  # machine code looks a module's names up each time
        self._tally = Tally()  # the last one seen: nearly always the next, too
        self._packed = self.votes[self._tally]
        self._usual = ACQUIRED_RELEASED

    def run(self, user: LocustUser, running: str) -> None:
        """Operations until the state of `user` is another than `running`, or the schedule ends."""
        now, take, thinks_ns, rest_until = self._now, self.take, self.thinks_ns, self.rest_until
        for resource in self.resources:
            if user._state != running:
                return
            if take is None:
                start_ns = now()
                self.operate(resource, start_ns, start_ns)
            elif intended_ns := take():
                self.operate(resource, intended_ns, now())
            else:
                return
            if thinks_ns is not None:
                rest_until(monotonic_ns() + next(thinks_ns))

    def operate(self, resource: int, intended_ns: int, start_ns: int) -> None:
        """One operation, which was to start at `intended_ns`, and does at `start_ns`."""
        lease: Lease | Denied | None = None
        sent_ns = 0
        self.begun[self.place] = start_ns
        try:
            lease = self.acquire(f"r{resource}", self.ttl_ms, self.wait_ms)
            if not isinstance(lease, Lease):
                return self._denied(lease, resource, intended_ns, start_ns)
            sent_ns = lease.granted_ns
            if self.holds_ns is not None:
                sent_ns = 0
                self.nap_until(lease.granted_ns + next(self.holds_ns))
                sent_ns = self._now()
            outcome = self.release(lease)
            replied_ns = self._now()
        except BaseException:
            self._broken_off(lease, resource, intended_ns, start_ns, sent_ns)
            raise
        self._note(lease, outcome, resource, intended_ns, start_ns, sent_ns, replied_ns)
        return None

    def _note(  # noqa: PLR0917 - as it came
        self, lease: Lease, outcome: Outcome | None, resource: int, intended_ns: int, start_ns: int, sent_ns: int,
        replied_ns: int,
    ) -> None:  # fmt: skip
        """Record an operation that had its lease. `outcome` of the release: None when no reply came."""
        ended_ns = lease.granted_ns
        if self.tell is not None:
            self.tell(lease.granted_ns - intended_ns, None)
        code = self._usual if outcome is RELEASED else ACQUIRED | (OUTCOME_CODES[outcome.value] << 8 if outcome else 0)
        won = lease.round  # asked itself: `is_open` and `tally` of the lease would ask it, too
        packed, is_open = self.still_open, won.undecided != 0
        if not is_open:
            tally = won.tally
            if tally is not self._tally:
                self._tally, self._packed = tally, self.votes[tally]
            packed = self._packed
        slot = self.recorder.write(
            intended_ns, start_ns, lease.started_ns, ended_ns, lease.valid_until_ns, sent_ns, sent_ns, replied_ns,
            ended_ns, resource, self.number, code, packed, lease.attempts | lease.split_votes << 32,
            hash(lease.owner_token),
        )  # fmt: skip
        self.begun[self.place] = 0
        if lease.lost_ns:
            self.lost(resource, lease.lost_ns)
        if is_open:
            self.pending((slot, lease))

    def _denied(self, denied: Denied, resource: int, intended_ns: int, start_ns: int) -> None:
        """What is left of an operation whose acquire did not succeed. It takes a turn of the hub, ours and no part of
        the acquire: one that fails at once has taken none, and its caller would come back so fast that nobody else
        runs."""
        ended_ns = monotonic_ns()
        gevent.sleep(0)
        self.keep(monotonic_ns() - ended_ns)
        outcome, lost_ns = denied.outcome.value, denied.lost_ns
        if self.tell is not None:
            self.tell(ended_ns - intended_ns, outcome)
        if len(lost_ns) > 1:
            self.lost(resource, lost_ns[:-1])
        self.recorder.write(
            intended_ns, start_ns, lost_ns[-1] if lost_ns else 0, 0, 0, 0, 0, 0, ended_ns, resource, self.number,
            OUTCOME_CODES[outcome], self.votes[denied.tally], denied.attempts | denied.split_votes << 32, 0,
        )  # fmt: skip
        self.begun[self.place] = 0

    def _broken_off(
        self, lease: Lease | Denied | None, resource: int, intended_ns: int, start_ns: int, sent_ns: int
    ) -> None:
        """A caller that is killed (or meets a bug): the lease goes back, and what happened is recorded."""
        if not isinstance(lease, Lease):
            self.cut()
            self.begun[self.place] = 0
            return
        outcome: Outcome | None = None
        replied_ns = 0
        try:
            if not sent_ns:
                sent_ns = monotonic_ns()
                outcome = self.release(lease)
                replied_ns = monotonic_ns()
        finally:
            self._note(lease, outcome, resource, intended_ns, start_ns, sent_ns, replied_ns)
