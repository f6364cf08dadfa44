"""One look at a run: what the history and the notes say since the last one."""

import json
from pathlib import Path

import pytest

from bench.measure.record import OUTCOME_CODES
from bench.measure.recorder import Recorder
from bench.run.follower import Follower
from bench.scenario import load

MS = 1_000_000
S = 1_000_000_000


def acquire(recorder: Recorder, start_ns: int, took_ns: int, outcome: str = "acquired") -> None:
    end_ns = start_ns + took_ns
    granted_ns = end_ns if outcome == "acquired" else 0
    recorder.write(
        start_ns,
        start_ns,
        start_ns,
        granted_ns,
        0,
        0,
        0,
        0,
        end_ns,
        0,
        0,
        OUTCOME_CODES[outcome],
        0,
        1,
        0,
    )


def write_note(workdir: Path, worker: int, **facts: object) -> None:
    note = {
        "worker": worker,
        "pid": 100 + worker,
        "phase": "running",
        "spawned_ns": 10 * S,
        "cpu_s": 0.0,
    } | facts
    (workdir / f"worker-{worker}-{100 + worker}.json").write_text(
        json.dumps(note), encoding="utf-8"
    )


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    scenario = load(options={"processes": "2", "warmup": "2s", "duration": "20s"})
    return Follower(tmp_path, scenario, began_ns=9 * S)


@pytest.mark.parametrize(("capacity", "seen"), [("1", "VIOLATED"), ("2", None)])
def test_the_live_judge_knows_how_many_may_hold(
    tmp_path: Path, capacity: str, seen: str | None
) -> None:
    follower = Follower(tmp_path, load(options={"capacity": capacity}), began_ns=9 * S)
    acquired = OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
    recorder = Recorder(tmp_path, 0)
    for at in (10 * S, 10 * S + MS):
        end = at + 5 * MS
        recorder.write(at, at, at, at, at + S, end, end, end + 9, at, 0, 0, acquired, 5, 1, at % 7)
    assert follower.look(11 * S).safety.verdict == seen


def test_an_interval_shows_only_what_ended_in_it(tmp_path: Path, follower: Follower) -> None:
    recorder = Recorder(tmp_path, 0)
    for index in range(2000):
        acquire(recorder, 10 * S + index, MS)
    first = follower.look(11 * S)
    assert first.acquires_per_s == 1000.0
    assert first.p50_s == pytest.approx(0.001, rel=0.01)
    for index in range(20):
        acquire(recorder, 11 * S + index, 5 * MS)
    acquire(recorder, 11 * S, MS, "contended")
    second = follower.look(12 * S)
    assert second.acquires_per_s == 20.0
    assert second.p50_s == pytest.approx(0.005, rel=0.01)
    assert second.p99_s is None, "fewer than ten samples lie beyond it"
    assert second.outcomes == {"acquired": 2020, "contended": 1}
    recorder.close()


def test_the_clock_starts_when_the_last_worker_has_its_users(
    tmp_path: Path, follower: Follower
) -> None:
    write_note(tmp_path, 0)
    assert follower.look(30 * S).phase == "starting"
    write_note(tmp_path, 1, spawned_ns=12 * S)
    assert follower.window_ns is None
    look = follower.look(13 * S)
    assert (look.phase, look.elapsed_s, look.remaining_s) == ("warm-up", 0.0, 21.0)
    assert follower.window_ns == (14 * S, 34 * S)
    look = follower.look(24 * S)
    assert (look.phase, look.elapsed_s, look.remaining_s) == ("measuring", 10.0, 10.0)
    assert follower.look(35 * S).phase == "draining"


def test_the_busiest_worker_is_the_generators_health(tmp_path: Path, follower: Follower) -> None:
    write_note(tmp_path, 0)
    write_note(tmp_path, 1, late_starts=7)
    first = follower.look(11 * S)
    assert (first.cpu_ratio, first.late_starts) == (None, 7), "nobody has told yet"
    write_note(tmp_path, 0, told_ns=10 * S + MS, cpu_s=0.05)
    assert follower.look(12 * S).cpu_ratio is None, "what it took to begin is no share of its time"
    write_note(tmp_path, 0, told_ns=12 * S, cpu_s=0.4)
    write_note(tmp_path, 1, told_ns=12 * S, cpu_s=1.8)
    assert follower.look(12 * S).cpu_ratio == pytest.approx(0.9)


def test_an_instance_in_trouble_is_told_with_the_errors_of_all_workers(
    tmp_path: Path, follower: Follower
) -> None:
    well = {"index": 0, "address": "h:1", "state": "voting", "errors": {}}
    write_note(
        tmp_path,
        0,
        instances=[
            well,
            {"index": 1, "address": "h:2", "state": "voting", "errors": {"timeout": 2}},
        ],
    )
    write_note(
        tmp_path,
        1,
        instances=[well, {"index": 1, "address": "h:2", "state": "down", "errors": {"closed": 3}}],
    )
    assert follower.look(11 * S).troubles == {1: ("down", 5)}


def test_a_violation_is_seen_at_the_next_look_and_stays_seen(
    tmp_path: Path, follower: Follower
) -> None:
    recorder = Recorder(tmp_path, 0)
    held = OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
    for caller, granted_ns, sent_ns in (
        (1, 10 * S, 10 * S + 50 * MS),
        (2, 10 * S + MS, 10 * S + 60 * MS),
    ):
        until_ns = granted_ns + S
        recorder.write(
            granted_ns,
            granted_ns,
            granted_ns,
            granted_ns,
            until_ns,
            sent_ns,
            sent_ns,
            sent_ns + 1,
            granted_ns,
            0,
            caller,
            held,
            5,
            1,
            caller,
        )
        if caller == 1:
            assert follower.look(11 * S).safety.verdict is None
    assert follower.look(12 * S).safety.violations == {"service_fault": 1}
    assert follower.look(13 * S).safety.violations == {"service_fault": 1}
    assert follower.live.verdict.verdict == "VIOLATED", "for telemetry, too"
    recorder.close()
