"""`lockcore.otel`: what an application's OpenTelemetry is told is what its lock did.

On every way of waiting.
"""

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Counter as SummedCounter
from opentelemetry.sdk.metrics import Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bench.telemetry.table import BOUNDS, BY_NAME, SCHEMA_URL
from lockcore import Outcome
from lockcore import otel as production
from lockcore.engine import observed
from lockcore.otel import SPANS, instrument
from lockcore.telemetry.fast import FIRST_EVERY
from tests.doubles.collector import Collector
from tests.doubles.instance import REFUSE, Instances, error
from tests.integration.lockcore.shell import TTL_MS, Connect, Shell

pytestmark = pytest.mark.integration
SECRET = "order-of-customer-4711"


class Telemetry:
    """An application's own OpenTelemetry, in memory."""

    def __init__(
        self, temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE
    ) -> None:
        kinds = SummedCounter, Histogram, ObservableCounter
        self.reader = InMemoryMetricReader(preferred_temporality=dict.fromkeys(kinds, temporality))
        self.exporter = InMemorySpanExporter()
        self.meters = MeterProvider(metric_readers=[self.reader])
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self.exporter))

    def instrument(self, lock: Any, **how: Any) -> None:
        instrument(lock, meter_provider=self.meters, tracer_provider=self.traces, **how)

    def read(self) -> dict[str, dict[tuple[tuple[str, Any], ...], Any]]:
        """Instrument -> attributes -> number, or count of a histogram."""
        # what is asked again at once is of one look
        time.sleep(2 * production.LOOK_NS / 1e9)
        data = self.reader.get_metrics_data()

        def number_of(point: Any) -> Any:
            return point.value if hasattr(point, "value") else point.count

        return {
            metric.name: {
                tuple(sorted(point.attributes.items())): number_of(point)
                for point in metric.data.data_points
            }
            for scope in (data.resource_metrics[0].scope_metrics if data else ())
            for metric in scope.metrics
        }

    def all_of(self, name: str, **wanted: Any) -> float:
        points = self.read().get(name, {})
        return sum(number for key, number in points.items() if wanted.items() <= dict(key).items())

    def every_one(self) -> None:
        """Make each cycle a sample from here on: nothing happened in half a second."""
        time.sleep(0.6)
        self.read()

    @property
    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def told() -> Telemetry:
    return Telemetry()


Outcomes = dict[str, float]


def outcomes(told: Telemetry) -> Outcomes:
    return {
        dict(key)["redlock.outcome"]: number
        for key, number in told.read()["redlock.acquire.outcomes"].items()
    }


def test_what_a_lock_did_is_what_is_counted(
    shell: Shell, connect: Connect, instances: Instances, told: Telemetry
) -> None:
    lock = connect(instances.urls)
    told.instrument(shell.raw(lock))
    told.every_one()
    leases = [shell.won(lock, f"r{number}") for number in range(5)]
    lock.extend(leases[0], TTL_MS)
    assert told.all_of("redlock.leases.held") == 5
    assert [lock.try_release(lease) for lease in leases[:3]] == [Outcome.RELEASED] * 3
    lock.release(leases[3])
    for instance in instances:
        instance.says["set"] = REFUSE
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.CONTENDED
    assert outcomes(told) == {
        "acquired": 5,
        "contended": 1,
        "split_vote": 0,
        "unreachable": 0,
        "too_late": 0,
    }
    assert told.all_of("redlock.leases.held") == 1
    assert told.all_of("redlock.callers.waiting") == told.all_of("redlock.leases.gone") == 0
    assert told.all_of("redlock.acquire.duration", **{"redlock.outcome": "acquired"}) == 5
    assert told.all_of("redlock.release.duration", **{"redlock.outcome": "released"}) == 4
    assert told.all_of("redlock.extend.duration", **{"redlock.outcome": "extended"}) == 1
    shell.until(lambda: told.all_of("redlock.votes") == 18, "every vote of every attempt")
    assert told.all_of("redlock.votes", **{"redlock.vote": "granted"}) == 15
    assert told.all_of("redlock.votes", **{"redlock.vote": "refused"}) == 3
    assert told.all_of("db.client.operation.duration") == 18
    assert told.all_of("redlock.instance.voting") == 3
    assert told.all_of("redlock.quorum.size") == 2


def test_every_histogram_of_operations_counts_every_operation(
    shell: Shell, connect: Connect, instances: Instances, told: Telemetry
) -> None:
    """Quiet or busy, sampled or not, before the first collection or after it."""
    lock = connect(instances.urls)
    told.instrument(shell.raw(lock), class_of=lambda resource: resource[0])
    cycles = 0
    for number in (3, 100, 40):
        for _ in range(number):
            assert lock.try_release(shell.won(lock, "r")) is Outcome.RELEASED
        cycles += number
        read = told.read()
        assert read["redlock.acquire.outcomes"][_key("acquired")] == cycles
        for name in ("acquire.duration", "acquire.attempts"):
            assert read[f"redlock.{name}"] == {_key("acquired"): cycles}
        assert read["redlock.release.duration"] == {_key("released"): cycles}
        assert read["redlock.hold.duration"] == {_key(): cycles}
        if number == 3:
            told.every_one()
    for instance in instances:
        instance.says["set"] = REFUSE
    for _ in range(70):
        lock.try_acquire("r", TTL_MS)
    read = told.read()
    assert read["redlock.acquire.duration"] == {_key("acquired"): cycles, _key("contended"): 70}
    assert read["redlock.acquire.attempts"] == {_key("acquired"): cycles, _key("contended"): 70}


def _key(outcome: str = "") -> tuple[tuple[str, str], ...]:
    attributes = {
        "redlock.resource.class": "r",
        **({"redlock.outcome": outcome} if outcome else {}),
    }
    return tuple(sorted(attributes.items()))


def test_durations_of_before_the_first_collection_are_right_in_number_sum_and_bucket(
    shell: Shell, connect: Connect, instances: Instances, told: Telemetry
) -> None:
    lock = connect(instances.urls)
    told.instrument(shell.raw(lock))
    begun_s = time.monotonic()
    for number in range(20):
        lease = shell.won(lock, f"r{number}")
        time.sleep(0.012)
        lock.try_release(lease)
    took_s = time.monotonic() - begun_s
    data = told.reader.get_metrics_data()
    assert data is not None
    (metric,) = [
        one for one in data.resource_metrics[0].scope_metrics[0].metrics if "hold" in one.name
    ]
    (point,) = metric.data.data_points
    least = BOUNDS.index(0.015)
    assert point.count == sum(point.bucket_counts) == sum(point.bucket_counts[least:]) == 20
    assert 20 * 0.012 <= point.sum <= took_s


def test_whatever_ends_an_acquire_nobody_waits_any_more(
    shell: Shell, connect: Connect, instances: Instances, told: Telemetry
) -> None:
    lock = connect(instances.urls)
    told.instrument(shell.raw(lock))
    for instance in instances:
        instance.pause()
    job = shell.start(shell.raw(lock).try_acquire, "stock", TTL_MS)
    shell.until(lambda: told.all_of("redlock.callers.waiting") == 1, "it waits")
    # nobody can cancel a thread: its round times out
    if shell.name == "threads":
        assert job.result().outcome is Outcome.UNREACHABLE
    else:
        shell.cancel(job)
    shell.until(lambda: told.all_of("redlock.callers.waiting") == 0, "it is gone")
    with pytest.raises(ValueError, match="ttl_ms"):
        lock.try_acquire("stock", -1)
    assert told.all_of("redlock.callers.waiting") == 0


def test_a_slow_and_a_failed_acquire_have_spans_within_the_applications_own(
    shell: Shell, connect: Connect, instances: Instances, told: Telemetry
) -> None:
    lock = connect(instances.urls)
    told.instrument(shell.raw(lock), slow_s=0.0)
    with told.traces.get_tracer("app").start_as_current_span("request") as request:
        slow = shell.won(lock, SECRET)
        for instance in instances:
            instance.says["set"] = error("OOM command not allowed")
        lock.try_acquire(SECRET, TTL_MS)
    assert told.all_of("redlock.acquire.slow") == 1
    own = [span for span in told.spans if span.name == "redlock.acquire"]
    assert [span.attributes["redlock.outcome"] for span in own] == ["acquired", "unreachable"]
    # the other shells' operations run in a loop of the test's own
    if shell.name in ("gevent", "threads"):
        assert {span.parent.span_id for span in own} == {request.get_span_context().span_id}
    assert own[0].end_time - own[0].start_time == pytest.approx(
        slow.granted_ns - slow.started_ns, abs=5e6
    )
    measured = told.reader.get_metrics_data().resource_metrics[0].scope_metrics
    scopes = [*(one.instrumentation_scope for one in own), *(one.scope for one in measured)]
    assert {(one.name, one.version, one.schema_url) for one in scopes} == {
        (production.SCOPE, version("lockbench"), SCHEMA_URL)
    }


@pytest.mark.parametrize("wanted", [False, True])
def test_a_held_lock_has_a_span_only_if_the_application_asks_for_it(
    shell: Shell, connect: Connect, instances: Instances, told: Telemetry, wanted: bool
) -> None:
    lock = connect(instances.urls)
    told.instrument(shell.raw(lock), **({"contended_spans": True} if wanted else {}))
    for instance in instances:
        instance.says["set"] = REFUSE
    for _ in range(SPANS + 2):
        assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.CONTENDED
    assert outcomes(told)["contended"] == SPANS + 2
    assert bool(told.spans) == wanted


def test_no_attribute_names_a_resource_and_all_is_what_the_table_says(
    shell: Shell, connect: Connect, instances: Instances, told: Telemetry
) -> None:
    lock = connect(instances.urls)
    told.instrument(shell.raw(lock), slow_s=0.0, class_of=lambda _: "orders", fleet="eu")
    told.every_one()
    lock.try_release(shell.won(lock, SECRET))
    seen = told.read()
    assert "redlock.acquire.duration" in seen
    more = {"redlock.resource.class", "redlock.fleet"}
    for name, points in seen.items():
        allowed = {attribute.name for attribute in BY_NAME[name].attributes} | more
        for attributes in points:
            assert {key for key, _ in attributes} <= allowed, name
            assert SECRET not in str(attributes)
    assert dict(next(iter(seen["redlock.acquire.duration"])))["redlock.resource.class"] == "orders"
    assert all(SECRET not in str(span.attributes) for span in told.spans)


def test_a_password_of_a_url_is_nowhere_in_metrics_or_spans(
    shell: Shell,
    connect: Connect,
    instances: Instances,
    told: Telemetry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lock = connect(
        [url.replace("://", f"://app:{SECRET}@") for url in instances.urls], instance_timeout_ms=100
    )
    told.instrument(shell.raw(lock), slow_s=0.0)
    told.every_one()
    lock.try_release(shell.won(lock, "r"))
    for instance in instances:
        # errors and spans of what failed, too
        instance.pause()
    assert lock.try_acquire("r", TTL_MS).outcome is Outcome.UNREACHABLE
    data = told.reader.get_metrics_data()
    assert data is not None
    written = data.to_json() + "".join(span.to_json() for span in told.spans)
    assert "redlock.instance.errors" in written
    assert "redlock.acquire.outcomes" in written
    assert len(told.spans) >= 2
    assert SECRET not in written
    assert SECRET not in caplog.text


def test_a_keeper_that_loses_its_lease_is_told_once(
    shell: Shell, connect: Connect, instances: Instances, told: Telemetry
) -> None:
    lock = connect(instances.urls, instance_timeout_ms=100)
    told.instrument(shell.raw(lock))
    lease = shell.won(lock, "r", 1000)
    keeper = lock.keep_alive(lease, every_ms=50)
    shell.until(lambda: keeper.renewals, "an extension")
    instances.put(b"r", b"somebody else")
    shell.until(lambda: keeper.gone is not None, "the loss")
    assert told.all_of("redlock.leases.gone") == 1
    lock.try_release(lease)
    assert told.all_of("redlock.leases.gone") == 1
    assert told.all_of("redlock.extend.duration", **{"redlock.outcome": "gone"}) == 1


def test_several_locks_add_up_and_an_instance_votes_once(
    shell: Shell, connect: Connect, instances: Instances, told: Telemetry
) -> None:
    locks = [connect(instances.urls) for _ in range(2)]
    for lock in locks:
        told.instrument(shell.raw(lock))
        shell.won(lock, f"r{id(lock)}")
    assert told.all_of("redlock.leases.held") == told.all_of("redlock.acquire.outcomes") == 2
    assert told.all_of("redlock.instance.voting") == 3
    assert told.all_of("redlock.quorum.size") == 2
    sent = told.all_of("redlock.instance.commands")
    locks[0].close()
    assert told.all_of("redlock.instance.commands") >= sent, "a counter never falls"
    locks[1].close()
    assert told.all_of("redlock.instance.commands") >= sent
    assert told.all_of("redlock.acquire.outcomes") == 2
    assert "redlock.instance.voting" not in told.read(), (
        "a closed lock says nothing of its instances"
    )


def test_a_lock_is_observed_once(
    shell: Shell, connect: Connect, instances: Instances, told: Telemetry
) -> None:
    lock = connect(instances.urls)
    told.instrument(shell.raw(lock))
    with pytest.raises(ValueError, match="observer already"):
        told.instrument(shell.raw(lock))


def test_what_an_observer_raises_costs_nobody_a_lease(
    shell: Shell,
    connect: Connect,
    instances: Instances,
    told: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(observed, "_dropped", [])
    monkeypatch.setattr(
        "sys.unraisablehook", lambda args: said.append(f"{args.exc_type.__name__}: {args.object!r}")
    )
    lock = connect(instances.urls)
    told.instrument(shell.raw(lock), class_of=lambda resource: {}[resource])
    for number in range(3):
        lease = shell.won(lock, f"r{number}")
        lock.extend(lease, TTL_MS)
        assert lock.try_release(lease) is Outcome.RELEASED
    assert shell.won(lock, "r0").resource == "r0", "nothing was left behind"
    assert [text.partition(";")[0] for text in said] == [
        "KeyError: lockcore: an observer raised an exception"
    ]


@pytest.mark.parametrize("does", ["refuses", "hangs", "answers 500"])
def test_a_bad_receiver_costs_no_lease_and_hears_no_secret(
    shell: Shell,
    connect: Connect,
    instances: Instances,
    does: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Collector() as collector, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = (
            taken.getsockname()[1] if does == "refuses" else collector.endpoint.rpartition(":")[2]
        )
        if does == "hangs":
            collector.free.clear()
        collector.status = 500
        sent = OTLPMetricExporter(f"http://127.0.0.1:{port}/v1/metrics", timeout=0.2)
        meters = MeterProvider([PeriodicExportingMetricReader(sent, 50, 400)])
        lock = connect(instances.urls)
        instrument(shell.raw(lock), meter_provider=meters, class_of=lambda _: "orders")
        try:
            cycles = 0
            until = time.monotonic() + 10
            while cycles < 100 or (
                does != "refuses" and not collector.asked.is_set() and time.monotonic() < until
            ):
                lease = shell.won(lock, SECRET)
                assert lock.try_release(lease) is Outcome.RELEASED
                cycles += 1
            assert collector.asked.is_set() == (does != "refuses")
        finally:
            meters.shutdown(1000)
    assert SECRET not in caplog.text


# -- of one process --------------------------------------------------------------------------------


def test_units_kinds_bounds_and_schema_are_those_of_the_table() -> None:
    assert production.BOUNDS == BOUNDS
    assert production.SCHEMA_URL == SCHEMA_URL
    for kind, names in (
        ("histogram", production.HISTOGRAMS),
        ("counter", production.COUNTERS),
        ("gauge", production.GAUGES),
    ):
        for name, (unit, _) in names.items():
            assert (BY_NAME[name].unit, BY_NAME[name].kind.value) == (unit, kind), name


def test_of_a_storm_of_failures_only_some_have_spans(told: Telemetry) -> None:
    recorder = production._Recording({}, told.traces.get_tracer("x"))
    for number in range(1000):
        recorder._span(
            "redlock.acquire", "", Outcome.UNREACHABLE, (5_000_000_000, 5_000_000_000 + number), {}
        )
    assert len(told.spans) == SPANS
    recorder._span("redlock.acquire", "", Outcome.UNREACHABLE, (5_000_000_000, 6_000_000_000), {})
    assert len(told.spans) == SPANS + 1
    assert told.spans[0].status.status_code is trace.StatusCode.ERROR


def test_no_outcome_uses_up_the_spans_of_another(told: Telemetry) -> None:
    recorder = production._Recording({}, told.traces.get_tracer("x"))
    times_ns = 5_000_000_000, 5_000_000_001
    ways = [
        *(
            ("redlock.acquire", way)
            for way in (Outcome.CONTENDED, Outcome.UNREACHABLE, Outcome.TOO_LATE)
        ),
        *((name, Outcome.GONE) for name in ("redlock.extend", "redlock.release")),
    ]
    for name, way in ways:
        for _ in range(100):
            recorder._span(name, "", way, times_ns, {})
    made = Counter((span.name, span.attributes["redlock.outcome"]) for span in told.spans)
    assert made == {(name, way.value): SPANS for name, way in ways}


GLOBAL = """
import sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from lockcore import Redlock
from lockcore.otel import instrument
reader = InMemoryMetricReader()
locks = [Redlock.connect(sys.argv[1:], shell="threads", rejoin="trust-first") for _ in range(2)]
instrument(locks[0])
metrics.set_meter_provider(MeterProvider([reader]))
instrument(locks[1])
for lock, count in zip(locks, (3, 4)):
    for _ in range(count):
        lock.try_release(lock.acquire("r", 1000))
data = reader.get_metrics_data().resource_metrics[0].scope_metrics
metrics = [metric for scope in data for metric in scope.metrics]
found = [metric for metric in metrics if metric.name == "redlock.acquire.outcomes"]
print(sum(point.value for metric in found for point in metric.data.data_points))
"""


def test_locks_of_before_and_after_the_provider_was_set_are_all_counted(
    instances: Instances,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GLOBAL, *instances.urls],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "7", done.stderr


@pytest.mark.parametrize(
    ("lock", "how", "said"),
    [
        (None, {}, "lock must be"),
        (None, {"class_of": "jobs"}, "class_of must take"),
        (None, {"slow_s": float("inf")}, "slow_s"),
        (None, {"slow_s": "x"}, "slow_s"),
    ],
)
def test_what_cannot_be_instrumented_is_said(lock: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        instrument(lock, **how)


@pytest.mark.parametrize("slow_s", [-1, float("nan")])
def test_a_limit_that_makes_no_sense_is_refused(slow_s: float) -> None:
    with pytest.raises(ValueError, match="slow_s"):
        instrument(None, slow_s=slow_s)  # type: ignore[arg-type]


def test_a_forked_child_begins_with_nothing(
    instances: Instances, told: Telemetry, forked: Callable[..., str]
) -> None:
    from lockcore import Redlock

    with Redlock.connect(instances.urls, shell="threads", rejoin="trust-first") as lock:
        told.instrument(lock)
        lock.try_release(lock.acquire("r", 1000))
        said = forked(lambda: str(told.read().get("redlock.acquire.outcomes")))
    assert said == "None"
    assert told.all_of("redlock.acquire.outcomes") == 1


@pytest.mark.parametrize("temporality", ["CUMULATIVE", "DELTA"])
def test_whatever_the_temporality_a_childs_first_points_are_its_own(
    instances: Instances, forked: Callable[..., str], temporality: str
) -> None:
    """The parent is collected before the fork: its last values are what a delta would be made
    from."""
    from lockcore import Redlock

    told = Telemetry(AggregationTemporality[temporality])

    def cycles(number: int) -> str:
        with Redlock.connect(instances.urls, shell="threads", rejoin="trust-first") as lock:
            told.instrument(lock)
            for _ in range(number):
                lock.try_release(lock.acquire("r", 1000))
            points = told.read()
        below = [name for name, of in points.items() if min(of.values()) < 0]
        commands = sum(points["redlock.instance.commands"].values())
        return (
            f"{sum(points['redlock.acquire.outcomes'].values())} {below} "
            f"{commands >= 3 * 2 * number}"
        )

    assert cycles(50) == "50 [] True"
    assert forked(lambda: cycles(2)) == "2 [] True"


def test_a_forked_worker_exports_its_own_durations_only(
    instances: Instances, told: Telemetry, forked: Callable[..., str]
) -> None:
    """Through the provider that its parent made, as a server does that forks after it has loaded
    the application."""
    from lockcore import Redlock

    def cycles(number: int) -> None:
        with Redlock.connect(instances.urls, shell="threads", rejoin="trust-first") as lock:
            told.instrument(lock)
            for _ in range(number):
                lock.try_release(lock.acquire("r", 1000))

    def in_the_child() -> str:
        before = told.all_of("redlock.release.duration")
        cycles(FIRST_EVERY)
        return f"{before} {told.all_of('redlock.release.duration')}"

    cycles(3 * FIRST_EVERY)
    assert forked(in_the_child) == f"0 {FIRST_EVERY}"
    assert told.all_of("redlock.release.duration") == 3 * FIRST_EVERY


@pytest.fixture
def forked() -> Callable[[Callable[[], str]], str]:
    """Runs something in a forked child, and returns what it says."""

    def run(work: Callable[[], str]) -> str:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, work().encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            said = file.read()
        os.waitpid(child, 0)
        return said

    return run
