"""What a traced operation looks like: *its record and its observed attempts → spans with their true times*. Pure.

    redlock.acquire                    intended start → acquire returned     links to the acquire that held the lock
    ├─ SET                             one per attempt and instance: sent → replied (silent: until the round closed)
    ├─ redlock.retry_wait              between two attempts
    ├─ redlock.extend                  extension sent → returned
    └─ redlock.release                 release sent → returned

Rules
- Made afterwards, from what was recorded anyway; an attempt that was not observed has neither spans nor an event.
- Times are CLOCK_MONOTONIC here; the exporter moves them to the wall clock by one offset for the whole run.
- Of an acquire of hundreds of attempts the first and the last `MOST_ATTEMPTS` ÷ 2 are shown; `redlock.attempts` says
  how many there were.
- Attributes are those of `SPANS`, and no others.

Source: bench.measure.record, bench.telemetry.attempts; OpenTelemetry's conventions for database client spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.measure import votes
from bench.measure.record import OUTCOMES
from bench.telemetry.attempts import Attempt
from bench.telemetry.buckets import NS_PER_S
from bench.telemetry.choose import Chosen
from bench.telemetry.extensions import Extension

Value = str | int | float | bool
Address = tuple[str, int]

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
MOST_ATTEMPTS = 16
LINK = "redlock.link"  # what a link means: "holder"
ROUTINE = ("acquired", "contended")  # what is no error: a held lock is an answer
EVENT = "redlock.attempt"  # one per observed attempt, on the acquire


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened within a span."""

    name: str
    at_ns: int
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Span:
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
    events: tuple[Event, ...] = ()
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

    def of(self, traced: Traced, attempts: Sequence[Attempt], extensions: Sequence[Extension] = ()) -> Iterator[Span]:
        """All spans of an operation. `attempts`: the observed ones of its acquire; `extensions`: of its lease."""
        if len(attempts) > MOST_ATTEMPTS:
            attempts = (*attempts[: MOST_ATTEMPTS // 2], *attempts[-MOST_ATTEMPTS // 2 :])
        yield self._acquire(traced, attempts)
        before: Attempt | None = None
        for attempt in attempts:
            if before is not None and before.number + 1 == attempt.number:
                waited = self._child(traced, "redlock.retry_wait", before.decided_ns, attempt.started_ns)
                yield Span(**waited, attributes={"redlock.attempt": attempt.number})
            yield from self._sets(traced, attempt)
            before = attempt
        for one in extensions:
            times = self._child(traced, "redlock.extend", one.sent_ns, one.replied_ns)
            failed = None if one.outcome == "extended" else one.outcome
            yield Span(**times, attributes={**self.common, "redlock.outcome": one.outcome}, failed=failed)
        if _field(traced, "release_sent_ns"):
            yield self._release(traced)

    def _acquire(self, traced: Traced, attempts: Sequence[Attempt]) -> Span:
        record = traced.chosen.record
        outcome = OUTCOMES[_field(traced, "outcome") & 0xFF]
        count = {kind: int(votes.votes_of(record, kind)[0]) for kind in votes.KINDS if kind != "undecided"}
        attributes: dict[str, Value] = {
            **self.common,
            "redlock.outcome": outcome,
            "redlock.attempts": int(votes.attempts_of(record)[0]),
            "redlock.split_votes": int(votes.split_votes_of(record)[0]),
            "redlock.queued": (_field(traced, "start_ns") - _field(traced, "intended_ns")) / NS_PER_S,
            "redlock.trace.reason": traced.chosen.reason,
            **{f"redlock.votes.{kind}": number for kind, number in count.items()},
        }
        if outcome == "acquired":
            validity_ns = _field(traced, "valid_until_ns") - _field(traced, "granted_ns")
            attributes |= {"redlock.validity": validity_ns / NS_PER_S}
            attributes |= {"redlock.vote.margin": count["granted"] - self.quorum}
        return Span(
            "redlock.acquire", traced.trace_id, traced.span_id, 0, _field(traced, "intended_ns"),
            _field(traced, "ended_ns"), attributes,
            failed=None if outcome in ROUTINE else f"{outcome} after {attributes['redlock.attempts']} attempts",
            events=tuple(_event(attempt) for attempt in attempts),
            links=((*traced.holder, "holder"),) if traced.holder else (),
        )  # fmt: skip

    def _sets(self, traced: Traced, attempt: Attempt) -> Iterator[Span]:
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
            yield Span(**times, attributes=attributes, is_client=True, failed=failed)

    def _release(self, traced: Traced) -> Span:
        outcome = OUTCOMES[(_field(traced, "outcome") >> 8) & 0xFF]
        sent_ns, replied_ns = _field(traced, "release_sent_ns"), _field(traced, "release_replied_ns")
        times = self._child(traced, "redlock.release", sent_ns, max(replied_ns, sent_ns))
        failed = None if outcome == "released" else outcome if outcome != "none" else "cut short"
        attributes = {**self.common} if outcome == "none" else {**self.common, "redlock.outcome": outcome}
        return Span(**times, attributes=attributes, failed=failed)

    def _child(self, traced: Traced, name: str, begun_ns: int, ended_ns: int) -> dict[str, Any]:
        return {
            "name": name, "trace_id": traced.trace_id, "span_id": self.draw_id(), "parent": traced.span_id,
            "begun_ns": begun_ns, "ended_ns": ended_ns,
        }  # fmt: skip


def _event(attempt: Attempt) -> Event:
    granted = sum(ask.vote == "granted" for ask in attempt.asks)
    attributes: dict[str, Value] = {
        "redlock.attempt": attempt.number,
        "redlock.outcome": attempt.outcome,
        "redlock.votes.granted": granted,
        "redlock.vote.margin": attempt.margin,
    }
    return Event(EVENT, attempt.started_ns, attributes)


def _field(traced: Traced, name: str) -> int:
    return int(traced.chosen.record[name][0])
