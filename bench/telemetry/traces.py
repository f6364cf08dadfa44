"""Traces of a run, made afterwards: *records and what was observed, look by look → spans of a few*. Pure.

    redlock.lease                      intended start → the last answer about it; only if it was held
    ├─ redlock.acquire                 intended start → acquire returned     links to the acquire that held the lock
    │  ├─ SET                          one per attempt and instance: sent → replied (silent: until the round closed)
    │  └─ redlock.retry_wait           between two attempts
    ├─ redlock.extend                  extension sent → returned
    └─ redlock.release                 release sent → returned

Rules
- Of every look: the slowest, those that failed, met a split vote or an instance that did not vote, releases that found
  nothing, up to `PER_REASON` of each, for one reason only; and one operation in `one_in`. Those are preferred whose
  attempts were observed (of the slowest, for half): their traces show each instance.
- An operation that had to wait brings along the one that held the lock until its grant or end, and links to it.
- Made of settled records only: by then the round has closed, late replies are patched in and its attempts have been
  written. A margin is said only where no vote is open. What is remembered is bounded.
- Times are CLOCK_MONOTONIC here; the exporter moves them to the wall clock by one offset for the whole run.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bench.measure import outcomes
from bench.measure.outcomes import acquired
from bench.measure.record import OUTCOME_CODES, OUTCOMES, Records
from bench.telemetry.load_log import Extension, ObservedAttempt, checksum
from bench.telemetry.points import NS_PER_S, Exemplar, bucket_of
from bench.telemetry.run import Run

Value = str | int | float | bool

PER_REASON = 10  # a look
MOST_ATTEMPTS = 16  # an acquire
REMEMBERED = 50_000  # acquires whose attempts are kept
ROUTINE = ("acquired", "contended")  # what is no error: a held lock is an answer
_FAILED = {"silent": "no reply before the round closed", "errored": "an error reply"}  # an instance without a vote
_RELEASED = OUTCOME_CODES["released"]

AcquireId = tuple[int, int]  # checksum of the resource, when the acquire began
Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]  # of each record
Known = TypeVar("Known")


@dataclass(frozen=True, slots=True)
class Chosen:
    """An operation to trace: `record` has one row. `span_id`: of the acquire; `lease_id`: of the
    lease's span; `holder`: trace and span id of whom it waited for, if known."""

    record: Records
    reason: str
    trace_id: int
    span_id: int
    lease_id: int
    holder: tuple[int, int] | None = None

    def number(self, field: str) -> int:
        """Return a field of the record."""
        return int(self.record[field][0])

    @property
    def outcome(self) -> str:
        """How the acquire ended."""
        return OUTCOMES[self.number("outcome") & 0xFF]


def choose(records: Records, observed: Flags, without_vote: Flags, one_in: int, rng: random.Random) -> list[Chosen]:
    """The operations to trace. `one_in` 0 = none by chance.

    `observed`: an attempt of it was; `without_vote`: an instance was silent or in error in one.
    """
    reasons: dict[int, str] = {}
    for reason, rows in _by_reason(records, observed, without_vote, one_in, rng):
        for row in rows.tolist():
            reasons.setdefault(row, reason)
    holders = {row: holder for row in reasons if (holder := _holder_of(records, row)) is not None}
    for holder in holders.values():
        reasons.setdefault(holder, "holder")
    ids = {row: (_draw_id(rng, 128), _draw_id(rng, 64)) for row in reasons}
    return [
        Chosen(records[row : row + 1].copy(), reason, *ids[row], _draw_id(rng, 64), ids.get(holders.get(row, -1)))
        for row, reason in reasons.items()
    ]


def _holder_of(records: Records, row: int) -> int | None:
    """Who had the lock that `row` waited for: the last to release it between its start and its grant or end, if any."""
    one = records[row]
    if outcomes.attempts_of(records[row : row + 1])[0] <= 1:
        return None
    sent, until_ns = records["release_sent_ns"], one["granted_ns"] or one["ended_ns"]
    rows = np.flatnonzero((records["resource"] == one["resource"]) & (sent > one["start_ns"]) & (sent <= until_ns))
    return int(rows[np.argmax(sent[rows])]) if len(rows) else None


def _draw_id(rng: random.Random, bits: int) -> int:
    return rng.getrandbits(bits) or 1  # 0 means none


def _by_reason(
    records: Records, observed: Flags, without_vote: Flags, one_in: int, rng: random.Random
) -> Iterator[tuple[str, Rows]]:
    codes, released, weight = records["outcome"] & 0xFF, (records["outcome"] >> 8) & 0xFF, 1 + observed
    yield "failed", _most(~np.isin(codes, [OUTCOME_CODES[name] for name in ROUTINE]) * weight)
    yield "release", _most(((released != 0) & (released != _RELEASED)) * weight)
    yield "split vote", _most((outcomes.split_votes_of(records) > 0) * weight)
    yield "no vote", _most(without_vote * weight)
    yield "refused", _most((codes == OUTCOME_CODES["contended"]) * weight)
    took = np.where(acquired(records), records["ended_ns"] - records["intended_ns"], 0)
    yield "slow", _most(took, PER_REASON // 2)
    yield "slow", _most(took * observed, PER_REASON // 2)
    if one_in:
        yield "one in many", np.arange(rng.randrange(one_in), len(records), one_in)[:PER_REASON]


def _most(weights: Rows, number: int = PER_REASON) -> Rows:
    """The rows of most weight; 0 = not to be taken."""
    rows = np.flatnonzero(weights)
    return rows[np.argsort(-weights[rows], kind="stable")][:number]


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One span. `parent` 0 = none; `failed`: the sentence of an error status, if it has one; `holder`: as in Chosen."""

    name: str
    trace_id: int
    span_id: int
    parent: int
    begun_ns: int
    ended_ns: int
    attributes: Mapping[str, Value]
    failed: str = ""
    holder: tuple[int, int] | None = None


class Tracing:
    """Chooses operations of a run and makes their spans. `one_in`, `rng` as in `choose`; `wall_ns`: wall clock −
    monotonic clock."""

    def __init__(self, run: Run, one_in: int, wall_ns: int, rng: random.Random) -> None:
        self._run, self._one_in, self._wall_ns, self._rng = run, one_in, wall_ns, rng
        self._common: Mapping[str, Value] = dict(run.common)
        self._acquires: dict[AcquireId, list[ObservedAttempt]] = {}
        self._won: dict[AcquireId, AcquireId] = {}  # the start of the round that won -> its acquire
        self._without_vote: dict[AcquireId, None] = {}  # acquires that met an instance which was silent or in error
        self._extended: dict[AcquireId, list[Extension]] = {}  # by the start of the round that won
        self.exemplars: dict[str, dict[int, Exemplar]] = {}

    def note(self, attempts: Iterable[ObservedAttempt], extensions: Iterable[Extension] = ()) -> None:
        """Remember what was observed."""
        for attempt in attempts:
            key = (attempt.resource, attempt.acquire_ns)
            self._acquires.setdefault(key, []).append(attempt)
            if attempt.outcome == "acquired":
                self._won[attempt.resource, attempt.started_ns] = key
            if any(ask.vote in _FAILED for ask in attempt.asks):
                self._without_vote[key] = None
        for extension in extensions:
            self._extended.setdefault((extension.resource, extension.attempt_ns), []).append(extension)
        _forget_oldest(self._acquires)
        _forget_oldest(self._won)
        _forget_oldest(self._without_vote)
        _forget_oldest(self._extended)

    def look(self, records: Records) -> Iterator[TraceSpan]:
        """The spans of some of these records, whose votes are patched no more."""
        without_vote = [won for won, acquire in self._won.items() if acquire in self._without_vote]
        observed = _begun_at(records, [*self._won, *self._acquires])
        silent = _begun_at(records, [*without_vote, *self._without_vote])
        for one in choose(records, observed, silent, self._one_in, self._rng):
            ended_ns = one.number("ended_ns")
            took_s = (ended_ns - one.number("intended_ns")) / NS_PER_S
            shown = Exemplar(took_s, ended_ns + self._wall_ns, one.trace_id, one.span_id)
            self.exemplars.setdefault(one.outcome, {})[bucket_of(took_s)] = shown
            # a won record keeps the start of the round that won, a lost one that of its acquire
            key = checksum(f"r{one.number('resource')}"), one.number("attempt_ns")
            acquire = self._won.get(key, key) if one.outcome == "acquired" else key
            attempts = sorted(self._acquires.get(acquire, ()), key=lambda attempt: attempt.number)
            yield from self._spans(one, attempts, self._extended.get(key, ()))

    def _spans(
        self, chosen: Chosen, attempts: Sequence[ObservedAttempt], extensions: Sequence[Extension]
    ) -> Iterator[TraceSpan]:
        """All spans of an operation. `attempts`: the observed ones of its acquire; `extensions`: of its lease."""
        if len(attempts) > MOST_ATTEMPTS:
            attempts = (*attempts[: MOST_ATTEMPTS // 2], *attempts[-MOST_ATTEMPTS // 2 :])
        if held := list(self._held(chosen, extensions)):
            ended_ns = max(chosen.number("ended_ns"), *(one.ended_ns for one in held))
            times_ns = chosen.number("intended_ns"), ended_ns
            yield TraceSpan("redlock.lease", chosen.trace_id, chosen.lease_id, 0, *times_ns, self._common)
        yield self._acquire(chosen, chosen.lease_id if held else 0)
        yield from held
        for attempt in attempts:
            yield from self._sets(chosen, attempt)
        for before, attempt in pairwise(attempts):
            if before.number + 1 == attempt.number:
                number = {"redlock.attempt": attempt.number}
                yield self._child(chosen, "redlock.retry_wait", (before.decided_ns, attempt.started_ns), number)

    def _held(self, chosen: Chosen, extensions: Sequence[Extension]) -> Iterator[TraceSpan]:
        for one in extensions:
            failed = "" if one.outcome == "extended" else one.outcome
            attributes, times_ns = {**self._common, "redlock.outcome": one.outcome}, (one.sent_ns, one.replied_ns)
            yield self._child(chosen, "redlock.extend", times_ns, attributes, failed, of_lease=True)
        if sent_ns := chosen.number("release_sent_ns"):
            outcome = OUTCOMES[(chosen.number("outcome") >> 8) & 0xFF]
            cut, times_ns = outcome == "none", (sent_ns, max(chosen.number("release_replied_ns"), sent_ns))
            attributes = dict(self._common) if cut else {**self._common, "redlock.outcome": outcome}
            failed = "cut short" if cut else "" if outcome == "released" else outcome
            yield self._child(chosen, "redlock.release", times_ns, attributes, failed, of_lease=True)

    def _acquire(self, chosen: Chosen, parent: int) -> TraceSpan:
        record, outcome = chosen.record, chosen.outcome
        count = {kind: int(outcomes.votes_of(record, kind)[0]) for kind in outcomes.KINDS}
        attributes: dict[str, Value] = {
            **self._common,
            "redlock.outcome": outcome,
            "redlock.attempts": int(outcomes.attempts_of(record)[0]),
            "redlock.split_votes": int(outcomes.split_votes_of(record)[0]),
            "redlock.queued": (chosen.number("start_ns") - chosen.number("intended_ns")) / NS_PER_S,
            "redlock.trace.reason": chosen.reason,
            **{f"redlock.votes.{kind}": number for kind, number in count.items()},
        }
        if outcome == "acquired":
            validity_ns = chosen.number("valid_until_ns") - chosen.number("granted_ns")
            attributes["redlock.validity"] = validity_ns / NS_PER_S
            if not count["undecided"]:
                attributes["redlock.vote.margin"] = count["granted"] - self._run.quorum
        return TraceSpan(
            "redlock.acquire", chosen.trace_id, chosen.span_id, parent, chosen.number("intended_ns"),
            chosen.number("ended_ns"), attributes,
            failed="" if outcome in ROUTINE else f"{outcome} after {attributes['redlock.attempts']} attempts",
            holder=chosen.holder,
        )  # fmt: skip

    def _sets(self, chosen: Chosen, attempt: ObservedAttempt) -> Iterator[TraceSpan]:
        for (host, port), ask in zip(self._run.addresses, attempt.asks, strict=True):
            if not ask.sent_ns:
                continue  # an absent vote: nothing was sent
            attributes: dict[str, Value] = {
                "db.system.name": "redis", "db.operation.name": "SET", "server.address": host, "server.port": port,
                "redlock.vote": ask.vote, "redlock.attempt": attempt.number,
            }  # fmt: skip
            if failed := _FAILED.get(ask.vote, ""):
                attributes["error.type"] = ask.vote
            times_ns = ask.sent_ns, ask.replied_ns or max(attempt.closed_ns, ask.sent_ns)
            yield self._child(chosen, "SET", times_ns, attributes, failed)

    def _child(
        self, chosen: Chosen, name: str, times_ns: tuple[int, int], attributes: Mapping[str, Value], failed: str = "",
        *, of_lease: bool = False,
    ) -> TraceSpan:  # fmt: skip
        span_id, parent = _draw_id(self._rng, 64), chosen.lease_id if of_lease else chosen.span_id
        return TraceSpan(name, chosen.trace_id, span_id, parent, *times_ns, attributes, failed)


def _forget_oldest(memory: dict[AcquireId, Known]) -> None:
    for key in list(memory)[: max(len(memory) - REMEMBERED, 0)]:
        del memory[key]


def _begun_at(records: Records, keys: Sequence[AcquireId]) -> Flags:
    """Which records are of these acquires."""
    times = np.fromiter((began_ns for _, began_ns in keys), np.int64, len(keys))
    return np.asarray(np.isin(records["attempt_ns"], times))
