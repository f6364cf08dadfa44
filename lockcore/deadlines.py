"""Which rounds wait for whom, and until when: *rounds sent, now → the ones to expire*. Pure.

Rules: a round's timeout counts from its own start, before its first byte was queued. What leaves late because this
process was held up still gets a tenth of its own timeout on the wire: silence must be the instance's. No round's
timeout changes another's. Batches are kept whole and looked at only when one of their rounds may be due; a batch whose
last round is answered is answered (one order per connection), so it is dropped without a look.
"""

from __future__ import annotations

from collections import deque

from lockcore.clock import FAR_FUTURE_NS
from lockcore.rounds import Part, Round
from lockcore.scripts import MergedReply
from lockcore.timetable import Timetable

GRACE = 10  # the least time on the wire is the round's timeout divided by this


class Deadlines:
    """`due_ns`: when a look is needed, at the latest; maybe for nothing by then."""

    __slots__ = ("_batches", "_singles", "due_ns")

    def __init__(self) -> None:
        self.due_ns = FAR_FUTURE_NS
        self._batches: deque[tuple[int, int, list[Part]]] = deque()  # due, sent, rounds
        self._singles: Timetable[Round] = Timetable(lambda _, round_: _is_open(round_))

    def wake(self, due_ns: int) -> None:
        """Something else needs a look then."""
        self.due_ns = min(self.due_ns, due_ns)

    def watch_batch(self, rounds: list[Part], sent_ns: int, shortest_ns: int) -> None:
        """A batch was sent to all voters at `sent_ns`; `shortest_ns`: the shortest timeout in it."""
        batches = self._batches
        while batches and not _is_open(batches[0][2][-1]):
            batches.popleft()
        due_ns = _due_ns(sent_ns, rounds[0].started_ns, shortest_ns)
        batches.append((due_ns, sent_ns, rounds))
        self.due_ns = min(self.due_ns, due_ns)

    def watch(self, round_: Round, sent_ns: int) -> None:
        """A round was sent to some instances only."""
        due_ns = _due_ns(sent_ns, round_.started_ns, round_.terms.timeout_ns)
        self._singles.add(due_ns, round_)
        self.wake(due_ns)

    def expire(self, now_ns: int) -> None:
        """Expire every round whose timeout has come."""
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
        self._singles.run(now_ns, lambda round_: round_.expire())
        self.next_ns()

    def next_ns(self) -> int:
        """When a round may be due next, or FAR_FUTURE_NS."""
        batches = self._batches
        while batches and not _is_open(batches[0][2][-1]):
            batches.popleft()
        self.due_ns = min([self._singles.next_ns, *[due_ns for due_ns, _, _ in batches]])
        return self.due_ns


def _is_open(round_: Part) -> bool:
    """It awaits votes, or an interrupt came between its last vote and its judgement."""
    return round_.undecided != 0 or round_.outcome is None


def _due_ns(sent_ns: int, started_ns: int, timeout_ns: int) -> int:
    timely_ns, due_ns = sent_ns + timeout_ns // GRACE, started_ns + timeout_ns
    return due_ns if due_ns > timely_ns else timely_ns
