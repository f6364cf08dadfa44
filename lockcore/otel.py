"""Exports the telemetry of an application's locks.

Input: a lock. Output: metrics and spans of OpenTelemetry.

Rules: this file needs only OpenTelemetry's API. Names, units and meanings are the same as in the
bench (bench/telemetry/table.py). No attribute ever has a resource's name, a key or an owner token.
All numbers are exact, except for numbers of observed attempts. A collection reads counters, gauges
and histograms from telemetry/fast.py. A sample is recorded by the caller whose operation ended. So
exemplars and spans belong to the span of the application that is active at this time. A slow,
failed or lost operation gets a span. Each lock makes at most `SPANS` spans a second for each
operation and outcome. Each outcome has its own limit, so many spans of one outcome do not suppress
the spans of another outcome. A held lock is a normal answer. So a contended acquire gets a span
only if the application requests such spans. With any temporality, a forked child starts without the
numbers of its parent.
"""

import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from opentelemetry import metrics, trace
from opentelemetry.metrics import (
    Asynchronous,
    CallbackOptions,
    Histogram,
    MeterProvider,
    Observation,
)

from lockcore.clock import NS_PER_S, monotonic_ns
from lockcore.facts.model import Denied, InstanceStatus, Lease, Outcome, Vote
from lockcore.redlock import AsyncRedlock, Redlock
from lockcore.telemetry.fast import BOUNDS_NS, FIRST_EVERY, TRIES, Tallied
from lockcore.telemetry.sdk import drop_remembered, record_all

SCOPE = "lockcore"

# The first version of OpenTelemetry's conventions with stable names for databases.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.33.0"

# At most this number of spans a second is made for each operation and outcome.
SPANS = 10
MOST_SLOW_S = 86_400

# A collection reads one instrument after the other. All reads within this time get the same
# snapshot.
LOOK_NS = NS_PER_S // 20

# The bounds are the same as in every histogram of the bench: 10 µs … 100 s.
BOUNDS = tuple(bound_ns / NS_PER_S for bound_ns in BOUNDS_NS)
HISTOGRAMS = {
    "redlock.acquire.duration": ("s", "time from the call of acquire until acquire returned"),
    "redlock.acquire.attempts": ("{attempt}", "number of rounds in one acquire"),
    "redlock.release.duration": ("s", "time from sending a release until the release returned"),
    "redlock.extend.duration": ("s", "time from sending an extension until the extension returned"),
    "redlock.hold.duration": ("s", "time from the grant until the holder sends its release"),
    "redlock.vote.margin": (
        "{vote}",
        "granted votes of an observed attempt minus the quorum, at the end of the round",
    ),
    "db.client.operation.duration": (
        "s",
        "time from a SET to the answer of the instance, measured only in observed attempts",
    ),
}
COUNTERS = {
    "redlock.acquire.outcomes": ("{acquire}", "acquires that returned"),
    "redlock.acquire.slow": ("{acquire}", "acquires that got a lease after more than `slow_s`"),
    "redlock.split_votes": ("{round}", "rounds that nobody could win"),
    "redlock.leases.gone": (
        "{lease}",
        "leases that had expired or had another owner at their release",
    ),
    "redlock.votes": ("{vote}", "votes of observed attempts"),
    "redlock.instance.commands": ("{command}", "commands that this process sent to the instance"),
    "redlock.instance.errors": ("{error}", "errors of the instance that this process met"),
    "redlock.instance.reconnects": ("{connection}", "connections that had to be opened again"),
}
GAUGES = {
    "redlock.leases.held": ("{lease}", "leases that are valid and not released"),
    "redlock.leases.overdue": (
        "{lease}",
        "leases that expired without a release; a lease counts for at most one hour after its end",
    ),
    "redlock.callers.waiting": (
        "{caller}",
        "callers that wait for a lease",
    ),
    "redlock.quorum.size": ("{instance}", "the number of votes that win a lock"),
    "redlock.instance.voting": ("{instance}", "1 if the instance votes, otherwise 0"),
    "redlock.instance.abstaining": (
        "{instance}",
        "1 if the instance must not vote, because it may have forgotten locks; otherwise 0",
    ),
}

# The usual errors have a series from the beginning. If a series began with its first error, no rate
# would include this error.
_NO_ERRORS = {"TIMEOUT": 0, "CLOSED": 0}
_NO_VOTE = (Vote.ERRORED, Vote.SILENT)
_SET = {"db.system.name": "redis", "db.operation.name": "SET"}

# The SDK gets one value for each bucket. For a duration it is the middle of the bucket. For
# attempts it is the largest number in the bucket, and up to 4 the only number.
_MIDDLES = (*(bound_s / 1.21 for bound_s in BOUNDS), 1.21 * BOUNDS[-1])
_NUMBERS = (*(float(int(bound)) if bound >= 1 else bound for bound in BOUNDS), BOUNDS[-1] + 1)
_ROUTINE = (Outcome.ACQUIRED, Outcome.CONTENDED, Outcome.RELEASED)

Lock = Redlock | AsyncRedlock

# The module represents the global provider.
Provider = MeterProvider | ModuleType
Attributes = tuple[tuple[str, str | int], ...]

# The name of an instrument, and attributes.
Point = tuple[str, Attributes]


def instrument(
    lock: Lock,
    *,
    slow_s: float = 0.1,
    class_of: Callable[[str], str] | None = None,
    fleet: str = "",
    contended_spans: bool = False,
    meter_provider: MeterProvider | None = None,
    tracer_provider: trace.TracerProvider | None = None,
) -> None:
    """Export the telemetry of `lock` from now on, through these providers or the global providers.

    An acquire of more than `slow_s` (s) is slow. `class_of` maps a resource to one of a few
    classes. After 20 classes, each new class becomes `others`. The class is the attribute
    `redlock.resource.class`. `class_of` must be quick. `class_of` runs in the caller's thread, or
    in a thread of lockcore when a keeper extends or loses a lease. For each lock, `class_of` runs
    in one thread at a time. If `class_of` raises an exception, lockcore drops the exception and
    does not count the operation. `fleet` is the name of the instances (`redlock.fleet`). With
    `contended_spans`, contended acquires have spans, too. Raises TypeError or ValueError for bad
    arguments, and ValueError when the lock has an observer already.
    """
    if not isinstance(slow_s, int | float) or not 0 <= slow_s <= MOST_SLOW_S:
        raise ValueError(f"slow_s must be a number of seconds, 0 to {MOST_SLOW_S}, not {slow_s!r}")
    if class_of is not None and not callable(class_of):
        raise TypeError(f"class_of must take a resource and return its class, not {class_of!r}")
    if not isinstance(lock, Redlock | AsyncRedlock):
        raise TypeError(f"lock must be a Redlock or an AsyncRedlock, not {type(lock).__name__}")
    # The module `metrics` identifies the global provider. The object of the provider cannot
    # identify it, because set_meter_provider replaces this object.
    provider: Provider = metrics
    if meter_provider is not None and meter_provider is not metrics.get_meter_provider():
        provider = meter_provider
    if provider not in _EXPORTED:
        _EXPORTED[provider] = _Exported(provider)
    exported = _EXPORTED[provider]
    tracer = trace.get_tracer(SCOPE, _version(), tracer_provider, SCHEMA_URL)
    own = weakref.ref(lock)

    def observe_every(every: int) -> None:
        if (alive := own()) is not None:
            alive.observe_every(every)

    recording = _Recording(exported.histograms, tracer)
    watch = Tallied(recording, int(slow_s * NS_PER_S), class_of, observe_every, contended_spans)
    lock.observe(watch)
    lock.observe_every(FIRST_EVERY)
    exported.locks.append(_Source(own, watch, fleet))


class _Recording:
    """Records samples, and spans of slow and failed operations, in the caller's own context."""

    def __init__(self, histograms: dict[str, Histogram], tracer: trace.Tracer) -> None:
        self._histograms = histograms
        self._tracer = tracer
        self._second = 0
        # The number of spans in this second.
        self._spans = Counter[tuple[str, Outcome]]()

    def acquire(
        self, name: str, result: Lease | Denied, started_ns: int, *, sampled: bool, odd: bool
    ) -> None:
        """See `Sink` in telemetry/fast.py."""
        times_ns = started_ns, result.granted_ns if isinstance(result, Lease) else result.ended_ns
        if sampled:
            attributes = _attributes(name, result.outcome)
            self._took("redlock.acquire", times_ns, attributes)
            self._histograms["redlock.acquire.attempts"].record(result.attempts, attributes)
        if odd:
            more = {"redlock.attempts": result.attempts, "redlock.split_votes": result.split_votes}
            votes = {
                f"redlock.votes.{vote}": count for vote, count in result.tally._asdict().items()
            }
            self._span("redlock.acquire", name, result.outcome, times_ns, {**more, **votes})

    def release(self, name: str, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        """See `Sink` in telemetry/fast.py."""
        times_ns = started_ns, monotonic_ns()
        self._took("redlock.release", times_ns, _attributes(name, outcome))
        if outcome is Outcome.RELEASED:
            self._took("redlock.hold", (lease.granted_ns, started_ns), _attributes(name))
        else:
            self._span("redlock.release", name, outcome, times_ns, {})

    def extend(self, name: str, result: Lease | Denied) -> None:
        """See `Sink` in telemetry/fast.py."""
        if isinstance(result, Lease):
            outcome = Outcome.EXTENDED
            times_ns = (result.started_ns, result.granted_ns)
        else:
            outcome = result.outcome
            times_ns = (result.started_ns, result.ended_ns)
            self._span("redlock.extend", name, outcome, times_ns, {})
        self._took("redlock.extend", times_ns, _attributes(name, outcome))

    def _took(self, operation: str, times_ns: tuple[int, int], attributes: dict[str, str]) -> None:
        took_s = (times_ns[1] - times_ns[0]) / NS_PER_S
        self._histograms[f"{operation}.duration"].record(took_s, attributes)

    def _span(
        self,
        operation: str,
        name: str,
        outcome: Outcome,
        times_ns: tuple[int, int],
        more: dict[str, int],
    ) -> None:
        second = times_ns[1] // NS_PER_S
        if second != self._second:
            self._second = second
            self._spans.clear()
        self._spans[operation, outcome] += 1
        if self._spans[operation, outcome] > SPANS:
            return
        wall_ns = time.time_ns() - monotonic_ns()
        attributes: dict[str, str | int] = {**_attributes(name, outcome), **more}
        start_ns = times_ns[0] + wall_ns
        span = self._tracer.start_span(operation, start_time=start_ns, attributes=attributes)
        if outcome not in _ROUTINE:
            span.set_status(trace.StatusCode.ERROR, outcome.value)
        span.end(times_ns[1] + wall_ns)


@dataclass(eq=False, slots=True)
class _Source:
    """A lock whose numbers are exported.

    `instances` contains the points of the lock's instances at the last snapshot.
    """

    lock: weakref.ref[Lock]
    watch: Tallied
    fleet: str
    instances: dict[Point, int] = field(default_factory=dict)

    def counters(self) -> Iterator[tuple[Point, int]]:
        """The numbers that only grow. The numbers of a lock stay in the sums after the lock is
        closed or freed."""
        for name, counts in list(self.watch.counts.items()):
            named = tuple(_attributes(name).items())
            yield (
                ("redlock.acquire.outcomes", (*named, ("redlock.outcome", "acquired"))),
                counts.acquired,
            )
            for (metric, outcome), number in list(counts.numbers.items()):
                yield (metric, (*named, ("redlock.outcome", outcome)) if outcome else named), number
        yield from (
            (point, number) for point, number in self.instances.items() if point[0] in COUNTERS
        )

    def standing(self, now_ns: int) -> Iterator[tuple[Point, int]]:
        """The present numbers of callers and leases."""
        yield ("redlock.callers.waiting", ()), self.watch.waiting
        for name, counts in list(self.watch.counts.items()):
            named = tuple(_attributes(name).items())
            held, overdue = counts.standing(now_ns)
            yield ("redlock.leases.held", named), held
            yield ("redlock.leases.overdue", named), overdue


class _Exported:
    """All numbers that this process exports through one meter provider.

    The numbers cover all locks.
    """

    def __init__(self, provider: Provider) -> None:
        meter = provider.get_meter(SCOPE, _version(), schema_url=SCHEMA_URL)
        self.histograms = {
            name: meter.create_histogram(
                name, unit, meaning, explicit_bucket_boundaries_advisory=BOUNDS
            )
            for name, (unit, meaning) in HISTOGRAMS.items()
        }
        self.locks: list[_Source] = []
        # The numbers of freed locks, and of attempts that were collected.
        self._past: Counter[Point] = Counter()
        # The time of the last snapshot, and its points.
        self._looked_ns = 0
        self._last_look = dict[Point, int]()
        self._observables: list[Asynchronous] = [
            meter.create_observable_counter(name, [partial(self._points, name)], unit, meaning)
            for name, (unit, meaning) in COUNTERS.items()
        ]
        self._observables += [
            meter.create_observable_gauge(name, [partial(self._points, name)], unit, meaning)
            for name, (unit, meaning) in GAUGES.items()
        ]

    def forget(self) -> None:
        """Forget all counts so far, because they belong to the parent of this forked child.

        The SDK must also forget its own values. These values are the samples in our histograms and
        the last collected values of our counters. If the SDK kept these values, it would subtract
        the parent's values from the child's values (delta temporality).
        """
        for one in (*self.histograms.values(), *self._observables):
            drop_remembered(one)
        self.locks.clear()
        self._past.clear()
        self._looked_ns = 0
        self._last_look = {}

    def _points(self, name: str, _: CallbackOptions) -> Iterable[Observation]:
        """The points of one instrument. All points of one collection come from one snapshot."""
        now_ns = monotonic_ns()
        if now_ns - self._looked_ns > LOOK_NS:
            # The time is set last, so a snapshot that raises is taken again.
            self._last_look = self._look(now_ns)
            self._looked_ns = now_ns
        return [
            Observation(value, dict(attributes))
            for (one, attributes), value in self._last_look.items()
            if one == name
        ]

    def _look(self, now_ns: int) -> dict[Point, int]:
        """All points at this moment.

        Each count is the sum of the counts of all locks. An instance counts as voting if it votes
        in all locks.
        """
        counts = Counter[Point]()
        states = dict[Point, int]()
        for source in list(self.locks):
            lock = source.lock()
            watch = source.watch
            self._hand_over(watch)
            if lock is None:
                # Another reader may have removed the lock.
                with suppress(ValueError):
                    self.locks.remove(source)
                    self._past.update(dict(source.counters()))
                continue
            statuses = lock.instances
            source.instances = dict(_of_instances(statuses, source.fleet))
            counts.update(dict(source.counters()))
            counts.update(dict(source.standing(now_ns)))
            if not lock.closed:
                watch.pace(now_ns)
                for point, number in source.instances.items():
                    if point[0] in GAUGES:
                        states[point] = (max if "abstaining" in point[0] else min)(
                            number, states.get(point, number)
                        )
                self._collect(watch, [dict(_where(status, source.fleet)) for status in statuses])
        counts.update(self._past)
        return {**counts, **states}

    def _hand_over(self, watch: Tallied) -> None:
        """Give the SDK all durations and attempts since the last snapshot."""
        for name, counts in list(watch.counts.items()):
            for (metric, outcome), added, added_ns in counts.news():
                values = _NUMBERS if metric == TRIES else _MIDDLES
                attributes = _attributes(name)
                if outcome:
                    attributes = {**attributes, "redlock.outcome": outcome}
                numbers = {values[index]: number for index, number in enumerate(added) if number}
                record_all(self.histograms[metric], numbers, added_ns / NS_PER_S, attributes)

    def _collect(self, watch: Tallied, places: Sequence[dict[str, str | int]]) -> None:
        """Count the votes of observed attempts, and record the duration of each answer."""
        while watch.attempts:
            record = watch.attempts.popleft()
            if record.outcome is Outcome.ACQUIRED:
                self.histograms["redlock.vote.margin"].record(record.margin)
            votes = zip(record.votes, record.sent_ns, record.replied_ns, places, strict=True)
            for vote, sent_ns, replied_ns, place in votes:
                self._past["redlock.votes", (("redlock.vote", vote.value),)] += 1
                if sent_ns:
                    took_ns = (replied_ns or max(record.closed_ns, sent_ns)) - sent_ns
                    error = {"error.type": vote.value} if vote in _NO_VOTE else {}
                    durations = self.histograms["db.client.operation.duration"]
                    durations.record(took_ns / NS_PER_S, {**place, **_SET, **error})


def _version() -> str:
    """The version of lockcore's package, or "" if it was not installed as a package."""
    try:
        return version("lockbench")
    except PackageNotFoundError:
        return ""


def _attributes(name: str, outcome: Outcome | None = None) -> dict[str, str]:
    named = {"redlock.resource.class": name} if name else {}
    return named if outcome is None else {**named, "redlock.outcome": outcome.value}


def _where(status: InstanceStatus, fleet: str) -> Attributes:
    """The attributes for host and port. A unix socket has its path as the host, and the port 0."""
    host, _, port = status.address.rpartition(":")
    place = (host.strip("[]"), int(port)) if host and port.isdigit() else (status.address, 0)
    return (*_fleet(fleet), ("server.address", place[0]), ("server.port", place[1]))


def _fleet(name: str) -> Attributes:
    return (("redlock.fleet", name),) if name else ()


def _of_instances(statuses: Sequence[InstanceStatus], fleet: str) -> Iterator[tuple[Point, int]]:
    yield ("redlock.quorum.size", _fleet(fleet)), len(statuses) // 2 + 1
    for status in statuses:
        where = _where(status, fleet)
        yield ("redlock.instance.voting", where), int(status.state == "voting")
        yield ("redlock.instance.abstaining", where), int(status.state == "abstaining")
        yield ("redlock.instance.commands", where), status.commands
        yield ("redlock.instance.reconnects", where), status.reconnects
        for kind, number in {**_NO_ERRORS, **dict(status.errors)}.items():
            yield ("redlock.instance.errors", (*where, ("error.type", kind))), number


_EXPORTED: weakref.WeakKeyDictionary[Provider, _Exported] = weakref.WeakKeyDictionary()


def _forked() -> None:
    for exported in list(_EXPORTED.values()):
        exported.forget()


os.register_at_fork(after_in_child=_forked)
