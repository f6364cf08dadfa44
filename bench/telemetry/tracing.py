"""Traces of a run, made afterwards: *records and observed attempts, look by look → spans and exemplars*.

Rules
- An operation is looked at `DELAY` looks after it was recorded: by then its attempts have been written.
- What is remembered is bounded: the oldest attempts go first.
- Every traced acquire is an exemplar of its bucket of `redlock.acquire.duration`.

Source: choose.py, spans.py.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.measure.outcomes import acquired
from bench.measure.record import OUTCOMES, Records
from bench.telemetry.attempts import Attempt, checksum
from bench.telemetry.buckets import NS_PER_S, bucket_of
from bench.telemetry.choose import Chosen, Looks, choose
from bench.telemetry.extensions import Extension
from bench.telemetry.points import Exemplar
from bench.telemetry.spans import Span, Spans, Traced

DELAY = 2
WITHOUT_VOTE = frozenset(("silent", "errored"))
REMEMBERED = 50_000  # acquires whose attempts are kept

Key = tuple[int, int]  # checksum of the resource, when the acquire began


class Tracing:
    """Chooses operations and makes their spans. `one_in` as in `choose`; `wall_ns`: wall clock − monotonic clock."""

    def __init__(self, spans: Spans, one_in: int, wall_ns: int, dice: random.Random | None = None) -> None:
        self._spans, self._one_in, self._wall_ns = spans, one_in, wall_ns
        self._dice = dice or random.SystemRandom()
        self._acquires: dict[Key, list[Attempt]] = {}
        self._won: dict[Key, Key] = {}  # the start of the round that won -> its acquire
        self._without_vote: dict[Key, None] = {}  # acquires that met an instance which was silent or in error
        self._extended: dict[Key, list[Extension]] = {}  # by the start of the round that won
        self._waiting: deque[Records] = deque()
        self.exemplars: dict[str, dict[int, Exemplar]] = {}

    def note(self, attempts: Iterable[Attempt]) -> None:
        """Remember observed attempts."""
        for attempt in attempts:
            key = (attempt.resource, attempt.acquire_ns)
            self._acquires.setdefault(key, []).append(attempt)
            if attempt.outcome == "acquired":
                self._won[attempt.resource, attempt.started_ns] = key
            if any(ask.vote in WITHOUT_VOTE for ask in attempt.asks):
                self._without_vote[key] = None
        self._forget()

    def note_extensions(self, extensions: Iterable[Extension]) -> None:
        """Remember extensions."""
        for extension in extensions:
            self._extended.setdefault((extension.resource, extension.attempt_ns), []).append(extension)
        self._forget()

    def _forget(self) -> None:
        memories: tuple[dict[Key, Any], ...] = (self._acquires, self._won, self._without_vote, self._extended)
        for memory in memories:
            for key in list(memory)[: max(len(memory) - REMEMBERED, 0)]:
                del memory[key]

    def look(self, records: Records) -> Iterator[Span]:
        """Take the records of this look; the spans of an earlier one."""
        self._waiting.append(records)
        if len(self._waiting) > DELAY:
            yield from self._trace(self._waiting.popleft())

    def finish(self) -> Iterator[Span]:
        """The spans of what is left."""
        while self._waiting:
            yield from self._trace(self._waiting.popleft())

    def _trace(self, records: Records) -> Iterator[Span]:
        chosen = choose(records, self._looks(records), self._one_in, self._dice.randrange)
        ids = [(self._dice.getrandbits(128) or 1, self._dice.getrandbits(64) or 1) for _ in chosen]
        for one, (trace_id, span_id) in zip(chosen, ids, strict=True):
            self._show(one, trace_id, span_id)
            holder = None if one.holder is None else ids[one.holder]
            key = _key_of(one.record)
            attempts = self._attempts_of(key, won=bool(acquired(one.record)[0]))
            yield from self._spans.of(Traced(one, trace_id, span_id, holder), attempts, self._extended.get(key, ()))

    def _looks(self, records: Records) -> Looks:
        without_vote = [won for won, acquire in self._won.items() if acquire in self._without_vote]
        return Looks(
            _begun_at(records, [*self._won, *self._acquires]),
            _begun_at(records, [*without_vote, *self._without_vote]),
        )

    def _attempts_of(self, key: Key, *, won: bool) -> Sequence[Attempt]:
        acquire = self._won.get(key, key) if won else key
        return sorted(self._acquires.get(acquire, ()), key=lambda attempt: attempt.number)

    def _show(self, one: Chosen, trace_id: int, span_id: int) -> None:
        record = one.record
        took_s = int(record["ended_ns"][0] - record["intended_ns"][0]) / NS_PER_S
        at_ns = int(record["ended_ns"][0]) + self._wall_ns
        of_outcome = self.exemplars.setdefault(OUTCOMES[int(record["outcome"][0]) & 0xFF], {})
        of_outcome[bucket_of(took_s)] = Exemplar(took_s, at_ns, trace_id, span_id)


def _begun_at(records: Records, keys: Sequence[Key]) -> NDArray[np.bool_]:
    """Which records are of these acquires."""
    times = np.fromiter((began_ns for _, began_ns in keys), np.int64, len(keys))
    return np.asarray(np.isin(records["attempt_ns"], times))


def _key_of(record: Records) -> Key:
    """A won record keeps the start of the round that won, a lost one that of its acquire."""
    return checksum(f"r{int(record['resource'][0])}"), int(record["attempt_ns"][0])
