"""Counts an application's operations.

Input: operations. Output: numbers, durations and a few samples.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Hot paths avoid
`suppress` and `pop`, because machine code looks up these two by name.

Rules: every operation and its duration are counted (`Durations`). One operation in `every` is a
sample. Samples are chosen separately for acquires, for releases and for each outcome of a denied
acquire. `pace` computes `every` from the rate of the last interval. The result is about
`PER_SECOND` samples a second. The sink records the duration of a sample in the caller's own
context, so an exemplar belongs to the caller's span. The duration of a sample is not in
`Durations`. This file takes no samples before the first collection, because the sink may have no
reader yet. The sink also gets each failed or slow acquire, each failed release, and each extension.
The sink gets each of these operations immediately, in the caller's own context. An extension by a
keeper has no caller, so the sink gets it in another context. A contended acquire counts as failed
only if `contended_is_odd` is True. The sink records the duration of each failed release and of each
extension. It records the duration of any other operation only if the operation is a sample. If a
keeper finds that a lease is gone, this file counts the lease as gone. The sink gets no report of
this lease. If nobody releases a lease, this file stops counting the lease as held one hour after
its end.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from lockcore.clock import NS_PER_S, monotonic_ns
from lockcore.engine.attempt import newest_of
from lockcore.facts.model import (
    ACQUIRED,
    CONTENDED,
    RELEASED,
    AttemptRecord,
    Denied,
    Lease,
    Outcome,
)

PER_SECOND: Final = 50
FIRST_EVERY = 64
MOST_EVERY = 1 << 14
NEVER: Final = 1 << 60
CLASSES = 20
OTHERS = "others"
FORGOTTEN_NS = 3600 * NS_PER_S

# At most this number of attempts is kept between two collections. New attempts push out old ones.
KEPT = 1000

# An instrument and its outcome. The outcome is "" if the instrument has none.
Row = tuple[str, str]
DENIED: Final = "redlock.acquire.outcomes"
SLOW = ("redlock.acquire.slow", "")
SPLIT = ("redlock.split_votes", "")
GONE = ("redlock.leases.gone", "")
_WAYS = (Outcome.CONTENDED, Outcome.SPLIT_VOTE, Outcome.UNREACHABLE, Outcome.TOO_LATE)
_DENIALS: Final[tuple[Row, ...]] = tuple([(DENIED, way.value) for way in _WAYS])

# Each of these begins at 0.
ROWS: Final[tuple[Row, ...]] = (*_DENIALS, SLOW, SPLIT, GONE)
ACQUIRE = "redlock.acquire.duration"
RELEASE = "redlock.release.duration"
HOLD = "redlock.hold.duration"
TRIES = "redlock.acquire.attempts"

# The upper bounds of the buckets, six a decade from 10 µs to 100 s. One more bucket has no bound.
BOUNDS_NS: Final[list[int]] = [
    *[tenths * 10 ** (power + 8) for power in range(-5, 2) for tenths in (10, 15, 22, 33, 47, 68)],
    100 * NS_PER_S,
]

# The trick is a table for times up to 8.4 ms. `bisect` needs 0.4 µs for these bounds. On the same
# machine a cycle costs 5 µs, and a cycle has three durations. The table has cells of 8 µs, and each
# cell has the index of the first bound that is not below the cell. A cell contains at most two
# bounds, so the loop in `Durations.add` ends after two steps. Without the table the results are the
# same, but each duration costs twice as much.
_CELL_BITS: Final = 13
_CELLS: Final = 1024
_FIRST: Final[list[int]] = [bisect_left(BOUNDS_NS, cell << _CELL_BITS) for cell in range(_CELLS)]


class Sink(Protocol):
    """Receives samples, and slow or failed operations. `name` is the class of the resource."""

    def acquire(
        self, name: str, result: Lease | Denied, started_ns: int, *, sampled: bool, odd: bool
    ) -> None:
        """Receive an acquire. `sampled` is True if the acquire is a sample. `odd` is True if the
        acquire was slow or failed."""

    def release(self, name: str, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        """Receive a release. The sink gets a release only if the release is a sample or has
        failed."""

    def extend(self, name: str, result: Lease | Denied) -> None:
        """Receive an extension."""


class Durations:
    """The durations of all operations of one kind.

    `buckets` counts the durations, and `total_ns` is their sum. All numbers only grow. For this
    reason, a writing thread need not wait for a reading thread.
    """

    __slots__ = ("_read_buckets", "_read_ns", "buckets", "total_ns")

    def __init__(self) -> None:
        self.buckets: list[int] = [0] * (len(BOUNDS_NS) + 1)
        self.total_ns = 0
        self._read_buckets: list[int] = self.buckets.copy()
        self._read_ns = 0

    def add(self, took_ns: int) -> None:
        """Add one duration.

        The computation of the bucket may delay the thread. So this method computes the bucket first
        and changes the numbers afterwards.
        """
        cell = took_ns >> _CELL_BITS
        if 0 <= cell < _CELLS:
            index = _FIRST[cell]
            while took_ns > BOUNDS_NS[index]:
                index += 1
        else:
            index = bisect_left(BOUNDS_NS, took_ns)
        self.buckets[index] += 1
        self.total_ns += took_ns

    def news(self) -> tuple[list[int], int]:
        """Return the growth since the last call: one number for each bucket, and the growth of the
        total time (ns)."""
        buckets = self.buckets.copy()
        total_ns = self.total_ns
        added = [now - before for now, before in zip(buckets, self._read_buckets, strict=True)]
        if not any(added):
            # A thread may have added its time but not yet its count. A later call returns this time
            # together with the count.
            return added, 0
        added_ns = total_ns - self._read_ns
        self._read_buckets = buckets
        self._read_ns = total_ns
        return added, added_ns


class Counts:
    """The numbers of one class of resources.

    `held` contains the unreleased leases. The key of each lease is the round that won the lease.
    `first_tries` is the number of leases from a first attempt. If a lease needed more than one
    attempt, `tries` contains the number of its attempts. `tries` stores n attempts as a duration of
    n seconds. `took` contains the durations of successful acquires. `gave` contains the durations
    of successful releases. `kept` contains the times for which leases were held. `durations`
    contains all kinds of durations, including `tries`, `took`, `gave` and `kept`.
    """

    __slots__ = (
        "_read_tries",
        "acquired",
        "durations",
        "first_tries",
        "gave",
        "held",
        "kept",
        "numbers",
        "released",
        "took",
        "tries",
    )

    def __init__(self) -> None:
        self.acquired = self.released = self.first_tries = self._read_tries = 0
        self.held: dict[object, Lease] = {}
        self.numbers: dict[Row, int] = dict.fromkeys(ROWS, 0)
        self.durations: dict[Row, Durations] = {}
        self.took = self.of(ACQUIRE, ACQUIRED.value)
        self.gave = self.of(RELEASE, RELEASED.value)
        self.kept = self.of(HOLD, "")
        self.tries = self.of(TRIES, ACQUIRED.value)

    def of(self, name: str, outcome: str) -> Durations:
        """Return the durations of the instrument `name` for operations with `outcome`."""
        return self.durations.setdefault((name, outcome), Durations())

    def news(self) -> Iterator[tuple[Row, list[int], int]]:
        """For each instrument and outcome, yield the growth since the last call."""
        first_tries = self.first_tries
        for row, durations in self.durations.copy().items():
            added, added_ns = durations.news()
            if durations is self.tries:
                new_tries = first_tries - self._read_tries
                # The number is stored before the `yield`, because the reader may stop there.
                self._read_tries = first_tries
                added[bisect_left(BOUNDS_NS, NS_PER_S)] += new_tries
                added_ns += new_tries * NS_PER_S
            yield row, added, added_ns

    def standing(self, now_ns: int) -> tuple[int, int]:
        """Return two numbers. The first counts the held leases, and the second counts the leases
        that expired without a release."""
        until = [
            (round_, newest_of(lease).valid_until_ns) for round_, lease in list(self.held.items())
        ]
        for round_, until_ns in until:
            if until_ns < now_ns - FORGOTTEN_NS:
                self.held.pop(round_, None)
        held = sum(until_ns > now_ns for _, until_ns in until)
        return held, sum(now_ns - FORGOTTEN_NS <= until_ns <= now_ns for _, until_ns in until)


# Only one thread at a time counts, because the listener has a lock. Another thread reads without a
# lock. This is correct for two reasons. A dictionary's entry is set or removed as a whole. A number
# is also set as a whole, and every number but `waiting` only grows. So a reader in another thread
# may see an old number but not a wrong one.
class Tallied:
    """An `Observer` that counts.

    An operation that takes longer than `slow_ns` is slow. `class_of` gives a resource's class.
    `pace_listener` is called with a number n. After this call, one cycle in n is a sample. If
    `contended_is_odd` is True, the sink gets every contended acquire. Otherwise the sink gets a
    contended acquire only if it is a sample, because a held lock is a normal answer.
    """

    def __init__(
        self,
        sink: Sink,
        slow_ns: int,
        class_of: Callable[[str], str] | None,
        pace_listener: Callable[[int], object],
        contended_is_odd: bool = False,
    ) -> None:
        self.counts: dict[str, Counts] = {"": Counts()} if class_of is None else {}
        self.attempts: deque[AttemptRecord] = deque(maxlen=KEPT)
        self.waiting = 0
        self.every: int = NEVER
        self._only = self.counts.get("")
        self._sink = sink
        self._slow_ns = slow_ns
        self._class_of = class_of
        self._pace_listener = pace_listener
        self._contended_is_odd = contended_is_odd
        self._paced: tuple[int, int] = monotonic_ns(), 0
        self._second_ns = self._samples = 0

    # -- Observer ----------------------------------------------------------------------------------

    def observe(self, record: AttemptRecord) -> None:
        """Keep the record of an observed attempt until the next collection."""
        self.attempts.append(record)

    def begun(self) -> None:
        """Count one more waiting caller."""
        self.waiting += 1

    def ended(self, resource: Any, result: Lease | Denied | None, started_ns: int) -> None:
        """Count an acquire."""
        self.waiting -= 1
        counts = self._only or self._counts_of(resource)
        if not isinstance(result, Lease):
            if result is not None:
                self._denied(resource, counts, result, started_ns)
            return
        counts.acquired = number = counts.acquired + 1
        counts.held[result.round] = result
        took_ns = result.granted_ns - started_ns
        slow = took_ns > self._slow_ns
        sampled = not number % self.every
        if not sampled:
            counts.took.add(took_ns)
            if result.attempts == 1:
                counts.first_tries += 1
            else:
                counts.tries.add(result.attempts * NS_PER_S)
        if slow or sampled or result.split_votes:
            self._noted(resource, counts, result, started_ns, sampled=sampled, odd=slow)

    def released(self, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        """Count a release."""
        counts = self._only or self._counts_of(lease.resource)
        if outcome is RELEASED:
            try:  # noqa: SIM105 - `suppress`, like `pop`, is looked up by name
                del counts.held[lease.round]
            except KeyError:
                # The lease was gone before, or it was acquired before the counting began.
                pass
            counts.released = number = counts.released + 1
            if number % self.every:
                counts.gave.add(monotonic_ns() - started_ns)
                counts.kept.add(started_ns - lease.granted_ns)
                return
        elif outcome is Outcome.GONE:
            self.gone(lease)
        else:
            counts.held.pop(lease.round, None)
        self._sink.release(self._class(lease.resource), lease, outcome, started_ns)

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        """Count an extension."""
        self._sink.extend(self._class(lease.resource), result)
        if result.outcome is Outcome.GONE:
            self.gone(lease)

    def gone(self, lease: Lease) -> None:
        """Count a lease as gone. Another call for the same lease has no effect."""
        counts = self._only or self._counts_of(lease.resource)
        if counts.held.pop(lease.round, None) is not None:
            counts.numbers[GONE] += 1

    # -- the rare ways -----------------------------------------------------------------------------

    def _denied(self, resource: str, counts: Counts, result: Denied, started_ns: int) -> None:
        row = DENIED, result.outcome.value
        counts.numbers[row] += 1
        sampled = not counts.numbers[row] % self.every
        if not sampled:
            outcome = result.outcome.value
            counts.of(ACQUIRE, outcome).add(result.ended_ns - started_ns)
            counts.of(TRIES, outcome).add(result.attempts * NS_PER_S)
        odd = self._contended_is_odd or result.outcome is not CONTENDED
        self._noted(resource, counts, result, started_ns, sampled=sampled, odd=odd)

    def _noted(
        self,
        resource: str,
        counts: Counts,
        result: Lease | Denied,
        started_ns: int,
        *,
        sampled: bool,
        odd: bool,
    ) -> None:
        counts.numbers[SPLIT] += result.split_votes
        counts.numbers[SLOW] += odd and result.outcome is ACQUIRED
        if sampled:
            self._one_more(result.granted_ns if isinstance(result, Lease) else result.ended_ns)
        if sampled or odd:
            self._sink.acquire(self._class(resource), result, started_ns, sampled=sampled, odd=odd)

    # -- classes and samples -----------------------------------------------------------------------

    def pace(self, now_ns: int) -> int:
        """Adapt the share of samples to the rate of acquires since the last call.

        Returns a number n. From now on, one cycle in n is a sample.
        """
        since_ns, before = self._paced
        done = sum(
            of.acquired + sum(of.numbers[row] for row in _DENIALS)
            for of in list(self.counts.values())
        )
        if now_ns - since_ns > NS_PER_S // 2:
            a_second = (done - before) * NS_PER_S // (now_ns - since_ns)
            every = 1
            if a_second > PER_SECOND:
                every = min(1 << (a_second // PER_SECOND).bit_length(), MOST_EVERY)
            self._adopt(every)
            self._paced = now_ns, done
        return self.every

    def _one_more(self, now_ns: int) -> None:
        """Count a sample. If a second has had 50 samples, halve the share of samples."""
        self._samples += 1
        if self._samples == PER_SECOND or now_ns - self._second_ns > NS_PER_S:
            if now_ns - self._second_ns <= NS_PER_S:
                self._adopt(min(2 * self.every, MOST_EVERY))
            self._second_ns = now_ns
            self._samples = 0

    def _adopt(self, every: int) -> None:
        self.every = every
        self._pace_listener(every)

    def _class(self, resource: str) -> str:
        if self._class_of is None:
            return ""
        name = self._class_of(resource)
        return name if name in self.counts or len(self.counts) < CLASSES else OTHERS

    def _counts_of(self, resource: str) -> Counts:
        name = self._class(resource)
        counts = self.counts.get(name)
        if counts is None:
            counts = self.counts.setdefault(name, Counts())
        return counts
