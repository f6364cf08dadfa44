"""One operation: *acquire, hold, release → one record*. All later counts come from the records.

A wheel contains this file as compiled machine code (lockcore/compiled.py).

A `Caller` makes the operations. The `Ledger` of a caller reads the leases and writes the records.
`CallerSetting` and `Books` hold the data that all callers of a process share.

Rules
- The ledger records every finished operation. A kill may end the caller in the middle of an
  operation. If the caller holds a lease at the time of the kill, the caller first releases the
  lease. If the caller has already called the release, the record shows that no reply arrived. If
  the kill arrives before the acquire has returned, there is no record of this operation, but `cut`
  counts the operation.
- An acquire ends when it returns. lockbench itself reads the clock at this moment. When the acquire
  returns, the ledger copies the values of the lease. A copy is necessary, because the recipe may
  later change the lease object. The recipe may also return the same object from another acquire.
  Only the end of the lease may move later, because a watchdog may extend the lease.
- If the recipe reports an impossible value, lockbench counts it against the recipe (`misreport`).
  If a lease has no usable times, the caller releases the lease, and the record shows a failed
  acquire.
- A caller builds the name of a resource when it needs the name. A cache of a hundred thousand names
  would miss the processor cache every time (0.7 µs per operation).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, SupportsInt, cast

import gevent

from bench.measure.record import LATE_VOTES, OUTCOME_CODES, READER
from bench.measure.recorder import Recorder
from lockcore import Denied, Lease, Outcome, Tally
from lockcore.bench import Closed, Counted
from lockcore.clock import monotonic_ns


class PackedVotes(dict[Tally, int]):
    """A cache that maps each tally to the value of the field `votes` in a record.

    The cache is useful, because there are few different tallies and packing one tally costs 0.4 µs.
    """

    def __missing__(self, tally: Tally) -> int:
        packed = 0
        for place, count in enumerate(tally):
            packed |= count << 8 * place
        self[tally] = packed
        return packed


class OpenVotes:
    """A queue of the records that were written while their rounds were open. After a round has
    closed, the queue patches the votes in the record of this round. `patch`: see
    `Recorder.patch_votes`.

    A patch sets the bit `LATE` in the votes. In the record of a denied acquire, this bit means that
    the servers may have kept a key of the acquire until the time of the patch.

    If there are more than `KEPT` entries, each call of `add` checks the oldest two. An earlier
    version checked the entries once a second, so the queue kept up to 50,000 leases alive. Because
    of these leases, each garbage collection stopped every caller for 26 to 56 ms.
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
        """Keep one more record.

        If there are now more than `KEPT` entries, this method checks the oldest two.
        """
        self._entries.append(entry)
        if len(self._entries) > KEPT:
            self.look(2)

    def look(self, most: int, *, last: bool = False) -> None:
        """Check the oldest entries, and patch the records whose rounds have closed. `most`: the
        largest number of entries to check.

        `last`: if true, this method also patches the records whose rounds are still open.
        """
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
                # The round is an object of another package, and reading it raised an exception. The
                # votes stay undecided.
                continue


class Places(Protocol):
    """A memory page that holds the start time of each operation in progress. The object is a
    memoryview of int64, for which mypyc has no type."""

    def __setitem__(self, place: int, start_ns: int, /) -> None:
        """Store the start time of the operation in progress at `place`. If `start_ns` is 0, no
        operation is in progress."""


class LocustUser(Protocol):
    """The interface through which a caller reads the state of a Locust user."""

    _state: str | None


LATE: Final = LATE_VOTES
READS: Final = READER
# If more open records than this are kept, `add` checks the oldest records.
KEPT: Final = 256
# No valid time is later than this.
LAST_NS: Final = 1 << 62
NO_ROUND: Final = Closed(Tally())
MOST_ATTEMPTS: Final = 1 << 31
RELEASED: Final = Outcome.RELEASED
UNREACHABLE: Final = Outcome.UNREACHABLE
# The outcomes of a release.
ANSWERS: Final = (Outcome.RELEASED, Outcome.GONE, Outcome.UNREACHABLE)
# The outcomes of an acquire without a lease.
REFUSALS: Final = (Outcome.CONTENDED, Outcome.SPLIT_VOTE, Outcome.UNREACHABLE, Outcome.TOO_LATE)
ACQUIRED: Final = OUTCOME_CODES["acquired"]
ACQUIRED_RELEASED: Final = ACQUIRED | OUTCOME_CODES["released"] << 8


def fault_of_denial(answer: object, start_ns: int, returned_ns: int) -> str:
    """Return a text that describes an impossible value in the answer of an acquire. The acquire was
    called at `start_ns` and returned no lease.

    If all values are possible, this function returns "".
    """
    if not isinstance(answer, Denied):
        return f"an acquire that returned {type(answer).__name__} instead of a Lease or a Denied"
    try:
        if answer.outcome not in REFUSALS:
            return "a denied acquire with an impossible outcome"
        if not 0 <= answer.split_votes <= answer.attempts < MOST_ATTEMPTS:
            return "a denied acquire with an impossible number of attempts"
        if not all(
            type(time_ns) is int and start_ns <= time_ns <= returned_ns
            for time_ns in answer.lost_ns
        ):
            return "a denied acquire with attempts before its start or after its return"
        if any(not 0 <= count <= 255 for count in answer.tally):
            return "a denied acquire with impossible votes"
    except Exception as error:  # noqa: BLE001 - whatever it is, this cannot be read
        return f"a denied acquire that cannot be read ({type(error).__name__})"
    return ""


@dataclass(frozen=True, eq=False)
class CallerSetting:
    """The functions and settings that all callers of a process share.

    Each call of `acquire` passes the same two objects `ttl_ms` and `wait_ms` (ms). This saves time,
    because lockcore does not check the same object again. `acquire_shared` is the acquire function
    for readers.

    `take` waits for the next intended start and returns the time of this start (ns). If the
    schedule has ended, `take` returns 0. If `take` is None, each operation starts at once.
    `nap_until` waits for the end of a hold, and `rest_until` waits for the end of a rest. `keep`
    receives the time (ns) for which a caller was delayed before its next operation.

    `pause_ns`: a pause (ns) for acquires that fail because no quorum answers. The next operation of
    the caller starts at least `pause_ns` after the start of such an acquire. `believes_grant`: if
    true, an acquire ends at the grant time that the recipe reports. The value is true if the
    scenario has a pause "after-grant", which stops callers after the grant.
    """

    acquire: Callable[..., object]
    acquire_shared: Callable[..., object]
    release: Callable[[Lease], object]
    ttl_ms: SupportsInt
    wait_ms: SupportsInt
    take: Callable[[], int] | None
    nap_until: Callable[[int], int]
    rest_until: Callable[[int], None]
    keep: Callable[[int], None]
    pause_ns: int
    believes_grant: bool


@dataclass(frozen=True, eq=False)
class Books:
    """The functions and objects with which all callers of a process store their operations.

    `tell` receives the latency (ns) of each acquire. If the acquire failed, `tell` also receives
    the name of the failure. A record contains the start time of only one attempt. `lost` receives
    the start times of all other attempts. If the round of a record is still open, `pending`
    receives the record. `cut` counts an acquire whose caller ended before the acquire returned.
    `misreport` receives a sentence about an impossible value. `still_open`: the packed votes of a
    round in which every vote is undecided. `held`: the ids of the leases that callers hold.
    """

    recorder: Recorder
    votes: PackedVotes
    lost: Callable[[int, Sequence[int]], None]
    pending: Callable[[tuple[int, Counted]], None]
    tell: Callable[[int, str | None], None] | None
    cut: Callable[[], None]
    misreport: Callable[[str], None]
    still_open: int
    held: set[int]


class Ledger:
    """The object that writes the records of caller `number`: *leases and denials → records*. Times
    are in ns.

    `begun[place]` is the start of the operation in progress, or 0 between two operations.
    """

    def __init__(self, books: Books, number: int, begun: Places, place: int) -> None:
        self.books = books
        self.number = number
        self._begun = begun
        self._place = place
        # The last tally and its packed form are kept, because the next tally is nearly always the
        # same object.
        self._tally = Tally()
        self._packed = books.votes[self._tally]
        # The following fields describe the operation in progress.
        self._resource = 0
        self._side = 0
        self._intended_ns = 0
        self.start_ns = 0
        # The following fields describe its lease, with the values that the recipe reported when the
        # acquire returned.
        self.returned_ns = 0
        self._attempt_ns = 0
        self._granted_ns = 0
        self._until_ns = 0
        self._rounds = 0
        self._owner = 0
        self._lost_ns: Sequence[int] = ()
        self._round: Counted | None = None

    def begin(self, resource: int, intended_ns: int, start_ns: int, *, is_reader: bool) -> None:
        """Store the start of an operation. The operation starts now, at `start_ns`, and its
        intended start was `intended_ns`."""
        self._resource = resource
        self._side = READS if is_reader else 0
        self._intended_ns = intended_ns
        self.start_ns = start_ns
        self._round = None
        self._begun[self._place] = start_ns

    @property
    def is_readable(self) -> bool:
        """True if the operation in progress has a lease whose times are usable."""
        return self._round is not None

    def read(self, lease: Lease, returned_ns: int, believes_grant: bool) -> str:
        """Copy the values for the record from a lease that an acquire has just returned.

        Returns a text that describes an impossible value in the lease, or "" if all values are
        possible. If the grant time is impossible, this method uses the time at which the acquire
        returned. From that time, the caller certainly holds the lease.
        """
        start_ns = self.start_ns
        self.returned_ns = returned_ns
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
                return "a lease whose times are not whole numbers"
            if not 0 < until_ns < LAST_NS:
                return "a lease with an impossible end time"
            in_time = start_ns <= attempt_ns <= granted_ns <= returned_ns
            self._attempt_ns = attempt_ns if in_time else start_ns
            self._granted_ns = granted_ns if in_time else returned_ns
            self._until_ns = until_ns
            self._round = NO_ROUND
            fault = self._read_attempts(lease, returned_ns)
        except Exception as error:  # noqa: BLE001 - whatever it is, this cannot be read
            return f"a lease that cannot be read ({type(error).__name__})"
        if not in_time:
            return "a lease whose start or grant is outside the time of its acquire"
        if believes_grant:
            self.returned_ns = granted_ns
        return fault

    def _read_attempts(self, lease: Lease, returned_ns: int) -> str:
        """Copy the votes, the number of attempts and the owner from the lease."""
        attempts = lease.attempts
        split_votes = lease.split_votes
        lost_ns = lease.lost_ns
        won = lease.round
        if won.undecided == 0:
            self._pack(won.tally)
        self._round = won
        self._owner = hash(lease.owner_token)
        if type(attempts) is not int or type(split_votes) is not int:
            return "a lease whose number of attempts is not a whole number"
        if not 0 <= split_votes <= attempts < MOST_ATTEMPTS:
            return "a lease with an impossible number of attempts"
        self._rounds = attempts | split_votes << 32
        if lost_ns and not all(
            type(lost) is int and self.start_ns <= lost <= returned_ns for lost in lost_ns
        ):
            return "a lease with attempts before the start or after the return of its acquire"
        self._lost_ns = lost_ns
        return (
            "the same Lease object for two callers at once" if id(lease) in self.books.held else ""
        )

    def _pack(self, tally: Tally) -> int:
        """Return the field `votes` of a record."""
        if tally is not self._tally:
            self._packed = self.books.votes[tally]
            self._tally = tally
        return self._packed

    def _end_of(self, lease: Lease) -> int:
        """Return the end of the lease. A watchdog may have extended the lease, so this method must
        be called after the release. The end never moves to an earlier time."""
        try:
            until_ns = lease.valid_until_ns
            if type(until_ns) is int and self._until_ns <= until_ns < LAST_NS:
                return until_ns
        except Exception:  # noqa: BLE001, S110 - whatever it is, this cannot be read
            pass
        self.books.misreport("a lease whose end time became earlier while a caller held the lease")
        return self._until_ns

    def _code_of(self, outcome: object) -> int:
        """Return the outcome code of an operation that had a lease. `outcome` is the outcome of the
        release, or None if no reply came."""
        if outcome is None:
            return ACQUIRED
        if isinstance(outcome, Outcome) and outcome in ANSWERS:
            return ACQUIRED | OUTCOME_CODES[outcome.value] << 8
        self.books.misreport("a release that did not return RELEASED, GONE or UNREACHABLE")
        return ACQUIRED | OUTCOME_CODES["unreachable"] << 8

    def granted(self, lease: Lease, outcome: object, sent_ns: int, replied_ns: int) -> None:
        """Record an operation that had a lease.

        `outcome` is the outcome of the release, or None if no reply came.
        """
        books = self.books
        returned_ns = self.returned_ns
        if books.tell is not None:
            books.tell(returned_ns - self._intended_ns, None)
        code = ACQUIRED_RELEASED if outcome is RELEASED else self._code_of(outcome)
        won = cast("Counted", self._round)
        packed = books.still_open
        is_open = True
        try:
            is_open = won.undecided != 0
            if not is_open:
                packed = self._pack(won.tally)
        except Exception:  # noqa: BLE001 - a round of another package that cannot be read any more
            books.misreport("a lease whose votes cannot be read")
        slot = books.recorder.write(
            self._intended_ns,
            self.start_ns,
            self._attempt_ns,
            self._granted_ns,
            self._end_of(lease),
            sent_ns,
            sent_ns,
            replied_ns,
            returned_ns,
            self._resource,
            self.number,
            code | self._side,
            packed,
            self._rounds,
            self._owner,
        )
        self._begun[self._place] = 0
        if self._lost_ns:
            books.lost(self._resource, self._lost_ns)
        if is_open:
            books.pending((slot, won))

    def denied(self, denied: Denied, ended_ns: int) -> None:
        """Record an acquire that got no lease."""
        lost_ns = denied.lost_ns
        tally = denied.tally
        if len(lost_ns) > 1:
            self.books.lost(self._resource, lost_ns[:-1])
        slot = self._write_denied(
            denied.outcome.value,
            ended_ns,
            lost_ns[-1] if lost_ns else 0,
            self.books.votes[tally],
            denied.attempts | denied.split_votes << 32,
        )
        if tally.undecided and denied.round is not None:
            self.books.pending((slot, denied.round))

    def failed(self, ended_ns: int) -> None:
        """Record an acquire whose answer is impossible. The record contains only the failure and
        the end of the acquire."""
        self._write_denied("unreachable", ended_ns, 0, 0, 1)

    def _write_denied(
        self, outcome: str, ended_ns: int, attempt_ns: int, votes: int, attempts: int
    ) -> int:
        books = self.books
        if books.tell is not None:
            books.tell(ended_ns - self._intended_ns, outcome)
        slot = books.recorder.write(
            self._intended_ns,
            self.start_ns,
            attempt_ns,
            0,
            0,
            0,
            0,
            0,
            ended_ns,
            self._resource,
            self.number,
            OUTCOME_CODES[outcome] | self._side,
            votes,
            attempts,
            0,
        )
        self._begun[self._place] = 0
        return slot

    def cut(self) -> None:
        """Count an operation that was cut off before it had a usable lease."""
        self.books.cut()
        self._begun[self._place] = 0


class Caller:
    """One caller, which makes one operation after the other. The method `run` makes the operations,
    and `ledger` records the operations.

    For each operation, the iterators yield the resource, the hold time and the think time (ns).
    `readers` yields 1 if the operation belongs to a reader, and 0 if it belongs to a writer.
    """

    def __init__(
        self,
        load: CallerSetting,
        ledger: Ledger,
        resources: Iterator[int],
        holds_ns: Iterator[int] | None,
        thinks_ns: Iterator[int] | None,
        *,
        readers: Iterator[int] | None = None,
    ) -> None:
        self.load = load
        self.ledger = ledger
        self._resources = resources
        self._holds_ns = holds_ns
        self._thinks_ns = thinks_ns
        self._readers = readers
        # An operation reads the clock five times. Compiled code would look up the name
        # `monotonic_ns` in its module at each call, and an attribute is faster.
        self._now: Callable[[], int] = monotonic_ns

    def run(self, user: LocustUser, running: str) -> None:
        """Repeat operations until the schedule ends, or until the state of `user` is no longer
        `running`."""
        now = self._now
        take = self.load.take
        thinks_ns = self._thinks_ns
        rest_until = self.load.rest_until
        for resource in self._resources:
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
                rest_until(now() + next(thinks_ns))

    def operate(self, resource: int, intended_ns: int, start_ns: int) -> None:
        """Make one operation.

        The operation starts at `start_ns`, and its intended start was `intended_ns`.
        """
        load = self.load
        ledger = self.ledger
        held = ledger.books.held
        lease: Lease | None = None
        # The time at which the release was called, or 0 before the call. If this greenlet is
        # killed, `_broken_off` needs this time to know whether it must give the lease back.
        sent_ns = 0
        is_reader = self._readers is not None and next(self._readers) != 0
        acquire = load.acquire_shared if is_reader else load.acquire
        ledger.begin(resource, intended_ns, start_ns, is_reader=is_reader)
        try:
            answer = acquire(f"r{resource}", load.ttl_ms, load.wait_ms)
            returned_ns = self._now()
            if not isinstance(answer, Lease):
                return self._denied(answer, returned_ns)
            lease = answer
            fault = ledger.read(lease, returned_ns, load.believes_grant)
            if fault:
                ledger.books.misreport(fault)
                if not ledger.is_readable:
                    load.release(lease)
                    return ledger.failed(returned_ns)
            held.add(id(lease))
            sent_ns = ledger.returned_ns
            if self._holds_ns is not None:
                sent_ns = 0
                load.nap_until(ledger.returned_ns + next(self._holds_ns))
                sent_ns = self._now()
            held.discard(id(lease))
            outcome = load.release(lease)
            replied_ns = self._now()
        except BaseException:
            self._broken_off(lease, sent_ns)
            raise
        ledger.granted(lease, outcome, sent_ns, replied_ns)
        return None

    def _denied(self, answer: object, ended_ns: int) -> None:
        """End an operation whose acquire returned no lease."""
        ledger = self.ledger
        fault = fault_of_denial(answer, ledger.start_ns, ended_ns)
        if fault:
            self._pause(True, ended_ns)
            ledger.books.misreport(fault)
            return ledger.failed(ended_ns)
        denied = cast("Denied", answer)
        self._pause(denied.outcome is UNREACHABLE, ended_ns)
        return ledger.denied(denied, ended_ns)

    # An acquire that fails at once has not waited for anything. Its caller then yields for one pass
    # of the hub, and other callers can run. Without a quorum of instances, every acquire fails at
    # once, and one pass is not enough. All callers would retry thousands of times a second, keep
    # the core busy and fill the record. So each caller rests until `pause_ns` after the start of
    # its acquire. A retry would wait for the same time. The rest is no part of the acquire, because
    # lockbench and not the lock adds it.
    def _pause(self, is_down: bool, ended_ns: int) -> None:
        due_ns = self.ledger.start_ns + self.load.pause_ns
        if is_down and due_ns > ended_ns:
            self.load.rest_until(due_ns)
            # `rest_until` itself counts how late the rest ended.
            self.load.keep(due_ns - ended_ns)
        else:
            gevent.sleep(0)
            self.load.keep(self._now() - ended_ns)

    # A kill may come anywhere in an operation. `sent_ns` shows how far the operation was at the
    # kill. If `sent_ns` is set, the release has been called and is not called again. The record
    # then says that no reply came. If `sent_ns` is 0, this method gives the lease back. The record
    # is written in `finally`, because the release by this method may raise an exception or be
    # killed, too. Without the record, the operation's start would stay in `begun`. Then safety
    # would be UNKNOWN, although the history of the lease is complete.
    def _broken_off(self, lease: Lease | None, sent_ns: int) -> None:
        """Record an operation that a kill or an exception has ended. If the caller holds a lease
        and has not called the release, this method first releases the lease."""
        ledger = self.ledger
        if lease is None or not ledger.is_readable:
            return ledger.cut()
        ledger.books.held.discard(id(lease))
        outcome: object = None
        replied_ns = 0
        try:
            if not sent_ns:
                sent_ns = self._now()
                outcome = self.load.release(lease)
                replied_ns = self._now()
        finally:
            ledger.granted(lease, outcome, sent_ns, replied_ns)
        return None
