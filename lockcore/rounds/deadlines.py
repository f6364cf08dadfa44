"""Ends the rounds whose timeout is over.

Input: the sent rounds and the time. Output: the rounds that expire.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, the tables have slots. `Timetable` takes a function as an argument. A subclass with its
own method would be slower, because machine code would look up this method by name.

Rules: the timeout of a round begins at the start of this round, before its first byte is queued. If
this process sends a command late, the instance still has a tenth of the timeout for its answer.
This file never splits a batch. It checks a batch only when a round of this batch may be due. Each
connection answers in order. So if the last round of a batch has all answers, all other rounds of
the batch have all answers, too. lockcore then drops the batch and does not check its rounds. A heap
contains the rounds that do not belong to a batch.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

from lockcore.clock import FAR_FUTURE_NS
from lockcore.rounds.flight import MergedReply
from lockcore.rounds.rounds import ExtendRound, Part, Round

# A round has at least its timeout divided by this number on the wire.
GRACE: Final = 10
T = TypeVar("T")
FEWEST: Final = 64


# This is a heap. The entry of a finished thing stays in the heap, because its removal would need a
# search. The heap skips such an entry when its time comes. Once the number of entries has doubled,
# the heap drops all entries of finished things together. So at most half of the entries, and 64
# more, belong to finished things. Each entry has a number. So the heap compares the numbers, and
# never the things, of two entries with the same time. `act` is called before the entry is popped,
# so after an interrupt in `act` the entry is still there. The pop checks the number, because `act`
# may have added an entry in front.
class Timetable(Generic[T]):
    """A table of things. Each thing is due at a certain time.

    `is_open(due_ns, thing)` returns True if the table must still handle the thing at `due_ns`.
    """

    __slots__ = ("_entries", "_is_open", "_numbers", "_room")

    def __init__(self, is_open: Callable[[int, T], bool]) -> None:
        self._is_open = is_open
        self._entries: list[tuple[int, int, T]] = []
        self._numbers = count()
        self._room = FEWEST

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_ns(self) -> int:
        """The earliest time in the table, or FAR_FUTURE_NS if the table is empty."""
        entries = self._entries
        return entries[0][0] if entries else FAR_FUTURE_NS

    def add(self, due_ns: int, thing: T) -> None:
        """Note that `thing` is due at `due_ns`."""
        if len(self._entries) >= self._room:
            entries = [entry for entry in self._entries if self._is_open(entry[0], entry[2])]
            heapify(entries)
            self._entries = entries
            self._room = 2 * len(entries) + FEWEST
        heappush(self._entries, (due_ns, next(self._numbers), thing))

    def run(self, now_ns: int, act: Callable[[T], object]) -> None:
        """Call `act` with each thing that is due. `act` may add more things to the table."""
        while self._entries and (entry := self._entries[0])[0] <= now_ns:
            if self._is_open(entry[0], entry[2]):
                act(entry[2])
            if self._entries and self._entries[0][1] == entry[1]:
                heappop(self._entries)


class Deadlines:
    """The timeouts of all open rounds.

    The next check happens at `due_ns` at the latest. This check may find that no round is due.
    """

    __slots__ = ("_batches", "_singles", "due_ns")

    def __init__(self) -> None:
        self.due_ns = FAR_FUTURE_NS
        # For each batch, the time when it is due, the time when it was sent, and its rounds.
        self._batches: deque[tuple[int, int, list[Part]]] = deque()
        self._singles: Timetable[Round] = Timetable(lambda _, round_: _is_open(round_))

    def wake(self, due_ns: int) -> None:
        """Make sure that the next check does not happen later than `due_ns`."""
        self.due_ns = min(self.due_ns, due_ns)

    def watch_batch(self, rounds: list[Part], sent_ns: int, shortest_ns: int) -> None:
        """Watch a batch that was sent to all voters at `sent_ns`.

        `shortest_ns` is the shortest timeout of its rounds.
        """
        batches = self._batches
        while batches and not _is_open(batches[0][2][-1]):
            batches.popleft()
        due_ns = _due_ns(sent_ns, rounds[0].started_ns, shortest_ns)
        batches.append((due_ns, sent_ns, rounds))
        self.due_ns = min(self.due_ns, due_ns)

    def watch(self, round_: Round, sent_ns: int) -> None:
        """Watch a round that was sent at `sent_ns` to some instances only."""
        due_ns = _due_ns(sent_ns, round_.started_ns, round_.terms.timeout_ns)
        if isinstance(round_, ExtendRound):
            # An answer after the end of the lease cannot extend the lease, so the round ends by
            # then.
            round_.timeout_due_ns = due_ns
            due_ns = round_.due_ns
        self._singles.add(due_ns, round_)
        self.wake(due_ns)

    def _expire(self, round_: Round, now_ns: int) -> None:
        """Expire a round. If an extension of the lease has moved the end of the round, watch the
        round until the new end."""
        if isinstance(round_, ExtendRound) and round_.due_ns > now_ns:
            self._singles.add(round_.due_ns, round_)
        else:
            round_.expire()

    def expire(self, now_ns: int) -> None:
        """Expire every round whose timeout is over."""
        if now_ns < self.due_ns:
            return
        batches = self._batches
        self._batches = deque([batch for batch in batches if batch[0] > now_ns])
        for due_ns, sent_ns, rounds in batches:
            if due_ns > now_ns:
                continue
            flight = next((round_.flight for round_ in rounds if round_.flight is not None), None)
            if flight is not None:
                flight.dissolve()
            for part in rounds:
                if _is_open(part) and not isinstance(part, MergedReply):
                    self.watch(part, sent_ns)
        self._singles.run(now_ns, lambda round_: self._expire(round_, now_ns))
        self.next_ns()

    def next_ns(self) -> int:
        """The earliest time at which a round may be due. If no round is open, this time is
        FAR_FUTURE_NS."""
        batches = self._batches
        while batches and not _is_open(batches[0][2][-1]):
            batches.popleft()
        due_ns = self._singles.next_ns
        for batch in batches:
            due_ns = min(due_ns, batch[0])
        self.due_ns = due_ns
        return due_ns


def _is_open(round_: Part) -> bool:
    """True while the round has undecided votes or no outcome.

    If an interrupt comes after the last vote but before `judge`, the round has no outcome yet.
    """
    return round_.undecided != 0 or round_.outcome is None


def _due_ns(sent_ns: int, started_ns: int, timeout_ns: int) -> int:
    timely_ns = sent_ns + timeout_ns // GRACE
    due_ns = started_ns + timeout_ns
    return due_ns if due_ns > timely_ns else timely_ns
