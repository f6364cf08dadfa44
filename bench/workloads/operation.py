"""One operation: *acquire, hold, release → one record*, from which everything is counted later.

Rules
- Every finished operation is recorded, also when its caller is killed in the middle: under a lease
  it gives that back first; in the release it records that no reply came. Killed inside the acquire
  it counts as cut.
- An acquire ends when it returns, by our own reading of the clock. What the recipe says of its
  lease is read once, then: it may hand the object out again, or change it. Only the end may move
  later, as a watchdog renews the lease.
- What cannot be true is a finding about the recipe (`misreport`). A lease without times is given
  back, and is recorded as an acquire that failed.
- A resource's name is made when it is needed: of a hundred thousand none would be in a cache (0.7
  µs a cycle).
- Compiled with the core (lockcore/compiled.py), where a wheel is built.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, SupportsInt, cast

import gevent

from bench.measure.record import LATE_VOTES, OUTCOME_CODES
from bench.measure.recorder import Recorder
from lockcore import Denied, Lease, Outcome, Tally
from lockcore.bench import Closed, Counted
from lockcore.clock import monotonic_ns


class PackedVotes(dict[Tally, int]):
    """The `votes` field of a record for every tally seen so far: there are few of them, and packing
    costs 0.4 µs."""

    def __missing__(self, tally: Tally) -> int:
        packed = 0
        for place, count in enumerate(tally):
            packed |= count << 8 * place
        self[tally] = packed
        return packed


class OpenVotes:
    """Records whose rounds were open as they were written: *slots and rounds → their votes, patched
    once closed*. The patch says that it is one (`LATE`): until then a key of a denied acquire may
    have been there.

    They are looked at as others come, the oldest first: kept for a mere second they were 50,000
    leases, and each garbage collection stopped everybody for 26 to 56 ms. `patch`: see
    `Recorder.patch_votes`.
    """

    def __init__(self, patch: Callable[[int, int], bool], votes: PackedVotes) -> None:
        self._patch = patch
        self._votes = votes
        self._entries: deque[tuple[int, Counted]] = deque()
        self._tally = Tally()
        self._packed = votes[self._tally]

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: tuple[int, Counted]) -> None:
        """One more; where many are kept, the oldest two are looked at."""
        self._entries.append(entry)
        if len(self._entries) > KEPT:
            self.look(2)

    def look(self, most: int, *, last: bool = False) -> None:
        """Patch what has closed among the oldest `most`; the `last` time they are taken as they
        stand."""
        entries = self._entries
        for _ in range(min(most, len(entries))):
            slot, won = entries.popleft()
            try:
                if won.undecided and not last:
                    entries.append((slot, won))
                    continue
                tally = won.tally
                if tally is not self._tally:
                    self._packed = self._votes[tally]
                    self._tally = tally
                self._patch(slot, self._packed | LATE)
            except Exception:  # noqa: BLE001, S112
                # a round of another package: its votes stay undecided
                continue


class Places(Protocol):
    """A page of begun operations: a memoryview of int64, which a compiled NamedTuple cannot
    name."""

    def __setitem__(self, place: int, start_ns: int, /) -> None:
        """The operation in progress there was begun at `start_ns`; 0: there is none."""


class LocustUser(Protocol):
    """A user as Locust keeps it."""

    _state: str | None


LATE: Final = LATE_VOTES
# open votes, before the oldest are looked at
KEPT: Final = 256
# no time is later
LAST_NS: Final = 1 << 62
NO_ROUND: Final = Closed(Tally())
MOST_ATTEMPTS: Final = 1 << 31
RELEASED: Final = Outcome.RELEASED
UNREACHABLE: Final = Outcome.UNREACHABLE
# of a release
ANSWERS: Final = (Outcome.RELEASED, Outcome.GONE, Outcome.UNREACHABLE)
# of an acquire
REFUSALS: Final = (Outcome.CONTENDED, Outcome.SPLIT_VOTE, Outcome.UNREACHABLE, Outcome.TOO_LATE)
ACQUIRED: Final = OUTCOME_CODES["acquired"]
ACQUIRED_RELEASED: Final = ACQUIRED | OUTCOME_CODES["released"] << 8


def ignore(_sentence: str) -> None:
    """Nobody wants to know."""


def fault_of_denial(answer: object, start_ns: int, returned_ns: int) -> str:
    """What cannot be true of an acquire that returned no lease, "" = nothing.

    It was called at `start_ns`.
    """
    if not isinstance(answer, Denied):
        return f"an acquire that returned {type(answer).__name__} instead of a Lease or a Denied"
    try:
        if answer.outcome not in REFUSALS:
            return "a denied acquire with an outcome that none can have"
        if not 0 <= answer.split_votes <= answer.attempts < MOST_ATTEMPTS:
            return "a denied acquire with numbers of attempts that cannot be"
        if not all(
            type(time_ns) is int and start_ns <= time_ns <= returned_ns
            for time_ns in answer.lost_ns
        ):
            return "a denied acquire with attempts outside the call"
        if any(not 0 <= count <= 255 for count in answer.tally):
            return "a denied acquire with votes that cannot be"
    except Exception as error:  # noqa: BLE001 - whatever it is, this cannot be read
        return f"a denied acquire that cannot be read ({type(error).__name__})"
    return ""


@dataclass(eq=False)
class Caller:
    """The operations of one caller, one after the other. Times are ns.

    `ttl_ms` and `wait_ms` are in ms. All callers share these two objects, because lockcore checks a
    number only when it is another object than the last one: equal numbers in other objects work,
    and cost a check for each operation.

    `tell` takes an acquire's time and how it failed, `keep` for how long the caller was kept from
    its next operation. `begun[place]`: when the operation in progress was begun, 0 for none. `lost`
    takes attempts that a record has no room for. `still_open`: the votes of a round that is not
    closed, all of them undecided.

    Set afterwards: `misreport` takes a sentence on what the recipe said and cannot be. `held` has
    the ids of the leases that callers of this process hold. `believes_grant`: the acquire ends with
    the reading of the recipe, which holds its caller up after that, by order (a pause
    "after-grant"). `pause_ns`: so long after its start an acquire that failed at once for want of
    instances may be followed by another.
    """

    acquire: Callable[..., object]
    release: Callable[[Lease], object]
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
    pending: Callable[[tuple[int, Counted]], None]
    tell: Callable[[int, str | None], None] | None
    cut: Callable[[], None]
    keep: Callable[[int], None]

    def __post_init__(self) -> None:
        # machine code looks a module's names up each time
        # An operation reads the clock five times, so the reader is an attribute of the
        # caller. Calls of `monotonic_ns` would give the same results, and each of them would pay
        # for a look-up.
        self._now: Callable[[], int] = monotonic_ns
        # the last one seen: nearly always the next, too
        self._tally = Tally()
        self._packed = self.votes[self._tally]
        self._usual = ACQUIRED_RELEASED
        self.misreport: Callable[[str], None] = ignore
        self.held: set[int] = set()
        self.believes_grant = False
        self.pause_ns = 0
        # the lease in hand, as it was read when its acquire returned
        self._returned_ns = 0
        self._attempt_ns = 0
        self._granted_ns = 0
        self._until_ns = 0
        self._rounds = 0
        self._owner = 0
        self._lost_ns: Sequence[int] = ()
        self._round: Counted | None = None

    def run(self, user: LocustUser, running: str) -> None:
        """Operations until the state of `user` is another than `running`, or the schedule ends."""
        now = self._now
        take = self.take
        thinks_ns = self.thinks_ns
        rest_until = self.rest_until
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
        lease: Lease | None = None
        # When the release was called; 0 until then. If this greenlet is killed, `_broken_off` reads
        # here whether the lease must still be given back.
        sent_ns = 0
        self.begun[self.place] = start_ns
        try:
            answer = self.acquire(f"r{resource}", self.ttl_ms, self.wait_ms)
            returned_ns = self._now()
            if not isinstance(answer, Lease):
                return self._denied(answer, resource, intended_ns, start_ns, returned_ns)
            lease = answer
            fault = self._read(lease, start_ns, returned_ns)
            if fault:
                self.misreport(fault)
                # Nothing is known of this lease.
                if self._round is None:
                    self.release(lease)
                    return self._failed(resource, intended_ns, start_ns, returned_ns)
            self.held.add(id(lease))
            returned_ns = sent_ns = self._returned_ns
            if self.holds_ns is not None:
                sent_ns = 0
                self.nap_until(returned_ns + next(self.holds_ns))
                sent_ns = self._now()
            self.held.discard(id(lease))
            outcome = self.release(lease)
            replied_ns = self._now()
        except BaseException:
            self._broken_off(lease, resource, intended_ns, start_ns, sent_ns)
            raise
        self._note(lease, outcome, resource, intended_ns, start_ns, sent_ns, replied_ns)
        return None

    def _read(self, lease: Lease, start_ns: int, returned_ns: int) -> str:
        """Copy what the record needs of a lease that was returned just now; what cannot be true of
        it, "" = nothing.

        Of a lease whose grant cannot be true the grant is when it was returned: its caller holds it
        from then on. Without a `_round` nothing is known of it.
        """
        self._returned_ns = returned_ns
        self._round = None
        self._lost_ns = ()
        self._rounds = 1
        self._owner = 0
        try:
            attempt_ns = lease.started_ns
            granted_ns = lease.granted_ns
            until_ns = lease.valid_until_ns
            if (
                type(attempt_ns) is not int
                or type(granted_ns) is not int
                or type(until_ns) is not int
            ):
                return "a lease with times that are no whole numbers"
            if not 0 < until_ns < LAST_NS:
                return "a lease with an end that no clock shows"
            in_time = start_ns <= attempt_ns <= granted_ns <= returned_ns
            self._attempt_ns = attempt_ns if in_time else start_ns
            self._granted_ns = granted_ns if in_time else returned_ns
            self._until_ns = until_ns
            self._round = NO_ROUND
            fault = self._read_attempts(lease, start_ns, returned_ns)
        except Exception as error:  # noqa: BLE001 - whatever it is, this cannot be read
            return f"a lease that cannot be read ({type(error).__name__})"
        if not in_time:
            return "a lease that was begun or granted outside its acquire"
        if self.believes_grant:
            self._returned_ns = granted_ns
        return fault

    def _read_attempts(self, lease: Lease, start_ns: int, returned_ns: int) -> str:
        """The rest of it."""
        attempts = lease.attempts
        split_votes = lease.split_votes
        lost_ns = lease.lost_ns
        won = lease.round
        if won.undecided == 0:
            self._pack(won.tally)
        self._round = won
        self._owner = hash(lease.owner_token)
        if type(attempts) is not int or type(split_votes) is not int:
            return "a lease with numbers of attempts that are no whole numbers"
        if not 0 <= split_votes <= attempts < MOST_ATTEMPTS:
            return "a lease with numbers of attempts that cannot be"
        self._rounds = attempts | split_votes << 32
        if lost_ns and not all(
            type(lost) is int and start_ns <= lost <= returned_ns for lost in lost_ns
        ):
            return "a lease with attempts outside its acquire"
        self._lost_ns = lost_ns
        return "one Lease object for two callers at once" if id(lease) in self.held else ""

    def _pack(self, tally: Tally) -> int:
        """The votes of a record."""
        if tally is not self._tally:
            self._packed = self.votes[tally]
            self._tally = tally
        return self._packed

    def _end_of(self, lease: Lease) -> int:
        """When a lease ends, now that it was given back: a watchdog may have moved that, and nobody
        takes it back."""
        with suppress(Exception):
            until_ns = lease.valid_until_ns
            if type(until_ns) is int and self._until_ns <= until_ns < LAST_NS:
                return until_ns
        self.misreport("a lease whose end was taken back while it was held")
        return self._until_ns

    def _code_of(self, outcome: object) -> int:
        """How the operation ended; `outcome` of the release: None when no reply came."""
        if outcome is RELEASED:
            return self._usual
        if outcome is None:
            return ACQUIRED
        if isinstance(outcome, Outcome) and outcome in ANSWERS:
            return ACQUIRED | OUTCOME_CODES[outcome.value] << 8
        self.misreport("a release that returned none of RELEASED, GONE and UNREACHABLE")
        return ACQUIRED | OUTCOME_CODES["unreachable"] << 8

    def _note(  # noqa: PLR0917 - as it came
        self,
        lease: Lease,
        outcome: object,
        resource: int,
        intended_ns: int,
        start_ns: int,
        sent_ns: int,
        replied_ns: int,
    ) -> None:
        """Record an operation that had its lease.

        `outcome` of the release: None when no reply came.
        """
        returned_ns = self._returned_ns
        if self.tell is not None:
            self.tell(returned_ns - intended_ns, None)
        code = self._usual if outcome is RELEASED else self._code_of(outcome)
        won = cast("Counted", self._round)
        packed = self.still_open
        is_open = True
        try:
            is_open = won.undecided != 0
            if not is_open:
                packed = self._pack(won.tally)
        except Exception:  # noqa: BLE001 - a round of another package that cannot be read any more
            self.misreport("a lease whose votes cannot be read")
        until_ns = self._end_of(lease)
        slot = self.recorder.write(
            intended_ns,
            start_ns,
            self._attempt_ns,
            self._granted_ns,
            until_ns,
            sent_ns,
            sent_ns,
            replied_ns,
            returned_ns,
            resource,
            self.number,
            code,
            packed,
            self._rounds,
            self._owner,
        )
        self.begun[self.place] = 0
        if self._lost_ns:
            self.lost(resource, self._lost_ns)
        if is_open:
            self.pending((slot, won))

    def _denied(
        self, answer: object, resource: int, intended_ns: int, start_ns: int, ended_ns: int
    ) -> None:
        """What is left of an operation whose acquire did not succeed."""
        fault = fault_of_denial(answer, start_ns, ended_ns)
        self._pause(
            bool(fault) or cast("Denied", answer).outcome is UNREACHABLE, start_ns, ended_ns
        )
        if fault:
            self.misreport(fault)
            return self._failed(resource, intended_ns, start_ns, ended_ns)
        denied = cast("Denied", answer)
        outcome = denied.outcome.value
        lost_ns = denied.lost_ns
        if self.tell is not None:
            self.tell(ended_ns - intended_ns, outcome)
        if len(lost_ns) > 1:
            self.lost(resource, lost_ns[:-1])
        slot = self.recorder.write(
            intended_ns,
            start_ns,
            lost_ns[-1] if lost_ns else 0,
            0,
            0,
            0,
            0,
            0,
            ended_ns,
            resource,
            self.number,
            OUTCOME_CODES[outcome],
            self.votes[denied.tally],
            denied.attempts | denied.split_votes << 32,
            0,
        )
        self.begun[self.place] = 0
        if denied.tally.undecided and denied.round is not None:
            self.pending((slot, denied.round))
        return None

    # An acquire that fails at once has not waited for anything. Its caller takes a pass of the hub
    # then, or nobody else would run. Without a quorum of instances every acquire fails at once, and
    # one pass is not enough: all callers come back thousands of times a second, keep the core busy
    # and fill the record. So each rests until `pause_ns` after the start of its acquire, as long as
    # a retry would wait. The rest is ours, and no part of the acquire.
    def _pause(self, is_down: bool, start_ns: int, ended_ns: int) -> None:
        due_ns = start_ns + self.pause_ns
        if is_down and due_ns > ended_ns:
            self.rest_until(due_ns)
            # how late the rest ended is counted with all rests
            self.keep(due_ns - ended_ns)
        else:
            gevent.sleep(0)
            self.keep(monotonic_ns() - ended_ns)

    def _failed(self, resource: int, intended_ns: int, start_ns: int, ended_ns: int) -> None:
        """Record an acquire of which the recipe said what cannot be: one that failed, and of which
        nothing is known."""
        if self.tell is not None:
            self.tell(ended_ns - intended_ns, "unreachable")
        self.recorder.write(
            intended_ns,
            start_ns,
            0,
            0,
            0,
            0,
            0,
            0,
            ended_ns,
            resource,
            self.number,
            OUTCOME_CODES["unreachable"],
            0,
            1,
            0,
        )
        self.begun[self.place] = 0

    # A kill may come anywhere in an operation, and `sent_ns` says how far it was. If it is set, the
    # release has been called, and it is not called again: the record says that no reply came. If it
    # is 0, the lease goes back here. The record is written in `finally`, because this release may
    # raise or be killed, too. Without the record the mark in `begun` would stay, and safety would
    # be UNKNOWN for a lease about which everything is known.
    def _broken_off(
        self, lease: Lease | None, resource: int, intended_ns: int, start_ns: int, sent_ns: int
    ) -> None:
        """A caller that is killed (or meets a bug): the lease goes back, and what happened is
        recorded."""
        if lease is None or self._round is None:
            self.cut()
            self.begun[self.place] = 0
            return
        self.held.discard(id(lease))
        outcome: object = None
        replied_ns = 0
        try:
            if not sent_ns:
                sent_ns = monotonic_ns()
                outcome = self.release(lease)
                replied_ns = monotonic_ns()
        finally:
            self._note(lease, outcome, resource, intended_ns, start_ns, sent_ns, replied_ns)
