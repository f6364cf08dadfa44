"""Gaps of a load process: what is one, what it is worth, and which limits it excuses."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gates.threshold import read_threshold
from bench.measure.facts import Window
from bench.measure.gaps import (
    GAP_NS,
    Gap,
    lost_in,
    pause_histograms,
    read_gaps,
    read_pauses,
    touched,
    with_gaps,
)
from bench.measure.histogram import Histogram
from bench.measure.record import records_of
from bench.workloads.gap_log import GapLog
from tests.bench.whole_run import run_of
from tests.doubles.records import MS, record_of

SECOND = 1_000_000_000
WINDOW = Window(10 * SECOND, 20 * SECOND)


def test_a_process_that_neither_ran_nor_waited_for_a_core_was_away(tmp_path: Path) -> None:
    log = GapLog(tmp_path, 3)
    now_ns = time.monotonic_ns()
    # as usual
    log.look(now_ns, now_ns + 10 * MS)
    # 600 ms in which it did nothing
    log.look(now_ns + 20 * MS, now_ns + 620 * MS)
    log.close()
    ((worker, pid, begun_ns, ended_ns, lost_ns),) = read_gaps(tmp_path)
    assert (worker, pid) == (3, os.getpid())
    assert (begun_ns, ended_ns) == (now_ns + 10 * MS, now_ns + 620 * MS)
    assert 550 * MS < lost_ns <= 600 * MS


def test_a_process_that_was_busy_was_not_away(tmp_path: Path) -> None:
    log = GapLog(tmp_path, 0)
    begun_ns = time.monotonic_ns()
    worked_ns = time.thread_time_ns() + 120 * MS
    while time.thread_time_ns() < worked_ns:
        pass
    log.look(begun_ns, time.monotonic_ns())
    log.close()
    assert [gap for gap in read_gaps(tmp_path) if gap.lost_ns > 3 * GAP_NS] == []


@pytest.mark.parametrize(("late_ms", "pauses"), [(1, 0), (3, 1), (30, 1)])
def test_a_process_that_did_not_run_when_it_was_due_has_paused(
    late_ms: int, pauses: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # for a core, as it may have while this test runs
    monkeypatch.setattr(GapLog, "_waited", lambda _log: 0)
    log = GapLog(tmp_path, 0)
    now_ns = time.monotonic_ns()
    log.look(now_ns, now_ns + 10 * MS)
    log.look(now_ns + 20 * MS, now_ns + (20 + late_ms) * MS)
    log.close()
    found = [gap for gap in read_pauses(tmp_path) if gap.begun_ns == now_ns + 10 * MS]
    assert len(found) == pauses
    assert read_gaps(tmp_path) == []


def test_a_wait_for_a_core_is_a_pause_and_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = iter([0, 60 * MS])
    monkeypatch.setattr(GapLog, "_waited", lambda _log: next(waits))
    log = GapLog(tmp_path, 0)
    now_ns = time.monotonic_ns()
    log.look(now_ns, now_ns + 60 * MS)
    log.close()
    assert read_gaps(tmp_path) == []
    (pause,) = read_pauses(tmp_path)
    assert pause.lost_ns >= 50 * MS


def test_acquires_that_touch_a_pause_stand_in_the_class_of_the_longest() -> None:
    pauses = [Gap(0, 1, 1_000 * MS, 1_010 * MS, 3 * MS), Gap(1, 2, 1_005 * MS, 1_040 * MS, 20 * MS)]
    spans = [(990, 999), (990, 1_001), (1_012, 1_020), (1_059, 1_065), (1_061, 1_070)]
    rows = [
        record_of(number, start=start, ended=ended)
        for number, (start, ended) in enumerate(spans, 1)
    ]
    found = pause_histograms(records_of(rows), pauses)
    assert {name: histogram.count for name, histogram in found.items()} == {
        "paused_2": 1,
        "paused_16": 2,
    }
    assert pause_histograms(records_of(rows), []) == {}


def test_who_waits_for_its_time_slice_is_not_away(tmp_path: Path) -> None:
    log = GapLog(tmp_path, 0)
    now_ns = time.monotonic_ns()
    log.look(now_ns, now_ns + SECOND, idle=True)
    log.close()
    assert read_pauses(tmp_path) == []


def test_what_cannot_be_true_is_no_gap(tmp_path: Path) -> None:
    rows = [[5, 9, 3, 1], [9, 5, 3, 1], [5, 9, 30, 1], [-5, 9, 3, 1], [5, 9, 3, 0]]
    np.array(rows, "<i8").tofile(tmp_path / "gaps-1-7.bin")
    assert read_gaps(tmp_path) == [Gap(1, 7, 5, 9, 3)]


def test_the_time_lost_is_that_within_the_window_by_process() -> None:
    gaps = [
        Gap(0, 1, 9 * SECOND, 11 * SECOND, 2 * SECOND),
        Gap(0, 1, 15 * SECOND, 16 * SECOND, SECOND // 2),
        Gap(1, 2, 19 * SECOND, 25 * SECOND, 6 * SECOND),
        Gap(2, 3, 30 * SECOND, 31 * SECOND, SECOND),
    ]
    assert lost_in(gaps, WINDOW) == {(0, 1): 3 * SECOND // 2, (1, 2): SECOND}


def test_an_acquire_touches_a_gap_and_what_had_piled_up_behind_it() -> None:
    gap = Gap(0, 1, 1_000 * MS, 1_100 * MS, 90 * MS)
    spans = [(0, 999), (990, 1_001), (1_050, 1_300), (1_150, 1_160), (1_201, 1_210)]
    rows = [
        record_of(number, start=start, ended=ended)
        for number, (start, ended) in enumerate(spans, 1)
    ]
    assert touched(records_of(rows), [gap]).tolist() == [False, True, True, True, False]
    assert not touched(records_of(rows), []).any()


@pytest.mark.parametrize(("lost_s", "word"), [(0.4, "VALID"), (0.6, "INVALID")])
def test_more_than_a_twentieth_of_the_window_makes_a_run_invalid(lost_s: float, word: str) -> None:
    lost_ns = int(lost_s * SECOND)
    gaps = [Gap(1, 9, 12 * SECOND, 12 * SECOND + lost_ns, lost_ns)]
    before = run_of({"generator": {"verdict": "VALID", "reason": None}})
    away = {"operations": 7, "failures": 2}
    after = with_gaps(before, gaps, WINDOW, away, 2)  # type: ignore[arg-type]
    generator = after.generator
    assert (generator.verdict, generator.gap_s) == (word, lost_s)
    assert (generator.gap_operations, generator.gap_failures, len(generator.gaps)) == (7, 2, 1)
    assert (generator.gaps[0].at_s, generator.gaps[0].pid) == (2.0, 9)
    # one of two processes was away for 4 % of the window
    if word == "VALID":
        assert after.rate.achieved_per_s == pytest.approx((before.rate.achieved_per_s or 0) / 0.98)


# -- limits ----------------------------------------------------------------------------------------


def judged(limit: str, took_ms: Any, *, failed: int = 0, **generator: Any) -> str:
    """What is said of a limit, of a run whose acquires took so long (ms); `generator`: of its
    health."""
    own = Histogram.of((np.array(took_ms) * MS).astype(np.int64))
    lag = Histogram.of((np.array(generator.pop("lag_ms", [0.01] * 1000)) * MS).astype(np.int64))
    percents = {
        name: own.percentile(value, failed) for name, value in (("p50", 50.0), ("p99", 99.0))
    }
    endless = [name for name, value in percents.items() if value == float("inf")]
    shown = {
        name: None if name in endless or value is None else value / 1e9
        for name, value in percents.items()
    }
    rest = {"p90": None, "p999": None, "p9999": None, "max": None if failed else own.max_ns / 1e9}
    one = {**shown, **rest, "count": own.count, "mean": 0.001}
    whole = {**shown, **rest, "count": own.count + failed, "failed": failed, "infinite": endless}
    run = run_of(
        {
            "generator": {"verdict": "VALID", "reason": None, **generator},
            "latency_s": {
                "acquire": one,
                "acquire_all": whole,
                "acquire_failed": {"count": failed},
            },
            "rate": {"offered_per_s": None, "sustained": None},
            "outcomes": {"acquired": own.count, "contended": failed},
            "outcome_shares": {"acquired": own.count / (own.count + failed)},
        },
        histograms={"acquire": own.encode(), "scheduler_lag": lag.encode()},
    )
    return read_threshold(limit).judge(run).status


AWAY = {"gap_s": 0.3, "gap_operations": 30, "gap_failures": 0}
LATE = {"verdict": "LATE", "reason": "the load process's scheduler lagged"}


def test_a_limit_that_only_the_acquires_near_a_gap_break_is_not_known() -> None:
    took = [1.0] * 970 + [300.0] * 30
    assert judged("acquire.p99 < 50ms", took) == "fail"
    assert judged("acquire.p99 < 50ms", took, **AWAY) == "inconclusive"
    assert judged("acquire.p99 < 500ms", took, **AWAY) == "pass"


def test_a_limit_that_others_break_as_well_fails_beside_a_gap() -> None:
    assert judged("acquire.p99 < 50ms", [1.0] * 900 + [300.0] * 100, **AWAY) == "fail"


def test_failures_near_a_gap_are_the_generators() -> None:
    near = {**AWAY, "gap_failures": 30}
    assert judged("acquire.p99 < 50ms", [1.0] * 970, failed=30) == "fail"
    assert judged("acquire.p99 < 50ms", [1.0] * 970, failed=30, **near) == "inconclusive"
    assert judged("acquire.success >= 99%", [1.0] * 970, failed=30) == "fail"
    assert judged("acquire.success >= 99%", [1.0] * 970, failed=30, **near) == "inconclusive"
    assert judged("acquire.success >= 99%", [1.0] * 900, failed=100, **near) == "fail"


def test_lateness_that_cannot_explain_it_excuses_no_limit() -> None:
    """`acquire.p99 < 1us` beside a p50 of 0.5 ms: no lag of the scheduler makes half a millisecond
    of nothing."""
    # LATE by its p99, and its largest delay is longer than most acquires
    lag_ms = [0.05] * 900 + [8.0] * 100
    took = [0.5] * 990 + [9.0] * 10
    assert judged("acquire.p99 < 1us", took, lag_ms=lag_ms, **LATE) == "fail"
    assert judged("acquire.p50 < 1us", took, lag_ms=lag_ms, **LATE) == "fail"


def test_lateness_that_may_explain_it_leaves_a_limit_open() -> None:
    lag_ms = [0.05] * 900 + [8.0] * 100
    assert (
        judged("acquire.p99 < 5ms", [0.5] * 900 + [9.0] * 100, lag_ms=lag_ms, **LATE)
        == "inconclusive"
    )
    assert (
        judged("acquire.p99 < 1us", [0.5] * 1000, lag_ms=[600.0] * 1000, **LATE) == "inconclusive"
    )
    assert judged("acquire.p99 < 20ms", [0.5] * 900 + [9.0] * 100, lag_ms=lag_ms, **LATE) == "pass"
