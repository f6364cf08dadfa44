"""Which rounds wait for whom, and until when: *rounds sent, now → the ones to expire*. Pure.

Rules: a round's timeout counts from its own start, before its first byte was queued. What leaves late because this
process was held up still gets a tenth of the timeout on the wire: silence must be the instance's. Batches are kept
whole and looked at only when their oldest round may be due; a batch whose last round is answered is answered (one
order per connection), so it is dropped without a look.
"""

from __future__ import annotations

from collections import deque

from lockcore.rounds import MergedReply, Part, Round

FAR_FUTURE_NS = 1 << 62
GRACE = 10  # the least time on the wire is the shortest timeout divided by this


class Deadlines:
    """`shortest_ns`: the shortest timeout of any terms in use."""

    __slots__ = ("_batches", "_open", "shortest_ns")

    def __init__(self) -> None:
        self.shortest_ns = FAR_FUTURE_NS
        self._batches: deque[tuple[int, list[Part]]] = deque()
        self._open: list[tuple[int, Round]] = []

    def watch_batch(self, rounds: list[Part], sent_ns: int) -> None:
        """A batch was sent to all voters at `sent_ns`."""
        batches = self._batches
        while batches and not _is_open(batches[0][1][-1]):
            batches.popleft()
        batches.append((sent_ns + self.shortest_ns // GRACE, rounds))

    def watch(self, round_: Round, sent_ns: int) -> None:
        """A round was sent to some instances only."""
        self._open.append((sent_ns + self.shortest_ns // GRACE, round_))

    def expire(self, now_ns: int) -> None:
        """Expire every round whose timeout has come."""
        batches = self._batches
        while batches and self._batch_due_ns() <= now_ns:
            earliest_ns, rounds = batches.popleft()
            flight = next((round_.flight for round_ in rounds if round_.flight is not None), None)
            if flight is not None:
                flight.dissolve()
            left = (part for part in rounds if _is_open(part) and not isinstance(part, MergedReply))
            self._open += [(earliest_ns, round_) for round_ in left]
        waiting, self._open = self._open, []
        for earliest_ns, round_ in waiting:
            if not _is_open(round_):
                continue
            if _due_ns(earliest_ns, round_) <= now_ns:
                round_.expire()
            else:
                self._open.append((earliest_ns, round_))

    def _batch_due_ns(self) -> int:
        earliest_ns, rounds = self._batches[0]
        return max(earliest_ns, rounds[0].started_ns + self.shortest_ns)

    def next_ns(self) -> int:
        """When a round may be due next, or FAR_FUTURE_NS."""
        due = [_due_ns(earliest_ns, round_) for earliest_ns, round_ in self._open]
        if self._batches:
            due.append(self._batch_due_ns())
        return min(due, default=FAR_FUTURE_NS)


def _is_open(round_: Part) -> bool:
    """It awaits votes, or an interrupt came between its last vote and its judgement."""
    return round_.undecided != 0 or round_.outcome is None


def _due_ns(earliest_ns: int, round_: Round) -> int:
    return max(earliest_ns, round_.started_ns + round_.terms.timeout_ns)
