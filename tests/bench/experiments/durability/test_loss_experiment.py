"""Plans, journals, places and conclusions of `lockbench crash`, without a server."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from bench.errors import UsageError
from bench.experiments.durability.command import CrashOptions, crash_plan_of
from bench.experiments.durability.loss_experiment import export_crashes
from bench.experiments.durability.loss_judge import CutFacts, cells, judge_crash
from bench.experiments.durability.loss_plan import (
    CrashPlan,
    full_crashes,
    load_range_s,
    seconds_of,
    sync_delay_s,
)
from bench.experiments.durability.loss_result import Crash
from bench.program import execute
from bench.run.journal import JOURNAL_NAME, open_journal
from tests.bench.experiments.durability.test_loss_judge import crash, cut
from tests.doubles.collector import Collector, attributes_of


def plan(**options: Any) -> CrashPlan:
    return crash_plan_of(CrashOptions(**{"quick": True, **options}))


def test_quick_has_every_policy_and_kind_and_fits_into_six_minutes_on_two_cores() -> None:
    quick = plan()
    in_depth = {(crash.policy, crash.kind) for crash in quick.crashes if crash.instances == 3}
    assert in_depth == {(crash.policy, crash.kind) for crash in full_crashes((3,))}
    assert {crash.instances for crash in quick.crashes} == {1, 3, 5}
    assert {"at-once", "delayed"} == {crash.restart for crash in quick.crashes}
    assert quick.cuts >= 20
    assert sum(seconds_of(crash) for crash in quick.crashes) * quick.cuts / 14 < 330


def test_the_full_matrix_has_everything_that_can_crash_in_half_an_hour() -> None:
    full = plan(quick=False)
    assert set(plan().crashes) <= set(full.crashes)
    sizes = {(crash.instances, crash.crashed) for crash in full.crashes}
    assert sizes == {(1, 1), (3, 1), (3, 2), (3, 3), (5, 1), (5, 3), (5, 5)}
    at_once = [crash for crash in full.crashes if crash.restart == "at-once"]
    assert len(at_once) == 16 * len(sizes), "every policy with every end that it can have"
    delayed = {(crash.policy, crash.kind) for crash in full.crashes if crash.restart == "delayed"}
    assert delayed == {
        ("none", "kill"),
        ("no", "power-cut"),
        ("everysec", "power-cut"),
        ("always", "power-cut"),
    }
    assert full.cuts >= 20
    assert sum(seconds_of(crash) for crash in full.crashes) * full.cuts / 14 < 1800


def test_a_slower_disk_is_imitated_but_for_crashes_that_have_a_delay_of_their_own() -> None:
    assert plan(latency_ms=2.0).latency_ms == 2.0
    assert sync_delay_s(Crash(3, "everysec", "power-cut", 1, "at-once"), 2.0) == 0.002
    assert sync_delay_s(Crash(3, "everysec", "kill-slow-fsync", 1, "at-once"), 2.0) == 1.5
    assert sync_delay_s(Crash(3, "always", "kill-slow-fsync", 1, "at-once"), 0.0) == 0.2


@pytest.mark.parametrize("latency", ["2", "-1ms", "nan", "201ms", "1h"])
def test_a_latency_that_is_none_is_refused_in_one_sentence(
    latency: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["crash", "--latency", latency]) == 2
    told = capsys.readouterr().err
    assert "--latency" in told
    assert told.count("\n") == 1


def test_the_phase_covers_a_whole_cycle_of_syncs() -> None:
    low, high = load_range_s(Crash(3, "everysec", "power-cut", 1, "at-once"))
    assert low > 1.0
    assert high - low >= 1.0
    low, high = load_range_s(Crash(3, "everysec", "kill-slow-fsync", 1, "at-once"))
    assert high - low >= 1.5


def test_going_on_with_another_plan_is_refused(tmp_path: Path) -> None:
    begun = plan(cuts=3, seed=7)
    (tmp_path / JOURNAL_NAME).write_text(json.dumps({"plan": begun.to_json()}) + "\n", "utf-8")
    for options in (
        {"cuts": 4},
        {"seed": 8},
        {"policies": ("none",)},
        {"instances": (3,)},
        {"rate": 100},
        {"quick": False},
    ):
        other = plan(**{"cuts": 3, "seed": 7, **options})
        refused = pytest.raises(UsageError, match="started with other options")
        with refused, open_journal(tmp_path, other.to_json(), CutFacts):
            pass
    with open_journal(tmp_path, plan(cuts=3, seed=7).to_json(), CutFacts):
        pass


@pytest.mark.parametrize(
    "options, complaint",
    [
        (["--instances", "3,zero"], "'zero' is not a valid whole number"),
        (["--instances", "0"], "0 is not in the range 1<=x<=9"),
        (["--fsync", "sometimes"], "'sometimes' is not one of 'none', 'no', 'everysec', 'always'"),
        (["--kind", "flood"], "'flood' is not one of"),
        (["--fsync", "none", "--kind", "power-cut"], "no crash of lockbench combines one of these"),
        (["--fsync", ""], "'' is not one of"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_starts(options, complaint, capsys) -> None:
    assert execute(["crash", *options]) == 2
    assert complaint in capsys.readouterr().err


def test_the_verdict_is_the_worst_and_names_its_rows() -> None:
    (_, row) = cells([cut(crash("always"))])
    bad = structs.replace(row, verdict="violated", reason="9 lost")
    missing = structs.replace(row, verdict="not shown", reason="nothing was lost")
    assert judge_crash([], [row]).status == "pass"
    assert judge_crash([], [row, missing]).status == "inconclusive"
    judged = judge_crash([], [row, missing, bad])
    assert judged.status == "violated"
    assert judged.reasons[0] == "N=3 always power-cut of 1, at-once, margin 0, abstaining: 9 lost"
    assert judge_crash([], []).status == "inconclusive"
    assert judge_crash([], [row], ["a group was given up"]).status == "inconclusive"


# -- what is exported: the sums of the cuts by policy, each lock once ------------------------------


CUTS = [cut(crash(), 7, doubled=3), cut(crash(), 2, window_s=1.25), cut(crash("always"))]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch):
    with Collector() as collector:
        # what the exporters themselves read
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        yield collector


def test_sums_are_those_of_the_cuts_by_policy(collector: Collector) -> None:
    assert export_crashes("ab12", CUTS, {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}) == []
    points = {
        (name, attributes_of(point)["redlock.fsync"]): point
        for name, metrics in collector.received.history.items()
        for metric in metrics
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    }
    assert points["redlock.crash.lost_locks", "everysec"].as_int == 9
    assert points["redlock.crash.lost_locks", "always"].as_int == 0
    assert points["redlock.crash.double_grants", "everysec"].as_int == 3
    window = points["redlock.crash.lost_window", "everysec"]
    assert (window.count, window.sum) == (2, 1.75)
    assert points["redlock.crash.lost_window", "always"].count == 0


def test_without_an_endpoint_nothing_is_exported(collector: Collector) -> None:
    assert export_crashes("ab12", CUTS, {}) == []
    assert collector.received.requests == 0


def test_what_cannot_be_read_is_a_warning_and_not_the_end_of_the_result(
    collector: Collector,
) -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "soon",
    }
    (warning,) = export_crashes("ab12", CUTS, environ)
    assert "OTEL_METRIC_EXPORT_INTERVAL" in warning
