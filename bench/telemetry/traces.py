"""The traces of a run, which lockbench makes after the operations have ended: *records and observed
attempts → the spans of a few operations*. All functions are pure.

    redlock.lease                 intended start → the last answer; only if the lock was held
    ├─ redlock.acquire            intended start → acquire returned; links to the acquire that held
    │  │                          the lock
    │  ├─ SET                     one per attempt and instance: sent → replied (silent: until the
    │  │                          round closed)
    │  └─ redlock.retry_wait      between two attempts
    ├─ redlock.extend             extension sent → returned
    └─ redlock.release            release sent → returned

Rules
- Each call of `choose` chooses up to `PER_REASON` operations for each reason. The reasons are a
  slow acquire, a failed acquire, a refused acquire, a split vote, an instance that did not vote,
  and a release that did not succeed. One operation in `one_in` is chosen by chance. An operation is
  chosen for one reason only.
- If possible, `choose` takes operations with observed attempts, because the traces of these
  operations show each instance. For half of the slow acquires, `choose` considers only operations
  with observed attempts.
- If a chosen operation had to wait, `choose` also chooses the operation that held the lock at that
  time. The trace of the operation that waited has a link to the trace of the operation that held
  the lock.
- All records must be settled. In a settled record, the round has closed, late replies are patched
  in, and the attempts have been written. A span has a vote margin only if all votes are decided. If
  the last round was observed, the votes in the span come from the observed attempt. In this case,
  the child spans show the same votes. If the last round was not observed, the votes come from the
  record. In the record, `undecided` counts the votes that were missing when the load ended. The
  memory for attempts and extensions is bounded.
- Times in this file are on CLOCK_MONOTONIC. The exporter converts the times to the wall clock with
  one offset for the whole run.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.measure import outcomes
from bench.measure.outcomes import acquired
from bench.measure.record import CONTENDED, OUTCOME_CODES, OUTCOMES, RELEASED, Records
from bench.telemetry.load_log import Extension, ObservedAttempt, checksum
from bench.telemetry.points import NS_PER_S, Exemplar, bucket_of
from bench.telemetry.run import Run

Value = str | int | float | bool

# For each reason, one call of `choose` chooses at most this many operations.
PER_REASON = 10
# The attempts of at most this many acquires are kept.
REMEMBERED = 50_000
# These outcomes are not errors. A refused lock is a normal answer.
ROUTINE = ("acquired", "contended")
# A span has this error if the instance gave no vote.
_FAILED = {"silent": "no reply before the round closed", "errored": "an error reply"}

# The checksum of the resource's name, and the start of the acquire or of a round.
AcquireId = tuple[int, int]
Rows = NDArray[np.int64]
# A flag for each record.
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Chosen:
    """An operation to trace.

    `record`: an array with one row, which is the record of the operation. `span_id`: the id of the
    acquire's span. `holder`: the trace id and span id of the operation that held the lock, if
    known.
    """

    record: Records
    reason: str
    trace_id: int
    span_id: int
    holder: tuple[int, int] | None

    def number(self, field: str) -> int:
        """Return the value of the field `field` of the record."""
        return int(self.record[field][0])

    @property
    def outcome(self) -> str:
        """The outcome of the acquire."""
        return OUTCOMES[self.number("outcome") & 0xFF]


def choose(records: Records, observed: Flags, one_in: int, rng: random.Random) -> list[Chosen]:
    """Choose the operations to trace.

    `observed`: one bool for each operation, which is true if any attempt of the operation was
    observed. `one_in`: if `one_in` is n, one of n operations is chosen by chance. If `one_in` is 0,
    no operation is chosen by chance.
    """
    reasons: dict[int, str] = {}
    for reason, rows in _by_reason(records, observed, one_in, rng):
        for row in rows.tolist():
            reasons.setdefault(row, reason)
    holders = {row: holder for row in reasons if (holder := _holder_of(records, row)) is not None}
    for holder in holders.values():
        reasons.setdefault(holder, "holder")
    ids = {row: (rng.getrandbits(128), rng.getrandbits(64)) for row in reasons}
    return [
        Chosen(records[row : row + 1].copy(), reason, *ids[row], ids.get(holders.get(row, -1)))
        for row, reason in reasons.items()
    ]


def _holder_of(records: Records, row: int) -> int | None:
    """Return the row of the operation that held the lock while `row` waited.

    Return None if no such operation is known. The holder is an operation of the same resource that
    sent its release between the start and the end of `row`. If several operations sent a release in
    this time, the holder is the operation with the last release.
    """
    one = records[row]
    if outcomes.attempts_of(records[row : row + 1])[0] <= 1:
        return None
    sent = records.release_sent_ns
    until_ns = one["ended_ns"]
    rows = np.flatnonzero(
        (records.resource == one["resource"]) & (sent > one["start_ns"]) & (sent <= until_ns)
    )
    return int(rows[np.argmax(sent[rows])]) if len(rows) else None


def _by_reason(
    records: Records, observed: Flags, one_in: int, rng: random.Random
) -> Iterator[tuple[str, Rows]]:
    codes = records.acquire_code
    released = records.release_code
    weight = 1 + observed
    yield "failed", _most(~np.isin(codes, [OUTCOME_CODES[name] for name in ROUTINE]) * weight)
    yield "release", _most(((released != 0) & (released != RELEASED)) * weight)
    yield "split vote", _most((outcomes.split_votes_of(records) > 0) * weight)
    no_vote = outcomes.votes_of(records, "silent") + outcomes.votes_of(records, "errored")
    yield "no vote", _most((no_vote > 0) * weight)
    yield "refused", _most((codes == CONTENDED) * weight)
    took = np.where(acquired(records), records.ended_ns - records.intended_ns, 0)
    yield "slow", _most(took, PER_REASON // 2)
    yield "slow", _most(took * observed, PER_REASON // 2)
    if one_in:
        yield "one in many", np.arange(rng.randrange(one_in), len(records), one_in)[:PER_REASON]


def _most(weights: Rows, number: int = PER_REASON) -> Rows:
    """Return the rows with the greatest weights. A row with the weight 0 is never chosen."""
    rows = np.flatnonzero(weights)
    return rows[np.argsort(-weights[rows], kind="stable")][:number]


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One span.

    `parent`: the id of the parent span (0: none). `failed`: a sentence about the error, or "" if
    the status of the span is not an error. `holder`: as in Chosen.
    """

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
    """The tracing of a run.

    A Tracing object chooses operations and makes the spans of the chosen operations. The parameters
    `one_in` and `rng` have the same meaning as in `choose`. `wall_ns`: wall clock − monotonic
    clock.
    """

    def __init__(self, run: Run, one_in: int, wall_ns: int, rng: random.Random) -> None:
        self._run = run
        self._one_in = one_in
        self._wall_ns = wall_ns
        self._rng = rng
        self._common: Mapping[str, Value] = dict(run.common)
        # The attempts by the start of the acquire. If an acquire got the lock, its attempts are
        # also stored by the start of the round that won, because the record has this time.
        self._attempts: dict[AcquireId, list[ObservedAttempt]] = {}
        # The extensions by the start of the round that won.
        self._extensions: dict[AcquireId, list[Extension]] = {}
        self.exemplars: dict[str, dict[int, Exemplar]] = {}

    def note(
        self, attempts: Iterable[ObservedAttempt], extensions: Iterable[Extension] = ()
    ) -> None:
        """Store the observed attempts and extensions."""
        for attempt in attempts:
            of_acquire = self._attempts.setdefault((attempt.resource, attempt.acquire_ns), [])
            of_acquire.append(attempt)
            if attempt.outcome == "acquired":
                self._attempts[attempt.resource, attempt.started_ns] = of_acquire
        for extension in extensions:
            self._extensions.setdefault((extension.resource, extension.attempt_ns), []).append(
                extension
            )
        _forget_oldest(self._attempts)
        _forget_oldest(self._extensions)

    def look(self, records: Records) -> Iterator[TraceSpan]:
        """Choose some of these records, and yield their spans. The votes of the records must be
        final."""
        began_ns = np.fromiter(
            (began_ns for _, began_ns in self._attempts), np.int64, len(self._attempts)
        )
        for one in choose(records, np.isin(records.attempt_ns, began_ns), self._one_in, self._rng):
            ended_ns = one.number("ended_ns")
            took_s = (ended_ns - one.number("intended_ns")) / NS_PER_S
            shown = Exemplar(took_s, ended_ns + self._wall_ns, one.trace_id, one.span_id)
            self.exemplars.setdefault(one.outcome, {})[bucket_of(took_s)] = shown
            key = checksum(f"r{one.number('resource')}"), one.number("attempt_ns")
            attempts = sorted(self._attempts.get(key, ()), key=lambda attempt: attempt.number)
            yield from self._spans(one, attempts, self._extensions.get(key, ()))

    def _spans(
        self, chosen: Chosen, attempts: Sequence[ObservedAttempt], extensions: Sequence[Extension]
    ) -> Iterator[TraceSpan]:
        """Yield all spans of an operation.

        `attempts`: the observed attempts of the acquire of this operation. `extensions`: the
        extensions of the lease of this operation.
        """
        lease_id = self._rng.getrandbits(64)
        if held := list(self._held(chosen, lease_id, extensions)):
            ended_ns = max(chosen.number("ended_ns"), *(one.ended_ns for one in held))
            times_ns = chosen.number("intended_ns"), ended_ns
            yield TraceSpan("redlock.lease", chosen.trace_id, lease_id, 0, *times_ns, self._common)
        yield self._acquire(chosen, lease_id if held else 0, attempts)
        yield from held
        for attempt in attempts:
            yield from self._sets(chosen, attempt)
        for before, attempt in pairwise(attempts):
            if before.number + 1 == attempt.number:
                times_ns = (before.decided_ns, attempt.started_ns)
                number = {"redlock.attempt": attempt.number}
                yield self._child(chosen, chosen.span_id, "redlock.retry_wait", times_ns, number)

    def _held(
        self, chosen: Chosen, lease_id: int, extensions: Sequence[Extension]
    ) -> Iterator[TraceSpan]:
        answers = [
            ("redlock.extend", one.sent_ns, one.replied_ns, one.outcome) for one in extensions
        ]
        released_as = OUTCOMES[(chosen.number("outcome") >> 8) & 0xFF]
        if released_as != "none":
            times_ns = chosen.number("release_sent_ns"), chosen.number("release_replied_ns")
            answers.append(("redlock.release", *times_ns, released_as))
        for name, sent_ns, replied_ns, outcome in answers:
            attributes = {**self._common, "redlock.outcome": outcome}
            failed = "" if outcome in ("extended", "released") else outcome
            yield self._child(
                chosen, lease_id, name, (sent_ns, replied_ns), attributes, failed=failed
            )

    def _acquire(
        self, chosen: Chosen, parent: int, attempts: Sequence[ObservedAttempt]
    ) -> TraceSpan:
        record = chosen.record
        outcome = chosen.outcome
        count = _votes_of(record, attempts)
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
            "redlock.acquire",
            chosen.trace_id,
            chosen.span_id,
            parent,
            chosen.number("intended_ns"),
            chosen.number("ended_ns"),
            attributes,
            failed=""
            if outcome in ROUTINE
            else f"{outcome} after {attributes['redlock.attempts']} attempts",
            holder=chosen.holder,
        )

    def _sets(self, chosen: Chosen, attempt: ObservedAttempt) -> Iterator[TraceSpan]:
        for index, ask in enumerate(attempt.asks):
            if not ask.sent_ns:
                # The vote is absent, so no SET was sent.
                continue
            host, port = self._run.addresses[index]
            attributes: dict[str, Value] = {
                "db.system.name": "redis",
                "db.operation.name": "SET",
                "server.address": host,
                "server.port": port,
                "redlock.vote": ask.vote,
                "redlock.attempt": attempt.number,
            }
            if self._run.databases:
                attributes["db.namespace"] = str(self._run.databases[index])
            if failed := _FAILED.get(ask.vote, ""):
                attributes["error.type"] = ask.error or ask.vote
            if ask.error:
                attributes["db.response.status_code"] = ask.error
            times_ns = ask.sent_ns, ask.replied_ns or max(attempt.closed_ns, ask.sent_ns)
            yield self._child(chosen, chosen.span_id, "SET", times_ns, attributes, failed=failed)

    def _child(
        self,
        chosen: Chosen,
        parent: int,
        name: str,
        times_ns: tuple[int, int],
        attributes: Mapping[str, Value],
        *,
        failed: str = "",
    ) -> TraceSpan:
        return TraceSpan(
            name, chosen.trace_id, self._rng.getrandbits(64), parent, *times_ns, attributes, failed
        )


def _votes_of(record: Records, attempts: Sequence[ObservedAttempt]) -> dict[str, int]:
    """Return how many votes of each kind the last round of an acquire had.

    If the last round was observed, the votes come from the observed attempt. In this case, the
    child spans show the same votes. If the last round was not observed, the votes come from the
    record. If a vote was missing at the end of the load, the record counts this vote as undecided.
    """
    if attempts and attempts[-1].number == int(outcomes.attempts_of(record)[0]):
        votes = [ask.vote for ask in attempts[-1].asks]
        return {kind: votes.count(kind) for kind in outcomes.KINDS}
    return {kind: int(outcomes.votes_of(record, kind)[0]) for kind in outcomes.KINDS}


def _forget_oldest(
    memory: dict[AcquireId, list[ObservedAttempt]] | dict[AcquireId, list[Extension]],
) -> None:
    for key in list(memory)[: max(len(memory) - REMEMBERED, 0)]:
        del memory[key]
