"""Traces of a run, made afterwards: *records and what was observed, look by look → spans of a few*. Pure.

    redlock.acquire                    intended start → acquire returned     links to the acquire that held the lock
    ├─ SET                             one per attempt and instance: sent → replied (silent: until the round closed)
    ├─ redlock.retry_wait              between two attempts
    ├─ redlock.extend                  extension sent → returned
    └─ redlock.release                 release sent → returned

Rules
- Of every look: the slowest, those that failed, met a split vote or an instance that did not vote, releases that found
  nothing, up to `PER_REASON` of each; and one operation in `one_in`. What is chosen for a reason is chosen once.
- Of the refused, and for half of the slowest, those are preferred whose attempts were observed: their traces show each
  instance. An operation that had to wait brings along the one that held the lock until its grant, and links to it.
- Made from what was recorded anyway, `DELAY` looks later: by then the attempts have been written. One that was not
  observed has neither spans nor an event. What is remembered is bounded: the oldest goes first.
- Times are CLOCK_MONOTONIC here; the exporter moves them to the wall clock by one offset for the whole run.
- Of an acquire of hundreds of attempts the first and the last `MOST_ATTEMPTS` ÷ 2 are shown; `redlock.attempts` says
  how many there were. Attributes are those of `SPANS`, and no others.
- Every traced acquire is an exemplar of its bucket of `redlock.acquire.duration`.

Source: OpenTelemetry's conventions for database client spans.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.measure import outcomes
from bench.measure.outcomes import acquired
from bench.measure.record import OUTCOME_CODES, OUTCOMES, Records
from bench.telemetry.load_log import Extension, ObservedAttempt, checksum
from bench.telemetry.points import NS_PER_S, Exemplar, bucket_of
from bench.telemetry.run import Address

Value = str | int | float | bool

_COMMON = ("redlock.recipe", "redlock.fsync")
SPANS: Mapping[str, tuple[str, tuple[str, ...]]] = {  # name -> (parent, attributes)
    "redlock.acquire": (
        "",
        (
            *_COMMON, "redlock.outcome", "redlock.attempts", "redlock.split_votes", "redlock.queued",
            "redlock.validity", "redlock.trace.reason", "redlock.votes.granted", "redlock.votes.refused",
            "redlock.votes.errored",
            "redlock.votes.silent", "redlock.votes.absent", "redlock.vote.margin",
        ),
    ),
    "SET": (
        "redlock.acquire",
        (
            "db.system.name", "db.operation.name", "server.address", "server.port", "redlock.vote", "redlock.attempt",
            "error.type",
        ),
    ),
    "redlock.retry_wait": ("redlock.acquire", ("redlock.attempt",)),
    "redlock.extend": ("redlock.acquire", (*_COMMON, "redlock.outcome")),
    "redlock.release": ("redlock.acquire", (*_COMMON, "redlock.outcome")),
}  # fmt: skip
PER_REASON = 10  # a look
MOST_ATTEMPTS = 16  # an acquire
DELAY = 2  # looks
REMEMBERED = 50_000  # acquires whose attempts are kept
LINK = "redlock.link"  # what a link means: "holder"
EVENT = "redlock.attempt"  # one per observed attempt, on the acquire
ROUTINE = ("acquired", "contended")  # what is no error: a held lock is an answer
WITHOUT_VOTE = frozenset(("silent", "errored"))
_RELEASED = OUTCOME_CODES["released"]

AcquireId = tuple[int, int]  # checksum of the resource, when the acquire began
Rows = NDArray[np.int64]


class Looks(NamedTuple):
    """What is known besides of each record: was an attempt of it `observed`; was an instance silent or in error in
    one, `without_vote`."""

    observed: NDArray[np.bool_]
    without_vote: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Chosen:
    """An operation to trace: `record` has one row. `holder`: the index in the list of chosen ones of whom it waited
    for, None if unknown."""

    record: Records
    reason: str
    holder: int | None = None


def choose(records: Records, looks: Looks, one_in: int, draw: Callable[[int], int]) -> list[Chosen]:
    """The operations to trace. `one_in` 0 = none by chance; `draw(n)` gives a random whole number below n."""
    if not len(records):
        return []
    reasons: dict[int, str] = {}
    for reason, rows in _by_reason(records, looks, one_in, draw):
        for row in rows.tolist():
            reasons.setdefault(row, reason)
    waited = [row for row in reasons if outcomes.attempts_of(records[row : row + 1])[0] > 1]
    holders = {row: holder for row in waited if (holder := _holder_of(records, row)) is not None}
    for holder in holders.values():
        reasons.setdefault(holder, "holder")
    places = {row: place for place, row in enumerate(reasons)}
    return [
        Chosen(records[row : row + 1].copy(), reason, places[holders[row]] if row in holders else None)
        for row, reason in reasons.items()
    ]


def _by_reason(records: Records, looks: Looks, one_in: int, draw: Callable[[int], int]) -> Iterator[tuple[str, Rows]]:
    observed = looks.observed
    codes, won = records["outcome"] & 0xFF, acquired(records)
    released = (records["outcome"] >> 8) & 0xFF
    yield "failed", _first(~np.isin(codes, [OUTCOME_CODES[name] for name in ROUTINE]), observed)
    yield "release", _first((released != 0) & (released != _RELEASED), observed)
    yield "split vote", _first(outcomes.split_votes_of(records) > 0, observed)
    yield "no vote", _first(looks.without_vote, observed)
    yield "refused", _first(codes == OUTCOME_CODES["contended"], observed)
    took = np.where(won, records["ended_ns"] - records["intended_ns"], -1)
    yield "slow", _slowest(took, PER_REASON // 2)
    yield "slow", _slowest(np.where(observed, took, -1), PER_REASON // 2)
    if one_in:
        yield "one in many", np.arange(draw(one_in), len(records), one_in)[:PER_REASON]


def _first(rows: NDArray[np.bool_], observed: NDArray[np.bool_]) -> Rows:
    """Up to `PER_REASON` of the rows, observed ones first."""
    seen, unseen = np.flatnonzero(rows & observed), np.flatnonzero(rows & ~observed)
    return np.concatenate([seen[:PER_REASON], unseen[: max(PER_REASON - len(seen), 0)]])


def _slowest(took: NDArray[np.int64], number: int) -> Rows:
    """The rows that took longest; −1 = not to be taken."""
    rows = np.argsort(took)[-number:][::-1]
    return rows[took[rows] >= 0]


def _holder_of(records: Records, row: int) -> int | None:
    """Who had the lock that `row` waited for: the last on its resource that released between its start and its end."""
    one = records[row]
    until_ns = one["granted_ns"] or one["ended_ns"]
    sent = records["release_sent_ns"]
    rows = np.flatnonzero((records["resource"] == one["resource"]) & (sent > one["start_ns"]) & (sent <= until_ns))
    return int(rows[np.argmax(sent[rows])]) if len(rows) else None


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span."""

    name: str
    at_ns: int
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One span. `parent` 0 = none; `links`: (trace id, span id, meaning); `failed`: the sentence of an error status."""

    name: str
    trace_id: int
    span_id: int
    parent: int
    begun_ns: int
    ended_ns: int
    attributes: Mapping[str, Value]
    is_client: bool = False
    failed: str | None = None
    events: tuple[SpanEvent, ...] = ()
    links: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Traced:
    """A chosen operation and the identity of its acquire; `holder`: that of whom it waited for."""

    chosen: Chosen
    trace_id: int
    span_id: int
    holder: tuple[int, int] | None = None


@dataclass(slots=True)
class Spans:
    """Makes the spans of a run. `addresses`: of the instances; `common`: `redlock.recipe`, `redlock.fsync`."""

    addresses: Sequence[Address]
    quorum: int
    common: Mapping[str, Value]
    draw_id: Callable[[], int] = field(repr=False)

    def of(
        self, traced: Traced, attempts: Sequence[ObservedAttempt], extensions: Sequence[Extension] = ()
    ) -> Iterator[TraceSpan]:
        """All spans of an operation. `attempts`: the observed ones of its acquire; `extensions`: of its lease."""
        if len(attempts) > MOST_ATTEMPTS:
            attempts = (*attempts[: MOST_ATTEMPTS // 2], *attempts[-MOST_ATTEMPTS // 2 :])
        yield self._acquire(traced, attempts)
        before: ObservedAttempt | None = None
        for attempt in attempts:
            if before is not None and before.number + 1 == attempt.number:
                waited = self._child(traced, "redlock.retry_wait", before.decided_ns, attempt.started_ns)
                yield TraceSpan(**waited, attributes={"redlock.attempt": attempt.number})
            yield from self._sets(traced, attempt)
            before = attempt
        for one in extensions:
            times = self._child(traced, "redlock.extend", one.sent_ns, one.replied_ns)
            failed = None if one.outcome == "extended" else one.outcome
            yield TraceSpan(**times, attributes={**self.common, "redlock.outcome": one.outcome}, failed=failed)
        if _field(traced, "release_sent_ns"):
            yield self._release(traced)

    def _acquire(self, traced: Traced, attempts: Sequence[ObservedAttempt]) -> TraceSpan:
        record = traced.chosen.record
        outcome = OUTCOMES[_field(traced, "outcome") & 0xFF]
        count = {kind: int(outcomes.votes_of(record, kind)[0]) for kind in outcomes.KINDS if kind != "undecided"}
        attributes: dict[str, Value] = {
            **self.common,
            "redlock.outcome": outcome,
            "redlock.attempts": int(outcomes.attempts_of(record)[0]),
            "redlock.split_votes": int(outcomes.split_votes_of(record)[0]),
            "redlock.queued": (_field(traced, "start_ns") - _field(traced, "intended_ns")) / NS_PER_S,
            "redlock.trace.reason": traced.chosen.reason,
            **{f"redlock.votes.{kind}": number for kind, number in count.items()},
        }
        if outcome == "acquired":
            validity_ns = _field(traced, "valid_until_ns") - _field(traced, "granted_ns")
            attributes |= {"redlock.validity": validity_ns / NS_PER_S}
            attributes |= {"redlock.vote.margin": count["granted"] - self.quorum}
        return TraceSpan(
            "redlock.acquire", traced.trace_id, traced.span_id, 0, _field(traced, "intended_ns"),
            _field(traced, "ended_ns"), attributes,
            failed=None if outcome in ROUTINE else f"{outcome} after {attributes['redlock.attempts']} attempts",
            events=tuple(_event(attempt) for attempt in attempts),
            links=((*traced.holder, "holder"),) if traced.holder else (),
        )  # fmt: skip

    def _sets(self, traced: Traced, attempt: ObservedAttempt) -> Iterator[TraceSpan]:
        for (host, port), ask in zip(self.addresses, attempt.asks, strict=True):
            if not ask.sent_ns:
                continue  # an absent vote: nothing was sent
            attributes: dict[str, Value] = {
                "db.system.name": "redis", "db.operation.name": "SET", "server.address": host, "server.port": port,
                "redlock.vote": ask.vote, "redlock.attempt": attempt.number,
            }  # fmt: skip
            failed = None
            if ask.vote in ("errored", "silent"):
                failed = "an error reply" if ask.vote == "errored" else "no reply before the round closed"
                attributes["error.type"] = ask.vote
            times = self._child(traced, "SET", ask.sent_ns, ask.replied_ns or max(attempt.closed_ns, ask.sent_ns))
            yield TraceSpan(**times, attributes=attributes, is_client=True, failed=failed)

    def _release(self, traced: Traced) -> TraceSpan:
        outcome = OUTCOMES[(_field(traced, "outcome") >> 8) & 0xFF]
        sent_ns, replied_ns = _field(traced, "release_sent_ns"), _field(traced, "release_replied_ns")
        times = self._child(traced, "redlock.release", sent_ns, max(replied_ns, sent_ns))
        failed = None if outcome == "released" else outcome if outcome != "none" else "cut short"
        attributes = {**self.common} if outcome == "none" else {**self.common, "redlock.outcome": outcome}
        return TraceSpan(**times, attributes=attributes, failed=failed)

    def _child(self, traced: Traced, name: str, begun_ns: int, ended_ns: int) -> dict[str, Any]:
        return {
            "name": name, "trace_id": traced.trace_id, "span_id": self.draw_id(), "parent": traced.span_id,
            "begun_ns": begun_ns, "ended_ns": ended_ns,
        }  # fmt: skip


def _event(attempt: ObservedAttempt) -> SpanEvent:
    granted = sum(ask.vote == "granted" for ask in attempt.asks)
    attributes: dict[str, Value] = {
        "redlock.attempt": attempt.number,
        "redlock.outcome": attempt.outcome,
        "redlock.votes.granted": granted,
        "redlock.vote.margin": attempt.margin,
    }
    return SpanEvent(EVENT, attempt.started_ns, attributes)


def _field(traced: Traced, name: str) -> int:
    return int(traced.chosen.record[name][0])


class Tracing:
    """Chooses operations and makes their spans. `one_in` as in `choose`; `wall_ns`: wall clock − monotonic clock."""

    def __init__(self, spans: Spans, one_in: int, wall_ns: int, dice: random.Random | None = None) -> None:
        self._spans, self._one_in, self._wall_ns = spans, one_in, wall_ns
        self._dice = dice or random.SystemRandom()
        self._acquires: dict[AcquireId, list[ObservedAttempt]] = {}
        self._won: dict[AcquireId, AcquireId] = {}  # the start of the round that won -> its acquire
        self._without_vote: dict[AcquireId, None] = {}  # acquires that met an instance which was silent or in error
        self._extended: dict[AcquireId, list[Extension]] = {}  # by the start of the round that won
        self._waiting: deque[Records] = deque()
        self.exemplars: dict[str, dict[int, Exemplar]] = {}

    def note(self, attempts: Iterable[ObservedAttempt]) -> None:
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
        memories: tuple[dict[AcquireId, Any], ...] = (self._acquires, self._won, self._without_vote, self._extended)
        for memory in memories:
            for key in list(memory)[: max(len(memory) - REMEMBERED, 0)]:
                del memory[key]

    def look(self, records: Records) -> Iterator[TraceSpan]:
        """Take the records of this look; the spans of an earlier one."""
        self._waiting.append(records)
        if len(self._waiting) > DELAY:
            yield from self._trace(self._waiting.popleft())

    def finish(self) -> Iterator[TraceSpan]:
        """The spans of what is left."""
        while self._waiting:
            yield from self._trace(self._waiting.popleft())

    def _trace(self, records: Records) -> Iterator[TraceSpan]:
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

    def _attempts_of(self, key: AcquireId, *, won: bool) -> Sequence[ObservedAttempt]:
        acquire = self._won.get(key, key) if won else key
        return sorted(self._acquires.get(acquire, ()), key=lambda attempt: attempt.number)

    def _show(self, one: Chosen, trace_id: int, span_id: int) -> None:
        record = one.record
        took_s = int(record["ended_ns"][0] - record["intended_ns"][0]) / NS_PER_S
        at_ns = int(record["ended_ns"][0]) + self._wall_ns
        of_outcome = self.exemplars.setdefault(OUTCOMES[int(record["outcome"][0]) & 0xFF], {})
        of_outcome[bucket_of(took_s)] = Exemplar(took_s, at_ns, trace_id, span_id)


def _begun_at(records: Records, keys: Sequence[AcquireId]) -> NDArray[np.bool_]:
    """Which records are of these acquires."""
    times = np.fromiter((began_ns for _, began_ns in keys), np.int64, len(keys))
    return np.asarray(np.isin(records["attempt_ns"], times))


def _key_of(record: Records) -> AcquireId:
    """A won record keeps the start of the round that won, a lost one that of its acquire."""
    return checksum(f"r{int(record['resource'][0])}"), int(record["attempt_ns"][0])
