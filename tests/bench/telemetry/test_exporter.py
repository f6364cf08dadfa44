"""An exporter beside a folder that grows: live and final sums agree, late votes are in, nothing
stops a run."""

import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.errors import EnvironmentNotReadyError
from bench.measure.fleet_facts import InstanceReport
from bench.measure.record import OUTCOME_CODES
from bench.measure.recorder import Recorder
from bench.measure.run_result import SafetyReport
from bench.measure.workers import WorkerNote, write_note
from bench.telemetry import otlp
from bench.telemetry.exporter import Exporter
from bench.telemetry.run import Run, worker_points
from bench.telemetry.settings import settings_of
from tests.doubles.collector import Collector

MS = 1_000_000
WON = OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
OPEN = 2 | 1 << 40
CLOSED = 2 | 1 << 24
RUN = Run(
    "ab12", "redlock", "always", [("127.0.0.1", 7001 + index) for index in range(3)], 1, None, 50.0
)
DEADLINE_S = 30.0


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "5")
        yield collector


def exporter_of(folder: Path, run: Run = RUN, **sources: Any) -> Exporter:
    settings = settings_of(os.environ)
    assert settings is not None
    return Exporter(settings, run, folder, **sources)


class ScriptedWatch:
    """The second of three servers answers, each time it is asked with the next of `answers`."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self._answers = answers

    @property
    def infos(self) -> list[dict[str, Any] | None]:
        return [None, self._answers.pop(0), None]

    def start(self) -> None: ...

    def stop(self) -> None: ...


def write(recorder: Recorder, number: int, votes: int = CLOSED) -> list[int]:
    now = time.monotonic_ns() - 100 * MS
    return [
        recorder.write(
            now,
            now,
            now,
            now + MS,
            now + 1000 * MS,
            now + MS,
            now + MS,
            now + 2 * MS,
            now + MS,
            0,
            0,
            WON,
            votes,
            1,
            index,
        )
        for index in range(number)
    ]


def until(condition: Any) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def acquired(collector: Collector) -> float:
    received = collector.received
    if "redlock.acquire.outcomes" not in received.metrics:
        return -1
    return received.total("redlock.acquire.outcomes", redlock_outcome="acquired")


def test_what_is_counted_live_is_what_is_counted_at_the_end(
    tmp_path: Path, collector: Collector
) -> None:
    recorder = Recorder(tmp_path, 0, segment_records=64)
    exporter = exporter_of(tmp_path)
    exporter.start()
    for total in (50, 150, 300):
        write(recorder, total - max(int(acquired(collector)), 0))
        until(lambda total=total: acquired(collector) == total)
    recorder.close()
    assert exporter.finish() == []
    assert acquired(collector) == 300
    assert collector.received.total("redlock.votes", redlock_vote="granted") == 600
    assert collector.received.total("redlock.vote.margin") == 300


@pytest.mark.parametrize("wanted, shown", [("trace_based", True), ("always_off", False)])
def test_exemplars_are_there_unless_they_are_not_wanted(
    wanted: str, shown: bool, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", wanted)
    recorder = Recorder(tmp_path, 0)
    exporter = exporter_of(tmp_path)
    write(recorder, 4)
    recorder.close()
    assert exporter.finish() == []
    assert (
        any(point.exemplars for point in collector.received.points("redlock.acquire.duration"))
        is shown
    )


def test_at_the_end_nobody_holds_a_lease_or_waits_where_a_worker_was_killed(
    tmp_path: Path, collector: Collector
) -> None:
    write_note(tmp_path, WorkerNote(worker=0, pid=1, spawned_ns=1000 * MS, callers=5, holding=3))
    assert exporter_of(tmp_path).finish() == []
    assert collector.received.total("redlock.leases.held") == 0
    assert collector.received.total("redlock.callers.waiting") == 0


def test_a_step_of_the_wall_clock_moves_no_point_of_the_run(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path, 0)
    exporter = exporter_of(tmp_path)
    began_ns = time.time_ns()
    monkeypatch.setattr(
        "bench.telemetry.exporter.time.time_ns", lambda: began_ns - 3600 * 1000 * MS
    )
    write(recorder, 4)
    recorder.close()
    assert exporter.finish() == []
    for point in collector.received.points("redlock.acquire.outcomes"):
        assert (
            began_ns - 1000 * MS
            < point.start_time_unix_nano
            <= point.time_unix_nano
            < began_ns + 60_000 * MS
        )


def test_votes_that_come_late_are_in_the_last_export(tmp_path: Path, collector: Collector) -> None:
    recorder = Recorder(tmp_path, 0)
    exporter = exporter_of(tmp_path)
    exporter.start()
    slots = write(recorder, 10, OPEN)
    until(lambda: acquired(collector) == 10)
    for slot in slots:
        recorder.patch_votes(slot, CLOSED)
    recorder.close()
    assert exporter.finish() == []
    assert collector.received.total("redlock.votes", redlock_vote="undecided") == 0
    assert collector.received.total("redlock.votes", redlock_vote="silent") == 10
    assert collector.received.total("redlock.vote.margin") == 10


def test_a_trace_has_the_votes_that_came_late(tmp_path: Path, collector: Collector) -> None:
    recorder = Recorder(tmp_path, 0)
    exporter = exporter_of(tmp_path)
    slots = write(recorder, 4, OPEN)
    # the round is open in all these looks
    for _ in range(4):
        exporter._look(time.monotonic_ns())
    for slot in slots:
        recorder.patch_votes(slot, CLOSED)
    exporter._look(time.monotonic_ns() + RUN.settle_ns)
    recorder.close()
    assert exporter.finish() == []
    spans = [span for span in collector.received.spans if span.name == "redlock.acquire"]
    assert len(spans) == 4
    for span in spans:
        said = {
            one.key: one.value.int_value
            for one in span.attributes
            if one.value.HasField("int_value")
        }
        votes = [said[f"redlock.votes.{kind}"] for kind in ("granted", "silent", "undecided")]
        assert (votes, said["redlock.vote.margin"]) == ([2, 1, 0], 0)


def test_what_a_worker_forgets_stays_counted_and_what_nobody_saw_is_dropped(
    tmp_path: Path, collector: Collector
) -> None:
    recorder = Recorder(tmp_path, 0, segment_records=8)
    exporter = exporter_of(tmp_path)
    exporter._look(time.monotonic_ns())
    write(recorder, 24)
    exporter._look(time.monotonic_ns())
    write(recorder, 16)
    # the fourth was never looked at
    for path in sorted(tmp_path.glob("history-*.bin"))[:4]:
        path.unlink()
    recorder.close()
    warnings = exporter.finish()
    assert acquired(collector) == 32
    assert (
        collector.received.total("redlock.telemetry.dropped", redlock_telemetry_item="record") == 8
    )
    assert warnings == ["telemetry: 8 operations were dropped before they were counted"]


def test_the_exporter_has_the_priority_of_its_process(tmp_path: Path, collector: Collector) -> None:
    """With less it gets no core where the load fills all of them, and tells nothing of an
    outage."""
    exporter = exporter_of(tmp_path)
    exporter.start()
    until(collector.asked.is_set)
    assert exporter._thread.native_id is not None
    assert os.getpriority(os.PRIO_PROCESS, exporter._thread.native_id) == os.getpriority(
        os.PRIO_PROCESS, 0
    )
    exporter.finish()


def test_a_folder_that_cannot_be_read_is_a_warning_and_nothing_else(
    tmp_path: Path, collector: Collector
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    recorder = Recorder(folder, 0)
    exporter = exporter_of(folder)
    exporter.start()
    write(recorder, 5)
    recorder.close()
    until(lambda: acquired(collector) == 5)
    # no attempt, ever
    (folder / "attempts-0-1.json").write_text("{\n", encoding="utf-8")
    (warning,) = exporter.finish()
    assert warning.startswith("telemetry stopped: ")


def test_who_is_given_up_says_nothing_afterwards(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenTelemetry's exporters log why they failed, seconds later: onto the screen, were nobody
    listening."""
    collector.free.clear()
    exporter = exporter_of(tmp_path)
    exporter.start()
    assert collector.asked.wait(DEADLINE_S)
    monkeypatch.setattr("bench.telemetry.exporter.HURRIED_S", 0.05)
    exporter.finish(hurried=True)
    logger = logging.getLogger("opentelemetry")
    assert not logger.propagate
    assert exporter._otlp is not None
    assert exporter._otlp._log in logger.handlers
    collector.free.set()


def test_a_collector_that_refuses_is_named_with_what_it_said(
    tmp_path: Path, collector: Collector
) -> None:
    collector.status = 400
    recorder = Recorder(tmp_path, 0)
    exporter = exporter_of(tmp_path)
    write(recorder, 7)
    recorder.close()
    (warning,) = exporter.finish()
    assert re.match(
        rf"telemetry: {collector.endpoint} accepted 0 of 1 exports and 0 of \d+ spans", warning
    )
    assert "400" in warning


def test_faults_violations_and_info_are_what_the_sources_say(
    tmp_path: Path, collector: Collector
) -> None:
    before = {"aof_current_size": 70, "expired_keys": 100, "used_cpu_sys": 20.5}
    after = {"aof_current_size": 77, "expired_keys": 105, "used_cpu_sys": 22.0}
    exporter = exporter_of(
        tmp_path,
        faults=lambda: [("stop", "instance:1", True)],
        judged=lambda: (7, {"service_fault": 2}),
        watch=ScriptedWatch([before, after]),
    )
    exporter._look(time.monotonic_ns())
    exporter.finish()
    received = collector.received
    assert (
        received.total(
            "redlock.fault.active", redlock_fault_kind="stop", redlock_fault_target="instance:1"
        )
        == 1
    )
    assert received.total("redlock.safety.violations", redlock_violation_kind="service_fault") == 2
    assert received.total("redlock.safety.judged_leases") == 7
    assert received.total("redis.aof.size", server_port=7002) == 77
    assert received.total("redis.keys.expired") == 5
    assert received.total("redis.cpu.time", state="sys") == 1.5
    assert [point for point in received.points("redis.aof.size") if point.as_int != 77] == []


def test_the_result_has_the_last_word_on_violations(tmp_path: Path, collector: Collector) -> None:
    exporter = exporter_of(tmp_path, judged=lambda: (7, {"service_fault": 2}))
    exporter.finish(
        SafetyReport("VIOLATED", None, service_faults=3, granted_invalid=1, foreign_deletes=4)
    )
    total = collector.received.total
    assert total("redlock.safety.violations", redlock_violation_kind="service_fault") == 3
    assert total("redlock.safety.violations", redlock_violation_kind="granted_invalid") == 1
    assert total("redlock.safety.violations", redlock_violation_kind="foreign_delete") == 4


def test_what_no_oracle_judges_is_exported_neither_as_zero_nor_otherwise(
    tmp_path: Path, collector: Collector
) -> None:
    exporter = exporter_of(tmp_path)
    exporter.finish()
    assert acquired(collector) == 0, "it exports"
    for name in ("redlock.safety.violations", "redlock.safety.judged_leases"):
        assert name not in collector.received.metrics


@pytest.mark.parametrize("judged", [None, (7, {})])
def test_a_verdict_that_is_not_known_judges_no_lease(
    tmp_path: Path, collector: Collector, judged: Any
) -> None:
    recorder = Recorder(tmp_path, 0)
    exporter = exporter_of(tmp_path, judged=lambda: judged)
    write(recorder, 10)
    recorder.close()
    exporter.finish(SafetyReport("UNKNOWN", "half of the history is gone"))
    assert acquired(collector) == 10
    if judged:
        assert collector.received.total("redlock.safety.judged_leases") == 7
    else:
        assert "redlock.safety.violations" not in collector.received.metrics


def load_time_s(**told: int) -> float:
    """What is exported for one load process whose users ran from the first second on."""
    note = WorkerNote(worker=0, pid=1, spawned_ns=1000 * MS, **told)
    (taken,) = [
        item for item in worker_points([note]) if item.instrument.name == "redlock.load.time"
    ]
    assert isinstance(taken.value, float)
    return taken.value


def test_measured_time_never_falls() -> None:
    """It goes as far as the load process has said; the last word on its end may come long after
    it."""
    assert load_time_s(told_ns=500 * MS) == 0.0, "planned"
    assert load_time_s(told_ns=3000 * MS) == 2.0
    assert load_time_s(told_ns=9000 * MS, stopped_ns=3010 * MS) == 2.01


def test_workers_notes_add_up(tmp_path: Path, collector: Collector) -> None:
    seen = tuple(
        InstanceReport(
            index=index, address="h:1", state=state, commands=10, reconnects=1, errors=errors
        )
        for index, (state, errors) in enumerate(
            [("voting", {}), ("abstaining", {}), ("down", {"TIMEOUT": 2})]
        )
    )
    for index in range(2):
        note = WorkerNote(
            worker=index,
            pid=1,
            phase="stopped",
            cpu_s=1.5 + index,
            late_starts=3,
            queued_starts=4,
            spawned_ns=(5 + index) * 1000 * MS,
            stopped_ns=(25 + index) * 1000 * MS,
            instances=seen,
        )
        (tmp_path / f"worker-{index}-1.json").write_bytes(msgspec.json.encode(note))
    exporter_of(tmp_path).finish()
    total = collector.received.total
    assert total("redlock.load.time") == 21, "from the first that began to the last that ended"
    assert total("redlock.load.late_starts") == 6
    assert total("redlock.load.queued_starts") == 8
    assert total("redlock.client.cpu", redlock_worker=1) == 2.5
    assert total("redlock.instance.commands", server_port=7001) == 20
    assert [total("redlock.instance.voting", server_port=port) for port in (7001, 7002, 7003)] == [
        1,
        0,
        0,
    ]
    assert [
        total("redlock.instance.abstaining", server_port=port) for port in (7001, 7002, 7003)
    ] == [0, 1, 0]
    assert total("redlock.instance.errors", error_type="TIMEOUT", server_port=7003) == 4


def test_a_missing_package_is_one_sentence_that_says_what_to_install(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(EnvironmentNotReadyError, match=r"pip install 'lockbench\[telemetry\]'"):
        exporter_of(tmp_path)


def test_what_an_exporter_says_of_its_variables_is_a_warning(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "origami")
    (warning,) = exporter_of(tmp_path).finish()
    assert "origami" in warning


@pytest.mark.parametrize(
    "text",
    [
        "exporting metrics to ann:hunter2@collector:4317, retrying",
        "exporting to http://ann:hunter2@collector:4318/v1/metrics",
        "errors resolving ann:hunter2@127.0.0.1:1: [field:hostname]",
        "at ':hunter2@collector'",
    ],
)
def test_what_an_exporter_says_is_shown_without_a_password(text: str) -> None:
    assert "hunter2" not in otlp._shown(text)
    assert "@" in otlp._shown(text)


def test_headers_that_cannot_be_read_are_not_shown(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization hunter2")
    (warning,) = exporter_of(tmp_path).finish()
    assert "eader" in warning
    assert "hunter2" not in warning
