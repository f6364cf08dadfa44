"""Telemetry of real runs: every signal of the tables, sums equal to the result, collectors that are
down or slow."""

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.telemetry.table import BOUNDS, BY_NAME, COMMON, INSTRUMENTS, InstrumentKind
from tests.doubles.collector import Collector, GrpcCollector, Received, attributes_of, number_of

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
PASSWORD = "hunter2-of-the-collector"
CONTENDED = """
instances = 3
users = 12
processes = 2
resources = 4
hold = "exp:5ms"
duration = "3s"
warmup = "500ms"
wait = "60ms"
ttl = "2s"
fsync = "everysec"
[[faults]]
at = "1s"
for = "800ms"
kind = "stop"
target = ["instance:2"]
"""


class Exported(NamedTuple):
    """A run's result and what the collector got of it."""

    result: dict[str, Any]
    received: Received


def lockbench(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    env |= {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder),
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        **variables,
    }
    command = [
        sys.executable,
        "-m",
        "bench",
        "run",
        "--quiet",
        "--json",
        "--out",
        "result",
        *arguments,
    ]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def short(folder: Path, **variables: str) -> tuple[dict[str, Any], str]:
    load = ("--users", "2", "--think", "fixed:5ms", "--duration", "1s", "--warmup", "0")
    done = lockbench(folder, "--instances", "1", *load, **variables)
    # a busy machine may make a run invalid
    assert done.returncode in (0, 4), done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.glob("lockbench-*")) == []
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    """One contended run over two load processes, with an instance that stops for a while."""
    folder = tmp_path_factory.mktemp("telemetry")
    (folder / "contended.toml").write_text(CONTENDED)
    with Collector() as collector:
        done = lockbench(folder, "contended.toml", OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint)
        # a short run on a busy machine may be no valid measurement
        assert done.returncode in (0, 4), done.stderr
        yield Exported(json.loads(done.stdout), collector.received)


# -- metrics ---------------------------------------------------------------------------------------

# what only other commands, other recipes, open loop or an application can show
NOT_IN_A_PLAIN_RUN = {
    "redlock.acquire.slow",
    "redlock.leases.overdue",
    "redlock.extend.duration",
    "redlock.crash.lost_locks",
    "redlock.crash.lost_window",
    "redlock.crash.double_grants",
    "redlock.load.offered",
    "redis.aof.fsyncs",
    "redlock.instance.errors",
}


def test_every_metric_of_the_table_arrives_and_no_other(told: Exported) -> None:
    names = set(told.received.metrics)
    assert names <= set(BY_NAME)
    assert set(BY_NAME) - names <= NOT_IN_A_PLAIN_RUN


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda one: one.name)
def test_units_kinds_attributes_and_bounds_are_those_of_the_table(
    told: Exported, instrument: Any
) -> None:
    for metric in told.received.history.get(instrument.name, ()):
        assert (metric.unit, metric.description) == (instrument.unit, instrument.meaning)
        kind = metric.WhichOneof("data")
        assert (
            kind
            == {
                InstrumentKind.COUNTER: "sum",
                InstrumentKind.GAUGE: "gauge",
                InstrumentKind.HISTOGRAM: "histogram",
            }[instrument.kind]
        )
        allowed = {
            attribute.name: attribute.values for attribute in (*COMMON, *instrument.attributes)
        }
        for point in getattr(metric, kind).data_points:
            for name, value in attributes_of(point).items():
                assert name in allowed
                assert not allowed[name] or value in allowed[name]
            assert {"redlock.recipe", "redlock.fsync"} <= set(attributes_of(point))
            if kind == "histogram":
                assert tuple(point.explicit_bounds) == BOUNDS
                assert sum(point.bucket_counts) == point.count
        if kind != "gauge":
            assert getattr(metric, kind).aggregation_temporality == 2  # cumulative
        if kind == "sum":
            assert metric.sum.is_monotonic


def test_sums_equal_the_totals_of_the_result_over_all_processes(told: Exported) -> None:
    result = told.result
    received = told.received
    assert sum(result["totals"].values()) > 0
    for outcome, number in result["totals"].items():
        assert received.total("redlock.acquire.outcomes", redlock_outcome=outcome) == number
        assert received.total("redlock.acquire.duration", redlock_outcome=outcome) == number
        assert received.total("redlock.acquire.attempts", redlock_outcome=outcome) == number
    for outcome, number in result["releases"].items():
        assert received.total("redlock.release.duration", redlock_outcome=outcome) == number
    leases = result["totals"]["acquired"]
    assert received.total("redlock.lease.validity") == leases
    assert received.total("redlock.leases.gone") == result["releases"]["gone"]
    # each round has one of each instance
    assert received.total("redlock.votes") == 3 * sum(result["totals"].values())
    assert received.total("redlock.votes", redlock_vote="refused") > 0


# metric, attributes, least, most: from what the scenario says
EXPECTED = [
    ("redlock.run.info", {}, 1, 1),
    ("redlock.quorum.size", {}, 2, 2),
    ("redlock.hold.duration", {}, 50, None),
    ("redlock.handoff.duration", {}, 50, None),
    # every 10 ms in each process
    ("redlock.scheduler.lag", {"redlock_worker": 0}, 2, None),
    ("redlock.scheduler.lag", {"redlock_worker": 1}, 2, None),
    ("redlock.client.cpu", {"redlock_worker": 0}, 0.01, 60),
    ("redlock.client.cpu", {"redlock_worker": 1}, 0.01, 60),
    ("redlock.instance.voting", {}, 1, 3),
    ("redlock.instance.commands", {}, 300, None),
    ("redlock.safety.judged_leases", {}, 50, None),
    ("redlock.safety.violations", {"redlock_violation_kind": "service_fault"}, 0, 0),
    ("redlock.safety.violations", {"redlock_violation_kind": "granted_invalid"}, 0, 0),
    ("redlock.telemetry.dropped", {"redlock_telemetry_item": "span"}, 0, 0),
    ("redlock.telemetry.dropped", {"redlock_telemetry_item": "attempt"}, 0, 0),
    ("redis.cpu.time", {}, 0.001, 300),
    ("redis.aof.size", {}, 1000, None),
    ("db.client.operation.duration", {}, 30, None),
    # it has ended
    ("redlock.run.active", {}, 0, 0),
    ("redlock.fault.active", {"redlock_fault_kind": "stop"}, 0, 0),
]


@pytest.mark.parametrize("name, attributes, least, most", EXPECTED)
def test_signals_have_the_values_that_the_run_gave_them(
    told: Exported, name: str, attributes: dict[str, Any], least: float, most: float | None
) -> None:
    assert told.received.points(name, **attributes)
    value = told.received.total(name, **attributes)
    assert value >= least
    assert most is None or value <= most


def seen_over_time(received: Received, name: str, label: str, value: str) -> list[float]:
    """A gauge's values in the order they came."""
    return [
        number_of(point)
        for metric in received.history[name]
        for point in metric.gauge.data_points
        if attributes_of(point).get(label) == value
    ]


def test_a_fault_is_active_while_it_lasts_and_the_run_while_its_users_run(told: Exported) -> None:
    fault = seen_over_time(told.received, "redlock.fault.active", "redlock.fault.kind", "stop")
    assert fault[0] == fault[-1] == 0.0
    running = seen_over_time(told.received, "redlock.run.active", "redlock.recipe", "redlock")
    assert running[-1] == 0.0
    if 1.0 not in fault or 1.0 not in running:
        pytest.skip(
            f"not known here: of {len(fault)} exports none fell into the fault's 0.8 s, "
            "or none into the run's 3 s"
        )


def test_callers_wait_and_hold_while_the_run_is_measured(told: Exported) -> None:
    held = [
        number_of(metric.gauge.data_points[0])
        for metric in told.received.history["redlock.leases.held"]
    ]
    waiting = [
        number_of(metric.gauge.data_points[0])
        for metric in told.received.history["redlock.callers.waiting"]
    ]
    # of four resources; the two processes' notes are not of one moment
    assert 0.2 < max(held) <= 8
    assert 2 < max(waiting) <= 12.001


def test_the_resource_names_the_run(told: Exported) -> None:
    resource = told.received.resource
    assert resource["service.name"] == "lockbench"
    assert resource["redlock.run.id"] == told.result["id"]
    assert resource["redlock.fsync"] == "everysec"
    assert resource["service.instance.id"]


def test_counters_never_fall_and_start_when_the_run_did(told: Exported) -> None:
    for instrument in INSTRUMENTS:
        if instrument.kind is InstrumentKind.GAUGE:
            continue
        latest: dict[str, float] = {}
        for metric in told.received.history.get(instrument.name, ()):
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                key = json.dumps(attributes_of(point), sort_keys=True)
                # a vote may still come
                if instrument.name != "redlock.votes" or "undecided" not in key:
                    assert number_of(point) >= latest.get(key, 0), instrument.name
                latest[key] = number_of(point)
                assert 0 < point.start_time_unix_nano <= point.time_unix_nano


COMMON_KEYS = {attribute.name for attribute in COMMON}
# name -> parent, attributes; redlock.extend has those of redlock.release
SPANS = {
    "redlock.lease": ("", COMMON_KEYS),
    "redlock.acquire": (
        "redlock.lease",
        COMMON_KEYS
        | {
            "redlock.outcome",
            "redlock.attempts",
            "redlock.split_votes",
            "redlock.queued",
            "redlock.validity",
            "redlock.trace.reason",
            "redlock.vote.margin",
            *(
                f"redlock.votes.{vote}"
                for vote in ("granted", "refused", "errored", "silent", "absent", "undecided")
            ),
        },
    ),
    "SET": (
        "redlock.acquire",
        {
            "db.system.name",
            "db.operation.name",
            "db.namespace",
            "server.address",
            "server.port",
            "redlock.vote",
            "redlock.attempt",
            "error.type",
            "db.response.status_code",
        },
    ),
    "redlock.retry_wait": ("redlock.acquire", {"redlock.attempt"}),
    "redlock.release": ("redlock.lease", COMMON_KEYS | {"redlock.outcome"}),
}


# -- traces ----------------------------------------------------------------------------------------


def test_every_span_of_the_table_arrives_with_its_parent_and_attributes(told: Exported) -> None:
    spans = told.received.spans
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    assert {span.name for span in spans} == set(SPANS)
    for span in spans:
        parent, allowed = SPANS[span.name]
        assert set(attributes_of(span)) <= allowed
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        # one that failed has no lease
        if parent and (span.parent_span_id or span.name != "redlock.acquire"):
            above = by_id[span.trace_id, span.parent_span_id]
            assert above.name == parent
            assert above.start_time_unix_nano <= span.start_time_unix_nano
            # a late reply comes when the acquire has returned
            if span.name != "SET":
                assert span.end_time_unix_nano <= above.end_time_unix_nano
        else:
            assert not span.parent_span_id


def test_an_observed_acquire_has_one_child_per_instance_and_attempt(told: Exported) -> None:
    spans = told.received.spans
    children = Counter(
        (span.trace_id, attributes_of(span)["redlock.attempt"])
        for span in spans
        if span.name == "SET"
    )
    # fewer while the stopped instance was left out
    assert max(children.values()) == 3
    assert len(children) > 10


def test_a_trace_says_how_its_round_ended_although_an_instance_was_stopped(told: Exported) -> None:
    acquires = [
        attributes_of(span) for span in told.received.spans if span.name == "redlock.acquire"
    ]
    won = [one for one in acquires if one["redlock.outcome"] == "acquired"]
    closed = [one for one in won if not one["redlock.votes.undecided"]]
    assert len(closed) > 0.9 * len(won) > 0
    assert min(one["redlock.vote.margin"] for one in closed) >= 0
    assert any(one["redlock.votes.silent"] for one in closed)


def test_reasons_errors_and_links_are_there(told: Exported) -> None:
    acquires = [span for span in told.received.spans if span.name == "redlock.acquire"]
    reasons = {attributes_of(span)["redlock.trace.reason"] for span in acquires}
    assert {"slow", "refused", "no vote"} <= reasons
    ids = {(span.trace_id, span.span_id) for span in acquires}
    links = [(link.trace_id, link.span_id) for span in acquires for link in span.links]
    assert links
    assert set(links) <= ids
    silent = [
        span for span in told.received.spans if attributes_of(span).get("redlock.vote") == "silent"
    ]
    assert silent
    assert all(
        span.status.code == 2 and attributes_of(span)["error.type"] == "silent" for span in silent
    )


def test_exemplars_lead_to_traces_that_have_arrived(told: Exported) -> None:
    traces = {span.trace_id for span in told.received.spans}
    exemplars = [
        exemplar
        for metric in told.received.history["redlock.acquire.duration"]
        for point in metric.histogram.data_points
        for exemplar in point.exemplars
    ]
    assert exemplars
    assert {exemplar.trace_id for exemplar in exemplars} <= traces


def test_nothing_that_is_exported_names_a_resource_key_owner_or_password(told: Exported) -> None:
    texts = [str(metric) for metrics in told.received.history.values() for metric in metrics]
    texts += [str(span) for span in told.received.spans]
    for text in texts:
        assert f"lockbench:{told.result['id']}" not in text
        assert '"r1"' not in text


# -- collectors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("does", ["refuses", "hangs", "answers 500"])
def test_a_bad_collector_costs_one_warning_and_shows_no_secret(tmp_path: Path, does: str) -> None:
    with Collector() as collector, socket.socket() as taken:
        # bound, not listening: refused at once
        taken.bind(("127.0.0.1", 0))
        port = (
            taken.getsockname()[1] if does == "refuses" else collector.endpoint.rpartition(":")[2]
        )
        if does == "hangs":
            collector.free.clear()
        collector.status = 500
        result, stderr = short(
            tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://ann:{PASSWORD}@127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_HEADERS=f"authorization={PASSWORD}",
            OTEL_EXPORTER_OTLP_TIMEOUT="1",
        )
        assert collector.asked.is_set() == (does != "refuses")
    (warning,) = [text for text in result["warnings"] if "telemetry" in text]
    assert "accepted 0 of" in warning
    assert PASSWORD not in json.dumps(result) + stderr
    assert result["totals"]["acquired"] > 0


def test_grpc_on_request(tmp_path: Path) -> None:
    with GrpcCollector() as collector:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
            # where the first takes a second, the next replaces it
            "OTEL_METRIC_EXPORT_INTERVAL": "10000",
        }
        result, _ = short(tmp_path, **variables)
    assert collector.received.total("redlock.acquire.outcomes") == sum(result["totals"].values())
    assert collector.received.spans
    assert [text for text in result["warnings"] if "telemetry" in text] == []


def test_without_an_endpoint_nothing_of_it_is_imported() -> None:
    code = (
        "import sys\n"
        "import bench.run.run, bench.workloads.locustfile, bench.commands.run\n"
        "from bench.run.run import telemetry_of\n"
        "assert telemetry_of(None, None, None, None, {}) is None\n"
        "print('\\n'.join(sys.modules))\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    ours = (
        "opentelemetry.exporter",
        "opentelemetry.proto",
        "opentelemetry.sdk.trace",
        "prometheus_client",
        "grpc",
    )
    ours += ("bench.telemetry.otlp", "bench.telemetry.page", "bench.telemetry.exporter")
    # redis-py imports the metrics API by itself wherever it is installed
    loaded = run.stdout.split()
    assert "bench.telemetry.settings" in loaded
    assert [name for name in loaded if name.startswith(ours)] == []


def test_histograms_are_exponential_where_they_are_asked_for_so(tmp_path: Path) -> None:
    aggregation = {
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": (
            "base2_exponential_bucket_histogram"
        )
    }
    with Collector() as collector:
        result, _ = short(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint, **aggregation)
        received = collector.received
    assert "telemetry" not in " ".join(result["warnings"])
    histograms = [
        one
        for one in INSTRUMENTS
        if one.kind is InstrumentKind.HISTOGRAM and one.name in received.metrics
    ]
    assert len(histograms) > 5
    for instrument in histograms:
        (metric,) = received.history[instrument.name][-1:]
        assert metric.WhichOneof("data") == "exponential_histogram"
        for point in metric.exponential_histogram.data_points:
            assert point.zero_count + sum(point.positive.bucket_counts) == point.count
    (metric,) = received.history["redlock.acquire.duration"][-1:]
    counts = {
        attributes_of(one)["redlock.outcome"]: one.count
        for one in metric.exponential_histogram.data_points
    }
    assert counts == {name: result["totals"][name] for name in counts}
    assert sum(counts.values()) > 0
