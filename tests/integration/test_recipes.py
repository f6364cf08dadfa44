"""Every flaw of every recipe, made certain: seen where it must be seen, absent where it must be absent. And as it is
met under `lockbench run`: a stretched gap is found by the oracle, a lock without one only overstays."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from bench.recipes.registry import RECIPES
from bench.topology.fleet import Fleet
from tests.conftest import Ended
from tests.schedules.stage import Shown
from tests.schedules.table import SCHEDULES, play

pytestmark = pytest.mark.integration
Run = Callable[..., tuple[int, dict[str, Any]]]
LOAD = (
    "--resources=1",
    "--users=7",  # Little's ratio judges eight and more: a slow machine would make the run INVALID
    "--ttl=60ms",
    "--hold=fixed:20ms",
    "--fsync=none",
    "--warmup=0",
    "--duration=1500ms",
)
ROWS = [
    pytest.param(schedule, recipe, expected, id=f"{schedule.name}-{recipe}")
    for schedule in SCHEDULES.values()
    for recipes, expected in ((schedule.shown_by, True), (schedule.absent_in, False))
    for recipe in recipes
]
SHOWN: dict[tuple[str, str], Shown] = {}  # played once, looked at by several tests


def shown(schedule: str, recipe: str, fleet: Fleet) -> Shown:
    if (schedule, recipe) not in SHOWN:
        SHOWN[schedule, recipe] = play(SCHEDULES[schedule], recipe, None if SCHEDULES[schedule].harms else fleet)
    return SHOWN[schedule, recipe]


@pytest.mark.parametrize("schedule, recipe, expected", ROWS)
def test_the_flaw_is_seen_where_it_is_and_only_there(schedule, recipe: str, expected: bool, fleet: Fleet) -> None:
    seen = shown(schedule.name, recipe, fleet)
    assert seen.seen is expected, (seen.figures, seen.report.reason)
    if RECIPES[recipe].about.safe:
        assert seen.report.service_faults == seen.report.foreign_deletes == seen.report.granted_invalid == 0
    assert seen.report.unexplained == 0
    for url in fleet.urls:
        with Redis.from_url(url) as server:
            assert server.dbsize() == 0, "a schedule leaves nothing"


@pytest.mark.slow
@pytest.mark.parametrize("schedule, recipe, expected", ROWS)
def test_it_is_no_luck_twenty_times_out_of_twenty(schedule, recipe: str, expected: bool, fleet: Fleet) -> None:
    seen = [play(schedule, recipe, None if schedule.harms else fleet).seen for _ in range(20)]
    assert seen == [expected] * 20


def test_every_flawed_recipe_has_a_schedule_that_shows_its_flaw() -> None:
    shown_somewhere = {recipe for schedule in SCHEDULES.values() for recipe in schedule.shown_by}
    flawed = {name for name, entry in RECIPES.items() if not entry.about.safe}
    assert flawed <= shown_somewhere
    assert {"setnx", "backoff", "majority-release"} <= shown_somewhere


@pytest.mark.parametrize(
    "schedule, recipe, figures",
    [
        ("both-read-first", "get-set", {"violations_per_1000_acquires": 500}),
        ("takeover-together", "timestamp-getset", {"winners": 1, "overwritten_ends": 1}),
        ("takeover-together", "timestamp-set", {"winners": 2}),
        ("skewed-clock", "timestamp-getset", {"steals_at_0_ms": 0, "steals_at_5000_ms": 0, "steals_at_20000_ms": 1}),
        ("overslept-holder", "set-nx-fixed", {"chain": 5, "foreign_deletes": 1, "overstays": 1}),
        ("overslept-holder", "company-2013", {"chain": 5, "foreign_deletes": 1, "overstays": 1}),
        ("overslept-holder", "set-nx-lua", {"chain": 0, "foreign_deletes": 0, "overstays": 1}),
        ("overslept-holder", "redlock", {"chain": 0, "foreign_deletes": 0, "overstays": 1}),
        ("gap-in-release", "set-nx-get-del", {"service_faults": 1}),
        ("killed-holder", "setnx", {"keys_without_end": 1, "recovery_ms": None}),
        ("killed-between", "setnx-expire", {"orphan_keys_per_kill": 1}),
        ("raise-in-body", "backoff", {"leaked_locks": 1}),
        ("paused-watchdog", "watchdog-naive", {"foreign_renewals": 1, "late_renewals": 1}),
        ("paused-watchdog", "watchdog", {"foreign_renewals": 0, "late_renewals": 1}),
        ("slow-copy", "multi-write", {"double_grants_per_1000_link_faults": 1000, "caught_double_grants": 0}),
        ("slow-copy", "multi-write-unique-index", {"service_faults": 0, "caught_double_grants": 3}),
        ("left-over-minority", "majority-release", {"left_over_keys": 1}),
        ("promotion", "replica-failover", {"replicas_that_confirmed": 0, "lost_locks": 1, "service_faults": 1}),
        ("promotion", "replica-delayed-promotion", {"lost_locks": 1, "service_faults": 0}),
        ("stale-write", "set-nx-lua", {"rejected": 1}),
        ("stale-write", "redlock", {"rejected": 1, "rejected_marked_after_the_pause": 0}),
    ],
)
def test_a_schedules_figures_are_those_of_the_description(
    schedule: str, recipe: str, figures: dict[str, float | None], fleet: Fleet
) -> None:
    seen = shown(schedule, recipe, fleet).figures
    assert {name: seen[name] for name in figures} == figures


def test_what_a_ttl_costs_is_told_in_time(fleet: Fleet) -> None:
    recovery_ms = shown("killed-holder", "set-nx-lua", fleet).figures["recovery_ms"]
    assert recovery_ms is not None
    assert 0 < recovery_ms < 2000, "a TTL of 240 ms, less what passed before the kill, plus a retry"
    blocked = shown("left-over-minority", "majority-release", fleet).figures["blocked_per_ttl"]
    assert blocked is not None
    assert 0.5 < blocked < 3, "about the rest of the TTL for one left-over key"
    delayed = shown("promotion", "replica-delayed-promotion", fleet).figures["unavailable_s"]
    assert delayed is not None
    assert delayed >= 0.5, "the longest TTL of that schedule"
    noticed_ms = shown("paused-watchdog", "watchdog", fleet).figures["noticed_late_ms"]
    assert noticed_ms is not None


# -- under `lockbench run` ---------------------------------------------------------------------------------------------


@pytest.fixture
def run(lockbench: Callable[..., Ended], tmp_path: Path) -> Run:
    """`lockbench run` with LOAD and these words: the exit code and the result."""

    def once(*words: str) -> tuple[int, dict[str, Any]]:
        done = lockbench("run", *LOAD, "--quiet", "--out", "run", *words)
        result = tmp_path / "run" / "result.json"
        assert result.exists(), done.stderr
        return done.returncode, json.loads(result.read_text(encoding="utf-8"))

    return once


def test_a_stretched_gap_between_get_and_del_violates_the_lock(run: Run) -> None:
    code, result = run("--recipe", "set-nx-get-del", "--pause", "after-get:100ms:0.2")
    safety = result["safety"]
    assert (code, safety["verdict"]) == (5, "VIOLATED")
    assert safety["service_faults"] > 0
    assert safety["unexplained"] == 0, "the recipe is to blame"
    assert {example["blame"] for example in safety["examples"] if example["blame"]} == {"unsafe recipe"}
    assert any("set-nx-get-del is here to show its flaw, do not use it" in text for text in result["warnings"])
    assert len(result["instances"]) == 1, "as many as the recipe takes"


def test_the_same_pause_at_work_makes_the_safe_lock_overstay_and_nothing_worse(run: Run) -> None:
    code, result = run("--recipe", "set-nx-lua", "--pause", "after-grant:100ms:0.1", "--fencing", "--duration=4s")
    safety = result["safety"]
    assert code == 0, result["verdict"]
    assert (safety["service_faults"], safety["foreign_deletes"]) == (0, 0)
    if safety["verdict"] == "NOT TESTED":
        pytest.skip(f"not known here: {safety['tested_leases']} tested leases")
    assert safety["verdict"] == "SAFE"
    assert safety["client_overstays"] > 0
    assert [instance["leaked_keys"] for instance in result["instances"]] == [0]
    told = [text for text in result["warnings"] if text.startswith("set-nx-lua counted ")]
    assert any("stale writes rejected" in text for text in told), told
    assert not any("valid writes rejected" in text for text in told), told


def test_a_replicated_recipe_gets_its_replica(run: Run) -> None:
    _, result = run("--recipe", "replica-failover", "--duration", "300ms")
    assert result["totals"]["acquired"] > 0
    assert result["safety"]["service_faults"] == 0
    assert [instance["role"] for instance in result["fleet"]["instances"]] == ["primary", "replica"]
