"""One operation: *acquire, hold, release → one record*, from which everything is counted later.

Rules
- Every finished operation is recorded, also when its caller is killed in the middle: under a lease it gives that back
  first; in the release it records that no reply came. Killed inside the acquire it counts as cut.
- One reading of the clock serves its neighbours: the acquire ends with the reading its validity check used, and
  without a hold so does the work.
- Everything a caller needs is a closure's variable: looked up once, read at the cost of a local.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import gevent

from bench.measure.record import OUTCOME_CODES, Write
from bench.recipes.protocol import Acquire, Release
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


@dataclass(frozen=True, slots=True)
class CallerSetup:
    """See `Worker.setup`. Times are ns but `ttl_ms` and `wait_ms`.

    `tell` takes an acquire's time and how it failed, `keep` for how long the caller was kept from its next operation.
    `begun[place]`: when the operation in progress was begun. `lost` takes attempts that a record has no room for.
    `still_open`: the votes of a round that is not closed, all of them undecided.
    """

    acquire: Acquire
    release: Release
    ttl_ms: int
    wait_ms: int
    caller: int
    names: list[str]
    resources: Iterator[int]
    take: Callable[[], int] | None
    holds_ns: Iterator[int] | None
    thinks_ns: Iterator[int] | None
    nap_until: Callable[[int], int]
    rest_until: Callable[[int], None]
    write: Write
    begun: memoryview
    place: int
    lost: Callable[[int, Sequence[int]], None]
    votes: PackedVotes
    still_open: int
    pending: Callable[[tuple[int, Lease]], None]
    tell: Callable[[int, str | None], None] | None
    cut: Callable[[], None]
    keep: Callable[[int], None]


RELEASED = Outcome.RELEASED
ACQUIRED = OUTCOME_CODES["acquired"]
ACQUIRED_RELEASED = ACQUIRED | OUTCOME_CODES["released"] << 8

Operate = Callable[[int, int, int], None]


def operation(setup: CallerSetup) -> Operate:
    """Return `operate(resource, intended_ns, start_ns)`, which runs one operation of the caller whose setup this is."""
    acquire, release, names, ttl_ms, wait_ms = setup.acquire, setup.release, setup.names, setup.ttl_ms, setup.wait_ms
    holds_ns, nap_until, write, votes = setup.holds_ns, setup.nap_until, setup.write, setup.votes
    tell, caller, now, begun, place = setup.tell, setup.caller, monotonic_ns, setup.begun, setup.place
    still_open, denied, broken_off, note_more = setup.still_open, _denied(setup), _broken_off(setup), _note_more(setup)

    def operate(resource: int, intended_ns: int, start_ns: int) -> None:
        lease, ended_ns, sent_ns = None, 0, 0
        begun[place] = start_ns
        try:
            lease = acquire(names[resource], ttl_ms, wait_ms)
            if not isinstance(lease, Lease):
                return denied(lease, resource, intended_ns, start_ns)
            ended_ns = sent_ns = lease.granted_ns
            if holds_ns is not None:
                sent_ns = 0
                nap_until(ended_ns + next(holds_ns))
                sent_ns = now()
            outcome = release(lease)
            replied_ns = now()
        except BaseException:
            broken_off(lease, resource, intended_ns, start_ns, ended_ns, sent_ns)
            raise
        if tell is not None:
            tell(ended_ns - intended_ns, None)
        code = ACQUIRED_RELEASED if outcome is RELEASED else ACQUIRED | OUTCOME_CODES[outcome.value] << 8
        won = lease.round  # asked itself: `is_open` and `tally` of the lease would ask it, too
        packed = still_open if won.undecided else votes[won.tally]
        slot = write(
            intended_ns, start_ns, lease.started_ns, lease.granted_ns, lease.valid_until_ns, sent_ns, sent_ns,
            replied_ns, ended_ns, resource, caller, code, packed, lease.attempts | lease.split_votes << 32,
            hash(lease.owner_token),
        )  # fmt: skip
        begun[place] = 0
        if packed == still_open or lease.lost_ns:
            note_more(slot, lease, resource, packed)
        return None

    return operate


def _note_more(setup: CallerSetup) -> Callable[[int, Lease, int, int], None]:
    """What a record has no room for: attempts that lost, votes still out."""

    def note_more(slot: int, lease: Lease, resource: int, packed: int) -> None:
        if lease.lost_ns:
            setup.lost(resource, lease.lost_ns)
        if packed == setup.still_open:
            setup.pending((slot, lease))

    return note_more


def _denied(setup: CallerSetup) -> Callable[[Denied, int, int, int], None]:
    """What is left of an operation whose acquire did not succeed. It takes a turn of the hub, ours and no part of
    the acquire: one that fails at once has taken none, and its caller would come back so fast that nobody else
    runs."""

    def denied(denied: Denied, resource: int, intended_ns: int, start_ns: int) -> None:
        ended_ns = monotonic_ns()
        gevent.sleep(0)
        setup.keep(monotonic_ns() - ended_ns)
        outcome, lost_ns = denied.outcome.value, denied.lost_ns
        if setup.tell is not None:
            setup.tell(ended_ns - intended_ns, outcome)
        if len(lost_ns) > 1:
            setup.lost(resource, lost_ns[:-1])
        setup.write(
            intended_ns, start_ns, lost_ns[-1] if lost_ns else 0, 0, 0, 0, 0, 0, ended_ns, resource, setup.caller,
            OUTCOME_CODES[outcome], setup.votes[denied.tally], denied.attempts | denied.split_votes << 32, 0,
        )  # fmt: skip
        setup.begun[setup.place] = 0

    return denied


def _broken_off(setup: CallerSetup) -> Callable[[Lease | Denied | None, int, int, int, int, int], None]:
    """A caller that is killed (or meets a bug): the lease goes back, and what happened is recorded."""

    def broken_off(  # noqa: PLR0917 - called in one place, positions as in `operate`
        lease: Lease | Denied | None, resource: int, intended_ns: int, start_ns: int, ended_ns: int, sent_ns: int
    ) -> None:
        if not isinstance(lease, Lease):
            setup.cut()
            setup.begun[setup.place] = 0
            return
        code, replied_ns = ACQUIRED, 0
        try:
            if not sent_ns:
                sent_ns = monotonic_ns()
                outcome = setup.release(lease)
                replied_ns = monotonic_ns()
                code |= OUTCOME_CODES[outcome.value] << 8
        finally:
            if setup.tell is not None:
                setup.tell(ended_ns - intended_ns, None)
            setup.write(
                intended_ns, start_ns, lease.started_ns, lease.granted_ns, lease.valid_until_ns, sent_ns, sent_ns,
                replied_ns, ended_ns, resource, setup.caller, code, setup.votes[lease.tally],
                lease.attempts | lease.split_votes << 32, hash(lease.owner_token),
            )  # fmt: skip
            setup.begun[setup.place] = 0

    return broken_off
