"""Which rounds wait for whom, and until when: *rounds sent, now → the ones to expire*. Pure.

Rules: a round's timeout counts from its own start. Batches are kept whole and looked at only when their oldest round
may be due; a batch whose last round is answered is answered (one order per connection), so it is dropped without a
look.
"""

from __future__ import annotations

from collections import deque

from lockcore.rounds import MergedReply, Part, Round

FAR_FUTURE_NS = 1 << 62


class Deadlines:
    """`shortest_ns`: the shortest timeout of any terms in use."""

    __slots__ = ("_batches", "_open", "shortest_ns")

    def __init__(self) -> None:
        self.shortest_ns = FAR_FUTURE_NS
        self._batches: deque[tuple[int, list[Part]]] = deque()
        self._open: list[Round] = []

    def watch_batch(self, rounds: list[Part]) -> None:
        """A batch was sent to all voters."""
        batches = self._batches
        while batches and not batches[0][1][-1].undecided:
            batches.popleft()
        batches.append((rounds[0].started_ns, rounds))

    def watch(self, round_: Round) -> None:
        """A round was sent to some instances only."""
        self._open.append(round_)

    def expire(self, now_ns: int) -> None:
        """Expire every round whose timeout has come."""
        batches = self._batches
        while batches and batches[0][0] + self.shortest_ns <= now_ns:
            rounds = batches.popleft()[1]
            flight = rounds[-1].flight
            if flight is not None:
                flight.dissolve()
            self._open += [part for part in rounds if part.undecided and not isinstance(part, MergedReply)]
        if self._open:
            waiting, self._open = self._open, []
            for round_ in waiting:
                if not round_.undecided:
                    continue
                if round_.started_ns + round_.terms.timeout_ns <= now_ns:
                    round_.expire()
                else:
                    self._open.append(round_)

    def next_ns(self) -> int:
        """When a round may be due next, or FAR_FUTURE_NS."""
        due = [round_.started_ns + round_.terms.timeout_ns for round_ in self._open]
        if self._batches:
            due.append(self._batches[0][0] + self.shortest_ns)
        return min(due, default=FAR_FUTURE_NS)
