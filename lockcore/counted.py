"""What a lock did for its application, counted as it happens: *operations → numbers, and a few samples*. Pure.

Rules: every operation is counted; of the acquired and released ones one in `every` is a sample, whose times are kept:
about `PER_SECOND` cycles a second, by the rate of the interval before (`pace`). What failed, was slow or found its
lease gone is told to the sink at once, in its caller's own context. A lease that nobody gives back is forgotten an hour
after its end.
In several threads what is usual takes no lock, which would cost more than the counting: `x += 1` on an attribute
calls nothing, and threads change at calls and where loops turn only (in machine code not even there). Nor is a
dictionary's entry set or removed in parts. All else is done by one thread at a time.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from lockcore.attempt import newest_of
from lockcore.clock import NS_PER_S, monotonic_ns
from lockcore.model import ACQUIRED, RELEASED, AttemptRecord, Denied, Lease, Outcome
from lockcore.observed import Listener

PER_SECOND: Final = 50
FIRST_EVERY, MOST_EVERY = 64, 1 << 14
CLASSES, OTHERS = 20, "others"
FORGOTTEN_NS = 3600 * NS_PER_S
KEPT = 1000  # attempts between two collections; what is more pushes the oldest out

Row = tuple[str, str]  # an instrument and its outcome; "" where it has none
DENIED: Final = "redlock.acquire.outcomes"
SLOW, SPLIT, GONE = ("redlock.acquire.slow", ""), ("redlock.split_votes", ""), ("redlock.leases.gone", "")
_WAYS = (Outcome.CONTENDED, Outcome.SPLIT_VOTE, Outcome.UNREACHABLE, Outcome.TOO_LATE)
_DENIALS: Final[tuple[Row, ...]] = tuple([(DENIED, way.value) for way in _WAYS])
ROWS: Final[tuple[Row, ...]] = (*_DENIALS, SLOW, SPLIT, GONE)  # each begins at 0


class Sink(Protocol):
    """Where samples, and what went wrong, go; `name`: the class of the resource."""

    def acquire(self, name: str, result: Lease | Denied, started_ns: int, *, sampled: bool, odd: bool) -> None:
        """An acquire that is a sample, or is `odd`: slow, or failed."""

    def release(self, name: str, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        """A release that is a sample, or failed."""

    def extend(self, name: str, result: Lease | Denied) -> None:
        """An extension."""


class Counts:
    """The numbers of one class. `held`: leases not given back, by the round that won them."""

    __slots__ = ("acquired", "held", "numbers", "released")

    def __init__(self) -> None:
        self.acquired = self.released = 0
        self.held: dict[object, Lease] = {}
        self.numbers: dict[Row, int] = dict.fromkeys(ROWS, 0)

    def standing(self, now_ns: int) -> tuple[int, int]:
        """How many leases are held, and how many have run out without being given back."""
        until = [(round_, newest_of(lease).valid_until_ns) for round_, lease in list(self.held.items())]
        for round_, until_ns in until:
            if until_ns < now_ns - FORGOTTEN_NS:
                self.held.pop(round_, None)
        held = sum(until_ns > now_ns for _, until_ns in until)
        return held, sum(now_ns - FORGOTTEN_NS <= until_ns <= now_ns for _, until_ns in until)


class Tallied(Listener):
    """An `OperationObserver` that counts. `slow_ns`: what takes longer is slow; `class_of`: a resource's class.
    `told_every` is told of how many cycles one is a sample, when that changes."""

    def __init__(
        self, sink: Sink, slow_ns: int, class_of: Callable[[str], str] | None, told_every: Callable[[int], object]
    ) -> None:
        super().__init__(None)
        self.counts: dict[str, Counts] = {"": Counts()} if class_of is None else {}
        self.attempts: deque[AttemptRecord] = deque(maxlen=KEPT)
        self.waiting = 0
        self.every = FIRST_EVERY
        self._only = self.counts.get("")
        self._sink, self._slow_ns, self._class_of = sink, slow_ns, class_of
        self._told_every = told_every
        self._paced: tuple[int, int] = monotonic_ns(), 0
        self._second_ns = self._samples = 0

    # -- OperationObserver --------------------------------------------------------------------------------------------

    def observe(self, record: AttemptRecord) -> None:
        """Keep an observed attempt until it is collected."""
        self.attempts.append(record)

    def begun(self) -> None:
        """One more waits."""
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
        slow = result.granted_ns - started_ns > self._slow_ns
        if slow or not number % self.every or result.split_votes:
            self._noted(resource, counts, result, started_ns, sampled=not number % self.every, odd=slow)

    def released(self, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        """Count a release."""
        counts = self._only or self._counts_of(lease.resource)
        if outcome is RELEASED:
            try:  # noqa: SIM105 - `suppress`, like `pop`, is looked up by name
                del counts.held[lease.round]
            except KeyError:
                pass  # found gone before, or got before this was there
            counts.released = number = counts.released + 1
            if number % self.every:
                return
        elif outcome is Outcome.GONE:
            self.gone(lease)
        else:
            counts.held.pop(lease.round, None)
        with self._alone:
            self._sink.release(self._class(lease.resource), lease, outcome, started_ns)

    def extended(self, lease: Lease, result: Lease | Denied) -> None:
        """Count an extension."""
        with self._alone:
            self._sink.extend(self._class(lease.resource), result)
        if result.outcome is Outcome.GONE:
            self.gone(lease)

    def gone(self, lease: Lease) -> None:
        """Count a lease as gone, once."""
        counts = self._only or self._counts_of(lease.resource)
        if counts.held.pop(lease.round, None) is not None:
            with self._alone:
                counts.numbers[GONE] += 1

    # -- the rare ways ------------------------------------------------------------------------------------------------

    def _denied(self, resource: str, counts: Counts, result: Denied, started_ns: int) -> None:
        row = DENIED, result.outcome.value
        with self._alone:
            counts.numbers[row] += 1
            self._noted(resource, counts, result, started_ns, sampled=not counts.numbers[row] % self.every, odd=True)

    def _noted(
        self, resource: str, counts: Counts, result: Lease | Denied, started_ns: int, *, sampled: bool, odd: bool
    ) -> None:
        with self._alone:
            counts.numbers[SPLIT] += result.split_votes
            counts.numbers[SLOW] += odd and result.outcome is ACQUIRED
            if sampled:
                self._one_more(result.granted_ns if isinstance(result, Lease) else result.ended_ns)
            self._sink.acquire(self._class(resource), result, started_ns, sampled=sampled, odd=odd)

    # -- classes and samples ------------------------------------------------------------------------------------------

    def pace(self, now_ns: int) -> int:
        """Of how many cycles one is a sample from now on, by the rate since this was asked last."""
        since_ns, before = self._paced
        done = sum(of.acquired + sum(of.numbers[row] for row in _DENIALS) for of in list(self.counts.values()))
        if now_ns - since_ns > NS_PER_S // 2:
            a_second = (done - before) * NS_PER_S // (now_ns - since_ns)
            self._adopt(min(1 << (a_second // PER_SECOND).bit_length(), MOST_EVERY) if a_second > PER_SECOND else 1)
            self._paced = now_ns, done
        return self.every

    def _one_more(self, now_ns: int) -> None:
        """A sample: the 50th within a second halves their share."""
        self._samples += 1
        if self._samples == PER_SECOND or now_ns - self._second_ns > NS_PER_S:
            if now_ns - self._second_ns <= NS_PER_S:
                self._adopt(min(2 * self.every, MOST_EVERY))
            self._second_ns, self._samples = now_ns, 0

    def _adopt(self, every: int) -> None:
        self.every = every
        self._told_every(every)

    def _class(self, resource: str) -> str:
        if self._class_of is None:
            return ""
        name = self._class_of(resource)
        return name if name in self.counts or len(self.counts) < CLASSES else OTHERS

    def _counts_of(self, resource: str) -> Counts:
        name = self._class(resource)
        counts = self.counts.get(name)
        if counts is None:
            with self._alone:
                name = self._class(resource)  # another thread may have made the last one
                counts = self.counts.setdefault(name, Counts())
        return counts
